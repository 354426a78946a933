// Package dtype names the element types of tensors, says how wide they are in
// memory, and rounds to them.
//
// Storage is little-endian and contiguous. Types narrower than a byte pack,
// the first element in the low bits; a bool takes one byte, 0 or 1. A value
// that an op computes is rounded once to its dtype, to nearest, ties to even, unless
// the op's definition says otherwise. So every conversion here rounds its argument
// once; ties of e8m0 go up.
package dtype

import "math"

// DType is the element type of a tensor. The zero value is Invalid.
type DType uint8

// The element types. Their numbers are part of encodings: append, never reorder.
const (
	Invalid DType = iota
	F32           // IEEE 754 binary32
	F16           // IEEE 754 binary16
	BF16          // the upper half of a binary32
	I8            // two's complement, as are all signed integers
	U8
	I16
	I32
	I64
	Bool   // one byte, 0 or 1
	F8E4M3 // OCP 8-bit E4M3: no infinities, largest finite 448 ("float8_e4m3fn")
	F8E5M2 // OCP 8-bit E5M2: infinities and NaNs as in IEEE 754
	E8M0   // OCP MX scale: a power of two in [2^-127, 2^127] or NaN; no sign, no zero
	I4     // two to a byte
	U4     // two to a byte
	F4E2M1 // OCP MX FP4, two to a byte: ±{0, .5, 1, 1.5, 2, 3, 4, 6}
	count  // number of constants above
)

// class is the kind of a dtype's numbers.
type class uint8

const (
	classNone class = iota
	classFloat
	classSigned
	classUnsigned
	classBool
)

// info has the properties of a dtype, except for its rounding.
type info struct {
	name     string
	bits     uint8
	class    class
	computes bool
}

// infos is indexed by DType and never written.
var infos = [count]info{
	Invalid: {name: "invalid"},
	F32:     {"f32", 32, classFloat, true},
	F16:     {"f16", 16, classFloat, true},
	BF16:    {"bf16", 16, classFloat, true},
	I8:      {"i8", 8, classSigned, true},
	U8:      {"u8", 8, classUnsigned, true},
	I16:     {"i16", 16, classSigned, true},
	I32:     {"i32", 32, classSigned, true},
	I64:     {"i64", 64, classSigned, true},
	Bool:    {"bool", 8, classBool, true},
	F8E4M3:  {"f8e4m3", 8, classFloat, false},
	F8E5M2:  {"f8e5m2", 8, classFloat, false},
	E8M0:    {"e8m0", 8, classFloat, false},
	I4:      {"i4", 4, classSigned, false},
	U4:      {"u4", 4, classUnsigned, false},
	F4E2M1:  {"f4e2m1", 4, classFloat, false},
}

// info returns the row of d; a number outside the table reads as Invalid.
func (d DType) info() *info {
	if d >= count {
		d = Invalid
	}
	return &infos[d]
}

// Parse returns the dtype whose name is exactly name ("f32", "bf16",
// "f8e4m3", …). "invalid" is no dtype's name.
func Parse(name string) (DType, bool) {
	for d := F32; d < count; d++ {
		if infos[d].name == name {
			return d, true
		}
	}
	return Invalid, false
}

// All returns every valid dtype, in the order of the constants. The slice is
// the caller's.
func All() []DType {
	all := make([]DType, 0, count-1)
	for d := F32; d < count; d++ {
		all = append(all, d)
	}
	return all
}

// Valid reports whether d is one of the dtypes that All lists.
func (d DType) Valid() bool { return d > Invalid && d < count }

// String returns the name that the IR's text uses, "invalid" for anything that
// is not a dtype.
func (d DType) String() string { return d.info().name }

// Bits returns the width of one element in memory: 8 for Bool, 0 for Invalid.
func (d DType) Bits() int { return int(d.info().bits) }

// Bytes returns the bytes that n ≥ 0 contiguous elements take: ceil(n·Bits/8).
// The product wraps when it exceeds an int64; CheckedBytes reports that.
func (d DType) Bytes(n int64) int64 {
	bits := int64(d.info().bits)
	if bits >= 8 {
		return n * (bits / 8)
	}
	// n = 8k+r: k groups of bits whole bytes, then r elements rounded up.
	return n/8*bits + (n%8*bits+7)/8
}

// CheckedBytes is Bytes for untrusted counts. It returns false if n is negative or the
// bytes exceed an int64.
func (d DType) CheckedBytes(n int64) (int64, bool) {
	if n < 0 {
		return 0, false
	}
	if bits := int64(d.info().bits); bits >= 8 && n > math.MaxInt64/(bits/8) {
		return 0, false
	}
	return d.Bytes(n), true
}

// Float reports whether d is a floating-point type, E8M0 included.
func (d DType) Float() bool { return d.info().class == classFloat }

// Int reports whether d is a signed or unsigned integer. Bool is not.
func (d DType) Int() bool {
	c := d.info().class
	return c == classSigned || c == classUnsigned
}

// Signed reports whether d can hold a negative number: signed integers, and floats
// except for E8M0.
func (d DType) Signed() bool {
	c := d.info().class
	return c == classSigned || c == classFloat && d != E8M0
}

// Computes reports whether ops compute on d. Tensors of other dtypes can be loaded, made by empty and empty_like,
// cut, joined and reordered (reshape, transpose, broadcast_to, slice, split, concat), and passed to calls.
func (d DType) Computes() bool { return d.info().computes }
