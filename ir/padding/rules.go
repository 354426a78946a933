package padding

import (
	"fmt"

	"pwc/ir"
	"pwc/ir/dim"
)

// rule returns why n does not keep the invariant, or "". The operands of n keep it. The
// caller checks the types of results, so rules need not check for two row axes, or for extents
// that are no multiple of the size symbol.
func (c *checker) rule(n *ir.Node) string {
	if c.picks(n) {
		return ""
	}
	return rules[n.Op.Padding](c, n)
}

// rules has a proof for each rule of the op table. It is never written.
var rules = [...]func(*checker, *ir.Node) string{
	ir.PadKeep:         (*checker).keep,
	ir.PadReduce:       (*checker).reduce,
	ir.PadScan:         (*checker).scan,
	ir.PadAxis:         (*checker).reducesAxis,
	ir.PadLast:         (*checker).reducesLast,
	ir.PadRope:         (*checker).rope,
	ir.PadDraw:         (*checker).draw,
	ir.PadContract:     (*checker).contract,
	ir.PadLinearSelect: (*checker).linearSelect,
	ir.PadAttention:    (*checker).attention,
	ir.PadEmbedding:    (*checker).embedding,
	ir.PadGather:       (*checker).gather,
	ir.PadScatter:      (*checker).scatter,
	ir.PadReshape:      (*checker).reshape,
	ir.PadSlice:        (*checker).slice,
	ir.PadSplit:        (*checker).split,
	ir.PadConcat:       (*checker).concat,
	ir.PadPad:          (*checker).pad,
	ir.PadRanks:        (*checker).ranks,
	ir.PadCall:         (*checker).call,
}

// keep holds for pointwise ops: an extent that is not the constant 1 never broadcasts, so
// the rows of all operands lie along the result's row axis, with the same group. A copy
// has operands of the same type, so row i is copied to row i. Transpose moves the row axis,
// and broadcast_to repeats all of it. Row i of iota holds i·g…(i+1)·g−1, or indices of
// another axis, for any S. All rows of full and const are the same, and empty is memory that
// later writes fill. all_reduce and broadcast exchange single elements.
func (c *checker) keep(*ir.Node) string { return "" }

// scan: a real row sums only real rows, but the order of additions in a parallel scan
// depends on the number of rows, and so does the rounding of a float sum.
func (c *checker) scan(n *ir.Node) string { return c.along(n, "runs along") }

func (c *checker) reducesAxis(n *ir.Node) string { return c.along(n, "reduces") }

func (c *checker) reducesLast(n *ir.Node) string { return c.last(n, "reduces") }

func (c *checker) embedding(n *ir.Node) string {
	if c.axis(n.Args[0]) == 0 {
		return "the table's rows are the batch rows, so an index may read a padded one"
	}
	return ""
}

func (c *checker) gather(n *ir.Node) string {
	if a := c.axis(n.Args[0]); a >= 0 && a == c.attrAxis(n) {
		return "it indexes the rows, and an index may name a padded one"
	}
	return ""
}

func (c *checker) concat(n *ir.Node) string {
	for _, a := range n.Args {
		if len(n.Args) > 1 && c.axis(a) >= 0 && c.axis(a) == c.attrAxis(n) {
			return "it joins along the rows, so the place of later rows depends on the number of rows"
		}
	}
	return ""
}

// attrAxis returns the attribute axis as an index into operand 0's axes.
func (c *checker) attrAxis(n *ir.Node) int {
	return n.Axis("axis", c.f.Values[n.Args[0]].Type.Rank())
}

func (c *checker) onRows(verb string, axis int) string {
	return fmt.Sprintf("it %s axis %d, which holds the rows", verb, axis)
}

func (c *checker) reduce(n *ir.Node) string {
	a := c.axis(n.Args[0])
	for _, axis := range n.Ints("axes") {
		if axis < 0 {
			axis += int64(c.f.Values[n.Args[0]].Type.Rank())
		}
		if a >= 0 && int64(a) == axis {
			return c.onRows("reduces", a)
		}
	}
	return ""
}

func (c *checker) along(n *ir.Node, verb string) string {
	if a := c.axis(n.Args[0]); a >= 0 && a == c.attrAxis(n) {
		return c.onRows(verb, a)
	}
	return ""
}

func (c *checker) last(n *ir.Node, verb string) string {
	if a := c.axis(n.Args[0]); a >= 0 && a == c.f.Values[n.Args[0]].Type.Rank()-1 {
		return c.onRows(verb, a)
	}
	return ""
}

// rope pairs elements of the last axis of x by the last axis of cos and sin;
// its other axes are independent.
func (c *checker) rope(n *ir.Node) string {
	if c.axis(n.Args[0]) == 2 {
		return c.onRows("pairs elements of", 2)
	}
	if c.axis(n.Args[1]) == 1 {
		return "the number of rotated elements is the number of rows"
	}
	return ""
}

// contract holds for matmul and linear: the inner axis may not be the rows. Any
// other axis of either operand is an axis of the result.
func (c *checker) contract(n *ir.Node) string {
	if why := c.last(n, "contracts"); why != "" {
		return why
	}
	b := c.f.Values[n.Args[1]].Type
	inner := b.Rank() - 2
	if n.Op.ID == ir.OpLinear {
		inner = 1
	}
	if a := c.axis(n.Args[1]); a >= 0 && a == inner {
		return c.onRows("contracts", a)
	}
	return ""
}

// linearSelect is contract with a matrix that an index selects for each row. The rows of
// x and of the index are along the same axis of the result, as in pointwise ops. The bias
// has the weight's first two axes.
func (c *checker) linearSelect(n *ir.Node) string {
	switch a := c.axis(n.Args[1]); {
	case c.last(n, "contracts") != "":
		return c.last(n, "contracts")
	case a == 2:
		return c.onRows("contracts", a)
	case a == 0:
		return "the weight's matrices are the batch rows, so an index may read a padded one"
	}
	return ""
}

// attention is independent along the axes before the last three, and its queries are
// independent. But a query reads all keys, and a key's gradient sums over all queries. A causal
// mask only multiplies padded keys and queries by 0, which does not hide a NaN.
func (c *checker) attention(n *ir.Node) string {
	sequence := c.f.Values[n.Args[0]].Type.Rank() - 3
	switch {
	case c.axis(n.Args[1]) == sequence:
		return "every query reads its keys, which are the rows"
	case n.Op.ID == ir.OpAttentionGrad && c.axis(n.Args[0]) == sequence:
		return "gradients of keys sum over its queries, which are the rows"
	}
	return ""
}

// scatter writes slice i of src to dst at index[i].
func (c *checker) scatter(n *ir.Node) string {
	dst, idx := c.axis(n.Args[0]), c.axis(n.Args[1])
	switch {
	case dst >= 0 && dst == c.attrAxis(n):
		return "it writes rows at indices from a tensor, and a padded row may overwrite a real one"
	case idx < 0:
		// The indices are the same for every row: rows of src are written to rows of dst, whose
		// other extents match.
		return ""
	case !c.slot[n.Args[1]]:
		return "every row writes into memory that all rows share; this is safe only if the indices come from a parameter whose padded rows are promised to hold -1"
	}
	return ""
}

// reshape keeps rows if as many elements are before the row axis of the result as before
// that of the operand: then each batch row is the same range of memory.
func (c *checker) reshape(n *ir.Node) string {
	x, y := c.f.Values[n.Args[0]].Type, c.f.Values[n.Results[0]].Type
	from, to := c.rowsOf(x), c.rowsOf(y)
	if from.axis < 0 && to.axis < 0 || to.why != "" {
		return ""
	}
	if from.axis < 0 || to.axis < 0 { // the tensor is empty: else S would be in both types
		return "the rows do not stay an axis"
	}
	before := ir.Type{Shape: x.Shape[:from.axis]}.Elements()
	after := ir.Type{Shape: y.Shape[:to.axis]}.Elements()
	if !before.Equal(after) {
		return fmt.Sprintf("the axes before the rows have %s elements in %s, but %s in %s", before, x, after, y)
	}
	return ""
}

func (c *checker) slice(n *ir.Node) string {
	x := c.f.Values[n.Args[0]].Type
	r, axis := c.rowsOf(x), c.attrAxis(n)
	start, _ := n.Attr("start")
	end, _ := n.Attr("end")
	step := n.Int("step")
	if r.axis != axis {
		if c.has(start.Dim) {
			return "its start depends on the number of rows"
		}
		// Row i of the result is at a fixed index of x, even if the end is S·g.
		return ""
	}
	if !c.has(start.Dim) && !c.has(end.Dim) {
		// The verifier has proved that the end is within the extent for the smallest S, so
		// these rows are real in every run.
		return ""
	}
	g, isConst := r.group.Const()
	first, fixed := start.Dim.Const()
	switch {
	case !end.Dim.Equal(x.Shape[axis]):
		return "its end depends on the number of rows"
	case step == 1 && fixed && first == 0:
		return ""
	case isConst && fixed && first < step && g%step == 0:
		return "" // the same elements of each row
	}
	return "it does not take the same elements of each row"
}

func (c *checker) split(n *ir.Node) string {
	sizes, _ := n.Attr("sizes")
	if len(sizes.Dims) > 1 && c.anyHas(sizes.Dims) {
		return "the sizes of parts depend on the number of rows"
	}
	return ""
}

func (c *checker) pad(n *ir.Node) string {
	low, _ := n.Attr("low")
	high, _ := n.Attr("high")
	if c.anyHas(low.Dims) || c.anyHas(high.Dims) {
		return "the number of elements that it adds depends on the number of rows"
	}
	if a := c.axis(n.Args[0]); a >= 0 {
		l, _ := low.Dims[a].Const()
		h, _ := high.Dims[a].Const()
		_, lc := low.Dims[a].Const()
		_, hc := high.Dims[a].Const()
		if !lc || !hc || l != 0 || h != 0 {
			return c.onRows("pads", a)
		}
	}
	return ""
}

// ranks is for collectives that join blocks of ranks along an axis, or keep the rank's block.
// All ranks run with the same number of real rows and of padded rows.
func (c *checker) ranks(n *ir.Node) string {
	if a := c.axis(n.Args[0]); a >= 0 && a == c.attrAxis(n) {
		return c.onRows("exchanges blocks of", a)
	}
	return ""
}

// call trusts extern ops that are declared split. It trusts those declared rowwise for rows
// along the first axis, if they write no memory that rows share. Another extern op may mix
// rows, so it may neither get rows nor their number.
func (c *checker) call(n *ir.Node) string {
	if n.Extern.Split {
		return ""
	}
	if n.Extern.Rowwise {
		return c.rowwise(n)
	}
	for i, a := range n.Args {
		if c.axis(a) >= 0 {
			return fmt.Sprintf("operand %d has rows, and only an op declared split or rowwise promises to keep them apart", i)
		}
	}
	if name := c.told(n); name != "" {
		return fmt.Sprintf("attribute %s tells it the number of rows, and only an op declared split promises to keep them apart", name)
	}
	for _, r := range n.Results {
		if c.axis(r) >= 0 {
			return "it makes rows, and only an op declared split or rowwise promises to keep them apart"
		}
	}
	return ""
}

// told returns the attribute of a call that has the number of rows, or "".
func (c *checker) told(n *ir.Node) string {
	for _, a := range n.Attrs {
		if c.has(a.Dim) || c.anyHas(a.Dims) {
			return a.Name
		}
	}
	return ""
}

// rowwise holds for calls of ops that promise independent rows.
func (c *checker) rowwise(n *ir.Node) string {
	rows := false
	for i, a := range n.Args {
		axis := c.axis(a)
		if axis > 0 {
			return fmt.Sprintf("operand %d has its rows along axis %d, and an op declared rowwise promises to keep those of the first axis apart", i, axis)
		}
		rows = rows || axis == 0
	}
	if name := c.told(n); name != "" {
		return fmt.Sprintf("attribute %s tells it the number of rows, on which an op declared rowwise may depend", name)
	}
	for i, a := range n.Args {
		if rows && n.Extern.Mut[i] && c.axis(a) < 0 {
			return fmt.Sprintf("operand %d is written and has no rows, so a real row may read what a padded row writes", i)
		}
	}
	for _, r := range n.Results {
		if c.axis(r) > 0 || c.axis(r) == 0 && !rows {
			return "a result has rows, but no operand has rows along the first axis"
		}
	}
	return ""
}

// draw requires rows along the first axis with an extent other than 1: an element's random
// number depends on its row-major index, which padded rows must not change.
func (c *checker) draw(n *ir.Node) string {
	shape := c.f.Values[n.Results[0]].Type.Shape
	axis := c.axis(n.Results[0])
	for i := range max(axis, 0) {
		if !shape[i].Equal(dim.Const(1)) {
			return fmt.Sprintf("random numbers depend on the element's index, which the number of rows in axis %d changes", axis)
		}
	}
	return ""
}
