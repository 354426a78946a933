package safetensors

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"unsafe"
)

// locator is a [Source] that knows which file an address is mapped from.
type locator interface {
	mappedFrom(addr uintptr) (path string, ok bool)
}

// FaultError says that bytes of a mapped file could not be read: the file was truncated
// after it was opened, or its disk failed.
type FaultError struct{ File string }

// Error names the file and says what to do.
func (e *FaultError) Error() string {
	return fmt.Sprintf("safetensors: %s: its bytes cannot be read any more: the file was truncated after it was opened, or its disk failed; "+
		"replace a file that is in use by rename", e.File)
}

// faultAddress is what package runtime panics with after a fault, where
// [debug.SetPanicOnFault] is set.
type faultAddress interface {
	runtime.Error
	Addr() uintptr
}

// Guard calls read, which reads the Data of tensors of src on this goroutine, and returns
// its error. A page that is gone, which would end the process, is a [*FaultError] instead.
// Only reads by Go code are covered: where a driver or the kernel is to copy the bytes,
// [Touch] them in Guard first.
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
		panic(r) // not of a mapping: a fault of the program, as without Guard
	}()
	return read()
}

// Touch reads a byte of each page of b, so that in [Guard] a page that is gone is an error
// before somebody reads it who cannot be guarded. It returns their sum: without a result,
// or inlined where the result is dropped, the compiler leaves the reads out.
//
//go:noinline
func Touch(b []byte) (sum byte) {
	const page = 4096 // the smallest there is
	for i := 0; i < len(b); i += page {
		sum += b[i]
	}
	if len(b) > 0 {
		sum += b[len(b)-1]
	}
	return sum
}

func (f *File) mappedFrom(addr uintptr) (string, bool) {
	if len(f.bytes) == 0 || f.mapping == nil {
		return "", false
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(f.bytes)))
	return f.path, addr >= first && addr-first < uintptr(len(f.bytes))
}

func (s *Set) mappedFrom(addr uintptr) (string, bool) {
	for _, f := range s.files {
		if path, ok := f.mappedFrom(addr); ok {
			return path, true
		}
	}
	return "", false
}
