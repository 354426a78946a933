package compile

import (
	"context"
	"errors"
	"fmt"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

// Shape has the sizes that a piece is compiled for: the range of each of its symbols. A
// range with Lo == Hi makes the symbol a constant, unless pass static is switched
// off. A symbol that is missing keeps its declared range.
type Shape struct {
	Ranges map[string]dim.Interval
}

// Backend makes code for a target from fused loops.
type Backend interface {
	// Target names the target, as in device.Info: "host", "cuda:sm_90".
	Target() string

	// Lower makes code of one kernel. The kernel's arguments keep their order. The same
	// kernel gives the same code on every machine; if the backend uses a compiler, with the
	// same version of it. Lower, LowerHorizontal and LowerVertical are called from several
	// goroutines.
	Lower(k *loop.Kernel) (Code, error)
}

// HorizontalFuser is a Backend that can run several independent kernels as one launch.
type HorizontalFuser interface {
	Backend

	// FusesHorizontally reports whether kernels may run as one launch. Callers ensure that
	// no kernel reads or writes memory that another one writes.
	FusesHorizontally(ks []*loop.Kernel) bool

	// LowerHorizontal makes code of kernels that FusesHorizontally accepts. The code takes the
	// arguments of the first kernel, then those of the second, and so on.
	LowerHorizontal(ks []*loop.Kernel) (Code, error)
}

// VerticalFuser is a Backend that makes code of several consecutive kernels together: fewer
// kernels for some sizes, or kernels that divide the work in another way.
type VerticalFuser interface {
	Backend

	// FusesVertically reports whether LowerVertical makes code of a chain. It is called
	// for the longest chain first, then for shorter ones with the same first kernel.
	FusesVertically(c *Chain) bool

	// LowerVertical makes code of a chain that FusesVertically accepts.
	LowerVertical(c *Chain) (Code, error)
}

// AllReduceFuser is a Backend that can compute an all_reduce in the kernel that reads the sums.
type AllReduceFuser interface {
	Backend

	// FusesAllReduce reports whether Lower makes code of a kernel with a loop.AllReduce. The code has a
	// variant without it too, which calls the routine ([AllReduceStep]), for devices and sizes
	// that the fused kernel does not serve.
	FusesAllReduce(k *loop.Kernel) bool
}

// WeightReader is a Backend whose code may need no more alignment of weights than that of
// their elements, so that they can stay where they are in a checkpoint. For other backends,
// weights have the alignment of all buffers.
type WeightReader interface {
	Backend

	// ReadsUnalignedWeights reports whether this holds for the code of the backend.
	ReadsUnalignedWeights() bool
}

// Chain is a list of consecutive kernels. Each kernel but the first reads the result of an
// earlier one. Arguments are numbered through all kernels: those of the first, then those
// of the second, and so on.
type Chain struct {
	Kernels []*loop.Kernel
	Same    []int32 // by argument: the first argument with the same memory
	Dead    []bool  // by argument: only the chain uses the memory, so it need not be written
}

// Code is the code of a kernel, of kernels of horizontal fusion, or of a chain.
type Code struct {
	// Variants are alternatives. A device runs the first one whose guards hold and whose
	// library routines it has, unless a routine declines. The guards of the last variant
	// always hold, and its only library routines are collectives.
	Variants []Variant
	Temps    []Temp
}

// Variant is one alternative of a Code.
type Variant struct {
	Guard  program.Guard // over the program's symbols
	Device program.Guard // over the properties of devices
	Steps  []Step
}

// Step is a kernel, or a call of a library routine.
type Step struct {
	Kernel  program.Kernel
	Launch  program.Launch
	Library string // name of the routine; empty: Kernel
	Attrs   []program.Attr

	// Args are the arguments of the step: indices into the arguments of the kernels
	// followed by the Temps. Nil: all arguments of the kernels, in order.
	Args []int32
}

// Temp is memory between the steps of a variant.
type Temp struct {
	DType dtype.DType
	Shape []dim.Dim
}

// One returns the code of one kernel for all sizes.
func One(k program.Kernel, l program.Launch) Code {
	return Code{Variants: []Variant{{Steps: []Step{{Kernel: k, Launch: l}}}}}
}

// Compile compiles a piece: a module with one function. The program's
// parameters are the function's, then the module's weights, then its states;
// its symbols are the module's. The same piece, shape and options give the
// same program if the backend makes the same code.
//
// An error in the piece, or of the backend at a kernel, is an [ir.Error] at a node, with its
// position or loc. An error of a pass is a [PassError]. If ctx ends, the error is that of ctx.
// Other errors are of the arguments: no piece or no backend, the number of functions, the
// shape, a pass in Options, or a module that the verifier refuses.
func Compile(ctx context.Context, piece *ir.Module, shape Shape, b Backend, o Options) (*program.Program, error) {
	switch {
	case piece == nil:
		return nil, fmt.Errorf("compile: no piece: %w", ir.ErrNoModule)
	case b == nil:
		return nil, errors.New("compile: no backend, want one such as host.New of package compile/host")
	}
	if len(piece.Funcs) != 1 {
		return nil, fmt.Errorf("compile: a piece has one function, module %s has %d", piece.Name, len(piece.Funcs))
	}
	rows, err := o.rows()
	if err != nil {
		return nil, err
	}
	s := &state{ctx: ctx, piece: piece, shape: shape, b: b, o: o}
	return s.run(rows)
}
