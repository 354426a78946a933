package testkit

import (
	"syscall"
	"testing"
	"unsafe"
)

// Guarded has memory between guard pages, which must not be accessed: an access to one ends the process.
type Guarded struct {
	page int // bytes between two guards, and of a guard
	used int
	all  []byte
}

// NewGuarded returns memory for a number of operands of up to 16 KiB each. It is unmapped when t ends.
func NewGuarded(t testing.TB, operands int) *Guarded {
	t.Helper()
	g := &Guarded{page: 4 * syscall.Getpagesize()}
	all, err := syscall.Mmap(-1, 0, (2*operands+1)*g.page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	g.all = all
	t.Cleanup(func() {
		if err := syscall.Munmap(all); err != nil {
			t.Error(err)
		}
	})
	for i := 0; i < len(all); i += 2 * g.page {
		if err := syscall.Mprotect(all[i:i+g.page], syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// Bytes returns n bytes with a guard right before or right behind them.
func (g *Guarded) Bytes(n int, before bool) unsafe.Pointer {
	at := (2*g.used + 1) * g.page
	if g.used++; !before {
		at += g.page - n
	}
	return unsafe.Pointer(&g.all[at])
}

// Floats is [Guarded.Bytes] for n float32 numbers.
func (g *Guarded) Floats(n int, before bool) []float32 {
	return unsafe.Slice((*float32)(g.Bytes(4*n, before)), n)
}

// Halves is [Guarded.Bytes] for n numbers of 16 bits.
func (g *Guarded) Halves(n int, before bool) []uint16 {
	return unsafe.Slice((*uint16)(g.Bytes(2*n, before)), n)
}
