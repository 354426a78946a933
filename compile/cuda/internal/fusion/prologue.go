package fusion

import (
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// isPrologue reports whether a nest only computes the rows of the GEMM's first operand, with at most
// float sums, maxima and minima over a row, so that every block of the GEMM can repeat it. A nest that reads an index
// from memory is not fused: the block would wait for the index, and start its weights later than if the
// nest had its own launch.
func isPrologue(k, gemm *loop.Kernel) bool {
	m := gemm.MatMul
	for in := range nest.Instrs(gemm) {
		if in.Access != nil && in.Access.Arg == m.A.Arg {
			return false
		}
	}
	store := nest.OnlyStore(k)
	if k.TopK != nil || k.Serial || store == nil || len(k.Rows) != 1 || len(k.Cols) != 1 || !k.Rows[0].Equal(gemm.Rows[0]) || !k.Cols[0].Equal(m.K) {
		return false
	}
	for in := range nest.Instrs(k) {
		switch {
		case in.Access != nil && in.Access.Index != nil, in.Op == loop.CumSum, in.Op.Reduces() && (in.Op == loop.ArgMax || in.Op == loop.Prod || !k.Values[in.Args[0]].DType.Float()),
			in.Op == loop.Load && in.Access.Arg == m.A.Arg:
			return false
		}
	}
	a := store.Access
	return a.Arg == m.A.Arg && a.Arg != m.B.Arg && a.Offset.Equal(m.A.Offset) && a.Rows[0].Equal(m.A.Row) && a.Cols[0].Equal(m.A.Col) && nest.VectorWidth(k) == 8
}
