package host

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"unsafe"

	"pwc/runtime/device"
)

var _ device.HostImporter = (*Device)(nil)

// imports is the list of imported memory. A stored list is never changed, so that it can be read
// without a lock: any code may meet a missing page.
type imports struct{ list atomic.Pointer[[]*memory] }

func (m *imports) all() []*memory {
	if p := m.list.Load(); p != nil {
		return *p
	}
	return nil
}

func (m *imports) set(list []*memory) { m.list.Store(&list) }

func (m *imports) remove(gone *memory) {
	m.set(slices.DeleteFunc(slices.Clone(m.all()), func(o *memory) bool { return o == gone }))
}

// ImportHost implements [device.HostImporter]. The bytes do not count for Options.MemoryBytes.
func (d *Device) ImportHost(bytes []byte, gone error) (device.Memory, error) {
	if len(bytes) == 0 || gone == nil {
		return nil, errors.New("host: import: want at least one byte, and an error for reads of missing pages")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("host: import: %w", device.ErrClosed)
	}
	if err := d.captures.Alloc("import"); err != nil {
		return nil, named(err)
	}
	m := &memory{dev: d, size: int64(len(bytes)), gone: gone}
	m.base.Store(unsafe.SliceData(bytes))
	d.imports.set(append(slices.Clone(d.imports.all()), m))
	return m, nil
}

// fault returns the error for work that panicked with p, if it could not read imported
// memory; nil for other panics.
func (m *imports) fault(p any) error {
	f, ok := p.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		return nil
	}
	for _, o := range m.all() {
		if base := o.base.Load(); base != nil && f.Addr()-uintptr(unsafe.Pointer(base)) < uintptr(o.size) {
			return o.gone
		}
	}
	return nil
}

// protect makes the calling goroutine panic when it reads a missing page, which otherwise ends the
// process. [lane.caught] undoes it.
func protect() (before bool) { return debug.SetPanicOnFault(true) }

// caught is deferred where a lane works. It recovers a panic because of a missing page of imported
// memory, and ends the operation of the lane's stream. It does not recover other panics.
func (l *lane) caught(before bool) {
	debug.SetPanicOnFault(before)
	p := recover()
	if p == nil {
		return
	}
	err := l.imports.fault(p)
	if err == nil {
		panic(p)
	}
	l.stop.fail(err)
}
