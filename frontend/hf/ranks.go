package hf

import (
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// The group of the ranks that run a model together, and the symbol of a rank's number.
const (
	rankGroup  = "tp"
	rankSymbol = "r"
)

// Tensor parallelism divides a model among ranks (Shoeybi et al., "Megatron-LM", arXiv:1909.08053).
// A rank has a part of the attention heads and of the intermediate features of each MLP. It has the
// rows of the projections that compute this part (column-parallel in Megatron's terms), and the
// columns of the projection that reads it (row-parallel), whose results are partial sums. An
// all-reduce adds them after attention and after the MLP. The hidden states between layers are the
// same on each rank.

// Share is how a projection is divided among ranks. The zero value gives each rank the whole projection.
type Share struct {
	// Rows divides each of these sections of the rows among the ranks: q, k and v of one matrix, or one section of all
	// rows.
	Rows []Section

	// Inner divides the input features among the ranks. The results are then partial sums, and [Net.Linear] adds those
	// of all ranks before the bias.
	Inner bool
}

// Section is a number of consecutive rows of a projection.
type Section struct {
	Rows  int64
	Parts int64 // number of equal parts; if it is below the number of ranks, neighbouring ranks have the same part
}

// local returns the number of a section's rows that a rank has.
func (s Section) local() int64 { return s.Rows / s.Parts }

// Ranks returns the number of devices that run the model together.
func (n *Net) Ranks() int64 { return max(n.ranks, 1) }

// declareRanks declares the group of ranks, if there are several.
func (n *Net) declareRanks(ranks int64) {
	n.ranks = ranks
	if ranks > 1 {
		n.B.Group(rankGroup, ranks, rankSymbol)
	}
}

// Divides reports whether the number of ranks divides count. If not, it records an error.
func (n *Net) Divides(count int64, what string) bool {
	if count%n.Ranks() != 0 {
		n.B.Errorf(ir.Pos{}, "%d %s cannot be divided among %d ranks: choose a number of ranks that divides them", count, what, n.Ranks())
	}
	return count%n.Ranks() == 0
}

// section returns the section of rows of which each rank has a different part.
func (n *Net) section(rows int64) Section { return Section{rows, n.Ranks()} }

// keyParts returns the number of parts into which KV heads are divided. With fewer heads than ranks,
// neighbouring ranks have the same head, which their query heads read. If neither number divides the
// other, keyParts records an error and returns 0.
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

// divide returns a rank's share of a weight [rows, …], or of a bias [rows].
func (n *Net) divide(p part, s Share) part { return n.divideAt(p, 0, s) }

// divideAt is divide for a weight whose rows are along the given axis, and its input features along the next.
func (n *Net) divideAt(p part, axis int, s Share) part {
	rows := s.Rows
	if s.Inner {
		if axis++; axis == len(p.shape) { // a bias stays whole: it is added after the all-reduce
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

// divided concatenates a rank's parts of sections along an axis.
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

// gathered concatenates x of all ranks along the last axis.
func (n *Net) gathered(x ir.Value) ir.Value {
	return n.F.Op1("all_gather", []ir.Value{x}, ir.EnumAttr("group", rankGroup), ir.IntAttr("axis", -1))
}

// own converts indices into indices of the rank's block of consecutive ones. The argument each is the
// number of indices of a block. The result mine marks the indices in the block; in local, the others are clamped to it.
func (n *Net) own(index ir.Value, each int64) (local, mine ir.Value) {
	rank := dim.Sym(rankSymbol)
	ranks := n.F.Op1("iota", nil, ir.IntsAttr("shape", n.Ranks()), ir.DTypeAttr(dtype.I32))
	first := n.F.Op1("mul", []ir.Value{n.F.Op1("slice", []ir.Value{ranks}, ir.IntAttr("axis", 0), ir.DimAttr("start", rank), ir.DimAttr("end", rank.Add(dim.Const(1)))), n.F.Int(each)})
	local = n.F.Op1("sub", []ir.Value{index, first})
	mine = n.within(local, each)
	return n.F.Op1("clamp", []ir.Value{local, n.F.Int(0), n.F.Int(each - 1)}), mine
}

// within returns which elements of x are in [0, end).
func (n *Net) within(x ir.Value, end int64) ir.Value {
	compare := func(dir string, v int64) ir.Value {
		return n.F.Op1("compare", []ir.Value{x, n.F.Int(v)}, ir.EnumAttr("dir", dir))
	}
	return n.F.Op1("and", []ir.Value{compare("ge", 0), compare("lt", end)})
}

// vocabularyDivided reports whether the table and the head are divided among the ranks. If the number of ranks does not
// divide the vocabulary, each rank has it whole, because weight expressions cannot pad a table.
func (n *Net) vocabularyDivided(vocab int64) bool { return n.Ranks() > 1 && vocab%n.Ranks() == 0 }

// embeddingOfRanks is Embedding with the table divided among the ranks. An id outside of the vocabulary reads zeros,
// and every rank reports it (C12): its index stays unclamped, so that it is out of range for the rank's part too.
func (n *Net) embeddingOfRanks(ids ir.Value, weight, tensor string, size, hidden int64) ir.Value {
	table := n.weight(weight, []part{n.divide(asStored(Matrix(tensor+".weight", size, hidden)), Share{Rows: []Section{n.section(size)}})})
	local, mine := n.own(ids, size/n.Ranks())
	local = n.F.Op1("where", []ir.Value{n.within(ids, size), local, ids})
	rows := n.F.Op1("embedding", []ir.Value{table, local})
	mine = n.F.Op1("reshape", []ir.Value{mine}, ir.DimsAttr("shape", n.Tokens, dim.Const(1)))
	return n.reduced(n.F.Op1("where", []ir.Value{mine, rows, n.F.Float(0)}))
}

// normOfRanks is Norm over features that are divided among the ranks, with means over all ranks. parts is the number of
// different parts. The norm has one scale for all rows.
func (n *Net) normOfRanks(x ir.Value, weight, tensor string, norm Norm, parts int64) ir.Value {
	n.SetLoc(tensor)
	whole := n.width(x) * parts
	own := func(weight string, p Param) ir.Value {
		return n.weight(weight, []part{n.divide(asStored(p), Share{Rows: []Section{{whole, parts}}})})
	}
	mean := func(x ir.Value) ir.Value {
		sum := n.F.Op1("sum", []ir.Value{x}, ir.IntsAttr("axes", 1), ir.BoolAttr("keepdims", true))
		return n.F.Op1("div", []ir.Value{n.reduced(sum), n.F.Float(float64(whole * n.Ranks() / parts))})
	}
	dummy := 1.0
	if norm.FromOne {
		dummy = 0
	}
	scale := own(weight, Scale(tensor+".weight", whole, dummy))
	x = n.f32(x)
	if norm.Centered {
		x = n.F.Op1("sub", []ir.Value{x, mean(x)})
	}
	squares := mean(n.F.Op1("mul", []ir.Value{x, x}))
	factor := n.F.Op1("rsqrt", []ir.Value{n.F.Op1("add", []ir.Value{squares, n.F.Float(norm.Eps)})})
	x = n.F.Op1("mul", []ir.Value{x, factor})
	scale = n.f32(scale)
	if norm.FromOne {
		scale = n.F.Op1("add", []ir.Value{scale, n.F.Float(1)})
	}
	x = n.F.Op1("mul", []ir.Value{x, scale})
	if norm.Centered && !norm.Unbiased {
		x = n.F.Op1("add", []ir.Value{x, n.f32(own(weight+"_bias", Vector(tensor+".bias", whole)))})
	}
	return n.rounded(x)
}
