package padding

import (
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// held has bounds of the elements of an integer or bool value: of its padded rows, or,
// if it has no rows, of all elements. They are used to check indices, because an index out
// of range in a padded row is an error of the step (C12).
type held struct {
	dim.Interval         // bounds, both included
	below        dim.Dim // if not 0, the elements are less than it; may contain symbols
	same         bool    // padded rows equal real rows, so their indices are invalid only if those of real rows are
}

// whole returns the bounds of all values of a dtype.
func whole(dt dtype.DType) held {
	bits := dt.Bits()
	switch {
	case dt == dtype.Bool:
		return between(0, 1)
	case dt.Signed():
		return between(-1<<(bits-1), 1<<(bits-1)-1)
	}
	return between(0, 1<<bits-1)
}

func between(lo, hi int64) held { return held{Interval: dim.Interval{Lo: lo, Hi: hi}} }

// hull returns bounds of a value that is one of two. smaller and larger return bounds of the
// minimum and the maximum of two.
func hull(a, b held) held { return between(min(a.Lo, b.Lo), max(a.Hi, b.Hi)) }

func smaller(a, b held) held { return between(min(a.Lo, b.Lo), min(a.Hi, b.Hi)) }

func larger(a, b held) held { return between(max(a.Lo, b.Lo), max(a.Hi, b.Hi)) }

// arithmetic has the ops whose results [dim.Dim.Bounds] can bound; it reports overflows.
var arithmetic = map[ir.OpID]dim.Dim{
	ir.OpAdd: dim.Sym("a").Add(dim.Sym("b")),
	ir.OpSub: dim.Sym("a").Sub(dim.Sym("b")),
	ir.OpMul: dim.Sym("a").Mul(dim.Sym("b")),
	ir.OpNeg: dim.Dim{}.Sub(dim.Sym("a")),
}

func counts(dt dtype.DType) bool { return dt.Int() || dt == dtype.Bool }

// outside sets the bounds of values that no node defines: literals, parameters, weights and
// states. Padded rows of parameters hold 0, or −1 in slots. If another function computed the
// parameter, that is trusted.
func (c *checker) outside(slots []string) {
	for v := range c.f.Values {
		info := &c.f.Values[v]
		if !counts(info.Type.DType) {
			continue
		}
		h, rows := whole(info.Type.DType), c.axis(ir.Value(v)) >= 0
		switch {
		case info.Kind == ir.LiteralValue && info.Literal.IsInt:
			h = between(info.Literal.Int, info.Literal.Int)
		case info.Kind == ir.ParamValue && rows && (info.Padded || slices.Contains(slots, info.Name)):
			h = between(-1, -1)
		case info.Kind == ir.ParamValue && rows:
			h = between(0, 0)
		}
		h.same = !rows
		c.held[v] = h
	}
}

// hold sets the bounds of the results and versions of a node.
func (c *checker) hold(n *ir.Node) {
	for j, r := range n.Results {
		if t := c.f.Values[r].Type; counts(t.DType) && !c.mixed[r] {
			c.held[r] = c.fit(n, r, c.result(n, j))
		}
	}
	for _, w := range n.Versions {
		old := n.Args[w.Arg]
		if !counts(c.f.Values[old].Type.DType) || c.mixed[w.Value] {
			continue
		}
		h := whole(c.f.Values[old].Type.DType)
		switch {
		case n.Op.ID == ir.OpCopy:
			h = c.held[n.Args[1]]
		case n.Op.ID == ir.OpScatter && !adds(n): // sums have no bounds: an element may get any number of addends
			h = hull(c.held[old], c.held[n.Args[2]])
		case n.Extern != nil && n.Extern.Split:
			h = between(0, 0) // it writes zeros (C11)
		}
		c.held[w.Value] = c.fit(n, w.Value, h)
	}
}

func adds(n *ir.Node) bool {
	a, _ := n.Attr("add")
	return a.Bool
}

// fit returns h if its bounds hold for a value of n, else the bounds of the value's dtype:
// integers wrap, and h does not bound a value without rows that is computed from rows (it has
// elements of real rows) or by an extern op. It sets same, too.
func (c *checker) fit(n *ir.Node, v ir.Value, h held) held {
	all, rows := whole(c.f.Values[v].Type.DType), c.axis(v) >= 0
	same, from := true, false
	for _, a := range n.Args {
		from = from || c.axis(a) >= 0
		same = same && (c.axis(a) < 0 || c.held[a].same)
	}
	if !rows && (from || n.Extern != nil) || h.Lo < all.Lo || h.Hi > all.Hi {
		h = all
	}
	switch n.Op.ID {
	case ir.OpIota:
		same = n.Axis("axis", c.f.Values[v].Type.Rank()) != c.axis(v)
	case ir.OpSlice: // row i of a table is not row j
		same = same && from
	case ir.OpEmpty, ir.OpEmptyLike, ir.OpCall:
		same = false
	}
	h.same = !rows || same
	return h
}

// result returns bounds of result j of a node, before it wraps.
func (c *checker) result(n *ir.Node, j int) held {
	t := c.f.Values[n.Results[j]].Type
	all := whole(t.DType)
	arg := func(i int) held {
		if !counts(c.f.Values[n.Args[i]].Type.DType) {
			return all
		}
		return c.held[n.Args[i]]
	}
	switch n.Op.ID {
	case ir.OpAdd, ir.OpSub, ir.OpMul, ir.OpNeg:
		b, ok := arithmetic[n.Op.ID].Bounds(func(s string) (dim.Interval, bool) {
			if s == "a" {
				return arg(0).Interval, true
			}
			return arg(1).Interval, true
		})
		if ok {
			return held{Interval: b}
		}
	case ir.OpDiv: // truncates; no bounds for divisors that may be 0 or negative
		if a, b := arg(0), arg(1); b.Lo > 0 {
			return between(min(a.Lo/b.Lo, a.Lo/b.Hi), max(a.Hi/b.Lo, a.Hi/b.Hi))
		}
	case ir.OpRem: // has the sign of a, and |result| ≤ |a|, |result| < b
		if a, b := arg(0), arg(1); b.Lo > 0 {
			return between(max(min(a.Lo, 0), 1-b.Hi), min(max(a.Hi, 0), b.Hi-1))
		}
	case ir.OpMaximum:
		return larger(arg(0), arg(1))
	case ir.OpMinimum:
		return smaller(arg(0), arg(1))
	case ir.OpRelu:
		return larger(arg(0), between(0, 0))
	case ir.OpClamp:
		return smaller(larger(arg(0), arg(1)), arg(2))
	case ir.OpCompare:
		return c.compare(n)
	case ir.OpWhere:
		switch cond := arg(0); {
		case cond.Lo == 1:
			return arg(1)
		case cond.Hi == 0:
			return arg(2)
		}
		return hull(arg(1), arg(2))
	case ir.OpNot:
		if a := arg(0); t.DType == dtype.Bool {
			return between(1-a.Hi, 1-a.Lo)
		}
	case ir.OpAnd:
		if t.DType == dtype.Bool {
			return smaller(arg(0), arg(1))
		}
	case ir.OpOr:
		if t.DType == dtype.Bool {
			return larger(arg(0), arg(1))
		}
	case ir.OpCast:
		if from := c.f.Values[n.Args[0]].Type.DType; counts(from) && t.DType != dtype.Bool {
			return arg(0)
		}
	case ir.OpReshape, ir.OpTranspose, ir.OpBroadcastTo, ir.OpSlice, ir.OpSplit, ir.OpFull:
		return arg(0)
	case ir.OpGather, ir.OpEmbedding:
		if !c.picks(n) { // else padded rows have elements of real rows
			return arg(0)
		}
	case ir.OpConcat, ir.OpPad:
		h := arg(0)
		for i := 1; i < len(n.Args); i++ {
			h = hull(h, arg(i))
		}
		return h
	case ir.OpArgMax:
		return c.upTo(c.f.Values[n.Args[0]].Type.Shape[c.attrAxis(n)], all)
	case ir.OpTopK:
		if x := c.f.Values[n.Args[0]].Type; j == 1 {
			return c.upTo(x.Shape[x.Rank()-1], all)
		}
		return arg(0)
	case ir.OpIota:
		return c.upTo(t.Shape[n.Axis("axis", t.Rank())], all)
	case ir.OpConst:
		if values, _ := n.Attr("values"); len(values.Floats) > 0 {
			return between(int64(slices.Min(values.Floats)), int64(slices.Max(values.Floats)))
		}
	case ir.OpCall:
		if n.Extern.Split {
			return between(0, 0) // it writes zeros (C11)
		}
	}
	return all
}

// upTo returns the bounds of indices of an axis with the given extent.
func (c *checker) upTo(extent dim.Dim, all held) held {
	b, ok := extent.Bounds(c.m.Bounds)
	if !ok || b.Hi-1 > all.Hi {
		return all
	}
	return held{Interval: dim.Interval{Hi: max(b.Hi-1, 0)}, below: extent}
}

func (c *checker) compare(n *ir.Node) held {
	if !counts(c.f.Values[n.Args[0]].Type.DType) || !counts(c.f.Values[n.Args[1]].Type.DType) {
		return between(0, 1)
	}
	a, b := c.held[n.Args[0]], c.held[n.Args[1]]
	never, always := false, false
	dir, _ := n.Attr("dir")
	switch dir.Str {
	case "lt":
		never, always = a.Lo >= b.Hi, a.Hi < b.Lo
	case "le":
		never, always = a.Lo > b.Hi, a.Hi <= b.Lo
	case "gt":
		never, always = a.Hi <= b.Lo, a.Lo > b.Hi
	case "ge":
		never, always = a.Hi < b.Lo, a.Lo >= b.Hi
	case "eq":
		never, always = a.Hi < b.Lo || a.Lo > b.Hi, a.Lo == b.Hi && a.Hi == b.Lo
	case "ne":
		never, always = a.Lo == b.Hi && a.Hi == b.Lo, a.Hi < b.Lo || a.Lo > b.Hi
	}
	switch {
	case never:
		return between(0, 0)
	case always:
		return between(1, 1)
	}
	return between(0, 1)
}

// indices returns why padded rows may make n report an index out of range, or "".
// A step has at least one real row, whose index is valid only if the table's extent is at
// least 1. The rule of scatter checks its indices.
func (c *checker) indices(n *ir.Node) string {
	table, index, axis := 0, 1, 0
	switch n.Op.ID {
	case ir.OpEmbedding:
	case ir.OpGather:
		axis = c.attrAxis(n)
	case ir.OpLinearSelect:
		table, index = 1, 2
	default:
		return ""
	}
	h := c.held[n.Args[index]]
	if c.axis(n.Args[index]) < 0 || h.same || c.picks(n) {
		return ""
	}
	extent := c.f.Values[n.Args[table]].Type.Shape[axis]
	least := int64(1)
	if b, ok := extent.Bounds(c.m.Bounds); ok {
		least = max(least, b.Lo)
	}
	if h.Lo >= 0 && (h.Hi < least || h.below.Equal(extent)) {
		return ""
	}
	what := fmt.Sprintf("%d to %d", h.Lo, h.Hi)
	switch {
	case h.Lo == h.Hi:
		what = fmt.Sprint(h.Lo)
	case h.Interval == whole(c.f.Values[n.Args[index]].Type.DType).Interval:
		what = "any"
	}
	return fmt.Sprintf("%s: padded rows may have indices out of range (%s, extent %s); clamp the indices", n.Name(), what, extent)
}
