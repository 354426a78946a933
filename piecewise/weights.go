package piecewise

import (
	"context"
	"errors"
	"fmt"

	"pwc/checkpoint"
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
func (b *Backend) computeWeights(ctx context.Context, src safetensors.Source) <-chan computedWeight {
	out := make(chan computedWeight)
	go func() {
		defer close(out)
		for _, w := range b.module.Weights {
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
