package host

import (
	"cmp"
	"slices"

	"pwc/program/vec"
)

// selector is a vec.MatSelect bound to memory.
type selector struct {
	access                // of the indices, by row
	batch          []axis // axes of B's batches, by row
	stride, extent int64
	fault          *fault
}

// selected is a row with its matrix B.
type selected struct {
	row  int64
	base int64 // address of B
	none bool  // the index is out of range
}

// bindSelect binds the indices and proves that their addresses are within the buffer.
func (k *kernel) bindSelect(z *sizer, m *vec.MatSelect, outer []int64, data []byte, faults map[int32]*fault) *selector {
	x := &selector{stride: z.eval(m.Stride), extent: z.eval(m.Extent), fault: faults[m.Origin]}
	strides := z.evalAll(m.Outer)
	x.dtype, x.offset, x.outer = m.DType, z.eval(m.Offset), merge(nil, outer, strides)
	reach := span{x.offset, x.offset}
	for i, n := range outer {
		reach = z.add(reach, n, strides[i])
	}
	if z.err == nil && k.rows > 0 && k.cols > 0 {
		if err := within(reach, data, m.DType); err != nil {
			z.fail(err)
		}
	}
	if z.err == nil {
		if err := x.memory(data); err != nil {
			z.fail(err)
		}
	}
	return x
}

// group returns the rows [r0, r0+n) ordered by their matrix, so that rows with the same matrix
// are computed together. Rows whose index is out of range come first.
func (mm *matMul) group(list []selected, r0, n int64) []selected {
	x := mm.sel
	list = resize(list, int(n))
	var at [1]int64
	for i := range list {
		r := r0 + int64(i)
		x.getI(at[:], x.row(r), 0)
		if p := at[0]; p < 0 || p >= x.extent {
			x.fault.set()
			list[i] = selected{row: r, none: true}
		} else {
			list[i] = selected{row: r, base: mm.b.offset + addr(x.batch, r) + p*x.stride}
		}
	}
	slices.SortFunc(list, func(a, b selected) int {
		if a.none != b.none {
			if a.none {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.base, b.base), cmp.Compare(a.row, b.row))
	})
	return list
}

// runSelected is run for rows with different B. The rows of a part may be of several batches.
func (mm *matMul) runSelected(k *kernel, part int64, l *lane) {
	n0 := part / mm.countM * mm.tileN
	r0 := part % mm.countM * mm.tileM
	cols := int(min(mm.tileN, mm.n-n0))
	l.fit(k)
	s := &l.mat
	s.rows = mm.group(s.rows, r0, min(mm.tileM, mm.m-r0))
	l.vec.exec(k.setup, k.block)
	l.vec.sumsAt = n0
	for list := s.rows; len(list) > 0; {
		n := 1
		for n < min(len(list), tileRows) && list[n].base == list[0].base && list[n].none == list[0].none {
			n++
		}
		if list[0].none {
			s.c = resize(s.c, n*cols)
			clear(s.c)
		} else {
			s.at = resize(s.at, n)
			for i, r := range list[:n] {
				s.at[i] = mm.a.access.row(r.row)
			}
			if !mm.sums(l, list[0].base+n0*mm.b.row, cols) {
				return
			}
		}
		for i, r := range list[:n] {
			l.vec.sums = s.c[i*cols : (i+1)*cols]
			if !k.row(r.row, n0, n0+int64(cols), l) {
				return
			}
		}
		list = list[n:]
	}
	l.vec.sums = nil
}
