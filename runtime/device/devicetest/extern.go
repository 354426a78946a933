package devicetest

import (
	"errors"
	"strings"
	"testing"

	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
)

// copyOp is an extern op that uses only methods of streams: it copies its operand to its
// scratch memory, and that to its result.
type copyOp struct {
	t       testing.TB
	capture bool
	idle    bool // it enqueues nothing
	fail    error
	calls   []device.OpCall
}

// Signature returns the signature of an op with one operand and one result.
func (o *copyOp) Signature() device.Signature {
	return device.Signature{Name: ExternOp, Mut: []bool{false}, Results: 1, Capture: o.capture}
}

// ScratchBytes returns the size of the operand, and checks its arguments.
func (o *copyOp) ScratchBytes(args []device.Tensor, attrs []program.Attr) (int64, error) {
	if len(args) != 2 || len(args[0].Shape) != 1 || args[0].Size != 4*args[0].Shape[0] {
		o.t.Errorf("operands %v without their sizes", args)
	}
	if len(attrs) != 1 || attrs[0].Name != "factor" || attrs[0].Float != 1 {
		o.t.Errorf("attributes %v, want factor=1", attrs)
	}
	return args[0].Size, nil
}

// Launch copies the operand through the scratch memory to the result.
func (o *copyOp) Launch(c *device.OpCall) error {
	o.calls = append(o.calls, *c)
	if c.Capturing != c.Stream.Capturing() {
		o.t.Errorf("Capturing is %v on a stream where it is %v", c.Capturing, c.Stream.Capturing())
	}
	if o.idle {
		return nil
	}
	in, out := c.Args[0].Buffer, c.Args[1].Buffer
	if err := c.Stream.Copy(c.Scratch.Slice(0, in.Size), in); err != nil {
		return err
	}
	if o.fail != nil {
		return o.fail
	}
	return c.Stream.Copy(out, c.Scratch.Slice(0, in.Size))
}

var externTests = map[string]func(*env){
	"Run": func(e *env) {
		op := &copyOp{t: e.T}
		p := e.load(Extern, device.OpSet{ExternOp: op})
		x, out := e.filled(floats(1, 2, 3)), e.alloc(12)
		l := e.bind(p, 3, []device.Buffer{x}, out)
		calls := l.Calls()
		if len(calls) != 1 {
			e.Fatalf("%d calls, want 1", len(calls))
		}
		calls[0].Meta, calls[0].Rows = "metadata", 2
		e.must(e.stream.Launch(l))
		e.expect("a copy by an op", out, floats(1, 2, 3))
		if c := op.calls[0]; c.Meta != "metadata" || c.Rows != 2 || c.Stream != e.stream || len(c.Args[0].Shape) != 1 || c.Args[0].Shape[0] != 3 {
			e.Errorf("the op was called with %+v", c)
		}
		e.must(e.stream.BeginCapture(device.CaptureThreadLocal))
		e.refused("capture of an op with Capture false", e.stream.Launch(l), device.ErrNotCapturable)
		g, err := e.stream.EndCapture()
		e.must(err)
		if g.Nodes() != 0 || len(op.calls) != 1 {
			e.Errorf("%d operations and %d calls after a refusal", g.Nodes(), len(op.calls))
		}
		e.must(g.Close())
	},
	"Capture": func(e *env) {
		op := &copyOp{t: e.T, capture: true}
		p := e.load(Extern, device.OpSet{ExternOp: op})
		x, out := e.filled(floats(1, 2)), e.filled(floats(0, 0))
		l := e.bind(p, 2, []device.Buffer{x}, out)
		g := e.capture(func() { e.must(e.stream.Launch(l)) })
		if len(op.calls) != 1 || !op.calls[0].Capturing {
			e.Fatalf("calls %v, want one while capturing", op.calls)
		}
		e.expect("a captured op", out, floats(0, 0))
		e.write(x, floats(5, 6))
		e.must(e.stream.LaunchGraph(g))
		e.expect("a replayed op", out, floats(5, 6))
		if len(op.calls) != 1 {
			e.Errorf("a replay called the op")
		}
	},
	// An op that does not belong to a program.
	"LaunchOp": func(e *env) {
		op := &copyOp{t: e.T, capture: true}
		x, out, scratch := e.filled(floats(1, 2)), e.zeroed(8), e.zeroed(8)
		call := func() *device.OpCall {
			return &device.OpCall{
				Args:    []device.Tensor{{Buffer: x, DType: dtype.F32, Shape: []int64{2}}, {Buffer: out, DType: dtype.F32, Shape: []int64{2}}},
				Scratch: scratch, Loc: "model.ir:2:5", Origin: 3,
			}
		}
		e.must(e.stream.LaunchOp(op, call()))
		e.expect("an op", out, floats(1, 2))
		if c := op.calls[0]; c.Stream != e.stream || c.Capturing {
			e.Errorf("the op was called with %+v", c)
		}
		g := e.capture(func() { e.must(e.stream.LaunchOp(op, call())) })
		e.write(x, floats(5, 6))
		e.must(e.stream.LaunchGraph(g))
		e.expect("a replayed op", out, floats(5, 6))
		nodes := g.Describe()
		for i, n := range nodes {
			if n.Op != ExternOp || n.Loc != "model.ir:2:5" || n.Origin != 3 {
				e.Errorf("node %d is described as %+v", i, n)
			}
		}
		err := g.Rebind([]device.Move{{From: x, To: e.alloc(8)}})
		e.refused("rebind of an op's operand", err, device.ErrNotRebindable)
		if !strings.Contains(err.Error(), ExternOp) || !strings.Contains(err.Error(), "model.ir:2:5") {
			e.Errorf("%v does not name the op", err)
		}
		e.refused("rebind of an op's scratch memory", g.Rebind([]device.Move{{From: scratch, To: e.alloc(8)}}), device.ErrNotRebindable)
		other := e.alloc(16)
		e.must(g.Rebind([]device.Move{{From: other.Slice(0, 8), To: other.Slice(8, 8)}}))

		op.idle = true
		e.refused("an op that records nothing", e.capturing(func() error { return e.stream.LaunchOp(op, call()) }), device.ErrNotCapturable)
		op.idle, op.capture = false, false
		e.refused("capture of an op with Capture false", e.capturing(func() error { return e.stream.LaunchOp(op, call()) }), device.ErrNotCapturable)
		op.fail = errors.New("sentinel")
		e.refused("an op that fails", e.stream.LaunchOp(op, call()), op.fail)
		e.must(out.Memory.Free())
		e.refused("replay of an op whose memory was freed", e.stream.LaunchGraph(g), device.ErrFreed)
		s := e.newStream()
		e.must(s.Close())
		e.refused("an op on a closed stream", s.LaunchOp(op, call()), device.ErrClosed)
	},
	"Errors": func(e *env) {
		_, err := e.dev.Load(e.suite.Program(e.T, Extern), nil)
		e.refused("load without the op", err, nil)
		sentinel := errors.New("sentinel")
		op := &copyOp{t: e.T, capture: true, fail: sentinel}
		p := e.load(Extern, device.OpSet{ExternOp: op})
		l := e.bind(p, 1, []device.Buffer{e.filled(floats(1))}, e.alloc(4))
		e.refused("an op that fails", e.stream.Launch(l), sentinel)
		e.must(e.stream.BeginCapture(device.CaptureThreadLocal))
		e.refused("an op that fails while capturing", e.stream.Launch(l), sentinel)
		_, err = e.stream.EndCapture()
		e.refused("the end of a capture in which an op failed", err, sentinel)
		if e.stream.Capturing() {
			e.Error("the stream still captures")
		}
		e.alloc(4)
	},
}
