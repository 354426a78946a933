package tokenizer

import "container/heap"

// textPart is a part of a word, in a list.
type textPart struct {
	start, end int // in bytes; end is -1 after a merge into the part before it
	prev, next int // indices in the list; -1: none
	frozen     bool
}

// queuedMerge is a possible merge of a part of a word and the next part. It is stale if one of the two
// parts was merged since.
type queuedMerge[T any] struct {
	rank  float64
	at    int // index of the first part
	merge T   // of the caller: the data to do the merge, and to find that it is stale
}

// mergeQueue is a heap of merges: the least rank comes first, and the leftmost of equal ones.
type mergeQueue[T any] []queuedMerge[T]

// Len implements [heap.Interface].
func (q mergeQueue[T]) Len() int { return len(q) }

// Less implements [heap.Interface].
func (q mergeQueue[T]) Less(i, j int) bool {
	return q[i].rank < q[j].rank || q[i].rank == q[j].rank && q[i].at < q[j].at
}

// Swap implements [heap.Interface].
func (q mergeQueue[T]) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements [heap.Interface].
func (q *mergeQueue[T]) Push(x any) { *q = append(*q, x.(queuedMerge[T])) }

// Pop implements [heap.Interface].
func (q *mergeQueue[T]) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
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
	var queue mergeQueue[int] // of ends of the next parts
	add := func(i int) {
		if i < 0 || parts[i].next < 0 || parts[i].frozen || parts[parts[i].next].frozen {
			return
		}
		end := parts[parts[i].next].end
		if r, ok := rank(word[parts[i].start:end]); ok {
			heap.Push(&queue, queuedMerge[int]{r, i, end})
		}
	}
	for i := range parts {
		add(i)
	}
	for queue.Len() > 0 {
		q := heap.Pop(&queue).(queuedMerge[int])
		left := &parts[q.at]
		if left.end < 0 || left.next < 0 || parts[left.next].end != q.merge {
			continue // stale
		}
		right := &parts[left.next]
		left.end, left.next = right.end, right.next
		right.end = -1
		if left.next >= 0 {
			parts[left.next].prev = q.at
		}
		add(left.prev)
		add(q.at)
	}
	var out []textPart
	for i := 0; len(parts) > 0 && i >= 0; i = parts[i].next {
		out = append(out, parts[i])
	}
	return out
}
