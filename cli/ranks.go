package cli

import (
	"context"
	"errors"
	"fmt"

	"pwc/attention"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/piecewise"
	"pwc/safetensors"
)

// backends are the backends of a module on the devices of this process, the first device's first.
type backends struct {
	world *world
	all   []*piecewise.Backend
}

// newBackends is newBackend for all devices of this process. The first backend compiles; the others load its artifacts
// from the store, or compile again without one, and have no observers.
func (a *app) newBackends(ctx context.Context, m *ir.Module, t *target, w *world, f *buildFlags, mode piecewise.Mode, limits, symbols map[string]int64) (_ *backends, err error) {
	if err := f.checkSymbols(m); err != nil {
		return nil, err
	}
	limits, symbols = overlay(limits, f.max), overlay(symbols, f.symbols)
	out := &backends{world: w}
	err = a.forGPU(ctx, t, f, func() (err error) {
		defer func() {
			if err != nil { // forGPU may call this function again, for another target
				err = errors.Join(err, out.close())
			}
		}()
		o, done, err := a.backendOptions(m, t, f, mode, bounds(m, limits, symbols))
		if err != nil {
			return err
		}
		defer done()
		o.Memory.Max, o.Memory.Symbols, o.Rank = limits, symbols, w.rank()
		b, err := piecewise.New(ctx, m, o)
		if err != nil {
			return t.explain(err)
		}
		out.all = append(out.all, b)
		for i, peer := range w.peers {
			o.Device, o.Rank, o.Observe = peer.dev, i+1, piecewise.ObserveOptions{}
			if o.Ops, err = a.openOps(m, peer, bounds(m, limits, symbols)); err != nil {
				return err
			}
			if b, err = piecewise.New(ctx, m, o); err != nil {
				return fmt.Errorf("rank %d: %w", o.Rank, t.explain(err))
			}
			out.all = append(out.all, b)
		}
		return nil
	})
	if err != nil {
		return nil, explainOptions(err)
	}
	return out, nil
}

// first returns the backend of the first device, whose results and counters are printed.
func (b *backends) first() *piecewise.Backend { return b.all[0] }

// each calls f for the backends of all devices of this process, at the same time.
func (b *backends) each(f func(b *piecewise.Backend) error) error {
	return b.world.together(len(b.all), func(i int) error { return f(b.all[i]) })
}

// load loads the weights of all ranks and waits for all processes, because a warm-up runs collectives, which time out
// if a rank still loads.
func (b *backends) load(ctx context.Context, weights safetensors.Source) error {
	if err := b.each(func(b *piecewise.Backend) error { return b.Load(ctx, weights, nil) }); err != nil {
		return err
	}
	return b.world.meet(ctx, "weights are loaded")
}

// capture captures and seals on all devices.
func (b *backends) capture(ctx context.Context) error {
	if err := b.each(func(b *piecewise.Backend) error { return b.Capture(ctx) }); err != nil {
		return err
	}
	return b.each((*piecewise.Backend).Seal)
}

// finish waits for the work of all devices and returns the index errors.
func (b *backends) finish() error {
	return b.each(func(b *piecewise.Backend) error { return errors.Join(b.Stream().Synchronize(), b.Faults()) })
}

func (b *backends) close() error {
	var errs []error
	for _, x := range b.all {
		errs = append(errs, x.Close())
	}
	b.all = nil
	return errors.Join(errs...)
}

// caller runs functions of the module: on one device, or on all devices together.
func (b *backends) caller(m *ir.Module) caller {
	if len(b.all) == 1 {
		return &deviceCaller{backend: b.first(), module: m}
	}
	return &ranksCaller{b, m}
}

// rankValue has the value on each device of this process. Its tensor is that of the first device.
type rankValue []value

func (v rankValue) tensor() (*interp.Tensor, error) { return v[0].tensor() }

// ofRank returns the values of device i. Values that are not a rankValue are inputs, which are the same on all devices.
func ofRank(args []value, i int) []value {
	out := make([]value, len(args))
	for j, a := range args {
		out[j] = a
		if v, ok := a.(rankValue); ok {
			out[j] = v[i]
		}
	}
	return out
}

// joinRanks returns one rankValue for each result, of the results by device.
func joinRanks(results [][]value) []value {
	out := make([]value, len(results[0]))
	for j := range out {
		v := make(rankValue, len(results))
		for i := range v {
			v[i] = results[i][j]
		}
		out[j] = v
	}
	return out
}

// ranksCaller runs functions on all devices of this process together.
type ranksCaller struct {
	backends *backends
	module   *ir.Module
}

func (c *ranksCaller) function(name string) *ir.Func { return c.module.Func(name) }

func (c *ranksCaller) call(ctx context.Context, f *ir.Func, args []value, symbols map[string]int64, batch *attention.Batch) ([]value, error) {
	all := c.backends.all
	results := make([][]value, len(all))
	err := c.backends.world.together(len(all), func(i int) (err error) {
		one := &deviceCaller{backend: all[i], module: c.module}
		results[i], err = one.call(ctx, f, ofRank(args, i), symbols, batch)
		return err
	})
	if err != nil {
		return nil, err
	}
	return joinRanks(results), nil
}
