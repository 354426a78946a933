package optim

import (
	"errors"
	"fmt"
	"math"

	"pwc/ir"
	"pwc/ir/dtype"
)

// Adam is the optimizer of Kingma and Ba (arXiv:1412.6980), as torch.optim.Adam computes it. Its
// zero value has betas and an eps of 0: use [DefaultAdam].
type Adam struct {
	Beta1, Beta2 float64 // in [0, 1)
	Eps          float64 // finite, at least 0, added to the root of the second moment
	WeightDecay  float64 // finite, at least 0, added to the gradient as WeightDecay × w

	// Decoupled shrinks weights by lr × WeightDecay instead: AdamW (arXiv:1711.05101).
	Decoupled bool
}

// DefaultAdam returns PyTorch's defaults: betas 0.9 and 0.999, eps 1e-8, no weight decay.
func DefaultAdam() Adam { return Adam{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8} }

// DefaultAdamW returns PyTorch's defaults: those of [DefaultAdam] with a decoupled weight decay
// of 0.01.
func DefaultAdamW() Adam {
	o := DefaultAdam()
	o.WeightDecay, o.Decoupled = 0.01, true
	return o
}

// Name returns "adam", or "adamw" with a decoupled weight decay.
func (o Adam) Name() string {
	if o.Decoupled {
		return "adamw"
	}
	return "adam"
}

// States returns "exp_avg" and "exp_avg_sq".
func (o Adam) States() []string { return []string{"exp_avg", "exp_avg_sq"} }

// Check returns an error if a parameter is out of range.
func (o Adam) Check() error {
	var errs []error
	for _, b := range []struct {
		name  string
		value float64
	}{{"Beta1", o.Beta1}, {"Beta2", o.Beta2}} {
		if !(b.value >= 0 && b.value < 1) {
			errs = append(errs, fmt.Errorf("optim: Adam: %s is %g, want a number in [0, 1)", b.name, b.value))
		}
	}
	return errors.Join(append(errs, atLeast0("Adam: Eps", o.Eps), atLeast0("Adam: WeightDecay", o.WeightDecay))...)
}

// Start emits the bias corrections of the step.
func (o Adam) Start(fb *ir.FuncBuilder, lr, step ir.Value) Update {
	e := emit{fb}
	t := e.cast(step, dtype.F32)
	size := e.div(lr, o.correction(e, t, o.Beta1))
	root := e.unary("sqrt", o.correction(e, t, o.Beta2))
	var shrink ir.Value
	if o.Decoupled && o.WeightDecay != 0 {
		shrink = e.sub(e.Float(1), e.mul(lr, e.Float(o.WeightDecay)))
	}
	return func(w, g ir.Value, states []ir.Value) (ir.Value, []ir.Value) {
		switch {
		case o.WeightDecay == 0:
		case o.Decoupled:
			w = e.mul(w, shrink)
		default:
			g = e.add(g, e.mul(w, e.Float(o.WeightDecay)))
		}
		m, v := states[0], states[1]
		m = e.add(m, e.mul(e.sub(g, m), e.Float(1-o.Beta1)))
		v = e.add(e.mul(v, e.Float(o.Beta2)), e.mul(e.mul(g, g), e.Float(1-o.Beta2)))
		denominator := e.add(e.div(e.unary("sqrt", v), root), e.Float(o.Eps))
		return e.sub(w, e.mul(size, e.div(m, denominator))), []ir.Value{m, v}
	}
}

// correction emits 1 - beta^t. In f32 the difference loses digits where beta^t is near 1, by
// 3e-5 for beta = 0.999 in the first step; with h = tanh(t ln(beta) / 2) it is -2h / (1 - h).
func (o Adam) correction(e emit, t ir.Value, beta float64) ir.Value {
	if beta == 0 {
		return e.Op1("full", []ir.Value{e.Float(1)}, ir.DimsAttr("shape"), ir.DTypeAttr(dtype.F32))
	}
	h := e.unary("tanh", e.mul(t, e.Float(math.Log(beta)/2)))
	return e.div(e.mul(h, e.Float(-2)), e.sub(e.Float(1), h))
}
