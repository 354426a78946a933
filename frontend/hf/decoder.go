package hf

import (
	"fmt"
	"slices"
	"strings"

	"pwc/ir"
	"pwc/ir/dtype"
)

// Decoder is the common shape of language models: an embedding, layers of attention and MLP with
// norms and residuals, a last norm and a head. Families read it with [ReadDecoder], set their
// differences, and return its Emit.
type Decoder struct {
	Vocab, Hidden, Inner, Layers int64

	Heads, KVHeads, HeadSize int64

	Names      Names
	Norm       Norm          // settings of every norm
	Activation string        // op of the IR
	Gated      bool          // the MLP has a gate
	Experts    *ExpertLayers // nil: every MLP is dense

	QKVBias, OutBias, MLPBias bool
	Tied                      bool // the head uses the embedding's table

	// QKNormWhole: the norms of q and k, if Names has them, normalize all heads together instead of each head.
	// QKNormByHead: each head has its own scale.
	QKNormWhole, QKNormByHead bool

	// Parallel: attention and MLP both read the layer's input, and their results are added to it. They share one norm
	// if Names.MLPNorm is empty.
	Parallel bool

	// Transposed: the layers' matrices are stored as [features in, features out]. Interleaved: q, k and v are stored
	// head after head (Projection.Heads).
	Transposed, Interleaved bool

	Positions int64  // learned positions, whose embeddings are added; 0: the model has none
	Rope      Rope   // no frequencies if the model has no rope
	LocalRope *Rope  // of the layers that have a window; nil: Rope
	Unturned  []bool // true for layers without a rope; nil: every layer has one

	// Neighbours: the rope rotates interleaved pairs of elements (Projection.Neighbours).
	Neighbours bool

	// QueryBeta and QueryPeriod, if not 0, multiply q at position p by 1 + QueryBeta·ln(1 + ⌊p/QueryPeriod⌋), as in
	// Ministral 3. (Llama 4 has p+1 in place of p.)
	QueryBeta, QueryPeriod float64

	Windows []int64   // attention window of each layer, 0: all positions; nil: all positions in every layer
	Scales  []float64 // factor of q·k in each layer; nil: 1/sqrt(HeadSize) in every layer
	Softcap float64   // of the attention scores; 0: no softcap

	EmbedScale    float64 // multiplies the embedding; 0: 1
	RoundScale    bool    // EmbedScale is rounded to the model's dtype, and its node has the embedding's location
	ResidualScale float64 // multiplies the results of attention and MLP before they are added; 0: 1
	HeadBias      bool    // the head has a bias
	LogitScale    float64 // multiplies the logits; 0: 1
	LogitDivisor  float64 // divides the logits; 0: 1
	LogitSoftcap  float64 // bounds the logits; 0: no bound
}

// Names has a checkpoint's names of the parts of a decoder, without ".weight". A norm with an empty
// name does not exist.
type Names struct {
	Base      string // prefix of all others except Head: "model."
	Embed     string
	Positions string // table of learned positions
	Layer     string // prefix of a layer's parts, with the layer's number: "layers.%d."
	Norm      string // the final norm
	Head      string // for text parts of multimodal models, Net.heads replaces it

	// The norms of a layer before and after attention and MLP, inside the residual branches.
	AttentionNorm, AttentionPostNorm, MLPNorm, MLPPostNorm string

	Attention    string   // prefix of attention's parts: "self_attn."
	QKV          []string // q, k and v, or one name if they are one matrix
	Out          string
	QNorm, KNorm string

	MLP    string   // prefix of the parts of the MLP or of the experts: "mlp."
	Up     []string // the gate first, or one name if both are one matrix
	Down   string
	Router string // of layers with experts

	Activation             string // module of the MLP's activation
	Dropout                string // dropout module after the sum of the embeddings of tokens and positions
	Expert                 string // prefix of an expert's Up and Down, with the expert's number: "experts.%d."
	StackedUp, StackedDown string // tensors that hold the matrices of all experts; empty: one tensor per expert
	Shared                 string // prefix of the expert that all tokens compute; empty: the model has no such expert
	SharedGate             string // gate of that expert

	Buffers []Buffer // of each layer
}

// llamaNames are Llama's names, which most families use too.
func llamaNames() Names {
	return Names{
		Base: "model.", Embed: "embed_tokens", Layer: "layers.%d.", Norm: "norm", Head: "lm_head",
		AttentionNorm: "input_layernorm", MLPNorm: "post_attention_layernorm",
		Attention: "self_attn.", QKV: []string{"q_proj", "k_proj", "v_proj"}, Out: "o_proj",
		MLP: "mlp.", Up: []string{"gate_proj", "up_proj"}, Down: "down_proj", Activation: "act_fn",
		Buffers: []Buffer{{"self_attn.rotary_emb.inv_freq", RopeFrequencies}},
	}
}

// Emit builds the module.
func (d *Decoder) Emit(n *Net) {
	if !d.divides(n) {
		return // every layer would report the same error again
	}
	base, output := n.Base(d.Names.Base, d.Names.Embed+".weight"), n.head(d.Names.Head)
	table := base + d.Names.Embed
	if d.Tied && !n.has(table+".weight") && n.has(output+".weight") {
		table = output // tools may save a tied matrix under either name
	}
	ids, pos := n.Forward()
	n.SetLoc(table)
	var x ir.Value
	if n.vocabularyDivided(d.Vocab) {
		x = n.embeddingOfRanks(ids, "embed", table, d.Vocab, d.Hidden)
	} else {
		x = n.Embedding(ids, "embed", table, d.Vocab, d.Hidden)
	}
	if d.RoundScale {
		x = n.Times(x, n.DType.Round(d.EmbedScale))
	} else {
		n.SetLoc(loc(base))
		x = n.Times(x, d.EmbedScale)
	}
	if d.Positions > 0 {
		n.learned = d.Positions
		positions := n.Embedding(pos, "positions", base+d.Names.Positions, d.Positions, d.Hidden)
		n.SetLoc(base + d.Names.Dropout)
		x = n.Add(x, positions)
	}
	t := &turns{pos: pos, loc: base + "rotary_emb", scale: ir.NoValue}
	for i := range d.Layers {
		x = d.layer(n, x, i, base+fmt.Sprintf(d.Names.Layer, i), t)
	}
	n.F.Return(n.Norm(x, "norm", base+d.Names.Norm, d.Norm))

	head := Head{
		Weight: "head", Projection: Projection{Tensor: output, Module: output, Rows: d.Vocab},
		Bias: d.HeadBias, Scale: d.LogitScale, Divisor: d.LogitDivisor, Softcap: d.LogitSoftcap,
	}
	if d.Tied && n.tied(output, table, d.Vocab, d.Hidden) {
		head.Weight, head.Projection.Tensor = "embed", table
	}
	n.Logits(d.Hidden, head)
	d.ignoreBuffers(n, base)
}

// divides reports whether the decoder can be divided among the ranks. It records an error for each size that cannot.
func (d *Decoder) divides(n *Net) bool {
	ok := n.Divides(d.Heads, "heads of attention (num_attention_heads)")
	ok = n.keyParts(d.KVHeads) > 0 && ok
	if d.Experts == nil || slices.Contains(d.Experts.Dense, true) {
		ok = n.Divides(d.Inner, "features inside an MLP (intermediate_size)") && ok
	}
	if e := d.Experts; e != nil {
		if n.expertParallel {
			ok = n.Divides(e.Count, "experts") && ok
		} else {
			ok = n.Divides(e.Inner, "features inside an expert") && ok
		}
		if d.Names.Shared != "" {
			ok = n.Divides(e.Shared, "features inside the shared expert") && ok
		}
	}
	return ok
}

// turns has the values that depend on a step's positions: the rope's tables and the scale of queries. The first layer
// that needs a value adds its nodes, and later layers use them.
type turns struct {
	pos         ir.Value // i32[N]
	loc         string
	full, local *RopeTables
	scale       ir.Value // factor of queries, [N, 1, 1]; ir.NoValue until it is added
}

// tables returns the rope's tables for layer i; nil if the layer has no rope.
func (t *turns) tables(n *Net, d *Decoder, i int64) *RopeTables {
	tables, rope := &t.full, d.rope(i)
	if d.turnsLocally(i) {
		tables = &t.local
	}
	if len(rope.InvFreq) == 0 || d.Unturned != nil && d.Unturned[i] {
		return nil
	}
	if *tables == nil {
		made := n.RopeTables(t.pos, rope, t.loc)
		*tables = &made
	}
	return *tables
}

// queryScale returns the factor of queries that depends on their position, or ir.NoValue if the model has no such
// factor.
func (t *turns) queryScale(n *Net, d *Decoder) ir.Value {
	if d.QueryBeta == 0 || t.scale != ir.NoValue {
		return t.scale
	}
	n.SetLoc(t.loc)
	p := n.reshape(n.F.Op1("cast", []ir.Value{t.pos}, ir.DTypeAttr(dtype.F32)), 1, 1)
	p = n.F.Op1("floor", []ir.Value{n.F.Op1("div", []ir.Value{p, n.F.Float(d.QueryPeriod)})})
	p = n.F.Op1("log", []ir.Value{n.F.Op1("add", []ir.Value{p, n.F.Float(1)})})
	p = n.F.Op1("add", []ir.Value{n.F.Op1("mul", []ir.Value{p, n.F.Float(d.QueryBeta)}), n.F.Float(1)})
	t.scale = n.rounded(p)
	return t.scale
}

// rope returns the rope of layer i.
func (d *Decoder) rope(i int64) Rope {
	if d.turnsLocally(i) {
		return *d.LocalRope
	}
	return d.Rope
}

func (d *Decoder) turnsLocally(i int64) bool { return d.LocalRope != nil && d.window(i) > 0 }

// layer adds layer i, whose tensors have the prefix, for x[N, hidden].
func (d *Decoder) layer(n *Net, x ir.Value, i int64, prefix string, t *turns) ir.Value {
	weight := fmt.Sprintf("l%d.", i)
	norm := func(x ir.Value, name, tensor string) ir.Value {
		if tensor == "" {
			return x
		}
		return n.Norm(x, weight+name, prefix+tensor, d.Norm)
	}
	names := d.Names
	a := d.attention(n, i, weight, prefix+names.Attention)
	a.Rope, a.QueryScale = t.tables(n, d, i), t.queryScale(n, d)
	m := norm(x, "attn_norm", names.AttentionNorm)
	h := norm(n.Attention(m, a), "attn_post_norm", names.AttentionPostNorm)
	n.SetLoc(loc(prefix))
	h = n.Times(h, d.ResidualScale)
	if !d.Parallel {
		x = n.Add(x, h)
	}
	if !d.Parallel || names.MLPNorm != "" {
		m = norm(x, "mlp_norm", names.MLPNorm)
	}
	if d.Experts.sparse(i) {
		m = n.Experts(m, d.experts(n, weight, prefix+names.MLP))
	} else {
		m = n.MLP(m, d.mlp(n, weight, prefix+names.MLP, d.Inner))
	}
	m = norm(m, "mlp_post_norm", names.MLPPostNorm)
	n.SetLoc(loc(prefix))
	m = n.Times(m, d.ResidualScale)
	if d.Parallel {
		m = n.Add(m, h)
	}
	return n.Add(x, m)
}

// window returns the attention window of layer i; 0: all positions.
func (d *Decoder) window(i int64) int64 {
	if d.Windows == nil {
		return 0
	}
	return d.Windows[i]
}

// attention describes the attention of layer i, whose tensors have the prefix.
func (d *Decoder) attention(n *Net, i int64, weight, prefix string) Attention {
	q, kv := d.Heads*d.HeadSize, d.KVHeads*d.HeadSize
	parts := n.keyParts(d.KVHeads)
	a := Attention{
		Weight: weight, Loc: loc(prefix), Heads: d.Heads / n.Ranks(), KVHeads: d.KVHeads / parts, KeyParts: parts, HeadSize: d.HeadSize,
		QKV: d.projections(prefix, d.Names.QKV, q, kv, kv), Out: d.projections(prefix, []string{d.Names.Out}, d.Hidden)[0],
		QKVBias: d.QKVBias, OutBias: d.OutBias, NormWhole: d.QKNormWhole, NormByHead: d.QKNormByHead, Norm: d.Norm,
		Softcap: d.Softcap, Window: d.window(i), QueryScale: ir.NoValue,
	}
	share(a.QKV, n.section(q), Section{kv, parts}, Section{kv, parts})
	a.Out.Share.Inner = true
	if d.Neighbours {
		turned := int64(2 * len(d.rope(i).InvFreq))
		for j := range 2 { // q and k
			a.QKV[j].Neighbours, a.QKV[j].HeadSize = turned, d.HeadSize
		}
		a.Norm.Neighbours = turned
	}
	if d.Interleaved {
		for j := range a.QKV {
			a.QKV[j].Heads = d.Heads
		}
	}
	if d.Names.QNorm != "" {
		a.QNorm, a.KNorm = prefix+d.Names.QNorm, prefix+d.Names.KNorm
	}
	if d.Scales != nil {
		a.Scale = d.Scales[i]
	}
	return a
}

// mlp describes an MLP whose tensors have the prefix. The argument inner is its number of intermediate features.
func (d *Decoder) mlp(n *Net, weight, prefix string, inner int64) MLP {
	up := []int64{inner}
	if d.Gated {
		up = []int64{inner, inner}
	}
	m := MLP{
		Weight: weight, Loc: loc(prefix), Gated: d.Gated, Activation: d.Activation, ActivationModule: d.Names.Activation, Bias: d.MLPBias,
		Up: d.projections(prefix, d.Names.Up, up...), Down: d.projections(prefix, []string{d.Names.Down}, d.Hidden)[0],
	}
	sections := make([]Section, len(up))
	for i := range up {
		sections[i] = n.section(inner)
	}
	share(m.Up, sections...)
	m.Down.Share.Inner = true
	return m
}

// share sets which rows of projections are divided among the ranks: one section for each projection, or all sections
// for a single one.
func share(ps []Projection, sections ...Section) {
	for i := range ps {
		ps[i].Share.Rows = sections[i : i+1]
		if len(ps) == 1 {
			ps[i].Share.Rows = sections
		}
	}
}

// loc returns the name of a part of the model, given the prefix of its tensors.
func loc(prefix string) string { return strings.TrimSuffix(prefix, ".") }

// projections returns a projection for each name, with the given rows. A single name is one matrix with the rows of
// all.
func (d *Decoder) projections(prefix string, names []string, rows ...int64) []Projection {
	if len(names) == 1 {
		total := int64(0)
		for _, r := range rows {
			total += r
		}
		rows = []int64{total}
	}
	ps := make([]Projection, len(names))
	for i, name := range names {
		ps[i] = Projection{Tensor: prefix + name, Rows: rows[i], Transposed: d.Transposed}
	}
	return ps
}
