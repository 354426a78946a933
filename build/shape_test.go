package build_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pwc/build"
	"pwc/program"
)

func TestRanges(t *testing.T) {
	for _, c := range []struct {
		s    build.Shapes
		want string
	}{
		{build.Shapes{}, "[[1, 8192]]"},
		{build.Shapes{Max: 512}, "[[1, 512]]"},
		{build.Shapes{Endpoints: []int64{64, 512}}, "[[1, 64] [65, 512] [513, 8192]]"},
		{build.Shapes{Endpoints: []int64{64, 512}, Max: 512}, "[[1, 64] [65, 512]]"},
		{build.Shapes{Endpoints: []int64{1, 2, 3}, Max: 4}, "[1 2 3 4]"},
		{build.Shapes{Endpoints: []int64{1, 2}, Max: 4, Sizes: []int64{4, 1, 4}}, "[1 4 2 [3, 4]]"},
		{build.Shapes{Max: 9000}, "the largest size 9000 is outside the declared range [1, 8192]"},
		{build.Shapes{Max: -1}, "the largest size -1 is outside the declared range [1, 8192]"},
		{build.Shapes{Max: 512, Sizes: []int64{513}}, "compile size 513 is outside [1, 512]"},
		{build.Shapes{Max: 512, Endpoints: []int64{513}}, "range endpoint 513 is outside [1, 512]"},
		{build.Shapes{Endpoints: []int64{0}}, "range endpoint 0 is outside [1, 8192]"},
		{build.Shapes{Endpoints: []int64{8, 8}}, "range endpoints must rise, 8 follows 8"},
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

// TestRangesCover holds that every size is served by exactly one general range
// and that every compile size comes first.
func TestRangesCover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lo := rapid.Int64Range(0, 3).Draw(t, "lo")
		hi := lo + rapid.Int64Range(0, 40).Draw(t, "span")
		var s build.Shapes
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
	})
}

// TestKey holds that each factor makes another key and that no two keys are
// written alike, and pins one sum: a change of it makes every store cold.
func TestKey(t *testing.T) {
	base := build.Key{Piece: [32]byte{1}, Shape: "s0=[1, 512]", Target: "host", Pipeline: "passes 1", Externs: `my::gemm@"3"`, Format: 1}
	if got, want := fmt.Sprintf("%x", base.Sum()), "731ce3e25f6384e4f2f31f400012595ad774b40e2568b0f3f01724b98d7ccf95"; got != want {
		t.Errorf("sum %s, want %s", got, want)
	}
	others := map[string]build.Key{}
	for name, change := range map[string]func(*build.Key){
		"piece":    func(k *build.Key) { k.Piece[31] = 1 },
		"shape":    func(k *build.Key) { k.Shape = "s0=512" },
		"target":   func(k *build.Key) { k.Target = "cuda:sm_90" },
		"pipeline": func(k *build.Key) { k.Pipeline = "passes 2" },
		"externs":  func(k *build.Key) { k.Externs = "" },
		"format":   func(k *build.Key) { k.Format = program.FormatVersion + 1 },
	} {
		k := base
		change(&k)
		if d := k.Diff(base); len(d) != 1 || d[0].Name != name {
			t.Errorf("%s: differs in %v", name, d)
		}
		others[name] = k
	}
	if len(others) != len(base.Factors()) {
		t.Errorf("%d factors, %d tried", len(base.Factors()), len(others))
	}
	moved := base
	moved.Shape, moved.Target = "s0=[1, 512]host", ""
	others["moved"] = moved
	seen := map[[32]byte]string{base.Sum(): "base"}
	for name, k := range others {
		if with, ok := seen[k.Sum()]; ok {
			t.Errorf("%s and %s have one sum", name, with)
		}
		seen[k.Sum()] = name
	}
	if s := base.String(); len(s) != 16 || !strings.HasPrefix(fmt.Sprintf("%x", base.Sum()), s) {
		t.Errorf("text %s", s)
	}
}
