package reference_test

import (
	"math"
	"strings"
	"testing"

	"pwc/attention"
	"pwc/attention/reference"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

func tensor(t *testing.T, shape []int64, values ...float64) *interp.Tensor {
	t.Helper()
	x, err := interp.FromFloat64s(dtype.F32, shape, values)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// step runs three tokens after one in the cache (key 0, value 4), in blocks of two in descending order,
// with one head of size 1. The keys are logarithms, so that weights are ratios that a person can check.
func step(t *testing.T, attrs ...ir.Attr) (out, cache []float64, err error) {
	t.Helper()
	row := []int64{3, 1, 1}
	c := &interp.Call{Name: attention.Name, Attrs: attrs, Args: []*interp.Tensor{
		tensor(t, row, 1, 1, 1), tensor(t, row, math.Log(3), 0, math.Log(5)), tensor(t, row, 8, 16, 32),
		tensor(t, []int64{2, 2, 2, 1, 1}, 0, 0, 0, 0, 0, 0, 4, 0), tensor(t, row, 9, 9, 9)}}
	b := attention.NewBatch(1, 3, 2)
	if err := b.Add(1, 3, []int32{1, 0}, 2); err != nil {
		t.Fatal(err)
	}
	err = reference.Extern(func() *attention.Batch { return b })(c)
	return c.Args[attention.ArgO].Float64s(), c.Args[attention.ArgKV].Float64s(), err
}

func TestByHand(t *testing.T) {
	for _, c := range []struct {
		name  string
		attrs []ir.Attr
		want  [3]float64
	}{
		{"causal", nil, [3]float64{(4 + 3*8) / 4., (4 + 3*8 + 16) / 5., (4 + 3*8 + 16 + 5*32) / 10.}},
		{"all", []ir.Attr{ir.BoolAttr("causal", false)}, [3]float64{20.4, 20.4, 20.4}},
		{"window", []ir.Attr{ir.IntAttr("window", 2)}, [3]float64{(4 + 3*8) / 4., (3*8 + 16) / 4., (16 + 5*32) / 6.}},
		{"window of all", []ir.Attr{ir.IntAttr("window", 2), ir.BoolAttr("causal", false)}, [3]float64{(4 + 3*8 + 16) / 5., (3*8 + 16 + 5*32) / 9., (16 + 5*32) / 6.}},
		{"scale", []ir.Attr{ir.IntAttr("scale", 2)}, [3]float64{(4 + 9*8) / 10., (4 + 9*8 + 16) / 11., (4 + 9*8 + 16 + 25*32) / 36.}},
		{"softcap", []ir.Attr{ir.FloatAttr("softcap", 1e-9)}, [3]float64{(4 + 8) / 2., (4 + 8 + 16) / 3., (4 + 8 + 16 + 32) / 4.}},
	} {
		out, cache, err := step(t, c.attrs...)
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.want {
			if math.Abs(out[i]-c.want[i]) > 1e-5 {
				t.Errorf("%s: row %d is %v, want %v", c.name, i, out[i], c.want[i])
			}
		}
		want := []float64{0, math.Log(5), 16, 32, 0, math.Log(3), 4, 8}
		for i := range want {
			if math.Abs(cache[i]-want[i]) > 1e-6 {
				t.Errorf("%s: cache %v, want %v", c.name, cache, want)
				break
			}
		}
	}
	if _, _, err := step(t, ir.FloatAttr("sinks", 1)); err == nil || !strings.Contains(err.Error(), "unknown attribute") {
		t.Errorf("an unknown attribute: %v", err)
	}
}
