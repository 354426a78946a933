package checkpoint

import (
	"fmt"

	"pwc/ir"
	"pwc/safetensors"
)

// evalShard computes one part of an expression. If possible it takes the part of the tensors, so
// that a rank reads only its own bytes of the checkpoint.
func evalShard(src safetensors.Source, e *ir.WeightExpr, s ir.Shard) (tensor, error) {
	if s.Part < 0 || s.Parts < 1 {
		return tensor{}, fmt.Errorf("shard: the part is that of a rank in group %s, and no rank is given (Module.WeightOf)", s.Group)
	}
	if axis, ok := within(e, s.Axis); ok {
		c := *e
		c.Args = make([]*ir.WeightExpr, len(e.Args))
		for i, a := range e.Args {
			c.Args[i] = &ir.WeightExpr{Op: ir.WeightShard, Args: []*ir.WeightExpr{a}, Pos: e.Pos, Attrs: []ir.Attr{
				ir.IntAttr("axis", axis), ir.IntAttr("parts", s.Parts), ir.IntAttr("part", s.Part)}}
		}
		return evalExpr(src, &c)
	}
	x, err := evalExpr(src, e)
	if err != nil {
		return tensor{}, err
	}
	x = x.whole()
	_, at, _, err := around(x.shape, s.Axis)
	if err != nil {
		return x, err
	}
	if at%s.Parts != 0 {
		return x, fmt.Errorf("shard: axis %d of %v has %d elements, which are not %d equal parts", s.Axis, x.shape, at, s.Parts)
	}
	each := at / s.Parts
	return sliceHost(x, s.Axis, s.Part*each, (s.Part+1)*each, 1)
}

// within returns the axis of the operands of e along which a part of an operand gives the part of
// e along axis, if there is one.
func within(e *ir.WeightExpr, axis int64) (int64, bool) {
	perm := exprInts(e, "perm")
	switch e.Op {
	case ir.WeightCast:
		return axis, true
	case ir.WeightTranspose:
		if axis < 0 {
			axis += int64(len(perm))
		}
		if axis >= 0 && axis < int64(len(perm)) {
			return perm[axis], true
		}
	case ir.WeightConcat:
		along := exprInt(e, "axis", 0)
		if along >= 0 && axis >= 0 && along != axis {
			return axis, true
		}
	}
	return 0, false
}
