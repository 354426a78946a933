package program_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

func TestPlaceByHand(t *testing.T) {
	for _, c := range []struct {
		name  string
		items []program.Item
		want  []int64
		total int64
	}{
		{"none", nil, nil, 0},
		{"apart in time", []program.Item{{Size: 10, First: 0, Last: 1}, {Size: 8, First: 2, Last: 3}}, []int64{0, 0}, 10},
		{"a shared step", []program.Item{{Size: 10, First: 0, Last: 1}, {Size: 8, First: 1, Last: 3}}, []int64{0, 10}, 18},
		{"aligned", []program.Item{{Size: 10, First: 0, Last: 1}, {Size: 8, Align: 64, First: 1, Last: 3}}, []int64{0, 64}, 72},
		{"empty", []program.Item{{Size: 0, First: 0, Last: 9}, {Size: 4, First: 0, Last: 9}}, []int64{0, 0}, 4},
		// The 9 bytes at 20 are free from step 2 on, and are filled by 5 and 4.
		{"the smallest gap", []program.Item{{Size: 20, First: 0, Last: 9}, {Size: 9, First: 0, Last: 1}, {Size: 8, First: 0, Last: 9}, {Size: 5, First: 2, Last: 9}, {Size: 4, First: 2, Last: 9}}, []int64{0, 20, 29, 20, 25}, 37},
		{"the largest first", []program.Item{{Size: 4, First: 0, Last: 1}, {Size: 10, First: 1, Last: 2}}, []int64{10, 0}, 14},
		{"apart in time, the later first", []program.Item{{Size: 10, First: 2, Last: 3}, {Size: 8, First: 0, Last: 1}}, []int64{0, 0}, 10},
		{"a gap at 0", []program.Item{{Size: 20, First: 0, Last: 1}, {Size: 15, First: 0, Last: 9}, {Size: 10, First: 2, Last: 9}}, []int64{0, 20, 0}, 35},
		// Of gaps at 40 (20 bytes) and 75 (10 bytes) the second.
		{"the higher gap is smaller", []program.Item{{Size: 40, First: 0, Last: 9}, {Size: 20, First: 0, Last: 1}, {Size: 15, First: 0, Last: 9}, {Size: 10, First: 0, Last: 1}, {Size: 9, First: 0, Last: 9}, {Size: 5, First: 2, Last: 9}}, []int64{0, 40, 60, 75, 85, 75}, 94},
		// Of gaps at 40 (24 bytes) and 94 (162 bytes) the first.
		{"the lower gap is smaller", []program.Item{{Size: 40}, {Size: 30, Align: 64}, {Size: 20, Align: 256}, {Size: 5}}, []int64{0, 64, 256, 40}, 276},
		{"the lower of equal gaps", []program.Item{{Size: 40}, {Size: 40, Align: 64}, {Size: 30, Align: 128}, {Size: 5}}, []int64{0, 64, 128, 40}, 158},
		{"all of int64", []program.Item{{Size: math.MaxInt64 - 1}, {Size: 1, Align: 2}}, []int64{0, math.MaxInt64 - 1}, math.MaxInt64},
	} {
		got, total, err := program.Place(c.items)
		if err != nil || !slices.Equal(got, c.want) || total != c.total {
			t.Errorf("%s: %v, %d, %v, want %v, %d", c.name, got, total, err, c.want, c.total)
		}
	}
	for _, bad := range []program.Item{{Size: -1}, {Size: 1, First: 2, Last: 1}, {Size: 1, Align: 3}, {Size: 1, Align: -2}, {Size: 1, Align: math.MinInt64}} {
		if _, _, err := program.Place([]program.Item{bad}); err == nil || errors.Is(err, program.ErrTooLarge) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for _, huge := range [][]program.Item{
		{{Size: math.MaxInt64}, {Size: 1}},
		{{Size: math.MaxInt64 - 10}, {Size: 1, Align: 256}},            // the end cannot be aligned
		{{Size: math.MaxInt64 - 10}, {Size: 8}, {Size: 2, Align: 256}}, // nor can the start of a gap after the first item
	} {
		if offsets, _, err := program.Place(huge); !errors.Is(err, program.ErrTooLarge) {
			t.Errorf("%+v, more than int64: %v, %v", huge, offsets, err)
		}
	}
}

// TestPlace: items that are live at one step never overlap, offsets are aligned, the
// total is the highest end, at least the bytes that are live at any step, and at most
// the bytes without reuse.
func TestPlace(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		items := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) program.Item {
			first := int32(rapid.IntRange(0, 20).Draw(t, "first"))
			return program.Item{
				Size:  int64(rapid.IntRange(0, 100).Draw(t, "size")),
				Align: rapid.SampledFrom([]int64{0, 1, 4, 16, 64}).Draw(t, "align"),
				First: first, Last: first + int32(rapid.IntRange(0, 6).Draw(t, "steps")),
			}
		}), 0, 40).Draw(rt, "items")
		offsets, total, err := program.Place(items)
		if err != nil {
			rt.Fatal(err)
		}
		end, sum := int64(0), int64(0)
		for i, a := range items {
			sum += a.Size + max(a.Align, 1) - 1
			end = max(end, offsets[i]+a.Size)
			if offsets[i] < 0 || a.Align > 0 && offsets[i]%a.Align != 0 {
				rt.Fatalf("item %d at %d", i, offsets[i])
			}
			for j, b := range items[:i] {
				if a.Size > 0 && b.Size > 0 && a.First <= b.Last && b.First <= a.Last && offsets[i] < offsets[j]+b.Size && offsets[j] < offsets[i]+a.Size {
					rt.Fatalf("items %d %+v at %d and %d %+v at %d overlap", j, b, offsets[j], i, a, offsets[i])
				}
			}
		}
		if total != end {
			rt.Fatalf("total %d, but the highest end is %d", total, end)
		}
		for step := range int32(27) {
			live := int64(0)
			for _, a := range items {
				if a.First <= step && step <= a.Last {
					live += a.Size
				}
			}
			if total < live {
				rt.Fatalf("total %d, but %d bytes live at step %d", total, live, step)
			}
		}
		if total > sum {
			rt.Fatalf("total %d, more than %d without reuse", total, sum)
		}
		again, _, _ := program.Place(items)
		if !slices.Equal(offsets, again) {
			rt.Fatal("another call, another result")
		}
	})
}

func TestScratchLayout(t *testing.T) {
	n := dim.Sym("N")
	scratch := func(first, last int32, shape ...dim.Dim) program.Buffer {
		return program.Buffer{Kind: program.BufferScratch, DType: dtype.F32, Shape: shape, First: first, Last: last, Align: 64}
	}
	p := &program.Program{Target: "host", Symbols: []string{"N"}, Params: []program.Param{{DType: dtype.F32, Shape: []dim.Dim{n}}},
		Buffers: []program.Buffer{
			{Kind: program.BufferParam, DType: dtype.F32, Shape: []dim.Dim{n}},
			scratch(0, 1, n, dim.Const(100)), scratch(1, 2, n), scratch(2, 2, n, dim.Const(100)),
		}}
	for n, want := range map[int64]string{3: "[0 0 1216 0] 1228", 0: "[0 0 0 0] 0"} {
		offsets, total, err := p.ScratchLayout(func(string) (int64, bool) { return n, true })
		if got := fmt.Sprint(offsets, total); err != nil || got != want {
			t.Errorf("N=%d: %s, %v, want %s", n, got, err, want)
		}
	}
	for _, n := range []int64{-1, math.MaxInt64} {
		if _, _, err := p.ScratchLayout(func(string) (int64, bool) { return n, true }); err == nil {
			t.Errorf("N=%d: no error", n)
		}
	}
	if _, _, err := p.ScratchLayout(func(string) (int64, bool) { return 0, false }); err == nil {
		t.Error("no value for N: no error")
	}
	p.Buffers[2].Shape, p.Buffers[3].Shape = []dim.Dim{n, dim.Const(1 << 60)}, []dim.Dim{n, dim.Const(1 << 60)}
	if _, _, err := p.ScratchLayout(func(string) (int64, bool) { return 1, true }); !errors.Is(err, program.ErrTooLarge) {
		t.Errorf("buffers that exceed int64 together: %v", err)
	}
}

func TestBufferBytes(t *testing.T) {
	c := func(ns ...int64) (out []dim.Dim) {
		for _, n := range ns {
			out = append(out, dim.Const(n))
		}
		return out
	}
	env := func(string) (int64, bool) { return 0, false }
	for _, b := range []struct {
		buf  program.Buffer
		want int64
	}{
		{program.Buffer{DType: dtype.F32, Shape: c(3, 4)}, 48},
		{program.Buffer{DType: dtype.F32}, 4},
		{program.Buffer{DType: dtype.I4, Shape: c(5)}, 3},
		{program.Buffer{DType: dtype.F32, Shape: c(1<<62, 0, 1<<62)}, 0},
		{program.Buffer{DType: dtype.F32, Shape: c(1<<62, 8, 0)}, 0},
		{program.Buffer{DType: dtype.F32, Shape: c(1<<62, 8, 0, 3)}, 0},
		{program.Buffer{DType: dtype.U8, Shape: c(math.MaxInt64)}, math.MaxInt64},
		{program.Buffer{DType: dtype.F32, Shape: c(1<<62, 8)}, -1},
		{program.Buffer{DType: dtype.F32, Shape: c(1<<62, 8, 2)}, -1}, // 0 modulo 2^64
		{program.Buffer{DType: dtype.F32, Shape: c(-1, 0)}, -1},
		{program.Buffer{DType: dtype.F32, Shape: []dim.Dim{dim.Sym("N")}}, -1},
		{program.Buffer{DType: dtype.F32, Shape: c(1 << 62)}, -1},
		{program.Buffer{DType: dtype.F32, Shape: c(-1)}, -1},
	} {
		got, err := b.buf.Bytes(env)
		if (err != nil) != (b.want < 0) || err == nil && got != b.want {
			t.Errorf("%s %v: %d, %v, want %d", b.buf.DType, b.buf.Shape, got, err, b.want)
		}
	}
}

func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			items := make([]program.Item, n)
			for i := range items {
				items[i] = program.Item{Size: r.Int64N(1 << 20), Align: 256, First: int32(i), Last: int32(i + r.IntN(20))}
			}
			for b.Loop() {
				if _, _, err := program.Place(items); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
