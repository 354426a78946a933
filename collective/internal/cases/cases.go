// Package cases has calls of collectives, with inputs and expected results, for tests of the
// routines on each device.
package cases

import (
	"encoding/binary"
	"fmt"
	"math"

	"pwc/collective"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

// Group is the name of the group of the calls.
const Group = "tp"

// Call is a call that each rank of a group makes. Elements and their sums are small integers, which
// their dtypes hold exactly.
type Call struct {
	Kind  collective.Kind
	DType dtype.DType // f32, f16, bf16 or i8
	N     int64       // elements of a rank's part
	Size  int         // of the group
	Root  int         // of a broadcast
}

// Counts returns the elements of destination and source.
func (c Call) Counts() (dst, src int64) {
	dst, src = c.N, c.N
	switch c.Kind {
	case collective.AllGather:
		dst *= int64(c.Size)
	case collective.ReduceScatter:
		src *= int64(c.Size)
	}
	return dst, src
}

// Attrs returns the attributes of the call in a program.
func (c Call) Attrs() []program.Attr {
	a := []program.Attr{{Name: collective.AttrGroup, Kind: program.AttrString, Str: Group},
		{Name: collective.AttrSize, Dim: dim.Const(int64(c.Size))}}
	if c.Kind == collective.Broadcast {
		a = append(a, program.Attr{Name: collective.AttrRoot, Dim: dim.Const(int64(c.Root))})
	}
	return a
}

// input returns element i of a rank's source.
func input(rank int, i int64) int64 { return (i*7+int64(rank)*13)%31 - 15 }

// want returns element i of a rank's destination.
func (c Call) want(rank int, i int64) int64 {
	sum := func(i int64) (s int64) {
		for k := range c.Size {
			s += input(k, i)
		}
		return s
	}
	switch c.Kind {
	case collective.AllGather:
		return input(int(i/c.N), i%c.N)
	case collective.ReduceScatter:
		return sum(int64(rank)*c.N + i)
	case collective.Broadcast:
		return input(c.Root, i)
	}
	return sum(i)
}

// Fill writes a rank's source.
func (c Call) Fill(b []byte, rank int) {
	width := c.DType.Bytes(1)
	for i := int64(0); i*width < int64(len(b)); i++ {
		Encode(c.DType, b[i*width:], float32(input(rank, i)))
	}
}

// Result writes the expected contents of a rank's destination.
func (c Call) Result(b []byte, rank int) {
	width := c.DType.Bytes(1)
	for i := int64(0); i*width < int64(len(b)); i++ {
		Encode(c.DType, b[i*width:], float32(c.want(rank, i)))
	}
}

// Check returns an error for the first element of a rank's destination that is wrong.
func (c Call) Check(b []byte, rank int) error {
	width := c.DType.Bytes(1)
	for i := int64(0); i*width < int64(len(b)); i++ {
		if v, want := Decode(c.DType, b[i*width:]), c.want(rank, i); v != float32(want) {
			return fmt.Errorf("%s of %d %s: element %d is %v, want %d", c.Kind, c.N, c.DType, i, v, want)
		}
	}
	return nil
}

// Encode writes a number as an element.
func Encode(dt dtype.DType, b []byte, v float32) {
	switch dt {
	case dtype.F32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(v))
	case dtype.F16:
		binary.LittleEndian.PutUint16(b, dtype.F32ToF16(v))
	case dtype.BF16:
		binary.LittleEndian.PutUint16(b, dtype.F32ToBF16(v))
	case dtype.I8:
		b[0] = byte(int8(v))
	}
}

// Decode returns an element as a number.
func Decode(dt dtype.DType, b []byte) float32 {
	switch dt {
	case dtype.F32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	case dtype.F16:
		return dtype.F16ToF32(binary.LittleEndian.Uint16(b))
	case dtype.BF16:
		return dtype.BF16ToF32(binary.LittleEndian.Uint16(b))
	}
	return float32(int8(b[0]))
}
