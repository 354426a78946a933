package oracle

import (
	"math"
	"math/rand"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Attention is the shape of an attention. Groups is the number of heads of keys and values.
type Attention struct {
	Batch, Queries, Keys, Heads, Groups, Size int64
	Causal                                    bool
}

// Module returns a module with an attention and its gradient. Its parameters are q, k and v, which
// are parts of one tensor if there are as many keys as queries, the cotangent of the result, and
// delta. delta is a parameter, because the delta of the result would make the gradients of q and k
// zero, except for rounding errors, if there is one key.
func (c Attention) Module(dt dtype.DType) (*ir.Module, error) {
	b := ir.NewBuilder("attention")
	f := b.Func("f")
	sizes := func(ns ...int64) []dim.Dim {
		out := make([]dim.Dim, len(ns))
		for i, n := range ns {
			out[i] = dim.Const(n)
		}
		return out
	}
	ofQueries := ir.Type{DType: dt, Shape: sizes(c.Batch, c.Queries, c.Heads, c.Size)}
	ofKeys := ir.Type{DType: dt, Shape: sizes(c.Batch, c.Keys, c.Groups, c.Size)}
	var q, k, v ir.Value
	if h, g := c.Heads*c.Size, c.Groups*c.Size; c.Queries == c.Keys {
		all := f.Param("qkv", ir.Type{DType: dt, Shape: sizes(c.Batch, c.Queries, h+2*g)})
		parts := f.Op("split", []ir.Value{all}, ir.IntAttr("axis", 2), ir.IntsAttr("sizes", h, g, g))
		q = f.Op1("reshape", parts[:1], ir.DimsAttr("shape", ofQueries.Shape...))
		k = f.Op1("reshape", parts[1:2], ir.DimsAttr("shape", ofKeys.Shape...))
		v = f.Op1("reshape", parts[2:], ir.DimsAttr("shape", ofKeys.Shape...))
	} else {
		q, k, v = f.Param("q", ofQueries), f.Param("k", ofKeys), f.Param("v", ofKeys)
	}
	grad, delta := f.Param("grad", ofQueries), f.Param("delta", ir.Type{DType: dtype.F32, Shape: ofQueries.Shape[:3]})
	attrs := []ir.Attr{ir.FloatAttr("scale", 0.3), ir.BoolAttr("causal", c.Causal)}
	o := f.Op("attention", []ir.Value{q, k, v}, attrs...)
	g := f.Op("attention_grad", []ir.Value{q, k, v, grad, o[1], delta}, attrs...)
	f.Return(append(o, g...)...)
	return b.Build()
}

// AttentionCases returns shapes near those of tiles, with heads of 7 to 256 elements, with 0 batches
// or 0 keys, and with more and with fewer queries than keys.
func AttentionCases() []Attention {
	return []Attention{
		{1, 1, 1, 1, 1, 32, true}, {2, 47, 47, 2, 1, 32, true}, {1, 48, 48, 4, 2, 64, true}, {1, 65, 65, 1, 1, 96, false}, {1, 130, 130, 2, 1, 16, true},
		{1, 97, 64, 1, 1, 128, false}, {1, 1, 129, 2, 1, 64, false}, {3, 50, 1, 2, 2, 7, false}, {1, 5, 5, 2, 1, 256, true}, {0, 4, 4, 1, 1, 8, true}, {2, 3, 0, 2, 1, 8, false},
	}
}

// InfiniteScores returns a module with causal attention and its inputs. The scores of the first 65 keys
// are -inf, so the first 65 rows are NaN, and the others have finite results.
func InfiniteScores(r *rand.Rand, dt dtype.DType) (*ir.Module, *Inputs, error) {
	const length, infinite, size = 70, 65, 16
	b := ir.NewBuilder("attention")
	f := b.Func("f")
	of := ir.Type{DType: dt, Shape: []dim.Dim{dim.Const(1), dim.Const(length), dim.Const(1), dim.Const(size)}}
	operands := []ir.Value{f.Param("q", of), f.Param("k", of), f.Param("v", of)}
	f.Return(f.Op("attention", operands, ir.FloatAttr("scale", 0.3), ir.BoolAttr("causal", true))...)
	m, err := b.Build()
	if err != nil {
		return nil, nil, err
	}
	in, err := Draw(r, m, nil, func(r *rand.Rand, _ dtype.DType) float64 { return r.NormFloat64() })
	if err != nil {
		return nil, nil, err
	}
	for i := range length {
		in.Params[0].Set(i*size, 1)
		if i < infinite {
			in.Params[1].Set(i*size, math.Inf(-1))
		}
	}
	return m, in, nil
}
