package gemm

import (
	"math"
	"slices"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/fusion"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/program"
)

// Sources returns the sources of a GEMM: the arch-specific ones, then one for each range of the number
// of rows that the symbols allow.
func Sources(k *loop.Kernel, on cgen.GPU) ([]cgen.Source, error) {
	if k.MatMul.Select != nil {
		return groupedSources(k, on)
	}
	rows := nest.RowsRange(k)
	var specific, others []cgen.Source
	least := int64(math.MinInt64)
	for _, kind := range kindsOf(k, on) {
		if kind.MaxRows() < rows.Lo {
			least = kind.MaxRows() + 1
			continue
		}
		src, err := Source(fusion.Alone(k), on, kind)
		if err != nil {
			return nil, err
		}
		src.Guard = guard(k, kind, max(least, rows.Lo), rows)
		if kind.Resources().ArchSpecific {
			specific = append(specific, src)
			continue
		}
		others = append(others, src)
		least = kind.MaxRows() + 1
		if kind.MaxRows() >= rows.Hi {
			break
		}
	}
	return slices.Concat(specific, others), nil
}

// guard returns the guard of a kind that serves from least rows on. It is zero if the kind serves all
// remaining rows. An arch-specific kind always has a guard, because another kind serves the same
// rows.
func guard(k *loop.Kernel, kind Kind, least int64, rows dim.Interval) program.Guard {
	if kind.MaxRows() >= rows.Hi && !kind.Resources().ArchSpecific {
		return program.Guard{}
	}
	return program.Guard{Expr: k.Rows[len(k.Rows)-1], Lo: least, Hi: min(kind.MaxRows(), rows.Hi)}
}

// maxMatrices is the largest size of a grid along y.
const maxMatrices = 1<<16 - 1

// groupedSources returns the sources of a grouped GEMM, one for each range of the number of rows that
// the symbols allow.
func groupedSources(k *loop.Kernel, on cgen.GPU) ([]cgen.Source, error) {
	rows := nest.Product(k.Rows)
	depth, deep := k.MatMul.K.Const()
	matrices, known := k.MatMul.Select.Extent.Const()
	iv, bounded := nest.Bounds(k, rows)
	var each Kind = SIMT{Rows: 1, Cols: 256, ThreadRows: 1, ThreadCols: 1, Most: math.MaxInt64} // a block for each row
	halves := deep && depth != 0 && depth%8 == 0 && nest.HalfOperands(k)
	if halves {
		t := tuningOf(on).gemv
		if gemv := (GEMV{Rows: 1, Depth: depth, ColumnsAtOnce: t.columnsAtOnce, Unroll: 1, SplitK: SplitWarps(depth, t.warps), Warps: t.warps, Grouped: true}); gemv.Resources().fits(on) {
			each = gemv
		}
	}
	if !halves || !known || !bounded || iv.Hi > nest.MaxIndex || matrices >= maxMatrices {
		s, err := Source(fusion.Alone(k), on, each)
		return []cgen.Source{s}, err
	}
	var out []cgen.Source
	least := iv.Lo
	add := func(kind Kind, most int64) error {
		if most < least || least > iv.Hi {
			return nil
		}
		s, err := Source(fusion.Alone(k), on, kind)
		if err != nil {
			return err
		}
		if most < iv.Hi {
			s.Guard = program.Guard{Expr: rows, Lo: least, Hi: most}
		}
		out, least = append(out, s), most+1
		return nil
	}
	// With so few rows, two of them rarely choose the same matrix.
	if err := add(each, max(2, matrices/8)); err != nil {
		return nil, err
	}
	for _, kind := range groupedKinds(matrices, on) {
		if err := add(kind, kind.Most); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// FusedSource is a source of a GEMM with the kernels that are fused to it.
type FusedSource struct {
	cgen.Source
	Fused *fusion.Fused
}

// FusedSources returns the sources of a plan's GEMM with the kernels that are fused to it, for the
// numbers of rows that kinds with fused kernels serve (see fusedKinds). It returns the arch-specific
// sources, the others, and the numbers of rows that the others do not serve.
func FusedSources(p *fusion.Plan, on cgen.GPU) (specific, others []FusedSource, rest dim.Interval, err error) {
	rest = nest.RowsRange(p.Fused.GEMM)
	rows := rest
	for _, kind := range fusedKinds(p.Fused, on) {
		if kind.MaxRows() < rest.Lo || rest.Lo > rows.Hi {
			continue
		}
		f := p.Fused
		if f.Prologue != nil && !MakesRows(kind) {
			f = p.Unprologued
		}
		src, err := Source(f, on, kind)
		if err != nil {
			return nil, nil, rest, err
		}
		src.Guard = guard(p.Fused.GEMM, kind, rest.Lo, rows)
		if kind.Resources().ArchSpecific {
			specific = append(specific, FusedSource{src, f})
			continue
		}
		others, rest.Lo = append(others, FusedSource{src, f}), kind.MaxRows()+1
	}
	return specific, others, rest, nil
}

// fusedKinds returns the kinds that compute a GEMM and the kernels that are fused to it: of those that
// kindsOf lists, the kinds before the tiled GEMMs; without epilogues, at most the GEMV of one row.
func fusedKinds(f *fusion.Fused, on cgen.GPU) []Kind {
	var out []Kind
	for _, kind := range kindsOf(f.GEMM, on) {
		if !fusesEpilogues(kind) || len(f.Epilogues) == 0 && !MakesRows(kind) {
			break
		}
		if g, ok := kind.(GEMV); ok && f.Prologue != nil {
			g.Unroll = 1 // weights are requested while the prologue computes the row
			kind = g
		}
		out = append(out, kind)
	}
	return out
}

// MakesRows reports whether kernels of the kind support a prologue: only a GEMV of one row does. For
// two rows a launch of the prologue is faster.
func MakesRows(kind Kind) bool {
	g, ok := kind.(GEMV)
	return ok && g.Rows == 1
}

// fusesEpilogues reports whether a block of the kind can have columns that are not neighbours in the
// GEMM, as fused epilogues require.
func fusesEpilogues(kind Kind) bool {
	switch kind.(type) {
	case Tiled, SIMT:
		return false
	}
	return true
}
