package cuda

import (
	"fmt"
	"sync/atomic"

	"pwc/internal/cuda/driver"
	"pwc/program"
	"pwc/runtime/device"
)

// bound is a program with all addresses resolved.
type bound struct {
	exec     *Executable
	assigned *device.Assigned
	steps    []boundStep
	calls    []*device.OpCall
	reach    reach
}

// stepKind is the kind of a bound step.
type stepKind uint8

const (
	stepKernel stepKind = iota
	stepOp
)

// boundStep is one step. kind decides which other fields are used.
type boundStep struct {
	kind   stepKind
	of     *program.Step
	index  int // in the program's steps, for errors: of this step, or of the choice that it belongs to
	name   string
	kernel *prepared // nil: a grid without blocks

	launches *atomic.Int64 // counts launches of a kernel with AttrPeers; nil: not counted
	op       device.Op
	call     *device.OpCall
}

var _ device.BoundLaunch = (*bound)(nil)

// Executable returns the program that was bound.
func (b *bound) Executable() device.Executable { return b.exec }

// Calls returns the calls of extern ops in the order of the steps.
func (b *bound) Calls() []*device.OpCall { return b.calls }

// own returns a launch that was bound on the stream's device. It is an error if memory or the
// program was freed or closed since.
func (s *Stream) own(what string, l device.BoundLaunch) (*bound, error) {
	b, ok := l.(*bound)
	if !ok || b.exec.dev != s.dev {
		return nil, refuse(what, device.ErrForeignStream)
	}
	if err := b.reach.alive(); err != nil {
		return nil, refuse(what, err)
	}
	return b, nil
}

// Launch enqueues a bound program, or records it. While capturing, a program with an op that
// may not be captured is refused before anything is recorded. A step that fails spoils the
// capture, because the driver cannot remove recorded nodes.
func (s *Stream) Launch(l device.BoundLaunch) error {
	const what = "launch"
	if err := s.usable(what); err != nil {
		return err
	}
	b, err := s.own(what, l)
	if err != nil {
		return err
	}
	on := s.branch.Active()
	if on != nil {
		for i := range b.steps {
			if st := &b.steps[i]; st.kind == stepOp && !st.op.Signature().Capture {
				return fmt.Errorf("cuda: launch: %s: %w", st.name, device.ErrNotCapturable)
			}
		}
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	trace := s.trace
	if on != nil {
		trace = nil
		outer := on.Rec.Scope
		defer func() { on.Rec.Scope = outer }()
	}
	if trace != nil {
		trace(b.exec.program, nil)
	}
	for i := range b.steps {
		st := &b.steps[i]
		if on != nil {
			on.Rec.Scope = device.Scope{Origin: st.of.Origin}
		}
		if err := s.step(b, st); err != nil {
			return s.issued(what, fmt.Errorf("%s: %w", st.label(), err))
		}
		if trace != nil {
			trace(b.exec.program, st.of)
		}
	}
	if on != nil {
		s.capture.reach.add(&b.reach)
	}
	return nil
}

// label names the step in errors.
func (st *boundStep) label() string { return fmt.Sprintf("step %d (%s)", st.index, st.name) }

// step enqueues a step; the context is current.
func (s *Stream) step(b *bound, st *boundStep) error {
	c := s.recording()
	switch st.kind {
	case stepKernel:
		if st.kernel == nil {
			return nil
		}
		if err := st.kernel.launch(s); err != nil {
			return err
		}
		if st.launches != nil {
			st.launches.Add(1)
		}
		if c != nil {
			return s.record(c, operation{kind: device.NodeKernel, name: st.name, bound: b, step: st}, driver.NodeKernel, 1)
		}
	case stepOp:
		if c != nil {
			return s.recordOp(c, b, st.op, st.name, st.of.Origin, st.call)
		}
		st.call.Stream, st.call.Capturing = s, false
		return st.op.Launch(st.call)
	}
	return nil
}

// LaunchOp implements [device.Stream].
func (s *Stream) LaunchOp(op device.Op, call *device.OpCall) error {
	const what = "launch of an op"
	if err := s.usable(what); err != nil {
		return err
	}
	if op == nil || call == nil {
		return fmt.Errorf("cuda: %s: no op, or no call of it, is given", what)
	}
	name := op.Signature().Name
	c := s.recording()
	if c != nil && !op.Signature().Capture {
		return fmt.Errorf("cuda: %s: %s: %w", what, name, device.ErrNotCapturable)
	}
	if err := s.begin(); err != nil {
		return s.dev.wrap(what, err)
	}
	defer s.end()
	var err error
	if c != nil {
		err = s.recordOp(c, nil, op, name, call.Origin, call)
	} else {
		call.Stream, call.Capturing = s, false
		err = op.Launch(call)
	}
	if err != nil {
		return s.issued(what, fmt.Errorf("%s: %w", name, err))
	}
	if c != nil {
		for i := range call.Args {
			c.reach.memory(segment(call.Args[i].Buffer))
		}
		c.reach.memory(segment(call.Scratch))
	}
	return nil
}

// recordOp launches an op while capturing. b is the op's program; nil: the op belongs to no
// program. It is an error if the op has results of more than 0 bytes and records nothing: a
// replay would not compute them.
func (s *Stream) recordOp(c *capture, b *bound, op device.Op, name string, node int32, call *device.OpCall) error {
	rec, outer := s.branch.Rec, c.op
	scope, before := rec.Scope, len(rec.Nodes)
	rec.Scope = device.Scope{Op: name, Origin: node, Loc: call.Loc}
	c.op = operation{bound: b, call: call}
	call.Stream, call.Capturing = s, true
	err := op.Launch(call)
	call.Capturing = false
	c.op, rec.Scope = outer, scope
	if err != nil {
		return err
	}
	return call.Recorded(op.Signature(), len(rec.Nodes)-before)
}
