package interp

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gorgonia.org/tensor"

	"pwc/ir/dtype"
)

// maxElements bounds one tensor: 2^36 elements take half a tebibyte here. A larger shape is
// reported as an error, because it is a mistake.
const maxElements = 1 << 36

// Tensor is a contiguous row-major tensor. Its dtype represents the values exactly, unless the
// tensor is [Tensor.Unrounded]. Floats are stored as float64, integers and bools as int64, in a
// [tensor.Dense]. Floats of dtypes that do not compute ([dtype.DType.Computes]) are stored as bit
// patterns in int64: ops can only load, move and store them.
//
// Two pointers to different Tensors never share storage.
type Tensor struct {
	Type  dtype.DType
	Shape []int64 // sizes, outermost first; empty: a scalar. Read-only

	unrounded bool // see Unrounded

	dense  *tensor.Dense // over floats or ints; nil without elements, because Dense must have some
	floats []float64     // elements of float dtypes
	ints   []int64       // elements of integers and bools, and bit patterns of other floats
}

// isFloat reports whether values of dt are stored as float64.
func isFloat(dt dtype.DType) bool { return dt.Float() && dt.Computes() }

// elements returns the number of elements of a shape.
func elements(shape []int64) (int64, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("interp: extent %d is negative", d)
		}
		if d == 0 {
			n = 0
		}
	}
	for _, d := range shape {
		if n > 0 && d > maxElements/n {
			return 0, fmt.Errorf("interp: a tensor of extents %v is too large to interpret", shape)
		}
		n *= d
	}
	return n, nil
}

// Zeros returns a tensor of zeros. It fails for an invalid dtype, a negative size, or too many
// elements.
func Zeros(dt dtype.DType, shape []int64) (*Tensor, error) {
	if !dt.Valid() {
		return nil, fmt.Errorf("interp: a tensor needs a dtype")
	}
	n, err := elements(shape)
	if err == nil && n > addressable/elementBytes {
		err = fmt.Errorf("interp: a tensor of extents %v has %d elements, more than this machine addresses", shape, n)
	}
	if err != nil {
		return nil, err
	}
	return alloc(dt, shape, int(n)), nil
}

// alloc makes a tensor of n elements, the number of elements of the shape.
func alloc(dt dtype.DType, shape []int64, n int) *Tensor {
	t := &Tensor{Type: dt, Shape: slices.Clone(shape)}
	var backing any
	if isFloat(dt) {
		t.floats = make([]float64, n)
		backing = t.floats
	} else {
		t.ints = make([]int64, n)
		backing = t.ints
	}
	if n > 0 {
		extents := make([]int, len(shape))
		for i, d := range shape {
			extents[i] = int(d)
		}
		t.dense = tensor.New(tensor.WithShape(extents...), tensor.WithBacking(backing))
	}
	return t
}

// fill returns a tensor whose elements a function sets one by one.
func fill(dt dtype.DType, shape []int64, given int, put func(t *Tensor, i int)) (*Tensor, error) {
	t, err := Zeros(dt, shape)
	if err != nil {
		return nil, err
	}
	if n := t.Len(); given != n {
		return nil, fmt.Errorf("interp: %d values for %s, which has %d", given, t, n)
	}
	for i := range given {
		put(t, i)
	}
	return t, nil
}

// FromF32 returns an f32 tensor. Like the other From functions, it fails if the number of values
// is not that of the shape.
func FromF32(shape []int64, values []float32) (*Tensor, error) {
	return fill(dtype.F32, shape, len(values), func(t *Tensor, i int) { t.floats[i] = float64(values[i]) })
}

// FromI32 returns an i32 tensor.
func FromI32(shape []int64, values []int32) (*Tensor, error) {
	return fill(dtype.I32, shape, len(values), func(t *Tensor, i int) { t.ints[i] = int64(values[i]) })
}

// FromI64 returns an i64 tensor.
func FromI64(shape, values []int64) (*Tensor, error) { return FromInt64s(dtype.I64, shape, values) }

// FromBool returns a bool tensor.
func FromBool(shape []int64, values []bool) (*Tensor, error) {
	return fill(dtype.Bool, shape, len(values), func(t *Tensor, i int) {
		if values[i] {
			t.ints[i] = 1
		}
	})
}

// FromFloat64s returns a tensor of the values, each converted as [Tensor.Set] does. The dtype
// must be one that computes.
func FromFloat64s(dt dtype.DType, shape []int64, values []float64) (*Tensor, error) {
	if !dt.Computes() {
		return nil, fmt.Errorf("interp: %s is only stored, it has no conversion from numbers", dt)
	}
	return fill(dt, shape, len(values), func(t *Tensor, i int) { t.Set(i, values[i]) })
}

// FromInt64s returns a tensor of the values, each converted as [Tensor.SetInt] does. The dtype
// must be one that computes.
func FromInt64s(dt dtype.DType, shape, values []int64) (*Tensor, error) {
	if !dt.Computes() {
		return nil, fmt.Errorf("interp: %s is only stored, it has no conversion from numbers", dt)
	}
	return fill(dt, shape, len(values), func(t *Tensor, i int) { t.SetInt(i, values[i]) })
}

// FromBytes returns a tensor from its storage form: little-endian and contiguous. Types narrower
// than a byte are packed, the first element in the low bits. A bool other than 0 is true. It
// fails if the length does not match the shape.
func FromBytes(dt dtype.DType, shape []int64, data []byte) (*Tensor, error) {
	t, err := Zeros(dt, shape)
	if err != nil {
		return nil, err
	}
	if want := dt.Bytes(int64(t.Len())); int64(len(data)) != want {
		return nil, fmt.Errorf("interp: %d bytes for %s, which takes %d", len(data), t, want)
	}
	for i := range t.Len() {
		switch dt {
		case dtype.F32:
			t.floats[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
		case dtype.F16:
			t.floats[i] = float64(dtype.F16ToF32(binary.LittleEndian.Uint16(data[2*i:])))
		case dtype.BF16:
			t.floats[i] = float64(dtype.BF16ToF32(binary.LittleEndian.Uint16(data[2*i:])))
		default:
			t.ints[i] = dt.Wrap(int64(loadBits(data, i, dt.Bits())))
		}
	}
	return t, nil
}

// Bytes returns the tensor in the storage form of [FromBytes]. It rounds unrounded values.
func (t *Tensor) Bytes() []byte {
	data := make([]byte, t.Type.Bytes(int64(t.Len())))
	for i := range t.Len() {
		switch t.Type {
		case dtype.F32:
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(t.floats[i])))
		case dtype.F16:
			binary.LittleEndian.PutUint16(data[2*i:], dtype.F64ToF16(t.floats[i]))
		case dtype.BF16:
			binary.LittleEndian.PutUint16(data[2*i:], dtype.F64ToBF16(t.floats[i]))
		default:
			storeBits(data, i, t.Type.Bits(), uint64(t.ints[i]))
		}
	}
	return data
}

// loadBits returns element i of packed elements of the given width, which divides a byte or is a
// multiple of a byte.
func loadBits(data []byte, i, width int) uint64 {
	if width < 8 {
		bit := i * width
		return uint64(data[bit/8]>>(bit%8)) & (1<<width - 1)
	}
	var v uint64
	for k := range width / 8 {
		v |= uint64(data[i*width/8+k]) << (8 * k)
	}
	return v
}

// storeBits writes the low bits of v as element i. The destination must be zero.
func storeBits(data []byte, i, width int, v uint64) {
	if width < 8 {
		bit := i * width
		data[bit/8] |= byte(v&(1<<width-1)) << (bit % 8)
		return
	}
	for k := range width / 8 {
		data[i*width/8+k] = byte(v >> (8 * k))
	}
}

// FromDense returns a tensor of dtype dt with the shape and the elements of a
// host tensor, each converted as [Tensor.Set] or [Tensor.SetInt] does. The
// elements are copied. It takes row-major tensors of bools, signed integers,
// uint8 and floats; a view must be materialized first.
func FromDense(dt dtype.DType, d *tensor.Dense) (*Tensor, error) {
	if d == nil || d.Engine() == nil {
		return nil, fmt.Errorf("interp: no host tensor is given")
	}
	if d.RequiresIterator() || d.DataOrder().IsColMajor() || d.IsMasked() {
		return nil, fmt.Errorf("interp: a host tensor must be row-major, contiguous and without a mask")
	}
	if !dt.Computes() {
		return nil, fmt.Errorf("interp: %s is only stored, it has no conversion from numbers", dt)
	}
	shape := make([]int64, d.Dims())
	for i, n := range d.Shape() {
		shape[i] = int64(n)
	}
	t, err := Zeros(dt, shape)
	if err != nil {
		return nil, err
	}
	for i := range t.Len() {
		switch v := d.Get(i).(type) {
		case float64:
			t.Set(i, v)
		case float32:
			t.Set(i, float64(v))
		case int64:
			t.SetInt(i, v)
		case int:
			t.SetInt(i, int64(v))
		case int32:
			t.SetInt(i, int64(v))
		case int16:
			t.SetInt(i, int64(v))
		case int8:
			t.SetInt(i, int64(v))
		case uint8:
			t.SetInt(i, int64(v))
		case bool:
			if v {
				t.SetInt(i, 1)
			}
		default:
			return nil, fmt.Errorf("interp: a host tensor of %s has no dtype here", d.Dtype())
		}
	}
	return t, nil
}

// Dense returns the storage as a host tensor of the same shape: float64 for f32, f16 and bf16,
// int64 for all others. It shares memory with t: written values must be representable in t's
// dtype. A tensor without elements returns nil.
func (t *Tensor) Dense() *tensor.Dense { return t.dense }

// Len returns the number of elements.
func (t *Tensor) Len() int { return len(t.floats) + len(t.ints) }

// At returns element i, in row-major order, as a number. i64 values beyond 2^53 are rounded. For
// a float dtype that does not compute it is the bit pattern.
func (t *Tensor) At(i int) float64 {
	if isFloat(t.Type) {
		return t.floats[i]
	}
	return float64(t.ints[i])
}

// Int returns element i as an integer. Floats are converted as by the op cast to i64.
func (t *Tensor) Int(i int) int64 {
	if isFloat(t.Type) {
		return floatToInt(t.floats[i], dtype.I64)
	}
	return t.ints[i]
}

// Set stores v as element i, converted as the op cast does: rounded once to a
// float dtype; truncated and saturated, NaN to 0, to an integer; != 0 to bool.
// A float dtype that does not compute has no conversion.
func (t *Tensor) Set(i int, v float64) {
	switch {
	case isFloat(t.Type):
		t.setFloat(i, v)
	case t.Type == dtype.Bool:
		t.ints[i] = 0
		if v != 0 {
			t.ints[i] = 1
		}
	default:
		t.ints[i] = floatToInt(v, t.Type)
	}
}

// SetInt stores v as element i, converted as the op cast does: rounded once to
// a float dtype, wrapped to an integer's width, != 0 to bool. It stores v unchanged as
// the bit pattern of a float dtype that does not compute.
func (t *Tensor) SetInt(i int, v int64) {
	switch {
	case isFloat(t.Type) && t.unrounded:
		t.floats[i] = float64(v)
	case isFloat(t.Type):
		t.floats[i] = intToFloat(v, t.Type)
	default:
		t.ints[i] = t.Type.Wrap(v)
	}
}

// Float64s returns a copy of the elements as [Tensor.At] gives them.
func (t *Tensor) Float64s() []float64 {
	out := make([]float64, t.Len())
	for i := range out {
		out[i] = t.At(i)
	}
	return out
}

// Int64s returns a copy of the elements as [Tensor.Int] gives them.
func (t *Tensor) Int64s() []int64 {
	out := make([]int64, t.Len())
	for i := range out {
		out[i] = t.Int(i)
	}
	return out
}

// Clone returns a copy with storage of its own.
func (t *Tensor) Clone() *Tensor {
	c := alloc(t.Type, t.Shape, t.Len())
	c.unrounded = t.unrounded
	c.copyAll(t)
	return c
}

// Unrounded returns a copy whose floats are float64 values: Set does not round them to the dtype.
// It is an operand of a run with [Env].Unrounded.
func (t *Tensor) Unrounded() *Tensor {
	c := t.Clone()
	c.unrounded = true
	return c
}

// copyAll copies the elements of s, which has t's dtype and number of elements.
func (t *Tensor) copyAll(s *Tensor) {
	copy(t.floats, s.floats)
	copy(t.ints, s.ints)
}

// move copies element j of s, which has t's dtype, to element i of t.
func (t *Tensor) move(i int, s *Tensor, j int) {
	if isFloat(t.Type) {
		t.floats[i] = s.floats[j]
	} else {
		t.ints[i] = s.ints[j]
	}
}

// String returns the type, for example "bf16[2, 256]".
func (t *Tensor) String() string {
	parts := make([]string, len(t.Shape))
	for i, d := range t.Shape {
		parts[i] = strconv.FormatInt(d, 10)
	}
	return t.Type.String() + "[" + strings.Join(parts, ", ") + "]"
}

// floatToInt truncates x toward zero into an integer dtype, saturating; NaN is 0.
func floatToInt(x float64, dt dtype.DType) int64 {
	lo, hi := dt.IntLimits()
	switch {
	case x != x:
		return 0
	case x <= float64(lo):
		return lo
	case x >= float64(hi): // for i64 the float is 2^63, one above hi
		return hi
	}
	return int64(x)
}

// intToFloat rounds x once to a float dtype. A float64 represents integers below 2^53 exactly.
// If a larger x has a bit set among its last 11, these are cleared and the bit above them is set
// ("round to odd"). The float64 of this number is exact, and lies on the same side as x of every
// tie of a format with at most 24 digits.
func intToFloat(x int64, dt dtype.DType) float64 {
	const low = 1<<11 - 1
	if (x >= 1<<53 || x <= -1<<53) && x&low != 0 {
		x = x&^low | 1<<11
	}
	return dt.Round(float64(x))
}
