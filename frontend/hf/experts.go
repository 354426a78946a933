package hf

import (
	"fmt"
	"slices"

	"pwc/ir"
)

// Experts is a mixture of experts: gated MLPs, of which a router selects a few for each token (Shazeer et al.,
// arXiv:1701.06538). The result is the sum of the selected experts' results, weighted by the router's scores, a softmax
// over all experts.
type Experts struct {
	Weight     string       // prefix of the module's weights: "l0."
	Loc        string       // "model.layers.0.block_sparse_moe"
	Router     Projection   // one row per expert
	Count      int64        // experts of all ranks together
	Own        int64        // experts of one rank. If it is Count, each rank has a part of every expert
	Up         []Projection // gate and up of the first expert, then of the second, …; or one for all (Projection.Stacked)
	Down       []Projection // one for each expert; or one for all
	PerToken   int64        // experts that a token computes
	Normalize  bool         // the scores of a token's experts are divided by their sum
	Activation string       // op of the IR

	// Shared, if it is not nil, is an expert that every token computes. Its weight is the sigmoid
	// of SharedGate, which has one row (Qwen1.5-MoE).
	Shared     *MLP
	SharedGate Projection
}

// Experts adds the block for x[N, hidden]. The gate and up matrices of all experts are one weight, the down matrices
// another. For each row, linear_select reads only the matrices of the selected experts. As in the reference, scores are
// computed in f32 from rounded logits, and each expert's result is rounded before it is multiplied by its score. The
// weighted sum is rounded once; the reference also rounds the scores and the terms.
//
// The sum is a row of additions, not the op sum. It has few terms, one per selected expert, and many features, so
// kernels compute it as pointwise ops and fuse it with the residual addition that follows.
func (n *Net) Experts(x ir.Value, e Experts) ir.Value {
	n.SetLoc(e.Loc)
	hidden := n.width(x)
	p := n.F.Op1("softmax", []ir.Value{n.f32(n.Linear(x, e.Weight+"router", false, e.Router))})
	chosen := n.F.Op("topk", []ir.Value{p}, ir.IntAttr("k", e.PerToken))
	if len(chosen) != 2 {
		return ir.NoValue // the builder has recorded the error
	}
	scores, index := chosen[0], chosen[1]
	if e.Normalize {
		sum := n.F.Op1("sum", []ir.Value{scores}, ir.IntsAttr("axes", 1), ir.BoolAttr("keepdims", true))
		scores = n.F.Op1("div", []ir.Value{scores, sum})
	}

	n.SetLoc(e.Loc + ".experts")
	if e.Own < e.Count { // scores of other ranks' experts are 0
		var mine ir.Value
		index, mine = n.own(index, e.Own)
		scores = n.F.Op1("where", []ir.Value{mine, scores, n.F.Float(0)})
	}
	both := n.selected(n.reshape(x, 1, hidden), index, e.Weight+"experts_gate_up", e, e.Up)
	half := n.width(both) / 2
	gate := n.parts(both, half, half)
	act := n.F.Op1("mul", []ir.Value{n.F.Op1(e.Activation, gate[:1]), gate[1]})
	out := n.split(n.selected(act, index, e.Weight+"experts_down", e, e.Down), 1, ones(e.PerToken))

	var sum ir.Value
	for i, score := range n.split(n.reshape(scores, e.PerToken, 1), 1, ones(e.PerToken)) {
		y := n.F.Op1("mul", []ir.Value{n.f32(out[i]), score})
		if i > 0 {
			y = n.Add(sum, y)
		}
		sum = y
	}
	result := n.reduced(n.rounded(n.reshape(sum, hidden)))
	if e.Shared == nil {
		return result
	}
	shared := n.MLP(x, *e.Shared)
	n.SetLoc(e.Loc)
	weight := n.F.Op1("sigmoid", []ir.Value{n.Linear(x, e.Weight+"shared_gate", false, e.SharedGate)})
	return n.Add(result, n.F.Op1("mul", []ir.Value{weight, shared}))
}

// selected returns x·W[index]ᵀ, [N, k, rows], for x[N, 1 or k, in], index[N, k] and W[experts, rows, in]. The
// projections are those of the first expert, then of the second, …; or one with the matrices of all.
func (n *Net) selected(x, index ir.Value, weight string, e Experts, ps []Projection) ir.Value {
	parts := make([]part, len(ps))
	for i, p := range ps {
		if e.Own < e.Count {
			p.Share = Share{}
		}
		parts[i] = n.ofRank(p, x)
	}
	return n.F.Op1("linear_select", []ir.Value{x, n.stack(weight, e.Count, e.Count/e.Own, parts), index})
}

func ones(n int64) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = 1
	}
	return list
}

// maxExperts bounds the experts of all layers together, because each expert has its own tensors.
const maxExperts = 1 << 17

// ExpertLayers has the settings that all layers with experts of a decoder share.
type ExpertLayers struct {
	Count, PerToken int64
	Inner           int64 // intermediate features of an expert
	Shared          int64 // intermediate features of the expert that all tokens compute, if Names has one
	Normalize       bool
	Dense           []bool // true for layers that have a dense MLP instead; nil: every layer has experts
}

// ReadExperts honours keys, which give the number of experts and must agree, and num_experts_per_tok. Their defaults
// are count and perToken. The argument inner is the number of intermediate features of an expert. Keys of training are
// inert.
func (d *Decoder) ReadExperts(c *Config, inner, count, perToken int64, keys ...string) {
	e := &ExpertLayers{Count: count, Inner: inner}
	first := ""
	for _, key := range keys {
		if !c.Has(key) {
			continue
		}
		v := c.Int(key, 1, maxExperts)
		if first != "" && v != e.Count {
			c.Errorf(key, "%d contradicts %s, %d", v, first, e.Count)
		}
		e.Count, first = v, key
	}
	if e.Count*d.Layers > maxExperts {
		c.Errorf(keys[0], "%d experts in %d layers are more than %d", e.Count, d.Layers, maxExperts)
		e.Count = 1
	}
	e.PerToken = c.IntOr("num_experts_per_tok", perToken, 1, maxExperts)
	if e.PerToken > e.Count {
		c.Errorf("num_experts_per_tok", "%d is more than the %d experts", e.PerToken, e.Count)
	}
	c.Inert("output_router_logits", "router_aux_loss_coef")
	d.Experts = e
}

// stacked returns the projection for a tensor with the matrices of all experts. Published checkpoints store it as
// [experts, in, rows], and transformers 5 writes [experts, rows, in]. If both are the same shape, stacked takes the
// latter.
func (n *Net) stacked(tensor string, experts, rows, in int64) Projection {
	p := Projection{Tensor: tensor, Rows: experts * rows, Stacked: experts, Transposed: true}
	if n.has(tensor) {
		info, err := n.source.Info(tensor)
		p.Transposed = err != nil || !slices.Equal(info.Shape, []int64{experts, rows, in})
	}
	return p
}

// sparse reports whether layer i has experts.
func (e *ExpertLayers) sparse(i int64) bool { return e != nil && (e.Dense == nil || !e.Dense[i]) }

// experts describes the experts of a layer, whose tensors have the prefix.
func (d *Decoder) experts(n *Net, weight, prefix string) Experts {
	e := Experts{
		Weight: weight, Loc: loc(prefix), PerToken: d.Experts.PerToken, Normalize: d.Experts.Normalize, Activation: d.Activation,
		Router: Projection{Tensor: prefix + d.Names.Router, Rows: d.Experts.Count}, Count: d.Experts.Count, Own: d.Experts.Count,
	}
	if n.expertParallel {
		e.Own /= n.Ranks()
	}
	up, down := prefix+d.Names.StackedUp, prefix+d.Names.StackedDown
	if d.Names.StackedUp != "" && (n.source == nil || n.has(up)) {
		e.Up = []Projection{n.stacked(up, d.Experts.Count, 2*d.Experts.Inner, d.Hidden)}
		e.Down = []Projection{n.stacked(down, d.Experts.Count, d.Hidden, d.Experts.Inner)}
		share(e.Up, n.section(d.Experts.Inner), n.section(d.Experts.Inner))
		e.Down[0].Share.Inner = true
		return e
	}
	for i := range d.Experts.Count {
		expert := prefix + fmt.Sprintf(d.Names.Expert, i)
		up := d.projections(expert, d.Names.Up, d.Experts.Inner, d.Experts.Inner)
		share(up, n.section(d.Experts.Inner), n.section(d.Experts.Inner))
		down := d.projections(expert, []string{d.Names.Down}, d.Hidden)
		down[0].Share.Inner = true
		e.Up, e.Down = append(e.Up, up...), append(e.Down, down...)
	}
	if d.Names.Shared != "" {
		shared := d.mlp(n, weight+"shared_", prefix+d.Names.Shared, d.Experts.Shared)
		e.Shared, e.SharedGate = &shared, Projection{Tensor: prefix + d.Names.SharedGate, Rows: 1}
	}
	return e
}
