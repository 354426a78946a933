package pt2

import (
	"context"

	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// fusedAttention makes attention of the IR, which keeps no matrix of scores, where queries see all
// keys, or where the call is causal: by its argument, or by a mask that depends on no input. It
// reports false where the call is anything else, and notes why.
func (c *call) fusedAttention(q, k, v ir.Value, scale float64) (ir.Value, bool) {
	why := c.unfused(q, k, v)
	causal := false
	if why == "" {
		causal, why = c.sees(q, k)
	}
	if why != "" {
		c.attentions.Plain++
		if c.attentions.Why == "" {
			c.attentions.Why = why
		}
		return ir.NoValue, false
	}
	c.attentions.Fused++
	rank := c.rank(q)
	swap := lead(rank) // heads and positions
	swap[rank-2], swap[rank-3] = swap[rank-3], swap[rank-2]
	r := c.ops("attention", []ir.Value{c.transpose(q, swap...), c.transpose(k, swap...), c.transpose(v, swap...)},
		ir.FloatAttr("scale", scale), ir.BoolAttr("causal", causal))
	return c.transpose(r[0], swap...), true
}

// unfused returns why the operands are not those of attention of the IR; empty: they are.
func (c *call) unfused(q, k, v ir.Value) string {
	rank := c.rank(q)
	if rank < 4 || c.rank(k) != rank || c.rank(v) != rank {
		return "it has no axis of heads"
	}
	s, keys, values := c.shape(q), c.shape(k), c.shape(v)
	heads, ok1 := s[rank-3].Const()
	shared, ok2 := keys[rank-3].Const()
	width, ok3 := s[rank-1].Const()
	switch {
	case !ok1 || !ok2 || !ok3 || shared < 1 || heads%shared != 0 || width > ir.MaxHead:
		return "the number or the size of its heads is dynamic or too large"
	case !sameShape(keys, values) || !s[rank-1].Equal(keys[rank-1]) || !sameShape(s[:rank-3], keys[:rank-3]):
		return "keys and values have other shapes than queries"
	case !castable(c.dtype(q)) || c.dtype(k) != c.dtype(q) || c.dtype(v) != c.dtype(q):
		return "its operands have several dtypes"
	}
	return ""
}

// sees reports whether a query sees the keys up to its own position, or all; why says that it is
// neither.
func (c *call) sees(q, k ir.Value) (causal bool, why string) {
	mask := c.maskName()
	causal = c.bool("is_causal", false)
	if c.has(mask) {
		all, lower := c.maskSees(c.tensor(mask))
		if causal || !all && !lower {
			return false, "its mask is not causal, or not known at the import"
		}
		causal = !all
	}
	at := c.rank(q) - 2
	if causal && !c.shape(q)[at].Equal(c.shape(k)[at]) {
		return false, "there are other numbers of queries and keys"
	}
	return causal, ""
}

// maskName is what the op calls its mask.
func (c *call) maskName() string {
	if c.has("attn_mask") {
		return "attn_mask"
	}
	return "attn_bias"
}

// maxMask is the most elements of a mask that is evaluated.
const maxMask = 1 << 22

// maskSees reports whether a mask depends on no input and hides nothing, or exactly the keys after
// each query: a matrix of bools, or of zeros and what takes a score to nothing.
func (c *call) maskSees(mask ir.Value) (all, lower bool) {
	f := c.fb.Func()
	for { // a mask for each sequence and head is one, repeated
		n := f.Def(mask)
		if n == nil || n.Op.ID != ir.OpBroadcastTo || c.rank(n.Args[0]) < 2 {
			break
		}
		mask = n.Args[0]
	}
	t := constantValue(f, mask)
	if t == nil || len(t.Shape) < 2 {
		return false, false
	}
	rows, cols := t.Shape[len(t.Shape)-2], t.Shape[len(t.Shape)-1]
	all, lower = true, rows > 1 && rows == cols
	hidden := -dtype.F16.MaxFinite() / 2 // of additive masks: finite ones are the smallest number of a dtype
	for i := range t.Len() {
		x := t.At(i)
		open, closed := x == 0, x <= hidden
		if t.Type == dtype.Bool {
			open, closed = x != 0, x == 0
		}
		before := rows > 0 && int64(i)%cols <= int64(i)/cols%rows
		all = all && open
		lower = lower && (before && open || !before && closed)
	}
	return all, lower
}

// constantValue computes a value that depends on no input, weight or state; nil for another
// one, and for one of which a step has dynamic or many elements.
func constantValue(f *ir.Func, v ir.Value) *interp.Tensor {
	b := ir.NewBuilder("mask")
	fb := b.Func("mask")
	made := map[ir.Value]ir.Value{}
	var take func(v ir.Value) bool
	take = func(v ir.Value) bool {
		if _, ok := made[v]; ok {
			return true
		}
		info := f.Values[v]
		if info.Kind == ir.LiteralValue {
			made[v] = fb.Literal(info.Literal)
			return true
		}
		n := f.Def(v)
		count, ok := info.Type.Elements().Const()
		if n == nil || info.Kind != ir.ResultValue || n.Extern != nil || n.Op.Effects&^ir.Alias != 0 || !ok || count > maxMask {
			return false
		}
		args := make([]ir.Value, len(n.Args))
		for i, a := range n.Args {
			if !take(a) {
				return false
			}
			args[i] = made[a]
		}
		results := fb.Op(n.Op.Name, args, n.Attrs...)
		for i, r := range n.Results {
			made[r] = results[i]
		}
		return true
	}
	if !take(v) {
		return nil
	}
	fb.Return(made[v])
	m, err := b.Build()
	if err != nil {
		return nil
	}
	out, err := interp.Run(context.Background(), m, m.Func("mask"), &interp.Env{}, nil)
	if err != nil {
		return nil
	}
	return out[0]
}
