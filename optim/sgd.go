package optim

import (
	"errors"
	"fmt"
	"math"

	"pwc/ir"
)

// SGD is stochastic gradient descent as torch.optim.SGD computes it, with dampening 0.
type SGD struct {
	Momentum    float64 // finite, at least 0; 0: no momentum and no state
	WeightDecay float64 // finite, at least 0, added to the gradient as WeightDecay × w
	Nesterov    bool    // requires a momentum
}

// Name returns "sgd".
func (o SGD) Name() string { return "sgd" }

// States returns "momentum_buffer" if Momentum is not 0.
func (o SGD) States() []string {
	if o.Momentum == 0 {
		return nil
	}
	return []string{"momentum_buffer"}
}

// Check returns an error if a parameter is out of range.
func (o SGD) Check() error {
	if o.Nesterov && o.Momentum == 0 {
		return errors.New("optim: SGD: Nesterov needs a momentum above 0")
	}
	return errors.Join(atLeast0("SGD: Momentum", o.Momentum), atLeast0("SGD: WeightDecay", o.WeightDecay))
}

func atLeast0(name string, x float64) error {
	if !(x >= 0 && x <= math.MaxFloat64) {
		return fmt.Errorf("optim: %s is %g, want a finite number of at least 0", name, x)
	}
	return nil
}

// Start emits nothing: updates share no values.
func (o SGD) Start(fb *ir.FuncBuilder, lr, _ ir.Value) Update {
	e := emit{fb}
	return func(w, g ir.Value, states []ir.Value) (ir.Value, []ir.Value) {
		if o.WeightDecay != 0 {
			g = e.add(g, e.mul(w, e.Float(o.WeightDecay)))
		}
		if o.Momentum == 0 {
			return e.sub(w, e.mul(lr, g)), nil
		}
		// The buffer is zero before the first step, which makes it g there as in PyTorch.
		buffer := e.add(e.mul(states[0], e.Float(o.Momentum)), g)
		d := buffer
		if o.Nesterov {
			d = e.add(g, e.mul(buffer, e.Float(o.Momentum)))
		}
		return e.sub(w, e.mul(lr, d)), []ir.Value{buffer}
	}
}
