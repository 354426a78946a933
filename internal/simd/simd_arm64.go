//go:build !purego

package simd

import "pwc/ir/dtype"

//go:generate go -C asm run ./neon -what muladd -out ../loops_arm64.s -stubs ../loops_arm64.go -pkg simd

// available returns the kernels that this processor runs, the fastest last. Every processor for
// arm64 has NEON.
func available() []*Kernels {
	k := Portable()
	k.name, k.mulAdd = "neon", neonMulAdd
	return []*Kernels{Portable(), k}
}

func neonMulAdd(rows, _, depth int, a *float32, lda int, b Matrix, c *float32, ldc int) {
	p := (*byte)(b.At)
	switch b.DType {
	case dtype.BF16:
		neonMulAddBF16(rows, depth, a, lda, p, b.Pitch, c, ldc)
	case dtype.F16:
		neonMulAddF16(rows, depth, a, lda, p, b.Pitch, c, ldc)
	default:
		neonMulAddF32(rows, depth, a, lda, p, b.Pitch, c, ldc)
	}
}

func neonMulAddF32(rows, depth int, a *float32, lda int, b *byte, ldb int, c *float32, ldc int) {
	switch rows {
	case 1:
		muladd1x16F32(depth, a, lda, b, ldb, c, ldc)
	case 2:
		muladd2x16F32(depth, a, lda, b, ldb, c, ldc)
	case 3:
		muladd3x16F32(depth, a, lda, b, ldb, c, ldc)
	case 4:
		muladd4x16F32(depth, a, lda, b, ldb, c, ldc)
	case 5:
		muladd5x16F32(depth, a, lda, b, ldb, c, ldc)
	case 6:
		muladd6x16F32(depth, a, lda, b, ldb, c, ldc)
	}
}

func neonMulAddBF16(rows, depth int, a *float32, lda int, b *byte, ldb int, c *float32, ldc int) {
	switch rows {
	case 1:
		muladd1x16BF16(depth, a, lda, b, ldb, c, ldc)
	case 2:
		muladd2x16BF16(depth, a, lda, b, ldb, c, ldc)
	case 3:
		muladd3x16BF16(depth, a, lda, b, ldb, c, ldc)
	case 4:
		muladd4x16BF16(depth, a, lda, b, ldb, c, ldc)
	case 5:
		muladd5x16BF16(depth, a, lda, b, ldb, c, ldc)
	case 6:
		muladd6x16BF16(depth, a, lda, b, ldb, c, ldc)
	}
}

func neonMulAddF16(rows, depth int, a *float32, lda int, b *byte, ldb int, c *float32, ldc int) {
	switch rows {
	case 1:
		muladd1x16F16(depth, a, lda, b, ldb, c, ldc)
	case 2:
		muladd2x16F16(depth, a, lda, b, ldb, c, ldc)
	case 3:
		muladd3x16F16(depth, a, lda, b, ldb, c, ldc)
	case 4:
		muladd4x16F16(depth, a, lda, b, ldb, c, ldc)
	case 5:
		muladd5x16F16(depth, a, lda, b, ldb, c, ldc)
	case 6:
		muladd6x16F16(depth, a, lda, b, ldb, c, ldc)
	}
}
