package interp

import (
	"math"

	"pwc/ir/dtype"
)

// each visits the indices of a shape in row-major order. It reuses idx.
func (n *node) each(shape []int64, visit func(i int, idx []int64)) {
	total := 1
	for _, d := range shape {
		total *= int(d)
	}
	idx := make([]int64, len(shape))
	for i := range total {
		if n.visits(1) {
			return
		}
		visit(i, idx)
		for a := len(shape) - 1; a >= 0; a-- { // increment, last axis first
			if idx[a]++; idx[a] < shape[a] {
				break
			}
			idx[a] = 0
		}
	}
}

// offset returns the element at index idx in a tensor of the given shape, aligned with idx at the
// right. Axes of size 1 broadcast.
func offset(shape, idx []int64) int {
	off := int64(0)
	for a, d := range shape {
		off *= d
		if d != 1 {
			off += idx[len(idx)-len(shape)+a]
		}
	}
	return int(off)
}

// setFloat rounds v to the dtype of a float tensor, unless the tensor is unrounded.
func (t *Tensor) setFloat(i int, v float64) {
	if !t.unrounded {
		v = t.Type.Round(v)
	}
	t.floats[i] = v
}

// setInt wraps v to the dtype of an integer or bool tensor.
func (t *Tensor) setInt(i int, v int64) { t.ints[i] = t.Type.Wrap(v) }

// add adds element j of s, which has the same dtype, to element i.
func (t *Tensor) add(i int, s *Tensor, j int) {
	if isFloat(t.Type) {
		t.setFloat(i, t.floats[i]+s.floats[j])
	} else {
		t.setInt(i, t.ints[i]+s.ints[j])
	}
}

// unaryRule is the rule of an op with one operand: f for floats, g for integers. A nil function
// means that the op does not take that kind.
func unaryRule(f func(float64) float64, g func(int64) int64) rule {
	return func(n *node) error {
		x, out := n.args[0], n.out[0]
		for i, v := range x.floats {
			if n.visits(1) {
				break
			}
			out.setFloat(i, f(v))
		}
		for i, v := range x.ints {
			if n.visits(1) {
				break
			}
			out.setInt(i, g(v))
		}
		return nil
	}
}

// binaryRule is the rule of an op with two operands that broadcast.
func binaryRule(f func(a, b float64) float64, g func(a, b int64) int64) rule {
	return func(n *node) error {
		a, b, out := n.args[0], n.args[1], n.out[0]
		n.each(out.Shape, func(i int, idx []int64) {
			j, k := offset(a.Shape, idx), offset(b.Shape, idx)
			if isFloat(out.Type) {
				out.setFloat(i, f(a.floats[j], b.floats[k]))
			} else {
				out.setInt(i, g(a.ints[j], b.ints[k]))
			}
		})
		return nil
	}
}

func absInt(x int64) int64 {
	if x < 0 {
		return -x
	}
	return x
}

// signFloat returns +0 for either zero.
func signFloat(x float64) float64 {
	switch {
	case x != x:
		return x
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return 0
}

func signInt(x int64) int64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return 0
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// gelu is x*(1+erf(x/sqrt 2))/2. 1+erf(z) is computed as erfc(-z), which has no cancellation for
// negative x.
func gelu(x float64) float64 { return x * math.Erfc(-x/math.Sqrt2) / 2 }

// geluTanh is x*(1+tanh(u))/2. (1+tanh(u))/2 is computed as sigmoid(2u), which has no
// cancellation for negative x.
func geluTanh(x float64) float64 {
	return x * sigmoid(2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))
}

// divInt truncates toward zero; x/0 is 0, and the smallest integer over -1
// wraps to itself.
func divInt(a, b int64) int64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// remInt has the sign of a; x rem 0 is 0.
func remInt(a, b int64) int64 {
	if b == 0 {
		return 0
	}
	return a % b
}

func notRule(n *node) error {
	x, out := n.args[0], n.out[0]
	for i, v := range x.ints {
		if n.visits(1) {
			break
		}
		if x.Type == dtype.Bool {
			out.ints[i] = 1 - v
		} else {
			out.setInt(i, ^v)
		}
	}
	return nil
}

func compareRule(n *node) error {
	a, b, out := n.args[0], n.args[1], n.out[0]
	dir, _ := n.Attr("dir")
	n.each(out.Shape, func(i int, idx []int64) {
		j, k := offset(a.Shape, idx), offset(b.Shape, idx)
		var holds bool
		if isFloat(a.Type) {
			holds = relation(dir.Str, a.floats[j], b.floats[k])
		} else {
			holds = relation(dir.Str, a.ints[j], b.ints[k])
		}
		if holds {
			out.ints[i] = 1
		}
	})
	return nil
}

// relation is the comparison of IEEE 754: for a NaN only ne is true.
func relation[T int64 | float64](dir string, a, b T) bool {
	switch dir {
	case "eq":
		return a == b
	case "ne":
		return a != b
	case "lt":
		return a < b
	case "le":
		return a <= b
	case "gt":
		return a > b
	}
	return a >= b // ge
}

func whereRule(n *node) error {
	cond, a, b, out := n.args[0], n.args[1], n.args[2], n.out[0]
	n.each(out.Shape, func(i int, idx []int64) {
		pick := b
		if cond.ints[offset(cond.Shape, idx)] != 0 {
			pick = a
		}
		j := offset(pick.Shape, idx)
		if isFloat(out.Type) {
			out.setFloat(i, pick.floats[j]) // a literal is not yet rounded
		} else {
			out.ints[i] = pick.ints[j]
		}
	})
	return nil
}

func clampRule(n *node) error {
	x, lo, hi, out := n.args[0], n.args[1], n.args[2], n.out[0]
	n.each(out.Shape, func(i int, idx []int64) {
		j, k, l := offset(x.Shape, idx), offset(lo.Shape, idx), offset(hi.Shape, idx)
		if isFloat(out.Type) {
			out.setFloat(i, min(max(x.floats[j], lo.floats[k]), hi.floats[l]))
		} else {
			out.ints[i] = min(max(x.ints[j], lo.ints[k]), hi.ints[l])
		}
	})
	return nil
}

func castRule(n *node) error {
	x, out := n.args[0], n.out[0]
	for i, v := range x.floats {
		if n.visits(1) {
			break
		}
		out.Set(i, v)
	}
	for i, v := range x.ints {
		if n.visits(1) {
			break
		}
		out.SetInt(i, v)
	}
	return nil
}
