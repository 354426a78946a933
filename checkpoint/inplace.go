package checkpoint

import (
	"pwc/ir"
	"pwc/safetensors"
)

// InPlace returns the bytes of a weight inside a mapped file of src, and the file's path. ok is
// false if the bytes must be computed, if there are none, if the parts of a concatenation are not
// adjacent in one file, and if Compute fails. InPlace copies and reads no bytes.
func InPlace(src safetensors.Mapped, w *ir.Weight) (bytes []byte, path string, ok bool) {
	if src == nil || w == nil || !inPlace(src, expression(w)) {
		return nil, "", false
	}
	t, err := Compute(src, w)
	if err != nil {
		return nil, "", false
	}
	return src.Contiguous(t.Parts...)
}

// inPlace reports whether the value of an expression is stored in the checkpoint: rows of one
// tensor, or of several in order.
func inPlace(src safetensors.Source, e *ir.WeightExpr) bool {
	if e.Op != ir.WeightConcat {
		return oneRange(src, e)
	}
	for _, a := range e.Args {
		if !oneRange(src, a) {
			return false
		}
	}
	return exprInt(e, "axis", 0) == 0
}

// oneRange reports whether the value of an expression is one range of a tensor's bytes.
func oneRange(src safetensors.Source, e *ir.WeightExpr) bool {
	switch e.Op {
	case ir.WeightTensor:
		return true
	case ir.WeightReshape:
	case ir.WeightSlice:
		if exprInt(e, "axis", 0) != 0 || exprInt(e, "step", 1) != 1 {
			return false
		}
	case ir.WeightShard:
		if s, ok := e.Shard(); !ok || s.Axis != 0 {
			return false
		}
	case ir.WeightCast:
		return castsNothing(src, e)
	default:
		return false
	}
	return oneRange(src, e.Args[0])
}

// castsNothing reports whether e casts a tensor to its own dtype.
func castsNothing(src safetensors.Source, e *ir.WeightExpr) bool {
	if e.Args[0].Op != ir.WeightTensor {
		return false
	}
	info, err := src.Info(e.Args[0].Name)
	return err == nil && info.DType == castTo(e)
}
