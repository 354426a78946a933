package piecewise

import (
	"context"
	"errors"
	"time"

	"pwc/runtime/device"
	"pwc/safetensors"
)

// Load takes the device memory of the plan (the arena too), computes the
// weights from the checkpoint and puts them there, and loads the programs. A plan
// that exceeds the pool's limit, or what a [device.Budgeted] device can still give
// out, is refused with a [device.MemoryError] before anything is taken.
// States that the map lacks are the backend's own and hold zeros, or the initial values
// that the module computes from the checkpoint: on a [device.Reserver] they have their address
// from now on, and their memory from the end of Capture or the first run on, unless pieces
// touch them or one has an initial value. One that the map has stays the runner's, with what it
// holds. Cancelling the context stops between weights.
//
// On a [device.HostImporter] weights stay in the files of a [safetensors.Mapped] where these have
// them as the module wants them, unless Memory.CopyWeights says otherwise. The files stay mapped
// until Close, also after the source is closed: replace them by rename, as [safetensors.Write]
// does. A run that finds one truncated fails with a [safetensors.FaultError].
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
	b.advance(loaded)
	return nil
}
