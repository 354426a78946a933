package pt2

import (
	"math"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// productRules are GEMMs, other products of tensors, and attention.
var productRules = map[string]opRule{
	"aten.linear": linear, "aten.matmul": func(c *call) []ir.Value { return one(c.matmul(c.tensor("self"), c.tensor("other"))) },
	"aten.mm": func(c *call) []ir.Value { return one(c.matmul(c.tensor("self"), c.tensor("mat2"))) }, "aten.bmm": func(c *call) []ir.Value { return one(c.matmul(c.tensor("self"), c.tensor("mat2"))) },
	"aten.mv": func(c *call) []ir.Value { return one(c.matmul(c.tensor("self"), c.tensor("vec"))) }, "aten.dot": func(c *call) []ir.Value { return one(c.matmul(c.tensor("self"), c.tensor("tensor"))) },
	"aten.addmm": added("mat1", "mat2"), "aten.baddbmm": added("batch1", "batch2"), "aten.addmv": added("mat", "vec"),
	"aten.addr": opmath(outerAdded), "aten.inner": inner, "aten.vdot": func(c *call) []ir.Value { return one(c.matmul(c.tensor("self"), c.tensor("other"))) },
	"aten.tensordot": tensordot, "aten.kron": kron, "aten.linalg_multi_dot": func(c *call) []ir.Value {
		list := c.tensors("tensors")
		for len(list) > 1 {
			list = append([]ir.Value{c.matmul(list[0], list[1])}, list[2:]...)
		}
		return list
	},
	"aten.outer": func(c *call) []ir.Value {
		return one(c.bin("mul", c.unsqueeze(c.tensor("self"), 1), c.unsqueeze(c.tensor("vec2"), 0)))
	},
	"aten.scaled_dot_product_attention":                     attention,
	"aten._scaled_dot_product_flash_attention_for_cpu":      attention,
	"aten._scaled_dot_product_efficient_attention":          attention,
	"aten._scaled_dot_product_flash_attention":              attention,
	"aten._scaled_dot_product_attention_math":               attention,
	"aten._scaled_dot_product_fused_attention_overrideable": attention,
	"aten._scaled_dot_product_attention_math_for_mps":       attention,
	"aten.einsum": einsum, "aten.cross": opmath(cross), "aten.linalg_cross": opmath(cross), "aten.bilinear": opmath(bilinearForm), "aten._trilinear": opmath(trilinear),
}

func linear(c *call) []ir.Value {
	args := []ir.Value{c.tensor("input"), c.tensor("weight")}
	if c.has("bias") {
		args = append(args, c.tensor("bias"))
	}
	if c.rank(args[1]) == 1 { // the weight is a vector: the result has one number for each row
		y := c.matmul(args[0], args[1])
		if len(args) == 3 {
			y = c.bin("add", y, args[2])
		}
		return one(y)
	}
	return one(c.op("linear", args))
}

// matmul is torch.matmul: a vector is a row as left operand and a column as right operand.
func (c *call) matmul(a, b ir.Value) ir.Value {
	ra, rb := c.rank(a), c.rank(b)
	if ra == 0 || rb == 0 {
		c.fail("a scalar cannot be an operand of a matrix product")
	}
	if ra == 1 {
		a = c.unsqueeze(a, 0)
	}
	if rb == 1 {
		b = c.unsqueeze(b, 1)
	}
	y := c.bin("matmul", a, b)
	if rb == 1 {
		y = c.squeeze(y, c.rank(y)-1)
	}
	if ra == 1 {
		y = c.squeeze(y, c.rank(y)-1-b2i(rb != 1))
	}
	return y
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// added is beta*self + alpha*(a @ b).
func added(a, b string) opRule {
	return func(c *call) []ir.Value {
		dt := c.out(0).DType
		y := c.scaledProduct(c.tensor(a), c.tensor(b), c.float("alpha", 1))
		return one(c.plusSelf(y, dt))
	}
}

// minShift bounds the power of two by which scaledProduct multiplies f16 operands, whose small elements lose digits.
const minShift = -8

// scaledProduct is scale * (a @ b). The IR rounds the product before the multiplication, so a product of f16 may
// overflow where the result does not; PyTorch computes both in f32. For f16 and |scale| below 1, the left operand is
// therefore multiplied by the largest power of two that is at most |scale|, but at least 2^minShift, and the product by
// the rest of the scale.
func (c *call) scaledProduct(a, b ir.Value, scale float64) ir.Value {
	if size := math.Abs(scale); c.dtype(a) == dtype.F16 && size > 0 && size < 1 {
		_, exponent := math.Frexp(size) // size is at least 2^(exponent-1)
		shift := math.Ldexp(1, max(exponent-1, minShift))
		a, scale = c.bin("mul", a, c.f(shift)), scale/shift
	}
	y := c.matmul(a, b)
	if scale == 1 {
		return y
	}
	return c.bin("mul", y, c.number(scale, c.dtype(y)))
}

// outerAdded is beta*self + alpha * the outer product of two vectors.
func outerAdded(c *call) []ir.Value {
	dt := c.out(0).DType
	y := c.bin("mul", c.unsqueeze(c.tensor("vec1"), 1), c.unsqueeze(c.tensor("vec2"), 0))
	return one(c.plusSelf(c.scaled(y, "alpha", dt), dt))
}

// plusSelf is beta*self + y. If beta is 0, PyTorch does not read self, which may have NaN.
func (c *call) plusSelf(y ir.Value, dt dtype.DType) ir.Value {
	if c.float("beta", 1) == 0 {
		return y
	}
	return c.bin("add", c.scaled(c.tensor("self"), "beta", dt), y)
}

// inner sums over the last axes of both operands; with a scalar operand it multiplies.
func inner(c *call) []ir.Value {
	a, b := c.tensor("self"), c.tensor("other")
	if c.rank(a) == 0 || c.rank(b) == 0 {
		return one(c.bin("mul", a, b))
	}
	n := c.shape(b)[c.rank(b)-1]
	rows := product(c.shape(b)[:c.rank(b)-1])
	y := c.matmul(c.reshape(a, product(c.shape(a)[:c.rank(a)-1]), n), c.transpose(c.reshape(b, rows, n), 1, 0))
	return one(c.reshape(y, c.out(0).Shape...))
}

// attention is softmax(q @ k^T * scale + mask) @ v: the op attention of the IR where [call.fusedAttention] can make
// it, else plain ops. Several heads of q may share a head of k and v (GQA).
func attention(c *call) []ir.Value {
	q, k, v := c.tensor("query"), c.tensor("key"), c.tensor("value")
	if c.float("dropout_p", 0) != 0 {
		c.fail("it drops probabilities at random (dropout_p); call eval() before the export")
	}
	if c.has("dropout_mask") {
		c.fail("it drops probabilities by a mask (dropout_mask); call eval() before the export")
	}
	if c.rank(q) < 2 || c.rank(k) < 2 || c.rank(v) < 2 {
		c.fail("query, key and value must have at least two axes")
	}
	width, ok := c.shape(q)[c.rank(q)-1].Const()
	if !ok {
		c.fail("the width of a head is dynamic")
	}
	scale := c.float("scale", 1/math.Sqrt(float64(width)))
	if y, ok := c.fusedAttention(q, k, v, scale); ok {
		return one(y)
	}
	rank := c.rank(q)
	group := rank >= 3 && c.rank(k) == rank && !c.shape(q)[rank-3].Equal(c.shape(k)[rank-3])
	shape := c.shape(q)
	if group {
		q, k, v = c.groups(q, k, v)
	}
	swap := lead(c.rank(k))
	swap[len(swap)-1], swap[len(swap)-2] = swap[len(swap)-2], swap[len(swap)-1]
	scores := c.scaledProduct(q, c.transpose(k, swap...), scale)
	p := c.probabilities(scores, shape, group)
	y := c.bin("matmul", p, v)
	if group {
		s := c.shape(y)
		y = c.reshape(y, append(append([]dim.Dim{}, shape[:rank-1]...), s[len(s)-1])...)
	}
	return one(y)
}

// groups splits the axis of heads of q in two: the heads of k and v, and the heads of q that share one of them.
func (c *call) groups(q, k, v ir.Value) (ir.Value, ir.Value, ir.Value) {
	at := c.rank(q) - 3
	heads, kv := c.shape(q)[at], c.shape(k)[at]
	h, ok1 := heads.Const()
	n, ok2 := kv.Const()
	if !ok1 || !ok2 || n == 0 || h%n != 0 {
		c.fail("%s heads cannot share %s", heads, kv)
	}
	q = c.reshape(q, replaced(c.shape(q), at, kv, dim.Const(h/n))...)
	return q, c.unsqueeze(k, at+1), c.unsqueeze(v, at+1)
}

// probabilities applies the mask of the call to scores, and then softmax.
func (c *call) probabilities(scores ir.Value, query []dim.Dim, group bool) ir.Value {
	rank := c.rank(scores)
	s := c.shape(scores)
	mask := c.maskName()
	if c.bool("is_causal", false) {
		keep := c.compare("ge", c.along(i64, 2, 0, s[rank-2]), c.along(i64, 2, 1, s[rank-1]))
		scores = c.where(keep, scores, c.f(math.Inf(-1)))
	}
	if !c.has(mask) {
		return c.softmaxOf(scores, rank-1)
	}
	m := c.tensor(mask)
	if group && c.rank(m) > 2 { // a mask with an axis of heads, which is split like that of q
		at := c.rank(m) - 3
		if n, ok := c.shape(m)[at].Const(); ok && n == 1 {
			m = c.unsqueeze(m, at)
		} else {
			m = c.reshape(m, replaced(c.shape(m), at, s[rank-4], s[rank-3])...)
		}
	}
	if c.dtype(m) == dtype.Bool {
		scores = c.where(m, scores, c.f(math.Inf(-1)))
	} else {
		scores = c.bin("add", scores, c.cast(m, c.dtype(scores)))
	}
	return c.maskedSoftmax(scores, rank-1)
}

// term is an operand of einsum with the letters of its axes.
type term struct {
	v       ir.Value
	letters []rune
}

// einsum contracts operands from left to right, each pair as a GEMM.
func einsum(c *call) []ir.Value {
	operands := c.tensors("tensors")
	terms, result, ok := c.letters(c.str("equation", ""), operands)
	if !ok {
		return one(ir.NoValue)
	}
	acc := terms[0]
	for i := 1; i <= len(terms); i++ {
		// Sum over letters that neither the result nor a later operand has.
		need := slices.Clone(result)
		for _, t := range terms[i:] {
			need = append(need, t.letters...)
		}
		acc = c.summed(acc, need)
		if i < len(terms) {
			after := slices.Clone(result)
			for _, t := range terms[i+1:] {
				after = append(after, t.letters...)
			}
			own := append(slices.Clone(after), acc.letters...)
			acc = c.contracted(acc, c.summed(terms[i], own), after)
		}
	}
	perm := make([]int, len(result))
	for i, l := range result {
		perm[i] = slices.Index(acc.letters, l)
		if perm[i] < 0 {
			c.fail("result letter %c is in no operand", l)
		}
	}
	return one(c.transpose(acc.v, perm...))
}

// summed sums over the axes whose letters are not needed.
func (c *call) summed(t term, need []rune) term {
	var axes []int
	var keep []rune
	for i, l := range t.letters {
		if slices.Contains(need, l) {
			keep = append(keep, l)
		} else {
			axes = append(axes, i)
		}
	}
	if len(axes) == 0 {
		return t
	}
	return term{c.reduce("sum", t.v, axes, false), keep}
}

// contracted multiplies two operands and sums over their common letters that are not needed. Where one operand has size
// 1 along such a letter and the other does not, it broadcasts, so each is summed alone.
func (c *call) contracted(a, b term, need []rune) term {
	isOne := func(t term, l rune) bool {
		n, ok := c.shape(t.v)[slices.Index(t.letters, l)].Const()
		return ok && n == 1
	}
	kept := func(letters []rune) (out []rune) {
		for _, l := range letters {
			shared := slices.Contains(a.letters, l) && slices.Contains(b.letters, l) && !slices.Contains(need, l)
			if !shared || isOne(a, l) == isOne(b, l) {
				out = append(out, l)
			}
		}
		return out
	}
	a, b = c.summed(a, kept(a.letters)), c.summed(b, kept(b.letters))
	var batch, left, right, inner []rune
	for _, l := range a.letters {
		switch {
		case !slices.Contains(b.letters, l):
			left = append(left, l)
		case slices.Contains(need, l):
			batch = append(batch, l)
		default:
			inner = append(inner, l)
		}
	}
	for _, l := range b.letters {
		if !slices.Contains(a.letters, l) {
			right = append(right, l)
		}
	}
	va, da := c.arranged(a, batch, left, inner)
	vb, db := c.arranged(b, batch, inner, right)
	y := c.bin("matmul", va, vb)
	shape := append(append(append([]dim.Dim{}, da[:len(batch)]...), da[len(batch):len(batch)+len(left)]...), db[len(batch)+len(inner):]...)
	for i := range batch { // a size of 1 broadcasts
		if n, ok := shape[i].Const(); ok && n == 1 {
			shape[i] = db[i]
		}
	}
	return term{c.reshape(y, shape...), slices.Concat(batch, left, right)}
}

// arranged orders the axes of an operand by three groups of letters, and joins the axes of the second and of the
// third group to one axis each. It also returns the shape before the join.
func (c *call) arranged(t term, groups ...[]rune) (ir.Value, []dim.Dim) {
	var perm []int
	for _, g := range groups {
		for _, l := range g {
			perm = append(perm, slices.Index(t.letters, l))
		}
	}
	v := c.transpose(t.v, perm...)
	s := c.shape(v)
	n := len(groups[0])
	joined := append([]dim.Dim{}, s[:n]...)
	for _, g := range groups[1:] {
		joined = append(joined, product(s[n:n+len(g)]))
		n += len(g)
	}
	return c.reshape(v, joined...), s
}

// letters parses an equation. Axes of an ellipsis get letters from the right, see dotLetter; a letter that occurs
// twice in an operand means its diagonal.
func (c *call) letters(equation string, operands []ir.Value) ([]term, []rune, bool) {
	e := parseEinsum(equation)
	if e == nil || len(e.operands) != len(operands) || len(operands) == 0 {
		c.fail("equation %q is not one for %d operands", equation, len(operands))
	}
	terms := make([]term, len(operands))
	wide := 0
	for i, v := range operands {
		letters, dots, ok := e.spelled(i, c.rank(v))
		if !ok {
			c.fail("equation %q does not fit an operand with %d axes", equation, c.rank(v))
		}
		wide = max(wide, dots)
		terms[i] = c.distinctLetters(term{v, letters})
	}
	return terms, e.spelledResult(wide), true
}

// distinctLetters takes diagonals until each letter occurs once.
func (c *call) distinctLetters(t term) term {
	for i := 0; i < len(t.letters); i++ {
		j := slices.Index(t.letters[i+1:], t.letters[i])
		if j < 0 {
			continue
		}
		j += i + 1
		l := t.letters[i]
		t.v = c.diagonalOf(t.v, i, j, 0)
		rest := slices.Delete(slices.Delete(slices.Clone(t.letters), j, j+1), i, i+1)
		t.letters = append(rest, l)
		i = -1
	}
	return t
}

// tensordot sums over pairs of axes.
func tensordot(c *call) []ir.Value {
	a, b := c.tensor("self"), c.tensor("other")
	left, right := c.listedAxes("dims_self", c.rank(a)), c.listedAxes("dims_other", c.rank(b))
	if len(left) != len(right) || !distinct(left) || !distinct(right) {
		c.fail("dims_self has %d axes and dims_other %d; both must name the same number of different axes", len(left), len(right))
	}
	letters := func(rank, first int, sums []int) []rune {
		out := make([]rune, rank)
		for i := range out {
			out[i] = dotLetter(first + i)
		}
		for i, axis := range sums {
			out[axis] = dotLetter(i)
		}
		return out
	}
	ta := term{a, letters(c.rank(a), ir.MaxRank, left)}
	tb := term{b, letters(c.rank(b), 2*ir.MaxRank, right)}
	need := slices.Concat(ta.letters, tb.letters)
	need = slices.DeleteFunc(need, func(l rune) bool { return slices.Contains(ta.letters, l) && slices.Contains(tb.letters, l) })
	return one(c.contracted(ta, tb, need).v)
}

// kron multiplies each element of self by each element of other.
func kron(c *call) []ir.Value {
	a, b := c.tensor("self"), c.tensor("other")
	for c.rank(a) < c.rank(b) {
		a = c.unsqueeze(a, 0)
	}
	for c.rank(b) < c.rank(a) {
		b = c.unsqueeze(b, 0)
	}
	for i := range c.rank(b) {
		a, b = c.unsqueeze(a, 2*i+1), c.unsqueeze(b, 2*i)
	}
	return one(c.reshape(c.bin("mul", a, b), c.out(0).Shape...))
}

// bilinearForm is x1 · weight[o] · x2 + bias[o]: the products of all pairs, times a matrix.
func bilinearForm(c *call) []ir.Value {
	a, b, w := c.tensor("input1"), c.tensor("input2"), c.tensor("weight")
	s := c.shape(w)
	pairs := c.bin("mul", c.unsqueeze(a, c.rank(a)), c.unsqueeze(b, c.rank(b)-1))
	flat := append(append([]dim.Dim{}, c.shape(a)[:c.rank(a)-1]...), s[1].Mul(s[2]))
	args := []ir.Value{c.reshape(pairs, flat...), c.reshape(w, s[0], s[1].Mul(s[2]))}
	if c.has("bias") {
		args = append(args, c.tensor("bias"))
	}
	return one(c.op("linear", args))
}

// trilinear is aten._trilinear, to which PyTorch decomposes a bilinear layer: three operands get axes of size 1, are
// multiplied, and are summed over axes.
func trilinear(c *call) []ir.Value {
	y := ir.NoValue
	for _, operand := range [][2]string{{"i1", "expand1"}, {"i2", "expand2"}, {"i3", "expand3"}} {
		v := c.tensor(operand[0])
		for _, axis := range c.ints(operand[1]) {
			v = c.unsqueeze(v, int(axis))
		}
		if y != ir.NoValue {
			v = c.bin("mul", y, v)
		}
		y = v
	}
	return one(c.over("sum", y, c.axes("sumdim", c.rank(y)), false))
}

// cross is the cross product of vectors with three elements along an axis.
func cross(c *call) []ir.Value {
	x, y := c.tensor("self"), c.tensor("other")
	axis := c.axis("dim", -1, c.rank(x))
	if n, ok := c.shape(x)[axis].Const(); !ok || n != 3 || !c.has("dim") && c.base == "aten.cross" {
		c.fail("dim must be given and name an axis of size 3")
	}
	part := func(v ir.Value, i int) ir.Value {
		return c.slice(v, axis, dim.Const(int64(i%3)), dim.Const(int64(i%3+1)), 1)
	}
	out := make([]ir.Value, 3)
	for i := range out {
		out[i] = c.bin("sub", c.bin("mul", part(x, i+1), part(y, i+2)), c.bin("mul", part(x, i+2), part(y, i+1)))
	}
	return one(c.concat(axis, out...))
}
