package compile

import (
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// noop drops nodes whose result equals one of their operands bit for bit (a signaling NaN may
// stay one), and pairs of casts that give back the operand. It joins consecutive reshapes, and
// consecutive transposes.
//
// A layout op is also a copy. So it stays if a node of the function writes its operand's
// memory, or if its result is returned and other pieces may write that memory. Op copy is
// dropped if the function makes the destination, does not return it and writes it nowhere else,
// and if no node writes the source.
func noop(m *ir.Module, fn *ir.Func) (*ir.Func, error) {
	written, returned := writtenStorages(fn), returnedStorages(fn)
	return ir.RewriteUnverified(m, fn, func(rw *ir.Rewriter, _ int, n *ir.Node) {
		if n.Op.ID == ir.OpCopy && readOnly(fn, n, written, returned) {
			rw.Replace(n.Versions[0].Value, rw.Map(n.Args[1]))
			return
		}
		if len(n.Results) == 1 && len(n.Versions) == 0 && n.Op.Class != ir.Call {
			r := n.Results[0]
			free := func(v ir.Value) bool { return !returned[r] || !shared(rw.Func(), rw.Func().Base(v)) }
			if v := same(fn, n); v != ir.NoValue && fn.Type(v).Equal(fn.Type(r)) && written[fn.Base(v)] == 0 && free(rw.Map(v)) {
				rw.Replace(r, rw.Map(v))
				return
			}
			if v := joined(rw, n); v != ir.NoValue && free(v) {
				rw.Replace(r, v)
				return
			}
		}
		rw.Keep(n)
	})
}

// returnedStorages returns the bases of the values that the function returns.
func returnedStorages(fn *ir.Func) map[ir.Value]bool {
	r := make(map[ir.Value]bool)
	for _, v := range fn.Returns {
		r[fn.Base(v)] = true
	}
	return r
}

// shared reports whether a storage is one that other pieces may write.
func shared(fn *ir.Func, base ir.Value) bool {
	switch info := &fn.Values[base]; info.Kind {
	case ir.ParamValue, ir.StateValue:
		return true
	case ir.ResultValue:
		return fn.Nodes[info.Node].Writable()
	}
	return false
}

// writtenStorages returns how often nodes write each base.
func writtenStorages(fn *ir.Func) map[ir.Value]int {
	w := make(map[ir.Value]int)
	for _, n := range fn.Nodes {
		for _, v := range n.Versions {
			w[fn.Base(v.Value)]++
		}
	}
	return w
}

// readOnly reports whether reads of a copy's destination may read its source: the function
// makes the destination, does not return it, and only the copy writes it; nothing writes the
// source.
func readOnly(fn *ir.Func, n *ir.Node, written map[ir.Value]int, returned map[ir.Value]bool) bool {
	dst, src := fn.Base(n.Args[0]), fn.Base(n.Args[1])
	return fn.Values[dst].Kind == ir.ResultValue && written[dst] == 1 && !returned[dst] && written[src] == 0
}

// same returns the operand that the node's result equals, or, for two casts in a row, the first
// one's operand; or NoValue. The types must be equal too, which the caller checks.
func same(fn *ir.Func, n *ir.Node) ir.Value {
	x := ir.NoValue
	if len(n.Args) > 0 {
		x = n.Args[0]
	}
	lit := func(i int, want float64) bool { // is operand i that literal?
		if i >= len(n.Args) {
			return false
		}
		info := &fn.Values[n.Args[i]]
		return info.Kind == ir.LiteralValue && info.Literal.Float64() == want && !math.Signbit(info.Literal.Float64())
	}
	float := func() bool { return fn.Type(n.Results[0]).DType.Float() }
	switch n.Op.ID {
	case ir.OpReshape, ir.OpBroadcastTo, ir.OpCast:
		if n.Op.ID == ir.OpCast {
			// bf16 → f32 → bf16 is exact.
			if d := fn.Def(x); d != nil && d.Op.ID == ir.OpCast && widens(fn.Type(d.Args[0]).DType, fn.Type(x).DType) && fn.Type(d.Args[0]).Equal(fn.Type(n.Results[0])) {
				return d.Args[0]
			}
		}
		return x
	case ir.OpTranspose:
		for i, p := range n.Ints("perm") {
			if int64(i) != p {
				return ir.NoValue
			}
		}
		return x
	case ir.OpSlice:
		start, _ := n.Attr("start")
		step, _ := n.Attr("step")
		if isZero(start.Dim) && isOne(step.Dim) {
			return x // of the same extent, or the types differ
		}
	case ir.OpSplit, ir.OpConcat:
		if len(n.Args) == 1 {
			return x
		}
	case ir.OpPad:
		low, _ := n.Attr("low")
		high, _ := n.Attr("high")
		for _, d := range append(append([]dim.Dim{}, low.Dims...), high.Dims...) {
			if !isZero(d) {
				return ir.NoValue
			}
		}
		return x
	case ir.OpAdd, ir.OpOr, ir.OpXor:
		// x + 0 is not x for floats: -0 + 0 is +0.
		if !float() && lit(1, 0) {
			return x
		}
		if !float() && lit(0, 0) {
			return n.Args[1]
		}
	case ir.OpSub:
		if lit(1, 0) {
			return x
		}
	case ir.OpMul:
		if lit(1, 1) {
			return x
		}
		if lit(0, 1) {
			return n.Args[1]
		}
	case ir.OpDiv:
		if lit(1, 1) {
			return x
		}
	case ir.OpWhere:
		if n.Args[1] == n.Args[2] && fn.Values[n.Args[1]].Kind != ir.LiteralValue {
			return n.Args[1]
		}
	case ir.OpMaximum, ir.OpMinimum, ir.OpAnd:
		if x == n.Args[1] && fn.Values[x].Kind != ir.LiteralValue {
			return x
		}
	}
	return ir.NoValue
}

// widens reports whether every number of a is one of b. It returns false for casts of integers to
// f16 and bf16, although some are exact.
func widens(a, b dtype.DType) bool {
	switch {
	case a == b:
		return true
	case a.Float() && b.Float():
		return b == dtype.F32
	case a == dtype.Bool:
		return b.Int() || b.Float()
	case a.Int() && b.Int():
		return b.Bits() > a.Bits() && (b.Signed() || !a.Signed())
	case a.Int() && b == dtype.F32:
		return a.Bits() <= 16
	}
	return false
}

// joined returns the node applied to its operand's operand, where both are
// reshapes or both transposes.
func joined(rw *ir.Rewriter, n *ir.Node) ir.Value {
	if n.Op.ID != ir.OpReshape && n.Op.ID != ir.OpTranspose {
		return ir.NoValue
	}
	f := rw.Func() // as rewritten so far, so that three and more in a row become one
	d := f.Def(rw.Map(n.Args[0]))
	if d == nil || d.Op != n.Op {
		return ir.NoValue
	}
	x := d.Args[0]
	if info := &f.Values[f.Base(x)]; rw.Latest(x) != x || shared(f, f.Base(x)) && (info.Kind != ir.ParamValue || info.Mut) {
		return ir.NoValue // the first op is a copy of memory that may be written
	}
	if n.Op.ID == ir.OpReshape {
		return rw.Op1("reshape", []ir.Value{x}, n.Attrs...)
	}
	inner, outer := d.Ints("perm"), n.Ints("perm")
	perm := make([]int64, len(outer))
	identity := true
	for i, p := range outer {
		perm[i] = inner[p]
		identity = identity && perm[i] == int64(i)
	}
	if identity {
		return x
	}
	return rw.Op1("transpose", []ir.Value{x}, ir.IntsAttr("perm", perm...))
}
