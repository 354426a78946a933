// Package simd has the inner loops of attention on the host: in assembly for processors with
// AVX2, AVX-512 or NEON, and in Go for every architecture. With the build tag purego only the
// loops in Go are used. The order of every sum is defined, so all give the same bits (payloads of
// NaNs aside), except for MulAdd and Dots: some processors fuse a multiplication and an addition.
package simd

import (
	"math"
	"unsafe"

	"pwc/ir/dtype"
)

const (
	lanes = 8

	// Width is the unit of columns of [Kernels.MulAdd], which rounds their number up to a multiple.
	Width = 16

	// Panel is the number of columns of a panel of transposed rows.
	Panel = 32

	// MaxRows is the most rows of A that one pass over B computes.
	MaxRows = 6

	// DotRows is the number of rows of B that [Kernels.Dots] takes at each of b0 and b1.
	DotRows = Panel / 2
)

// Kernels has the inner loops for one kind of processor.
type Kernels struct {
	name string

	mulAdd                func(rows, cols, depth int, a *float32, lda int, b Matrix, c *float32, ldc int)
	dots                  func(rows, n int, a *float32, lda int, b0, b1 Matrix, c *float32, ldc int) // nil: CanDot is false
	turn                  func(n int, d *float32, s Matrix)                                          // n a multiple of eight
	prefetch              func(s Matrix, rows, n int)                                                // nil: it does nothing
	widenBF16, widenF16   func(d []float32, s []uint16)
	scale                 func(d []float32, x float32)
	blend                 func(d, s []float32, x, y float32)
	largest               func(s []float32, top *[lanes]float32)
	weigh                 func(d []float32, top float32, sums *[lanes]float32)
	softcap               func(d []float32, limit float32)
	fewRows, columnsOfFew int // up to fewRows rows, mulAdd takes columnsOfFew columns; 0: it does not
	mostColumns           int // columns that mulAdd takes for any number of rows, if as many are left; 0: it does not
}

// Best returns the kernels for this processor.
func Best() *Kernels {
	all := available()
	return all[len(all)-1]
}

// Name returns the kind of processor: "portable", "avx2", "avx512" or "neon".
func (k *Kernels) Name() string { return k.name }

// Portable returns the kernels in Go.
func Portable() *Kernels {
	return &Kernels{name: "portable", mulAdd: mulAdd, turn: turn, widenBF16: widenBF16, widenF16: widenF16, scale: scale, blend: blend, largest: largest, weigh: weigh, softcap: softcap}
}

// Matrix is rows of f32, f16 or bf16 in memory, Pitch elements apart.
type Matrix struct {
	At    unsafe.Pointer
	Pitch int
	DType dtype.DType
}

// Floats is a matrix of float32 numbers.
func Floats(s []float32, pitch int) Matrix {
	return Matrix{unsafe.Pointer(unsafe.SliceData(s)), pitch, dtype.F32}
}

func (m *Matrix) floats(at, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Add(m.At, 4*at)), n)
}

func (m *Matrix) bits(at, n int) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Add(m.At, 2*at)), n)
}

// MulAdd adds A·B to C: c[i*ldc+j] += Σ a[i*lda+p]·B[p][j] for i < rows and j < cols, where cols is
// rounded up to a multiple of Width: B and C need as many columns. The sum starts with the element
// of c, runs over p < depth in order, and does not depend on rows and cols. The memory of B is not
// checked.
func (k *Kernels) MulAdd(c []float32, ldc int, a []float32, lda int, b Matrix, rows, cols, depth int) {
	if rows <= 0 || cols <= 0 || depth <= 0 {
		return
	}
	cols = (cols + Width - 1) / Width * Width
	_, _ = c[(rows-1)*ldc+cols-1], a[(rows-1)*lda+depth-1]
	groups := (rows + MaxRows - 1) / MaxRows
	most := (rows + groups - 1) / groups
	size := int(b.DType.Bytes(1))
	for n := 0; n < cols; {
		wide := Width
		switch {
		case k.mostColumns > 0 && cols-n >= k.mostColumns:
			wide = k.mostColumns
		case rows <= k.fewRows && cols-n >= k.columnsOfFew:
			wide = k.columnsOfFew
		}
		part := Matrix{unsafe.Add(b.At, n*size), b.Pitch, b.DType}
		for m := 0; m < rows; m += most {
			k.mulAdd(min(most, rows-m), wide, depth, &a[m*lda], lda, part, &c[m*ldc+n], ldc)
		}
		n += wide
	}
}

// CanDot reports whether [Kernels.Dots] may be called for rows of A, and rows of B with n numbers of
// dtype dt.
func (k *Kernels) CanDot(rows, n int, dt dtype.DType) bool {
	return k.dots != nil && rows > 0 && rows <= MaxRows && n > 0 && int(dt.Bytes(int64(n)))%64 == 0
}

// Dots sets C to the dot products of rows of A with rows of B: c[i*ldc+j] = Σ a[i*lda+e]·B[j][e] for
// e < n, where the first [DotRows] rows of B are at b0 and the others at b1. The sum runs over e in
// order: its bits are those of [Kernels.MulAdd] with a panel that [Kernels.Turn] made and zeros in C. The
// memory of B is not checked.
func (k *Kernels) Dots(c []float32, ldc int, a []float32, lda int, b0, b1 Matrix, rows, n int) {
	_, _ = c[(rows-1)*ldc+Panel-1], a[(rows-1)*lda+n-1]
	k.dots(rows, n, &a[0], lda, b0, b1, &c[0], ldc)
}

// Turn writes eight rows of n numbers as eight columns of a panel: d[e*Panel+i] is element e
// of row i, as float32. The memory of the rows is not checked.
func (k *Kernels) Turn(d []float32, s Matrix, n int) {
	if n <= 0 {
		return
	}
	_ = d[(n-1)*Panel+lanes-1]
	whole := n &^ (lanes - 1)
	if whole > 0 {
		k.turn(whole, &d[0], s)
	}
	if whole < n {
		s.At = unsafe.Add(s.At, s.DType.Bytes(int64(whole)))
		turn(n-whole, &d[whole*Panel], s)
	}
}

// Prefetch loads rows of n numbers into a cache, or does nothing. The addresses need not be valid.
func (k *Kernels) Prefetch(s Matrix, rows, n int) {
	if k.prefetch != nil {
		k.prefetch(s, rows, n)
	}
}

// Widen converts a row of a matrix to float32, exactly. The memory of the row is not checked.
func (k *Kernels) Widen(d []float32, s Matrix) {
	switch s.DType {
	case dtype.BF16:
		k.widenBF16(d, s.bits(0, len(d)))
	case dtype.F16:
		k.widenF16(d, s.bits(0, len(d)))
	default:
		copy(d, s.floats(0, len(d)))
	}
}

// Scale multiplies numbers by x.
func (k *Kernels) Scale(d []float32, x float32) { k.scale(d, x) }

// Blend sets d to d*x + s*y, with both products and the sum rounded.
func (k *Kernels) Blend(d, s []float32, x, y float32) { k.blend(d, s[:len(d)], x, y) }

// Lanes is memory for reductions.
type Lanes [lanes]float32

// Largest returns the largest number of s; -Inf if s is empty. It ignores NaNs.
func (k *Kernels) Largest(s []float32, l *Lanes) float32 {
	least := float32(math.Inf(-1))
	for i := range l {
		l[i] = least
	}
	k.largest(s, (*[lanes]float32)(l))
	for _, x := range l {
		if x > least {
			least = x
		}
	}
	return least
}

// Weigh sets d[i] to e to the d[i]-top and returns the sum: sum i mod 8 adds element i, and the
// eight sums are added as ((s0+s4) + (s2+s6)) + ((s1+s5) + (s3+s7)). No d[i] may be larger than
// top; NaN gives NaN.
func (k *Kernels) Weigh(d []float32, top float32, l *Lanes) float32 {
	*l = Lanes{}
	k.weigh(d, top, (*[lanes]float32)(l))
	return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

// Softcap sets d[i] to limit·tanh(d[i]/limit), for a limit above zero.
func (k *Kernels) Softcap(d []float32, limit float64) {
	const most = 1 << 64 // from 1/most to most, float32 quotients of usual scores are neither subnormal nor infinite
	if limit >= 1./most && limit <= most {
		k.softcap(d, float32(limit))
		return
	}
	for i, x := range d {
		d[i] = float32(limit * math.Tanh(float64(x)/limit))
	}
}
