package program

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Item is memory to be placed: Size bytes at a multiple of Align, live from step
// First to step Last, both included.
type Item struct {
	Size        int64
	Align       int64 // a power of two; 0 means 1
	First, Last int32
}

// ErrTooLarge: the placed memory would exceed int64.
var ErrTooLarge = errors.New("program: placed memory exceeds int64")

// Place returns an offset for every item such that items that are live at the same
// step do not overlap, and the total size. Items of size 0 are at 0.
//
// It is greedy by size with best fit, the method of "Efficient Memory
// Management for Deep Neural Net Inference" (Pisarchyk and Lee,
// arXiv:2001.03288, section 5.2): items from the largest on, each into the
// smallest gap between the already placed items that share a step with it. An
// interval tree finds these, so the time is O(n log n + p log p) for p pairs of
// items that share a step. If there are more than 2^20 pairs and more than 64 for
// each item, items are placed in the order of their first steps instead, in
// O(n log n) (see sweep). The result depends only on the items and their order.
func Place(items []Item) (offsets []int64, total int64, err error) {
	for i, it := range items {
		if it.Size < 0 || it.First > it.Last || it.Align < 0 || it.Align&(it.Align-1) != 0 {
			return nil, 0, fmt.Errorf("program: item %d cannot be placed: %+v; want Size >= 0, First <= Last, and Align 0 or a power of two", i, it)
		}
	}
	if shared(items) > max(maxPairs, maxPairsEach*int64(len(items))) {
		return sweep(items)
	}
	offsets = make([]int64, len(items))
	order := make([]int32, len(items)) // by size
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		x, y := &items[a], &items[b]
		return cmp.Or(cmp.Compare(y.Size, x.Size), cmp.Compare(x.First, y.First), cmp.Compare(y.Last, x.Last))
	})
	live := newIntervals(items)
	var near []int32
	for _, i := range order {
		it := &items[i]
		if it.Size == 0 {
			continue
		}
		near = live.overlapping(near[:0], it.First, it.Last)
		slices.SortFunc(near, func(a, b int32) int { return cmp.Compare(offsets[a], offsets[b]) })
		at, ok := bestFit(items, offsets, near, it)
		if !ok {
			return nil, 0, ErrTooLarge
		}
		offsets[i] = at
		total = max(total, at+it.Size)
		live.add(i)
	}
	return offsets, total, nil
}

// bestFit returns the offset in the smallest gap between the items near (sorted
// by offset) that has room for it, the lowest of equal gaps; if no gap has room,
// the first offset after all of them.
func bestFit(items []Item, offsets []int64, near []int32, it *Item) (int64, bool) {
	best, bestGap := int64(-1), int64(math.MaxInt64)
	end := int64(0) // of the items so far
	for _, j := range near {
		at, ok := alignUp(end, it.Align)
		if gap := offsets[j] - end; ok && offsets[j]-at >= it.Size && gap < bestGap {
			best, bestGap = at, gap
		}
		end = max(end, offsets[j]+items[j].Size)
	}
	if best >= 0 {
		return best, true
	}
	at, ok := alignUp(end, it.Align)
	return at, ok && at <= math.MaxInt64-it.Size
}

func alignUp(n, align int64) (int64, bool) {
	if align <= 1 {
		return n, true
	}
	if n > math.MaxInt64-(align-1) {
		return 0, false
	}
	return (n + align - 1) &^ (align - 1), true
}

// intervals finds the added items that share a step with a given one. Items are the
// leaves of an implicit balanced tree, sorted by First. Each node has the largest
// Last of the added items below it.
type intervals struct {
	items []Item
	order []int32 // item at each leaf
	leaf  []int32 // leaf of each item
	width int     // leaves, a power of two
	last  []int64 // tree; nothing: no item was added below
}

func newIntervals(items []Item) *intervals {
	t := &intervals{items: items, order: make([]int32, len(items)), leaf: make([]int32, len(items)), width: 1}
	for i := range t.order {
		t.order[i] = int32(i)
	}
	slices.SortStableFunc(t.order, func(a, b int32) int { return cmp.Compare(items[a].First, items[b].First) })
	for at, i := range t.order {
		t.leaf[i] = int32(at)
	}
	for t.width < len(items) {
		t.width *= 2
	}
	t.last = make([]int64, 2*t.width)
	for i := range t.last {
		t.last[i] = nothing
	}
	return t
}

// nothing is less than every step.
const nothing = math.MinInt64

func (t *intervals) add(i int32) {
	last := int64(t.items[i].Last)
	for n := t.width + int(t.leaf[i]); n > 0; n /= 2 {
		t.last[n] = max(t.last[n], last)
	}
}

// overlapping appends the added items that are live at a step of [first, last].
func (t *intervals) overlapping(out []int32, first, last int32) []int32 {
	return t.walk(out, 1, 0, t.width, first, last)
}

func (t *intervals) walk(out []int32, n, lo, hi int, first, last int32) []int32 {
	if t.last[n] < int64(first) || lo >= len(t.order) || t.items[t.order[lo]].First > last {
		return out
	}
	if n >= t.width {
		return append(out, t.order[lo])
	}
	mid := (lo + hi) / 2
	out = t.walk(out, 2*n, lo, mid, first, last)
	return t.walk(out, 2*n+1, mid, hi, first, last)
}
