package ir

import (
	"fmt"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

func (c *inferCtx) errf(format string, args ...any) {
	c.errs = append(c.errs, fmt.Sprintf(format, args...))
}

// fail reports an error and gives no types.
func (c *inferCtx) fail(format string, args ...any) []Type {
	c.errf(format, args...)
	return nil
}

func (c *inferCtx) attr(name string) Attr {
	a, _ := findAttr(c.op, c.attrs, name)
	return a
}

// axis returns the attribute name as an index into rank axes.
func (c *inferCtx) axis(name string, rank int) (int, bool) {
	v, ok := c.attr(name).Dim.Const()
	if !ok {
		c.errf("%s: %s must be an integer", c.op.Name, name)
		return 0, false
	}
	return c.normAxis(v, rank)
}

func (c *inferCtx) normAxis(v int64, rank int) (int, bool) {
	w := v
	if w < 0 {
		w += int64(rank)
	}
	if w < 0 || w >= int64(rank) {
		c.errf("%s: axis %d is outside a tensor of rank %d", c.op.Name, v, rank)
		return 0, false
	}
	return int(w), true
}

// atLeast reports whether d >= lo holds for every value of the symbols.
func (c *inferCtx) atLeast(d dim.Dim, lo int64) bool {
	iv, ok := d.Bounds(c.bounds)
	return ok && iv.Lo >= lo
}

// shape returns the extents that an attribute gives, if no extent can be negative.
func (c *inferCtx) shape(name string) ([]dim.Dim, bool) {
	dims := c.attr(name).Dims
	for _, d := range dims {
		if !c.atLeast(d, 0) {
			c.errf("%s: extent %s in %s is not known to be at least 0", c.op.Name, d, name)
			return nil, false
		}
	}
	return dims, true
}

func (c *inferCtx) wantDType(t dtype.DType, what string, ok func(dtype.DType) bool) bool {
	if !t.Computes() {
		c.errf("%s: %s is only for storage; reshape, transpose, broadcast_to, slice, split, concat, empty, empty_like and calls take it", c.op.Name, t)
		return false
	}
	if !ok(t) {
		c.errf("%s: wants %s, has %s", c.op.Name, what, t)
		return false
	}
	return true
}

func isFloat(d dtype.DType) bool   { return d.Float() }
func isNumber(d dtype.DType) bool  { return d.Float() || d.Int() }
func isIntBool(d dtype.DType) bool { return d.Int() || d == dtype.Bool }
func isAny(dtype.DType) bool       { return true }

// broadcast joins shapes aligned at the right. Only the constant 1 stretches:
// a symbolic extent that happens to be 1 in a run does not.
func (c *inferCtx) broadcast(shapes ...[]dim.Dim) ([]dim.Dim, bool) {
	rank := 0
	for _, s := range shapes {
		rank = max(rank, len(s))
	}
	out := make([]dim.Dim, rank)
	for i := range out {
		out[i] = dim.Const(1)
		for _, s := range shapes {
			j := i - (rank - len(s))
			if j < 0 {
				continue
			}
			if isOne(s[j]) || s[j].Equal(out[i]) {
				continue
			}
			if !isOne(out[i]) {
				c.errf("%s: extents %s and %s do not match", c.op.Name, out[i], s[j])
				return nil, false
			}
			out[i] = s[j]
		}
	}
	return out, true
}

func isOne(d dim.Dim) bool { v, ok := d.Const(); return ok && v == 1 }

func (c *inferCtx) sameUnary(what string, ok func(dtype.DType) bool) []Type {
	if !c.wantDType(c.args[0].DType, what, ok) {
		return nil
	}
	return []Type{c.args[0]}
}

func sameNumber(c *inferCtx) []Type  { return c.sameUnary("a number", isNumber) }
func sameFloat(c *inferCtx) []Type   { return c.sameUnary("a float", isFloat) }
func sameIntBool(c *inferCtx) []Type { return c.sameUnary("an integer or bool", isIntBool) }

// joined returns the type that all operands broadcast to. Operands with an index of at
// least from must have the same dtype, which is that of the result.
func (c *inferCtx) joined(from int, what string, ok func(dtype.DType) bool) (Type, bool) {
	dt := c.args[from].DType
	shapes := make([][]dim.Dim, len(c.args))
	for i, a := range c.args {
		shapes[i] = a.Shape
		if i >= from && a.DType != dt {
			c.errf("%s: operands have dtypes %s and %s; cast one", c.op.Name, dt, a.DType)
			return Type{}, false
		}
	}
	if !c.wantDType(dt, what, ok) {
		return Type{}, false
	}
	s, good := c.broadcast(shapes...)
	return Type{dt, s}, good
}

func (c *inferCtx) joinedTypes(what string, ok func(dtype.DType) bool) []Type {
	t, good := c.joined(0, what, ok)
	if !good {
		return nil
	}
	return []Type{t}
}

func arith(c *inferCtx) []Type        { return c.joinedTypes("a number", isNumber) }
func arithFloat(c *inferCtx) []Type   { return c.joinedTypes("a float", isFloat) }
func arithIntBool(c *inferCtx) []Type { return c.joinedTypes("an integer or bool", isIntBool) }

func inferCompare(c *inferCtx) []Type {
	t, ok := c.joined(0, "a number or bool", isAny)
	if !ok {
		return nil
	}
	return []Type{{dtype.Bool, t.Shape}}
}

func inferWhere(c *inferCtx) []Type {
	if c.args[0].DType != dtype.Bool {
		return c.fail("where: the condition must be bool, is %s", c.args[0].DType)
	}
	t, ok := c.joined(1, "any dtype", isAny)
	if !ok {
		return nil
	}
	return []Type{t}
}

func inferCast(c *inferCtx) []Type {
	dt := c.dtypeAttr()
	if !c.wantDType(c.args[0].DType, "a computable dtype", isAny) || !c.wantDType(dt, "a computable dtype", isAny) {
		return nil
	}
	return []Type{{dt, c.args[0].Shape}}
}

func inferReduce(c *inferCtx) []Type {
	return c.reduce("a number", isNumber)
}

func inferReduceFloat(c *inferCtx) []Type { return c.reduce("a float", isFloat) }

func (c *inferCtx) reduce(what string, ok func(dtype.DType) bool) []Type {
	x := c.args[0]
	if !c.wantDType(x.DType, what, ok) {
		return nil
	}
	gone := make([]bool, x.Rank())
	axes := c.attr("axes").Dims
	if len(axes) == 0 {
		return c.fail("%s: axes is empty", c.op.Name)
	}
	for _, d := range axes {
		v, isConst := d.Const()
		if !isConst {
			return c.fail("%s: axes must be integers", c.op.Name)
		}
		a, ok := c.normAxis(v, x.Rank())
		if !ok {
			return nil
		}
		if gone[a] {
			return c.fail("%s: axis %d is named twice", c.op.Name, a)
		}
		gone[a] = true
	}
	return []Type{{x.DType, dropAxes(x.Shape, gone, c.attr("keepdims").Bool)}}
}

func dropAxes(shape []dim.Dim, gone []bool, keep bool) []dim.Dim {
	out := make([]dim.Dim, 0, len(shape))
	for i, d := range shape {
		switch {
		case !gone[i]:
			out = append(out, d)
		case keep:
			out = append(out, dim.Const(1))
		}
	}
	return out
}

func inferCumsum(c *inferCtx) []Type {
	if _, ok := c.axis("axis", c.args[0].Rank()); !ok {
		return nil
	}
	return sameNumber(c)
}

func inferAxisFloat(c *inferCtx) []Type {
	if _, ok := c.axis("axis", c.args[0].Rank()); !ok {
		return nil
	}
	return sameFloat(c)
}

func inferArgmax(c *inferCtx) []Type {
	x := c.args[0]
	a, ok := c.axis("axis", x.Rank())
	if !ok || !c.wantDType(x.DType, "a number", isNumber) {
		return nil
	}
	if !c.atLeast(x.Shape[a], 1) {
		return c.fail("argmax: extent %s is not known to be at least 1", x.Shape[a])
	}
	gone := make([]bool, x.Rank())
	gone[a] = true
	return []Type{{dtype.I32, dropAxes(x.Shape, gone, c.attr("keepdims").Bool)}}
}

func inferTopk(c *inferCtx) []Type {
	x := c.args[0]
	k, ok := c.attr("k").Dim.Const()
	if x.Rank() == 0 || !ok || k < 1 {
		return c.fail("topk: wants a tensor with an axis and a constant k of at least 1")
	}
	if !c.wantDType(x.DType, "a number", isNumber) {
		return nil
	}
	last := x.Shape[x.Rank()-1]
	if !c.atLeast(last.Sub(dim.Const(k)), 0) {
		return c.fail("topk: extent %s is not known to be at least k = %d", last, k)
	}
	s := append(append([]dim.Dim{}, x.Shape[:x.Rank()-1]...), dim.Const(k))
	return []Type{{x.DType, s}, {dtype.I32, s}}
}

// normParam checks a vector operand of a norm: its extent is x's last, and its dtype
// is any float.
func (c *inferCtx) normParam(i int) bool {
	x, w := c.args[0], c.args[i]
	if x.Rank() == 0 {
		c.errf("%s: wants a tensor with at least one axis", c.op.Name)
		return false
	}
	if w.Rank() != 1 || !w.Shape[0].Equal(x.Shape[x.Rank()-1]) {
		c.errf("%s: %s must be [%s], is %s", c.op.Name, c.op.Operands[i].Name, x.Shape[x.Rank()-1], w)
		return false
	}
	return c.wantDType(w.DType, "a float", isFloat)
}

func inferRMSNorm(c *inferCtx) []Type {
	if !c.normParam(1) {
		return nil
	}
	return sameFloat(c)
}

func inferLayerNorm(c *inferCtx) []Type {
	if !c.normParam(1) || !c.normParam(2) {
		return nil
	}
	return sameFloat(c)
}

func inferRope(c *inferCtx) []Type {
	x, cos, sin := c.args[0], c.args[1], c.args[2]
	if x.Rank() != 3 {
		return c.fail("rope: x must be [N, H, D], is %s", x)
	}
	if cos.DType != dtype.F32 || cos.Rank() != 2 || !cos.Shape[0].Equal(x.Shape[0]) || !cos.Equal(sin) {
		return c.fail("rope: cos and sin must both be f32[%s, R/2], are %s and %s", x.Shape[0], cos, sin)
	}
	r := cos.Shape[1].Mul(dim.Const(2))
	if !c.atLeast(x.Shape[2].Sub(r), 0) {
		return c.fail("rope: cos and sin are for %s elements, but the last axis has %s", r, x.Shape[2])
	}
	return sameFloat(c)
}

func inferMatmul(c *inferCtx) []Type {
	a, b := c.args[0], c.args[1]
	if a.Rank() < 2 || b.Rank() < 2 {
		return c.fail("matmul: both operands need at least two axes, have %s and %s", a, b)
	}
	if a.DType != b.DType {
		return c.fail("matmul: operands have dtypes %s and %s; cast one", a.DType, b.DType)
	}
	if !c.wantDType(a.DType, "a number", isNumber) {
		return nil
	}
	k1, k2 := a.Shape[a.Rank()-1], b.Shape[b.Rank()-2]
	if !k1.Equal(k2) {
		return c.fail("matmul: inner extents %s and %s do not match", k1, k2)
	}
	lead, ok := c.broadcast(a.Shape[:a.Rank()-2], b.Shape[:b.Rank()-2])
	if !ok {
		return nil
	}
	return []Type{{a.DType, append(lead, a.Shape[a.Rank()-2], b.Shape[b.Rank()-1])}}
}

func inferLinear(c *inferCtx) []Type {
	x, w := c.args[0], c.args[1]
	if x.Rank() < 1 || w.Rank() != 2 {
		return c.fail("linear: wants x[..., K] and weight[O, K], has %s and %s", x, w)
	}
	if !c.linearOperands(w.Shape[1:]) {
		return nil
	}
	if len(c.args) == 3 && !c.linearBias(c.args[2], w.Shape[:1]) {
		return nil
	}
	return []Type{{x.DType, append(append([]dim.Dim{}, x.Shape[:x.Rank()-1]...), w.Shape[0])}}
}

// inferLinearSelect is the rule of linear, with a matrix selected for each row.
func inferLinearSelect(c *inferCtx) []Type {
	x, w, index := c.args[0], c.args[1], c.args[2]
	if x.Rank() < 1 || w.Rank() != 3 {
		return c.fail("linear_select: wants x[..., K] and weight[E, O, K], has %s and %s", x, w)
	}
	if !c.linearOperands(w.Shape[2:]) || !c.wantIndex(index) {
		return nil
	}
	if len(c.args) == 4 && !c.linearBias(c.args[3], w.Shape[:2]) {
		return nil
	}
	rows, ok := c.broadcast(x.Shape[:x.Rank()-1], index.Shape)
	if !ok {
		return nil
	}
	return []Type{{x.DType, append(rows, w.Shape[1])}}
}

// linearOperands checks the dtypes of x and the weight, and that the inner
// extent is x's last.
func (c *inferCtx) linearOperands(inner []dim.Dim) bool {
	x, w := c.args[0], c.args[1]
	if !c.wantDType(x.DType, "a float", isFloat) || !c.wantDType(w.DType, "a float", isFloat) {
		return false
	}
	if w.DType != x.DType && x.DType != dtype.F32 {
		want := "f32"
		if w.DType != dtype.F32 {
			want = w.DType.String() + " or f32"
		}
		c.errf("%s: the weight is %s, so x must be %s, is %s", c.op.Name, w.DType, want, x.DType)
		return false
	}
	if k := x.Shape[x.Rank()-1]; !k.Equal(inner[0]) {
		c.errf("%s: inner extents %s and %s do not match", c.op.Name, k, inner[0])
		return false
	}
	return true
}

// linearBias checks that a bias has the given shape, and x's dtype or the weight's.
func (c *inferCtx) linearBias(b Type, shape []dim.Dim) bool {
	want, wide := Type{c.args[1].DType, shape}, Type{c.args[0].DType, shape}
	switch {
	case b.Equal(want) || b.Equal(wide):
		return true
	case want.DType == wide.DType:
		c.errf("%s: bias must be %s, is %s", c.op.Name, want, b)
	default:
		c.errf("%s: bias must be %s or %s, is %s", c.op.Name, want, wide, b)
	}
	return false
}
