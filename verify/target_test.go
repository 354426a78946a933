package verify_test

import (
	"context"
	"slices"
	"testing"

	"pwc/compile"
	"pwc/compile/host"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
	"pwc/verify"
)

// compiled runs functions on the host, by a compiler that a test may have planted a fault in.
type compiled struct {
	t       *testing.T
	args    []*interp.Tensor // of the workload: one call of the module's first function
	weights map[string]*interp.Tensor
	backend compile.Backend
	passes  []compile.Pass // of a user
	mode    piecewise.Mode
	sizes   []int64 // captured
}

func (c *compiled) Workload(ctx context.Context, m *ir.Module, cfg verify.Config) ([]verify.Call, error) {
	out, err := c.Function(ctx, m, c.args, cfg)
	return []verify.Call{{Func: m.Funcs[0].Name, Args: c.args, Results: out}}, err
}

func (c *compiled) Function(ctx context.Context, m *ir.Module, args []*interp.Tensor, cfg verify.Config) (out []*interp.Tensor, err error) {
	passes := slices.DeleteFunc(slices.Clone(c.passes), func(p compile.Pass) bool { return slices.Contains(cfg.Disable, p.Name) })
	own := slices.DeleteFunc(slices.Clone(cfg.Disable), func(name string) bool {
		return slices.ContainsFunc(c.passes, func(p compile.Pass) bool { return p.Name == name })
	})
	backend := c.backend
	if backend == nil {
		backend = host.New()
	}
	dev := hostdev.Open(hostdev.Options{})
	defer dev.Close()
	b, err := piecewise.New(ctx, m, piecewise.Options{
		Device:  dev,
		Ops:     []device.Op{},
		Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: verify.Variants(backend, cfg), Options: compile.Options{Disable: own, Passes: passes}}},
		Capture: piecewise.CaptureOptions{Mode: c.mode, Sizes: c.sizes},
		Memory:  piecewise.MemoryOptions{Max: map[string]int64{"N": 64}},
	})
	if err != nil {
		return nil, err
	}
	defer b.Close()
	if err := b.Load(ctx, tensors(c.t, c.weights), nil); err != nil {
		return nil, err
	}
	if err := b.Capture(ctx); err != nil {
		return nil, err
	}
	f := m.Funcs[0]
	fn := b.Func(f.Name)
	in, err := fn.Inputs(args[0].Shape[0])
	if err != nil {
		return nil, err
	}
	for i, p := range f.Params {
		dst, err := in.Bytes(f.Values[p].Name)
		if err != nil {
			return nil, err
		}
		copy(dst, args[i].Bytes())
	}
	r, err := fn.Run(ctx, in, nil)
	if err != nil {
		return nil, err
	}
	for i := range r.Len() {
		shape, err := r.At(i).Shape()
		if err != nil {
			return nil, err
		}
		n, err := r.At(i).Size()
		if err != nil {
			return nil, err
		}
		data := make([]byte, n)
		if err := r.At(i).CopyTo(data); err != nil {
			return nil, err
		}
		t, err := interp.FromBytes(r.At(i).DType(), shape, data)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// interpreted is the reference.
type interpreted struct {
	args    []*interp.Tensor
	weights map[string]*interp.Tensor
}

func (i *interpreted) Workload(ctx context.Context, m *ir.Module, cfg verify.Config) ([]verify.Call, error) {
	out, err := i.Function(ctx, m, i.args, cfg)
	return []verify.Call{{Func: m.Funcs[0].Name, Args: i.args, Results: out}}, err
}

func (i *interpreted) Function(ctx context.Context, m *ir.Module, args []*interp.Tensor, _ verify.Config) ([]*interp.Tensor, error) {
	env := &interp.Env{Weights: map[string]*interp.Tensor{}}
	for _, w := range m.Weights {
		t, err := interp.EvalWeight(ctx, m, w, func(name string) (*interp.Tensor, error) { return i.weights[name], nil })
		if err != nil {
			return nil, err
		}
		env.Weights[w.Name] = t
	}
	return interp.Run(ctx, m, m.Funcs[0], env, args)
}
