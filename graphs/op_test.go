package graphs_test

import (
	"errors"
	"strings"
	"testing"

	"pwc/graphs"
	"pwc/internal/testkit"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// negateOp writes the complement of its operand's bytes to its result. It enqueues that as Go code or,
// if atOnce is set, does it in Launch, which a replay would not repeat.
type negateOp struct {
	dev    *host.Device
	atOnce bool
}

func (o negateOp) Signature() device.Signature {
	return device.Signature{Name: "my::negate", Mut: []bool{false}, Results: 1, Capture: true}
}

func (o negateOp) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (o negateOp) Launch(c *device.OpCall) error {
	in, inErr := o.dev.Bytes(c.Args[0].Buffer)
	out, outErr := o.dev.Bytes(c.Args[1].Buffer)
	if err := errors.Join(inErr, outErr); err != nil {
		return err
	}
	run := func() error {
		for i := range out {
			out[i] = ^in[i]
		}
		return nil
	}
	if o.atOnce {
		return run()
	}
	return c.Stream.(*host.Stream).Call(run)
}

// TestOpsOfARecorder holds that ops of a recorder follow the rules of ops in programs: a capture refuses
// work that a replay would skip, and Update refuses to move memory that an op was given.
func TestOpsOfARecorder(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	op := negateOp{dev: e.dev.(*host.Device)}
	x, y, out := e.tensor("x", 1), e.tensor("y", 5), e.tensor("out", 0)
	o := graphs.Options{Name: "g", KeepTemplate: true}
	g := e.capture(o, func(r *graphs.Recorder) { testkit.Check(t, r.Call(op, nil, nil, "model.ir:3:4", x, out)) })
	e.replay(g)
	if n := g.Describe()[0]; n.Op != "my::negate" || n.Loc != "model.ir:3:4" || n.Kind != device.NodeCall {
		t.Errorf("the op is described as %+v", n)
	}
	err := g.Update(graphs.Move{From: x, To: y})
	var r *device.RebindError
	if !errors.As(err, &r) || !strings.Contains(err.Error(), "model.ir:3:4") {
		t.Errorf("%v, want a refusal that names the op", err)
	}
	op.atOnce = true
	if _, err := graphs.Capture(ctx, e.s, o, func(r *graphs.Recorder) error {
		return r.Call(op, nil, nil, "model.ir:3:4", x, out)
	}); !errors.Is(err, device.ErrNotCapturable) || !strings.Contains(err.Error(), "my::negate") {
		t.Errorf("an op that computes at once: %v", err)
	}
	testkit.Check(t, e.s.Eager(e.s.DefaultStream()).Call(op, nil, nil, "", x, out))
	e.reset(g)
	drop(t, x, y, out)
}
