package ir

import (
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

func (c *inferCtx) wantIndex(t Type) bool {
	if !t.DType.Int() {
		c.errf("%s: index must have an integer dtype, is %s", c.op.Name, t.DType)
		return false
	}
	return c.wantDType(t.DType, "an integer", isAny)
}

func (c *inferCtx) wantComputable(t Type) bool {
	return c.wantDType(t.DType, "a computable dtype", isAny)
}

func inferEmbedding(c *inferCtx) []Type {
	table, idx := c.args[0], c.args[1]
	if table.Rank() < 1 {
		return c.fail("embedding: the table needs at least one axis, is %s", table)
	}
	if !c.wantIndex(idx) || !c.wantComputable(table) {
		return nil
	}
	return []Type{{table.DType, append(append([]dim.Dim{}, idx.Shape...), table.Shape[1:]...)}}
}

func inferGather(c *inferCtx) []Type {
	x, idx := c.args[0], c.args[1]
	a, ok := c.axis("axis", x.Rank())
	if !ok || !c.wantIndex(idx) || !c.wantComputable(x) {
		return nil
	}
	s := append([]dim.Dim{}, x.Shape[:a]...)
	s = append(append(s, idx.Shape...), x.Shape[a+1:]...)
	return []Type{{x.DType, s}}
}

func inferScatter(c *inferCtx) []Type {
	dst, idx, src := c.args[0], c.args[1], c.args[2]
	a, ok := c.axis("axis", dst.Rank())
	if !ok || !c.wantIndex(idx) || !c.wantComputable(dst) {
		return nil
	}
	if idx.Rank() != 1 {
		return c.fail("scatter: index must be a vector, is %s", idx)
	}
	if c.attr("add").Bool && dst.DType == dtype.Bool {
		return c.fail("scatter: bools cannot be added")
	}
	want := Type{dst.DType, append([]dim.Dim{}, dst.Shape...)}
	want.Shape[a] = idx.Shape[0]
	if !src.Equal(want) {
		return c.fail("scatter: src must be %s, is %s", want, src)
	}
	return nil
}

func inferCopy(c *inferCtx) []Type {
	if dst, src := c.args[0], c.args[1]; !dst.Equal(src) {
		return c.fail("copy: dst is %s, src is %s", dst, src)
	}
	c.wantComputable(c.args[0])
	return nil
}

func inferReshape(c *inferCtx) []Type {
	s, ok := c.shape("shape")
	if !ok {
		return nil
	}
	t := Type{c.args[0].DType, s}
	if n, m := c.args[0].Elements(), t.Elements(); !n.Equal(m) {
		return c.fail("reshape: %s has %s elements, %s has %s", c.args[0], n, t, m)
	}
	return []Type{t}
}

func inferTranspose(c *inferCtx) []Type {
	x := c.args[0]
	perm := c.attr("perm").Dims
	if len(perm) != x.Rank() {
		return c.fail("transpose: perm has %d entries for a tensor of rank %d", len(perm), x.Rank())
	}
	seen := make([]bool, x.Rank())
	s := make([]dim.Dim, x.Rank())
	for i, p := range perm {
		v, ok := p.Const()
		if !ok || v < 0 || v >= int64(x.Rank()) || seen[v] {
			return c.fail("transpose: perm is not a permutation of 0…%d", x.Rank()-1)
		}
		seen[v], s[i] = true, x.Shape[v]
	}
	return []Type{{x.DType, s}}
}

func inferBroadcastTo(c *inferCtx) []Type {
	x := c.args[0]
	s, ok := c.shape("shape")
	if !ok {
		return nil
	}
	if len(s) < x.Rank() {
		return c.fail("broadcast_to: rank %d cannot shrink to %d", x.Rank(), len(s))
	}
	for i, d := range x.Shape {
		if e := s[len(s)-x.Rank()+i]; !d.Equal(e) && !isOne(d) {
			return c.fail("broadcast_to: extent %s cannot become %s", d, e)
		}
	}
	return []Type{{x.DType, s}}
}

func inferSlice(c *inferCtx) []Type {
	x := c.args[0]
	a, ok := c.axis("axis", x.Rank())
	if !ok {
		return nil
	}
	start, end := c.attr("start").Dim, c.attr("end").Dim
	step, isConst := c.attr("step").Dim.Const()
	if !isConst || step < 1 {
		return c.fail("slice: step must be a constant of at least 1, is %s", c.attr("step").Dim)
	}
	switch {
	case !c.atLeast(start, 0):
		return c.fail("slice: start %s is not known to be at least 0", start)
	case !c.atLeast(end.Sub(start), 0):
		return c.fail("slice: end %s is not known to be at least start %s", end, start)
	case !c.atLeast(x.Shape[a].Sub(end), 0):
		return c.fail("slice: end %s is not known to be at most the extent %s", end, x.Shape[a])
	}
	s := append([]dim.Dim{}, x.Shape...)
	s[a] = end.Sub(start).Add(dim.Const(step - 1)).FloorDiv(step)
	return []Type{{x.DType, s}}
}

func inferSplit(c *inferCtx) []Type {
	x := c.args[0]
	a, ok := c.axis("axis", x.Rank())
	if !ok {
		return nil
	}
	sizes, ok := c.shape("sizes")
	if !ok {
		return nil
	}
	if len(sizes) == 0 {
		return c.fail("split: sizes is empty")
	}
	var total dim.Dim
	out := make([]Type, len(sizes))
	for i, n := range sizes {
		total = total.Add(n)
		s := append([]dim.Dim{}, x.Shape...)
		s[a] = n
		out[i] = Type{x.DType, s}
	}
	if !total.Equal(x.Shape[a]) {
		return c.fail("split: sizes sum to %s, the extent is %s", total, x.Shape[a])
	}
	return out
}

func inferConcat(c *inferCtx) []Type {
	x := c.args[0]
	a, ok := c.axis("axis", x.Rank())
	if !ok {
		return nil
	}
	s := append([]dim.Dim{}, x.Shape...)
	for _, y := range c.args[1:] {
		if y.DType != x.DType || y.Rank() != x.Rank() {
			return c.fail("concat: operands %s and %s differ in dtype or rank", x, y)
		}
		for i := range s {
			if i == a {
				s[i] = s[i].Add(y.Shape[i])
			} else if !s[i].Equal(y.Shape[i]) {
				return c.fail("concat: operands %s and %s differ in axis %d", x, y, i)
			}
		}
	}
	return []Type{{x.DType, s}}
}

func inferPad(c *inferCtx) []Type {
	x, v := c.args[0], c.args[1]
	if c.lits[1] == nil && (v.Rank() != 0 || v.DType != x.DType) {
		return c.fail("pad: value must be a literal or %s[], is %s", x.DType, v)
	}
	low, ok1 := c.shape("low")
	high, ok2 := c.shape("high")
	if !ok1 || !ok2 {
		return nil
	}
	if len(low) != x.Rank() || len(high) != x.Rank() {
		return c.fail("pad: low and high need one entry for each of %d axes", x.Rank())
	}
	if !c.wantComputable(x) {
		return nil
	}
	s := make([]dim.Dim, x.Rank())
	for i, d := range x.Shape {
		s[i] = low[i].Add(d).Add(high[i])
	}
	return []Type{{x.DType, s}}
}

// source returns the type that attributes shape and dtype give.
func (c *inferCtx) source() (Type, bool) {
	s, ok := c.shape("shape")
	if !ok {
		return Type{}, false
	}
	return Type{c.dtypeAttr(), s}, true
}

func inferIota(c *inferCtx) []Type {
	t, ok := c.source()
	if !ok || !c.wantDType(t.DType, "a number", isNumber) {
		return nil
	}
	if _, ok := c.axis("axis", t.Rank()); !ok {
		return nil
	}
	return []Type{t}
}

func inferFull(c *inferCtx) []Type {
	t, ok := c.source()
	if !ok || !c.wantComputable(t) {
		return nil
	}
	if c.lits[0] == nil {
		return c.fail("full: value must be a literal; broadcast_to repeats a tensor")
	}
	return []Type{t}
}

func inferEmpty(c *inferCtx) []Type {
	t, ok := c.source()
	if !ok {
		return nil
	}
	return []Type{t}
}

func inferEmptyLike(c *inferCtx) []Type { return []Type{c.args[0]} }

func inferConst(c *inferCtx) []Type {
	dt := c.dtypeAttr()
	if !c.wantDType(dt, "a computable dtype", isAny) {
		return nil
	}
	vals := c.attr("values").Floats
	if !dt.Float() {
		for _, v := range vals {
			// A float64 of 2^63 or more converts to different integers on different machines.
			if !(v >= -1<<63 && v < 1<<63) || v != float64(int64(v)) || dt.Wrap(int64(v)) != int64(v) {
				return c.fail("const: %v is not a value of %s", v, dt)
			}
		}
	}
	return []Type{{dt, []dim.Dim{dim.Const(int64(len(vals)))}}}
}
