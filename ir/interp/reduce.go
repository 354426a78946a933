package interp

import (
	"math"
	"slices"
)

// reduce folds x over attribute axes, in index order. initFloat and initInt are the values of an
// empty fold. finish turns a float's total over count elements into the result, before it is rounded.
func reduce(n *node, initFloat float64, initInt int64, f func(acc, x float64) float64, g func(acc, x int64) int64, finish func(acc float64, count int64) float64) error {
	x, out := n.args[0], n.out[0]
	kept := slices.Clone(x.Shape) // the result's shape, with size 1 for each reduced axis
	count := int64(1)
	for _, a := range n.Ints("axes") {
		if a < 0 {
			a += int64(len(x.Shape))
		}
		count *= x.Shape[a]
		kept[a] = 1
	}
	floats := slices.Repeat([]float64{initFloat}, len(out.floats))
	ints := slices.Repeat([]int64{initInt}, len(out.ints))
	n.each(x.Shape, func(i int, idx []int64) {
		o := offset(kept, idx)
		if isFloat(x.Type) {
			floats[o] = f(floats[o], x.floats[i])
		} else {
			ints[o] = g(ints[o], x.ints[i])
		}
	})
	for o, v := range floats {
		out.setFloat(o, finish(v, count))
	}
	for o, v := range ints {
		out.setInt(o, v)
	}
	return nil
}

func addFloat(a, b float64) float64            { return a + b }
func addInt(a, b int64) int64                  { return a + b }
func total(acc float64, _ int64) float64       { return acc }
func average(acc float64, count int64) float64 { return acc / float64(count) }

func sumRule(n *node) error  { return reduce(n, 0, 0, addFloat, addInt, total) }
func meanRule(n *node) error { return reduce(n, 0, 0, addFloat, nil, average) } // of no elements: 0/0

func prodRule(n *node) error {
	return reduce(n, 1, 1, func(a, b float64) float64 { return a * b }, func(a, b int64) int64 { return a * b }, total)
}

func maxRule(n *node) error {
	lo, _ := n.args[0].Type.IntLimits()
	return reduce(n, math.Inf(-1), lo, func(a, b float64) float64 { return max(a, b) }, func(a, b int64) int64 { return max(a, b) }, total)
}

func minRule(n *node) error {
	_, hi := n.args[0].Type.IntLimits()
	return reduce(n, math.Inf(1), hi, func(a, b float64) float64 { return min(a, b) }, func(a, b int64) int64 { return min(a, b) }, total)
}

// lines visits the lines of a tensor along an axis, in the row-major order of the other axes. It
// passes the indices of the line's elements in at, which it reuses. A tensor without elements has
// no lines.
func (n *node) lines(shape []int64, axis int, visit func(line int, at []int)) {
	if slices.Contains(shape, 0) {
		return
	}
	outer, inner := 1, 1
	for a, d := range shape {
		switch {
		case a < axis:
			outer *= int(d)
		case a > axis:
			inner *= int(d)
		}
	}
	at := make([]int, shape[axis])
	for o := range outer {
		for i := range inner {
			for k := range at {
				at[k] = (o*len(at)+k)*inner + i
			}
			if n.visits(len(at)) {
				return
			}
			visit(o*inner+i, at)
		}
	}
}

func cumsumRule(n *node) error {
	x, out := n.args[0], n.out[0]
	n.lines(x.Shape, n.Axis("axis", len(x.Shape)), func(_ int, at []int) {
		var f float64
		var k int64
		for _, i := range at {
			if isFloat(x.Type) {
				f += x.floats[i]
				out.setFloat(i, f)
			} else {
				k += x.ints[i]
				out.setInt(i, k)
			}
		}
	})
	return nil
}

// before reports whether element i of x is larger than element j in the order
// of argmax and topk: a NaN is larger than every number and equal to a NaN.
func before(x *Tensor, i, j int) bool {
	if isFloat(x.Type) {
		a, b := x.floats[i], x.floats[j]
		return a > b || a != a && b == b
	}
	return x.ints[i] > x.ints[j]
}

func argmaxRule(n *node) error {
	x, out := n.args[0], n.out[0]
	n.lines(x.Shape, n.Axis("axis", len(x.Shape)), func(line int, at []int) {
		best := 0
		for k := range at {
			if before(x, at[k], at[best]) {
				best = k
			}
		}
		out.ints[line] = int64(best)
	})
	return nil
}

func topkRule(n *node) error {
	x, values, indices := n.args[0], n.out[0], n.out[1]
	k := int(n.Int("k"))
	n.lines(x.Shape, len(x.Shape)-1, func(line int, at []int) {
		order := make([]int, len(at)) // indices in the line, largest first
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case before(x, at[a], at[b]):
				return -1
			case before(x, at[b], at[a]):
				return 1
			}
			return 0
		})
		for i, p := range order[:k] {
			values.move(line*k+i, x, at[p])
			indices.ints[line*k+i] = int64(p)
		}
	})
	return nil
}
