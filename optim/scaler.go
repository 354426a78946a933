package optim

import (
	"errors"
	"fmt"
	"math"

	"pwc/ir"
	"pwc/ir/dtype"
)

// Scaler is dynamic loss scaling by the rule of torch.amp.GradScaler, computed in the function.
// The loss is multiplied by a scale before the backward, and gradients are divided by it after.
// If a gradient has an infinity or a NaN, the caller skips the step, and the scale falls. After Interval
// consecutive steps without one the scale rises.
type Scaler struct {
	Initial  float64 // the first scale: finite and above 0 in f32
	Growth   float64 // at least 1, and finite in f32
	Backoff  float64 // at most 1, and above 0 in f32
	Interval int64   // steps, at least 1
}

// DefaultScaler returns PyTorch's defaults: scale 65536, growth 2, backoff 0.5, interval 2000.
func DefaultScaler() Scaler { return Scaler{Initial: 65536, Growth: 2, Backoff: 0.5, Interval: 2000} }

// Check returns an error if a parameter is out of range.
func (s Scaler) Check() error {
	var errs []error
	if f := float32(s.Initial); !(f > 0 && f <= math.MaxFloat32) {
		errs = append(errs, fmt.Errorf("optim: Scaler.Initial is %g, want a number that is finite and above 0 in f32", s.Initial))
	}
	if !(s.Growth >= 1 && float32(s.Growth) <= math.MaxFloat32) {
		errs = append(errs, fmt.Errorf("optim: Scaler.Growth is %g, want a number of at least 1 that is finite in f32", s.Growth))
	}
	if !(float32(s.Backoff) > 0 && s.Backoff <= 1) {
		errs = append(errs, fmt.Errorf("optim: Scaler.Backoff is %g, want a number of at most 1 that is above 0 in f32", s.Backoff))
	}
	if s.Interval < 1 || s.Interval > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("optim: Scaler.Interval is %d, want 1 to %d", s.Interval, math.MaxInt32))
	}
	return errors.Join(errs...)
}

// Unscale emits the gradients divided by scale, in f32, and whether all of their elements are
// finite, bool[]. scale is f32[].
func (s Scaler) Unscale(fb *ir.FuncBuilder, gradients []ir.Value, scale ir.Value) (out []ir.Value, finite ir.Value) {
	e := emit{fb}
	by := e.unary("reciprocal", scale)
	var peak ir.Value
	for i, g := range gradients {
		if e.Type(g).DType != dtype.F32 {
			g = e.cast(g, dtype.F32)
		}
		g = e.mul(g, by)
		out = append(out, g)
		largest := e.reduce("max", e.unary("abs", g)) // NaN if any element is
		if i == 0 {
			peak = largest
		} else {
			peak = e.Op1("maximum", []ir.Value{peak, largest})
		}
	}
	if len(gradients) == 0 {
		peak = e.mul(by, e.Float(0))
	}
	return out, e.less(peak, e.Float(math.Inf(1)))
}

// Next emits the scale of the next step, f32[], and the count of consecutive steps with finite
// gradients, i32[], which starts again at 0 when it reaches Interval. finite, bool[], is that of
// [Scaler.Unscale].
func (s Scaler) Next(fb *ir.FuncBuilder, finite, scale, count ir.Value) (ir.Value, ir.Value) {
	e := emit{fb}
	more := e.add(count, e.Int(1))
	grow := e.Op1("compare", []ir.Value{more, e.Int(s.Interval)}, ir.EnumAttr("dir", "ge"))
	larger := e.mul(scale, e.Float(s.Growth))
	// As in PyTorch, the scale stays if growth would make it infinite.
	larger = e.where(e.less(larger, e.Float(math.Inf(1))), larger, scale)
	next := e.where(finite, e.where(grow, larger, scale), e.mul(scale, e.Float(s.Backoff)))
	zero := e.mul(count, e.Int(0))
	kept := e.where(finite, e.where(grow, zero, more), zero)
	return next, kept
}
