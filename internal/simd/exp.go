package simd

import "math"

// The exponential of numbers that are not above zero follows expf of Cephes (S. Moshier,
// single/expf.c): x = k·ln2 + r, with ln2 in two parts so that r is exact to float32, and a
// polynomial of degree seven in r. The relative error is below 2^-22.
const (
	expLeast = -87 // for smaller x the result is 0: e^-87 = 2^-125.5 is near the least normal float32
	expShift = 0x1.8p23
	expLn2Hi = 0.693359375
	expLn2Lo = -2.12194440e-4
	expC0    = 1.9875691500e-4
	expC1    = 1.3981999507e-3
	expC2    = 8.3334519073e-3
	expC3    = 4.1665795894e-2
	expC4    = 1.6666665459e-1
	expC5    = 5.0000001201e-1
)

// exp returns e to the x for x <= 0 and NaN. The conversions prevent fused operations, so that
// every architecture gives the same bits.
func exp(x float32) float32 {
	if x != x {
		return math.Float32frombits(math.MaxUint32)
	}
	if x < expLeast {
		return 0
	}
	z := float32(x*math.Log2E) + expShift
	k := z - expShift
	r := x - float32(k*expLn2Hi)
	r -= float32(k * expLn2Lo)
	y := float32(expC0)
	for _, c := range [...]float32{expC1, expC2, expC3, expC4, expC5} {
		y = float32(y*r) + c
	}
	y = float32(y*float32(r*r)) + r + 1
	return math.Float32frombits(math.Float32bits(y) + math.Float32bits(z)<<23)
}

// The hyperbolic tangent follows tanhf of Cephes (S. Moshier, single/tanhf.c): a polynomial in x²
// for small x. Larger ones are (1-e)/(1+e) with e = exp(-2|x|). The relative error is below 2^-21.
const (
	tanhSmall = 0.625
	tanhC0    = -5.70498872745e-3
	tanhC1    = 2.06390887954e-2
	tanhC2    = -5.37397155531e-2
	tanhC3    = 1.33314422036e-1
	tanhC4    = -3.33332819422e-1
)

// tanh gives the same bits on every architecture, as exp does. The result gets the sign bit of x,
// also if x is zero or NaN.
func tanh(x float32) float32 {
	const sign = 1 << 31
	bits := math.Float32bits(x)
	z := math.Float32frombits(bits &^ sign)
	var y float32
	if z < tanhSmall {
		s := float32(x * x)
		y = float32(tanhC0)
		for _, c := range [...]float32{tanhC1, tanhC2, tanhC3, tanhC4} {
			y = float32(y*s) + c
		}
		y = float32(float32(y*s)*x) + x
	} else {
		e := exp(-2 * z)
		y = (1 - e) / (1 + e)
	}
	return math.Float32frombits(math.Float32bits(y) | bits&sign)
}
