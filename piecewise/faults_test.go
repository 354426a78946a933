package piecewise_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pwc/internal/testkit"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
)

// TestFaultsComeTogether: an error of New lists all mistakes of a stage: options, splits, functions, then aliases and
// sizes. Check finds the same, except for the compiler, which it does not need.
func TestFaultsComeTogether(t *testing.T) {
	const compiler = "Options.Compile.Compiler is nil"
	huge := `pwc 1 module "m" {
  sym N in [1, 1] batch
  func @f(%x: f32[N, 4611686018427387904], %y: f32[4611686018427387904]) -> (f32[N, 4611686018427387904]) { %0 = neg(%x) return %0 }
  func @g(%z: f32[4611686018427387904]) { }
}`
	unknown := `pwc 1 module "m" {
  sym N in [1, 8] batch
  op "a::b"(tensor) -> (tensor)
  func @f(%x: f32[N]) { %0 = call "a::b"(%x) : f32[?] }
  func @g(%x: f32[N]) { %0 = call "a::b"(%x) : f32[?] }
}`
	for _, c := range []struct {
		name, text string
		o          piecewise.Options
		want       []string
	}{
		{"options", rowwise, piecewise.Options{
			Rank: 1, Pool: new(piecewise.Pool), Device: openHost(t), Ops: []device.Op{nil},
			Capture: piecewise.CaptureOptions{Sizes: []int64{0, 4, -1}, DecodeRows: -1, PaddedSlots: []string{"nope"}},
			Memory:  piecewise.MemoryOptions{StagingSlots: -1, Max: map[string]int64{"N": 100, "K": 1}, Symbols: map[string]int64{"L": 1}},
		}, []string{"Options.Pool is of another device", "StagingSlots is -1", "capture size 0", "capture size -1", "DecodeRows is -1", "Options.Rank is 1",
			`Max["N"] = 100 is outside`, "Max names K", "Symbols names L", "Ops[0] is nil", "PaddedSlots names nope"}},
		{"splits", unknown, piecewise.Options{}, []string{"4:30: result 0 of a::b", "5:30: result 0 of a::b"}},
		{"ops to split at", rowwise, piecewise.Options{Compile: piecewise.CompileOptions{SplitOn: []string{"a::c", "a::d"}}}, []string{`cannot split at "a::c", "a::d"`}},
		{"functions", huge, piecewise.Options{}, []string{"parameter %x of @f", "parameter %y of @f", "result 0 of @f", "parameter %z of @g"}},
		{"aliases and sizes", rowwise, piecewise.Options{
			Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{77}}, Compile: piecewise.CompileOptions{Sizes: []int64{78}},
			Memory: piecewise.MemoryOptions{Aliases: []piecewise.Alias{{From: "nope"}}},
		}, []string{"no function @nope", "capture size 77", "compile size 78"}},
	} {
		m := testkit.Parse(t, c.text)
		_, err := piecewise.New(context.Background(), m, c.o)
		_, _, checked := piecewise.Check(m, c.o)
		for _, want := range c.want {
			for _, e := range []error{err, checked} {
				if e == nil || strings.Count(e.Error(), want) != 1 {
					t.Errorf("%s: %v; want %q in it once", c.name, e, want)
				}
			}
		}
		if err == nil || !strings.Contains(err.Error(), compiler) || checked != nil && strings.Contains(checked.Error(), compiler) {
			t.Errorf("%s: New: %v; Check: %v; want %q from New only", c.name, err, checked, compiler)
		}
	}
	if _, err := piecewise.New(context.Background(), nil, piecewise.Options{Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{}}}); err == nil || errors.Is(err, piecewise.ErrSize) {
		t.Errorf("no module: %v", err)
	}
}
