// Package verify compares the values inside a run of a model with those that other software
// computed, and finds the smallest cause of a departure.
//
// A trace holds outputs of PyTorch modules by their path, as forward hooks see them. [Index]
// maps a path to a value of the IR (C23), [Ask] makes a module that returns such values,
// [Compare] judges them by error bounds that follow from the ops before each value ([Bounds]),
// and [Bisect] searches for the piece, the pass, the kernel variant and the nodes that are
// wrong. A [Case] is what the search ends with: a module of a few nodes, with its inputs.
//
// The package runs nothing itself: a [Target] does, a device or the interpreter.
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
	Disable []string // passes that are switched off
	Avoid   []string // kernel variants that are not used where there is another; see Variants

	// Seen, if not nil, is told the name of every kernel variant that is compiled where there
	// is a choice. It may be called from several goroutines.
	Seen func(variant string)
}

// Target runs modules: on a device, compiled, or in the interpreter, which ignores the Config.
type Target interface {
	// Workload runs the model's workload with the functions of m, which are those of the model
	// with more results, and returns its calls in order.
	Workload(ctx context.Context, m *ir.Module, c Config) ([]Call, error)

	// Function runs the only function of m once, with zeroed states.
	Function(ctx context.Context, m *ir.Module, args []*interp.Tensor, c Config) ([]*interp.Tensor, error)
}
