package interp

import (
	"context"
	"math"
	"testing"

	"pwc/ir"
	"pwc/ir/dtype"
)

var (
	inf  = math.Inf(1)
	nan  = math.NaN()
	zero = math.Copysign(0, -1) // -0
)

const tiny = 0x1p-149 // smallest f32

func must(t *testing.T, x *Tensor, err error) *Tensor {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// of returns a tensor of numbers; if extents is nil, it is a vector.
func of(dt dtype.DType, extents []int64, values ...float64) *Tensor {
	if extents == nil {
		extents = []int64{int64(len(values))}
	}
	x, err := FromFloat64s(dt, extents, values)
	if err != nil {
		panic(err)
	}
	return x
}

func f32(values ...float64) *Tensor  { return of(dtype.F32, nil, values...) }
func bf16(values ...float64) *Tensor { return of(dtype.BF16, nil, values...) }
func f16(values ...float64) *Tensor  { return of(dtype.F16, nil, values...) }
func i32(values ...float64) *Tensor  { return of(dtype.I32, nil, values...) }
func flags(values ...float64) *Tensor {
	return of(dtype.Bool, nil, values...)
}

func ints(dt dtype.DType, values ...int64) *Tensor {
	x, err := FromInt64s(dt, []int64{int64(len(values))}, values)
	if err != nil {
		panic(err)
	}
	return x
}

func s(extents ...int64) []int64 {
	if extents == nil {
		return []int64{}
	}
	return extents
}

// apply runs one op on tensors (*Tensor) and literals (float64, int, int64).
func apply(t *testing.T, op string, args []any, attrs ...ir.Attr) []*Tensor {
	t.Helper()
	b := ir.NewBuilder("test")
	fb := b.Func("f")
	var operands []ir.Value
	var inputs []*Tensor
	for _, a := range args {
		switch a := a.(type) {
		case *Tensor:
			operands = append(operands, fb.Param("", typeOf(a)))
			inputs = append(inputs, a)
		case float64:
			operands = append(operands, fb.Float(a))
		case int:
			operands = append(operands, fb.Int(int64(a)))
		case int64:
			operands = append(operands, fb.Int(a))
		}
	}
	fb.Return(fb.Op(op, operands, attrs...)...)
	m, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	out, err := Run(context.Background(), m, m.Func("f"), &Env{}, inputs)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// check wants got to be want to the bit: dtype, shape, values, signs of zeros.
func check(t *testing.T, what string, got, want *Tensor) {
	t.Helper()
	if got.String() != want.String() || !sameBits(got, want) {
		t.Errorf("%s = %s %v, want %s %v", what, got, got.Float64s(), want, want.Float64s())
	}
}

func apply1(t *testing.T, op string, args []any, attrs ...ir.Attr) *Tensor {
	t.Helper()
	out := apply(t, op, args, attrs...)
	if len(out) != 1 {
		t.Fatalf("%s has %d results", op, len(out))
	}
	return out[0]
}

// count returns 0, 1, … n-1.
func count(n int) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = float64(i)
	}
	return v
}
