package runner

import (
	"pwc/ir"
	"pwc/ir/dtype"
)

// The constants of Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011): multipliers, what is added to the keys
// between rounds, and the rounds.
const (
	philoxM0     = 0xD2511F53
	philoxM1     = 0xCD9E8D57
	philoxW0     = 0x9E3779B9
	philoxW1     = 0xBB67AE85
	philoxRounds = 10
)

// words emits arithmetic on unsigned 32-bit words. A word is an i64 value in
// [0, 2^32): the IR has no unsigned 32-bit type and no shifts, and in i64 their
// products wrap and their quotients by powers of two shift.
type words struct{ f *ir.FuncBuilder }

func (w words) op(name string, a, b ir.Value) ir.Value {
	return w.f.Op1(name, []ir.Value{a, b})
}

func (w words) int(v int64) ir.Value { return w.f.Int(v) }

// low returns x mod 2^32, also of a negative x.
func (w words) low(x ir.Value) ir.Value { return w.op("and", x, w.int(1<<32-1)) }

// high returns bits 32 to 63 of any x: what is left without the low word is a
// multiple of 2^32, so that division, which truncates, is exact.
func (w words) high(x ir.Value) ir.Value {
	return w.low(w.op("div", w.op("sub", x, w.low(x)), w.int(1<<32)))
}

// product returns the words of x·m for a word x and a constant m below 2^32.
// The product of 64 bits would be negative in i64, so its high word is summed of
// products with the halves of x, none of which reaches 2^50.
func (w words) product(x ir.Value, m int64) (high, low ir.Value) {
	upper, lower := w.op("div", x, w.int(1<<16)), w.op("and", x, w.int(1<<16-1))
	carry := w.op("div", w.op("mul", lower, w.int(m)), w.int(1<<16))
	high = w.op("div", w.op("add", w.op("mul", upper, w.int(m)), carry), w.int(1<<16))
	return high, w.low(w.op("mul", x, w.int(m)))
}

// philox emits Philox4x32-10: the four words that a counter of four words and a
// key of two give. It is a function of them alone, and integer arithmetic is
// exact: every device computes the same words.
func (w words) philox(c [4]ir.Value, key [2]ir.Value) [4]ir.Value {
	for round := range philoxRounds {
		if round > 0 {
			key[0] = w.low(w.op("add", key[0], w.int(philoxW0)))
			key[1] = w.low(w.op("add", key[1], w.int(philoxW1)))
		}
		high0, low0 := w.product(c[0], philoxM0)
		high1, low1 := w.product(c[2], philoxM1)
		c = [4]ir.Value{
			w.op("xor", w.op("xor", high1, c[1]), key[0]), low1,
			w.op("xor", w.op("xor", high0, c[3]), key[1]), low0,
		}
	}
	return c
}

// uniform emits the number of [0, 1) that belongs to a seed i64 and a position
// i64 ≥ 0, a multiple of 2^-24 as f32. It is the first word of the generator
// with the seed as key and the position as counter.
func (w words) uniform(seed, position ir.Value) ir.Value {
	zero := w.op("mul", position, w.int(0))
	word := w.philox([4]ir.Value{w.low(position), w.high(position), zero, zero}, [2]ir.Value{w.low(seed), w.high(seed)})[0]
	bits := w.f.Op1("cast", []ir.Value{w.op("div", word, w.int(1<<8))}, ir.DTypeAttr(dtype.F32))
	return w.op("mul", bits, w.f.Float(1.0/(1<<24)))
}
