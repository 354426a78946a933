package autodiff

import (
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// Every rank of a group computes the gradient as it computes the function, and has the same loss. A
// replicated value has a replicated cotangent. So has a partial sum, since each rank's term
// contributes once. The cotangent of a shard is a shard.
//
// Where a value that all ranks have in common meets shards, each rank's product gives a part of
// its cotangent: the sum over the ranks is all of it. This is the "f" of Megatron's layers
// (arXiv:1909.08053), and the all-reduce of gradients of data-parallel training, whose batch is the shard.

// ofAllRanks returns a cotangent of v, a value of F, as v is spread: summed over the ranks of the
// groups in which v is the same on each, or a partial sum, and the cotangent is not.
func (j *joint) ofAllRanks(v, g ir.Value) ir.Value {
	if len(j.m.Groups) == 0 {
		return g
	}
	own, cotangent := j.fb.Placed(j.value(v)), j.fb.Placed(g)
	for i, p := range own {
		apart := cotangent[i].Kind == ir.Partial || cotangent[i].Kind == ir.Varying
		if (p.Kind == ir.Replicated || p.Kind == ir.Partial) && apart {
			g = j.fb.Op1("all_reduce", []ir.Value{g}, ir.EnumAttr("group", p.Group))
		}
	}
	return g
}

// ofCotangent is how the cotangent of a value is spread that is spread so.
func ofCotangent(list []ir.Placement) []ir.Placement {
	return slices.DeleteFunc(slices.Clone(list), func(p ir.Placement) bool { return p.Kind == ir.Partial })
}

// placeAll ends a function and sets the placements of its results. The first ones have the
// placements of like's results, if like is not nil; the verifier derives the others.
func placeAll(fb *ir.FuncBuilder, results []ir.Value, like *ir.Func) {
	fb.Return(results...)
	for i, v := range results {
		list := fb.Placed(v)
		if like != nil && i < len(like.Returns) {
			list = like.ResultPlacement(i)
		}
		fb.PlaceResult(i, list...)
	}
}

// allGather gives a rank its block of the cotangent.
func allGather(s *step) {
	group := s.m.Group(s.n.Group())
	if group.Rank == "" {
		s.errs = append(s.errs, s.m.ErrorAt(s.f, slices.Index(s.f.Nodes, s.n), "all_gather: its gradient needs the rank: declare one (group %s in %d rank r)", group.Name, group.Size))
		return
	}
	axis := s.n.Axis("axis", s.argType(0).Rank())
	each, rank := s.argType(0).Shape[axis], dim.Sym(group.Rank)
	s.add(0, s.op("slice", []ir.Value{s.g()}, ir.IntAttr("axis", int64(axis)), ir.DimAttr("start", rank.Mul(each)), ir.DimAttr("end", rank.Mul(each).Add(each))))
}

// reduceScatter gives all blocks of the cotangent to each rank.
func reduceScatter(s *step) {
	s.add(0, s.op("all_gather", []ir.Value{s.g()}, ir.EnumAttr("group", s.n.Group()), s.attr("axis")))
}
