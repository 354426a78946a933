package safetensors

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// locator is a [Source] that finds the file of a mapped address.
type locator interface {
	mappedFrom(addr uintptr) (path string, ok bool)
}

// FaultError: bytes of a mapped file could not be read, because the file was truncated after it
// was opened, or its disk failed.
type FaultError struct{ File string }

// Error names the file and the remedy.
func (e *FaultError) Error() string {
	return fmt.Sprintf("safetensors: %s: its bytes cannot be read any more: the file was truncated after it was opened, or its disk failed; "+
		"replace a file that is in use by rename", e.File)
}

// faultAddress is the panic value of package runtime after a fault, with [debug.SetPanicOnFault].
type faultAddress interface {
	runtime.Error
	Addr() uintptr
}

// Guard calls read, which reads the Data of tensors of src on this goroutine, and returns its
// error. A read of a lost page of a [File] or [Set], which would end the process, is a [*FaultError]. Guard covers
// only reads by Go code: [Touch] bytes in Guard before a driver or the kernel copies them.
func Guard(src Source, read func() error) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		r := recover()
		if r == nil {
			return
		}
		if fault, ok := r.(faultAddress); ok {
			if m, ok := src.(locator); ok {
				if path, ok := m.mappedFrom(fault.Addr()); ok {
					err = &FaultError{File: path}
					return
				}
			}
		}
		panic(r) // not a fault in a mapping of src: as without Guard
	}()
	return read()
}

// Touch reads a byte of each page of b. In [Guard] a lost page is then an error before an
// unguarded reader meets it. It returns the sum of the bytes: without a used result the
// compiler removes the reads.
//
//go:noinline
func Touch(b []byte) (sum byte) {
	const page = 4096 // the smallest page size
	for i := 0; i < len(b); i += page {
		sum += b[i]
	}
	if len(b) > 0 {
		sum += b[len(b)-1]
	}
	return sum
}

func (f *File) mappedFrom(addr uintptr) (string, bool) {
	return f.path, f.mapping != nil && f.mapping.has(addr)
}

func (s *Set) mappedFrom(addr uintptr) (string, bool) {
	for _, f := range s.files {
		if path, ok := f.mappedFrom(addr); ok {
			return path, true
		}
	}
	return "", false
}
