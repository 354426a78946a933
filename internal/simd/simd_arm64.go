//go:build !purego

package simd

//go:generate go -C asm run ./neon -what muladd -out ../loops_arm64.s -stubs ../loops_arm64.go -pkg simd

// available returns the kernels that this processor runs, the fastest last. Every processor for
// arm64 has NEON.
func available() []*Kernels {
	k := Portable()
	k.name, k.mulAdd = "neon", neonMulAdd
	return []*Kernels{Portable(), k}
}

// neonTiles are tiles of 16 columns.
var neonTiles = tiles{
	f32:  [MaxRows]tile{muladd1x16F32, muladd2x16F32, muladd3x16F32, muladd4x16F32, muladd5x16F32, muladd6x16F32},
	bf16: [MaxRows]tile{muladd1x16BF16, muladd2x16BF16, muladd3x16BF16, muladd4x16BF16, muladd5x16BF16, muladd6x16BF16},
	f16:  [MaxRows]tile{muladd1x16F16, muladd2x16F16, muladd3x16F16, muladd4x16F16, muladd5x16F16, muladd6x16F16},
}

func neonMulAdd(rows, _, depth int, a *float32, lda int, b Matrix, c *float32, ldc int) {
	neonTiles.mulAdd(rows, depth, a, lda, b, c, ldc)
}
