//go:build !purego

package host

import "unsafe"

//go:generate go -C ../../internal/simd/asm run ./neon -what dots -out ../../../runtime/host/simd_arm64.s -stubs ../../../runtime/host/simd_arm64.go -pkg host

// units returns the units that this processor runs, the fastest last. Every processor for
// arm64 has NEON.
func units() []*unit {
	u := portable()
	u.name, u.rows, u.dotsF32, u.dotsBF16, u.dotsF16 = "neon", 2, neonF32, neonBF16, neonF16
	return []*unit{portable(), u}
}

func neonF32(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, out *sums) {
	if rows == 1 {
		dots1F32(k, a, lda, (*byte)(b), ldb, ahead, &out[0])
		return
	}
	dots2F32(k, a, lda, (*byte)(b), ldb, ahead, &out[0])
}

func neonBF16(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, out *sums) {
	if rows == 1 {
		dots1BF16(k, a, lda, (*byte)(b), ldb, ahead, &out[0])
		return
	}
	dots2BF16(k, a, lda, (*byte)(b), ldb, ahead, &out[0])
}

func neonF16(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, out *sums) {
	if rows == 1 {
		dots1F16(k, a, lda, (*byte)(b), ldb, ahead, &out[0])
		return
	}
	dots2F16(k, a, lda, (*byte)(b), ldb, ahead, &out[0])
}
