package piecewise

import (
	"context"
	"errors"
	"time"

	"pwc/runtime/device"
	"pwc/safetensors"
)

// Load allocates the device memory of the plan, the arena included, computes the weights from the
// checkpoint, copies them to the device, and loads the programs. A plan that exceeds the pool's
// limit, or the free memory of a [device.Budgeted] device, is refused with a [device.MemoryError]
// before anything is allocated. A weight that the checkpoint lacks, or a state of another size, is an
// [ErrNotLoaded]. If the context ends, Load stops before the next weight or program. If Load fails, it
// frees what it allocated, except the arena and the workspace of the pool. Unless the device is lost,
// it can be called again.
//
// states maps names of states to memory of the caller, whose contents are kept. Load allocates all
// other states; they hold zeros, or the initial values that the module computes from the
// checkpoint. On a [device.Reserver] these have their addresses after Load, and get
// their memory at the end of Capture or in the first run; they get it in Load if pieces use states
// or one of them has an initial value.
//
// On a [device.HostImporter], weights stay in the files of a [safetensors.Mapped] if the files
// contain exactly the bytes that the module needs, aligned, unless Memory.CopyWeights or a [Canary]
// is set. The files stay mapped until Close, also after the source is closed: replace them by rename, as
// [safetensors.Write] does. If a file was truncated, a run fails with a [safetensors.FaultError].
func (b *Backend) Load(ctx context.Context, weights safetensors.Source, states map[string]device.Buffer) (err error) {
	if err := b.enter(compiled, compiled); err != nil {
		return err
	}
	defer b.pool.release()
	start := time.Now()
	b.pool.obey(ctx)
	defer func() {
		if err = b.pool.settle(err); err != nil {
			err = b.note(errors.Join(err, b.freeAll()))
		}
	}()
	inPlace, err := b.residents.findInPlace(weights)
	if err != nil {
		return err
	}
	if err := b.residents.checkRoom(states, inPlace.planned()); err != nil {
		return err
	}
	if err := b.residents.loadWeights(ctx, weights, inPlace); err != nil {
		return err
	}
	if err := b.residents.loadStates(states); err != nil {
		return err
	}
	if err := b.residents.loadInitial(ctx, weights, states); err != nil {
		return err
	}
	if err := b.residents.takeStep(); err != nil {
		return err
	}
	for _, fn := range b.funcs {
		fn.largest = &settled{layout: fn.atMax}
		if err := errors.Join(fn.settle(fn.largest), fn.newRing()); err != nil {
			return err
		}
	}
	if err := b.residents.loadPrograms(ctx); err != nil {
		return err
	}
	if err := b.pool.settle(b.pool.stream.Synchronize()); err != nil {
		return err
	}
	b.stats.inPlace.Store(inPlace.bytes())
	b.plan.opts.Observe.Logger.Info("loaded", "weight_bytes", b.plan.memory.WeightBytes, "weight_bytes_in_place", inPlace.bytes(), "state_bytes", b.plan.memory.StateBytes, "arena_bytes", b.plan.memory.PeakArenaBytes, "seconds", time.Since(start).Seconds())
	b.pool.count(1)
	b.advance(loaded)
	return nil
}
