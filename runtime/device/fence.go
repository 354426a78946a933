package device

import "errors"

// Mark is a point of a stream. Making one calls no driver. [Stream.Behind] reports whether an
// event was recorded after the mark, and whether the device is known to have passed the mark.
// Waits for and queries of events after the mark, and Stream.Synchronize, make that known. If
// passed is false, the state is unknown.
type Mark uint64

// Fence reports when the device has passed a point of a stream, so that host memory that
// earlier copies read may be written again. If a runner records an event after each of its
// steps and waits for it, the fence needs no driver call of its own; otherwise it records
// its own event. The zero Fence has no event and cannot be set.
//
// A Fence is used by the goroutine that uses the stream.
type Fence struct {
	event  Event
	stream Stream // that it was set on last
	mark   Mark
	own    Mark // after the fence's own event; equal to mark if that was not recorded
	set    bool // the fence was set, and is not known to be passed
}

// NewFence returns a fence that is passed.
func NewFence(d Device) (Fence, error) {
	if d == nil {
		return Fence{}, errors.New("device: a fence: no device is given")
	}
	e, err := d.NewEvent()
	return Fence{event: e}, err
}

// Set puts the fence after the work that is enqueued on s. before is the previous fence of the
// same purpose, or nil. If other code recorded an event after that fence, Set expects that it
// will do so again, and records no event of its own.
func (f *Fence) Set(s Stream, before *Fence) error {
	expected := before.followed()
	f.stream, f.mark, f.set = s, s.Mark(), true
	f.own = f.mark
	if expected {
		return nil
	}
	return f.record()
}

// followed reports whether other code recorded an event after the fence.
func (f *Fence) followed() bool {
	if f == nil || f.stream == nil {
		return false
	}
	recorded, _ := f.stream.Behind(f.own)
	return recorded
}

func (f *Fence) record() error {
	if err := f.stream.Record(f.event); err != nil {
		return err
	}
	f.own = f.stream.Mark()
	return nil
}

// ready reports whether the fence is known to be passed. If it is not, the fence's own event
// is recorded.
func (f *Fence) ready() (bool, error) {
	if !f.set {
		return true, nil
	}
	if _, passed := f.stream.Behind(f.mark); passed {
		f.set = false
		return true, nil
	}
	if f.own == f.mark {
		return false, f.record()
	}
	return false, nil
}

// Passed reports whether the device has passed the fence.
func (f *Fence) Passed() (bool, error) {
	done, err := f.ready()
	if err != nil || done {
		return done, err
	}
	if done, err = f.event.Query(); err == nil && done {
		f.set = false
	}
	return done, err
}

// Wait returns once the device has passed the fence.
func (f *Fence) Wait() error {
	done, err := f.ready()
	if err != nil || done {
		return err
	}
	if err = f.event.Synchronize(); err == nil {
		f.set = false
	}
	return err
}

// Close ends the fence's event.
func (f *Fence) Close() error {
	if f.event == nil {
		return nil
	}
	return f.event.Close()
}
