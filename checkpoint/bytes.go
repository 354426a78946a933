package checkpoint

import (
	"encoding/binary"
	"math"

	"pwc/ir/dtype"
)

// loader returns a function that reads element i of a tensor of f32, bf16 or f16 as float32, which is
// exact, and the number of elements. For other dtypes it returns nil and 0. x.data must be the whole
// tensor: loader does not read x.parts.
func loader(x tensor) (func(i int64) float32, int64) {
	d := x.data
	switch x.dt {
	case dtype.F32:
		return func(i int64) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(d[4*i:])) }, int64(len(d) / 4)
	case dtype.BF16:
		return func(i int64) float32 { return dtype.BF16ToF32(binary.LittleEndian.Uint16(d[2*i:])) }, int64(len(d) / 2)
	case dtype.F16:
		return func(i int64) float32 { return dtype.F16ToF32(binary.LittleEndian.Uint16(d[2*i:])) }, int64(len(d) / 2)
	}
	return nil, 0
}

func putF32(b []byte, i int64, v float32) {
	binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
}

func putU16(b []byte, i int64, v uint16) { binary.LittleEndian.PutUint16(b[2*i:], v) }
