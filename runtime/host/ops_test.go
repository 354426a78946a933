package host

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

var (
	inf     = math.Inf(1)
	nan     = math.NaN()
	negZero = math.Copysign(0, -1)
	tiny    = 0x1p-149 // the smallest float32
	huge    = float64(math.MaxFloat32)
)

// same is equality that knows NaN and the sign of zero.
func same(a, b float64) bool {
	return a == b && math.Signbit(a) == math.Signbit(b) || a != a && b != b
}

func TestUnaryByHand(t *testing.T) {
	d := openDevice(t, 1)
	for _, c := range []struct {
		op       vec.Op
		in, want []float64
	}{
		{vec.OpMoveF, []float64{nan, negZero, tiny}, []float64{nan, negZero, tiny}},
		{vec.OpRoundBF16, []float64{1 + 0x1p-8, 1 + 3*0x1p-8, huge, -inf, nan, negZero}, []float64{1, 1 + 0x1p-6, inf, -inf, nan, negZero}},
		{vec.OpRoundF16, []float64{65519, 65520, 0x1p-25, 0x1.8p-25, -0x1p-24, nan}, []float64{65504, inf, 0, 0x1p-24, -0x1p-24, nan}},
		{vec.OpNeg, []float64{0, 1, -inf, nan}, []float64{negZero, -1, inf, nan}},
		{vec.OpAbs, []float64{negZero, -tiny, -inf, nan}, []float64{0, tiny, inf, nan}},
		{vec.OpSign, []float64{-tiny, 0, negZero, inf, nan}, []float64{-1, 0, 0, 1, nan}},
		{vec.OpExp, []float64{0, negZero, 1, -inf, inf, nan, 89, -104, -1e30, 1e30}, []float64{1, 1, float64(float32(math.E)), 0, inf, nan, inf, 0, 0, inf}},
		{vec.OpLog, []float64{1, 0, negZero, -1, inf, nan}, []float64{0, -inf, -inf, nan, inf, nan}},
		{vec.OpSqrt, []float64{4, negZero, -1, inf}, []float64{2, negZero, nan, inf}},
		{vec.OpRsqrt, []float64{4, 0, negZero, -1, inf}, []float64{0.5, inf, -inf, nan, 0}},
		{vec.OpReciprocal, []float64{4, 0, negZero, -inf, nan}, []float64{0.25, inf, -inf, negZero, nan}},
		{vec.OpSin, []float64{0, negZero, inf}, []float64{0, negZero, nan}},
		{vec.OpCos, []float64{0, inf}, []float64{1, nan}},
		{vec.OpTanh, []float64{0, negZero, tiny, inf, -inf, 1e30, nan}, []float64{0, negZero, tiny, 1, -1, 1, nan}},
		{vec.OpErf, []float64{0, inf, -inf, nan}, []float64{0, 1, -1, nan}},
		{vec.OpSigmoid, []float64{0, inf, -inf, nan, -1e30}, []float64{0.5, 1, 0, nan, 0}},
		{vec.OpSilu, []float64{0, negZero, inf, -inf, nan, -1e38}, []float64{0, negZero, inf, nan, nan, negZero}},
		{vec.OpGelu, []float64{0, inf, -inf, nan}, []float64{0, inf, nan, nan}},
		{vec.OpGeluTanh, []float64{0, inf, -inf, nan, -1e38}, []float64{0, inf, nan, nan, negZero}},
		{vec.OpRelu, []float64{-1, negZero, 2, nan, -inf}, []float64{0, 0, 2, nan, 0}},
		{vec.OpFloor, []float64{-0.5, 1.5, negZero, inf, nan}, []float64{-1, 1, negZero, inf, nan}},
		{vec.OpCeil, []float64{-0.5, 1.5, nan}, []float64{negZero, 2, nan}},
		{vec.OpRoundEven, []float64{0.5, 1.5, 2.5, -0.5}, []float64{0, 2, 2, negZero}},
	} {
		l := load(t, d, pointwiseF(int64(len(c.in)), c.op, 1), floats(dtype.F32, c.in...), empty(dtype.F32, len(c.in)))
		for i, got := range l.run(t, 1).values() {
			if !same(got, c.want[i]) {
				t.Errorf("%s(%v) = %v, want %v", c.op, c.in[i], got, c.want[i])
			}
		}
	}
}

func TestBinaryByHand(t *testing.T) {
	d := openDevice(t, 1)
	for _, c := range []struct {
		op         vec.Op
		a, b, want float64
	}{
		{vec.OpAdd, 1, 0x1p-24, 1}, {vec.OpAdd, huge, huge, inf}, {vec.OpAdd, inf, -inf, nan}, {vec.OpAdd, negZero, negZero, negZero},
		{vec.OpSub, tiny, tiny, 0}, {vec.OpMul, tiny, 0.5, 0}, {vec.OpMul, inf, 0, nan}, {vec.OpMul, 0x1.000002p0, 0x1.000002p0, 0x1.000004p0},
		{vec.OpDiv, 1, 0, inf}, {vec.OpDiv, 0, 0, nan}, {vec.OpDiv, 1, 3, float64(float32(1.0 / 3))},
		{vec.OpRem, 5.5, 2, 1.5}, {vec.OpRem, -5.5, 2, -1.5}, {vec.OpRem, 5.5, -2, 1.5}, {vec.OpRem, 1, 0, nan}, {vec.OpRem, 1e30, 3, math.Mod(float64(float32(1e30)), 3)}, {vec.OpRem, 3, inf, 3},
		{vec.OpPow, 2, 0.5, float64(float32(math.Sqrt2))}, {vec.OpPow, nan, 0, 1}, {vec.OpPow, -8, 1.0 / 3, nan}, {vec.OpPow, 0, -1, inf}, {vec.OpPow, 2, 200, inf},
		{vec.OpMax, 1, nan, nan}, {vec.OpMax, nan, 1, nan}, {vec.OpMax, negZero, 0, 0}, {vec.OpMax, -inf, -1, -1},
		{vec.OpMin, 1, nan, nan}, {vec.OpMin, nan, 1, nan}, {vec.OpMin, 0, negZero, negZero}, {vec.OpMin, inf, 1, 1},
	} {
		l := load(t, d, pointwiseF(1, c.op, 2), floats(dtype.F32, c.a), floats(dtype.F32, c.b), empty(dtype.F32, 1))
		if got := l.run(t, 2).values()[0]; !same(got, c.want) {
			t.Errorf("%s(%v, %v) = %v, want %v", c.op, c.a, c.b, got, c.want)
		}
	}
}

// ulps is the distance of got from the exact value, in units of the last place
// of float32 there; 0 if got is the nearest float32.
func ulps(got float32, exact float64) float64 {
	if got == float32(exact) || exact != exact && got != got {
		return 0
	}
	_, e := math.Frexp(exact)
	return math.Abs(float64(got)-exact) / math.Ldexp(1, max(e-24, -149))
}

// TestTranscendental compares with package math over the whole range.
func TestTranscendental(t *testing.T) {
	d := openDevice(t, 1)
	const n = 1 << 14
	silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
	for _, c := range []struct {
		op   vec.Op
		want func(float64) float64
		most float64
	}{
		{vec.OpExp, math.Exp, 0.51}, {vec.OpLog, math.Log, 0.51}, {vec.OpTanh, math.Tanh, 0.51}, {vec.OpErf, math.Erf, 0.51},
		{vec.OpSigmoid, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, 0.51},
		{vec.OpSilu, silu, 0.51},
		{vec.OpGelu, func(x float64) float64 { return x * math.Erfc(-x/math.Sqrt2) / 2 }, 0.51},
		{vec.OpGeluTanh, func(x float64) float64 {
			return x / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		}, 0.51},
		{vec.OpRsqrt, func(x float64) float64 { return 1 / math.Sqrt(x) }, 0.51},
		{vec.OpSin, math.Sin, 0.51}, {vec.OpCos, math.Cos, 0.51},
	} {
		r := rand.New(rand.NewPCG(1, uint64(c.op)))
		in, out := make([]float32, n), make([]float32, n)
		for i := range in {
			switch i % 3 {
			case 0:
				in[i] = math.Float32frombits(r.Uint32())
			case 1:
				in[i] = float32(r.NormFloat64() * 4)
			default:
				in[i] = float32(r.NormFloat64() * 60)
			}
		}
		k := pointwiseF(n, c.op, 1)
		bits := make([]float64, n)
		for i, x := range in {
			bits[i] = float64(x)
		}
		for i, v := range load(t, d, k, floats(dtype.F32, bits...), empty(dtype.F32, n)).run(t, 1).values() {
			out[i] = float32(v)
		}
		for i, x := range in {
			if e := ulps(out[i], c.want(float64(x))); !(e <= c.most) {
				t.Errorf("%s(%v) = %v, want %v: %.3f ulp", c.op, x, out[i], c.want(float64(x)), e)
				break
			}
		}
	}
}

// TestIntegersToFloat32 holds both roundings of integers, and loads of integers as float32, to math/big's.
func TestIntegersToFloat32(t *testing.T) {
	d := openDevice(t, 1)
	xs := []int64{0, 1, -1, math.MaxInt64, math.MinInt64, math.MinInt64 + 1}
	r := rand.New(rand.NewPCG(3, 4))
	for e := range 63 { // around powers of two, and where bits are dropped
		for _, low := range []int64{-2, -1, 0, 1, 2, int64(1) << max(e-24, 0), int64(1)<<max(e-23, 0) - 1, int64(3) << max(e-24, 0), r.Int64() >> (63 - e)} {
			xs = append(xs, int64(1)<<e+low, -(int64(1)<<e + low))
		}
	}
	n := int64(len(xs))
	for _, op := range []vec.Op{vec.OpItoF, vec.OpItoFOdd, vec.OpLoadF} {
		body := []vec.Instr{{Op: vec.OpLoadI}, {Op: op}, {Op: vec.OpStoreF, X: 1}}
		if op == vec.OpLoadF {
			body = body[1:]
		}
		k := &vec.Kernel{Args: 2, Loop: vec.Loop{Inner: testkit.Consts(n), Access: []vec.Access{flat(0, dtype.I64), flat(1, dtype.F32)}, Regs: vec.RegCount{F: 1, I: 1},
			Phases: []vec.Phase{{Body: body}}}}
		l := load(t, d, k, integers(dtype.I64, xs...), empty(dtype.F32, len(xs)))
		for i, got := range l.run(t, 1).values() {
			exact := new(big.Float).SetInt64(xs[i])
			want, _ := exact.Float32()
			if cut := new(big.Float).SetPrec(24).SetMode(big.ToZero).Set(exact); op == vec.OpItoFOdd && cut.Acc() != big.Exact {
				f, _ := cut.Float32()
				want = math.Float32frombits(math.Float32bits(f) | 1)
			}
			if got != float64(want) {
				t.Errorf("%s(%d) = %v, want %v", op, xs[i], got, want)
			}
		}
	}
}

func TestHalves(t *testing.T) {
	for b := range 1 << 16 {
		u := uint16(b)
		if x, want := fromF16(u), dtype.F16ToF32(u); x != want && (x == x || want == want) {
			t.Fatalf("f16 %#x = %v, want %v", u, x, want)
		}
		if x, want := fromBF16(u), dtype.BF16ToF32(u); math.Float32bits(x) != math.Float32bits(want) {
			t.Fatalf("bf16 %#x = %v, want %v", u, x, want)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	check := func(x float32) {
		if got, want := f16(x), dtype.F32ToF16(x); got != want && (x == x || fromF16(got) == fromF16(got)) {
			t.Fatalf("f16(%v) = %#x, want %#x", x, got, want)
		}
		if got, want := bf16(x), dtype.F32ToBF16(x); got != want {
			t.Fatalf("bf16(%v) = %#x, want %#x", x, got, want)
		}
	}
	for range 1 << 18 {
		check(math.Float32frombits(r.Uint32()))
	}
	for b := range 1 << 15 { // around the ties of normal numbers in f16
		x := dtype.F16ToF32(uint16(b))
		for _, d := range []int32{-1, 0, 1} {
			mid := math.Float32bits(x) + 1<<12
			check(math.Float32frombits(uint32(int32(mid) + d)))
		}
	}
}
