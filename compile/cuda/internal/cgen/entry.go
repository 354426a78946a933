// Package cgen writes CUDA C: the entry of a kernel, the expressions of its instructions, its
// loads and stores, and the register cache of its rows. The emission context that callers pass says
// which row and columns an instruction runs for.
package cgen

import (
	"fmt"
	"math"
	"strings"

	"pwc/collective/cuda/peer"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/cuda/src"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

// Entry is a __global__ function that is being written. Several emitters may write to one, for
// kernels that are fused.
type Entry struct {
	GPU       GPU
	Name      string
	Args      []loop.Arg
	Threads   int32      // of a block
	MinBlocks int        // that a multiprocessor should hold at least; 0: any number
	Grid      [3]dim.Dim // blocks
	Shared    dim.Dim    // bytes of dynamic shared memory
	Cluster   int        // blocks of a cluster, along x
	Peers     string     // the group whose receive buffers are the last parameters; "": no such parameters
	Wide      bool       // indices are 64-bit
	Generic   bool       // known extents are parameters, too: kernels that differ in extents only have equal sources
	Err       error      // the first error

	params    []dim.Dim // of attribute dims
	faults    []int32   // of attribute faults
	used      map[string]bool
	generated []src.Snippet
	body      strings.Builder
	depth     int
}

// NewEmitter returns an emitter of a kernel, with an entry of its name.
func NewEmitter(k *loop.Kernel, on GPU) *Emitter {
	s := &Entry{GPU: on, Name: EntryName(k.Name), Args: k.Args, used: make(map[string]bool), depth: 1, Grid: [3]dim.Dim{nest.One, nest.One, nest.One}}
	e := s.Nest(k)
	s.Wide = !nest.IndicesFit(k)
	return e
}

// Nest returns an emitter of another kernel that writes to the same entry.
func (s *Entry) Nest(k *loop.Kernel) *Emitter {
	e := &Emitter{Entry: s, K: k, raw: make(map[loop.Value]string), known: make(map[loop.Value]loop.Instr), orZero: make(map[loop.Value]loop.Instr), number: make(map[loop.Value]bool)}
	for in := range nest.Instrs(k) {
		if in.Dst != loop.NoValue {
			e.number[in.Dst] = e.isNumber(in)
		}
		switch {
		case in.Op == loop.Const, in.Op == loop.Dim:
			e.known[in.Dst] = in
		case e.isOrZero(in):
			e.orZero[in.Dst] = in
		}
	}
	return e
}

// isOrZero reports whether an instruction chooses between a float and +0.
func (e *Emitter) isOrZero(in loop.Instr) bool {
	if in.Op != loop.Where || e.K.Values[in.Dst].DType != dtype.F32 || e.K.Values[in.Args[1]].DType != dtype.F32 {
		return false
	}
	zero, ok := e.known[in.Args[2]]
	return ok && zero.Op == loop.Const && zero.Float == 0 && !math.Signbit(zero.Float)
}

// EntryName returns the C name of a kernel's entry, which has at most 120 characters. The prefix keeps it
// apart from functions of CUDA.
func EntryName(name string) string {
	b := []byte("k_" + name)
	for i, c := range b {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9') {
			b[i] = '_'
		}
	}
	return string(b[:min(len(b), 120)])
}

// Source is one kernel in CUDA C and how it is launched.
type Source struct {
	Name   string        // the entry
	Guard  program.Guard // the sizes that it serves; zero: all that no source before it serves
	Device program.Guard // the devices that it serves; zero: all
	Arch   string        // the architecture that it is compiled for: "sm_90"
	Launch program.Launch
	Part   Part // its part of a translation unit
	Pairs  bool // it may be compiled together with a neighbour
}

// Finish returns the source of the entry. does describes it in a line.
func (e *Emitter) Finish(does string) Source {
	args := make([]string, 0, len(e.Args)+len(e.params)+1)
	for i, a := range e.Args {
		mode := "const "
		if a.Write {
			mode = ""
		}
		args = append(args, fmt.Sprintf("%s%s *a%d", mode, e.Storage(a.DType), i))
	}
	var narrow strings.Builder
	for i, d := range e.params {
		what := ""
		if _, known := d.Const(); !known {
			what = fmt.Sprintf(" /* %s */", d)
		}
		args = append(args, fmt.Sprintf("long long p%d%s", i, what))
		fmt.Fprintf(&narrow, "  const %s d%d = p%d;\n", e.Index(), i, i)
	}
	if len(e.faults) > 0 {
		args = append(args, "unsigned int *faults")
	}
	if e.Peers != "" {
		args = append(args, peer.Params()...)
	}
	bounds := fmt.Sprint(e.Threads)
	if e.MinBlocks > 0 {
		bounds += fmt.Sprintf(", %d", e.MinBlocks)
	}
	p := Part{Does: does, Used: e.used, Generated: e.generated}
	p.Entry = fmt.Sprintf("extern \"C\" __global__ void __launch_bounds__(%s)\n%s(%s) {\n%s%s}\n", bounds, e.Name, strings.Join(args, ", "), narrow.String(), e.body.String())
	return Source{Name: e.Name, Arch: e.GPU.String(), Launch: e.launch(), Part: p}
}

func (e *Emitter) launch() program.Launch {
	l := program.Launch{Grid: e.Grid, Block: [3]int32{e.Threads, 1, 1}, Shared: e.Shared}
	if len(e.params) > 0 {
		l.Attrs = append(l.Attrs, program.Attr{Name: "dims", Kind: program.AttrDims, Dims: e.params})
	}
	if len(e.faults) > 0 {
		nodes := make([]dim.Dim, len(e.faults))
		for i, n := range e.faults {
			nodes[i] = dim.Const(int64(n))
		}
		l.Attrs = append(l.Attrs, program.Attr{Name: "faults", Kind: program.AttrDims, Dims: nodes})
	}
	if e.Peers != "" {
		l.Attrs = append(l.Attrs, program.Attr{Name: program.LaunchPeers, Kind: program.AttrString, Str: e.Peers})
	}
	if e.GPU.PDL() {
		l.Attrs = append(l.Attrs, program.Attr{Name: "pdl", Kind: program.AttrBool, Bool: true})
	}
	if e.Cluster > 1 {
		l.Attrs = append(l.Attrs, program.Attr{Name: "cluster", Kind: program.AttrDims, Dims: []dim.Dim{dim.Const(int64(e.Cluster)), nest.One, nest.One}})
	}
	return l
}

// Wait writes the PDL trigger, then the wait for the kernel before. The trigger may come first because
// the dependent kernel waits for this kernel to end, and waits are transitive.
func (e *Emitter) Wait() {
	if e.GPU.PDL() {
		e.Line("%s();", e.Use("trigger_dependents"))
		e.Line("%s();", e.Use("wait_for_dependency"))
	}
}

// Part is one kernel's part of a translation unit.
type Part struct {
	Does      string          // a line about it
	Used      map[string]bool // snippets
	Generated []src.Snippet   // for this kernel; another kernel may have one of the same name with other parameter types
	Entry     string
}
