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
// is there, is the number of latest positions that a token sees, itself included; softcap, if it is there, bounds what
// the softmax is taken of: cap·tanh(scale·q·k/cap).
const AttentionOp = "attention::paged"

// Attention is self-attention with its projections.
type Attention struct {
	Weight   string       // prefix of the module's weights and state: "l0."
	Loc      string       // "model.layers.0.self_attn"
	QKV      []Projection // q, k and v, or one of them all
	Out      Projection
	Heads    int64 // of a rank, as KVHeads
	KVHeads  int64 // divides Heads: each serves Heads/KVHeads of them (GQA, arXiv:2305.13245)
	KeyParts int64 // that the heads of keys and values of all ranks are divided into; 0: one
	HeadSize int64
	QKVBias  bool
	OutBias  bool

	Scale   float64 // multiplies q·k; 0: 1/sqrt(HeadSize)
	Softcap float64 // bounds what the softmax is taken of; 0: no bound
	Window  int64   // latest positions that a token sees; 0: all

	// QNorm and KNorm are the checkpoint's norms of q and k before they turn, of each head by itself or, with NormWhole,
	// of all heads together. They are empty where there is none.
	// With NormByHead, each head has a scale of its own (Norm.Scales).
	QNorm, KNorm          string
	NormWhole, NormByHead bool
	Norm                  Norm

	// Rope turns q and k; nil: they stay.
	Rope *RopeTables

	// QueryScale is [N, 1, 1], which multiplies q after it turned; ir.NoValue: nothing does.
	QueryScale ir.Value
}

// Attention adds the block for x[N, hidden]. The projections of q, k and v are one product.
func (n *Net) Attention(x ir.Value, a Attention) ir.Value {
	q, kv := a.Heads*a.HeadSize, a.KVHeads*a.HeadSize
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

// qkNorm normalizes the last axes of q and k, if a says so.
func (n *Net) qkNorm(q, k ir.Value, a Attention) (ir.Value, ir.Value) {
	if a.QNorm == "" {
		return q, k
	}
	ofQ, ofK := a.Norm, a.Norm
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

// cachePlacement says how a cache is spread over ranks, whose heads are divided into so many parts.
func (n *Net) cachePlacement(parts int64) []ir.Placement {
	switch {
	case n.Ranks() == 1:
		return nil
	case parts == n.Ranks():
		return []ir.Placement{{Group: rankGroup, Kind: ir.Sharded, Axis: 3}}
	}
	return []ir.Placement{{Group: rankGroup, Kind: ir.Varying}}
}
