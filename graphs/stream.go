package graphs

import (
	"fmt"

	"pwc/graphs/internal/store"
	"pwc/runtime/device"
)

// Stream is a queue of work of a session. It knows what its work is ordered behind
// (a vector clock over the session's streams), so that work that overlaps in memory
// and is not ordered is refused.
type Stream struct {
	s     *Session
	dev   device.Stream
	name  string
	index int32
	clock []uint64 // by stream: the last of its operations that later work here is behind
}

// NewStream makes a stream. Its name is for messages.
func (s *Session) NewStream(name string) (*Stream, error) {
	dev, err := s.dev.NewStream()
	if err != nil {
		return nil, fmt.Errorf("graphs: stream %q: %w", name, err)
	}
	dev.SetName(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &Stream{s: s, dev: dev, name: name, index: int32(len(s.streams))}
	s.streams = append(s.streams, st)
	for _, o := range s.streams {
		o.clock = append(o.clock, make([]uint64, len(s.streams)-len(o.clock))...)
	}
	return st, nil
}

// Name returns the stream's name.
func (st *Stream) Name() string { return st.name }

// Device returns the device's stream. Work that is enqueued there directly is not
// ordered with anything that the session knows.
func (st *Stream) Device() device.Stream { return st.dev }

// Wait makes later work of st start behind what other has been given so far.
func (st *Stream) Wait(other *Stream) error {
	if st == other {
		return nil
	}
	if err := st.dev.Join(other.dev); err != nil {
		return fmt.Errorf("graphs: stream %q waits for %q: %w", st.name, other.name, err)
	}
	st.merge(other)
	return nil
}

// merge puts later work of st behind other.
func (st *Stream) merge(other *Stream) {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	for i, t := range other.clock {
		st.clock[i] = max(st.clock[i], t)
	}
}

// Synchronize waits until the device has done what the stream was given. Work of
// every stream that is enqueued later is behind it.
func (st *Stream) Synchronize() error {
	if err := st.dev.Synchronize(); err != nil {
		return fmt.Errorf("graphs: stream %q: %w", st.name, err)
	}
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	for _, o := range st.s.streams {
		for i, t := range st.clock {
			o.clock[i] = max(o.clock[i], t)
		}
	}
	return nil
}

// tick returns the access of the next operation on the stream.
func (st *Stream) tick() store.Access {
	st.clock[st.index]++
	return store.Access{Stream: st.index, Tick: st.clock[st.index]}
}

// behind reports whether later work of st is ordered behind an access.
func (st *Stream) behind(a store.Access) bool {
	return a.Tick == 0 || st.clock[a.Stream] >= a.Tick
}

// order makes st wait for the stream that last wrote t, if it has not.
func (st *Stream) order(t Tensor) error {
	wrote, _ := t.Storage().Accesses()
	if st.behind(wrote) {
		return nil
	}
	return st.Wait(st.s.streams[wrote.Stream])
}

// use notes the next operation's access to t. It is refused where another stream's
// access could overlap it.
func (st *Stream) use(t Tensor, write bool) error {
	sto := t.Storage()
	if sto == nil {
		return ErrNoStorage
	}
	wrote, read := sto.Accesses()
	if !st.behind(wrote) || write && !st.behind(read) {
		other := wrote
		if st.behind(wrote) {
			other = read
		}
		return &UnorderedError{What: sto.Maker().String(), Stream: st.name, Other: st.s.streams[other.Stream].name}
	}
	store.Note(sto, st.tick(), write)
	return nil
}

// Tick returns the access that an operation enqueued now on the stream is.
func (st *Stream) Tick() store.Access { return st.tick() }

// CopyTo copies t to memory of its size, which the caller knows to be free for it.
func (st *Stream) CopyTo(dst device.Buffer, t Tensor) error {
	if err := st.use(t, false); err != nil {
		return err
	}
	return st.dev.Copy(dst, t.Range())
}

func (st *Stream) closeDevice() error { return st.dev.Close() }
