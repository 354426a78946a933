package compile

import (
	"slices"

	"pwc/compile/loop"
	"pwc/ir/dim"
)

// wideRow is the number of columns from which the first axis stays a row axis, because
// workers share the rows.
const wideRow = 512

// coalesce joins neighbouring axes if every access can address them as one axis, so
// that inner loops are long.
func (s *scheduler) coalesce() {
	c := &coalescer{k: s.k}
	for p := range s.k.Phases {
		for _, list := range [][]loop.Instr{s.k.Phases[p].Row, s.k.Phases[p].Body} {
			for i := range list {
				if a := list[i].Access; a != nil {
					c.access = append(c.access, a)
				}
				c.ordered = c.ordered || list[i].Op.Reduces() || list[i].Op == loop.CumSum
			}
		}
	}
	c.rows()
	if s.k.MatMul == nil {
		c.cols()
	}
}

type coalescer struct {
	k       *loop.Kernel
	access  []*loop.Access
	ordered bool // an instruction reduces or scans the columns, so rows may not become columns
}

// rows joins row axes, beginning with the last. If each batch of a GEMM has one row, and B
// does not change along the last batch axis, this axis becomes M.
func (c *coalescer) rows() {
	k := c.k
	if m := k.MatMul; m != nil {
		if last := len(k.Rows) - 1; last > 0 && isOne(k.Rows[last]) && isZero(m.B.Batch[last-1]) {
			m.A.Row = m.A.Batch[last-1]
			m.A.Batch, m.B.Batch = m.A.Batch[:last-1], m.B.Batch[:last-1]
			k.Rows = k.Rows[:last]
			for _, a := range c.access {
				a.Rows = a.Rows[:last]
			}
			if m.Select != nil {
				m.Select.Rows = m.Select.Rows[:last]
			}
		}
	}
	for i := len(k.Rows) - 2; i >= 0; i-- {
		inner := k.Rows[i+1]
		joins := func(rows []dim.Dim) bool { return rows[i].Equal(rows[i+1].Mul(inner)) }
		ok := !slices.ContainsFunc(c.access, func(a *loop.Access) bool { return !joins(a.Rows) })
		if m := k.MatMul; m != nil && ok {
			ok = joins(append(slices.Clone(m.A.Batch), m.A.Row)) && joins(append(slices.Clone(m.B.Batch), dim.Dim{})) &&
				(m.Select == nil || joins(m.Select.Rows))
		}
		if !ok {
			continue
		}
		k.Rows = join(k.Rows, i)
		for _, a := range c.access {
			a.Rows = slices.Delete(slices.Clone(a.Rows), i, i+1)
		}
		if m := k.MatMul; m != nil {
			m.A.Batch = slices.Delete(slices.Clone(m.A.Batch), i, i+1)
			m.B.Batch = slices.Delete(slices.Clone(m.B.Batch), i, i+1)
			if x := m.Select; x != nil {
				x.Rows = slices.Delete(slices.Clone(x.Rows), i, i+1)
			}
		}
	}
}

// join replaces extents i and i+1 by their product.
func join(extents []dim.Dim, i int) []dim.Dim {
	out := slices.Delete(slices.Clone(extents), i, i+1)
	out[i] = extents[i].Mul(extents[i+1])
	return out
}

// cols joins column axes. Then it joins row axes into the columns, if the kernel is parallel
// and has one phase without reductions and scans.
func (c *coalescer) cols() {
	k := c.k
	for i := len(k.Cols) - 2; i >= 0; i-- {
		inner := k.Cols[i+1]
		if slices.ContainsFunc(c.access, func(a *loop.Access) bool { return !a.Cols[i].Equal(a.Cols[i+1].Mul(inner)) }) {
			continue
		}
		k.Cols = join(k.Cols, i)
		for _, a := range c.access {
			a.Cols = slices.Delete(slices.Clone(a.Cols), i, i+1)
		}
	}
	if c.ordered || k.Serial || len(k.Phases) != 1 {
		return
	}
	for len(k.Rows) > 0 && len(k.Cols) == 1 {
		last := len(k.Rows) - 1
		if width, ok := k.Cols[0].Const(); last == 0 && ok && width >= wideRow {
			return
		}
		if slices.ContainsFunc(c.access, func(a *loop.Access) bool { return !a.Rows[last].Equal(a.Cols[0].Mul(k.Cols[0])) }) {
			return
		}
		k.Cols = []dim.Dim{k.Rows[last].Mul(k.Cols[0])}
		k.Rows = k.Rows[:last]
		for _, a := range c.access {
			a.Rows = a.Rows[:last]
		}
	}
}
