package host

import (
	"unsafe"

	"pwc/internal/philox"
	"pwc/program/vec"
)

// narrowSums is a buffer for the sums of microCols columns, of which fewer are used.
type narrowSums = [tileRows * microCols]float32

// unit has the inner loops for one kind of processor. All units compute the same bits, except for
// NaNs and for dot products, where some processors fuse a multiplication and an addition.
type unit struct {
	name string

	// Dot products of k elements, k a multiple of eight: add the dot product of row i of A, at a+i*lda,
	// with row j of B, at b+j*ldb, to c[i*pitch+j], for all rows of A and microCols rows of B. Strides are
	// in elements. The rows of B at b+ahead are prefetched; these addresses need not be valid. With ahead 0
	// no further rows are prefetched. dotsBF16 and dotsF16 may be nil: then B is converted to float32 before.
	dotsF32, dotsBF16, dotsF16 func(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, c *float32, pitch int)

	exp, sigmoid, silu    func(d, a []float32)
	geluTanh, tanh        func(d, a []float32)
	add, sub, mul, div    func(d, a, b []float32)
	roundBF16, roundF16   func(d, a []float32)
	widenBF16, widenF16   func(d []float32, s []uint16)      // exact
	narrowBF16, narrowF16 func(d []uint16, s []float32)      // to nearest, ties to even
	sum                   func(acc *[4]float64, a []float32) // element i to accumulator i mod 4

	relate  func(op vec.Op, d []int64, a, b []float32)   // 1 where the comparison holds, else 0
	selects func(d []float32, c []int64, a, b []float32) // a where c is not 0, else b

	philox func(d []float32, seed, offset, index []int64) // as package philox defines
}

// bestUnit returns the unit for this processor.
func bestUnit() *unit {
	all := units()
	return all[len(all)-1]
}

// portable returns the unit in Go, for every architecture.
func portable() *unit {
	return &unit{
		name: "portable", dotsF32: dotsF32, exp: exps, sigmoid: sigmoids, silu: silus, geluTanh: geluTanhs, tanh: tanhs, add: add, sub: sub, mul: mul, div: div,
		roundBF16: roundBF16s, roundF16: roundF16s, widenBF16: widenBF16, widenF16: widenF16, narrowBF16: narrowBF16, narrowF16: narrowF16, sum: sum, relate: relation, selects: selectF,
		philox: philox.Uniforms,
	}
}

// dotsF32 multiplies and adds in the order that matmul.go defines.
func dotsF32(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, c *float32, pitch int) {
	for i := range rows {
		x := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(a), 4*i*lda)), k)
		sums := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(c), 4*i*pitch)), microCols)
		for j := range sums {
			y := unsafe.Slice((*float32)(unsafe.Add(b, 4*j*ldb)), k)
			sums[j] += dot(x, y)
		}
	}
}

// dot returns the dot product of a and b, whose length is a multiple of 8. The
// conversions prevent fused operations, so that every architecture gives the same bits.
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	b = b[:len(a)]
	for len(a) >= lanes && len(b) >= lanes {
		s0 += float32(a[0] * b[0])
		s1 += float32(a[1] * b[1])
		s2 += float32(a[2] * b[2])
		s3 += float32(a[3] * b[3])
		s4 += float32(a[4] * b[4])
		s5 += float32(a[5] * b[5])
		s6 += float32(a[6] * b[6])
		s7 += float32(a[7] * b[7])
		a, b = a[lanes:], b[lanes:]
	}
	return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
}

func add(d, a, b []float32) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] + b[i]
	}
}

func sub(d, a, b []float32) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] - b[i]
	}
}

func mul(d, a, b []float32) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] * b[i]
	}
}

func div(d, a, b []float32) {
	a, b = a[:len(d)], b[:len(d)]
	for i := range d {
		d[i] = a[i] / b[i]
	}
}

func sum(acc *[4]float64, a []float32) {
	s0, s1, s2, s3 := acc[0], acc[1], acc[2], acc[3]
	for len(a) >= 4 {
		s0 += float64(a[0])
		s1 += float64(a[1])
		s2 += float64(a[2])
		s3 += float64(a[3])
		a = a[4:]
	}
	*acc = [4]float64{s0, s1, s2, s3}
	for i, x := range a {
		acc[i] += float64(x)
	}
}
