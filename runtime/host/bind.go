package host

import (
	"fmt"
	"unsafe"

	"pwc/program"
	"pwc/runtime/device"
)

// bound is a program with all addresses resolved: a list of nodes, and calls of
// extern ops and library routines between them.
type bound struct {
	exec     *Executable
	env      program.Env
	assigned *device.Assigned
	steps    []boundStep
	calls    []*device.OpCall // of extern ops
	mems     []*memory        // segments that the program uses, each once
}

// boundStep is a node or the call of an op.
type boundStep struct {
	of   *program.Step
	node node
	op   device.Op
	call *device.OpCall // nil: a node
	name string         // of the op
}

var _ device.BoundLaunch = (*bound)(nil)

// Executable returns the program that was bound.
func (b *bound) Executable() device.Executable { return b.exec }

// Calls returns the calls of extern ops in the order of the steps.
func (b *bound) Calls() []*device.OpCall { return b.calls }

// usable returns an error if the program was closed or its memory freed.
func (b *bound) usable() error {
	if b.exec.closed.Load() {
		return fmt.Errorf("program: %w", device.ErrClosed)
	}
	for _, m := range b.mems {
		if m.base.Load() == nil {
			return device.ErrFreed
		}
	}
	return nil
}

// run executes the program on s.
func (b *bound) run(s *Stream) error {
	if s.trace != nil {
		s.trace(b.exec.program, nil)
	}
	for i := range b.steps {
		st := &b.steps[i]
		if err := st.run(s); err != nil {
			return err
		}
		if s.trace != nil {
			s.trace(b.exec.program, st.of)
		}
	}
	return nil
}

func (st *boundStep) run(s *Stream) error {
	if st.call == nil {
		return st.node.run(s)
	}
	return s.until.after(runOp(s, st.op, st.name, st.call))
}

// record appends the program to the capture of s. A program with an op that cannot be
// captured is refused before anything is recorded. An op that fails spoils the capture, as
// on a GPU, whose driver cannot remove recorded nodes. Ops record themselves.
func (b *bound) record(s *Stream, on *device.Branch) error {
	for i := range b.steps {
		if st := &b.steps[i]; st.call != nil && !st.op.Signature().Capture {
			return fmt.Errorf("host: launch: %s: %w", st.name, device.ErrNotCapturable)
		}
	}
	rec, outer := on.Rec, on.Rec.Scope
	defer func() { rec.Scope = outer }()
	for i := range b.steps {
		st := &b.steps[i]
		rec.Scope = device.Scope{Origin: st.of.Origin}
		if st.call == nil {
			s.record(on, st.node, origin{bound: b, step: st.of})
			continue
		}
		if err := s.recordOp(on, b, st.op, st.name, st.of.Origin, st.call); err != nil {
			return err
		}
	}
	return nil
}

// LaunchOp implements [device.Stream].
func (s *Stream) LaunchOp(op device.Op, c *device.OpCall) error {
	const what = "launch of an op"
	if err := s.usable(what); err != nil {
		return err
	}
	if op == nil || c == nil {
		return fmt.Errorf("host: %s: no op, or no call of it, is given", what)
	}
	name := op.Signature().Name
	on := s.active()
	if on == nil {
		return s.until.after(runOp(s, op, name, c))
	}
	if !op.Signature().Capture {
		return fmt.Errorf("host: %s: %s: %w", what, name, device.ErrNotCapturable)
	}
	return s.recordOp(on, nil, op, name, c.Origin, c)
}

// runOp launches an op that is not captured. Afterwards s.until.err may return an error, too.
func runOp(s *Stream, op device.Op, name string, c *device.OpCall) error {
	c.Stream, c.Capturing = s, false
	defer s.lane.caught(protect())
	if err := op.Launch(c); err != nil {
		return fmt.Errorf("host: %s: %w", name, err)
	}
	return nil
}

// recordOp launches an op, which records itself. b is the op's program; nil: the op belongs to
// no program. It is an error if the op has results of more than 0 bytes and records nothing: a replay
// would not compute them. An error spoils the capture.
func (s *Stream) recordOp(on *device.Branch, b *bound, op device.Op, name string, node int32, c *device.OpCall) (err error) {
	rec, outer, scope := on.Rec, s.capture.op, on.Rec.Scope
	before := len(rec.Nodes)
	rec.Scope = device.Scope{Op: name, Origin: node, Loc: c.Loc}
	s.capture.op = origin{bound: b, call: c}
	c.Stream, c.Capturing = s, true
	err = op.Launch(c)
	c.Capturing = false
	s.capture.op, rec.Scope = outer, scope
	if err != nil {
		err = fmt.Errorf("host: %s: %w", name, err)
	} else if err = c.Recorded(op.Signature(), len(rec.Nodes)-before); err != nil {
		err = fmt.Errorf("host: launch: %w (Stream.Call records Go code)", err)
	}
	if err != nil && s.capture.spoiled == nil {
		s.capture.spoiled = err
	}
	return err
}

// Bind implements [device.Executable]. It also proves that every address of every kernel is
// within its buffer.
func (x *Executable) Bind(symbols []int64, args device.Args) (device.BoundLaunch, error) {
	b, err := x.bind(symbols, args)
	if err != nil {
		return nil, fmt.Errorf("host: bind: %w", err)
	}
	return b, nil
}

// binder is the state of one Bind.
type binder struct {
	x    *Executable
	p    *program.Program
	env  program.Env
	out  *bound
	seen map[*memory]bool
	plan *device.Resolved

	assigned *device.Assigned
	mem      [][]byte // by buffer
}

func (x *Executable) bind(symbols []int64, args device.Args) (*bound, error) {
	if x.closed.Load() || x.dev.shut.Load() {
		return nil, device.ErrClosed
	}
	env, plan, err := device.Specialize(x.program, symbols, x.dev.info.Properties, x.ops, x.dev.Libraries())
	if err != nil {
		return nil, err
	}
	b := &binder{x: x, p: x.program, env: env, plan: plan, out: &bound{exec: x, env: env}, seen: map[*memory]bool{}}
	if err := b.buffers(args); err != nil {
		return nil, err
	}
	b.out.steps = make([]boundStep, len(plan.Steps))
	if err := plan.EachStep(func(i int, s *device.ResolvedStep) error { return b.step(s, &b.out.steps[i]) }); err != nil {
		return nil, err
	}
	return b.out, nil
}

// buffers finds the memory of every buffer.
func (b *binder) buffers(args device.Args) error {
	m, err := b.plan.Assign(b.p, b.env, args, func(i int32) device.Buffer {
		c := b.x.consts[i]
		return device.Buffer{Memory: c, Size: c.size}
	}, b.x.dev.aligned)
	if err != nil {
		return err
	}
	b.assigned, b.out.assigned = m, m
	b.mem = make([][]byte, len(m.Buffers))
	for i, buf := range m.Buffers {
		if buf.Size == 0 {
			continue
		}
		data, mem, err := b.x.dev.bytes(buf)
		if err != nil {
			return err
		}
		b.mem[i] = data
		if !b.seen[mem] {
			b.seen[mem] = true
			b.out.mems = append(b.out.mems, mem)
		}
	}
	return nil
}

// aligned returns an error if memory is not the device's, or not aligned.
func (d *Device) aligned(b device.Buffer, align int64) error {
	data, _, err := d.bytes(b)
	if err == nil && uintptr(unsafe.Pointer(unsafe.SliceData(data)))&uintptr(align-1) != 0 {
		err = fmt.Errorf("%w: address %p, want a multiple of %d", errUnaligned, unsafe.SliceData(data), align)
	}
	return err
}

func (b *binder) step(s *device.ResolvedStep, out *boundStep) (err error) {
	switch s.Kind {
	case program.StepKernel:
		err = b.kernel(s.Step, &out.node)
	case program.StepExtern, program.StepLibrary:
		b.op(s, out)
	default:
		return fmt.Errorf("unknown kind %d", s.Kind)
	}
	out.of = s.Step
	return err
}

// overlap reports whether two ranges of memory share a byte.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	pa, pb := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return pa < pb+uintptr(len(b)) && pb < pa+uintptr(len(a))
}

func (b *binder) kernel(s *program.Step, out *node) error {
	args := make([][]byte, len(s.Args))
	for i, a := range s.Args {
		args[i] = b.mem[a]
	}
	k, err := newKernel(b.x, b.x.kernels[s.Kernel], b.env, args)
	if err != nil {
		return fmt.Errorf("kernel %s: %w", b.p.Kernels[s.Kernel].Name, err)
	}
	out.kind, out.kernel = nodeKernel, k
	return nil
}

func (b *binder) op(s *device.ResolvedStep, out *boundStep) {
	out.op, out.call, out.name = s.Op, b.assigned.Call(s), s.Extern
	if s.Kind == program.StepExtern {
		b.out.calls = append(b.out.calls, out.call)
	}
}
