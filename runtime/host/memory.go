package host

import (
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"unsafe"

	"pwc/runtime/device"
)

// memoryAlign is the alignment of the segments of Alloc, at least that of any buffer, so that
// only offsets decide how a buffer in them is aligned.
const memoryAlign = 512

// maxAlloc is the most bytes of one allocation. Larger ones are refused here, because the
// Go runtime would panic or end the process.
const maxAlloc = min(1<<46, math.MaxInt/2)

// memory is a segment of device memory.
type memory struct {
	dev  *Device
	size int64
	base atomic.Pointer[byte] // nil once freed
	gone error                // of imported memory: the error of work that cannot read it; nil: not imported
}

func alignedBytes(n int64) []byte {
	b := make([]byte, n+memoryAlign)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (memoryAlign - 1)
	return b[skip:][:n:n]
}

// Alloc takes memory from the Go heap, aligned to 512 bytes. It is refused during a capture of
// mode global that another goroutine began.
func (d *Device) Alloc(bytes int64) (device.Memory, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("host: alloc of %d bytes, want 0 or more", bytes)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("host: alloc: %w", device.ErrClosed)
	}
	if err := d.captures.Alloc("alloc"); err != nil {
		return nil, named(err)
	}
	data, err := d.take(bytes)
	if err != nil {
		return nil, fmt.Errorf("host: alloc: %w", err)
	}
	m := &memory{dev: d, size: bytes}
	m.base.Store(unsafe.SliceData(data))
	return m, nil
}

// take takes memory within the limit. d.mu is held.
func (d *Device) take(bytes int64) ([]byte, error) {
	if bytes > maxAlloc || d.limit > 0 && bytes > d.limit-d.active {
		return nil, &device.MemoryError{Asked: bytes, Reserved: d.active, Active: d.active, Limit: d.limit}
	}
	if d.dead > 0 && d.limit > 0 && bytes > d.limit-d.active-d.dead {
		runtime.GC() // otherwise the heap grows by bytes before the collector frees dead memory
		d.dead = 0
	}
	d.active += bytes
	return alignedBytes(bytes), nil
}

// drop counts memory as freed. d.mu is held.
func (d *Device) drop(bytes int64) {
	d.active -= bytes
	d.dead += bytes
}

// FreeBytes implements [device.Budgeted]. The error is nil.
func (d *Device) FreeBytes() (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.limit <= 0 {
		return math.MaxInt64, nil
	}
	return d.limit - d.active, nil
}

// SharesHostMemory implements [device.Budgeted].
func (d *Device) SharesHostMemory() bool { return true }

// Size returns the bytes that were asked for.
func (m *memory) Size() int64 { return m.size }

// Free frees the memory. Launches and graphs that use it fail from then on with ErrFreed.
// [device.Captures.Idle] says when a capture forbids it.
func (m *memory) Free() error {
	m.dev.mu.Lock()
	defer m.dev.mu.Unlock()
	if err := m.dev.captures.Idle("free"); err != nil {
		return named(err)
	}
	if m.base.Swap(nil) == nil {
		return fmt.Errorf("host: free: %w", device.ErrFreed)
	}
	if m.gone != nil {
		m.dev.imports.remove(m)
		return nil
	}
	m.dev.drop(m.size)
	return nil
}

// bytes returns the bytes of b, and its segment.
func (d *Device) bytes(b device.Buffer) ([]byte, *memory, error) {
	m, ok := b.Memory.(*memory)
	switch {
	case b.Memory == nil && b.Size == 0:
		return nil, nil, nil
	case !ok || m.dev != d:
		return nil, nil, device.ErrForeignBuffer
	case b.Offset < 0 || b.Size < 0 || b.Offset > m.size-b.Size:
		return nil, nil, fmt.Errorf("bytes %d to %d are not within a segment of %d bytes", b.Offset, b.Offset+b.Size, m.size)
	}
	base := m.base.Load()
	if base == nil {
		return nil, nil, device.ErrFreed
	}
	return unsafe.Slice(base, m.size)[b.Offset:][:b.Size:b.Size], m, nil
}

// writable returns an error if the memory of b was imported.
func writable(b device.Buffer) error {
	if m, ok := b.Memory.(*memory); ok && m.gone != nil {
		return device.ErrReadOnly
	}
	return nil
}

// Bytes returns a buffer's memory, for ops that run on the host. The bytes are valid until the
// segment is freed. Work that streams have done so far is visible in them.
func (d *Device) Bytes(b device.Buffer) ([]byte, error) {
	data, _, err := d.bytes(b)
	if err != nil {
		return nil, fmt.Errorf("host: bytes: %w", err)
	}
	return data, nil
}

// hostMemory is memory of AllocHost, which on the host is ordinary memory.
type hostMemory struct {
	dev   *Device
	data  []byte
	freed atomic.Bool
}

// AllocHost allocates host memory. [device.Captures.Idle] says when a capture forbids it.
func (d *Device) AllocHost(bytes int64) (device.HostMemory, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("host: alloc of %d bytes of host memory, want 0 or more", bytes)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.idle("alloc of host memory"); err != nil {
		return nil, err
	}
	data, err := d.take(bytes)
	if err != nil {
		return nil, fmt.Errorf("host: alloc of host memory: %w", err)
	}
	return &hostMemory{dev: d, data: data}, nil
}

// Bytes returns the memory, nil once freed.
func (m *hostMemory) Bytes() []byte {
	if m.freed.Load() {
		return nil
	}
	return m.data
}

// Free frees the memory.
func (m *hostMemory) Free() error {
	if m.freed.Swap(true) {
		return fmt.Errorf("host: free of host memory: %w", device.ErrFreed)
	}
	m.dev.mu.Lock()
	defer m.dev.mu.Unlock()
	m.dev.drop(int64(len(m.data)))
	return nil
}
