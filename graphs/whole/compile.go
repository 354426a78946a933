// Package whole runs functions of a module from graphs. It compiles a function uncut, for a graph, a
// graph tree or callables. For a tree it can also cut the function at ops that cannot be captured.
package whole

import (
	"context"
	"errors"
	"fmt"

	"pwc/graphs"
	"pwc/ir"
	"pwc/pieces"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/split"
)

// Options configure the compilation of a function.
type Options struct {
	Compiler pieces.Compiler
	Store    pieces.Store // nil: programs are not stored
	Ops      []device.Op  // extern ops of the module

	// Extras are programs of extern ops, built with the module's.
	Extras []pieces.Extra
	Frozen bool // compile nothing: a program that Store lacks is an error
}

// Function is a function of a module, compiled uncut and loaded. Its inputs are the
// function's parameters, then the weights and then the states that it uses.
type Function struct {
	fn      *ir.Func
	prog    *graphs.Program // nil: the function computes nothing
	piece   *split.Piece
	weights []int // of the module
	states  []int
	locs    []string
}

// Compile compiles function name of m uncut for the device of s. A function that returns a weight or a
// state is refused with the position of its return statement.
func Compile(ctx context.Context, s *graphs.Session, m *ir.Module, name string, o Options) (*Function, error) {
	fn := m.Func(name)
	if fn == nil {
		return nil, fmt.Errorf("whole: module %s has no function @%s", m.Name, name)
	}
	if err := returnable(m, fn); err != nil {
		return nil, err
	}
	plan, err := split.Split(m, fn, []string{})
	if err != nil {
		return nil, fmt.Errorf("whole: @%s: %w", name, err)
	}
	out := &Function{fn: fn}
	for _, v := range fn.Returns {
		out.locs = append(out.locs, position(m, fn, v))
	}
	if len(plan.Units) == 0 {
		return out, nil
	}
	res, err := pieces.Build(ctx, []*split.Plan{plan}, pieces.Options{Compiler: o.Compiler, Store: o.Store, Extras: o.Extras, Frozen: o.Frozen})
	if err != nil {
		return nil, fmt.Errorf("whole: @%s: %w", name, err)
	}
	out.piece = plan.Units[0].Piece
	out.weights, out.states = out.piece.Weights, out.piece.States
	out.prog, err = s.Load(res.Artifacts[0].Program, name, o.Ops...)
	return out, err
}

// returnable returns an error if a result of the function is a weight or a state: the caller owns each
// result, and the memory of weights and states has other owners.
func returnable(m *ir.Module, fn *ir.Func) error {
	for i, v := range fn.Returns {
		var what string
		switch base := &fn.Values[fn.Base(v)]; base.Kind {
		case ir.WeightValue:
			what = "weight @" + m.Weights[base.Index].Name
		case ir.StateValue:
			what = "state @" + m.States[base.Index].Name
		default:
			continue
		}
		return fmt.Errorf("whole: %w", m.ErrorAt(fn, -1, "result %d of @%s is %s, which graphs do not return: return a reshape of it, which is a copy", i, fn.Name, what))
	}
	return nil
}

// position returns where a value is made: file:line:col, or the loc or number of its node; "" for a value
// that no node makes.
func position(m *ir.Module, fn *ir.Func, v ir.Value) string {
	n := fn.Values[fn.Base(v)].Node
	if n < 0 {
		return ""
	}
	at := fn.Nodes[n]
	switch {
	case at.Pos.IsValid() && m.Source != nil:
		return fmt.Sprintf("%s:%d:%d", m.Source.Name, at.Pos.Line, at.Pos.Col)
	case at.Loc != "":
		return at.Loc
	}
	return fmt.Sprintf("node %d of @%s", n, fn.Name)
}

// Compiled returns the function's program; nil if it computes nothing.
func (f *Function) Compiled() *program.Program {
	if f.prog == nil {
		return nil
	}
	return f.prog.Program()
}

// Weights returns the indices of the module's weights that the function uses, in the
// order of its inputs.
func (f *Function) Weights() []int { return f.weights }

// States returns the indices of the module's states that the function uses, in the order
// of its inputs.
func (f *Function) States() []int { return f.states }

// Locs returns the position in the module where each result is made; "" for a parameter.
func (f *Function) Locs() []string { return f.locs }

// Mutates returns the inputs that the function writes.
func (f *Function) Mutates() []int {
	var all []int
	if f.prog == nil {
		return nil
	}
	for i := range f.Inputs() {
		if p := f.param(i); p >= 0 && f.prog.Program().Params[p].Mut {
			all = append(all, i)
		}
	}
	return all
}

// Inputs returns the number of inputs.
func (f *Function) Inputs() int { return len(f.fn.Params) + len(f.weights) + len(f.states) }

// param returns the program's parameter of an input; -1: the program does not use the input.
func (f *Function) param(input int) int {
	np := len(f.fn.Params)
	if input >= np {
		return len(f.piece.Params) + input - np
	}
	for i, b := range f.piece.Params {
		if b.Base == f.fn.Params[input] {
			return i
		}
	}
	return -1
}

// Run runs the function on a recorder. Each new result has one owner. A result that is an input gets no
// additional owner, and a value that is returned twice has one owner for both results.
func (f *Function) Run(r *graphs.Recorder, inputs []graphs.Tensor) ([]graphs.Tensor, error) {
	return f.RunArgs(r, graphs.Args(inputs...))
}

// RunArgs is Run with generators among the operands.
func (f *Function) RunArgs(r *graphs.Recorder, inputs []graphs.Arg) (_ []graphs.Tensor, err error) {
	if len(inputs) != f.Inputs() {
		return nil, fmt.Errorf("%w: @%s has %d inputs, %d were given", graphs.ErrArguments, f.fn.Name, f.Inputs(), len(inputs))
	}
	var made []graphs.Tensor
	defer func() {
		for i := 0; err != nil && i < len(made); i++ {
			err = errors.Join(err, made[i].Release())
		}
	}()
	if f.prog != nil {
		args := make([]graphs.Arg, len(f.prog.Program().Params))
		for i := range inputs {
			if p := f.param(i); p >= 0 {
				args[p] = inputs[i]
			}
		}
		if made, err = r.Run(f.prog, args...); err != nil {
			return nil, err
		}
	}
	outs := make([]graphs.Tensor, len(f.fn.Returns))
	for i, v := range f.fn.Returns {
		base := f.fn.Base(v)
		if f.piece != nil {
			for j, b := range f.piece.Results {
				if b.Base == base {
					outs[i] = made[j]
				}
			}
		}
		for j, p := range f.fn.Params {
			if p == base {
				if t, ok := inputs[j].(graphs.TensorArg); ok {
					outs[i] = graphs.Tensor(t)
				}
			}
		}
		if outs[i].Storage() == nil {
			return nil, fmt.Errorf("%w: result %d of @%s is a parameter for which a generator is given: give its state as a tensor (Recorder.Draw)", graphs.ErrArguments, i, f.fn.Name)
		}
	}
	return outs, nil
}

// Close unloads the function.
func (f *Function) Close() error {
	if f.prog == nil {
		return nil
	}
	return f.prog.Close()
}
