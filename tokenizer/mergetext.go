package tokenizer

import "container/heap"

// textPart is a part of a word, in a list.
type textPart struct {
	start, end int // in bytes; end is -1 after a merge into the part before it
	prev, next int // indices in the list; -1: none
	frozen     bool
}

// textMerge is a possible merge of a part and the next part. It is stale if the first was merged into the
// part before it, or if the next part is now another or longer one.
type textMerge struct {
	rank float64
	at   int // index of the first part
	end  int // of the next part
}

type textMerges []textMerge

// Len implements [heap.Interface].
func (m textMerges) Len() int { return len(m) }

// Less implements [heap.Interface].
func (m textMerges) Less(i, j int) bool {
	return m[i].rank < m[j].rank || m[i].rank == m[j].rank && m[i].at < m[j].at
}

// Swap implements [heap.Interface].
func (m textMerges) Swap(i, j int) { m[i], m[j] = m[j], m[i] }

// Push implements [heap.Interface].
func (m *textMerges) Push(x any) { *m = append(*m, x.(textMerge)) }

// Pop implements [heap.Interface].
func (m *textMerges) Pop() any {
	last := (*m)[len(*m)-1]
	*m = (*m)[:len(*m)-1]
	return last
}

// mergeText merges adjacent parts of a word into tokens, by the least rank of the result, and the
// leftmost of equal ones. It takes time n·log n. Frozen parts stay.
func mergeText(word string, parts []textPart, rank func(text string) (float64, bool)) []textPart {
	for i := range parts {
		parts[i].prev, parts[i].next = i-1, i+1
	}
	if len(parts) > 0 {
		parts[len(parts)-1].next = -1
	}
	var queue textMerges
	add := func(i int) {
		if i < 0 || parts[i].next < 0 || parts[i].frozen || parts[parts[i].next].frozen {
			return
		}
		end := parts[parts[i].next].end
		if r, ok := rank(word[parts[i].start:end]); ok {
			heap.Push(&queue, textMerge{r, i, end})
		}
	}
	for i := range parts {
		add(i)
	}
	for queue.Len() > 0 {
		m := heap.Pop(&queue).(textMerge)
		left := &parts[m.at]
		if left.end < 0 || left.next < 0 || parts[left.next].end != m.end {
			continue // stale
		}
		right := &parts[left.next]
		left.end, left.next = right.end, right.next
		right.end = -1
		if left.next >= 0 {
			parts[left.next].prev = m.at
		}
		add(left.prev)
		add(m.at)
	}
	var out []textPart
	for i := 0; len(parts) > 0 && i >= 0; i = parts[i].next {
		out = append(out, parts[i])
	}
	return out
}
