package nvrtc

import (
	"container/heap"
	"context"
	"sync"
)

// slots lets so many compilations run at a time. Of those that wait the longest source is
// next, which is what takes longest, about: what is begun last is waited for alone.
type slots struct {
	mu      sync.Mutex
	free    int
	waiting queue
}

// ticket is a compilation that waits.
type ticket struct {
	size  int           // of the source
	ready chan struct{} // closed when it may begin
	at    int           // in the queue; -1: no more
}

// take waits for a slot for a source of so many bytes, no longer than ctx lasts.
func (s *slots) take(ctx context.Context, size int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	t := &ticket{size: size, ready: make(chan struct{})}
	heap.Push(&s.waiting, t)
	s.mu.Unlock()
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.at < 0 { // it was given a slot meanwhile
		s.give()
	} else {
		heap.Remove(&s.waiting, t.at)
	}
	return ctx.Err()
}

// put gives a slot back.
func (s *slots) put() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.give()
}

// give hands a slot to who waits for one.
func (s *slots) give() {
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	close(heap.Pop(&s.waiting).(*ticket).ready)
}

// queue is a heap of those that wait, as container/heap wants it.
type queue []*ticket

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].size > q[j].size }
func (q queue) Swap(i, j int)      { q[i], q[j], q[i].at, q[j].at = q[j], q[i], j, i }

func (q *queue) Push(x any) {
	t := x.(*ticket)
	t.at = len(*q)
	*q = append(*q, t)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last], *q = nil, (*q)[:last]
	t.at = -1
	return t
}
