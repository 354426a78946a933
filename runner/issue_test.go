package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	attncuda "pwc/attention/cuda"
	"pwc/compile/cuda"
	"pwc/frontend/hf"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	gpu "pwc/runtime/cuda"
	"pwc/runtime/device"
	"pwc/safetensors"
)

const fakeTarget = "cuda:sm_90"

// ahead compiles a model without a device, and returns its kernels for a fake driver. The kernels do
// nothing, so only the host's work remains.
func ahead(t testing.TB, m *hf.Model, o *Options) []fake.Kernel {
	t.Helper()
	compiler := &cudatest.Idle{}
	backend, err := cuda.New(fakeTarget, compiler)
	if err != nil {
		t.Fatal(err)
	}
	o.Backend.Compile.Store, o.Backend.Compile.Compiler = pieces.NewMemoryStore(), pieces.Pipeline{Backend: backend}
	module, err := WithSampling(m.Module)
	if err != nil {
		t.Fatal(err)
	}
	plan := o.Backend
	plan.Memory.Symbols = map[string]int64{"B": 1, slotsSymbol: 1}
	if _, err := piecewise.New(context.Background(), module, plan); err != nil {
		t.Fatal(err)
	}
	return append(compiler.Kernels(), fake.Kernel{Name: "paged", Run: func(*fake.Call) {}}) // paged is the kernel of attention
}

// openFake makes a runner on a device of a driver. The caller must call end, also after an error: it
// closes everything. end returns an error if the runner and its op left resources on the device.
func openFake(drv *fake.Driver, m *hf.Model, o Options) (r *Runner, end func() error, err error) {
	dev, err := gpu.Open(gpu.Options{Driver: drv})
	if err != nil {
		return nil, func() error { return nil }, err
	}
	opened := drv.Left()
	closed := func(close ...func() error) error {
		failed := drv.Failed()
		var errs []error
		for _, f := range close {
			errs = append(errs, f())
		}
		// After another failed call, the device frees the rest.
		if now := drv.Left(); failed == drv.Failed() && !slices.Equal(now, opened) {
			errs = append(errs, fmt.Errorf("left behind %q, the device had %q", now, opened))
		}
		return errors.Join(append(errs, dev.Close())...)
	}
	op, err := attncuda.New(dev, attncuda.Options{MaxRows: o.MaxTokens, MaxRequests: o.MaxSequences, MaxBlocks: (o.MaxLength + blockSize - 1) / blockSize,
		Code: func(context.Context, attncuda.Variant) (*program.Program, error) {
			return program.Alone(fakeTarget, program.Kernel{Name: "paged", Format: program.KernelCUDA, Code: fake.Image("paged")}), nil
		}})
	if err != nil {
		return nil, dev.Close, err
	}
	o.Backend.Device, o.Backend.Ops = dev, []device.Op{op}
	if r, err = New(context.Background(), m.Module, o); err != nil {
		return nil, func() error { return closed(op.Close) }, err
	}
	return r, func() error { return closed(r.Close, op.Close) }, nil
}

// onFake makes and loads a runner on a driver whose kernels do nothing, so all tokens are 0.
func onFake(t testing.TB, m *hf.Model, src safetensors.Source, o Options) (*Runner, *fake.Driver) {
	t.Helper()
	drv := fake.New(fake.Options{Version: 12020, Schedule: fake.Eager, Kernels: ahead(t, m, &o)})
	r, end, err := openFake(drv, m, o)
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Errorf("close: %v", err)
		}
		if l, m := drv.Leaks(), drv.Misuse(); len(l) > 0 || len(m) > 0 {
			t.Errorf("left behind %q, misuse %q", l, m)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Load(context.Background(), src); err != nil {
		t.Fatal(err)
	}
	return r, drv
}

// TestCallsOfAStep counts the driver's calls in a steady decode step, because each takes the host
// microseconds. A step launches three graphs. It copies positions, attention metadata and changed
// sampling parameters to the device, and ids to the host. It copies no parameters that did not change
// and no results between functions, because they are read in place. One event covers the graphs and the
// copies. The context is made current once for the step and once for the wait.
func TestCallsOfAStep(t *testing.T) {
	m, src := checkpoint(t, "llama")
	const requests, steps = 8, 10
	for _, c := range []struct {
		sampling Sampling
		want     map[string]int
	}{
		{Sampling{}, map[string]int{"cuGraphLaunch": 3, "cuMemcpyHtoDAsync": 2, "cuMemcpyDtoHAsync": 1,
			"cuEventRecord": 1, "cuEventSynchronize": 1, "cuCtxSetCurrent": 2}},
		{Sampling{Temperature: 1, TopK: 5, TopP: 0.9, Seed: 3}, map[string]int{"cuGraphLaunch": 3, "cuMemcpyHtoDAsync": 3, "cuMemcpyDtoHAsync": 1,
			"cuEventRecord": 1, "cuEventSynchronize": 1, "cuCtxSetCurrent": 2}},
	} {
		r, drv := onFake(t, m, src, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{requests, 32}}},
			MaxSequences: requests, MaxTokens: 32, MaxLength: 512, Blocks: requests * 128})
		for i := range requests {
			submit(t, r, Request{Prompt: []int32{int32(i), 2, 3}, MaxNew: 400, Sampling: c.sampling})
		}
		step := func() {
			if _, err := r.Step(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 {
			step()
		}
		all, before := drv.Calls(), map[string]int{}
		for call := range c.want {
			before[call] = drv.Made(call)
		}
		for range steps {
			step()
		}
		total := 0
		for call, n := range c.want {
			total += steps * n
			if got := drv.Made(call) - before[call]; got != steps*n {
				t.Errorf("%+v: %d calls of %s in %d steps, want %d", c.sampling, got, call, steps, steps*n)
			}
		}
		if got := drv.Calls() - all; got != total {
			t.Errorf("%+v: %d calls of the driver in %d steps, want %d", c.sampling, got, steps, total)
		}
	}
}

// BenchmarkIssue measures the host's work for a steady step of 256 requests at contexts of up to 2048
// tokens in blocks of four. The device does nothing. In "cold", the processor's caches have no data of
// the runner when a step begins, as after other work on the host. "host-µs" is the median of all steps.
func BenchmarkIssue(b *testing.B) {
	m, src := checkpoint(b, "llama")
	const requests, length = 256, 2048
	for _, sampling := range []Sampling{{}, {Temperature: 1, TopK: 5, TopP: 0.9, Seed: 3}} {
		open := func(b *testing.B) *Runner {
			r, _ := onFake(b, m, src, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{requests}}},
				MaxSequences: requests, MaxTokens: requests, MaxLength: length, Blocks: requests * length / blockSize})
			return r
		}
		b.Run(variantFuncs[sampling.variant()], func(b *testing.B) { steady(b, open(b), requests, length, sampling, func() {}) })
		b.Run(variantFuncs[sampling.variant()]+"/cold", func(b *testing.B) {
			lines := make([]byte, 256<<20) // more than any cache holds
			steady(b, open(b), requests, length, sampling, func() {
				for i := 0; i < len(lines); i += 64 {
					lines[i]++
				}
			})
		})
	}
}
