// Package store keeps the storages of a device: who owns a block of memory, what a
// handle to it may still read, and what was forgotten.
//
// Go counts no references, so ownership is explicit. A Storage is made with one
// owner; Retain adds one, Release takes one away, and the last Release frees the
// block. A Tensor is a plain value that names a storage and the incarnation that it
// was made for. Memory that is written again gets a new incarnation, so a handle
// that was kept cannot read or release what followed.
package store

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"pwc/ir/dtype"
	"pwc/runtime/device"
	"pwc/runtime/mem"
)

// Errors of wrong use, for errors.Is.
var (
	// ErrReleased is the use, or another release, of a storage without owners.
	ErrReleased = errors.New("graphs: the storage was released")
	// ErrStale is what a [StaleError] matches.
	ErrStale = errors.New("graphs: the memory was overwritten by a subsequent run")
	// ErrNoStorage is the use of the zero Tensor.
	ErrNoStorage = errors.New("graphs: the zero tensor has no storage")
	// ErrView is a view that leaves its tensor or is not aligned to its elements.
	ErrView = errors.New("graphs: view out of range")
)

// Maker is the writer of a storage. It is made once for each place that writes, so
// that fast paths share it.
type Maker struct {
	Name   string // "output 1 of @foo", "input x"
	Loc    string // position in the module, file:line:col; may be empty
	Output int    // -1: no output
}

// String returns the name and the position.
func (m *Maker) String() string {
	switch {
	case m == nil:
		return "an unnamed writer"
	case m.Loc == "":
		return m.Name
	}
	return m.Name + " (" + m.Loc + ")"
}

// StaleError is the use of a tensor whose memory was written again since. It
// matches [ErrStale].
type StaleError struct {
	Tensor     string // what the handle was made for: function, output, position in the module
	By         string // what wrote the memory since
	Generation int32  // of the handle
	Now        int32  // of what lies there
	Advice     string // what to do
}

// Error names both sides and says what to do.
func (e *StaleError) Error() string {
	s := fmt.Sprintf("graphs: %s of generation %d was overwritten by a subsequent run: its memory holds %s of generation %d", e.Tensor, e.Generation, e.By, e.Now)
	if e.Advice != "" {
		s += "; " + e.Advice
	}
	return s
}

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// Access is a point of a stream: the tick-th operation of stream number Stream.
// The zero Access is before everything.
type Access struct {
	Stream int32
	Tick   uint64
}

// Content says what lies in a storage.
type Content uint8

const (
	Unwritten   Content = iota // nothing yet: allocated, or recorded and not replayed
	Written                    // what its maker wrote
	Overwritten                // another storage that shares the memory was written
)

// Book is the storages of one device. Its methods, and those of its storages, may
// be called from any goroutine.
type Book struct {
	mu    sync.Mutex
	first *Storage // list of storages with owners
	live  Leak
	made  uint64
}

// Leak counts storages.
type Leak struct {
	Storages int
	Bytes    int64
}

// Storage is a block of memory with owners.
type Storage struct {
	// What a replay asks of each of hundreds of inputs is in the first cache line.
	book    *Book
	inc     uint32 // incarnation
	owners  int32
	step    int32 // generation of the incarnation
	content Content

	// Guarded by book.mu, as inc, owners, step and content are.
	prev, next *Storage
	pool       *mem.Pool // where block is freed; nil: memory of somebody else
	block      mem.Block
	owns       bool // the last release frees block
	buf        device.Buffer
	maker      *Maker
	over       *Maker // who wrote it, if Overwritten or if a new incarnation follows
	overAt     int32
	wrote      Access
	read       Access
	serial     uint64
}

// New returns a storage of a block with one owner.
func (b *Book) New(pool *mem.Pool, block mem.Block, buf device.Buffer, m *Maker) *Storage {
	s := &Storage{book: b, pool: pool, block: block, owns: pool != nil, buf: buf, owners: 1, maker: m}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made++
	s.serial = b.made
	b.link(s)
	return s
}

func (b *Book) link(s *Storage) {
	s.prev, s.next = nil, b.first
	if b.first != nil {
		b.first.prev = s
	}
	b.first = s
	b.live.Storages++
	b.live.Bytes += s.buf.Size
}

func (b *Book) unlink(s *Storage) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		b.first = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
	b.live.Storages--
	b.live.Bytes -= s.buf.Size
}

// Live returns how many storages have owners, and their bytes.
func (b *Book) Live() Leak {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.live
}

// Forgotten is storages of one maker that still have owners.
type Forgotten struct {
	Leak
	Made string // who made them
}

// Forgotten lists the storages that have owners by who made them, most bytes first.
func (b *Book) Forgotten() []Forgotten {
	b.mu.Lock()
	defer b.mu.Unlock()
	by := map[string]*Leak{}
	for s := b.first; s != nil; s = s.next {
		l := by[s.maker.String()]
		if l == nil {
			l = &Leak{}
			by[s.maker.String()] = l
		}
		l.Storages++
		l.Bytes += s.buf.Size
	}
	var all []Forgotten
	for name, l := range by {
		all = append(all, Forgotten{*l, name})
	}
	slices.SortFunc(all, func(x, y Forgotten) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Made, y.Made))
	})
	return all
}

// Buffer returns the storage's memory, whoever owns it. It is for the owner of the
// memory, such as a recorded path, which knows what may be touched.
func (s *Storage) Buffer() device.Buffer { return s.buf }

// Owners returns the owner count.
func (s *Storage) Owners() int {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return int(s.owners)
}

// Serial returns a number that is the storage's alone in its Book.
func (s *Storage) Serial() uint64 { return s.serial }

// Block returns the block that the storage owns; false when it owns none.
func (s *Storage) Block() (mem.Block, bool) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return s.block, s.owns
}

// Attach makes the storage the owner of a block at its address: its last release
// frees it. A storage without owners, or with a block, is an error.
func Attach(s *Storage, pool *mem.Pool, block mem.Block) error {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	if s.owners == 0 || s.owns {
		return fmt.Errorf("graphs: %s cannot own a block: %d owners, owns one already: %t", s.maker, s.owners, s.owns)
	}
	s.pool, s.block, s.owns = pool, block, true
	return nil
}

// Detach ends the ownership of the block, which stays as it is.
func Detach(s *Storage) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	s.block, s.owns = mem.Block{}, false
}

// Revive starts a new incarnation with one owner: the memory was written again by
// its maker. It must have no owners.
func Revive(s *Storage, step int32, a Access) error {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	if s.owners != 0 {
		return fmt.Errorf("graphs: %s was not released before it is written again", s.maker)
	}
	s.over, s.overAt = s.maker, step
	s.inc++
	s.owners, s.step, s.content, s.wrote = 1, step, Written, a
	s.book.link(s)
	return nil
}

// Renew starts a new incarnation for the one owner of the storage, which m writes in
// generation step: handles of the incarnation before are stale. It changes nothing and
// reports false while the storage has more owners, or none.
func Renew(s *Storage, m *Maker, step int32) bool {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	if s.owners != 1 {
		return false
	}
	s.over, s.overAt = m, step
	s.inc++
	s.step, s.content = step, Unwritten
	return true
}

// Stamp sets the generation of the incarnation and says that it was written.
func Stamp(s *Storage, m *Maker, step int32) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	s.maker, s.step, s.content = m, step, Written
}

// Invalidate takes the storage away from its owners: m writes the memory next, in
// generation step. Handles are stale from here on. A block that the storage owns is
// freed. It reports whether there were owners.
func Invalidate(s *Storage, m *Maker, step int32) (bool, error) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	if s.owners == 0 {
		return false, nil
	}
	s.over, s.overAt = m, step
	s.inc++
	s.step = step
	return true, s.drop()
}

// Retire makes every handle stale, weak ones too: the memory is given to others.
func Retire(s *Storage, m *Maker) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	if s.owners == 0 {
		s.over = m
		s.inc++
	}
}

// drop makes the owner count 0 and frees the block.
func (s *Storage) drop() error {
	s.owners = 0
	s.book.unlink(s)
	if !s.owns {
		return nil
	}
	s.owns = false
	return s.pool.Free(s.block)
}

// Live reports whether the storage has owners.
func (s *Storage) Live() bool {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return s.owners > 0
}

// In reports whether the storage's memory is of the pool.
func (s *Storage) In(p *mem.Pool) bool { return s.pool == p }

// Of reports whether the storage is of the book.
func (s *Storage) Of(b *Book) bool { return s.book == b }

// Maker returns who makes the storage's contents.
func (s *Storage) Maker() *Maker { return s.maker }

// Content returns what lies in the storage, and who overwrote it.
func (s *Storage) Content() (Content, *Maker) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return s.content, s.over
}

// SetContent says what lies in the storage since access a; by is who wrote it.
func SetContent(s *Storage, c Content, by *Maker, a Access) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	s.content, s.wrote = c, a
	if c == Overwritten {
		s.over = by
	}
}

// Accesses returns the last write and the last read.
func (s *Storage) Accesses() (wrote, read Access) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return s.wrote, s.read
}

// Note records an access.
func Note(s *Storage, a Access, write bool) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	if write {
		s.wrote, s.content = a, Written
	} else {
		s.read = a
	}
}

// Tensor returns the start of the storage as a tensor of the current incarnation: the
// zero Tensor if it does not fit.
func (s *Storage) Tensor(dt dtype.DType, shape []int64) Tensor {
	n, err := Bytes(dt, shape)
	if err != nil || n > s.buf.Size {
		return Tensor{}
	}
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return Tensor{st: s, inc: s.inc, step: s.step, dt: dt, shape: shape, size: n}
}

// Overlaps reports whether two buffers have bytes in common.
func Overlaps(a, b device.Buffer) bool {
	return a.Memory == b.Memory && a.Size > 0 && b.Size > 0 && a.Offset < b.Offset+b.Size && b.Offset < a.Offset+a.Size
}

// Tensor is a contiguous view of a storage: a plain value. Views share the storage
// and its owners. The zero Tensor has no storage.
type Tensor struct {
	st    *Storage
	inc   uint32
	step  int32
	dt    dtype.DType
	weak  bool
	off   int64 // bytes
	size  int64 // bytes
	shape []int64
}

// Bytes returns the bytes of a contiguous tensor. Negative sizes and sums beyond
// int64 are errors.
func Bytes(dt dtype.DType, shape []int64) (int64, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("graphs: shape %v has a negative size", shape)
		}
		if d > 0 && n > math.MaxInt64/d {
			return 0, fmt.Errorf("graphs: shape %v has more than 2^63 elements", shape)
		}
		n *= d
	}
	b, ok := dt.CheckedBytes(n)
	if !dt.Valid() || !ok {
		return 0, fmt.Errorf("graphs: a tensor of %s and shape %v has no size in bytes", dt, shape)
	}
	return b, nil
}

// Storage returns the storage, nil for the zero Tensor.
func (t Tensor) Storage() *Storage { return t.st }

// DType returns the element type.
func (t Tensor) DType() dtype.DType { return t.dt }

// Shape returns the sizes. The slice is shared and must not be changed.
func (t Tensor) Shape() []int64 { return t.shape }

// Offset returns where the tensor starts in its storage, in bytes.
func (t Tensor) Offset() int64 { return t.off }

// Generation returns the generation of the contents that the handle names: 0
// outside of graph trees.
func (t Tensor) Generation() int32 { return t.step }

// Size returns the bytes of the tensor.
func (t Tensor) Size() int64 { return t.size }

// check returns an error unless the handle names the current incarnation and the
// storage has owners. book.mu is held.
func (t Tensor) check() error {
	s := t.st
	switch {
	case t.inc != s.inc:
		return &StaleError{Tensor: s.maker.String(), By: s.over.String(), Generation: t.step, Now: s.overAt,
			Advice: "clone the tensor before the next run to keep its values"}
	case s.owners == 0 && !t.weak:
		return fmt.Errorf("%w: %s", ErrReleased, s.maker)
	}
	return nil
}

// Weak returns a handle that reads the tensor's memory without an owner, for as long
// as the graph that makes it exists and nothing else was written there. Graphs that
// share a pool may reuse the memory of a result whose only handles are weak.
func (t Tensor) Weak() Tensor {
	t.weak = true
	return t
}

// Err returns nil while the handle may be used: its storage has owners and holds
// what the handle was made for. Otherwise the error matches [ErrReleased],
// [ErrStale] or [ErrNoStorage].
func (t Tensor) Err() error {
	if t.st == nil {
		return ErrNoStorage
	}
	t.st.book.mu.Lock()
	defer t.st.book.mu.Unlock()
	if err := t.check(); err != nil {
		return err
	}
	if t.st.content == Overwritten {
		return &StaleError{Tensor: t.st.maker.String(), By: t.st.over.String(), Generation: t.step, Now: t.st.overAt,
			Advice: "replay the graph that makes it, or give the graphs pools of their own"}
	}
	return nil
}

// FirstErr returns the first of n tensors for which Err is not nil, and that error. It
// locks once for tensors of one session.
func FirstErr(n int, at func(int) *Tensor) (int, error) {
	var b *Book
	for i := range n {
		t := at(i)
		if t.st == nil {
			if b != nil {
				b.mu.Unlock()
			}
			return i, ErrNoStorage
		}
		if t.st.book != b {
			if b != nil {
				b.mu.Unlock()
			}
			b = t.st.book
			b.mu.Lock()
		}
		if s := t.st; t.inc != s.inc || s.owners == 0 || s.content == Overwritten {
			b.mu.Unlock()
			return i, t.Err()
		}
	}
	if b != nil {
		b.mu.Unlock()
	}
	return 0, nil
}

// SameAddress reports whether two tensors begin at one address of one storage.
func (t *Tensor) SameAddress(s *Storage, off int64) bool { return t.st == s && t.off == off }

// Alive returns nil while the handle names the storage's incarnation and the storage
// has owners. It does not look at the contents: a capture needs no more, because what it
// records reads the memory later.
func (t Tensor) Alive() error {
	if t.st == nil {
		return ErrNoStorage
	}
	t.st.book.mu.Lock()
	defer t.st.book.mu.Unlock()
	return t.check()
}

// Retain adds an owner to the storage.
func (t Tensor) Retain() error {
	if t.st == nil {
		return ErrNoStorage
	}
	t.st.book.mu.Lock()
	defer t.st.book.mu.Unlock()
	if err := t.check(); err != nil {
		return err
	}
	if t.st.owners == 0 {
		return fmt.Errorf("%w: %s cannot get an owner again", ErrReleased, t.st.maker)
	}
	t.st.owners++
	return nil
}

// Release takes an owner away; the last one frees the block, in the order of the
// stream that it was allocated for. A release too many matches [ErrReleased], one
// of memory that was overwritten since [ErrStale]; both change nothing.
func (t Tensor) Release() error {
	if t.st == nil {
		return ErrNoStorage
	}
	t.st.book.mu.Lock()
	defer t.st.book.mu.Unlock()
	if err := t.check(); err != nil {
		return err
	}
	switch t.st.owners {
	case 0:
		return fmt.Errorf("%w: %s", ErrReleased, t.st.maker)
	case 1:
		return t.st.drop()
	}
	t.st.owners--
	return nil
}

// Buffer returns the tensor's memory, or why it must not be read.
func (t Tensor) Buffer() (device.Buffer, error) {
	if err := t.Err(); err != nil {
		return device.Buffer{}, err
	}
	return t.st.buf.Slice(t.off, t.size), nil
}

// Range returns the tensor's memory without asking whether it may be read.
func (t Tensor) Range() device.Buffer { return t.st.buf.Slice(t.off, t.size) }

// View returns a tensor of the same storage, off bytes behind the start of t. It
// adds no owner. A view that leaves t or is not aligned to its elements matches
// [ErrView].
func (t Tensor) View(off int64, dt dtype.DType, shape ...int64) (Tensor, error) {
	if t.st == nil {
		return Tensor{}, ErrNoStorage
	}
	n, err := Bytes(dt, shape)
	if err != nil {
		return Tensor{}, err
	}
	if size := t.Size(); off < 0 || n > size || off > size-n {
		return Tensor{}, fmt.Errorf("%w: bytes %d to %d of a tensor of %d bytes", ErrView, off, off+n, size)
	}
	if e := int64(max(dt.Bits()/8, 1)); (t.off+off)%e != 0 {
		return Tensor{}, fmt.Errorf("%w: byte %d of the storage is not aligned to %s", ErrView, t.off+off, dt)
	}
	v := t
	v.off, v.dt, v.shape, v.size = t.off+off, dt, slices.Clone(shape), n
	return v, nil
}

// Same reports whether two tensors name the same incarnation of the same storage.
func (t Tensor) Same(u Tensor) bool { return t.st != nil && t.st == u.st && t.inc == u.inc }

// At returns the tensor as a view of another incarnation of the same memory.
func (t Tensor) At(s *Storage) Tensor {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	t.st, t.inc, t.step = s, s.inc, s.step
	return t
}

// String returns the type and shape.
func (t Tensor) String() string { return fmt.Sprintf("%s%v", t.dt, t.shape) }
