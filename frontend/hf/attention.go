package hf

import (
	"math"

	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dim"
)

// AttentionOp is the extern op for attention, causal over a paged KV cache:
//
//	op "attention::paged"(tensor, tensor, tensor, mut tensor, mut tensor) split
//
// The operands are q T[N, heads, size], k and v T[N, kv_heads, size], the cache T[B, 2, block, kv_heads, size] and the
// result T[N, heads, size]. The op appends k and v to the cache and writes the result. The attribute scale multiplies
// q·k. The optional attribute window is the number of latest positions that a token attends to, including its own. The
// optional attribute softcap bounds the scores before the softmax: cap·tanh(scale·q·k/cap).
const AttentionOp = "attention::paged"

// Attention is self-attention with its projections.
type Attention struct {
	Weight   string       // prefix of the module's weights and state: "l0."
	Loc      string       // "model.layers.0.self_attn"
	QKV      []Projection // q, k and v, or one projection with the rows of all
	Out      Projection
	Heads    int64 // query heads of one rank
	KVHeads  int64 // of one rank; each serves Heads/KVHeads query heads (GQA, arXiv:2305.13245)
	KeyParts int64 // number of different parts into which the model's KV heads are divided; 0: 1
	HeadSize int64
	QKVBias  bool
	OutBias  bool

	Scale   float64 // multiplies q·k; 0: 1/sqrt(HeadSize)
	Softcap float64 // bounds the scores before the softmax; 0: no bound
	Window  int64   // latest positions that a token attends to; 0: all

	// QNorm and KNorm are the checkpoint's names of the norms of q and k, which run before the rope; empty if the model
	// has no such norms. They normalize each head or, with NormWhole, all heads together. With NormByHead, each head
	// has its own scale (Norm.Scales).
	QNorm, KNorm          string
	NormWhole, NormByHead bool
	Norm                  Norm

	// Rope rotates q and k; nil: they are not rotated.
	Rope *RopeTables

	// QueryScale, [N, 1, 1], multiplies q after the rope; ir.NoValue: q is not multiplied.
	QueryScale ir.Value
}

// Attention adds the block for x[N, hidden]. The projections of q, k and v are one GEMM.
func (n *Net) Attention(x ir.Value, a Attention) ir.Value {
	q, kv := a.Heads*a.HeadSize, a.KVHeads*a.HeadSize
	a.KeyParts = max(a.KeyParts, 1)
	n.SetLoc(a.Loc)
	qkv := n.Linear(x, a.Weight+"qkv", a.QKVBias, a.QKV...)
	p := n.parts(qkv, q, kv, kv)
	queries, keys := p[0], p[1]
	if a.NormWhole {
		queries, keys = n.qkNorm(queries, keys, a)
	}
	queries = n.reshape(queries, a.Heads, a.HeadSize)
	keys = n.reshape(keys, a.KVHeads, a.HeadSize)
	values := n.reshape(p[2], a.KVHeads, a.HeadSize)
	if !a.NormWhole {
		queries, keys = n.qkNorm(queries, keys, a)
	}
	if a.Rope != nil {
		queries, keys = n.Rotate(queries, *a.Rope), n.Rotate(keys, *a.Rope)
	}
	if a.QueryScale != ir.NoValue {
		queries = n.F.Op1("mul", []ir.Value{queries, a.QueryScale})
	}

	cache := a.Weight + "kv"
	n.B.AddState(&ir.State{Name: cache, Placements: n.cachePlacement(a.KeyParts), Type: n.Type(n.Blocks, dim.Const(2), dim.Const(n.BlockSize), dim.Const(a.KVHeads), dim.Const(a.HeadSize))})
	out := n.F.Op1("empty_like", []ir.Value{queries})
	scale := a.Scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(a.HeadSize))
	}
	attrs := []ir.Attr{ir.FloatAttr("scale", scale)}
	if a.Window > 0 {
		attrs = append(attrs, ir.IntAttr("window", a.Window))
	}
	if a.Softcap > 0 {
		attrs = append(attrs, ir.FloatAttr("softcap", a.Softcap))
	}
	n.F.Call(AttentionOp, []ir.Value{queries, keys, values, n.F.State(cache), out}, nil, attrs...)
	return n.Linear(n.reshape(n.F.Latest(out), q), a.Weight+"o", a.OutBias, a.Out)
}

// qkNorm normalizes the last axes of q and k, if a has norms for them.
func (n *Net) qkNorm(q, k ir.Value, a Attention) (ir.Value, ir.Value) {
	if a.QNorm == "" {
		return q, k
	}
	ofQ, ofK := a.Norm, a.Norm
	if a.Norm.Neighbours > 0 && !a.NormByHead {
		n.B.Errorf(ir.Pos{}, "norm %s: with a rope of interleaved pairs, a norm of q or k must have a scale for each head (NormByHead)", termsafe.Quote(a.QNorm))
	}
	if a.NormByHead {
		ofQ.Scales, ofK.Scales = a.Heads, a.KVHeads
		ofQ.Parts, ofK.Parts = n.Ranks(), a.KeyParts
	}
	if a.NormWhole && n.Ranks() > 1 {
		q = n.normOfRanks(q, a.Weight+"q_norm", a.QNorm, ofQ, n.Ranks())
		k = n.normOfRanks(k, a.Weight+"k_norm", a.KNorm, ofK, a.KeyParts)
		n.SetLoc(a.Loc)
		return q, k
	}
	q = n.Norm(q, a.Weight+"q_norm", a.QNorm, ofQ)
	k = n.Norm(k, a.Weight+"k_norm", a.KNorm, ofK)
	n.SetLoc(a.Loc)
	return q, k
}

// cachePlacement returns the placement of a KV cache whose heads are divided into parts. Ranks that share a part hold
// copies of it, which a sharded placement cannot express, so the placement is then varying.
func (n *Net) cachePlacement(parts int64) []ir.Placement {
	switch {
	case n.Ranks() == 1:
		return nil
	case parts == n.Ranks():
		return []ir.Placement{{Group: rankGroup, Kind: ir.Sharded, Axis: 3}}
	}
	return []ir.Placement{{Group: rankGroup, Kind: ir.Varying}}
}
