//go:build !purego

package host

import (
	"math"
	"unsafe"

	"golang.org/x/sys/cpu"

	"pwc/internal/philox"
	"pwc/program/vec"
)

//go:generate go -C ../../internal/simd/asm run ./host -out ../../../runtime/host/simd_amd64.s -stubs ../../../runtime/host/simd_amd64.go -pkg host

// units returns the units that this processor runs, the fastest last.
func units() []*unit {
	all := []*unit{portable()}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C {
		all = append(all, avx2())
		if cpu.X86.HasAVX512F {
			all = append(all, avx512())
		}
	}
	return all
}

// avx512 is avx2 with dot products in registers of twice the size; the bits are the same.
func avx512() *unit {
	u := avx2()
	u.name, u.dotsF32, u.dotsBF16, u.dotsF16 = "avx512", avx512F32, avx512BF16, avx512F16
	return u
}

func avx2() *unit {
	return &unit{
		name: "avx2", dotsF32: avx2F32, dotsBF16: avx2BF16, dotsF16: avx2F16,
		exp: avx2Exp, sigmoid: avx2Sigmoid, silu: avx2Silu, geluTanh: avx2GeluTanh, tanh: avx2Tanh, add: avx2Add, sub: avx2Sub, mul: avx2Mul, div: avx2Div,
		roundBF16: avx2RoundBF16, roundF16: avx2RoundF16, widenBF16: avx2WidenBF16, widenF16: avx2WidenF16,
		narrowBF16: avx2NarrowBF16, narrowF16: avx2NarrowF16, sum: avx2Sum, relate: avx2Relate, selects: avx2Select,
		philox: avx2Philox,
	}
}

func avx2F32(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, c *float32, pitch int) {
	dots256F32(rows, k, a, lda, (*byte)(b), ldb, ahead, c, pitch)
}

func avx2BF16(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, c *float32, pitch int) {
	dots256BF16(rows, k, a, lda, (*byte)(b), ldb, ahead, c, pitch)
}

func avx2F16(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, c *float32, pitch int) {
	dots256F16(rows, k, a, lda, (*byte)(b), ldb, ahead, c, pitch)
}

func avx512F32(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, c *float32, pitch int) {
	dots512F32(rows, k, a, lda, (*byte)(b), ldb, ahead, c, pitch)
}

func avx512BF16(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, c *float32, pitch int) {
	dots512BF16(rows, k, a, lda, (*byte)(b), ldb, ahead, c, pitch)
}

func avx512F16(rows, k int, a *float32, lda int, b unsafe.Pointer, ldb, ahead int, c *float32, pitch int) {
	dots512F16(rows, k, a, lda, (*byte)(b), ldb, ahead, c, pitch)
}

// whole returns how many of n elements the assembly computes; the Go loops compute the
// rest.
func whole(n int) int { return n &^ (lanes - 1) }

func avx2Add(d, a, b []float32) {
	a, b = a[:len(d)], b[:len(d)]
	n := whole(len(d))
	if n > 0 {
		block8Add(n, &d[0], &a[0], &b[0])
	}
	add(d[n:], a[n:], b[n:])
}

func avx2Sub(d, a, b []float32) {
	a, b = a[:len(d)], b[:len(d)]
	n := whole(len(d))
	if n > 0 {
		block8Sub(n, &d[0], &a[0], &b[0])
	}
	sub(d[n:], a[n:], b[n:])
}

func avx2Mul(d, a, b []float32) {
	a, b = a[:len(d)], b[:len(d)]
	n := whole(len(d))
	if n > 0 {
		block8Mul(n, &d[0], &a[0], &b[0])
	}
	mul(d[n:], a[n:], b[n:])
}

func avx2Div(d, a, b []float32) {
	a, b = a[:len(d)], b[:len(d)]
	n := whole(len(d))
	if n > 0 {
		block8Div(n, &d[0], &a[0], &b[0])
	}
	div(d[n:], a[n:], b[n:])
}

func avx2RoundBF16(d []float32, s []float32) {
	s = s[:len(d)]
	n := whole(len(d))
	if n > 0 {
		round8BF16(n, &d[0], &s[0])
	}
	roundBF16s(d[n:], s[n:])
}

func avx2RoundF16(d []float32, s []float32) {
	s = s[:len(d)]
	n := whole(len(d))
	if n > 0 {
		round8F16(n, &d[0], &s[0])
	}
	roundF16s(d[n:], s[n:])
}

func avx2WidenBF16(d []float32, s []uint16) {
	s = s[:len(d)]
	n := whole(len(d))
	if n > 0 {
		widen8BF16(n, &d[0], &s[0])
	}
	widenBF16(d[n:], s[n:])
}

func avx2WidenF16(d []float32, s []uint16) {
	s = s[:len(d)]
	n := whole(len(d))
	if n > 0 {
		widen8F16(n, &d[0], &s[0])
	}
	widenF16(d[n:], s[n:])
}

func avx2NarrowBF16(d []uint16, s []float32) {
	s = s[:len(d)]
	n := whole(len(d))
	if n > 0 {
		narrow8BF16(n, &d[0], &s[0])
	}
	narrowBF16(d[n:], s[n:])
}

func avx2NarrowF16(d []uint16, s []float32) {
	s = s[:len(d)]
	n := whole(len(d))
	if n > 0 {
		narrow8F16(n, &d[0], &s[0])
	}
	narrowF16(d[n:], s[n:])
}

func avx2Sum(acc *[4]float64, a []float32) {
	n := whole(len(a))
	if n > 0 {
		sum8(n, acc, &a[0])
	}
	sum(acc, a[n:])
}

func avx2Exp(d, a []float32) {
	a = a[:len(d)]
	n := whole(len(d))
	if n > 0 {
		exp8(n, &d[0], &a[0], &exp2Table)
	}
	exps(d[n:], a[n:])
}

func avx2Sigmoid(d, a []float32) {
	a = a[:len(d)]
	n := whole(len(d))
	if n > 0 {
		sigmoid8(n, &d[0], &a[0], &exp2Table)
	}
	sigmoids(d[n:], a[n:])
}

func avx2Silu(d, a []float32) {
	a = a[:len(d)]
	n := whole(len(d))
	if n > 0 {
		silu8(n, &d[0], &a[0], &exp2Table)
	}
	silus(d[n:], a[n:])
}

func avx2GeluTanh(d, a []float32) {
	a = a[:len(d)]
	n := whole(len(d))
	if n > 0 {
		geluTanh8(n, &d[0], &a[0], &exp2Table)
	}
	geluTanhs(d[n:], a[n:])
}

func avx2Tanh(d, a []float32) {
	a = a[:len(d)]
	n := whole(len(d))
	if n > 0 {
		tanh8(n, &d[0], &a[0], &exp2Table)
	}
	tanhs(d[n:], a[n:])
}

func avx2Relate(op vec.Op, d []int64, a, b []float32) {
	a, b = a[:len(d)], b[:len(d)]
	n := whole(len(d))
	if n > 0 {
		switch op {
		case vec.OpEq:
			relate8Eq(n, &d[0], &a[0], &b[0])
		case vec.OpNe:
			relate8Ne(n, &d[0], &a[0], &b[0])
		case vec.OpLt:
			relate8Lt(n, &d[0], &a[0], &b[0])
		case vec.OpLe:
			relate8Le(n, &d[0], &a[0], &b[0])
		case vec.OpGt:
			relate8Gt(n, &d[0], &a[0], &b[0])
		case vec.OpGe:
			relate8Ge(n, &d[0], &a[0], &b[0])
		}
	}
	relation(op, d[n:], a[n:], b[n:])
}

func avx2Select(d []float32, c []int64, a, b []float32) {
	c, a, b = c[:len(d)], a[:len(d)], b[:len(d)]
	n := whole(len(d))
	if n > 0 {
		select8(n, &d[0], &c[0], &a[0], &b[0])
	}
	selectF(d[n:], c[n:], a[n:], b[n:])
}

// philoxRun is the least number of consecutive indices for which the assembly is used: it
// makes 32 numbers together, from the start of a Philox block on.
const philoxRun = 64

func avx2Philox(d []float32, seed, offset, index []int64) {
	seed, offset, index = seed[:len(d)], offset[:len(d)], index[:len(d)]
	for len(d) > 0 {
		n := 1 // numbers of one sequence with consecutive indices, as unsigned integers
		for n < len(d) && seed[n] == seed[0] && offset[n] == offset[0] && index[n] == index[n-1]+1 && index[n] != 0 {
			n++
		}
		first, whole := 0, 0
		if n >= philoxRun {
			first = int(-index[0] & 3)
			whole = (n - first) &^ 31
			table := philoxTable(seed[0], offset[0], uint64(index[first])>>2)
			philox32(whole, &d[first], &table)
		}
		philox.Uniforms(d[:first], seed, offset, index)
		philox.Uniforms(d[first+whole:n], seed[first+whole:], offset[first+whole:], index[first+whole:])
		d, seed, offset, index = d[n:], seed[n:], offset[n:], index[n:]
	}
}

// philoxTable returns the table for philox32, for numbers from the start of a block on.
func philoxTable(seed, offset int64, block uint64) (t [26]uint64) {
	k0, k1 := uint32(seed), uint32(uint64(seed)>>32)
	for i := range philox.Rounds {
		t[i] = uint64(k0) | uint64(k1)<<32
		k0, k1 = k0+philox.W0, k1+philox.W1
	}
	o := uint64(offset) >> 2
	t[10], t[11] = o&(1<<32-1), o>>32
	for i := range uint64(4) {
		t[12+i], t[16+i] = block+i, 4
		scale := uint64(math.Float32bits(1.0 / (1 << 24)))
		t[22+i] = scale | scale<<32
	}
	t[20], t[21] = philox.M0, philox.M1
	return t
}
