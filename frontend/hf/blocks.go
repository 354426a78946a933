package hf

import (
	"cmp"
	"slices"

	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// width returns the constant extent of a value's last axis, or 0 if x is ir.NoValue after an earlier error.
func (n *Net) width(x ir.Value) int64 {
	shape := n.F.Type(x).Shape
	if len(shape) == 0 {
		return 0
	}
	w, _ := shape[len(shape)-1].Const()
	return w
}

// parts splits the last axis of x[N, …] into constant sizes.
func (n *Net) parts(x ir.Value, sizes ...int64) []ir.Value {
	return n.split(x, int64(n.F.Type(x).Rank())-1, sizes)
}

// split splits an axis of x into constant sizes.
func (n *Net) split(x ir.Value, axis int64, sizes []int64) []ir.Value {
	out := n.F.Op("split", []ir.Value{x}, ir.IntAttr("axis", axis), ir.IntsAttr("sizes", sizes...))
	if len(out) != len(sizes) {
		return slices.Repeat([]ir.Value{ir.NoValue}, len(sizes)) // the builder has recorded the error
	}
	return out
}

// reshape returns x[N, …] as [N, extents…].
func (n *Net) reshape(x ir.Value, extents ...int64) ir.Value {
	shape := []dim.Dim{n.Tokens}
	for _, e := range extents {
		shape = append(shape, dim.Const(e))
	}
	return n.F.Op1("reshape", []ir.Value{x}, ir.DimsAttr("shape", shape...))
}

// Add returns a + b, the residual connection.
func (n *Net) Add(a, b ir.Value) ir.Value { return n.F.Op1("add", []ir.Value{a, b}) }

// Times returns x·factor, where the factor is not rounded to the dtype of x first. 0 means 1, and 1 adds no node.
func (n *Net) Times(x ir.Value, factor float64) ir.Value {
	if factor == 0 || factor == 1 {
		return x
	}
	return n.F.Op1("mul", []ir.Value{x, n.F.Float(factor)})
}

// Embedding returns the rows ids i32[N] of the table [size, hidden] in checkpoint tensor TENSOR.weight, as T[N,
// hidden]. The ids are tokens or positions. weight is the table's name in the module.
func (n *Net) Embedding(ids ir.Value, weight, tensor string, size, hidden int64) ir.Value {
	n.SetLoc(tensor)
	return n.F.Op1("embedding", []ir.Value{n.Weight(weight, Matrix(tensor+".weight", size, hidden)), ids})
}

// Norm is a kind of normalization. With only Eps set it is the RMS norm (Zhang and Sennrich, arXiv:1910.07467).
type Norm struct {
	Eps float64

	// Centered is the layer norm, which subtracts the mean and adds a bias (Ba, Kiros, Hinton, arXiv:1607.06450).
	// Unbiased omits the bias.
	Centered, Unbiased bool

	// Scales, if not 0, means that x is [N, Scales, size] and that each row along the second axis has its own scale.
	// The checkpoint's tensor is [Scales·Parts, size], of which a rank reads one part; 0 parts means 1. Only centered,
	// unbiased norms support it.
	Scales, Parts int64

	// Neighbours is the number of elements of a row that the module has in another order than the checkpoint
	// (Projection.Neighbours). It is used only with Scales: other norms keep the checkpoint's order.
	Neighbours int64

	// FromOne means that the checkpoint stores the scale of an RMS norm minus 1, as Gemma does.
	FromOne bool
}

// Norm normalizes the last axis of x and scales it by checkpoint tensor TENSOR.weight. A centered norm with a bias adds
// TENSOR.bias. weight is the scale's name in the module; the bias has that name with "_bias".
//
// With FromOne the graph adds 1 to the stored scale in f32, as the reference does: in bf16, 1+w would lose bits of w.
// Weight expressions have no arithmetic, because loading a weight only moves and casts elements. The addition is fused
// into the norm's kernel.
func (n *Net) Norm(x ir.Value, weight, tensor string, norm Norm) ir.Value {
	n.SetLoc(tensor)
	if norm.Scales > 0 {
		return n.normScaledByRow(x, weight, tensor, norm)
	}
	size, mean, op := n.width(x), 1.0, "rms_norm"
	if norm.FromOne {
		mean = 0
	}
	scale := n.Weight(weight, Scale(tensor+".weight", size, mean))
	if norm.FromOne {
		scale = n.F.Op1("add", []ir.Value{n.f32(scale), n.F.Float(1)})
	}
	args := []ir.Value{x, scale}
	switch {
	case norm.Centered && norm.Unbiased:
		op, args = "layer_norm", append(args, n.filled(n.DType, size, 0))
	case norm.Centered:
		op, args = "layer_norm", append(args, n.Weight(weight+"_bias", Vector(tensor+".bias", size)))
	}
	return n.F.Op1(op, args, ir.FloatAttr("eps", norm.Eps))
}

// normScaledByRow is a layer norm of x[N, rows, size] along the last axis, with a scale for each row. As in the
// reference, the multiplication by the scale is in f32, and only its result is rounded.
func (n *Net) normScaledByRow(x ir.Value, weight, tensor string, norm Norm) ir.Value {
	size, rows := n.width(x), norm.Scales*max(norm.Parts, 1)
	p := part{Scale(tensor+".weight", size, 1), []int64{rows, size}, func(leaf *ir.WeightExpr) *ir.WeightExpr {
		return neighboursApart(leaf, rows, size, norm.Neighbours)
	}}
	p.Shape = p.shape
	p = n.divide(p, Share{Rows: []Section{{rows, max(norm.Parts, 1)}}})
	args := []ir.Value{n.f32(x), n.filled(dtype.F32, size, 1), n.filled(dtype.F32, size, 0)}
	y := n.F.Op1("layer_norm", args, ir.FloatAttr("eps", norm.Eps))
	return n.rounded(n.F.Op1("mul", []ir.Value{y, n.f32(n.weight(weight, []part{p}))}))
}

// filled returns a vector whose elements are all v.
func (n *Net) filled(d dtype.DType, size int64, v float64) ir.Value {
	return n.F.Op1("full", []ir.Value{n.F.Float(v)}, ir.DimsAttr("shape", dim.Const(size)), ir.DTypeAttr(d))
}

// Projection is a linear layer of the checkpoint.
type Projection struct {
	Tensor string // without ".weight" or ".bias": "model.layers.0.self_attn.o_proj"
	Module string // names the location and the bias; empty: Tensor. It differs for a head that is tied to the embedding
	Rows   int64  // features out; if Stacked, of all matrices together

	// Transposed means that the matrix is stored as [features in, features out].
	Transposed bool

	// Heads, if not 0, is the number of heads of a matrix whose rows are stored head after head, with q, k and v of a
	// head together: [Heads, 3, size]. The module has q of all heads first, then k, then v.
	Heads int64

	// Stacked, if not 0, is the number of matrices in the tensor: [Stacked, Rows/Stacked, features in], or [Stacked,
	// features in, Rows/Stacked] if transposed. The tensor's name is then Tensor, without ".weight". Heads and
	// Neighbours must be 0.
	Stacked int64

	// Neighbours, if not 0, means that the rows are heads of HeadSize elements, and that the reference rotates the
	// first Neighbours elements of each in interleaved pairs, (2i, 2i+1). The module has the even elements of these
	// first, then the odd ones, because its ropes rotate the pairs (i, i+Neighbours/2). q and k have the same order, so
	// scores do not change.
	Neighbours, HeadSize int64

	Share Share // how the projection is divided among ranks
}

// matrix is the weight of a projection that is not stacked. The argument in is the number of input features.
func (p Projection) matrix(in int64) part {
	shape := []int64{p.Rows, in}
	if p.Transposed {
		regroup := p.regroup(shape)
		return part{Matrix(p.Tensor+".weight", in, p.Rows), shape, func(leaf *ir.WeightExpr) *ir.WeightExpr { return regroup(transposed(leaf, 1, 0)) }}
	}
	return part{Matrix(p.Tensor+".weight", p.Rows, in), shape, p.regroup(shape)}
}

// matrices is the weight of a stacked projection, [Stacked, Rows/Stacked, features in].
func (p Projection) matrices(in int64) part {
	stored, form := []int64{p.Stacked, p.Rows / p.Stacked, in}, func(leaf *ir.WeightExpr) *ir.WeightExpr { return leaf }
	if p.Transposed {
		stored = []int64{p.Stacked, in, p.Rows / p.Stacked}
		form = func(leaf *ir.WeightExpr) *ir.WeightExpr { return transposed(leaf, 0, 2, 1) }
	}
	param := Param{Info: safetensors.Info{Name: p.Tensor, Shape: stored}, Std: 0.02}
	return part{param, []int64{p.Stacked, p.Rows / p.Stacked, in}, form}
}

func (p Projection) bias() part {
	shape := []int64{p.Rows}
	return part{Vector(cmp.Or(p.Module, p.Tensor)+".bias", p.Rows), shape, p.regroup(shape)}
}

// regroup returns the expression that brings rows from the checkpoint's order into the module's.
func (p Projection) regroup(shape []int64) func(*ir.WeightExpr) *ir.WeightExpr {
	return func(leaf *ir.WeightExpr) *ir.WeightExpr {
		if p.Neighbours > 0 {
			apart := neighboursApart(leaf, p.Rows/p.HeadSize, p.HeadSize, p.Neighbours, shape[1:]...)
			return reshaped(apart, shape...)
		}
		if p.Heads == 0 {
			return leaf
		}
		split := append([]int64{p.Heads, 3, p.Rows / 3 / p.Heads}, shape[1:]...)
		perm := []int64{1, 0, 2, 3}[:len(split)]
		return reshaped(transposed(reshaped(leaf, split...), perm...), shape...)
	}
}

// neighboursApart reshapes a tensor to [heads, size, more…] and reorders the first turned elements of each head: even
// indices first, then odd ones.
func neighboursApart(leaf *ir.WeightExpr, heads, size, turned int64, more ...int64) *ir.WeightExpr {
	shape := func(extents ...int64) []int64 { return append(extents, more...) }
	apart := func(e *ir.WeightExpr) *ir.WeightExpr {
		pairs := shape(heads, turned/2, 2)
		return reshaped(transposed(reshaped(e, pairs...), []int64{0, 2, 1, 3}[:len(pairs)]...), shape(heads, turned)...)
	}
	if turned == size {
		return apart(leaf)
	}
	whole := reshaped(leaf, shape(heads, size)...)
	rest := sliced(whole, 1, turned, size)
	return &ir.WeightExpr{Op: ir.WeightConcat, Args: []*ir.WeightExpr{apart(sliced(whole, 1, 0, turned)), rest}, Attrs: []ir.Attr{ir.IntAttr("axis", 1)}}
}

// Linear returns x·Wᵀ, plus the bias if there is one. W has the rows of all projections, so several projections of one
// input are one GEMM. weight is W's name in the module; the bias has that name with "_bias".
//
// A node of one projection has the location of the projection's module. A node of several projections, or of one whose
// Heads is set, has the block's location.
func (n *Net) Linear(x ir.Value, weight string, bias bool, ps ...Projection) ir.Value {
	if len(ps) == 1 && ps[0].Heads == 0 {
		defer n.SetLoc(n.SetLoc(cmp.Or(ps[0].Module, ps[0].Tensor)))
	}
	var weights, biases []part
	for _, p := range ps {
		weights, biases = append(weights, n.ofRank(p, x)), append(biases, n.divide(p.bias(), p.Share))
	}
	args := []ir.Value{x, n.weight(weight, weights)}
	if n.Ranks() > 1 && ps[0].Share.Inner {
		y := n.reduced(n.F.Op1("linear", args))
		if bias {
			y = n.Add(y, n.weight(weight+"_bias", biases))
		}
		return y
	}
	if bias {
		args = append(args, n.weight(weight+"_bias", biases))
	}
	return n.F.Op1("linear", args)
}

// ofRank returns a rank's share of the matrix of a projection of x.
func (n *Net) ofRank(p Projection, x ir.Value) part {
	in := n.width(x)
	if p.Share.Inner {
		in *= n.Ranks()
	}
	if p.Stacked == 0 {
		return n.divide(p.matrix(in), p.Share)
	}
	if p.Heads > 0 || p.Neighbours > 0 {
		n.B.Errorf(ir.Pos{}, "projection %s: stacked matrices keep the checkpoint's order of rows, so Heads and Neighbours must be 0", termsafe.Quote(p.Tensor))
	}
	whole := p.matrices(in)
	own := n.divideAt(whole, 1, p.Share)
	rows := p.Stacked * own.shape[1]
	return part{own.Param, []int64{rows, own.shape[2]}, func(leaf *ir.WeightExpr) *ir.WeightExpr { return reshaped(own.form(leaf), rows, own.shape[2]) }}
}

// activations maps the names that configs use to ops of the IR (transformers' ACT2FN).
func activations() map[string]string {
	return map[string]string{
		"silu": "silu", "swish": "silu",
		"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
		"relu": "relu",
	}
}

// MLP is down(act(up(x))) or, gated, down(act(gate(x)) · up(x)) (Shazeer, arXiv:2002.05202).
type MLP struct {
	Weight     string       // prefix of the module's weights: "l0."
	Loc        string       // "model.layers.0.mlp"
	Up         []Projection // up; or, if Gated, gate and up, or one projection with the rows of both
	Down       Projection
	Gated      bool
	Activation string // op of the IR
	Bias       bool

	ActivationModule string // name of the activation below Loc: "act_fn"
}

// MLP adds the block for x[N, hidden]. The gate and the up projection are one GEMM.
func (n *Net) MLP(x ir.Value, m MLP) ir.Value {
	n.SetLoc(m.Loc)
	if !m.Gated {
		act := n.activate(n.Linear(x, m.Weight+"up", m.Bias, m.Up...), m)
		return n.Linear(act, m.Weight+"down", m.Bias, m.Down)
	}
	both := n.Linear(x, m.Weight+"gate_up", m.Bias, m.Up...)
	half := n.width(both) / 2
	p := n.parts(both, half, half)
	act := n.F.Op1("mul", []ir.Value{n.activate(p[0], m), p[1]})
	return n.Linear(act, m.Weight+"down", m.Bias, m.Down)
}

// activate adds the activation, with the location of the activation's PyTorch module.
func (n *Net) activate(x ir.Value, m MLP) ir.Value {
	defer n.SetLoc(n.SetLoc(m.Loc + "." + m.ActivationModule))
	return n.F.Op1(m.Activation, []ir.Value{x})
}
