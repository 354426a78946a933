// Package program is the compiled form of one piece: kernels, the list of
// steps that launches them, the memory they touch and the constraints they
// rely on. A Program is plain, relocatable data: it holds no path, pointer,
// device ordinal, weight or tuning result, and the same input gives the same
// bytes on every machine (C3).
package program

import (
	"iter"
	"slices"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// FormatVersion is the version of the encoding that Encode writes and Decode
// accepts. Any change of bytes for the same Program needs another number.
const FormatVersion = 7

// Program is one compiled piece for one shape.
type Program struct {
	Target  string   // "host", "cuda:sm_90", …
	Symbols []string // the piece's symbols; all dims below are over these and device properties
	Guards  []Guard  // what compilation relied on; all checked before a launch (C4)
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

// Always reports whether the constraint holds whatever the symbols are, as the
// zero Guard does.
func (g Guard) Always() bool {
	c, ok := g.Expr.Const()
	return ok && g.Lo <= c && c <= g.Hi
}

// ParamKind says what the caller binds to a parameter.
type ParamKind uint8

const (
	ParamValue  ParamKind = iota // a tensor of the step
	ParamWeight                  // a weight of the model
	ParamState                   // a state of the runner
)

// Param is one parameter, in the order: function parameters, weights, states.
// Symbols are bound by value beside them.
type Param struct {
	Kind  ParamKind
	Mut   bool // the program writes it
	DType dtype.DType
	Shape []dim.Dim

	// Generator says that the program draws random numbers from it: it is i64[2], a
	// seed and an offset, which the program only reads. Advance is by how much the
	// caller raises the offset for the next run, so that it draws new numbers; it is
	// 0 for programs that only draw again what others drew.
	Generator bool
	Advance   int64
}

// Generator is a parameter that is the state of a random number generator.
type Generator struct {
	Param   int // index into Program.Params
	Advance int64
}

// Generators returns the parameters that the program draws random numbers from, in
// their order. Programs of one function share its generators: the offset is raised
// once for all of them, by the largest Advance.
func (p *Program) Generators() []Generator {
	var out []Generator
	for i := range p.Params {
		if a := &p.Params[i]; a.Generator {
			out = append(out, Generator{Param: i, Advance: a.Advance})
		}
	}
	return out
}

// Result is one result. Alias >= 0: the piece returns that parameter, which is its
// memory, and nothing is written; Same >= 0: it returns that earlier result again.
// Otherwise the caller gives a destination, the buffer with that Result index,
// which is written whatever the value turned out to be equal to.
type Result struct {
	DType dtype.DType
	Shape []dim.Dim
	Alias int32
	Same  int32
}

// BufferKind says whose memory a buffer is.
type BufferKind uint8

const (
	BufferParam   BufferKind = iota // bound by the caller, Index is the parameter
	BufferResult                    // bound by the caller, Index is the result
	BufferScratch                   // placed in the program's scratch memory for steps First…Last
	BufferConst                     // contents are Consts[Index], put on the device when loaded
)

// Buffer is one piece of memory that steps touch: a contiguous tensor.
type Buffer struct {
	Kind        BufferKind
	Index       int32
	DType       dtype.DType
	Shape       []dim.Dim
	Align       int32 // bytes, a power of two up to MaxAlign; 0: the element's own
	First, Last int32 // scratch: the steps between which its contents matter, both included
}

// StepKind is what a step does. Loading a Program with a kind that the device
// does not know is an error.
type StepKind uint8

const (
	StepKernel  StepKind = iota // launches Kernel on Args
	StepExtern                  // calls the extern op Extern on Args
	StepLibrary                 // calls a library routine of the device, named by Extern, on Args
	StepChoice                  // runs the steps of one of Variants
)

// CollectivePrefix starts the names of the routines of StepLibrary that meet the other ranks
// of a group: all_reduce, all_gather, reduce_scatter and broadcast of Args[1] to Args[0]. Both
// are contiguous and of one dtype. Attributes: group (a string), size (how many ranks the
// program is for), of broadcast root, and of all_reduce async (true), if the call may overlap with later
// steps. Blocks of ranks lie one after the other, in rank order.
const CollectivePrefix = "collective::"

// CollectiveWait is the routine that waits for the calls with async before it. Args are the destination and the source
// of one of them, whose memory no step between the call and the wait may touch.
const CollectiveWait = CollectivePrefix + "wait"

// asyncAttr is the attribute of a collective that may overlap with later steps.
const asyncAttr = "async"

// PeersProperty is the device property that says how many ranks a group has whose memory the device
// reaches. A variant with a kernel that has the launch attribute [LaunchPeers] asks for it.
func PeersProperty(group string) string { return PropertyPrefix + "peers." + group }

// Step is one entry of the launch list, which runs in order.
type Step struct {
	Kind   StepKind
	Kernel int32   // StepKernel
	Extern string  // StepExtern, StepLibrary
	Args   []int32 // buffers
	Attrs  []Attr
	Launch Launch // StepKernel
	Origin int32  // node of the piece, for messages (C12, profiles)

	// Variants are the ways of a StepChoice: the first is run whose guard holds and
	// whose library routines the device has. The last holds for all sizes and names
	// no routine but collectives, which every device of a group has, so that there always is one.
	Variants []Variant
}

// Routines returns the names of the library routines in the program's steps, each
// once for every step.
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

// Variant is one way to do what a StepChoice does.
type Variant struct {
	Guard Guard // the zero Guard holds for all sizes

	// Device says which devices it is for, by their properties ("device.major")
	// alone; the zero Guard holds for all. Others do not load its kernels.
	Device Guard

	// Steps run in order: kernels and library routines. Scratch memory that they use
	// lives at the step that is the choice.
	Steps []Step
}

// Launch is a launch configuration. Grid and Shared are over the program's
// symbols and device properties ("device.sms"), evaluated when a launch is
// bound. The host ignores it: its kernels carry their own iteration space.
type Launch struct {
	Grid   [3]dim.Dim // blocks
	Block  [3]int32   // threads
	Shared dim.Dim    // dynamic shared memory, bytes
	Attrs  []Attr     // launch attributes, for example programmatic dependent launch
}

// Launch attributes that say what a kernel is given.
const (
	// LaunchDims (AttrDims) are integers that a kernel takes as parameters. One that is
	// larger than the number of elements of every buffer of the step is refused when a
	// launch is bound, unless LaunchFree lists it.
	LaunchDims = "dims"

	// LaunchFree (AttrDims of rising constants) are the indices of those of LaunchDims
	// that no buffer bounds: numbers to compute with, extents of what is made up.
	LaunchFree = "free"

	// LaunchPeers (AttrString) is a group whose receive buffers a kernel takes as its last parameters,
	// because it meets the other ranks.
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
