//go:build amd64 && !purego

package simd

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"pwc/ir/dtype"
)

//go:generate go -C asm run ./simd -out ../loops_amd64.s -stubs ../loops_amd64.go -pkg simd

// available returns the kernels that this processor runs, the fastest last.
func available() []*Kernels {
	all := []*Kernels{Portable()}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C {
		all = append(all, avx2())
		if cpu.X86.HasAVX512F {
			all = append(all, avx512())
		}
	}
	return all
}

// avx512 is avx2 with Dots, and with MulAdd in registers of twice the size, whose bits are the same.
func avx512() *Kernels {
	k := avx2()
	k.name, k.mulAdd, k.dots, k.fewRows, k.mostColumns = "avx512", avx512MulAdd, avx512Dots, MaxRows, 64
	return k
}

// Tiles of 16, 32 and 64 columns.
var (
	avx2Tiles = tiles{
		f32:  [MaxRows]tile{muladd1x16F32, muladd2x16F32, muladd3x16F32, muladd4x16F32, muladd5x16F32, muladd6x16F32},
		bf16: [MaxRows]tile{muladd1x16BF16, muladd2x16BF16, muladd3x16BF16, muladd4x16BF16, muladd5x16BF16, muladd6x16BF16},
		f16:  [MaxRows]tile{muladd1x16F16, muladd2x16F16, muladd3x16F16, muladd4x16F16, muladd5x16F16, muladd6x16F16},
	}
	avx2Wide = tiles{
		f32:  [MaxRows]tile{muladd1x32F32, muladd2x32F32, muladd3x32F32},
		bf16: [MaxRows]tile{muladd1x32BF16, muladd2x32BF16, muladd3x32BF16},
		f16:  [MaxRows]tile{muladd1x32F16, muladd2x32F16, muladd3x32F16},
	}
	avx512Wide = tiles{ // one row has too few sums to keep two FMA units busy
		f32:  [MaxRows]tile{nil, wide2x32F32, wide3x32F32, wide4x32F32, wide5x32F32, wide6x32F32},
		bf16: [MaxRows]tile{nil, wide2x32BF16, wide3x32BF16, wide4x32BF16, wide5x32BF16, wide6x32BF16},
		f16:  [MaxRows]tile{nil, wide2x32F16, wide3x32F16, wide4x32F16, wide5x32F16, wide6x32F16},
	}
	avx512Widest = tiles{
		f32:  [MaxRows]tile{wide1x64F32, wide2x64F32, wide3x64F32, wide4x64F32, wide5x64F32, wide6x64F32},
		bf16: [MaxRows]tile{wide1x64BF16, wide2x64BF16, wide3x64BF16, wide4x64BF16, wide5x64BF16, wide6x64BF16},
		f16:  [MaxRows]tile{wide1x64F16, wide2x64F16, wide3x64F16, wide4x64F16, wide5x64F16, wide6x64F16},
	}
)

// dotTile is [Kernels.Dots] for a number of rows and a dtype.
type dotTile func(n int, a *float32, lda int, b0, b1 *byte, ldb int, c *float32, ldc int)

var avx512DotTiles = struct{ f32, bf16, f16 [MaxRows]dotTile }{
	f32:  [MaxRows]dotTile{dots1x32F32, dots2x32F32, dots3x32F32, dots4x32F32, dots5x32F32, dots6x32F32},
	bf16: [MaxRows]dotTile{dots1x32BF16, dots2x32BF16, dots3x32BF16, dots4x32BF16, dots5x32BF16, dots6x32BF16},
	f16:  [MaxRows]dotTile{dots1x32F16, dots2x32F16, dots3x32F16, dots4x32F16, dots5x32F16, dots6x32F16},
}

func avx512Dots(rows, n int, a *float32, lda int, b0, b1 Matrix, c *float32, ldc int) {
	all := &avx512DotTiles.f32
	switch b0.DType {
	case dtype.BF16:
		all = &avx512DotTiles.bf16
	case dtype.F16:
		all = &avx512DotTiles.f16
	}
	all[rows-1](n, a, lda, (*byte)(b0.At), (*byte)(b1.At), b0.Pitch, c, ldc)
}

func avx512MulAdd(rows, cols, depth int, a *float32, lda int, b Matrix, c *float32, ldc int) {
	switch {
	case cols == 64:
		avx512Widest.mulAdd(rows, depth, a, lda, b, c, ldc)
		return
	case cols == 32 && rows > 1:
		avx512Wide.mulAdd(rows, depth, a, lda, b, c, ldc)
		return
	}
	avx2MulAdd(rows, cols, depth, a, lda, b, c, ldc)
}

func avx2() *Kernels {
	return &Kernels{name: "avx2", mulAdd: avx2MulAdd, turn: avx2Turn, prefetch: prefetch, widenBF16: avx2WidenBF16, widenF16: avx2WidenF16,
		scale: avx2Scale, blend: avx2Blend, largest: avx2Largest, weigh: avx2Weigh, softcap: avx2Softcap, fewRows: 3, columnsOfFew: 32}
}

func avx2MulAdd(rows, cols, depth int, a *float32, lda int, b Matrix, c *float32, ldc int) {
	if cols == 32 {
		avx2Wide.mulAdd(rows, depth, a, lda, b, c, ldc)
		return
	}
	avx2Tiles.mulAdd(rows, depth, a, lda, b, c, ldc)
}

func avx2Turn(n int, d *float32, s Matrix) {
	p := (*byte)(s.At)
	switch s.DType {
	case dtype.BF16:
		turn8BF16(n, d, p, s.Pitch)
	case dtype.F16:
		turn8F16(n, d, p, s.Pitch)
	default:
		turn8F32(n, d, p, s.Pitch)
	}
}

func prefetch(s Matrix, rows, n int) {
	prefetchLines(rows, int(s.DType.Bytes(int64(n))), (*byte)(s.At), int(s.DType.Bytes(int64(s.Pitch))))
}

// whole returns how many of n elements the assembly computes; the Go loops compute the rest.
func whole(n int) int { return n &^ (lanes - 1) }

func avx2WidenBF16(d []float32, s []uint16) {
	n := whole(len(d))
	if n > 0 {
		widen8BF16(n, unsafe.SliceData(d), unsafe.SliceData(s))
	}
	widenBF16(d[n:], s[n:])
}

func avx2WidenF16(d []float32, s []uint16) {
	n := whole(len(d))
	if n > 0 {
		widen8F16(n, unsafe.SliceData(d), unsafe.SliceData(s))
	}
	widenF16(d[n:], s[n:])
}

func avx2Scale(d []float32, x float32) {
	n := whole(len(d))
	if n > 0 {
		scale8(n, unsafe.SliceData(d), x)
	}
	scale(d[n:], x)
}

func avx2Blend(d, s []float32, x, y float32) {
	n := whole(len(d))
	if n > 0 {
		blend8(n, unsafe.SliceData(d), unsafe.SliceData(s), x, y)
	}
	blend(d[n:], s[n:], x, y)
}

func avx2Largest(s []float32, top *[lanes]float32) {
	n := whole(len(s))
	if n > 0 {
		largest8(n, unsafe.SliceData(s), top)
	}
	largest(s[n:], top)
}

func avx2Weigh(d []float32, top float32, sums *[lanes]float32) {
	n := whole(len(d))
	if n > 0 {
		weigh8(n, unsafe.SliceData(d), top, sums)
	}
	weigh(d[n:], top, sums)
}

func avx2Softcap(d []float32, limit float32) {
	n := whole(len(d))
	if n > 0 {
		softcap8(n, unsafe.SliceData(d), limit)
	}
	softcap(d[n:], limit)
}
