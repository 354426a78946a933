package graphs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"pwc/graphs/internal/store"
	"pwc/ir/dtype"
	"pwc/runtime/device"
	"pwc/runtime/mem"
)

// Session is one device with its memory, streams, pools and graphs. Its methods are safe for
// concurrent use, except Write, Read, Clone and TensorOf, which use the default stream; Read and Clone
// may also use the stream that last wrote the tensor. A [Recorder] and a [Stream] are not safe for
// concurrent use.
//
// A capture, EmptyCache, and an allocation that finds no room wait for streams on which other goroutines
// enqueue work; that is safe. The last release of a tensor that a second stream used, and calls after it
// ([mem.Allocator]), record an event on that stream, which no other goroutine may use meanwhile.
type Session struct {
	dev   device.Device
	alloc *mem.Allocator
	book  store.Book

	mu       sync.Mutex
	deflt    *Stream
	pools    []*Pool
	shared   *Pool     // memory outside of captures
	captures []*Stream // see CaptureStream
	spare    []*Stream // see BorrowStream
	graphs   int       // with a recording
	closed   bool

	routines atomic.Bool // a program that calls library routines was loaded

	made atomic.Pointer[[]*Stream] // written with mu held, read without

	// joins is held while a stream becomes part of a capture, and while settle waits for the streams of
	// other goroutines that do not capture.
	joins sync.Mutex

	ringMu sync.Mutex
	ring   hostRing
}

// SessionOptions configure a session.
type SessionOptions struct {
	// MemoryLimit bounds the bytes of segments over all pools; 0: the device's limit.
	MemoryLimit int64
}

// NewSession returns a session on dev, with a default stream. The caller closes
// the device after the session.
func NewSession(dev device.Device, o SessionOptions) (*Session, error) {
	s := &Session{dev: dev, alloc: mem.New(mem.OverDevice(dev), mem.Options{Limit: o.MemoryLimit})}
	s.shared = &Pool{s: s, mem: s.alloc.Default(), deflt: true, name: "default"}
	s.pools = []*Pool{s.shared}
	var err error
	s.deflt, err = s.NewStream("default")
	return s, err
}

// Device returns the device.
func (s *Session) Device() device.Device { return s.dev }

// Allocator returns the allocator of all pools, for statistics.
func (s *Session) Allocator() *mem.Allocator { return s.alloc }

// DefaultStream returns the session's first stream. It replays and runs eagerly; captures need
// another stream.
func (s *Session) DefaultStream() *Stream { return s.deflt }

// DefaultPool returns the pool of memory outside of graphs.
func (s *Session) DefaultPool() *Pool { return s.shared }

// Owns reports whether a tensor is of the session.
func (s *Session) Owns(t Tensor) bool { return t.Storage() != nil && t.Storage().Of(&s.book) }

// own returns an error for a tensor of another session: its accesses name streams of that session.
func (s *Session) own(t Tensor) error {
	switch {
	case t.Storage() == nil:
		return ErrNoStorage
	case !s.Owns(t):
		return fmt.Errorf("%w: %s belongs to another session", device.ErrForeignBuffer, t.Storage().Maker())
	}
	return nil
}

// Live returns how many storages have owners, and their bytes.
func (s *Session) Live() store.Leak { return s.book.Live() }

// Forgotten lists the storages with owners, by maker.
func (s *Session) Forgotten() []store.Forgotten { return s.book.Forgotten() }

// Close frees all memory and closes the streams. If storages have owners or graphs are not reset,
// it changes nothing and returns a [*LeakError]. If a running capture on the device forbids to free
// memory, the error matches [device.ErrCapturing], and Close can be called again. After any other error of
// the device the session is closed, too.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if live := s.book.Live(); live.Storages > 0 || s.graphs > 0 {
		return &LeakError{Graphs: s.graphs, Forgotten: s.book.Forgotten()}
	}
	s.closed = true
	errs := []error{s.ring.close()}
	for _, st := range s.streams() {
		errs = append(errs, st.freeWorkspace())
	}
	err := s.alloc.Close() // waits for the streams
	if errors.Is(err, device.ErrCapturing) {
		s.closed = false
		return errors.Join(append(errs, err)...)
	}
	for _, st := range s.streams() {
		errs = append(errs, st.dev.Close())
	}
	if err != nil { // if it was the wait that failed: there is no wait for closed streams
		errs = append(errs, err, s.alloc.Close())
	}
	return errors.Join(errs...)
}

// EmptyCache frees the segments without live blocks of the default pool and of pools without uses, and
// returns their bytes. While a graph captures, the error matches [device.ErrCapturing].
func (s *Session) EmptyCache() (int64, error) { return s.alloc.Empty() }

// Tensor returns an uninitialised tensor of the default pool, outside of any graph,
// for work on the default stream. The caller releases it. name is for messages.
func (s *Session) Tensor(name string, dt dtype.DType, shape ...int64) (Tensor, error) {
	return s.alloced(s.shared, s.deflt, &Maker{Name: name, Output: -1}, dt, shape)
}

// TensorOf is Tensor with contents: little-endian elements.
func (s *Session) TensorOf(name string, data []byte, dt dtype.DType, shape ...int64) (Tensor, error) {
	t, err := s.Tensor(name, dt, shape...)
	if err != nil {
		return t, err
	}
	if err := s.Write(t, data); err != nil {
		return Tensor{}, errors.Join(err, t.Release())
	}
	return t, nil
}

// alloced allocates a block of pool for work on st.
func (s *Session) alloced(p *Pool, st *Stream, m *Maker, dt dtype.DType, shape []int64) (Tensor, error) {
	n, err := store.Bytes(dt, shape)
	if err != nil {
		return Tensor{}, fmt.Errorf("%s: %w", m, err)
	}
	b, err := p.mem.Alloc(st.dev, n)
	if err != nil {
		return Tensor{}, fmt.Errorf("graphs: %s: %w", m, err)
	}
	buf, err := b.Buffer()
	if err != nil {
		return Tensor{}, err
	}
	sto := s.book.New(p.mem, b, buf, m)
	if !p.deflt {
		p.adopt(sto)
	}
	return sto.Tensor(dt, slices.Clone(shape)), nil
}

// Write copies data to t on the default stream and waits. data has t's size.
func (s *Session) Write(t Tensor, data []byte) error {
	if err := t.Alive(); err != nil {
		return err
	}
	if err := s.deflt.use(t, true); err != nil {
		return err
	}
	if err := s.deflt.enqueued(s.deflt.dev.CopyToDevice(t.Range(), data)); err != nil {
		return fmt.Errorf("graphs: writing %s: %w", t.Storage().Maker(), err)
	}
	return s.deflt.Synchronize()
}

// Read copies t to dst, which has t's size, and waits. An overwritten tensor is a [*StaleError]
// at once.
func (s *Session) Read(t Tensor, dst []byte) error {
	if err := t.Err(); err != nil {
		return err
	}
	if err := s.deflt.order(t); err != nil {
		return err
	}
	if err := s.deflt.use(t, false); err != nil {
		return err
	}
	if err := s.deflt.enqueued(s.deflt.dev.CopyToHost(dst, t.Range())); err != nil {
		return fmt.Errorf("graphs: reading %s: %w", t.Storage().Maker(), err)
	}
	return s.deflt.Synchronize()
}

// Clone copies t to a new tensor of the default pool, which the caller releases. name is for messages.
func (s *Session) Clone(name string, t Tensor) (Tensor, error) {
	if err := t.Err(); err != nil {
		return Tensor{}, err
	}
	c, err := s.Tensor(name, t.DType(), t.Shape()...)
	if err != nil {
		return c, err
	}
	if err = s.deflt.order(t); err == nil {
		err = s.Eager(s.deflt).Copy(c, t)
	}
	if err != nil {
		return Tensor{}, errors.Join(err, c.Release())
	}
	return c, nil
}

// Pool is a private pool, which serves captures, or the session's default one. Graphs that share a pool
// reuse each other's dead memory.
type Pool struct {
	s     *Session
	mem   *mem.Pool
	deflt bool
	name  string

	// managed: its owner tracks live storages, as a tree does, so the session does not.
	managed bool

	// Guarded by s.mu.
	last   bool // it ends with its last graph: a capture made it, or its handle is released
	graphs []*Graph
	eager  []*store.Storage // with memory of the pool: made outside of captures, or results of graphs that were reset
}

// NewPool returns a private pool that lives until Release, for any number of graphs.
func (s *Session) NewPool(name string) *Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &Pool{s: s, mem: s.alloc.NewPool(name), name: name}
	s.pools = append(s.pools, p)
	return p
}

// Release releases the handle. When no graph uses the pool, the next EmptyCache frees its memory;
// storages with owners stay valid. A second release matches [mem.ErrReleased].
func (p *Pool) Release() error {
	p.s.mu.Lock()
	p.last = true
	if len(p.graphs) == 0 {
		p.s.pools = slices.DeleteFunc(p.s.pools, func(q *Pool) bool { return q == p })
	}
	p.s.mu.Unlock()
	return p.mem.Release()
}

// PoolUse describes the uses and the memory of a pool.
type PoolUse struct {
	Uses     int   // handles and graphs
	Blocks   int   // live
	Segments int   // of the device
	Reserved int64 // bytes of segments
}

// Use returns the current uses and memory.
func (p *Pool) Use() PoolUse {
	st := p.mem.Stats()
	return PoolUse{Uses: p.mem.Uses(), Blocks: int(st.AllocatedBlocks.Now), Segments: int(st.Segments.Now), Reserved: st.ReservedBytes.Now}
}

// Checkpoint returns the live blocks of the pool. The pool must not be capturing.
func (p *Pool) Checkpoint() (*mem.State, error) { return p.mem.Checkpoint() }

// Restore restores the pool's blocks to a checkpoint. live are storages that get their blocks of
// the checkpoint, unless they own them already. dead are storages without owners whose blocks are freed.
// If a storage owns a block that the checkpoint does not have, the error is a [*mem.OwnedError]. If the
// pool refuses the checkpoint, nothing has changed.
func (p *Pool) Restore(st *mem.State, live, dead []*Storage) error {
	var at []mem.Address
	var own []*Storage
	for _, s := range live {
		if _, owns := s.Block(); !owns {
			at, own = append(at, mem.AddressOf(s.Buffer())), append(own, s)
		}
	}
	r, err := p.mem.Restore(st, nil, at)
	if err != nil {
		return err
	}
	var errs []error
	for i, s := range own {
		errs = append(errs, store.Attach(s, p.mem, r.Live[i]))
	}
	for _, s := range dead {
		errs = append(errs, p.mem.FreeUnowned(mem.AddressOf(s.Buffer())))
	}
	return errors.Join(errs...)
}

// Check returns an error if the pool's live blocks are not those that the given storages own.
func (p *Pool) Check(live []*Storage) error {
	var at []mem.Address
	for _, s := range live {
		if _, owns := s.Block(); owns {
			at = append(at, mem.AddressOf(s.Buffer()))
		}
	}
	return p.mem.CheckLive(at)
}

// Mem returns the pool's memory, for statistics and snapshots.
func (p *Pool) Mem() *mem.Pool { return p.mem }

// adopt adds a storage that was made outside of a capture to the victims of the pool's graphs that
// write its memory. Results of the graphs in that memory become overwritten.
func (p *Pool) adopt(sto *store.Storage) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.eager = slices.DeleteFunc(p.eager, func(e *store.Storage) bool { return !e.Live() })
	p.eager = append(p.eager, sto)
	for _, g := range p.graphs {
		g.meets(sto)
		for _, t := range g.tracked {
			if !t.Live() && store.Overlaps(t.Buffer(), sto.Buffer()) {
				store.SetContent(t, store.Overwritten, sto.Maker(), store.Access{})
			}
		}
	}
}

// NewManagedPool returns a private pool whose owner tracks live storages, as graph trees do.
// Replays of its graphs are not checked against storages.
func (s *Session) NewManagedPool(name string) *Pool {
	p := s.NewPool(name)
	p.managed = true
	return p
}

// Has reports whether a storage's memory is of the pool.
func (p *Pool) Has(s *Storage) bool { return s.In(p.mem) }

// Overlaps reports whether two buffers have bytes in common.
func Overlaps(a, b device.Buffer) bool { return store.Overlaps(a, b) }

// Where returns a readable form of an address: the number of the segment in the session's
// snapshot, and the offset.
func (s *Session) Where(b device.Buffer) string {
	for i, seg := range s.alloc.Snapshot() {
		if seg.Memory == b.Memory {
			return fmt.Sprintf("segment %d + %d", i, b.Offset)
		}
	}
	return fmt.Sprintf("memory outside of the session + %d", b.Offset)
}
