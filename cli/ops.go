package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pwc/attention"
	attentionhost "pwc/attention/host"
	"pwc/attention/reference"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/host"
	"pwc/silly"
)

// Site describes where an op is opened: the device, the limits of its steps, and the source of
// machine code.
type Site struct {
	Device device.Device

	Rows     int // most rows of a step, with padded rows
	Requests int // most requests of a step
	Blocks   int // most blocks of the KV cache for a request

	// Code returns a kernel of Op.Kernels, compiled for Target, as a program with only
	// this kernel, for runtime/cuda.Device.LoadModule. Code is nil if the device is not
	// a GPU.
	Code func(ctx context.Context, k Kernel) (*program.Program, error)

	// Target is the target of the code: the device's own or an earlier one.
	Target string
}

// builtin returns the ops that every command line knows.
func builtin() []Op {
	return []Op{
		{Name: attention.Name, Open: openAttention, Kernels: attentionKernels, Reference: reference.Extern},
		{Name: silly.Name, Open: openSilly, Kernels: sillyKernels, Reference: func(func() *attention.Batch) interp.Extern { return silly.Reference }},
	}
}

func openAttention(s *Site) (device.Op, error) {
	if d, ok := s.Device.(*host.Device); ok {
		return attentionhost.New(d), nil
	}
	return openAttentionOnGPU(s)
}

func openSilly(s *Site) (device.Op, error) {
	if d, ok := s.Device.(*host.Device); ok {
		return silly.New(d), nil
	}
	return openSillyOnGPU(s)
}

// wrapped forwards to an op. Types that embed it count or time calls; warm-ups are not counted.
type wrapped struct{ device.Op }

var _ device.Warmer = wrapped{}

// Warm implements device.Warmer. It does nothing if the op has no Warm.
func (w wrapped) Warm(c *device.OpCall) error {
	if op, ok := w.Op.(device.Warmer); ok {
		return op.Warm(c)
	}
	return nil
}

func noImplementation(op string, s *Site) error {
	return fmt.Errorf("%s has no implementation for %s", op, s.Device.Info().Target)
}

// op returns the op of a name. Ops of the caller of Main take precedence over built-in ops.
func (a *app) op(name string) (Op, bool) {
	for _, list := range [][]Op{a.ops, builtin()} {
		if i := slices.IndexFunc(list, func(o Op) bool { return o.Name == name }); i >= 0 {
			return list[i], true
		}
	}
	return Op{}, false
}

// checkModule is piecewise.Check with the host's implementations of ops. Declarations decide for ops
// without one.
func (a *app) checkModule(m *ir.Module, o piecewise.Options) (reports []piecewise.Report, err error) {
	o.Memory.Symbols = loadSymbols(m)
	if called := m.Called(); len(called) > 0 && o.Capture.Mode != piecewise.None {
		t, err := openHost(0, &buildFlags{target: host.Target}, false)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, t.close()) }()
		site := bounds(m, nil, nil)
		site.Device, site.Target = t.dev, t.name
		for _, e := range called {
			op, ok := a.op(e.Name)
			if !ok {
				continue
			}
			if impl, err := op.Open(&site); err == nil { // an op may have implementations for other targets only
				o.Ops, t.ops = append(o.Ops, impl), append(t.ops, impl)
			}
		}
	}
	reports, _, err = piecewise.Check(m, o)
	return reports, err
}

// openOps opens the extern ops that a module calls, for steps within bounds. The target closes them.
// Without a device openOps only checks that the ops are known.
func (a *app) openOps(m *ir.Module, t *target, bounds Site) ([]device.Op, error) {
	bounds.Device, bounds.Target = t.dev, t.name
	if t.cuda != nil {
		bounds.Code = t.kernels.find
	}
	var out []device.Op
	for _, e := range m.Called() {
		o, ok := a.op(e.Name)
		if !ok {
			return nil, &ir.Error{Source: m.Source, Origin: ir.Origin{Pos: e.Pos}, Msg: fmt.Sprintf("op %q is not known to this pwc: build a pwc that passes the op to cli.Main", e.Name)}
		}
		if t.dev == nil {
			continue
		}
		impl, err := o.Open(&bounds)
		if err != nil {
			return nil, err
		}
		out, t.ops = append(out, impl), append(t.ops, impl)
	}
	return out, nil
}
