package attention_test

import (
	"math"
	"strings"
	"testing"

	"pwc/attention"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
)

func float(name string, v float64) program.Attr {
	return program.Attr{Name: name, Kind: program.AttrFloat, Float: v}
}

func integer(name string, v int64) program.Attr {
	return program.Attr{Name: name, Kind: program.AttrDim, Dim: dim.Const(v)}
}

func TestParseParams(t *testing.T) {
	p, err := attention.ParseParams(nil, 64)
	if want := (attention.Params{Scale: 0.125, Causal: true}); err != nil || p != want {
		t.Errorf("defaults %+v, %v; want %+v", p, err, want)
	}
	p, err = attention.ParseParams([]program.Attr{integer("scale", 1), float("softcap", 30), integer("window", 7), {Name: "causal", Kind: program.AttrBool}}, 64)
	if want := (attention.Params{Scale: 1, Softcap: 30, Window: 7}); err != nil || p != want {
		t.Errorf("%+v, %v; want %+v", p, err, want)
	}
	for want, a := range map[string]program.Attr{
		`unknown attribute "sink"`:                   float("sink", 1),
		"attribute scale has a value":                float("scale", math.NaN()),
		"attribute softcap has a value":              float("softcap", -1),
		"attribute window has a value":               integer("window", -1),
		"attribute window has a value out of range ": float("window", 1.5),
		"attribute causal has a value":               integer("causal", 1),
	} {
		if _, err := attention.ParseParams([]program.Attr{a}, 64); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	if _, err := attention.ParseParams([]program.Attr{{Name: "window", Kind: program.AttrDim, Dim: dim.Sym("N")}}, 64); err == nil {
		t.Error("a window that is not a constant is accepted")
	}
}

func operands() []device.Tensor {
	tensor := func(shape ...int64) device.Tensor { return device.Tensor{DType: dtype.F32, Shape: shape} }
	return []device.Tensor{tensor(7, 4, 8), tensor(7, 2, 8), tensor(7, 2, 8), tensor(9, 2, 16, 2, 8), tensor(7, 4, 8)}
}

func TestParseArgs(t *testing.T) {
	args := operands()
	args[attention.ArgKV].DType = dtype.BF16
	s, err := attention.ParseArgs(args)
	want := attention.Shape{Rows: 7, Heads: 4, KVHeads: 2, HeadDim: 8, Blocks: 9, BlockSize: 16, DType: dtype.F32, KVDType: dtype.BF16}
	if err != nil || s != want || s.Group() != 2 {
		t.Errorf("%+v, %v; want %+v", s, err, want)
	}
	for want, change := range map[string]func(a []device.Tensor) []device.Tensor{
		"4 operands, it takes 5":                   func(a []device.Tensor) []device.Tensor { return a[:4] },
		"q, k and kv have 2, 3 and 5 extents":      func(a []device.Tensor) []device.Tensor { a[0].Shape = a[0].Shape[1:]; return a },
		"operand 1 is [6 2 8], it must be [7 2 8]": func(a []device.Tensor) []device.Tensor { a[1].Shape[0] = 6; return a },
		"operand 2 is [7 1 8]":                     func(a []device.Tensor) []device.Tensor { a[2].Shape[1] = 1; return a },
		"operand 4 is [7 4 7]":                     func(a []device.Tensor) []device.Tensor { a[4].Shape[2] = 7; return a },
		"operand 4 is bf16, q is f32":              func(a []device.Tensor) []device.Tensor { a[4].DType = dtype.BF16; return a },
		"3 key-value heads do not divide 4": func(a []device.Tensor) []device.Tensor {
			a[1].Shape[1], a[2].Shape[1], a[3].Shape[3] = 3, 3, 3
			return a
		},
		"heads of size 0": func(a []device.Tensor) []device.Tensor {
			for _, i := range []int{0, 1, 2, 4} {
				a[i].Shape[2] = 0
			}
			return a
		},
		"it must be [blocks, 2, block size, 2, 8]": func(a []device.Tensor) []device.Tensor { a[3].Shape[1] = 1; return a },
		"q is i32": func(a []device.Tensor) []device.Tensor {
			for _, i := range []int{0, 1, 2, 4} {
				a[i].DType = dtype.I32
			}
			return a
		},
		"kv is i8": func(a []device.Tensor) []device.Tensor { a[3].DType = dtype.I8; return a },
	} {
		if _, err := attention.ParseArgs(change(operands())); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
}

func TestVisible(t *testing.T) {
	for _, c := range []struct {
		p        attention.Params
		pos, n   int
		from, to int
	}{
		{attention.Params{Causal: true}, 3, 8, 0, 4},
		{attention.Params{}, 3, 8, 0, 8},
		{attention.Params{Causal: true, Window: 2}, 3, 8, 2, 4},
		{attention.Params{Causal: true, Window: 9}, 3, 8, 0, 4},
		{attention.Params{Window: 2}, 3, 8, 2, 5},
		{attention.Params{Window: 2}, 7, 8, 6, 8},
		{attention.Params{Window: math.MaxInt32}, 7, 8, 0, 8},
		{attention.Params{Causal: true, Window: math.MaxInt32}, 7, 8, 0, 8},
	} {
		if from, to := c.p.Visible(c.pos, c.n); from != c.from || to != c.to {
			t.Errorf("%+v at %d of %d: [%d, %d), want [%d, %d)", c.p, c.pos, c.n, from, to, c.from, c.to)
		}
	}
}
