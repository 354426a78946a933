package piecewise

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// memoryTensors is tensors of one byte an element, so that expected bytes can be
// written down.
type memoryTensors map[string]safetensors.Tensor

func (c memoryTensors) Tensor(name string) (safetensors.Tensor, error) {
	if t, ok := c[name]; ok {
		return t, nil
	}
	return safetensors.Tensor{}, fmt.Errorf("%w: %s", safetensors.ErrNotFound, name)
}

func (c memoryTensors) Info(name string) (safetensors.Info, error) {
	t, err := c.Tensor(name)
	return safetensors.Info{Name: name, DType: t.DType, Shape: t.Shape}, err
}

func (c memoryTensors) Names() []string { return nil }

func TestEvalWeight(t *testing.T) {
	src := memoryTensors{
		"a": {DType: dtype.U8, Shape: []int64{2, 3}, Data: []byte{0, 1, 2, 3, 4, 5}},
		"b": {DType: dtype.U8, Shape: []int64{1, 3}, Data: []byte{6, 7, 8}},
		"h": {DType: dtype.BF16, Shape: []int64{2}, Data: []byte{0x80, 0x3f, 0x00, 0xc0}}, // 1, -2
		"f": {DType: dtype.F32, Shape: []int64{1}, Data: []byte{0x00, 0x80, 0x80, 0x3f}},  // 1 + 2^-8, halfway: ties to even, 1
	}
	for _, tc := range []struct {
		expr string
		dt   dtype.DType
		dims []int64
		want []byte
	}{
		{`"a"`, dtype.U8, []int64{2, 3}, []byte{0, 1, 2, 3, 4, 5}},
		{`concat("a", "b", axis=0)`, dtype.U8, []int64{3, 3}, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8}},
		{`concat("a", "a", axis=1)`, dtype.U8, []int64{2, 6}, []byte{0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5}},
		{`slice("a", axis=1, start=1, end=3)`, dtype.U8, []int64{2, 2}, []byte{1, 2, 4, 5}},
		{`slice("a", axis=1, start=0, end=3, step=2)`, dtype.U8, []int64{2, 2}, []byte{0, 2, 3, 5}},
		{`transpose("a", perm=[1, 0])`, dtype.U8, []int64{3, 2}, []byte{0, 3, 1, 4, 2, 5}},
		{`reshape("a", shape=[3, 2])`, dtype.U8, []int64{3, 2}, []byte{0, 1, 2, 3, 4, 5}},
		{`cast("h", dtype=f32)`, dtype.F32, []int64{2}, []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}},
		{`cast("h", dtype=f16)`, dtype.F16, []int64{2}, []byte{0, 0x3c, 0, 0xc0}},
		{`cast("f", dtype=bf16)`, dtype.BF16, []int64{1}, []byte{0x80, 0x3f}},
		{`transpose(concat("a", "b"), perm=[1, 0])`, dtype.U8, []int64{3, 3}, []byte{0, 3, 6, 1, 4, 7, 2, 5, 8}},
	} {
		got, err := evalWeight(src, weight(t, tc.expr, tc.dt, tc.dims))
		if data := got.whole().data; err != nil || !bytes.Equal(data, tc.want) {
			t.Errorf("%s = %v, %v; want %v", tc.expr, data, err, tc.want)
		}
	}
	for _, tc := range []struct {
		expr string
		dims []int64
		want string
	}{
		{`"none"`, []int64{1}, "none"},
		{`"a"`, []int64{3, 2}, "the checkpoint gives u8[2 3]"},
		{`concat("a", "h")`, []int64{2}, "concat"},
		{`slice("a", axis=1, start=1, end=4)`, []int64{2, 3}, "axis of 3"},
		{`slice("a", axis=2, start=0, end=1)`, []int64{2, 3}, "axis 2"},
		{`cast("a", dtype=f32)`, []int64{2, 3}, "only f32, f16 and bf16"},
		{`reshape("a", shape=[4])`, []int64{4}, "reshape"},
	} {
		_, err := evalWeight(src, weight(t, tc.expr, dtype.U8, tc.dims))
		if !errors.Is(err, ErrNotLoaded) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "@w") {
			t.Errorf("%s: %v; want an ErrNotLoaded about @w with %q", tc.expr, err, tc.want)
		}
	}
}

func weight(t *testing.T, expr string, dt dtype.DType, dims []int64) *ir.Weight {
	t.Helper()
	shape := make([]dim.Dim, len(dims))
	for i, d := range dims {
		shape[i] = dim.Const(d)
	}
	m, err := ir.Parse("w.ir", []byte(fmt.Sprintf("pwc 1\nmodule \"w\" {\n  weight @w : %s = %s\n}\n", ir.TypeOf(dt, shape...), expr)))
	if err != nil {
		t.Fatal(err)
	}
	return m.Weights[0]
}
