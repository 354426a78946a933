package program

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestSweep checks the placement in the order of steps: items that share a step do not overlap,
// offsets are aligned, and the total is the highest end.
func TestSweep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Item {
			first := rapid.Int32Range(-3, 12).Draw(t, "first")
			return Item{Size: rapid.Int64Range(0, 40).Draw(t, "size"), Align: rapid.SampledFrom([]int64{0, 1, 4, 32}).Draw(t, "align"),
				First: first, Last: first + rapid.Int32Range(0, 6).Draw(t, "steps")}
		}), 0, 40).Draw(t, "items")
		offsets, total, err := sweep(items)
		if err != nil {
			t.Fatal(err)
		}
		end, pairs := int64(0), int64(0)
		for i, x := range items {
			if offsets[i] < 0 || offsets[i]%max(x.Align, 1) != 0 || x.Size == 0 && offsets[i] != 0 {
				t.Fatalf("item %d is at %d: %+v", i, offsets[i], x)
			}
			if x.Size > 0 {
				end = max(end, offsets[i]+x.Size)
			}
			for j, y := range items[:i] {
				if x.First > y.Last || y.First > x.Last {
					continue
				}
				pairs++
				if offsets[i] < offsets[j]+y.Size && offsets[j] < offsets[i]+x.Size && x.Size > 0 && y.Size > 0 {
					t.Fatalf("items %d and %d overlap: %d %+v, %d %+v", i, j, offsets[i], x, offsets[j], y)
				}
			}
		}
		if end != total {
			t.Fatalf("total %d, the highest ends at %d", total, end)
		}
		if got := shared(items); got != pairs {
			t.Fatalf("%d pairs share a step, counted %d", pairs, got)
		}
	})
	if _, _, err := sweep([]Item{{Size: math.MaxInt64}, {Size: 1}}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("more than int64: %v", err)
	}
	// Gaps are used again: a chain needs the two largest neighbours.
	chain := make([]Item, 100)
	for i := range chain {
		chain[i] = Item{Size: 64, First: int32(i), Last: int32(i) + 1}
	}
	if _, total, err := sweep(chain); err != nil || total != 128 {
		t.Errorf("a chain takes %d: %v", total, err)
	}
}

// TestPlaceManyTogether places 300,000 items, most of which share a step with most of the others.
// In quadratic time this would take too long.
func TestPlaceManyTogether(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, life := range map[string]func(i int) (first, last int32){
		"all at once":     func(int) (int32, int32) { return 0, 9 },
		"from each step":  func(i int) (int32, int32) { return int32(i / 1000), math.MaxInt32 },
		"every other one": func(i int) (int32, int32) { return int32(i % 2), int32(i%2 + 1000*(i%3)) },
	} {
		items, sum := make([]Item, 300_000), int64(0)
		for i := range items {
			items[i].Size = 1 + int64(r.IntN(1<<20))
			items[i].First, items[i].Last = life(i)
			sum += items[i].Size
		}
		_, total, err := Place(items)
		if err != nil || total > sum {
			t.Errorf("%s: %d of %d bytes, %v", name, total, sum, err)
		}
	}
}
