package piecewise_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"pwc/compile/host"
	"pwc/internal/testkit"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
)

// loop has @step, whose parameter %x is aliased by the results of @double and @triple. Each of
// these computes on the result of @step, so the functions form a loop.
const loop = `pwc 1
module "loop" {
  sym N in [1, 8] batch
  func @step(%x: f32[N], %by: f32[2]) -> (f32[N]) {
    %y = add(%x, 1.0) : f32[N]
    return %y
  }
  func @double(%y: f32[N]) -> (f32[N]) {
    %z = mul(%y, 2.0) : f32[N]
    return %z
  }
  func @triple(%y: f32[N]) -> (f32[N]) {
    %z = mul(%y, 3.0) : f32[N]
    return %z
  }
  func @keep(%k: f32[N]) -> (f32[N], f32[N], f32[N]) {
    %l = neg(%k) : f32[N]
    %m = abs(%k) : f32[N]
    return %k, %l, %m
  }
}
`

var feeds = []piecewise.Alias{{From: "double", To: "step", Param: "x"}, {From: "triple", To: "step", Param: "x"}}

// A parameter reads a result that is aliased to it without a copy. If the results of two functions
// are aliased to it, a run of one makes the result of the other stale. If the parameter is then set
// to data of the host, the result is stale, and the data is sent even if the host sent the same
// data before.
func TestAliases(t *testing.T) {
	for _, o := range []piecewise.Options{
		{Capture: piecewise.CaptureOptions{Mode: piecewise.None}},
		{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2, 4}}},
		{Capture: piecewise.CaptureOptions{Mode: piecewise.Full, Sizes: []int64{4}}},
		{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4}}, Debug: piecewise.DebugOptions{Poison: true}},
		{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}, Debug: piecewise.DebugOptions{Canary: piecewise.CanaryBytes}},
	} {
		w := &watching{Device: openHost(t), ran: map[*program.Program]int{}}
		o.Device, o.Memory.Aliases, o.Memory.StagingSlots = w, feeds, 2
		b := start(t, loop, o)
		ctx := context.Background()
		step := func(from piecewise.Result, host ...float32) (piecewise.Results, error) {
			t.Helper()
			n := len(host)
			if n == 0 {
				n = 2
			}
			in, err := b.Func("step").Inputs(int64(n))
			if err != nil {
				t.Fatal(err)
			}
			by, err := in.Float32s("by")
			if err != nil {
				t.Fatal(err)
			}
			clear(by)
			if host == nil {
				err = in.SetResult("x", from)
			} else {
				var x []float32
				x, err = in.Float32s("x")
				copy(x, host)
			}
			if err != nil {
				return piecewise.Results{}, err
			}
			return b.Func("step").Run(ctx, in, nil)
		}
		next := func(name string, y piecewise.Results) piecewise.Results {
			t.Helper()
			in, err := b.Func(name).Inputs(2)
			if err != nil {
				t.Fatal(err)
			}
			if err := in.SetResult("y", y.At(0)); err != nil {
				t.Fatal(err)
			}
			r, err := b.Func(name).Run(ctx, in, nil)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		must := func(r piecewise.Results, err error) piecewise.Results {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		stale := func(r piecewise.Results) {
			t.Helper()
			if err := r.At(0).CopyTo(make([]byte, 8)); !errors.Is(err, piecewise.ErrStale) {
				t.Errorf("mode %s: a result that was overwritten: %v, want ErrStale", o.Capture.Mode, err)
			}
		}
		for range 3 {
			s := must(step(piecewise.Result{}, 1, 2))
			wantF32(t, read(t, s.At(0)), []float32{2, 3})
			w.log = nil
			d := next("double", s)
			wantF32(t, read(t, d.At(0)), []float32{4, 6})
			s = must(step(d.At(0)))
			wantF32(t, read(t, s.At(0)), []float32{5, 7})
			triple := next("triple", s)
			stale(d)
			s = must(step(triple.At(0)))
			wantF32(t, read(t, s.At(0)), []float32{16, 22})
			if slices.Contains(w.log, "copy on the device") {
				t.Errorf("mode %s: aliased results were copied: %q", o.Capture.Mode, w.log)
			}
			s = must(step(piecewise.Result{}, 1, 2))
			wantF32(t, read(t, s.At(0)), []float32{2, 3})
			stale(triple)
			// The host sends the data of the run before the aliased result again.
			d = next("double", s)
			s = must(step(piecewise.Result{}, 1, 2))
			wantF32(t, read(t, s.At(0)), []float32{2, 3})
			stale(d)
			// SetResult, and the result is overwritten before the run.
			d = next("double", s)
			in, err := b.Func("step").Inputs(2)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := in.Float32s("by"); err != nil {
				t.Fatal(err)
			}
			if err := in.SetResult("x", d.At(0)); err != nil {
				t.Fatal(err)
			}
			next("triple", s)
			if _, err := b.Func("step").Run(ctx, in, nil); !errors.Is(err, piecewise.ErrStale) {
				t.Errorf("mode %s: a run on a result that was overwritten after it was given: %v, want ErrStale", o.Capture.Mode, err)
			}
			// Rows of the host, padded over an earlier result.
			s = must(step(piecewise.Result{}, 1, 2, 3))
			wantF32(t, read(t, s.At(0)), []float32{2, 3, 4})
		}
	}
}

// rows has @choose, whose result 1 is aliased to the parameter of @step. @step may run more rows.
const rows = `pwc 1
module "rows" {
  sym N in [1, 8] batch
  sym M in [1, 4] batch
  func @step(%x: f32[N]) -> (f32[N]) {
    %y = add(%x, 1.0) : f32[N]
    return %y
  }
  func @choose(%x: f32[M]) -> (f32[M], f32[M]) {
    %a = neg(%x) : f32[M]
    %b = mul(%x, 2.0) : f32[M]
    return %a, %b
  }
}
`

// A result may be aliased to a parameter with another size symbol if the parameter has room for
// it. A write to that memory makes only this result stale, not the function's other results.
func TestAliasesOfOtherRows(t *testing.T) {
	feed := piecewise.Alias{From: "choose", Result: 1, To: "step", Param: "x"}
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Full} {
		w := &watching{Device: openHost(t), ran: map[*program.Program]int{}}
		b := start(t, rows, piecewise.Options{Device: w, Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{4}}, Memory: piecewise.MemoryOptions{Aliases: []piecewise.Alias{feed}, StagingSlots: 2}})
		ctx := context.Background()
		choose := run(t, b.Func("choose"), []float32{1, 2, 3})
		wantF32(t, choose, []float32{-1, -2, -3})
		r, err := issue(t, b.Func("choose"), []float32{5, 6, 7}, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.log = nil
		in, err := b.Func("step").Inputs(3)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.SetResult("x", r.At(1)); err != nil {
			t.Fatal(err)
		}
		y, err := b.Func("step").Run(ctx, in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(w.log, "copy on the device") {
			t.Errorf("mode %s: an aliased result was copied: %q", mode, w.log)
		}
		wantF32(t, read(t, y.At(0)), []float32{11, 13, 15})
		wantF32(t, run(t, b.Func("step"), []float32{1, 1, 1, 1, 1, 1}), []float32{2, 2, 2, 2, 2, 2})
		var stale *piecewise.StaleError
		if err := r.At(1).CopyTo(make([]byte, 12)); !errors.As(err, &stale) || stale.Latest != 0 || !strings.Contains(err.Error(), "result 1 of @choose, run 2, was overwritten: a warm-up wrote it, or its memory is also that of a parameter") {
			t.Errorf("mode %s: a result that a parameter overwrote: %v", mode, err)
		}
		wantF32(t, read(t, r.At(0)), []float32{-5, -6, -7})
	}
	_, err := piecewise.New(context.Background(), testkit.Parse(t, strings.Replace(rows, "sym M in [1, 4]", "sym M in [1, 9]", 1)), piecewise.Options{Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Memory: piecewise.MemoryOptions{Aliases: []piecewise.Alias{feed}}})
	if err == nil || !strings.Contains(err.Error(), "the result is f32[M], the parameter f32[N]") {
		t.Errorf("more rows than there is room for: %v", err)
	}
}

// Aliased results have no memory of their own.
func TestAliasesInPlan(t *testing.T) {
	plain, fed := create(t, loop, piecewise.Options{}).Plan(), create(t, loop, piecewise.Options{Memory: piecewise.MemoryOptions{Aliases: feeds}}).Plan()
	const place = 256 // 8 rows, rounded up
	if plain.ResultBytes-fed.ResultBytes != 2*place || plain.InputBytes != fed.InputBytes {
		t.Errorf("%d bytes of results and %d of inputs, %d and %d with aliases", plain.ResultBytes, plain.InputBytes, fed.ResultBytes, fed.InputBytes)
	}
}

// Impossible aliases are refused, each with its reason, in one error.
func TestBadAliases(t *testing.T) {
	for _, c := range []struct {
		feeds []piecewise.Alias
		want  []string
	}{
		{[]piecewise.Alias{{From: "no", To: "step", Param: "x"}, {From: "double", To: "yes", Param: "x"}}, []string{"result 0 of @no to %x of @step: the module has no function @no", "no function @yes"}},
		{[]piecewise.Alias{{From: "double", To: "step", Param: "z"}}, []string{"@step has no parameter %z"}},
		{[]piecewise.Alias{{From: "double", Result: 1, To: "step", Param: "x"}, {From: "double", Result: -1, To: "step", Param: "x"}}, []string{"result 1 of @double", "result -1 of @double", "has 1 results"}},
		{[]piecewise.Alias{{From: "double", To: "step", Param: "by"}}, []string{"the result is f32[N], the parameter f32[2]"}},
		{[]piecewise.Alias{{From: "keep", To: "step", Param: "x"}}, []string{"is a parameter, a weight or a state"}},
		{[]piecewise.Alias{{From: "step", To: "step", Param: "x"}, {From: "double", To: "triple", Param: "y"}}, []string{"result 0 of @step to %x of @step: the alias goes from a function to itself", "@triple: a parameter of @double has the same memory"}},
		{[]piecewise.Alias{{From: "keep", Result: 1, To: "step", Param: "x"}, {From: "keep", Result: 2, To: "step", Param: "x"}}, []string{"another result of @keep has the memory of this parameter"}},
		{[]piecewise.Alias{feeds[0], feeds[0]}, []string{"the result already shares memory"}},
		{[]piecewise.Alias{{From: "step", To: "keep", Param: "k"}}, []string{"the result already shares memory"}},
	} {
		_, err := piecewise.New(context.Background(), testkit.Parse(t, loop), piecewise.Options{Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Memory: piecewise.MemoryOptions{Aliases: c.feeds}})
		if err == nil {
			t.Errorf("%v: no error", c.feeds)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, want %q in it", c.feeds, err, want)
			}
		}
	}
}

// A result is refused for a parameter of another type, by Check for an Alias and by SetResult, also
// if their rows have equal sizes, or if the first extent of neither is a symbol.
func TestRowsOfOtherShapes(t *testing.T) {
	const text = `pwc 1
module "shapes" {
  sym N in [1, 8] batch
  sym M in [1, 8] batch
  func @make(%x: f32[N, 2, 4]) -> (f32[N, 2, 4], f32[7, 9]) {
    %y = neg(%x)
    %z = full(1.0, shape=[7, 9], dtype=f32)
    return %y, %z
  }
  func @take(%x: f32[M, 4, 2], %z: f32[2*M, 9]) -> (f32[M, 4, 2]) {
    %y = neg(%x)
    return %y
  }
}
`
	for _, a := range []piecewise.Alias{{From: "make", To: "take", Param: "x"}, {From: "make", Result: 1, To: "take", Param: "z"}} {
		_, _, err := piecewise.Check(testkit.Parse(t, text), piecewise.Options{Memory: piecewise.MemoryOptions{Aliases: []piecewise.Alias{a}}})
		if err == nil || !strings.Contains(err.Error(), "the result is f32[") {
			t.Errorf("%s: %v", a, err)
		}
	}
	b := start(t, text, piecewise.Options{})
	r, err := issue(t, b.Func("make"), make([]float32, 2), nil)
	if err != nil {
		t.Fatal(err)
	}
	in, err := b.Func("take").Inputs(2)
	if err != nil {
		t.Fatal(err)
	}
	for i, param := range []string{"x", "z"} {
		if err := in.SetResult(param, r.At(i)); !errors.Is(err, piecewise.ErrSize) {
			t.Errorf("result %d for %%%s: %v, want ErrSize", i, param, err)
		}
	}
}
