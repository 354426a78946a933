package pt2

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir"
)

// TestDims checks the dynamic dimensions of an import with BatchDim, Dims and Max, and without options.
func TestDims(t *testing.T) {
	for _, c := range []struct {
		what, archive string
		options       Options
		want          []Dim
		err           string
	}{
		{what: "leading", archive: "mlp", want: []Dim{{Name: "s77", Lo: 1, Hi: 512, Batch: true, Where: "axis 0 of x"}}},
		{what: "first dynamic axis", archive: "hf-bert", want: []Dim{{Name: "s27", Lo: 2, Hi: 64, Batch: true, Where: "axis 1 of x"}}},
		{what: "not shared by all inputs", archive: "symbolic", want: []Dim{{Name: "s77", Lo: 2, Hi: 32, Where: "axis 0 of x"}, {Name: "s94", Lo: 2, Hi: 16, Where: "axis 1 of y"}}},
		{what: "chosen", archive: "symbolic", options: Options{BatchDim: "s94"}, want: []Dim{{Name: "s77", Lo: 2, Hi: 32, Where: "axis 0 of x"}, {Name: "s94", Lo: 2, Hi: 16, Batch: true, Where: "axis 1 of y"}}},
		{what: "fixed", archive: "mlp", options: Options{Dims: map[string]int64{"s77": 7}}},
		{what: "narrowed", archive: "mlp", options: Options{Max: map[string]int64{"s77": 64}}, want: []Dim{{Name: "s77", Lo: 1, Hi: 64, Batch: true, Where: "axis 0 of x"}}},
		{what: "without an end", archive: "hf-llama-eager", err: "dimensions without a largest size: s27; Options.Max gives one"},
		{what: "fixed outside", archive: "mlp", options: Options{Dims: map[string]int64{"s77": 513}}, err: "s77 = 513 is not in the exported range [1, 512]"},
		{what: "above the export", archive: "mlp", options: Options{Max: map[string]int64{"s77": 513}}, err: "s77 = 513 is not in the exported range [1, 512]"},
		{what: "of no input", archive: "mlp", options: Options{Dims: map[string]int64{"s1": 3}}, err: "no input has a dimension s1; the dynamic dimensions are s77"},
		{what: "no batch", archive: "mlp", options: Options{BatchDim: "n"}, err: "Options.BatchDim: n is not a dynamic dimension of an input; the inputs have s77"},
	} {
		t.Run(c.what, func(t *testing.T) {
			m, err := open(t, c.archive).Import(c.options)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v; it should say %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, m.Dims); d != "" {
				t.Error(d)
			}
			for _, d := range c.want {
				if s := m.Module.Symbol(d.Name); s == nil || (s.Kind == ir.Batch) != d.Batch || s.Lo != d.Lo || s.Hi != d.Hi {
					t.Errorf("symbol %+v of %+v", s, d)
				}
			}
		})
	}
}

// TestStates checks which buffers become states, and which tensor of the archive each begins with.
func TestStates(t *testing.T) {
	m, err := open(t, "mutation").Import(Options{})
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, s := range m.Module.States {
		states = append(states, s.Name+" "+s.Expr.Name)
	}
	slices.Sort(states)
	if d := cmp.Diff([]string{"cache cache", "mean mean", "steps steps"}, states); d != "" {
		t.Error(d)
	}
}
