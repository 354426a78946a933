package graphs

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"pwc/graphs/internal/store"
	"pwc/runtime/device"
	"pwc/runtime/mem"
)

// Stream is a queue of work of a session. A vector clock over the session's streams has the order
// of its work, so the session can refuse unordered work that overlaps in memory.
type Stream struct {
	s     *Session
	dev   device.Stream
	name  string
	index int32
	clock []uint64 // by stream: the last operation that precedes later work here

	// The stream's last enqueued operation, and its last operation that the host knows to be
	// done, which precedes all later work. The goroutine that begins a capture waits for streams
	// of other goroutines, so these are atomic. clock is not.
	given, done atomic.Uint64

	// work is the workspace of library routines on the stream, made before the first of them.
	work    mem.Block
	hasWork bool
}

// library gives the stream a workspace for library routines, if the device has them. A capturing
// stream cannot get one.
func (st *Stream) library() error {
	l, ok := st.s.dev.(device.LibraryProvider)
	s, is := st.dev.(device.LibraryStream)
	if st.hasWork || !ok || !is || l.WorkspaceBytes() == 0 {
		return nil
	}
	b, err := st.s.alloc.Default().Alloc(st.dev, l.WorkspaceBytes())
	if err != nil {
		return fmt.Errorf("graphs: the workspace of library routines on stream %q: %w", st.name, err)
	}
	buf, err := b.Buffer()
	if err == nil {
		err = s.UseWorkspace(buf)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("graphs: the workspace of library routines on stream %q: %w", st.name, err), st.s.alloc.Free(b))
	}
	st.work, st.hasWork = b, true
	return nil
}

// freeWorkspace frees the stream's workspace.
func (st *Stream) freeWorkspace() error {
	if !st.hasWork {
		return nil
	}
	st.hasWork = false
	return st.s.alloc.Free(st.work)
}

// NewStream makes a stream, which lives until Session.Close. Its name is for messages.
func (s *Session) NewStream(name string) (*Stream, error) {
	dev, err := s.dev.NewStream()
	if err != nil {
		return nil, fmt.Errorf("graphs: stream %q: %w", name, err)
	}
	dev.SetName(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.streams()
	st := &Stream{s: s, dev: dev, name: name, index: int32(len(all)), clock: make([]uint64, len(all)+1)}
	all = append(slices.Clone(all), st)
	s.made.Store(&all)
	return st, nil
}

// BorrowStream returns a stream of that name that ReturnStream was called with, or else makes one. Callers
// that come and go, such as managers of graph trees, borrow streams, because the session keeps every
// stream that it makes.
func (s *Session) BorrowStream(name string) (*Stream, error) {
	s.mu.Lock()
	i := slices.IndexFunc(s.spare, func(st *Stream) bool { return st.name == name })
	if i < 0 {
		s.mu.Unlock()
		return s.NewStream(name)
	}
	defer s.mu.Unlock()
	st := s.spare[i]
	s.spare = slices.Delete(s.spare, i, i+1)
	return st, nil
}

// ReturnStream gives a stream of BorrowStream back. The caller must not use it any more. Work of the next
// user is ordered after the work that the stream has.
func (s *Session) ReturnStream(st *Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = append(s.spare, st)
}

// streams returns the session's streams by index.
func (s *Session) streams() []*Stream {
	if all := s.made.Load(); all != nil {
		return *all
	}
	return nil
}

// Name returns the stream's name.
func (st *Stream) Name() string { return st.name }

// Device returns the device's stream. The session does not order work that is enqueued there
// directly.
func (st *Stream) Device() device.Stream { return st.dev }

// Wait orders later work of st after the work that other has so far.
func (st *Stream) Wait(other *Stream) error {
	if st == other {
		return nil
	}
	if st.s != other.s {
		return fmt.Errorf("%w: stream %q waits for %q of another session", ErrArguments, st.name, other.name)
	}
	if err := st.dev.Join(other.dev); err != nil {
		return fmt.Errorf("graphs: stream %q waits for %q: %w", st.name, other.name, err)
	}
	st.merge(other)
	return nil
}

// merge orders later work of st after the work of other.
func (st *Stream) merge(other *Stream) {
	for len(st.clock) < len(other.clock) {
		st.clock = append(st.clock, 0)
	}
	for i, t := range other.clock {
		st.clock[i] = max(st.clock[i], t)
	}
}

// Synchronize waits for all enqueued work of the stream. Later work of every stream is ordered
// after that work.
func (st *Stream) Synchronize() error {
	if err := st.wait(); err != nil {
		return err
	}
	for i, o := range st.s.streams()[:len(st.clock)] {
		o.finished(st.clock[i])
	}
	return nil
}

// wait is Synchronize for a stream that another goroutine may use. It does not wait for work that
// the other goroutine is about to enqueue, and does not count that as done.
func (st *Stream) wait() error {
	given := st.given.Load()
	if err := st.dev.Synchronize(); err != nil {
		return fmt.Errorf("graphs: stream %q: %w", st.name, err)
	}
	st.finished(given)
	return nil
}

// finished records that the stream's operations up to number tick are done.
func (st *Stream) finished(tick uint64) {
	for {
		old := st.done.Load()
		if old >= tick || st.done.CompareAndSwap(old, tick) {
			return
		}
	}
}

// tick returns the access of the stream's next operation. A call of enqueued must follow.
func (st *Stream) tick() store.Access {
	st.clock[st.index]++
	return store.Access{Stream: st.index, Tick: st.clock[st.index]}
}

// enqueued records that the device has every operation that tick has numbered. It returns err, the
// error of the last one.
func (st *Stream) enqueued(err error) error {
	st.given.Store(st.clock[st.index])
	return err
}

// orderedAfter reports whether later work of st is ordered after an access.
func (st *Stream) orderedAfter(a store.Access) bool {
	return a.Tick == 0 || int(a.Stream) < len(st.clock) && st.clock[a.Stream] >= a.Tick || st.s.streams()[a.Stream].done.Load() >= a.Tick
}

// order makes st wait for the last writer of t, unless later work of st is ordered after it already.
func (st *Stream) order(t Tensor) error {
	if err := st.s.own(t); err != nil {
		return err
	}
	wrote := t.Storage().Wrote()
	if st.orderedAfter(wrote) {
		return nil
	}
	return st.Wait(st.s.streams()[wrote.Stream])
}

// use records the next operation's access to t. It refuses an access that an unordered access of
// another stream could overlap.
func (st *Stream) use(t Tensor, write bool) error {
	if err := st.s.own(t); err != nil {
		return err
	}
	sto := t.Storage()
	if err := st.unordered(sto, write); err != nil {
		return err
	}
	store.Note(sto, st.tick(), write)
	return nil
}

// unordered refuses an access of the next operation that an earlier access of another stream could
// overlap: a write, or a read that the next operation would overwrite.
func (st *Stream) unordered(sto *store.Storage, write bool) error {
	if a := sto.Unordered(write, st.orderedAfter); a != (store.Access{}) {
		return &UnorderedError{What: sto.Maker().String(), Stream: st.name, Other: st.s.streams()[a.Stream].name}
	}
	return nil
}

// Tick counts an operation that was enqueued on the device's stream, and returns its access. It is for
// owners of a managed pool, after Graph.Launch.
func (st *Stream) Tick() store.Access {
	a := st.tick()
	_ = st.enqueued(nil)
	return a
}

// CopyTo copies t to memory of the same size, which the caller knows to be unused.
func (st *Stream) CopyTo(dst device.Buffer, t Tensor) error {
	if err := st.use(t, false); err != nil {
		return err
	}
	return st.enqueued(st.dev.Copy(dst, t.Range()))
}
