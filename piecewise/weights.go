package piecewise

import (
	"context"
	"errors"
	"fmt"

	"pwc/checkpoint"
	"pwc/runtime/device"
	"pwc/safetensors"
)

// computedWeight is a weight, or why there is none.
type computedWeight struct {
	checkpoint.Weight
	err error
}

// computeWeights computes the weights in order, each while the one before it is
// copied, which keeps the peak of memory low. It closes the channel, and no longer
// uses src then, after the last one or soon after ctx ends.
func (pl *plan) computeWeights(ctx context.Context, src safetensors.Source) <-chan computedWeight {
	out := make(chan computedWeight)
	go func() {
		defer close(out)
		for _, w := range pl.module.Weights {
			if ctx.Err() != nil {
				return
			}
			var t checkpoint.Weight
			// The copy reads the bytes where nothing guards it: in a driver, or on a
			// worker of the host device.
			err := safetensors.Guard(src, func() (err error) {
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
			select {
			case out <- computedWeight{t, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func (r *residents) loadWeights(ctx context.Context, src safetensors.Source) error {
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
	next, err := r.region(r.plan.memory.WeightBytes, "weights")
	if err != nil {
		return err
	}
	computing, stop := context.WithCancel(ctx)
	computed := r.plan.computeWeights(computing, src)
	defer func() {
		stop()
		for range computed {
		}
	}()
	var errs []error
	for i, w := range r.plan.module.Weights {
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
		at := int64(0)
		for _, p := range t.Parts {
			if err := r.pool.stream.CopyToDevice(r.weights[i].Slice(at, int64(len(p))), p); err != nil {
				return err
			}
			at += int64(len(p))
		}
		// The host bytes may go once the copy is done.
		if err := r.pool.stream.Synchronize(); err != nil {
			return err
		}
	}
	const shown = 8 // of a checkpoint that is another model's all weights are wrong
	if n := len(errs) - shown; n > 0 {
		errs = append(errs[:shown:shown], fmt.Errorf("%w: and %d more weights", ErrNotLoaded, n))
	}
	return errors.Join(errs...)
}
