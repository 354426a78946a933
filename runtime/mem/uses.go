package mem

import (
	"errors"
	"fmt"
	"slices"

	"pwc/runtime/device"
)

// use is work with a block on a second stream.
type use struct {
	stream   device.Stream
	captured bool // the work was captured; the join at the capture's end orders it before later work
}

// waiting is an event that a freed block waits for.
type waiting struct {
	stream device.Stream
	event  device.Event
	n      *node
}

// RecordStream says that work on s, a second stream, uses b. After b is freed, its
// memory is reused only after the work that was enqueued on s before the free. For the
// block's own stream and for nil it does nothing. Free records an event on s, so its
// caller must be allowed to use s; Allocator.Free says what happens if the device refuses the event.
//
// A block that is freed during a capture waits until no capture of the allocator is under
// way, and then only for streams whose work was not captured: the join at the end of a
// capture orders captured work. A capture of the block's own pool may reuse it earlier
// (Scope.Order).
//
// It returns ErrUseAfterFree if b was freed, ErrForeignBlock if another allocator gave it,
// and device.ErrCapturing for a stream that captures while no capture of this allocator is
// under way.
func (a *Allocator) RecordStream(b Block, s device.Stream) error {
	if b.n == nil || b.n.alloc != a {
		return ErrForeignBlock
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n := b.n
	if !b.live() {
		return ErrUseAfterFree
	}
	if s == nil || s == n.seg.shelf.stream {
		return nil
	}
	u := use{stream: s}
	for _, c := range a.scopes {
		u.captured = u.captured || c.capture && slices.Contains(c.streams, s)
	}
	if !u.captured && s.Capturing() {
		if a.captures == 0 {
			return fmt.Errorf("mem: use of a block on a stream without a scope: %w", device.ErrCapturing)
		}
		u.captured = true
	}
	if !slices.Contains(n.uses, u) {
		n.uses = append(n.uses, u)
	}
	return nil
}

// idle reports whether err says that a stream is closed or its device is lost, so that
// the stream has no work.
func idle(err error) bool {
	return errors.Is(err, device.ErrClosed) || errors.Is(err, device.ErrDeviceLost)
}

// retire records an event on each second stream whose work with n, which was freed, was not
// captured, so that n waits for them. n.events is 0 if there is nothing to wait for. After an error n is as it was.
func (a *Allocator) retire(n *node) error {
	first := len(a.waiting)
	for _, u := range n.uses {
		if u.captured {
			continue
		}
		e, err := a.event(u.stream)
		if err == nil {
			if err = u.stream.Record(e); err != nil {
				a.events = append(a.events, e)
			}
		}
		switch {
		case err == nil:
			a.waiting = append(a.waiting, waiting{u.stream, e, n})
		case !idle(err):
			for _, w := range a.waiting[first:] {
				a.events = append(a.events, w.event)
			}
			a.waiting = a.waiting[:first]
			return err
		}
	}
	n.uses = n.uses[:0]
	n.events = len(a.waiting) - first
	return nil
}

// event returns a spare event of s's device.
func (a *Allocator) event(s device.Stream) (device.Event, error) {
	if k := len(a.events); k > 0 {
		e := a.events[k-1]
		a.events = a.events[:k-1]
		return e, nil
	}
	return s.Device().NewEvent()
}

// poll frees the blocks whose second streams are done. During a capture it does
// nothing: querying an event could invalidate the capture.
func (a *Allocator) poll() error {
	if a.captures > 0 || len(a.deferred) == 0 && len(a.waiting) == 0 {
		return nil
	}
	if err := a.resume(); err != nil {
		return err
	}
	a.blocked = a.blocked[:0]
	return a.pass(func(w waiting) (bool, error) {
		// Events of a stream pass in order.
		if slices.Contains(a.blocked, w.stream) {
			return false, nil
		}
		done, err := w.event.Query()
		if err == nil && !done {
			a.blocked = append(a.blocked, w.stream)
		}
		return done, err
	})
}

// drain waits for all second streams and frees their blocks. No capture is under way.
func (a *Allocator) drain() error {
	if len(a.deferred) == 0 && len(a.waiting) == 0 {
		return nil
	}
	if err := a.resume(); err != nil {
		return err
	}
	a.counters.waits++
	return a.pass(func(w waiting) (bool, error) {
		err := w.event.Synchronize()
		return err == nil, err
	})
}

// joined frees the deferred blocks that only captured work used. It is called when no
// capture is under way any more, and does not call the device.
func (a *Allocator) joined() {
	a.deferred = slices.DeleteFunc(a.deferred, func(n *node) bool {
		if slices.ContainsFunc(n.uses, func(u use) bool { return !u.captured }) {
			return false
		}
		n.uses, n.freedIn = n.uses[:0], nil
		n.seg.shelf.pool.unused(n)
		return true
	})
}

// resume records the events of blocks that were freed during captures, or whose events could not
// be recorded. Blocks that need an event on a stream that captures for another allocator stay deferred.
func (a *Allocator) resume() (err error) {
	kept := a.deferred[:0]
	for _, n := range a.deferred {
		if err == nil {
			e := a.retire(n)
			if e == nil {
				n.freedIn = nil
				if n.events == 0 {
					n.seg.shelf.pool.unused(n)
				}
				continue
			}
			if !errors.Is(e, device.ErrCapturing) {
				err = fmt.Errorf("mem: pool %s: an event for a freed block, on its second stream: %w", n.seg.shelf.pool.name, e)
			}
		}
		kept = append(kept, n)
	}
	clear(a.deferred[len(kept):])
	a.deferred = kept
	return err
}

// pass removes the waits for which done reports true, and frees blocks that have no other.
func (a *Allocator) pass(done func(waiting) (bool, error)) (err error) {
	kept := a.waiting[:0]
	for _, w := range a.waiting {
		ok := false
		if err == nil {
			if ok, err = done(w); idle(err) {
				ok, err = true, nil
			}
		}
		if !ok {
			kept = append(kept, w)
			continue
		}
		a.events = append(a.events, w.event)
		if w.n.events--; w.n.events == 0 {
			w.n.seg.shelf.pool.unused(w.n)
		}
	}
	clear(a.waiting[len(kept):])
	a.waiting = kept
	if err != nil {
		return fmt.Errorf("mem: waiting for the second streams of freed blocks: %w", err)
	}
	return nil
}
