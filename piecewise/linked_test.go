package piecewise_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pwc/compile/host"
	"pwc/internal/testkit"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
)

// linked has two functions. The second one reads rows of the first: in a graph, %h has eight rows
// for any number of valid rows.
func linked(rows, body string) string {
	return `pwc 1
module "linked" {
  sym N in [1, 8] batch
  sym M in [1, 8] batch
  func @forward(%x: f32[N]) -> (f32[N, 2]) {
    %r = reshape(%x, shape=[N, 1]) : f32[N, 1]
    %y = broadcast_to(%r, shape=[N, 2]) : f32[N, 2]
    return %y
  }
  func @logits(%h: f32[N, 2], %z: f32[M, 2], %rows: ` + rows + `) -> (f32[M, 2]) {
    ` + strings.ReplaceAll(body, "; ", "\n    ") + `
  }
}
`
}

// A graph that was captured with the largest number of rows returns no row of an earlier step:
// indices are compared with the number of valid rows, also those of values that were computed row
// by row. If the indices are unsigned, or rows could reach a result without indices, no graph serves
// the function; this is counted, and refused if frozen.
func TestRowsOfAnEarlierStep(t *testing.T) {
	ctx := context.Background()
	for _, tc := range []struct {
		rows, body string
		fill       any // the indices
		want       []float32
		outside    bool // some indices are out of range
		graph      bool
	}{
		{"i32[M]", "%g = gather(%h, %rows) : f32[M, 2]; return %g", []int32{1, 5}, []float32{2, 2, 0, 0}, true, true},
		{"i32[M]", "%n = mul(%h, 2.0) : f32[N, 2]; %g = gather(%n, %rows) : f32[M, 2]; return %g", []int32{1, 5}, []float32{4, 4, 0, 0}, true, true},
		{"i64[M]", "%g = gather(%h, %rows) : f32[M, 2]; return %g", []int64{1, 5}, []float32{2, 2, 0, 0}, true, true},
		{"u8[M]", "%g = gather(%h, %rows) : f32[M, 2]; return %g", []uint8{1, 5}, []float32{2, 2, 0, 0}, true, false},
		{"i32[M, 2]", "%g = gather(%h, %rows) : f32[M, 2, 2]; %s = sum(%g, axes=[1]) : f32[M, 2]; return %s", []int32{1, 1, 5, 6}, []float32{4, 4, 0, 0}, true, true},
		{"i32[1]", "%g = gather(%h, %rows) : f32[1, 2]; %s = add(%z, %g) : f32[M, 2]; return %s", []int32{1}, []float32{2, 2, 2, 2}, false, true},
		{"i32[1]", "%g = gather(%h, %rows) : f32[1, 2]; %s = add(%z, %g) : f32[M, 2]; return %s", []int32{7}, []float32{0, 0, 0, 0}, true, true},
		{"i32[M]", "%s = sum(%h, axes=[0], keepdims=true) : f32[1, 2]; %g = gather(%h, %rows) : f32[M, 2]; %y = add(%g, %s) : f32[M, 2]; return %y", []int32{0, 1}, []float32{4, 4, 5, 5}, false, false},
		{"i32[M]", "%i = maximum(%rows, 0) : i32[M]; %g = gather(%h, %i) : f32[M, 2]; return %g", []int32{1, -1}, []float32{2, 2, 1, 1}, false, true},
		{"i32[M]", "%s = max(%h, axes=[0], keepdims=true) : f32[1, 2]; %y = add(%z, %s) : f32[M, 2]; return %y", []int32{0, 1}, []float32{2, 2, 2, 2}, false, false},
	} {
		for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
			what := fmt.Sprintf("%s, %s: %s", mode, tc.rows, tc.body)
			b := start(t, linked(tc.rows, tc.body), piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{2, 8}}})
			forward, logits := b.Func("forward"), b.Func("logits")
			run(t, forward, []float32{10, 20, 30, 40, 50, 60, 70, 80})
			h, err := issue(t, forward, []float32{1, 2}, nil)
			if err != nil {
				t.Fatal(err)
			}
			in, err := logits.Inputs(2)
			if err != nil {
				t.Fatal(err)
			}
			z, err := in.Float32s("z")
			if err != nil {
				t.Fatal(err)
			}
			clear(z)
			switch v := tc.fill.(type) {
			case []uint8:
				p, _ := in.Bytes("rows")
				copy(p, v)
			case []int32:
				p, _ := in.Int32s("rows")
				copy(p, v)
			case []int64:
				p, _ := in.Int64s("rows")
				copy(p, v)
			}
			if err := in.SetResult("h", h.At(0)); err != nil {
				t.Fatal(err)
			}
			r, err := logits.Run(ctx, in, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 16)
			if err := r.At(0).CopyTo(got); errors.Is(err, device.ErrIndex) != tc.outside || err != nil && !tc.outside {
				t.Errorf("%s: %v; indices are out of range: %v", what, err, tc.outside)
			}
			for i, w := range tc.want {
				if v := f32(got, int64(i)); v != w {
					t.Errorf("%s: element %d is %v, want %v", what, i, v, w)
				}
			}
			const why = "rows that another function made would mix with an earlier step's"
			if mode == piecewise.None {
				continue
			}
			if c := logits.Choose(2, false); (c.Mode != piecewise.RunEager) != tc.graph || !tc.graph && c.Why != why {
				t.Errorf("%s: %+v", what, c)
			}
			if n := b.Stats().Skipped[why]; (n == 0) != tc.graph {
				t.Errorf("%s: %d runs counted", what, n)
			}
		}
	}

	store := pieces.NewMemoryStore()
	text := linked("i32[M]", "%s = max(%h, axes=[0], keepdims=true) : f32[1, 2]; %y = add(%z, %s) : f32[M, 2]; return %y")
	o := piecewise.Options{Device: openHost(t), Compile: piecewise.CompileOptions{Store: store, Compiler: pieces.Pipeline{Backend: host.New()}}, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}}
	create(t, text, o)
	o.Frozen = true
	if _, err := piecewise.New(ctx, testkit.Parse(t, text), o); !errors.Is(err, piecewise.ErrFrozen) || !strings.Contains(err.Error(), "max mixes rows of N") {
		t.Errorf("frozen: %v", err)
	}
}

// Stats.Skipped has different reasons for rows that another function made, for rows that another batch
// symbol counts, and for runs before Capture.
func TestReasonsOfEagerRuns(t *testing.T) {
	unsigned := symbolic("%x: f32[N, 2], %t: f32[M, 2], %i: u8[N]", "f32[N, 2]", "%g = gather(%t, %i); %s = add(%x, %g); return %s")
	for text, want := range map[string]string{
		unsigned: "rows that another batch symbol counts would mix with an earlier step's",
		symbolic("%x: f32[N]", "f32[N]", "%y = neg(%x); return %y"): "Capture was not called, or failed",
	} {
		b := create(t, text, piecewise.Options{Device: openHost(t), Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}})
		if err := b.Load(context.Background(), nil, nil); err != nil {
			t.Fatal(err)
		}
		if c := b.Func("f").Choose(2, false); c.Mode != piecewise.RunEager || c.Why != want {
			t.Errorf("%+v, want eager because %q", c, want)
		}
		in, err := b.Func("f").Inputs(2)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range testkit.Parse(t, text).Funcs[0].Params {
			if _, err := in.BytesOf(testkit.Parse(t, text).Funcs[0].Values[p].Name, 2); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Func("f").Run(context.Background(), in, nil); err != nil {
			t.Fatal(err)
		}
		if s := b.Stats(); s.Skipped[want] != 1 || len(s.Skipped) != 1 {
			t.Errorf("skipped %v, want one run: %s", s.Skipped, want)
		}
	}
}

// If a linked table has several rows for each row of a step, each index below their number is valid.
func TestIndicesOfSeveralRows(t *testing.T) {
	const text = `pwc 1
module "linked" {
  sym N in [1, 8] batch
  func @forward(%x: f32[2*N]) -> (f32[2*N]) {
    %y = mul(%x, 2.0)
    return %y
  }
  func @logits(%h: f32[2*N], %rows: i32[N]) -> (f32[N]) {
    %y = gather(%h, %rows)
    return %y
  }
}
`
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
		b := start(t, text, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: sizesOf(mode, 2)}})
		forward, logits := b.Func("forward"), b.Func("logits")
		in, err := forward.Inputs(2)
		if err != nil {
			t.Fatal(err)
		}
		x, err := in.Float32s("x")
		if err != nil {
			t.Fatal(err)
		}
		copy(x, []float32{1, 2, 3, 4})
		h, err := forward.Run(t.Context(), in, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range [][]int32{{1, 3}, {4, 0}} {
			if in, err = logits.Inputs(2); err != nil {
				t.Fatal(err)
			}
			if err := in.SetResult("h", h.At(0)); err != nil {
				t.Fatal(err)
			}
			p, err := in.Int32s("rows")
			if err != nil {
				t.Fatal(err)
			}
			copy(p, rows)
			r, err := logits.Run(t.Context(), in, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 8)
			if err := r.At(0).CopyTo(got); errors.Is(err, device.ErrIndex) != (rows[0] == 4) || err != nil && rows[0] != 4 {
				t.Errorf("mode %s, indices %v: %v", mode, rows, err)
			}
			want := map[int32][]float32{1: {4, 8}, 4: {0, 2}}[rows[0]]
			if f32(got, 0) != want[0] || f32(got, 1) != want[1] {
				t.Errorf("mode %s, indices %v: %v and %v, want %v", mode, rows, f32(got, 0), f32(got, 1), want)
			}
		}
	}
}
