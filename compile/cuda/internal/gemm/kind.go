// Package gemm generates the kernels of GEMMs.
//
// A kind of kernel is a template of package src and a struct with its parameters, in a file of its
// own. The choice of kinds for a GEMM, by the number of rows, is a pure function of its shape and the
// GPU (heuristics.go) over a table of measurements (tuning.go). All kinds leave the sums of a block in
// shared memory. The epilogue reads them there: the GEMM's own (epilogue.go), or the nests that a plan
// of package fusion put after the GEMM (fusedepilogue.go). The nest before the GEMM is the prologue
// (prologue.go).
package gemm

import (
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/fusion"
	"pwc/compile/cuda/internal/nest"
	"pwc/ir/dim"
	"pwc/program"
)

// Kind is a kind of GEMM kernel with its parameters.
type Kind interface {
	// Name is the suffix of the entry.
	Name() string

	// MaxRows is the largest number of rows that the kernel is for; math.MaxInt64: any.
	MaxRows() int64

	// Resources are what the kernel takes of a multiprocessor.
	Resources() Resources

	// emit writes the body of the kernel.
	emit(w *writer)
}

// Resources are what a kernel takes of a multiprocessor, and how it is compiled.
type Resources struct {
	Rows, Cols  int // of the result, in a block
	Threads     int
	SplitK      int // groups of warps with sums over a part of k each, which the epilogue adds
	Pitch       int // floats between rows of sums
	Cluster     int // blocks that share the block's part of the result, each with a part of k; 1: no cluster
	MinBlocks   int // blocks that a multiprocessor should hold at least; 0: any number
	SharedBytes int // dynamic shared memory of a block, with the DSMEM reduction buffer

	LeaderReduces bool // the leader CTA of a cluster adds the sums of all; else each CTA adds those of a share of the rows
	ArchSpecific  bool // the code is for one architecture; another kind serves the same rows on others
	Generic       bool // extents are parameters, so that GEMMs of other extents have the same source
	Pairs         bool // the source may be compiled together with a neighbour
}

// staticBytes is an upper bound of the static shared memory of kernels that use dynamic shared memory.
const staticBytes = 2 << 10

// fits reports whether the GPU has the shared memory for a block.
func (r Resources) fits(on cgen.GPU) bool { return r.SharedBytes <= on.SharedBytes()-staticBytes }

// sumBytes is the shared memory for the sums of all groups of warps.
func (r Resources) sumBytes() int { return 4 * r.SplitK * r.Rows * r.Pitch }

// share is the largest number of rows whose sums one block of a cluster adds.
func (r Resources) share() int {
	if r.LeaderReduces {
		return r.Rows
	}
	return int(nest.CeilDiv(int64(r.Rows), int64(r.Cluster)))
}

// reductionBytes is the size of the DSMEM reduction buffer, which gets the sums of the cluster's
// other blocks for the rows that this block adds.
func (r Resources) reductionBytes() int {
	pitch := r.Pitch
	if r.LeaderReduces {
		pitch = r.Cols
	}
	return 4 * (r.Cluster - 1) * r.share() * pitch
}

// withStages returns the resources with shared memory for stages, which the sums reuse, and for
// the DSMEM reduction buffer after them, to which other blocks write while this one uses its stages.
func (r Resources) withStages(bytes int) Resources {
	r.SharedBytes = max(bytes, r.sumBytes()) + r.reductionBytes()
	return r
}

// Source returns the source of a GEMM and of the nests fused to it, for one kind of kernel.
func Source(f *fusion.Fused, on cgen.GPU, kind Kind) (cgen.Source, error) {
	r := kind.Resources()
	var device program.Guard
	if r.ArchSpecific {
		on, device = on.Specific(), on.Guard()
	}
	w := newWriter(f, on, kind, r)
	w.Name, w.Args = cgen.EntryName(f.Name)+"_"+kind.Name(), f.Args
	for _, o := range f.Others() {
		w.Wide = w.Wide || !nest.IndicesFit(o)
	}
	w.Threads, w.Cluster, w.MinBlocks, w.Generic = int32(r.Threads), r.Cluster, r.MinBlocks, r.Generic
	if r.SharedBytes > 0 {
		w.Shared = dim.Const(int64(r.SharedBytes))
	}
	kind.emit(w)
	src := w.Finish(w.does)
	src.Device, src.Pairs = device, r.Pairs
	return src, w.Err
}
