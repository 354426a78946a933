package safetensors

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"
)

var (
	_ Mapped = (*File)(nil)
	_ Mapped = (*Set)(nil)
)

// users counts the users of a mapping other than its File.
type users struct {
	mu     sync.Mutex
	closed bool // by the File
	count  int  // calls of Retain without a release
}

// retain adds a user, unless the File is closed, and reports whether it did.
func (m *mapping) retain() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.count++
	return true
}

func (m *mapping) release() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count--
	if m.count > 0 || !m.closed {
		return nil
	}
	return m.unmap()
}

// has reports whether addr is in the file's bytes, which may still be mapped after Close.
func (m *mapping) has(addr uintptr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.bytes) == 0 {
		return false
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes)))
	return addr >= first && addr-first < uintptr(len(m.bytes))
}

func (m *mapping) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	if m.count > 0 {
		return nil
	}
	return m.unmap()
}

// Retain implements [Mapped]. It does nothing for the bytes of Parse, which belong to the caller.
func (f *File) Retain() (release func() error, err error) {
	m := f.mapping
	switch {
	case m == nil && f.bytes != nil:
		return func() error { return nil }, nil
	case m == nil: // closed bytes of Parse, which have no path
		return nil, fmt.Errorf("safetensors: %w", os.ErrClosed)
	case !m.retain():
		return nil, fmt.Errorf("safetensors: %s: %w", f.path, os.ErrClosed)
	}
	return sync.OnceValue(func() error {
		if err := m.release(); err != nil {
			return fmt.Errorf("safetensors: %s: %w", f.path, err)
		}
		return nil
	}), nil
}

// Contiguous implements [Mapped]. ok is false for the bytes of Parse.
func (f *File) Contiguous(parts ...[]byte) (all []byte, path string, ok bool) {
	if f.mapping == nil || len(parts) == 0 {
		return nil, "", false
	}
	begin, n := f.offset(parts[0]), 0
	for _, p := range parts {
		if at := f.offset(p); at < 0 || at != begin+n || len(p) > len(f.bytes)-at {
			return nil, "", false
		}
		n += len(p)
	}
	return f.bytes[begin : begin+n : begin+n], f.path, true
}

// offset returns the offset of b in the file, -1 if b is empty or not in it.
func (f *File) offset(b []byte) int {
	if len(f.bytes) == 0 || len(b) == 0 {
		return -1
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(f.bytes)))
	if at >= uintptr(len(f.bytes)) {
		return -1
	}
	return int(at)
}

// Retain implements [Mapped] for all shards.
func (s *Set) Retain() (release func() error, err error) {
	var all []func() error
	release = func() error {
		var errs []error
		for _, r := range all {
			errs = append(errs, r())
		}
		return errors.Join(errs...)
	}
	for _, f := range s.files {
		r, err := f.Retain()
		if err != nil {
			return nil, errors.Join(err, release())
		}
		all = append(all, r)
	}
	return release, nil
}

// Contiguous implements [Mapped].
func (s *Set) Contiguous(parts ...[]byte) (all []byte, path string, ok bool) {
	for _, f := range s.files {
		if all, path, ok := f.Contiguous(parts...); ok {
			return all, path, ok
		}
	}
	return nil, "", false
}
