package interp

import (
	"context"
	"errors"
	"fmt"

	"pwc/ir"
	"pwc/ir/dim"
)

// EvalWeight returns weight w of module m from the checkpoint's tensors, which get returns by
// name. It checks and computes the expression by the rules of its ops. If the weight is sharded,
// w must be the part of one rank ([ir.Module.WeightOf]). The result must have the weight's type. The end of
// ctx is an error, as in [Run].
func EvalWeight(ctx context.Context, m *ir.Module, w *ir.Weight, get func(name string) (*Tensor, error)) (*Tensor, error) {
	if m == nil || w == nil {
		return nil, fmt.Errorf("interp: a weight: %w", ir.ErrNoModule)
	}
	expr := w.Expr
	if expr == nil {
		expr = &ir.WeightExpr{Name: w.Name, Pos: w.Pos}
	}
	b := ir.NewBuilder(m.Name)
	b.Module().Source = m.Source
	fb := b.Func("weight")
	var leaves []*Tensor
	var build func(e *ir.WeightExpr) (ir.Value, error)
	build = func(e *ir.WeightExpr) (ir.Value, error) {
		fb.SetPos(e.Pos)
		if e.Op == ir.WeightTensor {
			t, err := get(e.Name)
			if err == nil && t == nil {
				err = errors.New("not found")
			}
			if err != nil {
				return ir.NoValue, fmt.Errorf("interp: weight @%s: tensor %q: %w", w.Name, e.Name, err)
			}
			leaves = append(leaves, t)
			return fb.Param(e.Name, typeOf(t)), nil
		}
		args := make([]ir.Value, len(e.Args))
		for i, a := range e.Args {
			v, err := build(a)
			if err != nil {
				return ir.NoValue, err
			}
			args[i] = v
		}
		fb.SetPos(e.Pos)
		if s, ok := e.Shard(); ok {
			v, err := part(fb, args[0], s)
			if err != nil {
				return ir.NoValue, fmt.Errorf("interp: weight @%s: %w", w.Name, err)
			}
			return v, nil
		}
		return fb.Op1(e.Op.String(), args, e.Attrs...), nil
	}
	v, err := build(expr)
	if err != nil {
		return nil, err
	}
	fb.Return(v)
	wm, err := b.Build()
	if err != nil {
		return nil, fmt.Errorf("interp: weight @%s: %w", w.Name, err)
	}
	out, err := Run(ctx, wm, wm.Func("weight"), nil, leaves)
	if err != nil {
		return nil, fmt.Errorf("interp: weight @%s: %w", w.Name, err)
	}
	if got := typeOf(out[0]); !got.Equal(w.Type) {
		return nil, fmt.Errorf("interp: weight @%s is %s, the checkpoint gives %s", w.Name, w.Type, got)
	}
	return out[0], nil
}

// part adds the slice of a shard.
func part(fb *ir.FuncBuilder, x ir.Value, s ir.Shard) (ir.Value, error) {
	if x == ir.NoValue {
		return x, nil // the builder has the reason
	}
	if s.Part < 0 {
		return ir.NoValue, fmt.Errorf("shard: the part depends on the rank in group %s: evaluate the expression that Module.WeightOf returns for the rank", s.Group)
	}
	shape := fb.Type(x).Shape
	axis := s.Axis
	if axis < 0 {
		axis += int64(len(shape))
	}
	if axis < 0 || axis >= int64(len(shape)) {
		return ir.NoValue, fmt.Errorf("shard: axis %d, which %s does not have", s.Axis, fb.Type(x))
	}
	extent, _ := shape[axis].Const()
	if extent%s.Parts != 0 {
		return ir.NoValue, fmt.Errorf("shard: axis %d of %s has no %d equal parts", axis, fb.Type(x), s.Parts)
	}
	each := extent / s.Parts
	return fb.Op1("slice", []ir.Value{x}, ir.IntAttr("axis", axis), ir.IntAttr("start", s.Part*each), ir.IntAttr("end", (s.Part+1)*each)), nil
}

// typeOf returns t's dtype and constant extents.
func typeOf(t *Tensor) ir.Type {
	shape := make([]dim.Dim, len(t.Shape))
	for i, d := range t.Shape {
		shape[i] = dim.Const(d)
	}
	return ir.TypeOf(t.Type, shape...)
}
