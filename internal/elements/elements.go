// Package elements converts the elements of f32, f16 and bf16 tensors in host
// memory to and from float32, for extern ops that compute on the host. Loads are
// exact, stores round once.
package elements

import (
	"fmt"
	"unsafe"

	"pwc/ir/dtype"
	"pwc/runtime/device"
)

// Slice is the memory of an f32, f16 or bf16 tensor. The zero Slice is empty.
type Slice struct {
	dtype dtype.DType
	f32   []float32 // F32
	bits  []uint16  // F16, BF16
}

// View returns the elements of a tensor; b is the memory of its buffer. It returns an
// error for another dtype and for memory that is too small or not aligned. It allocates
// nothing.
func View(t *device.Tensor, b []byte) (v Slice, err error) {
	elements := int64(1)
	for _, n := range t.Shape {
		elements *= n
	}
	if want := t.DType.Bytes(elements); int64(len(b)) < want {
		return v, fmt.Errorf("memory of %d bytes for %s%v, want %d", len(b), t.DType, t.Shape, want)
	}
	v.dtype = t.DType
	switch t.DType {
	case dtype.F32:
		v.f32, err = Cast[float32](b)
	case dtype.F16, dtype.BF16:
		v.bits, err = Cast[uint16](b)
	default:
		err = fmt.Errorf("%s is not one of f32, f16 and bf16", t.DType)
	}
	return v, err
}

// Cast returns memory as a slice of numbers, without the bytes of an incomplete number at the end. It
// returns an error if the memory is not aligned to the numbers.
func Cast[T float32 | float64 | uint16](b []byte) ([]T, error) {
	var zero T
	size := unsafe.Sizeof(zero)
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%size != 0 {
		return nil, fmt.Errorf("memory is not aligned to %d bytes", size)
	}
	return unsafe.Slice((*T)(p), uintptr(len(b))/size), nil
}

// Pointer returns the address of element at. Elements [at, at+n) must exist.
func (v *Slice) Pointer(at, n int) unsafe.Pointer {
	if v.dtype == dtype.F32 {
		return unsafe.Pointer(unsafe.SliceData(v.f32[at : at+n : at+n]))
	}
	return unsafe.Pointer(unsafe.SliceData(v.bits[at : at+n : at+n]))
}

// Load converts len(dst) elements, starting at element at, to dst.
func (v *Slice) Load(dst []float32, at int) {
	switch v.dtype {
	case dtype.F32:
		copy(dst, v.f32[at:][:len(dst)])
	case dtype.BF16:
		for i, b := range v.bits[at:][:len(dst)] {
			dst[i] = dtype.BF16ToF32(b)
		}
	case dtype.F16:
		for i, b := range v.bits[at:][:len(dst)] {
			dst[i] = dtype.F16ToF32(b)
		}
	}
}

// Store rounds src into the elements that start at element at.
func (v *Slice) Store(at int, src []float32) {
	switch v.dtype {
	case dtype.F32:
		copy(v.f32[at:][:len(src)], src)
	case dtype.BF16:
		for i, dst := 0, v.bits[at:][:len(src)]; i < len(dst); i++ {
			dst[i] = dtype.F32ToBF16(src[i])
		}
	case dtype.F16:
		for i, dst := 0, v.bits[at:][:len(src)]; i < len(dst); i++ {
			dst[i] = dtype.F32ToF16(src[i])
		}
	}
}

// Copy copies n elements of src, starting at element from, to the elements that start
// at element at. It converts them if the dtypes differ.
func (v *Slice) Copy(at int, src *Slice, from, n int) {
	switch {
	case v.dtype == src.dtype && v.dtype == dtype.F32:
		copy(v.f32[at:][:n], src.f32[from:])
	case v.dtype == src.dtype:
		copy(v.bits[at:][:n], src.bits[from:])
	default:
		var part [64]float32
		for n > 0 {
			k := min(n, len(part))
			src.Load(part[:k], from)
			v.Store(at, part[:k])
			at, from, n = at+k, from+k, n-k
		}
	}
}

// Zero clears elements [from, to).
func (v *Slice) Zero(from, to int) {
	if v.dtype == dtype.F32 {
		clear(v.f32[from:to])
	} else {
		clear(v.bits[from:to])
	}
}
