//go:build !purego

package host

import "unsafe"

//go:generate go -C ../../internal/simd/asm run ./neon -what dots -out ../../../runtime/host/simd_arm64.s -stubs ../../../runtime/host/simd_arm64.go -pkg host

// units returns the units that this processor runs, the fastest last. Every processor for
// arm64 has NEON.
func units() []*unit {
	u := portable()
	u.name, u.dotsF32, u.dotsBF16, u.dotsF16 = "neon", neonF32, neonBF16, neonF16
	return []*unit{portable(), u}
}

func neonF32(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, c *float32, pitch int) {
	for ; rows > 1; rows -= 2 {
		dots2F32(k, a, lda, (*byte)(b), ldb, ahead, c, pitch)
		a, c, ahead = rowAfterNext(a, lda), rowAfterNext(c, pitch), 0
	}
	if rows == 1 {
		dots1F32(k, a, lda, (*byte)(b), ldb, ahead, c, pitch)
	}
}

func neonBF16(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, c *float32, pitch int) {
	for ; rows > 1; rows -= 2 {
		dots2BF16(k, a, lda, (*byte)(b), ldb, ahead, c, pitch)
		a, c, ahead = rowAfterNext(a, lda), rowAfterNext(c, pitch), 0
	}
	if rows == 1 {
		dots1BF16(k, a, lda, (*byte)(b), ldb, ahead, c, pitch)
	}
}

func neonF16(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, c *float32, pitch int) {
	for ; rows > 1; rows -= 2 {
		dots2F16(k, a, lda, (*byte)(b), ldb, ahead, c, pitch)
		a, c, ahead = rowAfterNext(a, lda), rowAfterNext(c, pitch), 0
	}
	if rows == 1 {
		dots1F16(k, a, lda, (*byte)(b), ldb, ahead, c, pitch)
	}
}

// rowAfterNext returns the start of the row after the next of rows that are pitch elements apart.
func rowAfterNext(row *float32, pitch int) *float32 {
	return (*float32)(unsafe.Add(unsafe.Pointer(row), 8*pitch))
}
