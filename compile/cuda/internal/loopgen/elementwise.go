package loopgen

import (
	"fmt"
	"strings"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/ir/dim"
)

// elementThreads is the size of a block of a kernel whose threads are independent: blocks of this size
// can fill any multiprocessor with warps, and leave each thread enough registers.
const elementThreads = 256

// elementwise writes a kernel that spreads all columns of all rows over threads.
func (e *writer) elementwise() {
	e.Threads = elementThreads
	f := e.spread()
	e.Grid[0] = f.total.CeilDiv(elementThreads)
	e.Wait()
	e.visitElements(f, "blockIdx.x")
}

// spread is how the columns of a nest's rows are spread over threads.
type spread struct {
	ctx    *cgen.Context
	perRow dim.Dim // groups of neighbouring columns in a row
	total  dim.Dim // threads
}

// spread gives a thread nest.VectorWidth neighbouring columns of a row.
func (e *writer) spread() spread {
	f := spread{ctx: &cgen.Context{Width: nest.VectorWidth(e.K)}, perRow: nest.Product(e.K.Cols)}
	if w := f.ctx.Width; w > 1 {
		f.perRow, _ = f.perRow.Div(dim.Const(int64(w)))
	}
	f.total = nest.Product(e.K.Rows).Mul(f.perRow)
	return f
}

// visitElements writes the code of a thread: its row and columns, and the instructions.
func (e *writer) visitElements(f spread, block string) {
	e.Line("const %s t = (%s)%s * %d + threadIdx.x;", e.Index(), e.Index(), block, elementThreads)
	e.Line("if (t >= %s) return;", e.Dim(f.total))
	e.split("t", f.perRow, f.ctx)
	for _, p := range e.K.Phases {
		e.Row(p.Row, f.ctx)
		e.Columns(p.Body, f.ctx)
	}
}

// split writes the row and the columns of the t-th group of neighbouring
// columns, of which a row has perRow.
func (e *writer) split(t string, perRow dim.Dim, s *cgen.Context) {
	c, r := t, ""
	switch {
	case len(e.K.Rows) == 0:
	case nest.IsConst(perRow, 1):
		c, r = "0", t
	default:
		c, r = fmt.Sprintf("%s %% %s", t, e.Dim(perRow)), fmt.Sprintf("%s / %s", t, e.Dim(perRow))
	}
	e.splitRow(r, s)
	e.splitColumns(c, s)
}

// splitRow writes the indices of the row axes of row r.
func (e *writer) splitRow(r string, s *cgen.Context) {
	s.Rows = e.Axes("i", r, e.K.Rows)
}

// splitColumns writes the indices of the column axes of the c-th group of neighbouring columns, and
// the linear index of its first column.
func (e *writer) splitColumns(c string, s *cgen.Context) {
	if len(e.K.Cols) == 0 {
		s.Pos = "0"
		return
	}
	if c == "0" {
		s.Pos = "0"
	} else {
		if s.Width > 1 && strings.Contains(c, " ") {
			c = "(" + c + ")"
		}
		if s.Width > 1 {
			c = fmt.Sprintf("%s * %d", c, s.Width)
		}
		e.Line("const %s c = %s;", e.Index(), c)
		s.Pos = "c"
	}
	if len(e.K.Cols) == 1 {
		s.Cols = []string{s.Pos}
		return
	}
	s.Cols = e.Axes("c", s.Pos, e.K.Cols)
}
