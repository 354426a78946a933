package nvrtc

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// slots limits the number of concurrent compilations. Of the waiting sources, the one with the
// longest text begins next: it takes longest, approximately, and would set the critical path if
// it began last.
type slots struct {
	mu      sync.Mutex
	free    int
	waiting []*ticket // by rising size
}

// ticket is a waiting compilation.
type ticket struct {
	size  int           // bytes of the source
	begin chan struct{} // closed when the compilation gets a slot
}

// take waits for a slot for a source of size bytes, until ctx ends.
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
	t := &ticket{size, make(chan struct{})}
	at, _ := slices.BinarySearchFunc(s.waiting, size, func(t *ticket, size int) int { return cmp.Compare(t.size, size) })
	s.waiting = slices.Insert(s.waiting, at, t)
	s.mu.Unlock()
	select {
	case <-t.begin:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.Index(s.waiting, t); at >= 0 {
		s.waiting = slices.Delete(s.waiting, at, at+1)
	} else { // it was given a slot meanwhile
		s.give()
	}
	return ctx.Err()
}

// put gives a slot back.
func (s *slots) put() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.give()
}

// give gives a slot to the waiting source with the longest text, or frees the slot.
func (s *slots) give() {
	last := len(s.waiting) - 1
	if last < 0 {
		s.free++
		return
	}
	close(s.waiting[last].begin)
	s.waiting = slices.Delete(s.waiting, last, last+1)
}
