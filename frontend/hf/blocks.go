package hf

import (
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// width returns the constant extent of a value's last axis; 0 where an earlier error left no value.
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
	out := n.F.Op("split", []ir.Value{x}, ir.IntAttr("axis", 1), ir.IntsAttr("sizes", sizes...))
	if len(out) != len(sizes) {
		return slices.Repeat([]ir.Value{ir.NoValue}, len(sizes)) // x was no value: the reason is recorded
	}
	return out
}

// reshape gives the rows of x[N, …] other extents.
func (n *Net) reshape(x ir.Value, extents ...int64) ir.Value {
	shape := []dim.Dim{n.Tokens}
	for _, e := range extents {
		shape = append(shape, dim.Const(e))
	}
	return n.F.Op1("reshape", []ir.Value{x}, ir.DimsAttr("shape", shape...))
}

// Add returns a + b, the residual connection.
func (n *Net) Add(a, b ir.Value) ir.Value { return n.F.Op1("add", []ir.Value{a, b}) }

// Embedding returns rows of the table[vocab, hidden] in checkpoint tensor TENSOR.weight for token ids i32[N], as
// T[N, hidden]. weight is the table's name in the module.
func (n *Net) Embedding(ids ir.Value, weight, tensor string, vocab, hidden int64) ir.Value {
	n.F.SetLoc(tensor)
	return n.F.Op1("embedding", []ir.Value{n.Weight(weight, Matrix(tensor+".weight", vocab, hidden)), ids})
}

// RMSNorm normalizes the last axis of x and scales it by checkpoint tensor TENSOR.weight (Zhang and Sennrich,
// arXiv:1910.07467). weight is the scale's name in the module.
func (n *Net) RMSNorm(x ir.Value, weight, tensor string, eps float64) ir.Value {
	n.F.SetLoc(tensor)
	scale := n.Weight(weight, Scale(tensor+".weight", n.width(x)))
	return n.F.Op1("rms_norm", []ir.Value{x, scale}, ir.FloatAttr("eps", eps))
}

// Projection is a linear layer of the checkpoint.
type Projection struct {
	Tensor string // without ".weight" or ".bias": "model.layers.0.self_attn.o_proj"
	Rows   int64  // features that come out
}

// Linear returns x·Wᵀ, plus a bias if there is one, for W the rows of the projections one below the other: several
// projections of one input are one product. weight is W's name in the module; the bias has that name with "_bias".
func (n *Net) Linear(x ir.Value, weight string, bias bool, ps ...Projection) ir.Value {
	in := n.width(x)
	var weights, biases []Param
	for _, p := range ps {
		weights = append(weights, Matrix(p.Tensor+".weight", p.Rows, in))
		biases = append(biases, Vector(p.Tensor+".bias", p.Rows))
	}
	args := []ir.Value{x, n.Weight(weight, weights...)}
	if bias {
		args = append(args, n.Weight(weight+"_bias", biases...))
	}
	return n.F.Op1("linear", args)
}

// activations maps the names that configs use to ops of the IR.
func activations() map[string]string {
	return map[string]string{
		"silu": "silu", "swish": "silu",
		"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
		"relu": "relu",
	}
}

// GatedMLP is down(act(gate(x)) · up(x)) (Shazeer, arXiv:2002.05202).
type GatedMLP struct {
	Weight     string // prefix of the module's weights: "l0."
	Tensor     string // of the checkpoint: "model.layers.0.mlp"
	Inner      int64  // features between
	Activation string // op of the IR
	Bias       bool
}

// GatedMLP adds the block for x[N, hidden]; the gate and the up projection are one product.
func (n *Net) GatedMLP(x ir.Value, m GatedMLP) ir.Value {
	n.F.SetLoc(m.Tensor)
	hidden := n.width(x)
	both := n.Linear(x, m.Weight+"gate_up", m.Bias,
		Projection{Tensor: m.Tensor + ".gate_proj", Rows: m.Inner},
		Projection{Tensor: m.Tensor + ".up_proj", Rows: m.Inner})
	p := n.parts(both, m.Inner, m.Inner)
	act := n.F.Op1("mul", []ir.Value{n.F.Op1(m.Activation, p[:1]), p[1]})
	return n.Linear(act, m.Weight+"down", m.Bias, Projection{Tensor: m.Tensor + ".down_proj", Rows: hidden})
}
