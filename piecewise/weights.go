package piecewise

import (
	"context"
	"errors"
	"fmt"

	"pwc/checkpoint"
	"pwc/ir"
	"pwc/runtime/device"
	"pwc/safetensors"
)

// computedWeight is a weight, or the error of its computation.
type computedWeight struct {
	checkpoint.Weight
	err error
}

// computeWeights computes weights in order, each while the one before it is copied, so
// that at most two are in host memory. After the last weight, or when ctx has ended and
// the current weight is computed, it stops using src and closes the channel.
func computeWeights(ctx context.Context, src safetensors.Source, weights []*ir.Weight) <-chan computedWeight {
	out := make(chan computedWeight)
	go func() {
		defer close(out)
		for _, w := range weights {
			if ctx.Err() != nil {
				return
			}
			t, err := computeWeight(src, w)
			select {
			case out <- computedWeight{t, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// computeWeight computes a weight or an initial value of a state, and reads all its pages under
// [safetensors.Guard]: the copy to a device reads them in a driver or on a worker of the host
// device, where a truncated file would end the process.
func computeWeight(src safetensors.Source, w *ir.Weight) (t checkpoint.Weight, err error) {
	err = safetensors.Guard(src, func() (err error) {
		if t, err = checkpoint.Compute(src, w); err == nil {
			for _, p := range t.Parts {
				safetensors.Touch(p)
			}
		}
		return err
	})
	if _, gone := errors.AsType[*safetensors.FaultError](err); gone {
		err = fmt.Errorf("weight @%s: %w", w.Name, err)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNotLoaded, err)
	}
	return t, err
}

// fill copies a computed weight to its memory, and waits for the copy.
func (r *residents) fill(buf device.Buffer, t checkpoint.Weight) error {
	at := int64(0)
	for _, p := range t.Parts {
		if err := r.pool.stream.CopyToDevice(buf.Slice(at, int64(len(p))), p); err != nil {
			return err
		}
		at += int64(len(p))
	}
	return r.pool.stream.Synchronize()
}

// loadWeights imports the weights of inPlace into the device, and copies the others to it.
func (r *residents) loadWeights(ctx context.Context, src safetensors.Source, inPlace *inPlaceWeights) error {
	r.weights = make([]device.Buffer, len(r.plan.module.Weights))
	if len(r.plan.module.Weights) == 0 {
		return nil
	}
	if src == nil {
		return fmt.Errorf("%w: the module has %d weights and Load got no checkpoint", ErrNotLoaded, len(r.plan.module.Weights))
	}
	if err := checkpoint.Check(r.plan.module, src); err != nil {
		return fmt.Errorf("%w: %w", ErrNotLoaded, err)
	}
	var copied []*ir.Weight
	var at []int // of copied: which weight of the module
	for i, w := range r.plan.module.Weights {
		if b, ok := inPlace.find(i); ok {
			if err := ctx.Err(); err != nil {
				return err
			}
			buf, err := r.importWeight(src, w, b)
			if err != nil {
				return err
			}
			r.assign(&r.weights[i], buf)
			continue
		}
		copied, at = append(copied, r.plan.module.WeightOf(w, r.plan.opts.Rank)), append(at, i)
	}
	next, err := r.region(r.plan.memory.WeightBytes-inPlace.planned(), "weights")
	if err != nil {
		return err
	}
	computing, stop := context.WithCancel(ctx)
	computed := computeWeights(computing, src, copied)
	defer func() {
		stop()
		for range computed {
		}
	}()
	var errs []error
	for k, i := range at {
		w := copied[k]
		t, ok := <-computed
		switch {
		case !ok:
			return ctx.Err()
		case t.err != nil:
			errs = append(errs, t.err)
			continue
		}
		bytes := int64(0)
		for _, p := range t.Parts {
			bytes += int64(len(p))
		}
		buf, err := next(bytes, "weight @"+w.Name)
		if err != nil {
			return err
		}
		r.assign(&r.weights[i], buf)
		if err := r.fill(buf, t.Weight); err != nil {
			return err
		}
	}
	const shown = 8 // with the checkpoint of another model, all weights are wrong
	if n := len(errs) - shown; n > 0 {
		errs = append(errs[:shown:shown], fmt.Errorf("%w: and %d more weights", ErrNotLoaded, n))
	}
	return errors.Join(errs...)
}
