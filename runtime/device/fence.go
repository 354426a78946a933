package device

import "errors"

// Mark is a point of a stream, which costs nothing to make. What [Stream.Behind] tells
// of it comes from events: whether one was recorded behind the mark, and whether the
// device has passed the mark, as an event behind it or Stream.Synchronize told since.
// Otherwise the state is unknown.
type Mark uint64

// Fence tells when the device has passed a point of a stream, so that host memory that
// copies before it read may be written again. Where a runner records an event behind each
// of its steps and waits for it, that is known without another call of a driver; else
// the fence records an event of its own. The zero Fence has none and cannot be set.
//
// A Fence is used by the goroutine that uses the stream.
type Fence struct {
	event  Event
	stream Stream // that it was set on last
	mark   Mark
	own    Mark // behind the event of the fence, or where that was not recorded the mark
	set    bool // and not known to be passed
}

// NewFence returns a fence that is passed.
func NewFence(d Device) (Fence, error) {
	if d == nil {
		return Fence{}, errors.New("device: a fence: no device is given")
	}
	e, err := d.NewEvent()
	return Fence{event: e}, err
}

// Set sets the fence behind what was enqueued. before is the one that was set before it
// for the same purpose, or nil: where others recorded an event behind that one they are
// expected to do so again.
func (f *Fence) Set(s Stream, before *Fence) error {
	expected := before.followed()
	f.stream, f.mark, f.set = s, s.Mark(), true
	f.own = f.mark
	if expected {
		return nil
	}
	return f.record()
}

// followed reports whether others recorded an event behind the fence.
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

// ready reports whether the fence is known to be passed. If not, its event is behind it.
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
