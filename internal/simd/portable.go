package simd

import (
	"unsafe"

	"pwc/ir/dtype"
)

func mulAdd(rows, cols, depth int, a *float32, lda int, b Matrix, c *float32, ldc int) {
	var wide [Panel]float32
	for p := range depth {
		y := wide[:cols]
		switch b.DType {
		case dtype.BF16:
			widenBF16(y, b.bits(p*b.Pitch, cols))
		case dtype.F16:
			widenF16(y, b.bits(p*b.Pitch, cols))
		default:
			y = b.floats(p*b.Pitch, cols)
		}
		for i := range rows {
			x := *(*float32)(unsafe.Add(unsafe.Pointer(a), 4*(i*lda+p)))
			sums := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(c), 4*i*ldc)), cols)
			for j, v := range y {
				sums[j] += float32(x * v)
			}
		}
	}
}

func turn(n int, d *float32, s Matrix) {
	to := unsafe.Slice(d, (n-1)*Panel+lanes)
	for i := range lanes {
		switch s.DType {
		case dtype.BF16:
			for e, v := range s.bits(i*s.Pitch, n) {
				to[e*Panel+i] = dtype.BF16ToF32(v)
			}
		case dtype.F16:
			for e, v := range s.bits(i*s.Pitch, n) {
				to[e*Panel+i] = dtype.F16ToF32(v)
			}
		default:
			for e, v := range s.floats(i*s.Pitch, n) {
				to[e*Panel+i] = v
			}
		}
	}
}

func widenBF16(d []float32, s []uint16) {
	for i, v := range s[:len(d)] {
		d[i] = dtype.BF16ToF32(v)
	}
}

func widenF16(d []float32, s []uint16) {
	for i, v := range s[:len(d)] {
		d[i] = dtype.F16ToF32(v)
	}
}

func scale(d []float32, x float32) {
	for i := range d {
		d[i] *= x
	}
}

func blend(d, s []float32, x, y float32) {
	s = s[:len(d)]
	for i := range d {
		d[i] = float32(d[i]*x) + float32(s[i]*y)
	}
}

func largest(s []float32, top *[lanes]float32) {
	for i, x := range s {
		if x > top[i%lanes] {
			top[i%lanes] = x
		}
	}
}

func weigh(d []float32, top float32, sums *[lanes]float32) {
	for i, x := range d {
		d[i] = exp(x - top)
		sums[i%lanes] += d[i]
	}
}

func softcap(d []float32, limit float32) {
	for i, x := range d {
		d[i] = limit * tanh(x/limit)
	}
}
