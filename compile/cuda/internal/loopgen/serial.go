package loopgen

import (
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/ir/dim"
)

// serial runs the rows in order; the threads share the columns.
func (e *writer) serial() {
	k := e.K
	e.Threads = elementThreads
	s := &cgen.Context{Width: nest.VectorWidth(e.K), StoresRow: "t == 0"}
	groups := nest.Product(k.Cols)
	if s.Width > 1 {
		groups, _ = groups.Div(dim.Const(int64(s.Width)))
	}
	e.Grid[0] = groups.CeilDiv(elementThreads)
	e.Wait()
	e.Line("const %s t = (%s)blockIdx.x * %d + threadIdx.x;", e.Index(), e.Index(), elementThreads)
	e.Line("if (t >= %s) return;", e.Dim(groups))
	c := "t"
	if nest.IsConst(groups, 1) {
		c = "0"
	}
	e.splitColumns(c, s)
	e.Open("for (%s row = 0; row < %s; row++)", e.Index(), e.Dim(nest.Product(k.Rows)))
	e.splitRow("row", s)
	for _, p := range k.Phases {
		e.Row(p.Row, s)
		e.Columns(p.Body, s)
	}
	e.Close()
}
