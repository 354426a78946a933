package host

import "unsafe"

// portable are the micro kernels for every architecture. Narrow operands are
// converted before, so there are none for them.
func portable() *microKernels {
	return &microKernels{name: "portable", f32: dotsF32, widenBF16: widenBF16, widenF16: widenF16}
}

// dotsF32 multiplies and adds in the order that matmul.go defines.
func dotsF32(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb int, out *sums) {
	for i := range rows {
		x := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(a), 4*i*lda)), k)
		for j := range microCols {
			y := unsafe.Slice((*float32)(unsafe.Add(b, 4*j*ldb)), k)
			out[i*microCols+j] = dot(x, y)
		}
	}
}

// dot returns the dot product of a and b, whose length is a multiple of 8. The
// conversions forbid fusing, so that every architecture gives the same bits.
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
