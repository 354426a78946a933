package pt2

import (
	"context"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
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
		v := c.maskSees(c.tensor(mask))
		if causal || !v.all && !v.lower {
			return false, "its mask is not causal, or not known at the import"
		}
		causal = !v.all
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

// A mask is evaluated at the import, at each size of a dynamic dimension that it has: at most so
// many. Each step makes at most maxMask elements, all masks of a program maxEvaluated.
const (
	maxMaskSizes = 64
	maxMask      = 1 << 22
	maxEvaluated = 1 << 26
)

// visible says which keys a mask lets queries see.
type visible struct {
	all   bool
	lower bool // exactly those up to the query's own position
}

// maskSees reports what a mask that depends on no input lets queries see: a matrix of bools, or of
// zeros and what takes a score to nothing. Neither is reported of another mask.
func (c *call) maskSees(mask ir.Value) visible {
	for { // a mask for each sequence and head is one, repeated
		n := c.fb.Func().Def(mask)
		if n == nil || n.Op.ID != ir.OpBroadcastTo || c.rank(n.Args[0]) < 2 {
			break
		}
		mask = n.Args[0]
	}
	sees, ok := c.masks[mask] // layers share masks
	if !ok && c.rank(mask) >= 2 {
		values := c.constantValues(mask)
		sees = visible{len(values) > 0, len(values) > 0}
		for _, t := range values {
			one := seesOf(t)
			sees.all, sees.lower = sees.all && one.all, sees.lower && one.lower
		}
		c.masks[mask] = sees
	}
	return sees
}

func seesOf(t *interp.Tensor) visible {
	rows, cols := t.Shape[len(t.Shape)-2], t.Shape[len(t.Shape)-1]
	sees := visible{true, rows > 1 && rows == cols}
	hidden := -dtype.F16.MaxFinite() / 2 // of additive masks: finite ones are the smallest number of a dtype
	for i := range t.Len() {
		x := t.At(i)
		open, closed := x == 0, x <= hidden
		if t.Type == dtype.Bool {
			open, closed = x != 0, x == 0
		}
		before := int64(i)%cols <= int64(i)/cols%rows
		sees.all = sees.all && open
		sees.lower = sees.lower && (before && open || !before && closed)
	}
	return sees
}

// constantValues computes a value that depends on no input, weight or state, at every size of the
// dynamic dimension that it has; nil of another value, and of one with several dimensions or
// too many elements.
func (c *call) constantValues(v ir.Value) []*interp.Tensor {
	b := ir.NewBuilder("mask")
	m := maskBuilder{from: c.fb.Func(), to: b.Func("mask"), made: map[ir.Value]ir.Value{}}
	declare := func(name string) { b.Symbol(name, c.syms.lo[name], c.syms.hi[name], c.syms.kind[name]) }
	if !m.take(v, declare) || len(m.symbols) > 1 {
		return nil
	}
	lo, hi := int64(0), int64(0)
	for _, name := range m.symbols {
		lo, hi = c.syms.lo[name], c.syms.hi[name]
	}
	if hi-lo >= maxMaskSizes {
		return nil
	}
	m.to.Return(m.made[v])
	module, err := b.Build()
	if err != nil {
		return nil
	}
	var out []*interp.Tensor
	for n := lo; n <= hi; n++ {
		if !c.affords(&m, n) {
			return nil
		}
		env := &interp.Env{Symbols: map[string]int64{}}
		for _, name := range m.symbols {
			env.Symbols[name] = n
		}
		r, err := interp.Run(context.Background(), module, module.Func("mask"), env, nil)
		if err != nil {
			return nil
		}
		out = append(out, r[0])
	}
	return out
}

// maskBuilder copies the nodes of which a value is made.
type maskBuilder struct {
	from    *ir.Func
	to      *ir.FuncBuilder
	made    map[ir.Value]ir.Value
	symbols []string  // of the values' sizes
	sizes   []dim.Dim // the values' elements
}

// affords counts the elements of all steps where dimensions have size n, and reports whether the
// program may still evaluate them.
func (c *call) affords(m *maskBuilder, n int64) bool {
	for _, d := range m.sizes {
		k, err := d.Eval(func(string) (int64, bool) { return n, true })
		if err != nil || k < 0 || k > min(maxMask, maxEvaluated-c.evaluated) {
			return false
		}
		c.evaluated += k
	}
	return true
}

// take copies a value, whose symbols it declares; false: it depends on an input, a weight or a state.
func (m *maskBuilder) take(v ir.Value, declare func(symbol string)) bool {
	if _, ok := m.made[v]; ok {
		return true
	}
	info := m.from.Values[v]
	if info.Kind == ir.LiteralValue {
		m.made[v] = m.to.Literal(info.Literal)
		return true
	}
	n := m.from.Def(v)
	if n == nil || info.Kind != ir.ResultValue || n.Extern != nil || n.Op.Effects&^ir.Alias != 0 {
		return false
	}
	args := make([]ir.Value, len(n.Args))
	for i, a := range n.Args {
		if !m.take(a, declare) {
			return false
		}
		args[i] = m.made[a]
	}
	count := info.Type.Elements()
	m.sizes = append(m.sizes, count)
	for _, d := range info.Type.Shape {
		for _, name := range d.Symbols() {
			if !slices.Contains(m.symbols, name) {
				m.symbols = append(m.symbols, name)
				declare(name)
			}
		}
	}
	for i, r := range m.to.Op(n.Op.Name, args, n.Attrs...) {
		m.made[n.Results[i]] = r
	}
	return true
}
