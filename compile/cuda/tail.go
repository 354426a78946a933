package cuda

import (
	"fmt"
	"slices"
	"strconv"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// tiles is how many blocks a tail takes that make so many columns each.
func (t *tail) tiles(cols int) int64 { return nest.CeilDiv(t.units, int64(cols/len(t.parts))) }

// tiles is how many blocks all tails take.
func (f *fused) tiles(cols int) (n int64) {
	for i := range f.tails {
		n += f.tails[i].tiles(cols)
	}
	return n
}

// tailColumns writes which column of the product is the block's n-th: the first
// blocks are the first tail's, and so on, and the columns that a unit needs lie
// side by side. Beyond the last unit it is the last one's.
func (e *emitter) tailColumns(f *fused, p productShape) {
	e.Open("const auto column = [&](int n)")
	first := int64(0) // the tail's first tile
	for i := range f.tails {
		t := &f.tails[i]
		n, end := len(t.parts), first+t.tiles(p.cols)
		last := i == len(f.tails)-1
		if !last {
			e.Open("if (tile < %d)", end)
		}
		at := "tile"
		if first > 0 {
			at = fmt.Sprintf("(tile - %d)", first)
		}
		if e.Wide { // min wants two of a type
			at = "(int)" + at
		}
		e.Line("const int u = min(%s * %d + n / %d, %d);", at, p.cols/n, n, t.units-1)
		at = t.column(e.unit(t))
		if n > 1 {
			at = cgen.Sum(at, fmt.Sprintf("n %% %d * %d", n, t.parts[1]-t.parts[0]))
		}
		e.Line("return %s;", cgen.Sum(at, cgen.Integer(t.parts[0])))
		if !last {
			e.Close()
		}
		first = end
	}
	e.CloseLambda()
}

// columnStep is how far apart the columns of the product are that a block's n-th and its
// (n+step)-th are, if all that are so have the same distance; else 0.
func (e *emitter) columnStep(f *fused, p productShape, step int) int64 {
	if cols, known := e.K.Cols[0].Const(); !known || len(f.tails) == 0 && cols%int64(p.cols) != 0 {
		return 0
	}
	distance := int64(step)
	for i := range f.tails {
		t := &f.tails[i]
		n, last := len(t.parts), len(t.steps)-1
		units := int64(p.cols / n) // of a block
		if last < 0 || step%n != 0 || t.units%units != 0 || last > 0 && t.extents[last]%units != 0 {
			return 0
		}
		d := int64(step/n) * t.steps[last]
		if i > 0 && d != distance {
			return 0
		}
		distance = d
	}
	return distance
}

// unit writes the indices of unit u of a tail.
func (e *emitter) unit(t *tail) []string {
	if len(t.extents) == 0 {
		return nil
	}
	own := slices.Concat(t.k.Rows, t.k.Cols)
	return e.Axes("u", "u", own[len(own)-len(t.extents):])
}

// column returns the column of the product that a unit's columns are counted
// from.
func (t *tail) column(indices []string) string {
	terms := make([]string, len(indices))
	for i, x := range indices {
		switch s := t.steps[i]; s {
		case 0:
		case 1:
			terms[i] = x
		default:
			terms[i] = fmt.Sprintf("%s * %d", x, s)
		}
	}
	return cgen.Sum(terms...)
}

// tails writes what tails do with the sums, once the product has made of them what
// it would have stored.
func (o *epilogue) tails() {
	e, k := o.e, o.e.K
	ix := e.Index()
	e.Open("const auto made = [&](%s m, %s c, const float *acc)", ix, ix)
	s := *o.s
	s.Sink = func(_ loop.Instr, x string) { e.Line("return %s;", x) }
	e.Row(k.Phases[0].Row, &s)
	e.Columns(k.Phases[0].Body, &s)
	e.CloseLambda()
	store := nest.OnlyStore(k).Access
	o.overTails(func(int) bool { return true }, func(i int, indices []string) {
		t := &o.f.tails[i]
		n, width := len(t.parts), o.tailWidth(t)
		o.sums(n * width)
		dt := e.Storage(t.k.Args[t.mid].DType)
		part := func(in loop.Instr) (string, bool) {
			if in.Access.Arg != t.mid {
				return "", false
			}
			at, _, _ := t.reaches(in.Access, store)
			return fmt.Sprintf("part%d", slices.Index(t.parts, at)), true
		}
		te, s := e.emitter(t.k), t.site(indices, width)
		wide, one := o.hooks(i, t.k, width)
		if width > 1 {
			e.Use("vec")
			for j := range t.parts {
				e.Line("vec<%s, %d> part%d;", dt, width, j)
			}
			e.Line("#pragma unroll")
			e.Open("for (int j = 0; j < %d; j++)", width)
			for j, at := range t.parts {
				e.Line("part%d[j] = made(m, %s, acc + %s);", j, cgen.Sum(t.column(indices), cgen.Integer(at), "j"), cgen.Sum(fmt.Sprintf("j * %d", n), strconv.Itoa(j)))
			}
			e.Close()
			s.Vector, s.Element = either(part, wide), one
		} else {
			for j, at := range t.parts {
				e.Line("const %s part%d = made(m, %s, acc + %d);", dt, j, cgen.Sum(t.column(indices), cgen.Integer(at)), j)
			}
			s.Element = either(part, one)
		}
		for _, ph := range t.k.Phases {
			te.Row(ph.Row, s)
			te.Columns(ph.Body, s)
		}
	})
}

// either asks the second where the first does not know.
func either(first, second func(loop.Instr) (string, bool)) func(loop.Instr) (string, bool) {
	return func(in loop.Instr) (string, bool) {
		if x, ok := first(in); ok {
			return x, true
		}
		return second(in)
	}
}

// tailSums is how many sums a thread takes at once for a tail.
const tailSums = 8

// tailWidth is how many neighbouring units of a tail a thread takes at once: those of
// its last axis, if neighbours there are neighbours in the product too, and as many as
// leave every thread some. A block with sums for more has a multiple of tailSums columns.
func (o *epilogue) tailWidth(t *tail) int {
	last := len(t.steps) - 1
	if len(t.k.Cols) == 0 || last < 0 || t.steps[last] != 1 {
		return 1
	}
	width, each := min(nest.VectorWidth(t.k), tailSums/len(t.parts)), o.p.cols/len(t.parts)
	for width > 1 && o.p.rows*each < o.p.threads*width {
		width /= 2
	}
	return width
}

// overTails writes a body for each unit of the block's tail, of those tails that
// are wanted.
func (o *epilogue) overTails(want func(i int) bool, body func(i int, indices []string)) {
	e, p := o.e, o.p
	first := int64(0) // the tail's first tile
	for i := range o.f.tails {
		t := &o.f.tails[i]
		n, end := len(t.parts), first+t.tiles(p.cols)
		if want(i) {
			width := o.tailWidth(t)
			each := p.cols / n / width // of a row of the block
			e.Line("// %s", nest.Describe(t.k))
			if len(o.f.tails) > 1 {
				e.Open("if (%d <= tile && tile < %d)", first, end)
			}
			o.over(each)
			at := "tile"
			if first > 0 {
				at = fmt.Sprintf("(tile - %d)", first)
			}
			e.Line("const int block_row = n / %d, block_col = n %% %d * %d, u = %s * %d + n %% %d * %d;", each, each, n*width, at, each*width, each, width)
			e.Line("const %s m = first_row + block_row;", e.Index())
			e.Open("if (m < rows && u < %d)", t.units)
			body(i, e.unit(t))
			e.Close()
			e.Close()
			if len(o.f.tails) > 1 {
				e.Close()
			}
		}
		first = end
	}
}

// site returns where a tail's instructions run: in row m, for width neighbouring units,
// the first of which has these indices.
func (t *tail) site(indices []string, width int) *cgen.Context {
	s := &cgen.Context{Width: width, Pos: "0"}
	if t.rows {
		s.Rows = []string{"m"}
	}
	n := len(t.k.Rows) - len(s.Rows)
	s.Rows, s.Cols = append(s.Rows, indices[:n]...), indices[n:]
	return s
}
