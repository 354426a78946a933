package optim

import (
	"errors"
	"fmt"
	"math"

	"pwc/ir"
	"pwc/ir/dtype"
)

// Schedule emits the factor of the learning rate in a step.
type Schedule interface {
	// Name names the schedule: "constant", "linear", "cosine" or "decay".
	Name() string

	// Check returns an error if a parameter is out of range.
	Check() error

	// Factor emits the factor, f32[]. done is the count of steps before this one, f32[], which is
	// the argument of the function of PyTorch's LambdaLR.
	Factor(fb *ir.FuncBuilder, done ir.Value) ir.Value
}

// Warmup raises the learning rate linearly from 0 over the first Steps, then applies After. With
// [Linear] and [Cosine] it is, until their last step, the schedule of transformers' functions
// get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup. Unless Steps is 0, the first
// step has the factor 0.
type Warmup struct {
	Steps int64    // at least 0
	After Schedule // nil: [Constant]; it counts the steps after the warm-up
}

// Name returns the name of After.
func (s Warmup) Name() string {
	if s.After == nil {
		return "constant"
	}
	return s.After.Name()
}

// Check returns an error if a parameter is out of range.
func (s Warmup) Check() error {
	if err := checkSteps("Warmup.Steps", s.Steps, 0); err != nil {
		return err
	}
	if s.After != nil {
		return s.After.Check()
	}
	return nil
}

// Factor emits done / Steps, then the factor of After.
func (s Warmup) Factor(fb *ir.FuncBuilder, done ir.Value) ir.Value {
	after := s.After
	if after == nil {
		after = Constant{}
	}
	if s.Steps == 0 {
		return after.Factor(fb, done)
	}
	e := emit{fb}
	steps := e.Float(float64(s.Steps))
	rest := after.Factor(fb, e.sub(done, steps))
	return e.where(e.less(done, steps), e.div(done, steps), rest)
}

// Constant keeps the learning rate.
type Constant struct{}

// Name returns "constant".
func (Constant) Name() string { return "constant" }

// Check returns nil.
func (Constant) Check() error { return nil }

// Factor emits 1.
func (Constant) Factor(fb *ir.FuncBuilder, done ir.Value) ir.Value {
	return fb.Op1("full", []ir.Value{fb.Float(1)}, ir.DimsAttr("shape"), ir.DTypeAttr(dtype.F32))
}

// Linear lowers the learning rate linearly to 0 after Steps.
type Linear struct {
	Steps int64 // at least 1
}

// Name returns "linear".
func (Linear) Name() string { return "linear" }

// Check returns an error if Steps is out of range.
func (s Linear) Check() error { return checkSteps("Linear.Steps", s.Steps, 1) }

// Factor emits max(0, 1 - done / Steps).
func (s Linear) Factor(fb *ir.FuncBuilder, done ir.Value) ir.Value {
	e := emit{fb}
	left := e.sub(e.Float(1), e.div(done, e.Float(float64(s.Steps))))
	return e.Op1("maximum", []ir.Value{left, e.Float(0)})
}

// Cosine lowers the learning rate to 0 after Steps along half a cosine.
type Cosine struct {
	Steps int64 // at least 1
}

// Name returns "cosine".
func (Cosine) Name() string { return "cosine" }

// Check returns an error if Steps is out of range.
func (s Cosine) Check() error { return checkSteps("Cosine.Steps", s.Steps, 1) }

// Factor emits (1 + cos(π done / Steps)) / 2, and 0 after Steps.
func (s Cosine) Factor(fb *ir.FuncBuilder, done ir.Value) ir.Value {
	e := emit{fb}
	part := e.Op1("minimum", []ir.Value{e.div(done, e.Float(float64(s.Steps))), e.Float(1)})
	return e.mul(e.add(e.unary("cos", e.mul(part, e.Float(math.Pi))), e.Float(1)), e.Float(0.5))
}

// Decay multiplies the learning rate by Gamma every Steps, as torch.optim.lr_scheduler.StepLR
// does.
type Decay struct {
	Steps int64   // at least 1
	Gamma float64 // finite, above 0
}

// Name returns "decay".
func (Decay) Name() string { return "decay" }

// Check returns an error if a parameter is out of range.
func (s Decay) Check() error {
	err := checkSteps("Decay.Steps", s.Steps, 1)
	if !(s.Gamma > 0 && s.Gamma <= math.MaxFloat64) {
		err = errors.Join(err, fmt.Errorf("optim: Decay.Gamma is %g, want a finite number above 0", s.Gamma))
	}
	return err
}

// Factor emits Gamma to the power of the number of completed multiples of Steps.
func (s Decay) Factor(fb *ir.FuncBuilder, done ir.Value) ir.Value {
	e := emit{fb}
	times := e.unary("floor", e.div(done, e.Float(float64(s.Steps))))
	return e.unary("exp", e.mul(times, e.Float(math.Log(s.Gamma))))
}

// maxSteps bounds Steps: f32 has every integer up to it.
const maxSteps = 1 << 24

func checkSteps(name string, n, least int64) error {
	if n < least || n > maxSteps {
		return fmt.Errorf("optim: %s is %d, want %d to %d", name, n, least, maxSteps)
	}
	return nil
}
