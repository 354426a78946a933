package nest

import (
	"math"

	"pwc/compile/loop"
	"pwc/ir/dim"
)

// Multiple reports whether d is known to be a multiple of v for all values of the symbols.
func Multiple(d dim.Dim, v int) bool {
	if v == 1 || IsConst(d, 0) {
		return true
	}
	_, ok := d.Div(dim.Const(int64(v)))
	return ok
}

// RowsRange returns the numbers of rows of a GEMM that the symbols allow.
func RowsRange(k *loop.Kernel) dim.Interval {
	if iv, known := Bounds(k, k.Rows[len(k.Rows)-1]); known {
		return iv
	}
	return dim.Interval{Lo: 0, Hi: math.MaxInt64}
}

// CeilDiv is a/b, rounded up.
func CeilDiv(a, b int64) int64 { return (a + b - 1) / b }

// One is the dim 1.
var One = dim.Const(1)

// IsConst reports whether d is the constant c.
func IsConst(d dim.Dim, c int64) bool {
	v, ok := d.Const()
	return ok && v == c
}

// Bounds returns the range of a dim of a kernel, and whether it is known.
func Bounds(k *loop.Kernel, d dim.Dim) (dim.Interval, bool) {
	return d.Bounds(func(s string) (dim.Interval, bool) {
		iv, ok := k.Ranges[s]
		return iv, ok
	})
}

// MaxIndex is the largest 32-bit index. It leaves room above an index for the threads of the last block.
const MaxIndex = math.MaxInt32 - 1<<16

// IndicesFit reports whether every index that the kernel computes is known to fit in 32 bits. Offsets of
// rows in the operands of a GEMM are computed in 64 bits anyway.
func IndicesFit(k *loop.Kernel) bool {
	within := func(d dim.Dim) bool {
		iv, ok := Bounds(k, d)
		return ok && iv.Lo >= -MaxIndex && iv.Hi <= MaxIndex
	}
	if !within(Product(k.Rows).Mul(Product(k.Cols))) {
		return false
	}
	reach := func(a *loop.Access, rows, cols []dim.Dim) bool {
		last := a.Offset
		for i, c := range a.Rows {
			last = last.Add(c.Mul(rows[i]))
		}
		for i, c := range a.Cols {
			last = last.Add(c.Mul(cols[i]))
		}
		if x := a.Index; x != nil {
			if !within(x.Extent) {
				return false
			}
			last = last.Add(x.Stride.Mul(x.Extent))
		}
		return within(a.Offset) && within(last)
	}
	if t := k.TopK; t != nil {
		return reach(&t.In, k.Rows, []dim.Dim{t.N}) && reach(&t.Values, k.Rows, []dim.Dim{dim.Const(t.K)}) && reach(&t.Index, k.Rows, []dim.Dim{dim.Const(t.K)})
	}
	if a := k.Attention; a != nil {
		fit := true
		a.Each(func(x *loop.Access, length dim.Dim) {
			fit = fit && reach(x, k.Rows, []dim.Dim{length, dim.Const(a.Heads), dim.Const(a.Size)}[:len(x.Cols)])
		})
		return fit && within(Product(k.Rows).Mul(dim.Const(a.Heads)).Mul(a.Queries.Add(a.Keys)))
	}
	if m := k.MatMul; m != nil {
		for _, o := range []loop.Operand{m.A, m.B} {
			for _, d := range append([]dim.Dim{m.K, o.Offset, o.Row, o.Col}, o.Batch...) {
				if !within(d) {
					return false
				}
			}
		}
	}
	for in := range Instrs(k) {
		if in.Access != nil && !reach(in.Access, k.Rows, k.Cols) {
			return false
		}
	}
	return true
}

// Product multiplies extents.
func Product(ds []dim.Dim) dim.Dim {
	p := One
	for _, d := range ds {
		p = p.Mul(d)
	}
	return p
}
