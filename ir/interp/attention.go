package interp

import "math"

// attentionView has the operands of attention for plain loops.
type attentionView struct {
	*node
	queries, keys, heads, groups, size int
	scale                              float64
	causal                             bool
}

func (n *node) attention() *attentionView {
	q, k := n.args[0], n.args[1]
	r := len(q.Shape)
	scale, _ := n.Attr("scale")
	causal, _ := n.Attr("causal")
	return &attentionView{node: n, queries: int(q.Shape[r-3]), keys: int(k.Shape[r-3]), heads: int(q.Shape[r-2]), groups: int(k.Shape[r-2]), size: int(q.Shape[r-1]),
		scale: scale.Float, causal: causal.Bool}
}

// each visits every query of every head. row is its index into lse, its elements in q start at
// row*size, and it sees the first seen keys. The elements of key j start at key(j) in k and v.
func (a *attentionView) each(visit func(row, seen int, key func(j int) int)) {
	q := a.args[0]
	a.node.each(q.Shape[:len(q.Shape)-1], func(row int, at []int64) {
		head := row % a.heads
		query := row / a.heads % a.queries
		batch := row / a.heads / max(a.queries, 1)
		seen := a.keys
		if a.causal {
			seen = query + 1
		}
		visit(row, seen, func(j int) int {
			return ((batch*a.keys+j)*a.groups + head/(a.heads/a.groups)) * a.size
		})
	})
}

// dot returns the dot product of elements of x from i on and elements of y from j on.
func (a *attentionView) dot(x *Tensor, i int, y *Tensor, j int) float64 {
	sum := 0.0
	for d := range a.size {
		sum += x.floats[i+d] * y.floats[j+d]
	}
	return sum
}

func attentionRule(n *node) error {
	a := n.attention()
	q, k, v := n.args[0], n.args[1], n.args[2]
	a.each(func(row, seen int, key func(j int) int) {
		if n.visits(2 * seen * a.size) {
			return
		}
		scores := make([]float64, seen)
		top := math.Inf(-1)
		for j := range scores {
			scores[j] = a.scale * a.dot(q, row*a.size, k, key(j))
			top = max(top, scores[j])
		}
		total, out := 0.0, make([]float64, a.size)
		for j, s := range scores {
			e := math.Exp(s - top)
			total += e
			for d := range out {
				out[d] += e * v.floats[key(j)+d]
			}
		}
		for d, x := range out {
			if seen > 0 {
				n.out[0].setFloat(row*a.size+d, x/total)
			}
		}
		n.out[1].setFloat(row, top+math.Log(total)) // -inf without keys
	})
	return nil
}

func attentionGradRule(n *node) error {
	a := n.attention()
	q, k, v, grad, lse, delta := n.args[0], n.args[1], n.args[2], n.args[3], n.args[4], n.args[5]
	dq, dk, dv := make([]float64, q.Len()), make([]float64, k.Len()), make([]float64, v.Len())
	a.each(func(row, seen int, key func(j int) int) {
		if n.visits(5 * seen * a.size) {
			return
		}
		at := row * a.size
		for j := range seen {
			from := key(j)
			p := math.Exp(a.scale*a.dot(q, at, k, from) - lse.floats[row])
			e := a.scale * p * (a.dot(grad, at, v, from) - delta.floats[row])
			for d := range a.size {
				dq[at+d] += e * k.floats[from+d]
				dk[from+d] += e * q.floats[at+d]
				dv[from+d] += p * grad.floats[at+d]
			}
		}
	})
	for i, sums := range [][]float64{dq, dk, dv} {
		for j, x := range sums {
			n.out[i].setFloat(j, x)
		}
	}
	return nil
}
