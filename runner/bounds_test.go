package runner

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pwc/ir"
)

// TestBoundsOf compares the bounds of modules with tables, gathers and contexts.
func TestBoundsOf(t *testing.T) {
	const rest = `
  func @logits(%h: f32[N, 4], %rows: i32[M]) -> (f32[M, 9]) {
    %x = gather(%h, %rows) : f32[M, 4]
    %z = linear(%x, @head) : f32[M, 9]
    return %z
  }
}
`
	text := func(forward string) string {
		return `pwc 1
module "m" {
  sym N in [1, 64] batch
  sym M in [1, 64] batch
  weight @ids : f32[8, 4]
  weight @pos : f32[6, 4]
  weight @wide : f32[4, 5]
  weight @head : f32[9, 4]
  func @forward(%ids: i32[N], %pos: i32[N]) -> (f32[N, 4]) {
` + forward + "\n    return %h\n  }" + rest
	}
	for name, c := range map[string]struct {
		forward string
		want    Bounds
	}{
		"tables":                        {"    %e = embedding(@ids, %ids)\n    %p = embedding(@pos, %pos)\n    %h = add(%e, %p)", Bounds{8, 6, 6}},
		"no positions":                  {"    %h = embedding(@ids, %ids)", Bounds{8, 0, 0}},
		"two tables of one":             {"    %e = embedding(@ids, %ids)\n    %p = embedding(@pos, %ids)\n    %h = add(%e, %p)", Bounds{6, 0, 0}},
		"a table as wide as the logits": {"    %h = embedding(@head, %ids)", Bounds{9, 0, 0}},
		"gather along an axis":          {"    %g = gather(@wide, %pos, axis=1)\n    %t = transpose(%g, perm=[1, 0])\n    %e = embedding(@ids, %ids)\n    %h = add(%e, %t)", Bounds{8, 5, 5}},
		"gather along the last":         {"    %g = gather(@wide, %pos, axis=-1)\n    %t = transpose(%g, perm=[1, 0])\n    %e = embedding(@ids, %ids)\n    %h = add(%e, %t)", Bounds{8, 5, 5}},
		"positions that are changed":    {"    %q = add(%pos, 2)\n    %e = embedding(@ids, %ids)\n    %p = embedding(@pos, %q)\n    %h = add(%e, %p)", Bounds{8, 0, 0}},
		"ids only in the logits' shape": {"    %x = cast(%ids, dtype=f32)\n    %y = reshape(%x, shape=[N, 1])\n    %h = broadcast_to(%y, shape=[N, 4])", Bounds{9, 0, 0}},
	} {
		m, err := ir.Parse("m.ir", []byte(text(c.forward)))
		if err != nil {
			t.Fatal(name, err)
		}
		if got := BoundsOf(m); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	// The context of a module is a bound, too, unless a table has fewer rows.
	for context, want := range map[int64]Bounds{5: {8, 5, 6}, 6: {8, 6, 6}, 7: {8, 6, 6}} {
		m, err := ir.Parse("m.ir", []byte(text("    %e = embedding(@ids, %ids)\n    %p = embedding(@pos, %pos)\n    %h = add(%e, %p)")))
		if err != nil {
			t.Fatal(err)
		}
		m.Context = context
		if got := BoundsOf(m); got != want {
			t.Errorf("context %d: %+v, want %+v", context, got, want)
		}
	}
	none, err := ir.Parse("m.ir", []byte("pwc 1\nmodule \"m\" {\n  sym N in [1, 4] batch\n  func @f(%x: f32[N]) -> (f32[N]) {\n    return %x\n  }\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := BoundsOf(none); got != (Bounds{}) {
		t.Errorf("a module without @forward: %+v", got)
	}
}

// No sequence has more tokens than the model has positions, even if the cache has room for more.
func TestLearnedPositions(t *testing.T) {
	const positions = 128 // n_positions of testdata/hf/gpt2
	m, src := checkpoint(t, "gpt2")
	r := loaded(t, m, src, Options{MaxSequences: 2, MaxTokens: 64, Blocks: 200})
	if got := r.Plan().MaxLength; got != positions {
		t.Errorf("the longest sequence has %d tokens, want %d", got, positions)
	}
	if _, err := r.Submit(context.Background(), Request{Prompt: []int32{1}, MaxNew: positions}); !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "128") {
		t.Errorf("a request for %d tokens: %v, want %v", positions+1, err, ErrRequest)
	}
	for _, q := range []Request{{Prompt: []int32{1}, MaxNew: positions - 1}, {Prompt: []int32{1}}} {
		s := submit(t, r, q)
		drain(t, r)
		if len(s.IDs()) != positions || s.Err() != nil {
			t.Errorf("%d tokens, %v", len(s.IDs()), s.Err())
		}
	}
	o := Options{MaxSequences: 2, MaxTokens: 64, Blocks: 200, MaxLength: positions + 1}
	if _, err := unloaded(t, m, o); !errors.Is(err, ErrPreparation) || !strings.Contains(err.Error(), "MaxLength 129 is above 128") {
		t.Errorf("MaxLength %d: %v, want %v", o.MaxLength, err, ErrPreparation)
	}
	full, err := Options{}.Resolve(m.Module)
	if err != nil || full.MaxLength != positions {
		t.Errorf("resolved MaxLength %d (%v), want %d", full.MaxLength, err, positions)
	}
}
