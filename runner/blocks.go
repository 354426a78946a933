package runner

// blocks has the free blocks of the KV cache.
type blocks struct {
	free  []int32 // grow takes from the end
	total int
}

func newBlocks(n int) blocks {
	b := blocks{free: make([]int32, n), total: n}
	for i := range b.free {
		b.free[i] = int32(n - 1 - i)
	}
	return b
}

// grow appends free blocks to the list of a sequence until it has n. If there are not enough, it
// appends no block and reports false.
func (b *blocks) grow(list []int32, n int) ([]int32, bool) {
	more := n - len(list)
	if more > len(b.free) {
		return list, false
	}
	for range more {
		last := len(b.free) - 1
		list, b.free = append(list, b.free[last]), b.free[:last]
	}
	return list, true
}

// give frees the blocks of a list and returns the empty list.
func (b *blocks) give(list []int32) []int32 {
	b.free = append(b.free, list...)
	return list[:0]
}

func (b *blocks) used() int { return b.total - len(b.free) }
