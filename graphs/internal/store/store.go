// Package store tracks the storages of a device: the owner count of each block of memory, whether
// a handle may still read its contents, and the storages that were never released.
//
// Go has no reference counts, so ownership is explicit. A new Storage has one owner. Retain adds an
// owner and Release removes one; the last Release frees the block. A Tensor is a plain value that
// names a storage and an incarnation of its contents. When a later run takes the memory over, the
// storage gets a new incarnation, so an old handle can neither read nor release the new contents.
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
	// ErrStale matches a [StaleError].
	ErrStale = errors.New("graphs: the memory was overwritten by a subsequent run")
	// ErrNoStorage is the use of the zero Tensor.
	ErrNoStorage = errors.New("graphs: the zero tensor has no storage")
	// ErrView is a view that exceeds its tensor or is not aligned to its elements.
	ErrView = errors.New("graphs: view out of range")
)

// Maker is the writer of a storage, for messages.
type Maker struct {
	Name   string // "output 1 of @foo", "input x"
	Loc    string // position in the module, file:line:col; may be empty
	Output int    // -1: not an output
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

// StaleError is the use of a tensor whose memory was overwritten, or may be reused because the graph of
// the tensor was reset or the capture of the tensor failed. It matches [ErrStale].
type StaleError struct {
	Tensor     string // the maker of the tensor: function, output, position in the module
	By         string // the maker of the present contents; "": the memory may be reused
	Generation int32  // of the tensor
	Now        int32  // of the present contents
	Why        string // the memory may be reused, if By is ""
	Advice     string // how to avoid the error
}

// Error names the tensor and the present contents, both with their generation, or why the memory may be reused.
func (e *StaleError) Error() string {
	if e.By == "" {
		return fmt.Sprintf("graphs: the memory of %s of generation %d may be reused, because %s; %s", e.Tensor, e.Generation, e.Why, e.Advice)
	}
	s := fmt.Sprintf("graphs: %s of generation %d was overwritten by a subsequent run: its memory holds %s of generation %d", e.Tensor, e.Generation, e.By, e.Now)
	if e.Advice != "" {
		s += "; " + e.Advice
	}
	return s
}

// Unwrap returns ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// Access is operation number Tick of the stream with index Stream. The zero Access precedes all
// operations.
type Access struct {
	Stream int32
	Tick   uint64
}

// Content is the state of a storage's contents.
type Content uint8

const (
	Unwritten   Content = iota // allocated, or recorded and not replayed
	Written                    // its maker wrote it
	Overwritten                // another storage uses the memory now
)

// lost is why a graph no longer keeps the memory of a storage.
type lost uint8

const (
	_         lost = iota // the memory is not lost
	retired               // without owners at Retire
	abandoned             // with owners at Abandon
)

// Book tracks the storages of one device. Its methods and those of its storages are safe for
// concurrent use.
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
	// The first cache line has the fields that a replay reads for each of hundreds of inputs.
	book    *Book
	inc     uint32 // incarnation
	owners  int32
	step    int32 // generation of the incarnation
	content Content
	kept    bool // see Keep
	lost    lost // 0: not lost

	// Guarded by book.mu, as inc, owners, step, content, kept and lost are.
	prev, next *Storage
	pool       *mem.Pool // that block is freed to; nil: the storage does not free its memory
	block      mem.Block
	owns       bool // the last release frees block
	buf        device.Buffer
	maker      *Maker
	over       *Maker // the overwriter, if content is Overwritten or an incarnation has ended
	overAt     int32
	wrote      Access
	reads      []Access // the last read of each stream since the last write
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

// Forgotten counts the storages of one maker that still have owners.
type Forgotten struct {
	Leak
	Made string // the maker
}

// Forgotten counts the storages with owners by maker, most bytes first.
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

// Buffer returns the storage's memory without checks. It is for callers that track the contents
// themselves, such as graph trees.
func (s *Storage) Buffer() device.Buffer { return s.buf }

// Owners returns the owner count.
func (s *Storage) Owners() int {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return int(s.owners)
}

// Serial returns a number that is unique in the storage's Book.
func (s *Storage) Serial() uint64 { return s.serial }

// Block returns the block that the storage owns, and whether it owns one.
func (s *Storage) Block() (mem.Block, bool) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return s.block, s.owns
}

// Attach makes the storage own a block at its address, which the last release frees. It returns an
// error if the storage has no owners or owns a block.
func Attach(s *Storage, pool *mem.Pool, block mem.Block) error {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	if s.owners == 0 || s.owns {
		return fmt.Errorf("graphs: %s cannot own a block: %d owners, owns one already: %t", s.maker, s.owners, s.owns)
	}
	s.pool, s.block, s.owns = pool, block, true
	return nil
}

// Detach ends the storage's ownership of its block and does not free the block.
func Detach(s *Storage) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	s.block, s.owns = mem.Block{}, false
}

// Revive starts a new incarnation with one owner, after a replay wrote the memory again. It returns
// an error if the storage has owners.
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

// Renewal is a new incarnation by Renew, with the fields that Undo restores.
type Renewal struct {
	s            *Storage
	step, overAt int32
	content      Content
	over         *Maker
}

// Renew starts a new incarnation of a storage that has exactly one owner: m writes it next, in
// generation step, and existing handles become stale. With any other owner count Renew changes
// nothing and returns false.
func Renew(s *Storage, m *Maker, step int32) (Renewal, bool) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	if s.owners != 1 {
		return Renewal{}, false
	}
	r := Renewal{s, s.step, s.overAt, s.content, s.over}
	s.over, s.overAt = m, step
	s.inc++
	s.step, s.content = step, Unwritten
	return r, true
}

// Undo makes the earlier incarnation current again, because the write did not happen. No handle of the new
// incarnation may be left.
func (r Renewal) Undo() {
	s := r.s
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	s.inc--
	s.step, s.overAt, s.content, s.over = r.step, r.overAt, r.content, r.over
}

// Stamp records that m wrote the storage in generation step.
func Stamp(s *Storage, m *Maker, step int32) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	s.maker, s.step, s.content = m, step, Written
}

// Invalidate removes all owners of the storage: m writes the memory next, in generation step, and
// existing handles become stale. It frees the block that the storage owns, and reports whether the
// storage had owners.
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

// Abandon removes all owners of a storage whose capture failed or was reset, makes its handles stale,
// and frees the block that the storage owns.
func Abandon(s *Storage) error {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	if s.owners == 0 {
		return nil
	}
	s.lost = abandoned
	s.inc++
	return s.drop()
}

// Keep makes weak handles of the storage readable without owners: a graph writes it, and the graph's
// pool keeps the memory until Retire.
func Keep(s *Storage) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	s.kept = true
}

// Retire ends Keep. It makes all handles of a storage without owners stale, weak ones too, because its
// memory may be reused.
func Retire(s *Storage) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	s.kept = false
	if s.owners == 0 {
		s.lost = retired
		s.inc++
	}
}

// drop makes the owner count 0 and frees the block. An error means that the block was not the pool's
// to free; an error of the device does not keep the block (mem.Allocator.Free).
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

// In reports whether the storage's memory belongs to the pool.
func (s *Storage) In(p *mem.Pool) bool {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return s.pool == p
}

// Of reports whether the storage belongs to the book.
func (s *Storage) Of(b *Book) bool { return s.book == b }

// Maker returns the writer of the storage's contents.
func (s *Storage) Maker() *Maker {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return s.maker
}

// Content returns the state of the contents and the last overwriter.
func (s *Storage) Content() (Content, *Maker) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return s.content, s.over
}

// SetContent sets the state of the contents after access a, a write that is ordered after all reads. by
// is the overwriter, for Overwritten. The zero Access forgets earlier accesses.
func SetContent(s *Storage, c Content, by *Maker, a Access) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	s.content, s.wrote, s.reads = c, a, s.reads[:0]
	if c == Overwritten {
		s.over = by
	}
}

// Wrote returns the last write.
func (s *Storage) Wrote() Access {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return s.wrote
}

// Unordered returns an earlier access that the next one must follow and for which ordered is false: the
// last write or, if the next access is a write, the last read of a stream. It returns the zero Access if
// there is no such access.
func (s *Storage) Unordered(write bool, ordered func(Access) bool) Access {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	if !ordered(s.wrote) {
		return s.wrote
	}
	if write {
		for _, a := range s.reads {
			if !ordered(a) {
				return a
			}
		}
	}
	return Access{}
}

// Note records access a. A write makes the contents Written; it must be ordered after all reads.
func Note(s *Storage, a Access, write bool) {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	if write {
		s.wrote, s.content, s.reads = a, Written, s.reads[:0]
		return
	}
	for i := range s.reads {
		if s.reads[i].Stream == a.Stream {
			s.reads[i] = a
			return
		}
	}
	s.reads = append(s.reads, a)
}

// Tensor returns a tensor at the start of the storage, of the current incarnation; the zero Tensor
// if Bytes fails or the storage is too small.
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

// Bytes returns the size of a contiguous tensor in bytes. It returns an error for an invalid dtype,
// for a negative dimension, and for a size that overflows int64.
func Bytes(dt dtype.DType, shape []int64) (int64, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("graphs: shape %v has a negative size", shape)
		}
	}
	if slices.Contains(shape, 0) {
		n, shape = 0, nil
	}
	for _, d := range shape {
		if n > math.MaxInt64/d {
			return 0, fmt.Errorf("graphs: shape %v has 2^63 elements or more", shape)
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

// Offset returns the tensor's offset in its storage, in bytes.
func (t Tensor) Offset() int64 { return t.off }

// Generation returns the generation of the tensor's contents. It is 0 outside of graph trees and
// graphed callables.
func (t Tensor) Generation() int32 { return t.step }

// Size returns the size of the tensor in bytes.
func (t Tensor) Size() int64 { return t.size }

// check returns an error unless the handle names the current incarnation and the
// storage has owners, or is kept and the handle is weak. book.mu is held.
func (t Tensor) check() error {
	s := t.st
	switch {
	case s.lost == retired:
		return &StaleError{Tensor: s.maker.String(), Generation: t.step, Why: "its graph was reset",
			Advice: "keep an owner until the last read or replay that needs it; if no graph reads it, a clone before Graph.Reset is enough"}
	case s.lost == abandoned:
		return &StaleError{Tensor: s.maker.String(), Generation: t.step, Why: "its capture failed or was reset", Advice: "capture again, and use the new tensor"}
	case t.inc != s.inc:
		return &StaleError{Tensor: s.maker.String(), By: s.over.String(), Generation: t.step, Now: s.overAt,
			Advice: "clone the tensor before the next run to keep its values"}
	case s.owners == 0 && !(t.weak && s.kept):
		return fmt.Errorf("%w: %s", ErrReleased, s.maker)
	}
	return nil
}

// Weak returns a handle that reads a graph's result without owners, from the end of the graph's
// capture to its reset. Graphs that share a pool may reuse the memory of a result without owners;
// after that the handle is stale. No graph keeps the memory of other tensors, including outputs of
// graph trees, so after their last release Err of a weak handle matches [ErrReleased], too.
func (t Tensor) Weak() Tensor {
	t.weak = true
	return t
}

// Err returns nil while the handle may be read: its storage has owners, or the handle is weak (see
// Weak), and the memory holds the contents that the handle names. Otherwise the error matches [ErrReleased],
// [ErrStale] or [ErrNoStorage].
func (t Tensor) Err() error {
	if t.st == nil {
		return ErrNoStorage
	}
	t.st.book.mu.Lock()
	defer t.st.book.mu.Unlock()
	return t.fault()
}

// fault is Err for a tensor with a storage. book.mu is held.
func (t *Tensor) fault() error {
	if err := t.check(); err != nil {
		return err
	}
	if t.st.content == Overwritten {
		return &StaleError{Tensor: t.st.maker.String(), By: t.st.over.String(), Generation: t.step, Now: t.st.overAt,
			Advice: "replay the graph that makes it, or give the graphs pools of their own"}
	}
	return nil
}

// FirstErr returns the index and the error of the first of n tensors whose Err is not nil, or 0 and
// nil. It locks once for consecutive tensors of one session.
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
		if s := t.st; t.inc == s.inc && s.owners > 0 && s.content != Overwritten {
			continue // no call for the common case: a replay checks hundreds of inputs
		}
		if err := t.fault(); err != nil {
			b.mu.Unlock()
			return i, err
		}
	}
	if b != nil {
		b.mu.Unlock()
	}
	return 0, nil
}

// SameAddress reports whether the tensor starts off bytes into storage s.
func (t *Tensor) SameAddress(s *Storage, off int64) bool { return t.st == s && t.off == off }

// Alive is Err without the check for overwritten contents. A capture needs no more, because the
// operations that it records read the memory later, at a replay.
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

// Release removes an owner. The last release frees the block, in the order of the stream that the
// block was allocated for; from then on the pool owns the block, also if the device then fails.
// Without owners the error matches [ErrReleased], and for a handle of an earlier incarnation
// [ErrStale]; both change nothing.
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

// Buffer returns the tensor's memory, or the error of Err.
func (t Tensor) Buffer() (device.Buffer, error) {
	if err := t.Err(); err != nil {
		return device.Buffer{}, err
	}
	return t.st.buf.Slice(t.off, t.size), nil
}

// Range returns the tensor's memory without the check of Err.
func (t Tensor) Range() device.Buffer { return t.st.buf.Slice(t.off, t.size) }

// View returns a tensor of the same storage, off bytes after the start of t. It adds no owner. The
// error matches [ErrView] if the view exceeds t or is not aligned to its elements.
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

// At returns the same view of s, of the current incarnation.
func (t Tensor) At(s *Storage) Tensor {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	t.st, t.inc, t.step = s, s.inc, s.step
	return t
}

// String returns the type and shape.
func (t Tensor) String() string { return fmt.Sprintf("%s%v", t.dt, t.shape) }
