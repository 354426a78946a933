// Package wire reads and writes the little-endian fields of encoded programs and
// kernels. Every value has one encoding: if a Reader accepts bytes, a Writer writes
// the same bytes for the value.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"pwc/ir/dim"
)

// maxDimText bounds the text of one dim in bytes, and so the time to parse untrusted
// bytes. Extents of real models have a few dozen bytes.
const maxDimText = 4096

// ErrTruncated: the bytes end before the value.
var ErrTruncated = errors.New("wire: truncated")

// Writer appends fields to B. The first error sticks.
type Writer struct {
	B   []byte
	Err error
}

// U8 writes one byte.
func (w *Writer) U8(v uint8) { w.B = append(w.B, v) }

// Bool writes 0 or 1.
func (w *Writer) Bool(v bool) {
	if v {
		w.U8(1)
	} else {
		w.U8(0)
	}
}

// U16 writes two bytes.
func (w *Writer) U16(v uint16) { w.B = binary.LittleEndian.AppendUint16(w.B, v) }

// U32 writes four bytes.
func (w *Writer) U32(v uint32) { w.B = binary.LittleEndian.AppendUint32(w.B, v) }

// I32 writes four bytes.
func (w *Writer) I32(v int32) { w.U32(uint32(v)) }

// I64 writes eight bytes.
func (w *Writer) I64(v int64) { w.B = binary.LittleEndian.AppendUint64(w.B, uint64(v)) }

// F64 writes the bits of v, a NaN's payload included.
func (w *Writer) F64(v float64) { w.B = binary.LittleEndian.AppendUint64(w.B, math.Float64bits(v)) }

// Len writes the length of a list or string.
func (w *Writer) Len(n int) {
	if uint64(n) > math.MaxUint32 {
		w.fail(fmt.Errorf("wire: a list of %d entries", n))
		return
	}
	w.U32(uint32(n))
}

// Str writes a length and bytes.
func (w *Writer) Str(s string) {
	w.Len(len(s))
	w.B = append(w.B, s...)
}

// Bytes writes a length and bytes.
func (w *Writer) Bytes(b []byte) {
	w.Len(len(b))
	w.B = append(w.B, b...)
}

// Dim writes a constant as its value, anything else as the text of its normal
// form.
func (w *Writer) Dim(d dim.Dim) {
	if err := d.Err(); err != nil {
		w.fail(err)
		return
	}
	if k, ok := d.Const(); ok {
		w.U8(0)
		w.I64(k)
		return
	}
	text := d.String()
	if len(text) > maxDimText {
		w.fail(fmt.Errorf("wire: %w: %.80s…", dim.ErrTooLarge, text))
		return
	}
	w.U8(1)
	w.U16(uint16(len(text)))
	w.B = append(w.B, text...)
}

// Dims writes a list of dims.
func (w *Writer) Dims(ds []dim.Dim) {
	w.Len(len(ds))
	for _, d := range ds {
		w.Dim(d)
	}
}

func (w *Writer) fail(err error) {
	if w.Err == nil {
		w.Err = err
	}
}

// Reader takes fields from bytes. After the first error every method returns
// zero values, so callers check Err once.
type Reader struct {
	b    []byte
	err  error
	dims map[string]dim.Dim // texts seen before: programs repeat a few dims many times
}

// NewReader returns a reader of b. Values that it returns do not alias b.
func NewReader(b []byte) *Reader { return &Reader{b: b, dims: map[string]dim.Dim{}} }

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Fail records an error of the caller, unless there is one already.
func (r *Reader) Fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

// End returns the first error, or one if bytes are left.
func (r *Reader) End() error {
	if r.err == nil && len(r.b) > 0 {
		r.Fail(fmt.Errorf("wire: %d bytes after the end", len(r.b)))
	}
	return r.err
}

func (r *Reader) take(n int) []byte {
	if r.err != nil || n > len(r.b) {
		r.Fail(ErrTruncated)
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

// U8 reads one byte.
func (r *Reader) U8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

// Bool reads 0 or 1.
func (r *Reader) Bool() bool {
	v := r.U8()
	if v > 1 {
		r.Fail(fmt.Errorf("wire: %d is no truth value", v))
	}
	return v == 1
}

// U16 reads two bytes.
func (r *Reader) U16() uint16 {
	if b := r.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// U32 reads four bytes.
func (r *Reader) U32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// I32 reads four bytes.
func (r *Reader) I32() int32 { return int32(r.U32()) }

// I64 reads eight bytes.
func (r *Reader) I64() int64 {
	if b := r.take(8); b != nil {
		return int64(binary.LittleEndian.Uint64(b))
	}
	return 0
}

// F64 reads eight bytes.
func (r *Reader) F64() float64 { return math.Float64frombits(uint64(r.I64())) }

// Len reads the length of a list whose entries take at least min bytes each.
// A length that exceeds the remaining bytes is an error, so that the memory for a
// list is in proportion to the input.
func (r *Reader) Len(min int) int {
	n := r.U32()
	if uint64(n)*uint64(min) > uint64(len(r.b)) {
		r.Fail(ErrTruncated)
		return 0
	}
	return int(n)
}

// Str reads a string.
func (r *Reader) Str() string { return string(r.take(r.Len(1))) }

// Bytes reads bytes into a copy; nil if the length is 0.
func (r *Reader) Bytes() []byte {
	b := r.take(r.Len(1))
	if len(b) == 0 {
		return nil
	}
	return append([]byte(nil), b...)
}

// Dim reads a dim. Text that is not a normal form is an error.
func (r *Reader) Dim() dim.Dim {
	switch tag := r.U8(); tag {
	case 0:
		return dim.Const(r.I64())
	case 1:
		n := int(r.U16())
		if n > maxDimText {
			r.Fail(fmt.Errorf("wire: %w", dim.ErrTooLarge))
			return dim.Dim{}
		}
		text := r.take(n)
		if d, ok := r.dims[string(text)]; ok {
			return d
		}
		if r.err != nil {
			return dim.Dim{}
		}
		d, err := dim.Parse(string(text))
		if err != nil {
			r.Fail(err)
			return dim.Dim{}
		}
		if _, is := d.Const(); is || d.String() != string(text) {
			r.Fail(fmt.Errorf("wire: dim %q is not in normal form", text))
			return dim.Dim{}
		}
		r.dims[string(text)] = d
		return d
	default:
		r.Fail(fmt.Errorf("wire: unknown dim tag %d", tag))
		return dim.Dim{}
	}
}

// Dims reads a list of dims; nil if it is empty.
func (r *Reader) Dims() []dim.Dim { return List(r, 3, r.Dim) }

// List reads a length and that many entries of at least min bytes; nil if the list
// is empty.
func List[T any](r *Reader, min int, read func() T) []T {
	n := r.Len(min)
	if n == 0 {
		return nil
	}
	list := make([]T, 0, n)
	for range n {
		v := read()
		if r.err != nil {
			return nil
		}
		list = append(list, v)
	}
	return list
}
