package autodiff

import (
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// All ranks of a group compute the gradients of one loss together, as they compute the function.
// A replicated value has a replicated cotangent. A partial sum has a replicated cotangent, too, since
// each rank's term contributes once. The cotangent of a shard is a shard.
//
// If an op combines a replicated value with shards, each rank computes a part of the value's cotangent,
// which is the sum of the parts over the ranks. This is the "f" of Megatron's layers (arXiv:1909.08053),
// and the all-reduce of gradients in data-parallel training, where the batch is the shard.

// ofAllRanks returns the cotangent g of v, a value of F. It sums g over the ranks of each group over which
// v is replicated or a partial sum, and g is partial or varying.
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

// ofCotangent returns the placements of the cotangent of a value with the given placements.
func ofCotangent(list []ir.Placement) []ir.Placement {
	return slices.DeleteFunc(slices.Clone(list), func(p ir.Placement) bool { return p.Kind == ir.Partial })
}

// placeAll ends a function and sets the placements of its results. If like is not nil, the first
// results have the placements of like's results. The others have those of their values.
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
