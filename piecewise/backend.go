// Package piecewise runs a module in pieces on a device: it splits the module's
// functions at their splitting ops, has the pieces compiled, places all memory
// of a step, captures pieces or whole functions ([Mode]) into one graph per size, and replays.
//
// The order is [New] → [Backend.Load] → [Backend.Warmup] → [Backend.Capture] →
// [Backend.Seal] → [Func.Run]. Runs are possible from Load on: before Capture they
// launch the compiled artifacts without graphs. After Seal nothing is compiled
// or captured.
//
// One goroutine at a time may use a [Pool]: a second Run, Load or Capture gets
// [ErrBusy]. [Backend.Stats], [Backend.Plan] and [Pool.Stats] may be called from
// any goroutine at any time.
package piecewise

import (
	"context"
	"errors"

	"pwc/ir"
	"pwc/runtime/device"
)

// Backend is a module made ready to run on one device. New makes the plan, which never changes;
// Load makes the residents and the staging slots of each function; Capture makes the graphs of
// each function; Close frees what Load and Capture made.
type Backend struct {
	plan  *plan
	pool  *Pool // nil: there is no device
	owned bool  // the pool is the backend's own

	lifecycle
	residents residents
	unfreed   bool        // a capture kept Close from freeing everything
	funcs     []*instance // by the plan's functions

	stats   counters
	profile ProfileRanges // Options.Observe.Observer, if it is one
}

// New splits and compiles a module. It takes from the store the artifacts that
// the store has. It does not allocate the memory of [Backend.Plan]; Load does.
func New(ctx context.Context, m *ir.Module, o Options) (*Backend, error) {
	p, err := newPlan(ctx, m, o)
	if err != nil {
		return nil, err
	}
	b := &Backend{plan: p, pool: o.Pool, owned: o.Pool == nil && o.Device != nil}
	if b.owned {
		if b.pool, err = NewPool(o.Device, 0); err != nil {
			return nil, err
		}
	}
	b.residents = residents{plan: p, pool: b.pool}
	b.stats.ops = map[string]*opCounter{}
	for _, e := range m.Called() {
		b.stats.ops[e.Name] = new(opCounter)
	}
	b.profile, _ = o.Observe.Observer.(ProfileRanges)
	for _, fn := range p.funcs {
		b.funcs = append(b.funcs, &instance{function: fn, b: b, history: history{lost: make([]uint64, len(fn.returns))}})
	}
	return b, nil
}

// Func returns the function of that name (without "@"), or nil.
func (b *Backend) Func(name string) *Func {
	for _, fn := range b.funcs {
		if fn.ir.Name == name {
			return &Func{fn}
		}
	}
	return nil
}

// Stream returns the stream of all the backend's work; nil for a backend without a
// device.
func (b *Backend) Stream() device.Stream {
	if b.pool == nil {
		return nil
	}
	return b.pool.stream
}

// Seal makes later calls of Warmup and Capture fail with [ErrOrder].
func (b *Backend) Seal() error {
	if err := b.enter(loaded, capturedAll); err != nil {
		return err
	}
	defer b.pool.release()
	b.advance(sealed)
	return nil
}

// Close frees everything that Load and Capture allocated, except the arena and the workspace of a
// [Pool] that the caller made, which stay until [Pool.Close]. With [CanaryBytes] it first checks the
// canaries, unless the device is lost. While another call uses the pool it fails with [ErrBusy];
// closing twice is no error. If the error matches [device.ErrCapturing], a capture on the device forbade
// to free some memory: a second Close after that capture frees the rest.
func (b *Backend) Close() error {
	if b.pool == nil {
		return nil
	}
	if err := b.pool.acquire(); err != nil {
		return err
	}
	defer b.pool.release()
	was := b.close()
	if was == closed && !b.unfreed {
		return nil
	}
	if was >= loaded && was < closed {
		b.pool.count(-1)
	}
	for _, fn := range b.funcs {
		fn.closed = true
	}
	var overrun error
	if b.deviceLost() == nil {
		overrun = b.residents.checkCanaries()
	}
	err := errors.Join(overrun, b.freeAll())
	if b.owned {
		err = errors.Join(err, b.pool.Close())
	}
	b.unfreed = errors.Is(err, device.ErrCapturing)
	return err
}

// freeAll frees the graphs, which hold addresses of the residents, before the residents.
func (b *Backend) freeAll() error {
	var errs []error
	for _, fn := range b.funcs {
		errs = append(errs, fn.dropGraphs(), fn.ring.close())
	}
	return errors.Join(append(errs, b.residents.free())...)
}
