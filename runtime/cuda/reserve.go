package cuda

import (
	"errors"
	"fmt"
	"sync"

	"pwc/internal/cuda/driver"
	"pwc/runtime/device"
)

var (
	_ device.Budgeted = (*Device)(nil)
	_ device.Reserver = (*Device)(nil)
	_ device.State    = (*State)(nil)
)

// State is reserved address space into which Map maps memory, from the start on. It serves the
// KV blocks of a model: graphs are captured before the number of blocks is known. The
// address never changes, so graphs stay valid while the state grows. Its size is the number of
// bytes that ReserveState was asked for; programs must not access bytes beyond the mapped ones.
type State struct {
	memory
	granularity int64
	bytes       int64 // reserved, a multiple of the granularity

	grow  sync.Mutex
	parts []part // mapped, in order
}

// part is one mapping of physical memory.
type part struct {
	ptr   driver.Ptr
	bytes int64
	alloc driver.Allocation
}

// MapGranularity returns the unit of mapped memory in bytes, usually 2 MiB.
func (d *Device) MapGranularity() (int64, error) {
	const what = "granularity"
	if err := d.usable(what); err != nil {
		return 0, err
	}
	g, err := d.drv.MemGranularity(d.ordinal)
	return g, d.wrap(what, err)
}

// ReserveState reserves address space for bytes, rounded up to the granularity,
// without memory. The result is a [*State].
func (d *Device) ReserveState(bytes int64) (device.State, error) {
	const what = "reserve"
	if bytes <= 0 {
		return nil, fmt.Errorf("cuda: reserve of %d bytes", bytes)
	}
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.idle(what); err != nil {
		return nil, err
	}
	ok, err := d.drv.DeviceGetAttribute(driver.AttrVirtualMemory, d.ordinal)
	if err != nil {
		return nil, d.wrap(what, err)
	}
	if ok == 0 {
		return nil, errors.New("cuda: reserve: the device cannot map memory into reserved address space")
	}
	if err := d.enter(); err != nil {
		return nil, d.wrap(what, err)
	}
	defer d.leave()
	g, err := d.drv.MemGranularity(d.ordinal)
	if err != nil {
		return nil, d.wrap(what, err)
	}
	s := &State{memory: memory{dev: d, size: bytes}, granularity: g, bytes: (bytes + g - 1) / g * g}
	if s.ptr, err = d.drv.MemAddressReserve(s.bytes); err != nil {
		return nil, d.wrap(what, err)
	}
	d.adopt(s)
	return s, nil
}

// Mapped returns the bytes from the start that have memory.
func (s *State) Mapped() int64 { return min(s.mapped.Load(), s.size) }

// Map implements [device.State]. If it has to map memory while another goroutine captures in mode
// thread-local, it waits for the end of the capture.
func (s *State) Map(bytes int64) error {
	const what = "map"
	d := s.dev
	if bytes > s.size || bytes < 0 {
		return fmt.Errorf("cuda: map of %d bytes into a state of %d", bytes, s.size)
	}
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.idle(what); err != nil {
		return err
	}
	if s.freed.Load() {
		return refuse(what, device.ErrFreed)
	}
	if bytes <= s.mapped.Load() {
		return nil // without a wait for captures
	}
	// Enter the gate before taking the lock: the end of a capture destroys states that were
	// freed meanwhile, which takes the lock, before it wakes those that wait at the gate.
	d.gate.enter()
	defer d.gate.leave()
	s.grow.Lock()
	defer s.grow.Unlock()
	if s.freed.Load() {
		return refuse(what, device.ErrFreed)
	}
	at := s.mapped.Load()
	more := (bytes - at + s.granularity - 1) / s.granularity * s.granularity // at is a multiple
	if bytes <= at {
		return nil
	}
	if err := d.enter(); err != nil {
		return d.wrap(what, err)
	}
	defer d.leave()
	p := part{ptr: s.ptr + driver.Ptr(at), bytes: more}
	if err := s.mapPart(&p); err != nil {
		if err = d.check(err); errors.Is(err, device.ErrOutOfMemory) {
			err = fmt.Errorf("%w (%w)", d.full(more), err)
		}
		return refuse(what, err)
	}
	s.parts = append(s.parts, p)
	s.mapped.Store(at + more)
	d.mu.Lock()
	d.active += more
	d.mu.Unlock()
	return nil
}

func (s *State) mapPart(p *part) (err error) {
	drv := s.dev.drv
	if p.alloc, err = drv.MemCreate(p.bytes, s.dev.ordinal); err != nil {
		return err
	}
	if err = drv.MemMap(p.ptr, p.bytes, p.alloc); err != nil {
		return errors.Join(s.dev.check(err), drv.MemRelease(p.alloc))
	}
	if err = drv.MemSetAccess(p.ptr, p.bytes, s.dev.ordinal); err != nil {
		return errors.Join(s.dev.check(err), drv.MemUnmap(p.ptr, p.bytes), drv.MemRelease(p.alloc))
	}
	return nil
}

// Free frees the memory and the address space, once the streams are done with the work that was
// enqueued before.
func (s *State) Free() error {
	const what = "free of a state"
	d := s.dev
	if err := d.changeable(what); err != nil {
		return err
	}
	if d.shut.Load() || s.freed.Swap(true) {
		return refuse(what, device.ErrFreed)
	}
	return d.release(what, s)
}

func (s *State) destroy() error {
	s.freed.Store(true)
	s.grow.Lock()
	defer s.grow.Unlock()
	drv := s.dev.drv
	errs := []error{s.dev.drain()} // unmapping does not wait for enqueued work
	for _, p := range s.parts {
		errs = append(errs, drv.MemUnmap(p.ptr, p.bytes), drv.MemRelease(p.alloc))
		s.dev.mu.Lock()
		s.dev.active -= p.bytes
		s.dev.mu.Unlock()
	}
	s.parts = nil
	return errors.Join(append(errs, drv.MemAddressFree(s.ptr, s.bytes))...)
}
