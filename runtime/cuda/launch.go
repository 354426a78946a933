package cuda

import (
	"fmt"

	"pwc/program"
	"pwc/runtime/cuda/internal/driver"
	"pwc/runtime/device"
)

// bound is a program with all addresses resolved.
type bound struct {
	exec  *Executable
	steps []boundStep
	calls []*device.OpCall
	reach reach
}

// stepKind is what a bound step does.
type stepKind uint8

const (
	stepKernel stepKind = iota
	stepCopy
	stepFill
	stepOp
)

// boundStep is one step. Which fields count goes by kind.
type boundStep struct {
	kind    stepKind
	of      *program.Step
	name    string
	kernel  *prepared // nil: a grid without blocks
	dst     driver.Ptr
	src     driver.Ptr
	bytes   int64
	width   int // of the pattern's elements
	pattern []uint32
	op      device.Op
	call    *device.OpCall
}

var _ device.BoundLaunch = (*bound)(nil)

// Executable returns the program that was bound.
func (b *bound) Executable() device.Executable { return b.exec }

// Calls returns the calls of extern ops in the order of the steps.
func (b *bound) Calls() []*device.OpCall { return b.calls }

// own returns a launch that was bound on the stream's device, to memory that is
// still there.
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

// Launch enqueues a bound program, or records it. While capturing, a program
// with an op that may not be captured is refused whole; a step that fails then
// spoils the capture, because the driver takes nothing back.
func (s *Stream) Launch(l device.BoundLaunch) error {
	const what = "launch"
	if err := s.usable(what); err != nil {
		return err
	}
	b, err := s.own(what, l)
	if err != nil {
		return err
	}
	if s.capture != nil {
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
	if s.capture != nil {
		trace = nil
	}
	if trace != nil {
		trace(b.exec.program, nil)
	}
	for i := range b.steps {
		st := &b.steps[i]
		if err := s.step(st); err != nil {
			return s.issued(what, fmt.Errorf("step %d%s: %w", i, st.label(), err))
		}
		if trace != nil {
			trace(b.exec.program, st.of)
		}
	}
	if s.capture != nil {
		s.capture.reach.add(&b.reach)
	}
	return nil
}

func (st *boundStep) label() string {
	if st.name == "" {
		return ""
	}
	return " (" + st.name + ")"
}

// step enqueues a step; the context is current.
func (s *Stream) step(st *boundStep) error {
	switch st.kind {
	case stepKernel:
		if st.kernel == nil {
			return nil
		}
		if err := st.kernel.launch(s); err != nil {
			return err
		}
		s.recorded(driver.NodeKernel, 1)
	case stepCopy:
		if st.bytes == 0 {
			return nil
		}
		if err := s.dev.drv.MemcpyDtoDAsync(st.dst, st.src, st.bytes, s.handle); err != nil {
			return err
		}
		s.recorded(driver.NodeMemcpy, 1)
	case stepFill:
		return s.fill(st)
	case stepOp:
		st.call.Stream, st.call.Capturing = s, s.capture != nil
		err := st.op.Launch(st.call)
		st.call.Capturing = false
		return err
	}
	return nil
}

func (s *Stream) fill(st *boundStep) error {
	if st.bytes == 0 {
		return nil
	}
	drv, width := s.dev.drv, int64(st.width)
	if len(st.pattern) == 1 {
		if err := drv.MemsetAsync(st.dst, st.pattern[0], st.width, st.bytes/width, s.handle); err != nil {
			return err
		}
	} else {
		pitch := width * int64(len(st.pattern))
		for i, v := range st.pattern {
			if err := drv.MemsetColumnAsync(st.dst+driver.Ptr(width*int64(i)), pitch, v, st.width, st.bytes/pitch, s.handle); err != nil {
				return err
			}
		}
	}
	s.recorded(driver.NodeMemset, len(st.pattern))
	return nil
}

// recorded notes, while capturing, an operation that became n nodes.
func (s *Stream) recorded(t driver.NodeType, n int) {
	if s.capture != nil {
		s.capture.record(t, n, nil, nil)
	}
}
