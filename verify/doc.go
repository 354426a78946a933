// Package verify compares values inside a run of a model with those of another implementation,
// and finds the smallest cause of a departure.
//
// A trace has outputs of PyTorch modules by their path, as forward hooks see them. [Index] maps a
// path to a value of the IR (C23). [Ask] makes a module that returns such values. [Compare]
// judges them by error bounds that follow from the ops before each value ([Bounds]).
// [Search.Bisect] finds the wrong piece, pass, kernel variant and nodes. If a part of the model
// departs alone, its [Finding] has a case, which reproduces the departure: a module of a few nodes
// with inputs.
//
// A [Target] runs modules, on a device or in the interpreter.
package verify

import (
	"context"

	"pwc/ir"
	"pwc/ir/interp"
)

// Call is one call of a function in a run, with copies of its arguments and results.
type Call struct {
	Func    string
	Args    []*interp.Tensor // in the order of the parameters
	Results []*interp.Tensor // in the order of the results
}

// Config changes how a target compiles.
type Config struct {
	Disable []string // disabled passes
	Avoid   []string // kernel variants to avoid if another can replace them; see Variants

	// Seen, if not nil, receives the name of every compiled kernel variant that another can
	// replace. Several goroutines may call it.
	Seen func(variant string)
}

// Target runs modules on a device, or in the interpreter, which ignores the Config.
type Target interface {
	// Workload runs the model's workload with the functions of m, which are those of the model
	// with further results. It returns the calls in order.
	Workload(ctx context.Context, m *ir.Module, c Config) ([]Call, error)

	// Function runs the only function of m once, with the initial contents of its states.
	Function(ctx context.Context, m *ir.Module, args []*interp.Tensor, c Config) ([]*interp.Tensor, error)
}
