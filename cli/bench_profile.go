package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"pwc/program"
	"pwc/runtime/device"
)

// profile times every kernel of steps that run eagerly on a stream, and every call of ops. The
// device first waits for twice the time that the host needed to issue the previous step, so that
// no kernel should wait for the host.
func profile(t *target, stream device.Stream, m meter, ops []*tracedOp, step func() error) (benchProfile, error) {
	const runs = 5
	tracer, ok := stream.(device.Tracer)
	if !ok {
		return benchProfile{}, fmt.Errorf("--profile: target %s cannot trace its kernels", t.name)
	}
	var labels []traced
	var failed error
	note := func(at traced) {
		labels = append(labels, at)
		failed = errors.Join(failed, m.mark())
	}
	tracer.Trace(func(p *program.Program, s *program.Step) { note(tracedStep(p, s)) })
	for _, op := range ops {
		op.trace = note
	}
	defer func() {
		tracer.Trace(nil)
		for _, op := range ops {
			op.trace = nil
		}
	}()
	issue := time.Second
	var times [][]time.Duration
	for i := range runs + 1 {
		labels = labels[:0]
		if i > 0 {
			if err := m.hold(2*issue + time.Millisecond); err != nil {
				return benchProfile{}, err
			}
		}
		if err := m.mark(); err != nil {
			return benchProfile{}, err
		}
		start := time.Now()
		if err := step(); err != nil {
			return benchProfile{}, err
		}
		issue = time.Since(start)
		d, err := m.intervals()
		if err = errors.Join(err, failed); err != nil {
			return benchProfile{}, err
		}
		if i > 0 {
			times = append(times, slices.Clone(d))
		}
	}
	if t.trace != nil {
		t.trace.kernels(labels, times[len(times)-1])
	}
	return sumProfile(labels, times), nil
}

// sumProfile sums the medians of the launches by kernel.
func sumProfile(labels []traced, times [][]time.Duration) benchProfile {
	var p benchProfile
	at := map[string]int{}
	for i, l := range labels {
		if l.name == "" {
			continue
		}
		var each []time.Duration
		for _, run := range times {
			each = append(each, run[i])
		}
		us := median(each).Seconds() * 1e6
		k, ok := at[l.name]
		if !ok {
			k = len(p.Kernels)
			at[l.name] = k
			p.Kernels = append(p.Kernels, benchKernel{Name: l.name})
		}
		p.Kernels[k].Launches++
		p.Kernels[k].US += us
		p.Kernels[k].WeightBytes += l.weights
		p.MS += us / 1e3
	}
	slices.SortStableFunc(p.Kernels, func(a, b benchKernel) int { return cmp.Compare(b.US, a.US) })
	return p
}

// traced describes the interval that ends at a mark.
type traced struct {
	name    string // of a kernel, op or library routine; empty: the interval between launches
	weights int64  // bytes of the kernel's weight arguments
}

// tracedStep names a step of a program by its kernel, extern op or library routine, and the shape of its largest weight.
func tracedStep(p *program.Program, s *program.Step) traced {
	var t traced
	if s == nil {
		return t
	}
	switch s.Kind {
	case program.StepKernel:
		t.name = p.Kernels[s.Kernel].Name
	default:
		t.name = s.Extern
	}
	largest := int64(0)
	shape := ""
	for _, a := range s.Args {
		b := &p.Buffers[a]
		if b.Kind != program.BufferParam || p.Params[b.Index].Kind != program.ParamWeight {
			continue
		}
		n, err := b.Bytes(func(string) (int64, bool) { return 0, false })
		if err != nil {
			continue
		}
		t.weights += n
		if n > largest {
			largest, shape = n, fmt.Sprint(b.Shape)
		}
	}
	if shape != "" {
		t.name += " " + shape
	}
	return t
}
