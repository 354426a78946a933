package hf

import (
	"math"

	"pwc/ir"
	"pwc/ir/dim"
)

// AttentionOp is the extern op that attention is imported as: causal attention over a paged KV cache,
//
//	op "attention::paged"(tensor, tensor, tensor, mut tensor, mut tensor) split
//
// with operands q T[N, heads, size], k and v T[N, kv_heads, size], the cache T[B, 2, block, kv_heads, size], to which it
// appends k and v, and the result T[N, heads, size], which it writes. Its attribute scale multiplies q·k; window, if it
// is there, is the number of latest positions that a token sees, itself included.
const AttentionOp = "attention::paged"

// Attention is self-attention with its projections.
type Attention struct {
	Weight   string // prefix of the module's weights and state: "l0."
	Tensor   string // of the checkpoint: "model.layers.0.self_attn"
	Heads    int64
	KVHeads  int64 // divides Heads: each serves Heads/KVHeads of them (GQA, arXiv:2305.13245)
	HeadSize int64
	QKVBias  bool
	OutBias  bool
	Window   int64 // latest positions that a token sees; 0: all

	// QKNorm normalizes each head of q and k before they turn, with NormEps.
	QKNorm  bool
	NormEps float64
}

// Attention adds the block for x[N, hidden]. The projections of q, k and v are one product.
func (n *Net) Attention(x ir.Value, a Attention, rope RopeTables) ir.Value {
	hidden := n.width(x)
	q, kv := a.Heads*a.HeadSize, a.KVHeads*a.HeadSize
	n.F.SetLoc(a.Tensor)
	qkv := n.Linear(x, a.Weight+"qkv", a.QKVBias,
		Projection{a.Tensor + ".q_proj", q}, Projection{a.Tensor + ".k_proj", kv}, Projection{a.Tensor + ".v_proj", kv})
	p := n.parts(qkv, q, kv, kv)
	queries := n.reshape(p[0], a.Heads, a.HeadSize)
	keys := n.reshape(p[1], a.KVHeads, a.HeadSize)
	values := n.reshape(p[2], a.KVHeads, a.HeadSize)
	if a.QKNorm {
		queries = n.RMSNorm(queries, a.Weight+"q_norm", a.Tensor+".q_norm", a.NormEps)
		keys = n.RMSNorm(keys, a.Weight+"k_norm", a.Tensor+".k_norm", a.NormEps)
		n.F.SetLoc(a.Tensor)
	}
	queries, keys = n.Rotate(queries, rope), n.Rotate(keys, rope)

	cache := a.Weight + "kv"
	n.B.State(cache, n.Type(n.Blocks, dim.Const(2), dim.Const(n.BlockSize), dim.Const(a.KVHeads), dim.Const(a.HeadSize)))
	out := n.F.Op1("empty_like", []ir.Value{queries})
	attrs := []ir.Attr{ir.FloatAttr("scale", 1/math.Sqrt(float64(a.HeadSize)))}
	if a.Window > 0 {
		attrs = append(attrs, ir.IntAttr("window", a.Window))
	}
	n.F.Call(AttentionOp, []ir.Value{queries, keys, values, n.F.State(cache), out}, nil, attrs...)
	return n.Linear(n.reshape(n.F.Latest(out), q), a.Weight+"o", a.OutBias, Projection{a.Tensor + ".o_proj", hidden})
}
