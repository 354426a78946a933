package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// memoryTensors is a [safetensors.Source] without files.
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

func TestCompute(t *testing.T) {
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
		got, err := Compute(src, weight(t, tc.expr, tc.dt, tc.dims))
		if data := slices.Concat(got.Parts...); err != nil || !bytes.Equal(data, tc.want) {
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
		_, err := Compute(src, weight(t, tc.expr, dtype.U8, tc.dims))
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "@w") {
			t.Errorf("%s: %v; want an error about @w with %q", tc.expr, err, tc.want)
		}
	}
}

// TestHostileExpressions: expressions that a module's text may have, but that fit no tensor, are errors. Tensors
// without elements take no time, whatever their other extents are.
func TestHostileExpressions(t *testing.T) {
	src := memoryTensors{
		"a":     {DType: dtype.U8, Shape: []int64{2, 3}, Data: []byte{0, 1, 2, 3, 4, 5}},
		"empty": {DType: dtype.U8, Shape: []int64{1 << 60, 0}},
	}
	for _, expr := range []string{
		`transpose("a", perm=[0, 0])`,
		`transpose(reshape("a", shape=[-2, -3]), perm=[1, 0])`,
		`slice(reshape("empty", shape=[4294967296, 4294967296]), axis=0, start=0, end=1)`,
	} {
		if got, err := Compute(src, weight(t, expr, dtype.U8, []int64{2, 2})); err == nil {
			t.Errorf("%s gives %v", expr, got.Shape)
		}
	}
	for expr, dims := range map[string][]int64{
		`concat("empty", "empty", axis=1)`:                             {1 << 60, 0},
		`slice("empty", axis=1, start=0, end=0)`:                       {1 << 60, 0},
		`transpose("empty", perm=[1, 0])`:                              {0, 1 << 60},
		`slice("a", axis=1, start=1, end=1)`:                           {2, 0},
		`reshape("empty", shape=[0, 5])`:                               {0, 5},
		`slice("a", axis=0, start=0, end=2, step=9223372036854775807)`: {1, 3},
	} {
		if _, err := Compute(src, weight(t, expr, dtype.U8, dims)); err != nil {
			t.Errorf("%s: %v", expr, err)
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

// Invert is the inverse of Compute: it gives the tensors back that weights were computed from.
func TestInvert(t *testing.T) {
	src := memoryTensors{
		"a": {DType: dtype.U8, Shape: []int64{2, 3}, Data: []byte{0, 1, 2, 3, 4, 5}},
		"b": {DType: dtype.U8, Shape: []int64{1, 3}, Data: []byte{6, 7, 8}},
		"h": {DType: dtype.BF16, Shape: []int64{2}, Data: []byte{0x80, 0x3f, 0x00, 0xc0}}, // 1, -2
	}
	type w struct {
		expr string
		dt   dtype.DType
		dims []int64
	}
	invert := func(fill bool, weights ...w) ([]safetensors.Tensor, error) {
		var ws []*ir.Weight
		var data [][]byte
		for _, x := range weights {
			v := weight(t, x.expr, x.dt, x.dims)
			c, err := Compute(src, v)
			if err != nil {
				t.Fatal(err)
			}
			ws = append(ws, v)
			if fill {
				data = append(data, slices.Concat(c.Parts...))
			} else {
				data = append(data, nil)
			}
		}
		return Invert(src, ws, data)
	}
	for _, weights := range [][]w{
		{{`"a"`, dtype.U8, []int64{2, 3}}, {`"b"`, dtype.U8, []int64{1, 3}}},
		{{`concat("a", "b")`, dtype.U8, []int64{3, 3}}},
		{{`transpose(concat("b", "a"), perm=[1, 0])`, dtype.U8, []int64{3, 3}}},
		{{`reshape(transpose("a", perm=[1, 0]), shape=[6])`, dtype.U8, []int64{6}}},
		{{`slice("a", axis=1, start=2, end=3)`, dtype.U8, []int64{2, 1}}, {`slice("a", axis=1, start=0, end=2)`, dtype.U8, []int64{2, 2}}},
		{{`slice("a", axis=1, start=0, end=3, step=2)`, dtype.U8, []int64{2, 2}}, {`concat(slice("a", axis=1, start=1, end=2), slice("b", axis=1, start=0, end=1))`, dtype.U8, []int64{3, 1}}, {`slice("b", axis=1, start=1, end=3)`, dtype.U8, []int64{1, 2}}},
	} {
		got, err := invert(true, weights...)
		if err != nil {
			t.Errorf("%v: %v", weights, err)
		}
		for _, g := range got {
			if want := src[g.Name]; g.DType != want.DType || !slices.Equal(g.Shape, want.Shape) || !bytes.Equal(g.Data, want.Data) {
				t.Errorf("%v: %s is %s%v %v, want %v", weights, g.Name, g.DType, g.Shape, g.Data, want)
			}
		}
		if _, err := invert(false, weights...); err != nil {
			t.Errorf("%v, asked beforehand: %v", weights, err)
		}
	}
	// A cast is not inverted: the tensor is written in the weight's dtype.
	got, err := invert(true, w{`cast("h", dtype=f32)`, dtype.F32, []int64{2}})
	if err != nil || len(got) != 1 || got[0].DType != dtype.F32 || !bytes.Equal(got[0].Data, []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}) {
		t.Errorf("a cast: %v, %v", got, err)
	}
	for want, weights := range map[string][]w{
		`tensor "a" cannot be written from weight @w: the weights hold 4 of its 6`: {{`slice("a", axis=1, start=0, end=2)`, dtype.U8, []int64{2, 2}}},
		"its element 0 is in the weights twice":                                    {{`concat("b", "b")`, dtype.U8, []int64{2, 3}}},
		"is computed from it too":                                                  {{`"b"`, dtype.U8, []int64{1, 3}}, {`transpose("b", perm=[1, 0])`, dtype.U8, []int64{3, 1}}},
		"weight @w, which is u8, is computed from it too":                          {{`transpose("b", perm=[1, 0])`, dtype.U8, []int64{3, 1}}, {`"b"`, dtype.U8, []int64{1, 3}}},
		"its element 1 is in the weights twice":                                    {{`slice("b", axis=1, start=0, end=2)`, dtype.U8, []int64{1, 2}}, {`slice("b", axis=1, start=1, end=3)`, dtype.U8, []int64{1, 2}}},
	} {
		var e *NotInvertibleError
		if _, err := invert(false, weights...); !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", weights, err, want)
		}
	}
}
