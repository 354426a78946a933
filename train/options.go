package train

import (
	"errors"
	"fmt"

	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/optim"
)

// Options configure training.
type Options struct {
	// Losses names the functions that return a loss; a step trains one of them. Empty: the only
	// function of the module, or those named "loss" or "loss.…".
	Losses []string

	// Choose names the function that chooses the loss of a step. Its parameters are inputs of the
	// batch, and it returns an i32[], the index in Program.Losses. Empty: "choose".
	Choose string

	// Symbols has the values of the module's symbols: a step has one size.
	Symbols map[string]int64

	Optimizer    optim.Optimizer
	LearningRate float64        // of the optimizer, before the schedule
	Schedule     optim.Schedule // nil: a constant learning rate
	ClipNorm     float64        // largest global norm of the gradients; 0: no clipping

	// Precision is the dtype of GEMMs and of the ops after them: f32, or bf16 or f16 with
	// weights, gradients of weights and optimizer states in f32 (see [Autocast]). The zero value
	// is f32.
	Precision dtype.DType

	// Scaler, if not nil, scales the loss, for f16.
	Scaler *optim.Scaler

	// MicroBatches is the number of batches of a step on each rank: forward and backward run for each
	// one. The loss and the gradient are the means over them, weighted if the loss returns a weight. 0: 1.
	MicroBatches int

	// Ranks is the number of devices that train together, each on its own batches. Gradients are
	// summed before the optimizer, so all ranks have the same weights. The loss and the gradient
	// are the means over the micro-batches of all ranks. The ranks are those of the program's
	// group [Group]. 0: 1.
	Ranks int

	// BucketBytes is the size of a bucket: one all_reduce sums several gradients, which are together at
	// most this large, or one larger gradient. 0: 4 MiB.
	BucketBytes int64

	// Separate makes the optimizer a separate function even without micro-batches.
	Separate bool

	// Gradients makes the step return the gradients before clipping.
	Gradients bool
}

// check returns an error if an option is out of range.
func (o *Options) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("train: "+format, args...)) }
	if o.Optimizer == nil {
		bad("Options.Optimizer is nil")
	} else {
		errs = append(errs, o.Optimizer.Check())
	}
	if !(o.LearningRate >= 0) {
		bad("Options.LearningRate is %g, want at least 0", o.LearningRate)
	}
	if !(o.ClipNorm >= 0) {
		bad("Options.ClipNorm is %g, want at least 0", o.ClipNorm)
	}
	switch o.Precision {
	case dtype.Invalid, dtype.F32, dtype.BF16, dtype.F16:
	default:
		bad("Options.Precision is %s, want f32, bf16 or f16", o.Precision)
	}
	if o.MicroBatches < 0 || o.MicroBatches > maxMicroBatches {
		bad("Options.MicroBatches is %d, want 1 to %d", o.MicroBatches, maxMicroBatches)
	}
	if o.Ranks < 0 || o.Ranks > ir.MaxGroupSize {
		bad("Options.Ranks is %d, want 1 to %d", o.Ranks, ir.MaxGroupSize)
	}
	if o.BucketBytes < 0 {
		bad("Options.BucketBytes is %d, want at least 0", o.BucketBytes)
	}
	if o.Schedule != nil {
		errs = append(errs, o.Schedule.Check())
	}
	if o.Scaler != nil {
		errs = append(errs, o.Scaler.Check())
	}
	return errors.Join(errs...)
}

const maxMicroBatches = 1 << 20
