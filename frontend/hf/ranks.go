package hf

import (
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// The group whose ranks run a model together, and the symbol of the rank.
const (
	rankGroup  = "tp"
	rankSymbol = "r"
)

// Tensor parallelism divides a model among ranks (Shoeybi et al., "Megatron-LM", arXiv:1909.08053).
// A rank has its heads of attention and its features inside an MLP: the rows of the projections
// that make them, and the columns of the projection that reads them, whose products are partial
// sums. They are summed over the ranks twice a layer. What is between layers is the same on each rank.

// Share says how a projection is divided among ranks. The zero value leaves it whole.
type Share struct {
	// Rows are the sections of the rows of which each rank has its part: q, k and v of one matrix,
	// or all rows of another.
	Rows []Section

	// Inner says that a rank has its part of the features that come in, and that its products are
	// partial sums: [Net.Linear] sums them before the bias.
	Inner bool
}

// Section is consecutive rows of a projection.
type Section struct {
	Rows  int64
	Parts int64 // that they are divided into; fewer than there are ranks: neighbouring ranks have the same
}

// local is how many of a section's rows a rank has.
func (s Section) local() int64 { return s.Rows / s.Parts }

// Ranks returns how many devices run the model together.
func (n *Net) Ranks() int64 { return max(n.ranks, 1) }

// declareRanks adds the group.
func (n *Net) declareRanks(ranks int64) {
	n.ranks = ranks
	if ranks > 1 {
		n.B.Group(rankGroup, ranks, rankSymbol)
	}
}

// Divides reports whether a number of things can be divided among the ranks. Where it cannot,
// that is an error.
func (n *Net) Divides(count int64, what string) bool {
	if count%n.Ranks() != 0 {
		n.B.Errorf(ir.Pos{}, "%d %s cannot be divided among %d ranks: choose a number of ranks that divides them", count, what, n.Ranks())
	}
	return count%n.Ranks() == 0
}

// section is rows of which each rank has its own part.
func (n *Net) section(rows int64) Section { return Section{rows, n.Ranks()} }

// keyParts is the number of parts that heads of keys are divided into: with fewer heads than
// ranks, each is that of several neighbouring ranks, whose heads of queries read it. It is 0, and an
// error, where they do not divide.
func (n *Net) keyParts(heads int64) int64 {
	if heads%n.Ranks() == 0 {
		return n.Ranks()
	}
	if n.Ranks()%heads == 0 {
		return heads
	}
	n.B.Errorf(ir.Pos{}, "%d heads of keys and values (num_key_value_heads) cannot be shared by %d ranks: choose a multiple or a divisor of them", heads, n.Ranks())
	return 0
}

// divide takes a rank's share of a weight [rows, …], or of a bias [rows].
func (n *Net) divide(p part, s Share) part { return n.divideAt(p, 0, s) }

// divideAt is divide for rows along an axis, after which the features that come in are.
func (n *Net) divideAt(p part, axis int, s Share) part {
	rows := s.Rows
	if s.Inner {
		if axis++; axis == len(p.shape) { // a bias, which is added to the sum of all ranks
			return p
		}
		rows = []Section{n.section(p.shape[axis])}
	}
	if n.Ranks() == 1 || len(rows) == 0 {
		return p
	}
	form, local := p.form, int64(0)
	for _, r := range rows {
		local += r.local()
	}
	p.shape = append([]int64{}, p.shape...)
	p.shape[axis] = local
	p.form = func(leaf *ir.WeightExpr) *ir.WeightExpr { return divided(form(leaf), int64(axis), rows) }
	return p
}

// divided joins the rank's parts of sections along an axis.
func divided(e *ir.WeightExpr, axis int64, sections []Section) *ir.WeightExpr {
	if len(sections) == 1 {
		return ir.ShardExpr(e, axis, sections[0].Parts, rankGroup)
	}
	var exprs []*ir.WeightExpr
	start := int64(0)
	for _, s := range sections {
		exprs = append(exprs, ir.ShardExpr(sliced(e, axis, start, start+s.Rows), axis, s.Parts, rankGroup))
		start += s.Rows
	}
	return &ir.WeightExpr{Op: ir.WeightConcat, Args: exprs, Attrs: []ir.Attr{ir.IntAttr("axis", axis)}}
}

// reduced returns the sum of x over the ranks.
func (n *Net) reduced(x ir.Value) ir.Value {
	if n.Ranks() == 1 {
		return x
	}
	return n.F.Op1("all_reduce", []ir.Value{x}, ir.EnumAttr("group", rankGroup))
}

// gathered joins the last axis of x over the ranks.
func (n *Net) gathered(x ir.Value) ir.Value {
	return n.F.Op1("all_gather", []ir.Value{x}, ir.EnumAttr("group", rankGroup), ir.IntAttr("axis", -1))
}

// own returns positions counted from the first of each that the rank has, those of the rank
// where is true at, and elsewhere the nearest that it has.
func (n *Net) own(index ir.Value, each int64) (local, is ir.Value) {
	rank := dim.Sym(rankSymbol)
	ranks := n.F.Op1("iota", nil, ir.IntsAttr("shape", n.Ranks()), ir.DTypeAttr(dtype.I32))
	first := n.F.Op1("mul", []ir.Value{n.F.Op1("slice", []ir.Value{ranks}, ir.IntAttr("axis", 0), ir.DimAttr("start", rank), ir.DimAttr("end", rank.Add(dim.Const(1)))), n.F.Int(each)})
	local = n.F.Op1("sub", []ir.Value{index, first})
	is = n.within(local, each)
	return n.F.Op1("clamp", []ir.Value{local, n.F.Int(0), n.F.Int(each - 1)}), is
}

// within reports where 0 <= x < end.
func (n *Net) within(x ir.Value, end int64) ir.Value {
	compare := func(dir string, v int64) ir.Value {
		return n.F.Op1("compare", []ir.Value{x, n.F.Int(v)}, ir.EnumAttr("dir", dir))
	}
	return n.F.Op1("and", []ir.Value{compare("ge", 0), compare("lt", end)})
}

// vocabularyDivided reports whether ranks have parts of a vocabulary. One that does not divide is
// whole on each rank: the product of its few rows more costs less than a padded table would.
func (n *Net) vocabularyDivided(vocab int64) bool { return n.Ranks() > 1 && vocab%n.Ranks() == 0 }

// embeddingOfRanks is Embedding where each rank has its part of the table. An id that no rank has
// is one that the model does not have: it reads zeros, and every rank reports it (C12).
func (n *Net) embeddingOfRanks(ids ir.Value, weight, tensor string, size, hidden int64) ir.Value {
	table := n.weight(weight, []part{n.divide(asStored(Matrix(tensor+".weight", size, hidden)), Share{Rows: []Section{n.section(size)}})})
	local, is := n.own(ids, size/n.Ranks())
	local = n.F.Op1("where", []ir.Value{n.within(ids, size), local, ids})
	rows := n.F.Op1("embedding", []ir.Value{table, local})
	mine := n.F.Op1("reshape", []ir.Value{is}, ir.DimsAttr("shape", n.Tokens, dim.Const(1)))
	return n.reduced(n.F.Op1("where", []ir.Value{mine, rows, n.F.Float(0)}))
}

// normOfRanks is an RMS norm over features of which each rank has a part: the mean of the squares
// is that of all ranks. parts is how many different parts there are.
func (n *Net) normOfRanks(x ir.Value, weight, tensor string, norm Norm, parts int64) ir.Value {
	n.SetLoc(tensor)
	whole := n.width(x) * parts
	scale := n.weight(weight, []part{n.divide(asStored(Scale(tensor+".weight", whole, 1)), Share{Rows: []Section{{whole, parts}}})})
	x = n.f32(x)
	sum := n.F.Op1("sum", []ir.Value{n.F.Op1("mul", []ir.Value{x, x})}, ir.IntsAttr("axes", 1), ir.BoolAttr("keepdims", true))
	mean := n.F.Op1("div", []ir.Value{n.reduced(sum), n.F.Float(float64(whole * n.Ranks() / parts))})
	factor := n.F.Op1("rsqrt", []ir.Value{n.F.Op1("add", []ir.Value{mean, n.F.Float(norm.Eps)})})
	return n.rounded(n.F.Op1("mul", []ir.Value{n.F.Op1("mul", []ir.Value{x, factor}), n.f32(scale)}))
}
