package pt2

import (
	"context"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// fusedAttention makes the op attention of the IR, which stores no matrix of scores, if it takes the operands
// ([call.unfused]), and each query sees all keys or exactly the keys up to its own index ([call.sees]), by the argument
// is_causal or by a mask that depends on no input. fusedAttention reports false for any other call, and records the
// reason of the first one in c.attentions.
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
	swap := lead(rank) // swaps the axes of heads and of the sequence
	swap[rank-2], swap[rank-3] = swap[rank-3], swap[rank-2]
	r := c.ops("attention", []ir.Value{c.transpose(q, swap...), c.transpose(k, swap...), c.transpose(v, swap...)},
		ir.FloatAttr("scale", scale), ir.BoolAttr("causal", causal))
	return c.transpose(r[0], swap...), true
}

// unfused returns why the op attention cannot take the operands; empty if it can.
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
	case !ok1 || !ok2 || !ok3 || width > ir.MaxHead:
		return "the number or the size of its heads is dynamic, or the size is too large"
	case shared < 1 || heads%shared != 0:
		return "its queries do not have a multiple of the heads of its keys"
	case !sameShape(keys, values) || !s[rank-1].Equal(keys[rank-1]) || !sameShape(s[:rank-3], keys[:rank-3]):
		return "the shapes of queries, keys and values do not fit"
	case !castable(c.dtype(q)) || c.dtype(k) != c.dtype(q) || c.dtype(v) != c.dtype(q):
		return "its operands differ in dtype, or are not float32, float16 or bfloat16"
	}
	return ""
}

// sees reports whether each query sees exactly the keys up to its own index (causal) or all keys. If neither holds, or
// the op attention cannot express it, why is the reason.
func (c *call) sees(q, k ir.Value) (causal bool, why string) {
	mask := c.maskName()
	causal = c.bool("is_causal", false)
	if c.has(mask) {
		v := c.maskSees(c.tensor(mask))
		if causal || !v.all && !v.lower {
			return false, "its mask is not causal, or cannot be evaluated at the import"
		}
		causal = !v.all
	}
	at := c.rank(q) - 2
	if causal && !c.shape(q)[at].Equal(c.shape(k)[at]) {
		return false, "it is causal and the numbers of queries and keys differ"
	}
	return causal, ""
}

// maskName returns the name of the mask argument of the op.
func (c *call) maskName() string {
	if c.has("attn_mask") {
		return "attn_mask"
	}
	return "attn_bias"
}

// Limits of the evaluation of masks at the import: sizes of the dynamic dimension of a mask, elements of a value that
// is evaluated, and elements of all evaluated values of a program.
const (
	maxMaskSizes = 64
	maxMask      = 1 << 22
	maxEvaluated = 1 << 26
)

// visible describes the keys that a mask shows to queries. The zero value is any other mask.
type visible struct {
	all   bool
	lower bool // exactly the keys up to the query's own index
}

// maskSees evaluates a mask that depends on no input: a matrix of bools, or of numbers that are added to scores,
// where 0 shows a key and a large negative number hides it. The result is zero for any other mask.
func (c *call) maskSees(mask ir.Value) visible {
	for { // sequences and heads share one matrix, which is broadcast
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
	// Additive masks hide keys with -Inf or the lowest number of their dtype. That of f16 is the highest of them.
	hidden := -dtype.F16.MaxFinite() / 2
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

// constantValues evaluates a value that depends on no input, weight or state, at every size of its dynamic dimension.
// It returns nil for any other value, and if there are several dynamic dimensions, or too many sizes or elements.
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

// A maskBuilder copies the nodes that a value depends on to another function.
type maskBuilder struct {
	from    *ir.Func
	to      *ir.FuncBuilder
	made    map[ir.Value]ir.Value // copies by original
	symbols []string              // in the shapes of the copies
	sizes   []dim.Dim             // number of elements of each copy
}

// affords counts the elements of all values of a mask at size n of its symbols, and reports whether they are within
// the limits.
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

// take copies a value and the nodes that it depends on, and declares their symbols. It reports false if the value
// depends on an input, a weight, a state or an op with side effects.
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
