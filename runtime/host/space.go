package host

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/program/vec"
)

// axis is one axis of an access: the number of its indices, and the stride in elements.
type axis struct{ n, stride int64 }

// addressing maps indices of an iteration space to addresses, in elements of the buffer.
// Neighbouring axes that are one axis in memory are merged, so that most accesses have a
// single one.
type addressing struct {
	offset int64
	outer  []axis // rows
	inner  []axis // columns, at least one
}

// access is an access of a kernel bound to memory. The slice of the storage type is the whole
// buffer; the other slices are nil.
type access struct {
	addressing
	id       int // number of the access in the kernel: index of lane.base
	unit     *unit
	dtype    dtype.DType
	position bool // there is no buffer: the address itself is the value

	f32 []float32
	u16 []uint16 // f16, bf16
	i8  []int8
	u8  []uint8 // u8, bool
	i16 []int16
	i32 []int32
	i64 []int64

	index *index
}

// index is the indirect part of a bound access.
type index struct {
	reg    int // offset in its register file
	scalar bool
	stride int64
	extent int64
	fault  *fault
}

var errOverflow = errors.New("the iteration space overflows int64")

// sizer evaluates dims and keeps the first error.
type sizer struct {
	env program.Env
	err error
}

func (z *sizer) fail(err error) {
	if z.err == nil {
		z.err = err
	}
}

func (z *sizer) eval(d dim.Dim) int64 {
	if k, ok := d.Const(); ok {
		return k
	}
	v, err := d.Eval(z.env)
	if err != nil {
		z.fail(err)
	}
	return v
}

func (z *sizer) evalAll(ds []dim.Dim) []int64 {
	out := make([]int64, len(ds))
	for i, d := range ds {
		out[i] = z.eval(d)
	}
	return out
}

// extents evaluates extents, which may not be negative.
func (z *sizer) extents(ds []dim.Dim) []int64 {
	out := z.evalAll(ds)
	for i, n := range out {
		if n < 0 {
			z.fail(fmt.Errorf("extent %s = %d is negative", ds[i], n))
			out[i] = 0
		}
	}
	return out
}

// product returns the product of numbers that are not negative.
func (z *sizer) product(ns []int64) int64 {
	p := int64(1)
	for _, n := range ns {
		if n == 0 {
			return 0
		}
	}
	for _, n := range ns {
		if p > math.MaxInt64/n {
			z.fail(errOverflow)
			return 0
		}
		p *= n
	}
	return p
}

// span is the lowest and highest address, both included.
type span struct{ lo, hi int64 }

// add widens the span by the axis.
func (z *sizer) add(s span, n, stride int64) span {
	if n <= 1 {
		return s
	}
	if stride != 0 && (stride == math.MinInt64 || n-1 > math.MaxInt64/abs(stride)) {
		z.fail(errOverflow)
		return s
	}
	d := (n - 1) * stride
	if d < 0 {
		if s.lo < math.MinInt64-d {
			z.fail(errOverflow)
			return s
		}
		s.lo += d
	} else {
		if s.hi > math.MaxInt64-d {
			z.fail(errOverflow)
			return s
		}
		s.hi += d
	}
	return s
}

func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}

// merge appends axes to out. It drops axes of extent 1, and joins neighbours if the stride of
// the outer one is the length of the inner one in elements. The result may be empty.
func merge(out []axis, extents, strides []int64) []axis {
	for i, n := range extents {
		if n == 1 {
			continue
		}
		s := strides[i]
		if k := len(out) - 1; k >= 0 && joins(out[k], n, s) {
			out[k] = axis{out[k].n * n, s}
			continue
		}
		out = append(out, axis{n, s})
	}
	return out
}

// joins reports whether a and the axis (n, stride) inside it are one axis in memory.
func joins(a axis, n, stride int64) bool {
	if stride == 0 || a.stride == 0 {
		return stride == a.stride
	}
	return a.stride%stride == 0 && a.stride/stride == n
}

// addr returns the address of an index into the flattened axes, the last of which varies
// fastest.
func addr(axes []axis, at int64) int64 {
	a := int64(0)
	for i := len(axes) - 1; i > 0; i-- {
		q := at / axes[i].n
		a += (at - q*axes[i].n) * axes[i].stride
		at = q
	}
	if len(axes) > 0 {
		a += at * axes[0].stride
	}
	return a
}

// row returns the address of column 0 of a row, without the indirect part.
func (a *addressing) row(r int64) int64 { return a.offset + addr(a.outer, r) }

// walk visits consecutive columns as spans with one stride.
type walk struct {
	axes  []axis
	addr  int64              // of the next element
	left  int64              // columns to the end of the last axis
	coord [vec.MaxAxes]int64 // of all axes but the last
}

func (w *walk) start(axes []axis, column int64) {
	w.axes, w.addr = axes, 0
	last := len(axes) - 1
	for i := last; i >= 0; i-- {
		c := column
		if i > 0 {
			q := column / axes[i].n
			c = column - q*axes[i].n
			column = q
		}
		w.addr += c * axes[i].stride
		if i == last {
			w.left = axes[i].n - c
		} else {
			w.coord[i] = c
		}
	}
}

// skip moves on by n columns of the last axis, n <= left.
func (w *walk) skip(n int64) {
	last := len(w.axes) - 1
	w.addr += n * w.axes[last].stride
	if w.left -= n; w.left > 0 {
		return
	}
	w.left = w.axes[last].n
	w.addr -= w.left * w.axes[last].stride
	for i := last - 1; i >= 0; i-- {
		a := &w.axes[i]
		w.addr += a.stride
		if w.coord[i]++; w.coord[i] < a.n || i == 0 {
			return
		}
		w.coord[i] = 0
		w.addr -= a.n * a.stride
	}
}

// memory attaches the buffer of an access.
func (a *access) memory(data []byte) error {
	p := unsafe.Pointer(unsafe.SliceData(data))
	size := a.dtype.Bits() / 8
	n := len(data) / size
	if uintptr(p)&uintptr(size-1) != 0 {
		return errUnaligned
	}
	switch a.dtype {
	case dtype.F32:
		a.f32 = unsafe.Slice((*float32)(p), n)
	case dtype.F16, dtype.BF16:
		a.u16 = unsafe.Slice((*uint16)(p), n)
	case dtype.I8:
		a.i8 = unsafe.Slice((*int8)(p), n)
	case dtype.U8, dtype.Bool:
		a.u8 = unsafe.Slice((*uint8)(p), n)
	case dtype.I16:
		a.i16 = unsafe.Slice((*int16)(p), n)
	case dtype.I32:
		a.i32 = unsafe.Slice((*int32)(p), n)
	case dtype.I64:
		a.i64 = unsafe.Slice((*int64)(p), n)
	default:
		return fmt.Errorf("a kernel of the host cannot access dtype %s", a.dtype)
	}
	return nil
}

// back gives an access its memory, unless z has an error. reach are the elements that are
// accessed; if touched is true they must be within data.
func (z *sizer) back(a *access, data []byte, reach span, touched bool) {
	if z.err == nil && touched {
		z.err = within(reach, data, a.dtype)
	}
	if z.err == nil {
		z.err = a.memory(data)
	}
}

// within checks that every address of a span is in the buffer.
func within(s span, data []byte, dt dtype.DType) error {
	if n := int64(len(data) / (dt.Bits() / 8)); s.lo < 0 || s.hi >= n {
		return fmt.Errorf("it reaches elements %d to %d of %d, which is outside of the buffer", s.lo, s.hi, n)
	}
	return nil
}
