// Package simd has the inner loops of attention on the host: in assembly where the processor
// has the instructions, and in Go for every architecture, which the build tag purego chooses
// everywhere. But for products, where some processors fuse a multiplication and an addition,
// all give the same bits. The order of every sum is part of the definition.
package simd

import (
	"math"
	"unsafe"

	"pwc/ir/dtype"
)

const (
	lanes = 8

	// Width is what the number of columns of a product is a multiple of.
	Width = 16

	// Panel is the columns of a panel of transposed rows.
	Panel = 32

	// MaxRows is the most rows that a product takes over a row of B at once.
	MaxRows = 6

	// DotRows is how many rows of B [Kernels.Dots] takes from each of two places.
	DotRows = Panel / 2
)

// Kernels are the inner loops for one kind of processor.
type Kernels struct {
	name string

	mulAdd                func(rows, cols, depth int, a *float32, lda int, b Matrix, c *float32, ldc int)
	dots                  func(rows, n int, a *float32, lda int, b0, b1 Matrix, c *float32, ldc int) // nil: there is none
	turn                  func(n int, d *float32, s Matrix)                                          // n a multiple of eight
	prefetch              func(s Matrix, rows, n int)                                                // nil: it does nothing
	widenBF16, widenF16   func(d []float32, s []uint16)
	scale                 func(d []float32, x float32)
	blend                 func(d, s []float32, x, y float32)
	largest               func(s []float32, top *[lanes]float32)
	weigh                 func(d []float32, top float32, sums *[lanes]float32)
	softcap               func(d []float32, limit float32)
	fewRows, columnsOfFew int // rows that take so many columns together; 0: none do
	mostColumns           int // that any rows take together, where there are as many; 0: no more than those
}

// Best returns the kernels for this processor.
func Best() *Kernels {
	all := available()
	return all[len(all)-1]
}

// Name tells which processors the kernels are for.
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

// MulAdd adds A·B to C: c[i*ldc+j] += Σ a[i*lda+p]·B[p][j] for rows i and cols j, which
// are filled up to a multiple of Width. The sum runs over p < depth in order, from what stands in c, and does not depend on
// rows and cols. Memory of B is not checked.
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

// CanDot reports whether there is [Kernels.Dots] for so many rows of A, of n numbers of a dtype.
func (k *Kernels) CanDot(rows, n int, dt dtype.DType) bool {
	return k.dots != nil && rows <= MaxRows && int(dt.Bytes(int64(n)))%64 == 0
}

// Dots puts the products of rows of A with rows of B to C: c[i*ldc+j] = Σ a[i*lda+e]·B[j][e] for e < n,
// where the first [DotRows] rows of B are at b0 and as many at b1. The sum runs over e in order: its
// bits are those of [Kernels.MulAdd] with a panel that [Kernels.Turn] made. Memory of B is not checked.
func (k *Kernels) Dots(c []float32, ldc int, a []float32, lda int, b0, b1 Matrix, rows, n int) {
	_, _ = c[(rows-1)*ldc+Panel-1], a[(rows-1)*lda+n-1]
	k.dots(rows, n, &a[0], lda, b0, b1, &c[0], ldc)
}

// Turn writes eight rows of n numbers as eight columns of a panel: d[e*Panel+i] is element e
// of row i, as float32. Memory of the rows is not checked.
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

// Prefetch asks for rows of n numbers, so that they are in a cache when they are read. Any
// address will do.
func (k *Kernels) Prefetch(s Matrix, rows, n int) {
	if k.prefetch != nil {
		k.prefetch(s, rows, n)
	}
}

// Widen converts a row of a matrix to float32, exactly. Memory of the row is not checked.
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

// Blend computes d*x + s*y, each product and the sum rounded.
func (k *Kernels) Blend(d, s []float32, x, y float32) { k.blend(d, s[:len(d)], x, y) }

// Lanes is memory for reductions.
type Lanes [lanes]float32

// Largest returns the largest number, -Inf of nothing. NaN is passed over.
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

// Weigh puts e to the d[i]-top to d[i] and returns the sum: numbers go to eight sums in turn,
// which are added as ((s0+s4) + (s2+s6)) + ((s1+s5) + (s3+s7)). No number is larger than top; NaN
// gives NaN.
func (k *Kernels) Weigh(d []float32, top float32, l *Lanes) float32 {
	*l = Lanes{}
	k.weigh(d, top, (*[lanes]float32)(l))
	return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

// Softcap puts limit·tanh(d[i]/limit) to d[i], for a limit above zero.
func (k *Kernels) Softcap(d []float32, limit float64) {
	const most = 1 << 64 // beyond it and its reciprocal, quotients of usual scores are subnormal or infinite in float32
	if limit >= 1./most && limit <= most {
		k.softcap(d, float32(limit))
		return
	}
	for i, x := range d {
		d[i] = float32(limit * math.Tanh(float64(x)/limit))
	}
}
