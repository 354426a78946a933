package runner

import (
	"context"
	"errors"
	"slices"
	"testing"

	attnhost "pwc/attention/host"
	"pwc/compile/host"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// cutting is an op that lowers left at each launch, and calls end when it is 0.
type cutting struct {
	device.Op
	left int
	end  func()
}

func (c *cutting) Launch(call *device.OpCall) error {
	if c.left--; c.left == 0 {
		c.end()
	}
	return c.Op.Launch(call)
}

// TestStepsEndWithTheirContext ends the context of Step at many launches. The step must end without a
// change of its requests, so later steps give the same answers.
func TestStepsEndWithTheirContext(t *testing.T) {
	m, src := checkpoint(t, "llama")
	requests := mixture(5, 3, 6)
	run := func(cut int) (answers [][]int32, calls int, ended bool) {
		dev := hostdev.Open(hostdev.Options{Workers: 2})
		defer dev.Close()
		op := &cutting{Op: attnhost.New(dev), left: cut}
		r, err := New(context.Background(), m.Module, Options{MaxSequences: 4, MaxTokens: 16, Blocks: 64, MaxLength: 64,
			Backend: piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Ops: []device.Op{op}, Capture: piecewise.CaptureOptions{Mode: piecewise.None}}})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := r.Load(context.Background(), src); err != nil {
			t.Fatal(err)
		}
		op.left = cut // the warm-up is over
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		op.end = func() { cancel(cause) }
		var list []*Sequence
		for _, q := range requests {
			list = append(list, submit(t, r, q))
		}
		for more := true; more && err == nil; {
			more, err = r.Step(ctx)
		}
		if ended = err != nil; ended && !errors.Is(err, cause) {
			t.Errorf("cut at call %d: %v, want the cause", cut, err)
		}
		drain(t, r)
		for _, s := range list {
			res, err := s.Wait(context.Background())
			if err != nil {
				t.Errorf("cut at call %d: %v", cut, err)
			}
			answers = append(answers, res)
		}
		return answers, cut - op.left, ended
	}
	want, calls, _ := run(1 << 30)
	for cut := 1; cut < calls; cut += 3 {
		got, _, ended := run(cut)
		if !ended {
			t.Errorf("cut at call %d of %d: no step ended", cut, calls)
		}
		if !slices.EqualFunc(got, want, slices.Equal[[]int32]) {
			t.Errorf("cut at call %d: %v, want %v", cut, got, want)
		}
	}
}
