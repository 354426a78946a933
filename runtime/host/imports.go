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

// imports is the memory that was imported. Lists are not written: who looks one up holds no
// lock, as a page may be found to be gone anywhere.
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

// ImportHost implements [device.HostImporter]. Of the limit of memory nothing is taken.
func (d *Device) ImportHost(bytes []byte, gone error) (device.Memory, error) {
	if len(bytes) == 0 || gone == nil {
		return nil, errors.New("host: import: bytes, and an error for when they are gone, are needed")
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

// fault returns what work ends with that panicked with p: nil unless it could not read
// imported memory.
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

// protect has accesses of the calling goroutine to memory that cannot be read panic, which
// otherwise end the process. [lane.caught] takes it back.
func protect() (before bool) { return debug.SetPanicOnFault(true) }

// caught, deferred where a lane works, ends the work of the lane's stream if it could not read
// imported memory. Other panics go on.
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
