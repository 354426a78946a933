package gemm

import (
	"fmt"
	"slices"
	"strconv"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/fusion"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// tilesOf returns the number of tiles of cols columns that epilogues need. Each epilogue has its own tiles.
func tilesOf(epilogues []fusion.Epilogue, cols int) (n int64) {
	for i := range epilogues {
		n += nest.CeilDiv(epilogues[i].Units, int64(cols/len(epilogues[i].Parts)))
	}
	return n
}

// epilogueColumns writes the function that maps the block's n-th column to a column of the GEMM. The
// first tiles are the first epilogue's, and so on. The columns of a unit are neighbours in the block.
// After the last unit its columns are repeated.
func (w *writer) epilogueColumns() {
	epilogues := w.fused.Epilogues
	w.Open("const auto column = [&](int n)")
	first := int64(0) // the epilogue's first tile
	for i := range epilogues {
		t := &epilogues[i]
		n, end := len(t.Parts), first+tilesOf(epilogues[i:i+1], w.r.Cols)
		last := i == len(epilogues)-1
		if !last {
			w.Open("if (tile < %d)", end)
		}
		at := "tile"
		if first > 0 {
			at = fmt.Sprintf("(tile - %d)", first)
		}
		if w.Wide { // min needs two operands of the same type
			at = "(int)" + at
		}
		w.Line("const int u = min(%s * %d + n / %d, %d);", at, w.r.Cols/n, n, t.Units-1)
		at = unitColumn(t, w.unit(t))
		if n > 1 {
			at = cgen.Sum(at, fmt.Sprintf("n %% %d * %d", n, t.Parts[1]-t.Parts[0]))
		}
		w.Line("return %s;", cgen.Sum(at, cgen.Integer(t.Parts[0])))
		if !last {
			w.Close()
		}
		first = end
	}
	w.CloseLambda()
}

// unit writes the indices of unit u of an epilogue.
func (w *writer) unit(t *fusion.Epilogue) []string {
	if len(t.Extents) == 0 {
		return nil
	}
	own := slices.Concat(t.Nest.Rows, t.Nest.Cols)
	return w.Axes("u", "u", own[len(own)-len(t.Extents):])
}

// unitColumn returns the column of the GEMM from which a unit's columns are counted.
func unitColumn(t *fusion.Epilogue, indices []string) string {
	terms := make([]string, len(indices))
	for i, x := range indices {
		switch s := t.Steps[i]; s {
		case 0:
		case 1:
			terms[i] = x
		default:
			terms[i] = fmt.Sprintf("%s * %d", x, s)
		}
	}
	return cgen.Sum(terms...)
}

// fused writes the fused epilogues. They read, instead of the GEMM's stored result, gemm_output: the
// value that the GEMM's own epilogue computes from the sums.
func (o *epilogue) fused() {
	w, k := o.w, o.w.K
	ix := w.Index()
	w.Open("const auto gemm_output = [&](%s m, %s c, const float *acc)", ix, ix)
	s := *o.s
	s.Sink = func(_ loop.Instr, x string) { w.Line("return %s;", x) }
	w.Row(k.Phases[0].Row, &s)
	w.Columns(k.Phases[0].Body, &s)
	w.CloseLambda()
	o.overUnits(func(int) bool { return true }, func(i int, indices []string) {
		t := &o.w.fused.Epilogues[i]
		n, width := len(t.Parts), o.unitsAtOnce(t)
		o.sums(n * width)
		dt := w.Storage(t.Nest.Args[t.Result].DType)
		part := func(in loop.Instr) (string, bool) {
			n, ok := t.PartOf[in.Dst]
			return fmt.Sprintf("part%d", n), ok
		}
		e, s := w.Nest(t.Nest), unitContext(t, indices, width)
		vector, element := o.prefetched(i, t.Nest, width)
		if width > 1 {
			w.Use("vec")
			for j := range t.Parts {
				w.Line("vec<%s, %d> part%d;", dt, width, j)
			}
			w.Line("#pragma unroll")
			w.Open("for (int j = 0; j < %d; j++)", width)
			for j, at := range t.Parts {
				w.Line("part%d[j] = gemm_output(m, %s, acc + %s);", j, cgen.Sum(unitColumn(t, indices), cgen.Integer(at), "j"), cgen.Sum(fmt.Sprintf("j * %d", n), strconv.Itoa(j)))
			}
			w.Close()
			s.Vector, s.Element = either(part, vector), element
		} else {
			for j, at := range t.Parts {
				w.Line("const %s part%d = gemm_output(m, %s, acc + %d);", dt, j, cgen.Sum(unitColumn(t, indices), cgen.Integer(at)), j)
			}
			s.Element = either(part, element)
		}
		for _, ph := range t.Nest.Phases {
			e.Row(ph.Row, s)
			e.Columns(ph.Body, s)
		}
	})
}

// either returns a function that calls first, and second if first reports false.
func either(first, second func(loop.Instr) (string, bool)) func(loop.Instr) (string, bool) {
	return func(in loop.Instr) (string, bool) {
		if x, ok := first(in); ok {
			return x, true
		}
		return second(in)
	}
}

// unitSums is the largest number of sums that a thread reads at once for a fused epilogue.
const unitSums = 8

// unitsAtOnce returns how many neighbouring units of an epilogue a thread computes at once. It is 1
// unless units that are neighbours along the last axis read neighbouring columns of the GEMM. It is as
// small as needed to give every thread units. The result divides the block's units of a row, because
// a block that computes more than one unit at once has a multiple of unitSums columns.
func (o *epilogue) unitsAtOnce(t *fusion.Epilogue) int {
	last := len(t.Steps) - 1
	if len(t.Nest.Cols) == 0 || last < 0 || t.Steps[last] != 1 {
		return 1
	}
	width, each := min(nest.VectorWidth(t.Nest), unitSums/len(t.Parts)), o.w.r.Cols/len(t.Parts)
	for width > 1 && o.w.r.Rows*each < o.w.r.Threads*width {
		width /= 2
	}
	return width
}

// overUnits writes, for each epilogue i that want accepts, a loop over the units of the block with body.
func (o *epilogue) overUnits(want func(i int) bool, body func(i int, indices []string)) {
	w, r := o.w, o.w.r
	first := int64(0) // the epilogue's first tile
	for i := range o.w.fused.Epilogues {
		t := &o.w.fused.Epilogues[i]
		n, end := len(t.Parts), first+tilesOf(o.w.fused.Epilogues[i:i+1], r.Cols)
		if want(i) {
			width := o.unitsAtOnce(t)
			each := r.Cols / n / width // of a row of the block
			w.Line("// %s", nest.Describe(t.Nest))
			if len(o.w.fused.Epilogues) > 1 {
				w.Open("if (%d <= tile && tile < %d)", first, end)
			}
			o.over(each)
			at := "tile"
			if first > 0 {
				at = fmt.Sprintf("(tile - %d)", first)
			}
			w.Line("const int block_row = n / %d, block_col = n %% %d * %d, u = %s * %d + n %% %d * %d;", each, each, n*width, at, each*width, each, width)
			w.Line("const %s m = first_row + block_row;", w.Index())
			w.Open("if (m < rows && u < %d)", t.Units)
			body(i, w.unit(t))
			w.Close()
			w.Close()
			if len(o.w.fused.Epilogues) > 1 {
				w.Close()
			}
		}
		first = end
	}
}

// unitContext returns the emission context of an epilogue's instructions: in row m, for width
// neighbouring units, the first of which has these indices.
func unitContext(t *fusion.Epilogue, indices []string, width int) *cgen.Context {
	s := &cgen.Context{Width: width, Pos: "0"}
	if t.Rows {
		s.Rows = []string{"m"}
	}
	n := len(t.Nest.Rows) - len(s.Rows)
	s.Rows, s.Cols = append(s.Rows, indices[:n]...), indices[n:]
	return s
}
