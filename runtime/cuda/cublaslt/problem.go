package cublaslt

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
)

// Attributes of routine "cublaslt.matmul".
const (
	AttrSize     = "size"       // AttrDims: rows m, columns n, depth k, number of matrices b
	AttrX        = "x"          // AttrDims, in elements: offset of x, stride of rows (AttrXByDepth: of k), of matrices
	AttrW        = "w"          // the same for w (AttrByDepth: stride of k)
	AttrY        = "y"          // the same for y
	AttrFrom     = "from"       // AttrDim: least number of rows for the library without a record; default 0
	AttrByDepth  = "by_depth"   // AttrBool: w is [k, n]
	AttrXByDepth = "x_by_depth" // AttrBool: x is [k, m]
	AttrTF32     = "tf32"       // AttrBool: operands of f32 may be rounded to TF32
)

// matrix has the offset of matrices in a tensor, and the strides of rows (pitch) and of
// matrices, in elements.
type matrix struct{ offset, pitch, stride int64 }

// problem is a GEMM. Equal problems have one plan.
type problem struct {
	rows, cols, depth, batch int64
	in, out                  dtype.DType
	x, w, y                  matrix
	byDepth                  bool  // w is [k, n] and not [n, k]
	xByDepth                 bool  // x is [k, m] and not [m, k]
	tf32                     bool  // of operands of f32
	from                     int64 // least number of rows for the library without a record
}

// anyFrom returns the problem with from 0, which is equal for problems that differ only in
// from.
func (p problem) anyFrom() problem {
	p.from = 0
	return p
}

// baseAlign is the alignment of operands in bytes, which the compiler requires.
const baseAlign = 64

// parse reads a call's operands and attributes, and checks that the matrices are
// within the operands.
func parse(args []device.Tensor, attrs []program.Attr) (problem, error) {
	var p problem
	if len(args) != 3 {
		return p, fmt.Errorf("%d operands, want x, w and y", len(args))
	}
	size, err := dims(attrs, AttrSize, 4)
	if err != nil {
		return p, err
	}
	p.rows, p.cols, p.depth, p.batch = size[0], size[1], size[2], size[3]
	for _, a := range attrs {
		switch {
		case a.Name == AttrByDepth && a.Kind == program.AttrBool:
			p.byDepth = a.Bool
		case a.Name == AttrXByDepth && a.Kind == program.AttrBool:
			p.xByDepth = a.Bool
		case a.Name == AttrTF32 && a.Kind == program.AttrBool:
			p.tf32 = a.Bool && args[0].DType == dtype.F32
		case a.Name == AttrFrom && a.Kind == program.AttrDim:
			p.from, _ = a.Dim.Const()
		}
	}
	p.in, p.out = args[0].DType, args[2].DType
	if !p.computes() || args[1].DType != p.in {
		return p, fmt.Errorf("no GEMM of %s and %s to %s", p.in, args[1].DType, p.out)
	}
	if slices.Min(size) < 1 || slices.Max(size) > math.MaxInt32 {
		return p, fmt.Errorf("a GEMM of size %v, want rows, columns, depth and matrices from 1 to 2147483647", size)
	}
	wRows, wCols := p.cols, p.depth
	if p.byDepth {
		wRows, wCols = wCols, wRows
	}
	xRows, xCols := p.rows, p.depth
	if p.xByDepth {
		xRows, xCols = xCols, xRows
	}
	for _, o := range []struct {
		to         *matrix
		name       string
		t          device.Tensor
		rows, cols int64
	}{{&p.x, AttrX, args[0], xRows, xCols}, {&p.w, AttrW, args[1], wRows, wCols}, {&p.y, AttrY, args[2], p.rows, p.cols}} {
		d, err := dims(attrs, o.name, 3)
		if err != nil {
			return p, err
		}
		m := matrix{d[0], d[1], d[2]}
		*o.to = m
		have := elements(o.t.Shape)
		if slices.Min(d) < 0 || m.pitch < o.cols || !within(have, [][2]int64{{1, m.offset}, {o.rows - 1, m.pitch}, {p.batch - 1, m.stride}, {1, o.cols}}) {
			return p, fmt.Errorf("%s: %d x %d elements from %d on, %d from row to row and %d from matrix to matrix: rows overlap, or the matrices are not within the tensor's %d elements", o.name, o.rows, o.cols, m.offset, m.pitch, m.stride, have)
		}
	}
	return p, nil
}

// elements returns the number of elements of a tensor; 0 if it does not fit in an int64.
func elements(shape []int64) int64 {
	n := int64(1)
	for _, e := range shape {
		hi, lo := bits.Mul64(uint64(n), uint64(e))
		if e < 0 || hi != 0 || lo > math.MaxInt64 {
			return 0
		}
		n = int64(lo)
	}
	return n
}

// within reports whether steps, pairs of a count and a length, fit in have elements. The
// numbers come from programs, so the order of operations avoids overflow.
func within(have int64, steps [][2]int64) bool {
	for _, s := range steps {
		if s[0] > 0 && s[1] > have/s[0] {
			return false
		}
		have -= s[0] * s[1]
	}
	return have >= 0
}

// dims returns a list of n numbers.
func dims(attrs []program.Attr, name string, n int) ([]int64, error) {
	for _, a := range attrs {
		if a.Name != name || a.Kind != program.AttrDims || len(a.Dims) != n {
			continue
		}
		out := make([]int64, n)
		for i, d := range a.Dims {
			v, ok := d.Const()
			if !ok {
				return nil, fmt.Errorf("attribute %s: %s is no constant", a, d)
			}
			out[i] = v
		}
		return out, nil
	}
	return nil, fmt.Errorf("no attribute %s of %d numbers", name, n)
}

// computes reports whether the routine takes the dtypes.
func (p *problem) computes() bool {
	return (p.in == dtype.BF16 || p.in == dtype.F16 || p.in == dtype.F32) && (p.out == p.in || p.out == dtype.F32)
}

// align returns the known alignment in bytes of all rows of the matrices: that of the
// tensor's memory, the offset and the strides.
func (p *problem) align(m matrix, dt dtype.DType) int {
	n := int64(baseAlign)
	size := int64(dt.Bits() / 8)
	for _, v := range []int64{m.offset, m.pitch, m.stride} {
		for v*size%n != 0 {
			n /= 2
		}
	}
	return int(n)
}

// String returns the problem as Key.GEMM.
func (p *problem) String() string {
	w, x, tf32 := "by row", "", ""
	if p.byDepth {
		w = "by depth"
	}
	if p.xByDepth {
		x = " by depth"
	}
	if p.tf32 {
		tf32 = ", tf32"
	}
	text := func(m matrix, dt dtype.DType) string {
		return fmt.Sprintf("%d/%d@%d", m.pitch, m.stride, p.align(m, dt))
	}
	return fmt.Sprintf("%d x %d x %d, %d times, %s to %s, x %s%s, w %s %s, y %s%s", p.rows, p.cols, p.depth, p.batch, p.in, p.out,
		text(p.x, p.in), x, text(p.w, p.in), w, text(p.y, p.out), tf32)
}
