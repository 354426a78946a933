package cuda

import (
	"fmt"
	"strings"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// flatThreads is the size of a block of a kernel whose threads do not talk to
// each other: enough warps to fill any multiprocessor, few enough registers.
const flatThreads = 256

// loopKernel makes the source of a loop nest.
func loopKernel(k *loop.Kernel, on cgen.GPU) (cgen.Source, error) {
	e := newEmitter(k, on, "")
	switch {
	case k.Serial:
		e.serial()
	case nest.Rowwise(k):
		e.rowwise()
	default:
		e.flat()
	}
	return e.Finish(nest.Describe(k)), e.Err
}

// flat spreads all columns of all rows over threads.
func (e *emitter) flat() {
	e.Threads = flatThreads
	f := e.flatPlan()
	e.Grid[0] = f.total.CeilDiv(flatThreads)
	e.Wait()
	e.visitFlat(f, "blockIdx.x")
}

// flatPlan is how the columns of a kernel's rows are spread over threads.
type flatPlan struct {
	site   *cgen.Context
	perRow dim.Dim // groups of neighbouring columns in a row
	total  dim.Dim // threads
}

func (e *emitter) flatPlan() flatPlan {
	f := flatPlan{site: &cgen.Context{Width: nest.VectorWidth(e.K)}, perRow: nest.Product(e.K.Cols)}
	if w := f.site.Width; w > 1 {
		f.perRow, _ = f.perRow.Div(dim.Const(int64(w)))
	}
	f.total = nest.Product(e.K.Rows).Mul(f.perRow)
	return f
}

// visitFlat writes what a thread of the block does.
func (e *emitter) visitFlat(f flatPlan, block string) {
	e.Line("const %s t = (%s)%s * %d + threadIdx.x;", e.Index(), e.Index(), block, flatThreads)
	e.Line("if (t >= %s) return;", e.Dim(f.total))
	e.split("t", f.perRow, f.site)
	for _, p := range e.K.Phases {
		e.Row(p.Row, f.site)
		e.Columns(p.Body, f.site)
	}
}

// split writes the row and the columns of the t-th group of neighbouring
// columns, of which a row has perRow.
func (e *emitter) split(t string, perRow dim.Dim, s *cgen.Context) {
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
func (e *emitter) splitRow(r string, s *cgen.Context) {
	s.Rows = e.Axes("i", r, e.K.Rows)
}

// splitColumns writes the indices of the column axes of the c-th group of
// neighbouring columns, and its position.
func (e *emitter) splitColumns(c string, s *cgen.Context) {
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

// serial runs the rows in order; the threads share the columns.
func (e *emitter) serial() {
	k := e.K
	e.Threads = flatThreads
	s := &cgen.Context{Width: nest.VectorWidth(e.K), StoresRow: "t == 0"}
	groups := nest.Product(k.Cols)
	if s.Width > 1 {
		groups, _ = groups.Div(dim.Const(int64(s.Width)))
	}
	e.Grid[0] = groups.CeilDiv(flatThreads)
	e.Wait()
	e.Line("const %s t = (%s)blockIdx.x * %d + threadIdx.x;", e.Index(), e.Index(), flatThreads)
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
