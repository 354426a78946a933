package nest

import (
	"slices"

	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// HalfOperands reports whether the operands of a GEMM have the same 16-bit float type, and the elements
// of each of their rows are contiguous along k and begin at a multiple of 16 bytes.
func HalfOperands(k *loop.Kernel) bool {
	m := k.MatMul
	if m.Select != nil && !Multiple(m.Select.Stride, 8) {
		return false
	}
	dt := k.Args[m.A.Arg].DType
	if dt != k.Args[m.B.Arg].DType || dt != dtype.BF16 && dt != dtype.F16 {
		return false
	}
	for _, o := range []*loop.Operand{&m.A, &m.B} {
		if !IsConst(o.Col, 1) || !Multiple(o.Offset, 8) || !Multiple(o.Row, 8) || slices.ContainsFunc(o.Batch, func(d dim.Dim) bool { return !Multiple(d, 8) }) {
			return false
		}
	}
	return true
}

// maxWidth is the most neighbouring columns that a thread visits at once: two
// accesses of 16 bytes for 32-bit elements.
const maxWidth = 8

// VectorWidth returns how many neighbouring columns a thread visits at once, at most maxWidth: as many as
// fill 16 bytes of the narrowest argument that is read or written along the columns, or half of that and
// so on until every such access is aligned for all sizes. Buffers are aligned to 64 bytes, so offsets
// and strides decide. With several scans the width is 1.
func VectorWidth(k *loop.Kernel) int {
	if len(k.Cols) == 0 {
		return 1
	}
	last := len(k.Cols) - 1
	bytes, scans := 0, 0
	aligned := []dim.Dim{k.Cols[last]} // what must be a multiple of the width
	for in := range Bodies(k) {
		a := in.Access
		if in.Op == loop.CumSum {
			scans++
		}
		if a == nil || a.Arg < 0 || PerColumn(k, a) || !IsConst(Inner(a), 1) {
			continue
		}
		size := (k.Args[a.Arg].DType.Bits() + 7) / 8
		if bytes == 0 || size < bytes {
			bytes = size
		}
		aligned = append(append(append(aligned, a.Offset), a.Rows...), a.Cols[:last]...)
		if a.Index != nil {
			aligned = append(aligned, a.Index.Stride)
		}
	}
	if bytes == 0 || scans > 1 {
		return 1
	}
	for v := min(16/bytes, maxWidth); v > 1; v /= 2 {
		if !slices.ContainsFunc(aligned, func(d dim.Dim) bool { return !Multiple(d, v) }) {
			return v
		}
	}
	return 1
}

// Inner is the coefficient of the innermost column axis.
func Inner(a *loop.Access) dim.Dim {
	if len(a.Cols) == 0 {
		return dim.Dim{}
	}
	return a.Cols[len(a.Cols)-1]
}

// PerColumn reports whether the index that an access reads from memory differs between the
// columns of a row.
func PerColumn(k *loop.Kernel, a *loop.Access) bool {
	return a.Index != nil && !k.Values[a.Index.At].Row
}

// SameElements reports whether two accesses are known to reach the same elements, at all rows and columns.
func SameElements(a, b *loop.Access) bool {
	same := func(x, y []dim.Dim) bool {
		for i := range x {
			if !x[i].Equal(y[i]) {
				return false
			}
		}
		return true
	}
	if a.Index != nil || b.Index != nil {
		if a.Index == nil || b.Index == nil || a.Index.At != b.Index.At || !a.Index.Stride.Equal(b.Index.Stride) {
			return false
		}
	}
	return a.Arg == b.Arg && a.Offset.Equal(b.Offset) && same(a.Rows, b.Rows) && same(a.Cols, b.Cols)
}

// AcrossRows reports whether neighbouring elements in memory belong to neighbouring rows in more accesses
// than to neighbouring columns. Loads are then coalesced if neighbouring threads have neighbouring rows.
func AcrossRows(k *loop.Kernel) bool {
	along, across := 0, 0
	for in := range Bodies(k) {
		a := in.Access
		if a == nil || a.Arg < 0 || a.Index != nil {
			continue
		}
		switch {
		case IsConst(Inner(a), 1):
			along++
		case len(a.Rows) > 0 && IsConst(a.Rows[len(a.Rows)-1], 1):
			across++
		}
	}
	return across > along
}
