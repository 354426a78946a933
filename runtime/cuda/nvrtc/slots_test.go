package nvrtc

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// TestCompileWaits: without a free slot Compile waits, until its context ends. A context that has ended
// is an error at once.
func TestCompileWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(Library).Compiler()
		slots := c.slots.free
		for range slots {
			if err := c.slots.take(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, _, err := c.Compile(ctx, "", "k.cu", "not an architecture")
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatal("did not wait: ", err)
		default:
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
		if _, _, err := c.Compile(ctx, "", "k.cu", "not an architecture"); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled before: %v", err)
		}
		c.slots.put()
		if _, _, err := c.Compile(t.Context(), "", "k.cu", "not an architecture"); err == nil || errors.Is(err, context.Canceled) || c.slots.free != 1 {
			t.Errorf("%v, %d slots are free", err, c.slots.free)
		}
	})
}

// TestLongestFirst: the longest of the waiting sources gets the next slot. One whose context has ended
// gets no slot.
func TestLongestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slots{free: 1}
		if err := s.take(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order []int
		leave, cancel := context.WithCancel(t.Context())
		for _, size := range []int{3, 9, 1, 4, 5} {
			ctx := t.Context()
			if size == 5 {
				ctx = leave
			}
			go func() {
				if err := s.take(ctx, size); err != nil {
					return
				}
				mu.Lock()
				order = append(order, size)
				mu.Unlock()
				s.put()
			}()
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		s.put()
		synctest.Wait()
		if !slices.Equal(order, []int{9, 4, 3, 1}) || s.free != 1 || len(s.waiting) != 0 {
			t.Errorf("%v, %d slots are free, %d wait", order, s.free, len(s.waiting))
		}
	})
}

// TestSlotIsPassedOn: if a slot is given to a compilation while its context ends, the slot is not lost.
func TestSlotIsPassedOn(t *testing.T) {
	for range 200 {
		s := slots{free: 1}
		if err := s.take(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if s.take(ctx, 2) == nil {
				s.put()
			}
		})
		wg.Go(cancel)
		s.put()
		wg.Wait()
		if s.free != 1 || len(s.waiting) != 0 {
			t.Fatalf("%d slots are free, %d wait", s.free, len(s.waiting))
		}
	}
}
