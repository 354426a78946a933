package ir

import (
	"slices"

	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// MaxHead is the largest head size of attention, in elements. It is FlashAttention's
// (github.com/Dao-AILab/flash-attention, README): kernels keep the sums of a head in
// registers.
const MaxHead = 256

func inferAttention(c *inferCtx) []Type {
	if !c.attentionOperands() {
		return nil
	}
	return []Type{c.args[0], c.attentionRows()}
}

func inferAttentionGrad(c *inferCtx) []Type {
	if !c.attentionOperands() {
		return nil
	}
	q, rows := c.args[0], c.attentionRows()
	ok := true
	for i, want := range []Type{q, rows, rows} {
		if got := c.args[3+i]; !got.Equal(want) {
			c.errf("attention_grad: %s must be %s, is %s", c.op.Operands[3+i].Name, want, got)
			ok = false
		}
	}
	if !ok {
		return nil
	}
	return []Type{q, c.args[1], c.args[2]}
}

// attentionRows returns the type of operands and results with one element for each query
// and head, such as lse.
func (c *inferCtx) attentionRows() Type {
	q := c.args[0]
	return Type{dtype.F32, slices.Clone(q.Shape[:q.Rank()-1])}
}

// attentionOperands checks q[..., T, H, D] and k, v[..., S, G, D].
func (c *inferCtx) attentionOperands() bool {
	q, k, v := c.args[0], c.args[1], c.args[2]
	name, r := c.op.Name, q.Rank()
	switch {
	case r < 3 || k.Rank() != r:
		c.errf("%s: wants q[..., T, H, D] and k[..., S, G, D], has %s and %s", name, q, k)
	case !k.Equal(v):
		c.errf("%s: k and v must have one type, are %s and %s", name, k, v)
	case q.DType != k.DType:
		c.errf("%s: q, k and v have dtypes %s, %s and %s; cast one", name, q.DType, k.DType, v.DType)
	case !slices.EqualFunc(q.Shape[:r-3], k.Shape[:r-3], dim.Dim.Equal):
		c.errf("%s: the axes before the last three differ: q is %s, k is %s", name, q, k)
	case c.attr("causal").Bool && !q.Shape[r-3].Equal(k.Shape[r-3]):
		c.errf("%s: causal wants as many keys as queries, has %s and %s", name, k.Shape[r-3], q.Shape[r-3])
	default:
		return c.wantDType(q.DType, "a float", isFloat) && c.attentionHeads()
	}
	return false
}

// attentionHeads checks the numbers of heads and the head size. They must be constants,
// because kernels are generated for them.
func (c *inferCtx) attentionHeads() bool {
	q, k := c.args[0], c.args[1]
	r := q.Rank()
	heads, hok := q.Shape[r-2].Const()
	groups, gok := k.Shape[r-2].Const()
	size, sok := q.Shape[r-1].Const()
	switch {
	case !hok || !gok || !sok:
		c.errf("%s: the numbers of heads and the size of a head must be constants, are %s, %s and %s", c.op.Name, q.Shape[r-2], k.Shape[r-2], q.Shape[r-1])
	case !q.Shape[r-1].Equal(k.Shape[r-1]):
		c.errf("%s: heads of q have %s elements, those of k %s", c.op.Name, q.Shape[r-1], k.Shape[r-1])
	case size < 1 || size > MaxHead:
		c.errf("%s: a head has %d elements, want 1 to %d", c.op.Name, size, MaxHead)
	case groups < 1 || heads < 1 || heads%groups != 0:
		c.errf("%s: %d heads of q are no multiple of %d heads of k", c.op.Name, heads, groups)
	default:
		return true
	}
	return false
}
