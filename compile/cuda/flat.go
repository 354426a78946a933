package cuda

import (
	"fmt"
	"strings"

	"pwc/compile/loop"
	"pwc/ir/dim"
)

// flatThreads is the size of a block of a kernel whose threads do not talk to
// each other: enough warps to fill any multiprocessor, few enough registers.
const flatThreads = 256

// maxWidth is the most neighbouring columns that a thread visits at once: two
// accesses of 16 bytes for 32-bit elements.
const maxWidth = 8

// loopKernel makes the source of a loop nest.
func loopKernel(k *loop.Kernel, on gpu) (Source, error) {
	e := newEmitter(k, on, "")
	switch {
	case k.Serial:
		e.serial()
	case rowwise(k):
		e.rowwise()
	default:
		e.flat()
	}
	return e.finish(describe(k)), e.err
}

// describe says in words what a kernel is, at the head of its source.
func describe(k *loop.Kernel) string {
	return fmt.Sprintf("%s: rows %s, columns %s", k.Name, extents(k.Rows), extents(k.Cols))
}

func extents(ds []dim.Dim) string {
	s := "["
	for i, d := range ds {
		if i > 0 {
			s += ", "
		}
		s += d.String()
	}
	return s + "]"
}

// rowwise reports whether something is done once a row, so that the threads of a
// row must be told apart from others.
func rowwise(k *loop.Kernel) bool {
	if len(k.Phases) > 1 {
		return true
	}
	for _, p := range k.Phases {
		for _, in := range p.Row {
			if in.Op == loop.Store {
				return true
			}
		}
		for _, in := range p.Body {
			if in.Op.Reduces() || in.Op == loop.CumSum {
				return true
			}
		}
	}
	return false
}

// width returns how many neighbouring columns a thread visits at once: as many
// as fill 16 bytes of the narrowest argument that is read or written along the
// columns, if every such access is then aligned whatever the sizes. Buffers are
// aligned to 64 bytes, so offsets and strides decide.
func (e *emitter) width() int {
	k := e.k
	if len(k.Cols) == 0 {
		return 1
	}
	last := len(k.Cols) - 1
	bytes, scans := 0, 0
	type check struct{ d []dim.Dim }
	var all []check
	for _, p := range k.Phases {
		for _, in := range p.Body {
			a := in.Access
			if in.Op == loop.CumSum {
				if scans++; scans > 1 {
					return 1
				}
			}
			if a == nil || a.Arg < 0 || e.perColumn(a) || !isConst(inner(a), 1) {
				continue
			}
			size := (k.Args[a.Arg].DType.Bits() + 7) / 8
			if bytes == 0 || size < bytes {
				bytes = size
			}
			d := append([]dim.Dim{a.Offset}, a.Rows...)
			d = append(d, a.Cols[:last]...)
			if a.Index != nil {
				d = append(d, a.Index.Stride)
			}
			all = append(all, check{d})
		}
	}
	if bytes == 0 {
		return 1
	}
	for v := min(16/bytes, maxWidth); v > 1; v /= 2 {
		ok := multiple(k.Cols[last], v)
		for _, c := range all {
			for _, d := range c.d {
				ok = ok && multiple(d, v)
			}
		}
		if ok {
			return v
		}
	}
	return 1
}

// multiple reports whether d is a multiple of v whatever the symbols are.
func multiple(d dim.Dim, v int) bool {
	if v == 1 || isConst(d, 0) {
		return true
	}
	_, ok := d.Div(dim.Const(int64(v)))
	return ok
}

// flat spreads all columns of all rows over threads.
func (e *emitter) flat() {
	e.threads = flatThreads
	f := e.flatPlan()
	e.grid[0] = f.total.CeilDiv(flatThreads)
	e.wait()
	e.visitFlat(f, "blockIdx.x")
}

// flatPlan is how the columns of a kernel's rows are spread over threads.
type flatPlan struct {
	site   *site
	perRow dim.Dim // groups of neighbouring columns in a row
	total  dim.Dim // threads
}

func (e *emitter) flatPlan() flatPlan {
	f := flatPlan{site: &site{width: e.width()}, perRow: product(e.k.Cols)}
	if w := f.site.width; w > 1 {
		f.perRow, _ = f.perRow.Div(dim.Const(int64(w)))
	}
	f.total = product(e.k.Rows).Mul(f.perRow)
	return f
}

// visitFlat writes what a thread of the block does.
func (e *emitter) visitFlat(f flatPlan, block string) {
	e.line("const %s t = (%s)%s * %d + threadIdx.x;", e.index(), e.index(), block, flatThreads)
	e.line("if (t >= %s) return;", e.dim(f.total))
	e.split("t", f.perRow, f.site)
	for _, p := range e.k.Phases {
		e.row(p.Row, f.site)
		e.columns(p.Body, f.site)
	}
}

// split writes the row and the columns of the t-th group of neighbouring
// columns, of which a row has perRow.
func (e *emitter) split(t string, perRow dim.Dim, s *site) {
	c, r := t, ""
	switch {
	case len(e.k.Rows) == 0:
	case isConst(perRow, 1):
		c, r = "0", t
	default:
		c, r = fmt.Sprintf("%s %% %s", t, e.dim(perRow)), fmt.Sprintf("%s / %s", t, e.dim(perRow))
	}
	e.splitRow(r, s)
	e.splitColumns(c, s)
}

// splitRow writes the indices of the row axes of row r.
func (e *emitter) splitRow(r string, s *site) {
	s.rows = e.axes("i", r, e.k.Rows)
}

// splitColumns writes the indices of the column axes of the c-th group of
// neighbouring columns, and its position.
func (e *emitter) splitColumns(c string, s *site) {
	if len(e.k.Cols) == 0 {
		s.pos = "0"
		return
	}
	if c == "0" {
		s.pos = "0"
	} else {
		if s.width > 1 && strings.Contains(c, " ") {
			c = "(" + c + ")"
		}
		if s.width > 1 {
			c = fmt.Sprintf("%s * %d", c, s.width)
		}
		e.line("const %s c = %s;", e.index(), c)
		s.pos = "c"
	}
	if len(e.k.Cols) == 1 {
		s.cols = []string{s.pos}
		return
	}
	s.cols = e.axes("c", s.pos, e.k.Cols)
}

// axes writes the indices of axes of the given extents, row-major, from a
// position among all of them.
func (e *emitter) axes(prefix, at string, extents []dim.Dim) []string {
	out := make([]string, len(extents))
	if len(extents) == 1 {
		if at != prefix+"0" && at != "0" {
			e.line("const %s %s0 = %s;", e.index(), prefix, at)
			at = prefix + "0"
		}
		out[0] = at
		return out
	}
	inside := one
	for i := len(extents) - 1; i >= 0; i-- {
		out[i] = fmt.Sprintf("%s%d", prefix, i)
		text := "(" + at + ")"
		if !isConst(inside, 1) {
			text += " / " + e.dim(inside)
		}
		if i > 0 {
			text += " % " + e.dim(extents[i])
		}
		e.line("const %s %s = %s;", e.index(), out[i], text)
		inside = inside.Mul(extents[i])
	}
	return out
}

// serial runs the rows in order; the threads share the columns.
func (e *emitter) serial() {
	k := e.k
	e.threads = flatThreads
	s := &site{width: e.width(), lead: "t == 0"}
	groups := product(k.Cols)
	if s.width > 1 {
		groups, _ = groups.Div(dim.Const(int64(s.width)))
	}
	e.grid[0] = groups.CeilDiv(flatThreads)
	e.wait()
	e.line("const %s t = (%s)blockIdx.x * %d + threadIdx.x;", e.index(), e.index(), flatThreads)
	e.line("if (t >= %s) return;", e.dim(groups))
	c := "t"
	if isConst(groups, 1) {
		c = "0"
	}
	e.splitColumns(c, s)
	e.open("for (%s row = 0; row < %s; row++)", e.index(), e.dim(product(k.Rows)))
	e.splitRow("row", s)
	for _, p := range k.Phases {
		e.row(p.Row, s)
		e.columns(p.Body, s)
	}
	e.close()
}
