package optim

import (
	"fmt"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Scalar is the type of learning rates, norms and losses: f32[].
var Scalar = ir.TypeOf(dtype.F32)

// Count is the type of a count of steps: i32[].
var Count = ir.TypeOf(dtype.I32)

// Update emits the update of one weight: it returns the new weight and the new states. w, g and
// states are f32 of one shape; states are in the order of [Optimizer.States].
type Update func(w, g ir.Value, states []ir.Value) (ir.Value, []ir.Value)

// Optimizer emits updates of weights.
type Optimizer interface {
	// Name is the name on the command line: "sgd", "adam", "adamw".
	Name() string

	// States names the states that each weight has, as PyTorch's state_dict does. They have
	// the weight's shape, are f32, and are zero before the first step.
	States() []string

	// Check returns an error if a parameter is out of range.
	Check() error

	// Start emits the values that all updates of one step share. lr is the learning rate, f32[],
	// and step the count of this step, i32[], from 1.
	Start(fb *ir.FuncBuilder, lr, step ir.Value) Update
}

// Func adds a function @name to b: one step for weights of the given shapes. Its parameters are
// lr f32[], step i32[], and for weight i of the shapes "wI", its gradient "gI", and the
// optimizer's states as "wI.STATE". It writes weights and states.
func Func(b *ir.Builder, name string, o Optimizer, shapes ...[]dim.Dim) *ir.FuncBuilder {
	fb := b.Func(name)
	lr, step := fb.Param("lr", Scalar), fb.Param("step", Count)
	type weight struct {
		w, g   ir.Value
		states []ir.Value
	}
	weights := make([]weight, len(shapes))
	for i, shape := range shapes {
		t := ir.TypeOf(dtype.F32, shape...)
		w := weight{w: fb.MutParam(fmt.Sprintf("w%d", i), t), g: fb.Param(fmt.Sprintf("g%d", i), t)}
		for _, s := range o.States() {
			w.states = append(w.states, fb.MutParam(fmt.Sprintf("w%d.%s", i, s), t))
		}
		weights[i] = w
	}
	update := o.Start(fb, lr, step)
	for _, w := range weights {
		next, states := update(w.w, w.g, w.states)
		fb.Op("copy", []ir.Value{w.w, next})
		for i, s := range states {
			fb.Op("copy", []ir.Value{w.states[i], s})
		}
	}
	fb.Return()
	return fb
}

// emit has short methods that emit ops.
type emit struct{ *ir.FuncBuilder }

func (e emit) add(a, b ir.Value) ir.Value { return e.Op1("add", []ir.Value{a, b}) }
func (e emit) sub(a, b ir.Value) ir.Value { return e.Op1("sub", []ir.Value{a, b}) }
func (e emit) mul(a, b ir.Value) ir.Value { return e.Op1("mul", []ir.Value{a, b}) }
func (e emit) div(a, b ir.Value) ir.Value { return e.Op1("div", []ir.Value{a, b}) }

func (e emit) unary(op string, x ir.Value) ir.Value { return e.Op1(op, []ir.Value{x}) }

func (e emit) cast(x ir.Value, to dtype.DType) ir.Value {
	return e.Op1("cast", []ir.Value{x}, ir.DTypeAttr(to))
}

func (e emit) less(a, b ir.Value) ir.Value {
	return e.Op1("compare", []ir.Value{a, b}, ir.EnumAttr("dir", "lt"))
}

func (e emit) where(cond, a, b ir.Value) ir.Value {
	return e.Op1("where", []ir.Value{cond, a, b})
}

// axes returns all axes of a value.
func (e emit) axes(x ir.Value) []int64 {
	out := make([]int64, e.Type(x).Rank())
	for i := range out {
		out[i] = int64(i)
	}
	return out
}

// reduce reduces all axes of x.
func (e emit) reduce(op string, x ir.Value) ir.Value {
	if e.Type(x).Rank() == 0 {
		return x
	}
	return e.Op1(op, []ir.Value{x}, ir.IntsAttr("axes", e.axes(x)...))
}

// total adds values. The sum of no values is the literal 0.
func (e emit) total(values []ir.Value) ir.Value {
	if len(values) == 0 {
		return e.Float(0)
	}
	sum := values[0]
	for _, v := range values[1:] {
		sum = e.add(sum, v)
	}
	return sum
}
