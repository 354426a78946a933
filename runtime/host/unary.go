package host

import (
	"math"

	"pwc/program/vec"
)

var nan32 = float32(math.NaN())

// unaryF computes the float ops of one operand that no loop of a unit computes. Each rounds once to float32.
// Transcendental ops compute in float64, which is as fast on a scalar unit, with an
// error of at most 0.51 ulp of the result.
func unaryF(op vec.Op, d, a []float32) {
	a = a[:len(d)]
	switch op {
	case vec.OpMoveF:
		copy(d, a)
	case vec.OpNeg:
		for i := range d {
			d[i] = -a[i]
		}
	case vec.OpAbs:
		for i := range d {
			d[i] = math.Float32frombits(math.Float32bits(a[i]) &^ (1 << 31))
		}
	case vec.OpSign:
		for i, x := range a {
			switch {
			case x > 0:
				d[i] = 1
			case x < 0:
				d[i] = -1
			case x == 0:
				d[i] = 0
			default:
				d[i] = x
			}
		}
	case vec.OpLog:
		for i, x := range a {
			d[i] = float32(math.Log(float64(x)))
		}
	case vec.OpSqrt:
		for i, x := range a {
			d[i] = float32(math.Sqrt(float64(x)))
		}
	case vec.OpRsqrt:
		for i, x := range a {
			d[i] = float32(1 / math.Sqrt(float64(x)))
		}
	case vec.OpReciprocal:
		for i, x := range a {
			d[i] = 1 / x
		}
	case vec.OpSin:
		for i, x := range a {
			d[i] = float32(math.Sin(float64(x)))
		}
	case vec.OpCos:
		for i, x := range a {
			d[i] = float32(math.Cos(float64(x)))
		}
	case vec.OpErf:
		for i, x := range a {
			d[i] = float32(math.Erf(float64(x)))
		}
	case vec.OpGelu:
		for i, x := range a {
			d[i] = float32(0.5 * float64(x) * math.Erfc(float64(x)*-math.Sqrt2/2))
		}
	case vec.OpRelu:
		for i, x := range a {
			if x <= 0 {
				x = 0
			}
			d[i] = x
		}
	case vec.OpFloor:
		for i, x := range a {
			d[i] = float32(math.Floor(float64(x)))
		}
	case vec.OpCeil:
		for i, x := range a {
			d[i] = float32(math.Ceil(float64(x)))
		}
	case vec.OpRoundEven:
		for i, x := range a {
			d[i] = float32(math.RoundToEven(float64(x)))
		}
	}
}

func exps(d, a []float32) {
	a = a[:len(d)]
	for i, x := range a {
		d[i] = float32(exp(clampExp(float64(x))))
	}
}

func sigmoids(d, a []float32) {
	a = a[:len(d)]
	for i, x := range a {
		d[i] = float32(1 / (1 + exp(clampExp(-float64(x)))))
	}
}

func silus(d, a []float32) {
	a = a[:len(d)]
	for i, x := range a {
		d[i] = float32(float64(x) / (1 + exp(clampExp(-float64(x)))))
		if x < -math.MaxFloat32 {
			d[i] = nan32 // -Inf·0
		}
	}
}

func geluTanhs(d, a []float32) {
	a = a[:len(d)]
	for i, x := range a {
		// (1 + tanh(z/2))/2 = 1/(1 + exp(-z))
		x := float64(x)
		z := 2 * math.Sqrt2 / math.SqrtPi * (x + float64(0.044715*x*x*x))
		d[i] = float32(x / (1 + exp(clampExp(-z))))
		if x < -math.MaxFloat32 {
			d[i] = nan32
		}
	}
}

func tanhs(d, a []float32) {
	a = a[:len(d)]
	for i, x := range a {
		d[i] = float32(tanh(float64(x)))
	}
}

// The exponential follows expf of Arm's optimized routines (v21.02,
// math/expf.c): x = k·ln2/32 + r, exp(x) = 2^(k/32)·p(r) with a table of
// 2^(i/32) and a cubic p. The relative error before the final rounding is below
// 2^-33.
const (
	expBits  = 5
	expTable = 1 << expBits
	expShift = 0x1.8p52 // adding it rounds to an integer in the low bits
	invLn2N  = 1 / math.Ln2 * expTable
	expC0    = 0x1.c6af84b912394p-5 / expTable / expTable / expTable
	expC1    = 0x1.ebfce50fac4f3p-3 / expTable / expTable
	expC2    = 0x1.62e42ff0c52d6p-1 / expTable

	// expMax keeps the result finite in float64. For every float32 beyond it, the exponential is
	// infinite or zero in float32.
	expMax = 700
)

// exp2Table[i] is the bits of 2^(i/32) less i<<52/32, so that adding k<<52/32 scales by two to the
// integer part of k/32. It is never written.
var exp2Table = func() (t [expTable]uint64) {
	for i := range t {
		t[i] = math.Float64bits(math.Exp2(float64(i)/expTable)) - uint64(i)<<(52-expBits)
	}
	return t
}()

// exp returns e to the x, with about 33 correct bits, for |x| <= expMax and NaN. Callers clamp
// larger x by clampExp. The conversions prevent fused operations; the assembly does not fuse.
func exp(x float64) float64 {
	z := float64(x * invLn2N)
	kd := z + expShift
	k := math.Float64bits(kd)
	r := z - (kd - expShift)
	p := float64((float64(expC0*r)+expC1)*float64(r*r)) + (float64(expC2*r) + 1)
	return float64(p * math.Float64frombits(exp2Table[k%expTable]+k<<(52-expBits)))
}

// clampExp keeps NaN.
func clampExp(x float64) float64 { return max(min(x, expMax), -expMax) }

// tanh for small arguments is the rational function of Cephes (S. Moshier,
// tanh.c), as in package math; above it, 1 - 2/(exp(2x)+1). The
// conversions prevent fused operations.
func tanh(x float64) float64 {
	z := math.Abs(x)
	if z < 0.625 {
		if x == 0 {
			return x // keeps -0
		}
		s := float64(x * x)
		p := float64((float64(-9.64399179425052238628e-1*s)-9.92877231001918586564e1)*s) - 1.61468768441708447952e3
		q := float64((float64((s+1.12811678491632931402e2)*s)+2.23548839060100448583e3)*s) + 4.84406305325125486048e3
		return x + x*s*p/q
	}
	return math.Copysign(1-2/(exp(clampExp(2*z))+1), x)
}
