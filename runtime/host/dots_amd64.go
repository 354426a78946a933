package host

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:generate go -C internal/asm run . -out ../../simd_amd64.s -stubs ../../simd_amd64.go -pkg host

// bestKernels returns the micro kernels for this processor.
func bestKernels() *microKernels {
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C {
		return &microKernels{name: "avx2", f32: avx2F32, bf16: avx2BF16, f16: avx2F16, widenBF16: avx2WidenBF16, widenF16: avx2WidenF16}
	}
	return portable()
}

func avx2F32(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb int, out *sums) {
	switch rows {
	case 1:
		dots1F32(k, a, lda, (*byte)(b), ldb, &out[0])
	case 2:
		dots2F32(k, a, lda, (*byte)(b), ldb, &out[0])
	default:
		dots3F32(k, a, lda, (*byte)(b), ldb, &out[0])
	}
}

func avx2BF16(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb int, out *sums) {
	switch rows {
	case 1:
		dots1BF16(k, a, lda, (*byte)(b), ldb, &out[0])
	case 2:
		dots2BF16(k, a, lda, (*byte)(b), ldb, &out[0])
	default:
		dots3BF16(k, a, lda, (*byte)(b), ldb, &out[0])
	}
}

func avx2F16(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb int, out *sums) {
	switch rows {
	case 1:
		dots1F16(k, a, lda, (*byte)(b), ldb, &out[0])
	case 2:
		dots2F16(k, a, lda, (*byte)(b), ldb, &out[0])
	default:
		dots3F16(k, a, lda, (*byte)(b), ldb, &out[0])
	}
}

func avx2WidenBF16(d []float32, s []uint16) {
	n := len(d) &^ (lanes - 1)
	if n > 0 {
		widen8BF16(n, &d[0], &s[:n][0])
	}
	widenBF16(d[n:], s[n:])
}

func avx2WidenF16(d []float32, s []uint16) {
	n := len(d) &^ (lanes - 1)
	if n > 0 {
		widen8F16(n, &d[0], &s[:n][0])
	}
	widenF16(d[n:], s[n:])
}
