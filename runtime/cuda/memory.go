package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"pwc/internal/cuda/driver"
	"pwc/runtime/device"
)

// memoryAlign is the alignment of the segments of Alloc, which package mem requires. CUDA
// promises only 256 bytes, so Alloc checks each address.
const memoryAlign = 512

// memory is a segment of device memory, reserved address space, or memory that
// someone else owns.
type memory struct {
	dev    *Device
	ptr    driver.Ptr
	size   int64
	mapped atomic.Int64 // bytes from the start that work may use; less than size only for a State
	freed  atomic.Bool
	owned  bool // cuMemFree gives it back

	imported bool // it belongs to another process, and cuIpcCloseMemHandle ends the mapping
}

// Alloc takes a segment from the driver, aligned to 512 bytes. During a capture it does so in the
// driver's relaxed mode, because the graph does not depend on the call.
func (d *Device) Alloc(bytes int64) (device.Memory, error) {
	const what = "alloc"
	if bytes < 0 {
		return nil, fmt.Errorf("cuda: alloc of %d bytes", bytes)
	}
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.usable(what); err != nil {
		return nil, err
	}
	if err := d.captures.Alloc(what); err != nil {
		return nil, named(err)
	}
	m := &memory{dev: d, size: bytes, owned: bytes > 0}
	m.mapped.Store(bytes)
	if bytes == 0 {
		d.adopt(m)
		return m, nil
	}
	if bytes > d.info.MemoryBytes {
		return nil, refuse(what, d.full(bytes))
	}
	if err := d.enter(); err != nil {
		return nil, d.wrap(what, err)
	}
	defer d.leave()
	p, err := d.take(bytes)
	if err != nil {
		if err = d.check(err); errors.Is(err, device.ErrOutOfMemory) {
			err = fmt.Errorf("%w (%w)", d.full(bytes), err)
		}
		return nil, refuse(what, err)
	}
	m.ptr = p
	if p%memoryAlign != 0 {
		return nil, errors.Join(fmt.Errorf("cuda: alloc: the driver gave address %#x, not aligned to %d", p, memoryAlign), d.wrap(what, d.drv.MemFree(p)))
	}
	d.mu.Lock()
	d.active += bytes
	d.mu.Unlock()
	d.adopt(m)
	return m, nil
}

// take is MemAlloc, from a thread that may capture.
func (d *Device) take(bytes int64) (driver.Ptr, error) {
	mode, err := d.relax()
	if err != nil {
		return 0, err
	}
	p, err := d.drv.MemAlloc(bytes)
	if modeErr := d.unrelax(mode); modeErr != nil {
		if err == nil { // given back when the captures have ended
			err = d.release("alloc", &memory{dev: d, ptr: p, size: bytes, owned: true})
		}
		return 0, errors.Join(modeErr, err)
	}
	return p, err
}

// full returns the error of an allocation of bytes for which there is no room.
func (d *Device) full(bytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &device.MemoryError{Asked: bytes, Reserved: d.active, Active: d.active, Limit: d.info.MemoryBytes}
}

// Size returns the bytes that were asked for.
func (m *memory) Size() int64 { return m.size }

// Free gives the memory back to the driver, once the device's streams are done with the work that
// was enqueued before. It does not wait for work of other devices and processes that use the memory.
// Launches and graphs that use it fail from then on with ErrFreed. Free does not free memory of
// WrapMemory; for memory of ImportMemory it ends the mapping.
func (m *memory) Free() error {
	const what = "free"
	d := m.dev
	if err := d.changeable(what); err != nil {
		return err
	}
	return m.free(what)
}

// free is Free without its check for captures, for memory of the device's own objects.
func (m *memory) free(what string) error {
	d := m.dev
	if d.shut.Load() || m.freed.Swap(true) {
		return refuse(what, device.ErrFreed)
	}
	if m.owned {
		d.mu.Lock()
		d.active -= m.size
		d.mu.Unlock()
	}
	return d.release(what, m)
}

func (m *memory) destroy() error {
	m.freed.Store(true)
	give := m.dev.drv.MemFree
	switch {
	case m.imported:
		give = m.dev.drv.IpcCloseMemHandle
	case !m.owned:
		return nil
	}
	// The driver may wait for enqueued work, and does not promise it (CUDA Runtime API, cudaFree).
	return errors.Join(m.dev.drain(), give(m.ptr))
}

// WrapMemory makes a segment of memory that the caller owns, and must keep as long as the
// segment is used; Free does not free that memory. Address 0 and sizes below 0 are refused.
func (d *Device) WrapMemory(address uint64, bytes int64) (device.Memory, error) {
	if address == 0 || bytes < 0 {
		return nil, fmt.Errorf("cuda: wrapping %d bytes at address %#x", bytes, address)
	}
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.usable("wrap"); err != nil {
		return nil, err
	}
	m := &memory{dev: d, ptr: driver.Ptr(address), size: bytes}
	m.mapped.Store(bytes)
	d.adopt(m)
	return m, nil
}

// segment returns the segment of b; nil if no device of this package made it.
func segment(b device.Buffer) *memory {
	switch x := b.Memory.(type) {
	case *memory:
		return x
	case *State:
		return &x.memory
	}
	return nil
}

// memory returns the address of b, and its segment. Those of the zero Buffer are 0 and nil.
func (d *Device) memory(b device.Buffer) (driver.Ptr, *memory, error) {
	if b.Memory == nil && b.Size == 0 {
		return 0, nil, nil
	}
	m := segment(b)
	switch {
	case m == nil || m.dev != d:
		return 0, nil, device.ErrForeignBuffer
	case b.Offset < 0 || b.Size < 0 || b.Offset > m.size-b.Size:
		return 0, nil, fmt.Errorf("bytes %d to %d of a segment of %d", b.Offset, b.Offset+b.Size, m.size)
	case m.freed.Load():
		return 0, nil, device.ErrFreed
	}
	return m.ptr + driver.Ptr(b.Offset), m, nil
}

// touchable returns the address of b. It is an error if b has bytes without memory.
func (d *Device) touchable(b device.Buffer) (driver.Ptr, error) {
	p, m, err := d.memory(b)
	if err == nil && m != nil {
		if mapped := m.mapped.Load(); b.Offset+b.Size > mapped {
			err = fmt.Errorf("bytes %d to %d of a state of which %d are mapped", b.Offset, b.Offset+b.Size, mapped)
		}
	}
	return p, err
}

// Pointer returns the address of a buffer, for ops that run on the device. It is
// valid until the segment is freed.
func (d *Device) Pointer(b device.Buffer) (uint64, error) {
	p, _, err := d.memory(b)
	if err != nil {
		return 0, refuse("pointer", err)
	}
	return uint64(p), nil
}

// hostMemory is pinned memory.
type hostMemory struct {
	dev   *Device
	data  []byte
	freed atomic.Bool
}

// AllocHost allocates pinned memory. Copies from and to it are asynchronous.
func (d *Device) AllocHost(bytes int64) (device.HostMemory, error) {
	h, err := d.allocHost("alloc of host memory", bytes)
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (d *Device) allocHost(what string, bytes int64) (*hostMemory, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("cuda: alloc of %d bytes of host memory", bytes)
	}
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.idle(what); err != nil {
		return nil, err
	}
	h := &hostMemory{dev: d}
	if bytes > 0 {
		if err := d.enter(); err != nil {
			return nil, d.wrap(what, err)
		}
		defer d.leave()
		p, err := d.drv.MemHostAlloc(bytes)
		if err != nil {
			return nil, d.wrap(what, err)
		}
		h.data = unsafe.Slice((*byte)(p), bytes)
		clear(h.data)
		d.pinned.add(h)
	}
	d.adopt(h)
	return h, nil
}

// Bytes returns the memory, nil once freed.
func (h *hostMemory) Bytes() []byte {
	if h.freed.Load() {
		return nil
	}
	return h.data
}

// Free frees the memory, once the streams are done with the work that was enqueued before.
func (h *hostMemory) Free() error {
	const what = "free of host memory"
	if h.dev.shut.Load() || h.freed.Swap(true) {
		return refuse(what, device.ErrFreed)
	}
	return h.dev.release(what, h)
}

func (h *hostMemory) destroy() error {
	h.freed.Store(true)
	if len(h.data) == 0 {
		return nil
	}
	h.dev.pinned.remove(h)
	// Whether cuMemFreeHost waits for enqueued work is not documented.
	return errors.Join(h.dev.drain(), h.dev.drv.MemFreeHost(unsafe.Pointer(&h.data[0])))
}

// pinned finds the pinned memory that contains an address. Reading takes no lock.
type pinned struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*hostMemory] // by address
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// index returns the index in a list of the memory that contains an address, and true, or the
// index at which such memory belongs, and false.
func index(list []*hostMemory, at uintptr) (int, bool) {
	return slices.BinarySearchFunc(list, at, func(h *hostMemory, at uintptr) int {
		switch base := address(h.data); {
		case at < base:
			return 1
		case at-base >= uintptr(len(h.data)):
			return -1
		}
		return 0
	})
}

func (p *pinned) all() []*hostMemory {
	if l := p.list.Load(); l != nil {
		return *l
	}
	return nil
}

func (p *pinned) add(h *hostMemory) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.all()
	i, _ := index(old, address(h.data))
	list := slices.Insert(slices.Clone(old), i, h)
	p.list.Store(&list)
}

func (p *pinned) remove(h *hostMemory) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(p.all()), func(x *hostMemory) bool { return x == h })
	p.list.Store(&list)
}

// find returns the pinned memory that contains all of b, or nil.
func (p *pinned) find(b []byte) *hostMemory {
	list := p.all()
	i, ok := index(list, address(b))
	if !ok {
		return nil
	}
	h := list[i]
	if uintptr(len(b)) > uintptr(len(h.data))-(address(b)-address(h.data)) {
		return nil
	}
	return h
}
