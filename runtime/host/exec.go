package host

import (
	"math"
	"math/bits"

	"pwc/ir/dtype"
	"pwc/program/vec"
)

// exec runs instructions on blocks of n elements. Scalar instructions run with n = 1.
func (fr *frame) exec(list []inst, n int) {
	for pc := range list {
		in := &list[pc]
		switch in.op {
		case vec.OpLoadF:
			fr.loadF(in.x, fr.f[in.dst:in.dst+n])
		case vec.OpLoadI:
			fr.loadI(in.x, fr.i[in.dst:in.dst+n])
		case vec.OpStoreF:
			fr.storeF(in.x, fr.f[in.a:in.a+n])
		case vec.OpStoreI:
			fr.storeI(in.x, fr.i[in.a:in.a+n])
		case vec.OpConstF:
			fillF(fr.f[in.dst:in.dst+n], in.f)
		case vec.OpConstI:
			fillI(fr.i[in.dst:in.dst+n], in.i)
		case vec.OpSplatF:
			fillF(fr.f[in.dst:in.dst+n], fr.sf[in.a])
		case vec.OpSplatI:
			fillI(fr.i[in.dst:in.dst+n], fr.si[in.a])
		case vec.OpAcc:
			at := fr.column - fr.sumsAt
			copy(fr.f[in.dst:in.dst+n], fr.sums[at:at+int64(n)])
		case vec.OpMoveI, vec.OpNegI, vec.OpAbsI, vec.OpSignI, vec.OpReluI, vec.OpNot, vec.OpNotB:
			unaryI(in.op, fr.i[in.dst:in.dst+n], fr.i[in.a:in.a+n])
		case vec.OpWrap:
			wrap(in.dtype, fr.i[in.dst:in.dst+n], fr.i[in.a:in.a+n])
		case vec.OpItoF:
			itof(fr.f[in.dst:in.dst+n], fr.i[in.a:in.a+n])
		case vec.OpItoFOdd:
			itofOdd(fr.f[in.dst:in.dst+n], fr.i[in.a:in.a+n])
		case vec.OpPhilox:
			fr.unit.philox(fr.f[in.dst:in.dst+n], fr.i[in.a:in.a+n], fr.i[in.b:in.b+n], fr.i[in.c:in.c+n])
		case vec.OpFtoI:
			ftoi(in.dtype, fr.i[in.dst:in.dst+n], fr.f[in.a:in.a+n])
		case vec.OpRoundBF16:
			fr.unit.roundBF16(fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n])
		case vec.OpRoundF16:
			fr.unit.roundF16(fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n])
		case vec.OpExp:
			fr.unit.exp(fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n])
		case vec.OpSigmoid:
			fr.unit.sigmoid(fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n])
		case vec.OpSilu:
			fr.unit.silu(fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n])
		case vec.OpGeluTanh:
			fr.unit.geluTanh(fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n])
		case vec.OpTanh:
			fr.unit.tanh(fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n])
		case vec.OpAdd:
			fr.unit.add(fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n], fr.f[in.b:in.b+n])
		case vec.OpSub:
			fr.unit.sub(fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n], fr.f[in.b:in.b+n])
		case vec.OpMul:
			fr.unit.mul(fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n], fr.f[in.b:in.b+n])
		case vec.OpDiv:
			fr.unit.div(fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n], fr.f[in.b:in.b+n])
		case vec.OpRem, vec.OpPow, vec.OpMax, vec.OpMin:
			binaryF(in.op, fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n], fr.f[in.b:in.b+n])
		case vec.OpSelectF:
			fr.unit.selects(fr.f[in.dst:in.dst+n], fr.i[in.c:in.c+n], fr.f[in.a:in.a+n], fr.f[in.b:in.b+n])
		case vec.OpSelectI:
			selectI(fr.i[in.dst:in.dst+n], fr.i[in.c:in.c+n], fr.i[in.a:in.a+n], fr.i[in.b:in.b+n])
		case vec.OpAddI, vec.OpSubI, vec.OpMulI, vec.OpDivI, vec.OpRemI, vec.OpMaxI, vec.OpMinI, vec.OpAnd, vec.OpOr, vec.OpXor,
			vec.OpEqI, vec.OpNeI, vec.OpLtI, vec.OpLeI, vec.OpGtI, vec.OpGeI:
			binaryI(in.op, fr.i[in.dst:in.dst+n], fr.i[in.a:in.a+n], fr.i[in.b:in.b+n])
		case vec.OpEq, vec.OpNe, vec.OpLt, vec.OpLe, vec.OpGt, vec.OpGe:
			fr.unit.relate(in.op, fr.i[in.dst:in.dst+n], fr.f[in.a:in.a+n], fr.f[in.b:in.b+n])
		case vec.OpSum:
			fr.unit.sum(&fr.state[in.slot].acc, fr.f[in.a:in.a+n])
		case vec.OpProd, vec.OpRMax, vec.OpRMin, vec.OpArgMax:
			fr.state[in.slot].addF(in.op, fr.f[in.a:in.a+n])
		case vec.OpSumI, vec.OpProdI, vec.OpRMaxI, vec.OpRMinI, vec.OpArgMaxI:
			fr.state[in.slot].addI(in.op, fr.i[in.a:in.a+n])
		case vec.OpCumSum:
			fr.state[in.slot].scanF(fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n])
		case vec.OpCumSumI:
			fr.state[in.slot].scanI(fr.i[in.dst:in.dst+n], fr.i[in.a:in.a+n])
		default:
			unaryF(in.op, fr.f[in.dst:in.dst+n], fr.f[in.a:in.a+n])
		}
	}
}

// opCost returns the approximate time of an op for an element, in nanoseconds, by which
// split divides work.
func opCost(op vec.Op) float64 {
	switch op {
	case vec.OpExp, vec.OpSigmoid, vec.OpSilu, vec.OpTanh, vec.OpGeluTanh, vec.OpPhilox:
		return 4
	case vec.OpLog, vec.OpSin, vec.OpCos, vec.OpErf, vec.OpGelu, vec.OpPow, vec.OpRem:
		return 16
	case vec.OpStoreF, vec.OpLoadF, vec.OpDiv, vec.OpDivI, vec.OpRemI, vec.OpItoFOdd:
		return 1
	}
	return 0.5
}

func fillF(d []float32, v float32) {
	for i := range d {
		d[i] = v
	}
}

func fillI(d []int64, v int64) {
	for i := range d {
		d[i] = v
	}
}

func selectF(d []float32, c []int64, a, b []float32) {
	c, a, b = c[:len(d)], a[:len(d)], b[:len(d)]
	for i := range d {
		v := b[i]
		if c[i] != 0 {
			v = a[i]
		}
		d[i] = v
	}
}

func selectI(d, c, a, b []int64) {
	c, a, b = c[:len(d)], a[:len(d)], b[:len(d)]
	for i := range d {
		v := b[i]
		if c[i] != 0 {
			v = a[i]
		}
		d[i] = v
	}
}

func itof(d []float32, a []int64) {
	a = a[:len(d)]
	for i := range d {
		d[i] = nearest(a[i])
	}
}

// nearest rounds to the nearest float32. On 32-bit architectures Go's conversion does not: for
// numbers from 2^46 to 2^48, runtime.uint64tofloat32 (Go 1.26) sets a bit within the 24 bits of
// the significand. There nearest first rounds to odd as float64, and then to float32.
func nearest(x int64) float32 {
	if bits.UintSize == 64 {
		return float32(x)
	}
	return float32(float64(odd(x, 53)))
}

func itofOdd(d []float32, a []int64) {
	a = a[:len(d)]
	for i, x := range a {
		d[i] = float32(odd(x, 24))
	}
}

// odd rounds x to a number of at most keep significant bits, by rounding to odd: it clears the
// lower bits, and sets the lowest kept bit if one of the cleared bits was set. This is right
// for negative x in two's complement, too: clearing bits rounds down, and of the two
// neighbours, setting the lowest kept bit gives the odd one.
func odd(x int64, keep int) int64 {
	if n := bits.Len64(magnitude(x)) - keep; n > 0 {
		if low := int64(1)<<n - 1; x&low != 0 {
			return x&^low | 1<<n
		}
	}
	return x
}

func magnitude(x int64) uint64 {
	if x < 0 {
		return -uint64(x)
	}
	return uint64(x)
}

// ftoi truncates and saturates; NaN gives 0. As a bool every x but 0 gives 1.
func ftoi(dt dtype.DType, d []int64, a []float32) {
	a = a[:len(d)]
	if dt == dtype.Bool {
		for i, x := range a {
			d[i] = truth(x != 0)
		}
		return
	}
	lo, hi := dt.IntLimits()
	// As float32, lo is exact, and hi is exact or rounds up to hi+1. So values at or beyond the
	// rounded bounds saturate.
	flo, fhi := float32(lo), float32(hi)
	for i, x := range a {
		switch {
		case x != x:
			d[i] = 0
		case x >= fhi:
			d[i] = hi
		case x <= flo:
			d[i] = lo
		default:
			d[i] = int64(x)
		}
	}
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func wrap(dt dtype.DType, d, a []int64) {
	a = a[:len(d)]
	switch dt {
	case dtype.I8:
		for i := range d {
			d[i] = int64(int8(a[i]))
		}
	case dtype.U8:
		for i := range d {
			d[i] = int64(uint8(a[i]))
		}
	case dtype.I16:
		for i := range d {
			d[i] = int64(int16(a[i]))
		}
	case dtype.I32:
		for i := range d {
			d[i] = int64(int32(a[i]))
		}
	case dtype.Bool:
		for i := range d {
			d[i] = truth(a[i] != 0)
		}
	default:
		copy(d, a)
	}
}

func relation(op vec.Op, d []int64, a, b []float32) {
	a, b = a[:len(d)], b[:len(d)]
	switch op {
	case vec.OpEq:
		for i := range d {
			d[i] = truth(a[i] == b[i])
		}
	case vec.OpNe:
		for i := range d {
			d[i] = truth(a[i] != b[i])
		}
	case vec.OpLt:
		for i := range d {
			d[i] = truth(a[i] < b[i])
		}
	case vec.OpLe:
		for i := range d {
			d[i] = truth(a[i] <= b[i])
		}
	case vec.OpGt:
		for i := range d {
			d[i] = truth(a[i] > b[i])
		}
	case vec.OpGe:
		for i := range d {
			d[i] = truth(a[i] >= b[i])
		}
	}
}

func unaryI(op vec.Op, d, a []int64) {
	a = a[:len(d)]
	switch op {
	case vec.OpMoveI:
		copy(d, a)
	case vec.OpNegI:
		for i := range d {
			d[i] = -a[i]
		}
	case vec.OpAbsI:
		for i := range d {
			d[i] = abs(a[i])
		}
	case vec.OpSignI:
		for i := range d {
			d[i] = truth(a[i] > 0) - truth(a[i] < 0)
		}
	case vec.OpReluI:
		for i := range d {
			d[i] = max(a[i], 0)
		}
	case vec.OpNot:
		for i := range d {
			d[i] = ^a[i]
		}
	case vec.OpNotB:
		for i := range d {
			d[i] = truth(a[i] == 0)
		}
	}
}

func binaryI(op vec.Op, d, a, b []int64) {
	a, b = a[:len(d)], b[:len(d)]
	switch op {
	case vec.OpAddI:
		for i := range d {
			d[i] = a[i] + b[i]
		}
	case vec.OpSubI:
		for i := range d {
			d[i] = a[i] - b[i]
		}
	case vec.OpMulI:
		for i := range d {
			d[i] = a[i] * b[i]
		}
	case vec.OpDivI:
		for i := range d {
			q := int64(0)
			if b[i] != 0 {
				q = a[i] / b[i]
			}
			d[i] = q
		}
	case vec.OpRemI:
		for i := range d {
			r := int64(0)
			if b[i] != 0 {
				r = a[i] % b[i]
			}
			d[i] = r
		}
	case vec.OpMaxI:
		for i := range d {
			d[i] = max(a[i], b[i])
		}
	case vec.OpMinI:
		for i := range d {
			d[i] = min(a[i], b[i])
		}
	case vec.OpAnd:
		for i := range d {
			d[i] = a[i] & b[i]
		}
	case vec.OpOr:
		for i := range d {
			d[i] = a[i] | b[i]
		}
	case vec.OpXor:
		for i := range d {
			d[i] = a[i] ^ b[i]
		}
	case vec.OpEqI:
		for i := range d {
			d[i] = truth(a[i] == b[i])
		}
	case vec.OpNeI:
		for i := range d {
			d[i] = truth(a[i] != b[i])
		}
	case vec.OpLtI:
		for i := range d {
			d[i] = truth(a[i] < b[i])
		}
	case vec.OpLeI:
		for i := range d {
			d[i] = truth(a[i] <= b[i])
		}
	case vec.OpGtI:
		for i := range d {
			d[i] = truth(a[i] > b[i])
		}
	case vec.OpGeI:
		for i := range d {
			d[i] = truth(a[i] >= b[i])
		}
	}
}

func binaryF(op vec.Op, d, a, b []float32) {
	a, b = a[:len(d)], b[:len(d)]
	switch op {
	case vec.OpRem:
		for i := range d {
			d[i] = float32(math.Mod(float64(a[i]), float64(b[i])))
		}
	case vec.OpPow:
		for i := range d {
			d[i] = float32(math.Pow(float64(a[i]), float64(b[i])))
		}
	case vec.OpMax:
		for i := range d {
			d[i] = max(a[i], b[i])
		}
	case vec.OpMin:
		for i := range d {
			d[i] = min(a[i], b[i])
		}
	}
}
