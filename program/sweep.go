package program

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// Limits for the placement by size ([Place]), whose time grows with the pairs of items that share a
// step: n²/2 if n items live at once. With more than maxPairs pairs and more than maxPairsEach for
// each item, items are placed in the order of steps (sweep).
const (
	maxPairs     = 1 << 20
	maxPairsEach = 64
)

// shared counts the pairs of items that share a step, in O(n log n).
func shared(items []Item) int64 {
	first, last := make([]int32, len(items)), make([]int32, len(items))
	for i, it := range items {
		first[i], last[i] = it.First, it.Last
	}
	slices.Sort(first)
	slices.Sort(last)
	pairs, ended := int64(0), 0
	for i, f := range first { // it shares a step with the items that began before and have not ended
		for last[ended] < f {
			ended++
		}
		pairs += int64(i - ended)
	}
	return pairs
}

// sweep places items in the order of their first steps, each in a gap between live items, in
// O(n log n) for any number of pairs. Gaps are in classes by the power of two of their size, as in
// "TLSF: a New Dynamic Memory Allocator for Real-Time Systems" (Masmano et al., 2004). The total
// may be larger than that of the placement by size.
func sweep(items []Item) (offsets []int64, total int64, err error) {
	order, ends := make([]int32, len(items)), make([]int32, len(items))
	for i := range order {
		order[i], ends[i] = int32(i), int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(items[a].First, items[b].First), cmp.Compare(items[b].Size, items[a].Size))
	})
	slices.SortStableFunc(ends, func(a, b int32) int { return cmp.Compare(items[a].Last, items[b].Last) })
	offsets = make([]int64, len(items))
	g := gaps{sizes: map[int64]int64{}, starts: map[int64]int64{}}
	for _, i := range order {
		it := &items[i]
		if it.Size == 0 {
			continue
		}
		for ; items[ends[0]].Last < it.First; ends = ends[1:] {
			if e := ends[0]; items[e].Size > 0 {
				g.give(offsets[e], items[e].Size)
			}
		}
		at, ok := g.take(it.Size, max(it.Align, 1))
		if !ok {
			return nil, 0, ErrTooLarge
		}
		offsets[i] = at
	}
	return offsets, g.most, nil
}

// gaps is the free memory below end, the end of the highest live item. Adjacent gaps are merged.
type gaps struct {
	end, most int64           // most is the largest end so far
	sizes     map[int64]int64 // by start
	starts    map[int64]int64 // by end
	classes   [64][]int64     // starts, by bits.Len64 of the size; some are stale: their gap was used or merged
}

func (g *gaps) give(start, size int64) {
	if s, ok := g.starts[start]; ok {
		size += start - s
		start = s
		g.drop(start)
	}
	if n, ok := g.sizes[start+size]; ok {
		g.drop(start + size)
		size += n
	}
	if start+size == g.end {
		g.end = start
		return
	}
	g.sizes[start], g.starts[start+size] = size, start
	c := bits.Len64(uint64(size))
	g.classes[c] = append(g.classes[c], start)
}

func (g *gaps) drop(start int64) {
	delete(g.starts, start+g.sizes[start])
	delete(g.sizes, start)
}

// take returns the start of free memory: in a gap of the smallest class whose gaps all have room
// at any alignment of their start, otherwise at the end.
func (g *gaps) take(size, align int64) (int64, bool) {
	if size > math.MaxInt64-align {
		return 0, false
	}
	need := size + align - 1
	for c := bits.Len64(uint64(need-1)) + 1; c < len(g.classes); c++ {
		for list := &g.classes[c]; len(*list) > 0; {
			start := (*list)[len(*list)-1]
			*list = (*list)[:len(*list)-1]
			have, ok := g.sizes[start]
			if !ok || bits.Len64(uint64(have)) != c {
				continue
			}
			g.drop(start)
			at, _ := alignUp(start, align)
			if at > start {
				g.give(start, at-start)
			}
			if rest := start + have - at - size; rest > 0 {
				g.give(at+size, rest)
			}
			return at, true
		}
	}
	at, ok := alignUp(g.end, align)
	if !ok || at > math.MaxInt64-size {
		return 0, false
	}
	from := g.end
	g.end = at + size
	g.most = max(g.most, g.end)
	if at > from {
		g.give(from, at-from)
	}
	return at, true
}
