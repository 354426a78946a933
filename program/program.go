// Package program defines the compiled form of one piece: kernels, the steps that
// launch them, the memory that they use and the constraints that they rely on. A
// Program is plain, relocatable data: it contains no path, pointer, device ordinal,
// weight or tuning result, and the same input gives the same bytes on every machine
// (C3).
package program

import (
	"iter"
	"slices"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// FormatVersion is the version of the encoding that Encode writes and Decode
// accepts. If the bytes of any Program change, it must change, too.
const FormatVersion = 7

// Program is one compiled piece, for the sizes that its guards allow.
type Program struct {
	Target  string   // "host", "cuda:sm_90", …
	Symbols []string // the piece's symbols; all dims below are over these and device properties
	Guards  []Guard  // constraints that compilation relied on; all are checked before a launch (C4)
	Params  []Param
	Results []Result
	Consts  [][]byte // contents of BufferConst buffers, little-endian
	Buffers []Buffer
	Kernels []Kernel
	Steps   []Step
}

// Guard is one constraint on symbols: Lo <= Expr <= Hi. A range of a symbol is
// the guard whose Expr is the symbol alone.
type Guard struct {
	Expr   dim.Dim
	Lo, Hi int64
}

// Always reports whether Expr is a constant from Lo to Hi, as in the zero Guard: then the
// constraint holds for all values of symbols.
func (g Guard) Always() bool {
	c, ok := g.Expr.Const()
	return ok && g.Lo <= c && c <= g.Hi
}

// ParamKind is the kind of tensor that the caller binds to a parameter.
type ParamKind uint8

const (
	ParamValue  ParamKind = iota // a parameter of the function
	ParamWeight                  // a weight of the model
	ParamState                   // a state, which keeps its contents between runs
)

// Param is one parameter. A program's parameters are function parameters, weights and
// states, in this order. Values of symbols are bound separately.
type Param struct {
	Kind  ParamKind
	Mut   bool // the program may write it
	DType dtype.DType
	Shape []dim.Dim

	// Generator: the program draws random numbers from the parameter, which is i64[2], a
	// seed and an offset, and only reads it. After a run, the caller adds Advance, a
	// multiple of DrawStep, to the offset, so that the next run draws new numbers. Advance is
	// 0 for programs that only repeat the numbers of others.
	Generator bool
	Advance   int64
}

// DrawStep divides the offset of a generator, as ir.DrawStep: Philox ignores the two lowest
// bits of an offset, so smaller steps would repeat numbers.
const DrawStep = 4

// Generator is a parameter that is the state of a random number generator.
type Generator struct {
	Param   int // index into Program.Params
	Advance int64
}

// Generators returns the parameters that the program draws random numbers from, in
// their order. Programs of one function share its generators: the caller advances the
// offset once for all of them, by the largest Advance.
func (p *Program) Generators() []Generator {
	var out []Generator
	for i := range p.Params {
		if a := &p.Params[i]; a.Generator {
			out = append(out, Generator{Param: i, Advance: a.Advance})
		}
	}
	return out
}

// Result is one result. Alias >= 0: the piece returns the parameter with this index, and the
// result has no buffer. Same >= 0: it returns the earlier result with this index again.
// Otherwise the program writes the result to the caller's memory, the BufferResult
// with the result's index.
type Result struct {
	DType dtype.DType
	Shape []dim.Dim
	Alias int32
	Same  int32
}

// BufferKind is the owner of a buffer's memory.
type BufferKind uint8

const (
	BufferParam   BufferKind = iota // bound by the caller; Index is the parameter
	BufferResult                    // bound by the caller; Index is the result
	BufferScratch                   // part of the program's scratch memory, for steps First…Last
	BufferConst                     // contents are Consts[Index], copied to the device at load
)

// Buffer is a contiguous tensor that steps read or write.
type Buffer struct {
	Kind        BufferKind
	Index       int32
	DType       dtype.DType
	Shape       []dim.Dim
	Align       int32 // bytes, a power of two up to MaxAlign; 0: the element's own
	First, Last int32 // of scratch: the lifetime of its contents in steps, both included
}

// StepKind is the kind of a step. To load a Program with a kind that the device
// does not support is an error.
type StepKind uint8

const (
	StepKernel  StepKind = iota // launches Kernel on Args
	StepExtern                  // calls the extern op Extern on Args
	StepLibrary                 // calls a library routine of the device, named by Extern, on Args
	StepChoice                  // runs the steps of one of Variants
)

// CollectivePrefix is the prefix of the names of collectives among the routines of StepLibrary:
// all_reduce, all_gather, reduce_scatter and broadcast from Args[1] to Args[0], which are
// contiguous and have one dtype. Attributes: group (a string) and size (the number of ranks that
// the program is for); broadcast also has root, and all_reduce has async (true) if the call may
// overlap with later steps. Blocks of ranks are contiguous, in rank order.
const CollectivePrefix = "collective::"

// CollectiveWait is the routine that waits for an earlier async call with the same Args. Between
// the two, no step may use the destination or write the source. [Program.Validate] checks the
// destination: its buffer, and every other buffer of the same parameter, result or constant.
const CollectiveWait = CollectivePrefix + "wait"

// asyncAttr is the attribute of a collective that may overlap with later steps.
const asyncAttr = "async"

// PeersProperty returns the name of the device property with the number of ranks of a group whose
// memory the device can access. The guard Device of a variant with [LaunchPeers] depends on it.
func PeersProperty(group string) string { return PropertyPrefix + "peers." + group }

// Step is one entry of the launch list, which runs in order.
type Step struct {
	Kind   StepKind
	Kernel int32   // StepKernel
	Extern string  // StepExtern, StepLibrary
	Args   []int32 // buffers
	Attrs  []Attr
	Launch Launch // StepKernel
	Origin int32  // node of the piece, for messages (C12) and profiles; -1: none

	// Variants of a StepChoice: the step runs the first one whose guards hold and whose
	// library routines exist on the device and do not decline the call. The guards of the last
	// variant always hold, and its only routines are collectives, which every device of a
	// group has, so one can always run.
	Variants []Variant
}

// Routines returns the name of the library routine of every step that calls one,
// including steps of variants. Names may repeat.
func (p *Program) Routines() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range p.Steps {
			for _, v := range slices.Concat(p.Steps[i].Variants, []Variant{{Steps: p.Steps[i : i+1]}}) {
				for j := range v.Steps {
					if s := &v.Steps[j]; s.Kind == StepLibrary && !yield(s.Extern) {
						return
					}
				}
			}
		}
	}
}

// Required returns the kernels and calls that every device of the program must be able to run, each with
// the index of its step: steps that are not choices, and the steps of each choice's last variant.
func (p *Program) Required() iter.Seq2[int, *Step] {
	return func(yield func(int, *Step) bool) {
		for i := range p.Steps {
			steps := p.Steps[i : i+1]
			if n := len(steps[0].Variants); n > 0 {
				steps = steps[0].Variants[n-1].Steps
			}
			for j := range steps {
				if !yield(i, &steps[j]) {
					return
				}
			}
		}
	}
}

// Variant is one implementation of a StepChoice.
type Variant struct {
	Guard Guard // over symbols; the zero Guard holds for all sizes

	// Device is a guard over device properties only ("device.major"); the zero Guard holds
	// for all devices. If it does not hold, the device never runs the variant, and need not load
	// kernels that no other step runs.
	Device Guard

	// Steps run in order: kernels and library routines. The lifetime of scratch memory
	// that they use must include the step of the choice.
	Steps []Step
}

// Launch is a launch configuration. Grid and Shared are over the program's
// symbols and device properties ("device.sms"), evaluated when a launch is
// bound. The host ignores it: its kernels contain their iteration space.
type Launch struct {
	Grid   [3]dim.Dim // blocks
	Block  [3]int32   // threads
	Shared dim.Dim    // dynamic shared memory, bytes
	Attrs  []Attr     // launch attributes, for example programmatic dependent launch
}

// Launch attributes for the parameters of a kernel.
const (
	// LaunchDims (AttrDims) are integers that a kernel takes as parameters. Bind refuses a
	// value that exceeds the number of elements of every buffer of the step, unless LaunchFree
	// lists it.
	LaunchDims = "dims"

	// LaunchFree (AttrDims, ascending constants) are indices in LaunchDims of integers that
	// buffers need not bound, such as operands of the computation.
	LaunchFree = "free"

	// LaunchPeers (AttrString) is a group: the kernel communicates with its ranks, and takes
	// the receive buffers of the group as its last parameters.
	LaunchPeers = "peers"
)

// AttrKind is the kind of an attribute's value.
type AttrKind uint8

// Kinds of attributes, each named after the field of [Attr] that has the value.
const (
	AttrDim AttrKind = iota
	AttrFloat
	AttrBool
	AttrString // Str
	AttrDims
	AttrFloats
)

// Attr is a named value given to an extern op, a library routine or a launch: the
// field of its kind.
type Attr struct {
	Name   string
	Kind   AttrKind
	Dim    dim.Dim
	Float  float64
	Bool   bool
	Str    string
	Dims   []dim.Dim
	Floats []float64
}
