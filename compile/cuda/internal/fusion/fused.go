package fusion

import (
	"slices"

	"pwc/compile"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// Fused is a GEMM and the kernels that run in its launch. Their arguments are numbered together:
// those of the launch first, then the intermediate results, which stay on chip and are never written
// to memory.
type Fused struct {
	Name      string
	Args      []loop.Arg // of the launch
	From      []int32    // the chain's arguments that Args are; nil: all in order
	Prologue  *loop.Kernel
	GEMM      *loop.Kernel
	Epilogues []Epilogue // if empty, the GEMM's own epilogue stores its result
}

// Alone returns a GEMM without other kernels.
func Alone(k *loop.Kernel) *Fused { return &Fused{Name: k.Name, Args: k.Args, GEMM: k} }

// Epilogue is a nest over columns of the GEMM. Each element of the nest is a unit. A unit reads, in its
// row of the GEMM, the columns Parts[0] + x, Parts[1] + x, ... where x is the sum of the unit's indices
// times Steps. Parts have equal distances.
type Epilogue struct {
	Nest    *loop.Kernel
	Result  int32   // the argument that is the GEMM's result
	Rows    bool    // the nest's first axis is the GEMM's rows
	Extents []int64 // of the other axes
	Steps   []int64
	Parts   []int64
	Units   int64 // of a row

	// PartOf is the index in Parts that a load of the GEMM's result reads, by the loaded value.
	PartOf map[loop.Value]int
}

// MaxParts is the largest number of columns that a unit of an epilogue may read: a GEMV computes four
// columns at once in a group of warps.
const MaxParts = 4

// fuse returns a chain as one launch: a GEMM, with or without a prologue and epilogues. It returns nil
// if the chain cannot be one launch.
func fuse(c *compile.Chain) *Fused {
	at := slices.IndexFunc(c.Kernels, func(k *loop.Kernel) bool { return k.MatMul != nil })
	if at != 0 && at != 1 {
		return nil
	}
	j := joinArgs(c)
	for i := range c.Kernels {
		if !j.independent(i, at) {
			return nil
		}
	}
	f := &Fused{GEMM: c.Kernels[at]}
	if !fusible(f.GEMM) {
		return nil
	}
	m := f.GEMM.MatMul
	if at == 1 {
		j.handOn(j.root(1, m.A.Arg))
	}
	store := nest.OnlyStore(f.GEMM)
	if at+1 < len(c.Kernels) {
		if store == nil {
			return nil
		}
		j.handOn(j.root(at, store.Access.Arg))
	}
	if j.alive {
		return nil
	}
	f.GEMM = j.renumber(at)
	f.Name = f.GEMM.Name
	if at == 1 {
		f.Prologue = j.renumber(0)
		f.Name = f.Prologue.Name + "_" + f.Name
		if !isPrologue(f.Prologue, f.GEMM) {
			return nil
		}
	}
	wanted := int64(0)
	for i := at + 1; i < len(c.Kernels); i++ {
		t, ok := epilogueOf(j.renumber(i), f.GEMM)
		if !ok {
			return nil
		}
		wanted += t.Units * int64(len(t.Parts))
		f.Epilogues = append(f.Epilogues, t)
		f.Name += "_" + t.Nest.Name
	}
	if cols, _ := f.GEMM.Cols[0].Const(); wanted > cols { // some would be computed twice
		return nil
	}
	f.Args, f.From = j.launch()
	return f
}

// fusible reports whether other kernels may run in a GEMM's launch: it has 16-bit operands and known
// columns and depth, as the GEMM kernels for few rows require.
func fusible(k *loop.Kernel) bool {
	depth, known := k.MatMul.K.Const()
	if !known || k.MatMul.Select != nil || len(k.Rows) != 1 || depth == 0 || depth%8 != 0 || !nest.HalfOperands(k) {
		return false
	}
	_, known = k.Cols[0].Const()
	return known
}

// Others returns the kernels that are fused to the GEMM.
func (f *Fused) Others() []*loop.Kernel {
	var out []*loop.Kernel
	if f.Prologue != nil {
		out = append(out, f.Prologue)
	}
	for _, t := range f.Epilogues {
		out = append(out, t.Nest)
	}
	return out
}
