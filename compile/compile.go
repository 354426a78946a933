package compile

import (
	"context"
	"fmt"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
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
	// same kernel gives the same code on every machine. It is called from several
	// goroutines, as the methods of HorizontalFuser and VerticalFuser are.
	Lower(k *loop.Kernel) (Code, error)
}

// HorizontalFuser is a Backend that can run several independent kernels as one launch.
type HorizontalFuser interface {
	Backend

	// FusesHorizontally reports whether kernels may run as one launch. None of them
	// touches memory that another writes.
	FusesHorizontally(ks []*loop.Kernel) bool

	// LowerHorizontal makes code of kernels that FusesHorizontally accepts. It takes the
	// arguments of the first, then those of the second, and so on.
	LowerHorizontal(ks []*loop.Kernel) (Code, error)
}

// VerticalFuser is a Backend that makes code of several consecutive kernels at once: as
// fewer kernels for some sizes, or with other borders between them.
type VerticalFuser interface {
	Backend

	// FusesVertically reports whether it makes code of the kernels of a chain together.
	// It is asked for the longest run of kernels first, then for shorter ones from the
	// same start.
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

// WeightReader is a Backend whose code reads weights of any alignment that their elements
// have, so that they can stay where a checkpoint has them. Weights of others are aligned as
// all buffers are.
type WeightReader interface {
	Backend

	// ReadsUnalignedWeights reports that it does.
	ReadsUnalignedWeights() bool
}

// Chain is kernels that run one after the other, each of which reads what one
// before it wrote. Their arguments are counted through: those of the first, then
// those of the second, and so on.
type Chain struct {
	Kernels []*loop.Kernel
	Same    []int32 // by argument: the first one that is the same memory
	Dead    []bool  // by argument: memory that nothing but the chain uses, so that it need not be written
}

// Code is how a target runs a kernel, several kernels side by side, or a chain of
// them.
type Code struct {
	// Variants are the ways to do it: the first serves whose guards hold and whose
	// library routines the device has. The last has zero Guards and names none but collectives.
	Variants []Variant
	Temps    []Temp
}

// Variant is one way.
type Variant struct {
	Guard  program.Guard
	Device program.Guard // for which devices it is, by their properties
	Steps  []Step
}

// Step is a kernel, or the call of a routine that devices may have.
type Step struct {
	Kernel  program.Kernel
	Launch  program.Launch
	Library string // name of the routine; empty: Kernel
	Attrs   []program.Attr

	// Args are what it is called on: arguments by their number, then, counted on,
	// the Temps. Nil: all arguments in order.
	Args []int32
}

// Temp is memory between the steps of a variant.
type Temp struct {
	DType dtype.DType
	Shape []dim.Dim
}

// One is the code that is one kernel for all sizes.
func One(k program.Kernel, l program.Launch) Code {
	return Code{Variants: []Variant{{Steps: []Step{{Kernel: k, Launch: l}}}}}
}

// Compile compiles a piece: a module with one function. The program's
// parameters are the function's, then the module's weights, then its states;
// its symbols are the module's. The same piece, shape and options give the
// same program wherever the backend makes the same code.
//
// An error at a node is an [ir.Error] with its position or loc, one of a pass a
// [PassError].
func Compile(ctx context.Context, piece *ir.Module, shape Shape, b Backend, o Options) (*program.Program, error) {
	if piece == nil || b == nil {
		return nil, fmt.Errorf("compile: a piece and a backend are needed: %w", ir.ErrNoModule)
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
