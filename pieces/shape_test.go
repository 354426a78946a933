package pieces_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pwc/pieces"
	"pwc/split"
)

func TestRanges(t *testing.T) {
	for _, c := range []struct {
		s    pieces.Shapes
		want string
	}{
		{pieces.Shapes{}, "[[1, 8192]]"},
		{pieces.Shapes{Max: 512}, "[[1, 512]]"},
		{pieces.Shapes{Endpoints: []int64{64, 512}}, "[[1, 64] [65, 512] [513, 8192]]"},
		{pieces.Shapes{Endpoints: []int64{64, 512}, Max: 512}, "[[1, 64] [65, 512]]"},
		{pieces.Shapes{Endpoints: []int64{1, 2, 3}, Max: 4}, "[1 2 3 4]"},
		{pieces.Shapes{Endpoints: []int64{1, 2}, Max: 4, Sizes: []int64{4, 1, 4}}, "[1 4 2 [3, 4]]"},
		{pieces.Shapes{Max: 9000}, "the largest size 9000 is outside the declared range [1, 8192]"},
		{pieces.Shapes{Max: -1}, "the largest size -1 is outside the declared range [1, 8192]"},
		{pieces.Shapes{Max: 512, Sizes: []int64{513}}, "compile size 513 is outside [1, 512]"},
		{pieces.Shapes{Max: 512, Endpoints: []int64{513}}, "range endpoint 513 is outside [1, 512]"},
		{pieces.Shapes{Endpoints: []int64{0}}, "range endpoint 0 is outside [1, 8192]"},
		{pieces.Shapes{Endpoints: []int64{8, 8}}, "range endpoints must rise, 8 follows 8"},
	} {
		r, err := c.s.Ranges(1, 8192)
		got := fmt.Sprint(r)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: got %s, want %s", c.s, got, c.want)
		}
	}
}

// TestRangesCover holds that every size is in at least one range and in no two exact or two
// general ranges, and that the first range with a compile size is that size alone.
func TestRangesCover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lo := rapid.Int64Range(0, 3).Draw(t, "lo")
		hi := lo + rapid.Int64Range(0, 40).Draw(t, "span")
		var s pieces.Shapes
		last := lo - 1
		for range rapid.IntRange(0, 5).Draw(t, "endpoints") {
			if last < hi {
				last = rapid.Int64Range(last+1, hi).Draw(t, "endpoint")
				s.Endpoints = append(s.Endpoints, last)
			}
		}
		s.Sizes = rapid.SliceOfN(rapid.Int64Range(lo, hi), 0, 5).Draw(t, "sizes")
		ranges, err := s.Ranges(lo, hi)
		if err != nil {
			t.Fatal(err)
		}
		for n := lo; n <= hi; n++ {
			exact, general := 0, 0
			for i, r := range ranges {
				switch {
				case r.Lo == n && r.Hi == n:
					exact++
				case r.Lo <= n && n <= r.Hi:
					general++
				}
				if i > 0 && r == ranges[i-1] {
					t.Fatalf("%v has %v twice", ranges, r)
				}
			}
			if exact+general == 0 || exact > 1 || general > 1 {
				t.Fatalf("size %d is served %d + %d times by %v", n, exact, general, ranges)
			}
		}
		for _, n := range s.Sizes {
			i := slices.IndexFunc(ranges, func(r pieces.Range) bool { return r.Lo <= n && n <= r.Hi })
			if ranges[i] != (pieces.Range{Lo: n, Hi: n}) {
				t.Fatalf("compile size %d is in %v first, of %v", n, ranges[i], ranges)
			}
		}
	})
}

// TestFunctionsWithoutASize: a function without a size symbol has one artifact, whatever sizes
// are given for another function of the build.
func TestFunctionsWithoutASize(t *testing.T) {
	fixed := plan(t, "pwc 1\nmodule \"m\" {\n func @f(%x: f32[4]) -> (f32[4]) {\n  %y = add(%x, 1)\n  return %y\n }\n}\n")
	r, err := pieces.Build(context.Background(), []*split.Plan{fixed, plan(t, chain)}, pieces.Options{
		Compiler: newFake(0), Shapes: map[string]pieces.Shapes{"N": {Sizes: []int64{8}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(r.ByShape); got != 3 || r.ByShape[0].Compiled != 1 || r.ByShape[2].Shape != "8" {
		t.Errorf("%d shapes: %+v; want any size with one artifact, [1, 8192] and 8", got, r.ByShape)
	}
}
