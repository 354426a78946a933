package compile

import (
	"context"
	"errors"
	"fmt"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/program"
)

// Shape is what a piece is compiled for: the range of each of its symbols. A
// range with Lo == Hi makes the symbol a constant. A symbol that is missing
// keeps its declared range.
type Shape struct {
	Ranges map[string]dim.Interval
}

// Backend makes kernels for a target out of their fused form.
type Backend interface {
	// Target names the target, as in device.Info: "host", "cuda:sm_90".
	Target() string

	// Lower makes code of one kernel. The kernel's arguments stay in order. The
	// same kernel gives the same code on every machine. It is called from one
	// goroutine at a time.
	Lower(k *loop.Kernel) (Code, error)
}

// Together is a Backend that can run several kernels as one launch, side by side.
type Together interface {
	Backend

	// Beside reports whether kernels may run as one. They do not touch what
	// another of them writes.
	Beside(ks []*loop.Kernel) bool

	// LowerBeside makes code of kernels that Beside accepts. It takes the
	// arguments of the first, then those of the second, and so on.
	LowerBeside(ks []*loop.Kernel) (Code, error)
}

// Code is a kernel for a target.
type Code struct {
	Kernel   program.Kernel
	Launch   program.Launch
	Variants []Variant // taken instead where their guard holds, the first that does
}

// Variant is another kernel for some sizes.
type Variant struct {
	Guard  program.Guard
	Kernel program.Kernel
	Launch program.Launch
}

// Compile compiles a piece: a module with one function. The program's
// parameters are the function's, then the module's weights, then its states;
// its symbols are the module's. The same piece, shape and options give the
// same program everywhere.
//
// An error at a node is an [ir.Error] with its position or loc.
func Compile(ctx context.Context, piece *ir.Module, shape Shape, b Backend, o Options) (*program.Program, error) {
	if len(piece.Funcs) != 1 {
		return nil, fmt.Errorf("compile: a piece has one function, module %s has %d", piece.Name, len(piece.Funcs))
	}
	p, err := o.pipeline()
	if err != nil {
		return nil, err
	}
	m, err := specialize(piece, shape, !p.off("static"))
	if err != nil {
		return nil, err
	}
	prog, err := p.run(ctx, m, b)
	var at *nodeError
	if errors.As(err, &at) {
		err = piece.ErrorAt(piece.Funcs[0], int(at.origin), "%s", at.msg)
	}
	if err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	return prog, nil
}
