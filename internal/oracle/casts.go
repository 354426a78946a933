package oracle

import (
	"errors"
	"fmt"
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// Casts is a module that casts integers or bools to 16-bit floats, with the results that it must
// have. It is for compiled programs: the interpreter would store all elements of its long iota.
type Casts struct {
	Module *ir.Module
	Inputs *Inputs
	Want   [][]float64 // by result: cast to bf16; to f16; to f32 and then to bf16; the one element that is read of a bf16 iota
}

// integerCast is an integer and its casts.
type integerCast struct {
	x         int64
	bf16, f16 float64
	twice     float64 // as bf16 by way of f32: two casts, two roundings
}

// integerCasts are computed by hand: bf16 has 8 binary digits, f16 has 11 and ends at
// 65504, f32 has 24, and ties go to the number whose last digit is 0.
func integerCasts() map[dtype.DType][]integerCast {
	inf := math.Inf(1)
	wide := []integerCast{ // of 32 bits and more
		{256, 256, 256, 256},
		{257, 256, 257, 256},
		{-259, -260, -259, -260},
		{2051, 2048, 2052, 2048},
		{65519, 65536, 65504, 65536},
		{65520, 65536, inf, 65536}, // a tie with 65536, which f16 does not have
		{-65520, -65536, -inf, -65536},
		{1<<24 - 1, 0x1p24, inf, 0x1p24},
		{1<<24 + 1, 0x1p24, inf, 0x1p24},
		{1<<24 + 1<<16 - 1, 0x1p24, inf, 0x1p24}, // f32 rounds it to a tie of bf16, which rounds to the same number
		{1<<24 + 1<<16, 0x1p24, inf, 0x1p24},     // a tie of bf16
		{1<<24 + 1<<16 + 1, 0x1.02p24, inf, 0x1p24},
		{-(1<<24 + 1<<16), -0x1p24, -inf, -0x1p24},
		{-(1<<24 + 1<<16 + 1), -0x1.02p24, -inf, -0x1p24},
		{1<<24 + 3<<16 - 1, 0x1.02p24, inf, 0x1.04p24},
		{1<<24 + 3<<16, 0x1.04p24, inf, 0x1.04p24}, // a tie
		{-(1<<24 + 3<<16 - 1), -0x1.02p24, -inf, -0x1.04p24},
		{1<<25 + 1<<17 + 1, 0x1.02p25, inf, 0x1p25},
		{1<<30 + 1<<22 + 1, 0x1.02p30, inf, 0x1p30},
		{-(1<<30 + 1<<22 + 1), -0x1.02p30, -inf, -0x1p30},
		{1<<30 + 3<<22 - 1, 0x1.02p30, inf, 0x1.04p30},
		{1<<31 - 1, 0x1p31, inf, 0x1p31},
		{-1 << 31, -0x1p31, -inf, -0x1p31},
	}
	return map[dtype.DType][]integerCast{
		dtype.Bool: {{0, 0, 0, 0}, {1, 1, 1, 1}},
		dtype.I8:   {{-128, -128, -128, -128}, {-1, -1, -1, -1}, {0, 0, 0, 0}, {127, 127, 127, 127}},
		dtype.U8:   {{0, 0, 0, 0}, {127, 127, 127, 127}, {255, 255, 255, 255}},
		dtype.I16: {{257, 256, 257, 256}, {259, 260, 259, 260}, {-259, -260, -259, -260}, {2049, 2048, 2048, 2048}, {2051, 2048, 2052, 2048},
			{-2051, -2048, -2052, -2048}, {32767, 32768, 32768, 32768}, {-32768, -32768, -32768, -32768}},
		dtype.I32: wide,
		dtype.I64: append([]integerCast{
			{1<<40 + 3<<32 - 1, 0x1.02p40, inf, 0x1.04p40},
			{1<<52 + 1<<44 + 1, 0x1.02p52, inf, 0x1p52},
			{1<<62 + 1<<54, 0x1p62, inf, 0x1p62},        // a tie
			{1<<62 + 1<<54 + 1, 0x1.02p62, inf, 0x1p62}, // the next integer, which float64 cannot represent
			{-(1<<62 + 1<<54 + 1), -0x1.02p62, -inf, -0x1p62},
			{1<<62 + 3<<54 - 1, 0x1.02p62, inf, 0x1.04p62},
			{-(1<<62 + 3<<54 - 1), -0x1.02p62, -inf, -0x1.04p62},
			{math.MaxInt64, 0x1p63, inf, 0x1p63},
			{math.MinInt64 + 1, -0x1p63, -inf, -0x1p63},
			{math.MinInt64, -0x1p63, -inf, -0x1p63},
		}, wide...),
	}
}

// CastsOf returns the casts of a dtype, an integer or bool.
func CastsOf(from dtype.DType) (*Casts, error) {
	var x []int64
	c := &Casts{Want: make([][]float64, 4)}
	for _, n := range integerCasts()[from] {
		x = append(x, n.x)
		for i, w := range []float64{n.bf16, n.f16, n.twice} {
			c.Want[i] = append(c.Want[i], w)
		}
	}
	const at = 1<<24 + 1<<16 + 1
	c.Want[3] = []float64{0x1.02p24}
	b := ir.NewBuilder("casts")
	fb := b.Func("piece")
	p := fb.Param("x", ir.TypeOf(from, dim.Const(int64(len(x)))))
	cast := func(x ir.Value, to dtype.DType) ir.Value { return fb.Op1("cast", []ir.Value{x}, ir.DTypeAttr(to)) }
	positions := fb.Op1("iota", nil, ir.DimsAttr("shape", dim.Const(at+1)), ir.DTypeAttr(dtype.BF16))
	last := fb.Op1("slice", []ir.Value{positions}, ir.IntAttr("axis", 0), ir.IntAttr("start", at), ir.IntAttr("end", at+1))
	fb.Return(cast(p, dtype.BF16), cast(p, dtype.F16), cast(cast(p, dtype.F32), dtype.BF16), last)
	m, err := b.Build()
	if err != nil {
		return nil, err
	}
	t, err := interp.FromInt64s(from, []int64{int64(len(x))}, x)
	c.Module, c.Inputs = m, &Inputs{Params: []*interp.Tensor{t}}
	return c, err
}

// Check returns an error for each element that is not equal to the expected number.
func (c *Casts) Check(got []*interp.Tensor) error {
	var errs []error
	for i, list := range c.Want {
		if got[i].Len() != len(list) {
			return fmt.Errorf("result %d is %s", i, got[i])
		}
		for j, want := range list {
			if y := got[i].At(j); y != want {
				errs = append(errs, fmt.Errorf("result %d, element %d is %v, want %v", i, j, y, want))
			}
		}
	}
	return errors.Join(errs...)
}
