package padding

import (
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// Mixing is a reason why a function cannot be padded, such as a node that mixes rows, or a
// padded row that may report an index out of range.
type Mixing struct {
	Node int       // index into Func.Nodes; -1: a parameter, a result or the size symbol
	Err  *ir.Error // position, loc and reason
}

// SizeSymbol returns the symbol that counts the rows of a run of f: the first batch symbol
// in the leading extents of its results. If they have none, it is the first in the leading
// extents of parameters, then in any extent of results, then of parameters. It returns false
// if there is no such symbol.
func SizeSymbol(m *ir.Module, f *ir.Func) (string, bool) {
	params := make([]ir.Type, len(f.Params))
	for i, p := range f.Params {
		params[i] = f.Values[p].Type
	}
	for _, axes := range []int{1, -1} { // of each type; -1: all
		for _, types := range [][]ir.Type{f.ResultTypes, params} {
			if s, ok := firstBatch(m, types, axes); ok {
				return s, true
			}
		}
	}
	return "", false
}

// firstBatch returns the first batch symbol in the first axes extents of each type; axes < 0:
// in all extents.
func firstBatch(m *ir.Module, types []ir.Type, axes int) (string, bool) {
	for _, t := range types {
		for axis, d := range t.Shape {
			if axes >= 0 && axis >= axes {
				break
			}
			for _, name := range d.Symbols() {
				if s := m.Symbol(name); s != nil && s.Kind == ir.Batch {
					return name, true
				}
			}
		}
	}
	return "", false
}

// Check returns the reasons why f cannot be padded over the batch symbol size, in program
// order; nil proves that it can be padded. Parameters that slots names or that are declared "padded -1"
// are promised to hold −1 in all padded rows. Other integer and bool parameters hold 0 there, and
// float parameters may hold anything.
//
// Rows of parameters and results must be along the first axis, so that real rows are
// one range of memory.
func Check(m *ir.Module, f *ir.Func, size string, slots ...string) []Mixing {
	return check(m, f, size, slots, false)
}

// CheckIndices is like Check, but if gather or embedding takes rows of a tensor of batch rows,
// it trusts indices to be those of real rows, or out of range. It is for symbols that count rows
// which the function only gathers: memory may hold more of these rows than are real.
func CheckIndices(m *ir.Module, f *ir.Func, size string) []Mixing {
	return check(m, f, size, nil, true)
}

func check(m *ir.Module, f *ir.Func, size string, slots []string, trusted bool) []Mixing {
	c := &checker{m: m, f: f, size: size, s: dim.Sym(size), mixed: make([]bool, len(f.Values)), slot: make([]bool, len(f.Values)), held: make([]held, len(f.Values)), trusted: trusted}
	if sym := m.Symbol(size); sym == nil || sym.Kind != ir.Batch {
		c.report(-1, ir.Pos{}, fmt.Sprintf("@%s cannot be padded: %s is no batch symbol of the module", f.Name, size))
		return c.found
	}
	c.outside(slots)
	for i, p := range f.Params {
		info := &f.Values[p]
		c.slot[p] = info.Padded || slices.Contains(slots, info.Name)
		why := c.rowsOf(info.Type).why
		if axis := c.axis(p); why == "" && axis > 0 {
			why = fmt.Sprintf("its rows lie along axis %d, so that real rows are not one range of memory", axis)
		}
		if why != "" {
			c.mixed[p] = true
			c.report(-1, info.Pos, fmt.Sprintf("parameter %d (%%%s, %s) cannot be padded over %s: %s", i, info.Name, info.Type, size, why))
		}
	}
	for i, n := range f.Nodes {
		c.node(i, n)
	}
	for i, v := range f.Returns {
		if axis := c.axis(v); axis > 0 && !c.mixed[v] {
			c.report(-1, f.ReturnPos, fmt.Sprintf("result %d (%s) cannot be padded over %s: its rows lie along axis %d, so that real rows are not one range of memory", i, f.ResultTypes[i], size, axis))
		}
	}
	return c.found
}

// checker is one run of the analysis, in program order.
type checker struct {
	m       *ir.Module
	f       *ir.Func
	size    string
	s       dim.Dim
	mixed   []bool // by value; the type of a value that is not mixed determines its class
	slot    []bool // by value: all its elements in padded rows are −1
	held    []held // by value, for integers and bools
	trusted bool   // see CheckIndices
	found   []Mixing
}

func (c *checker) report(node int, pos ir.Pos, msg string) {
	e := c.m.ErrorAt(c.f, node, "%s", msg)
	if node < 0 {
		e.Pos = pos
	}
	c.found = append(c.found, Mixing{Node: node, Err: e})
}

// rows tells where a type has its rows.
type rows struct {
	axis  int     // -1: the type has no rows
	group dim.Dim // number of elements along the axis that are one row
	why   string  // why the type is neither uniform nor has rows; else ""
}

// rowsOf finds the rows of a type.
func (c *checker) rowsOf(t ir.Type) rows {
	r := rows{axis: -1}
	for i, d := range t.Shape {
		if !c.has(d) {
			continue
		}
		g, ok := d.Div(c.s)
		switch {
		case r.axis >= 0:
			return rows{axis: -1, why: fmt.Sprintf("%s is in axes %d and %d", c.size, r.axis, i)}
		case !ok || c.has(g):
			return rows{axis: -1, why: fmt.Sprintf("extent %s of axis %d is no multiple of %s", d, i, c.size)}
		}
		r = rows{axis: i, group: g}
	}
	return r
}

// has reports whether the size symbol is in d.
func (c *checker) has(d dim.Dim) bool {
	if _, ok := d.Const(); ok {
		return false
	}
	return slices.Contains(d.Symbols(), c.size)
}

func (c *checker) anyHas(ds []dim.Dim) bool { return slices.ContainsFunc(ds, c.has) }

// axis returns the axis that holds the rows of v, or -1.
func (c *checker) axis(v ir.Value) int { return c.rowsOf(c.f.Values[v].Type).axis }

// node classes the results and versions of one node.
func (c *checker) node(i int, n *ir.Node) {
	why := ""
	spoilt := !n.IsEmpty() && slices.ContainsFunc(n.Args, func(a ir.Value) bool { return c.mixed[a] })
	if !spoilt {
		if why = c.rule(n); why != "" {
			why = fmt.Sprintf("%s mixes rows of %s: %s", n.Name(), c.size, why)
		}
	}
	for j, r := range n.Results {
		if t := c.f.Values[r].Type; why == "" && !spoilt {
			if got := c.rowsOf(t); got.why != "" {
				why = fmt.Sprintf("%s: result %d (%s) cannot be padded over %s: %s", n.Name(), j, t, c.size, got.why)
			} else if got.axis < 0 && c.losesRows(n) {
				why = fmt.Sprintf("%s mixes rows of %s: result %d (%s) has no rows, but an operand does", n.Name(), c.size, j, t)
			}
		}
	}
	bad := spoilt || why != ""
	if !bad {
		why = c.indices(n)
	}
	if why != "" {
		c.report(i, n.Pos, why)
	}
	for _, r := range n.Results {
		c.mixed[r] = bad
		c.slot[r] = !bad && c.keepsSlots(n)
	}
	for _, w := range n.Versions {
		c.mixed[w.Value] = bad
	}
	c.hold(n)
}

// losesRows reports whether an operand has rows that a result of n must have too. Ops
// of the table keep rows, except for slice, which may pick rows that are always real,
// allocations, which do not read their operand, and ops that pick rows (picks). An extern op
// declared split is trusted. Other extern ops may have operands with rows only if they are
// declared rowwise.
func (c *checker) losesRows(n *ir.Node) bool {
	if n.Op.ID == ir.OpSlice || n.IsEmpty() || n.Extern != nil && (n.Extern.Split || !n.Extern.Rowwise) || c.picks(n) {
		return false
	}
	return slices.ContainsFunc(n.Args, func(a ir.Value) bool { return c.axis(a) >= 0 })
}

// picks reports whether n takes rows at indices that are trusted.
func (c *checker) picks(n *ir.Node) bool {
	if !c.trusted || n.Op.ID != ir.OpGather && n.Op.ID != ir.OpEmbedding {
		return false
	}
	r := c.rowsOf(c.f.Values[n.Args[0]].Type)
	return r.axis == 0 && r.group.Equal(dim.Const(1)) && (n.Op.ID == ir.OpEmbedding || c.attrAxis(n) == 0)
}

// keepsSlots reports whether n moves or repeats the elements of its operand
// within rows, and −1 stays −1.
func (c *checker) keepsSlots(n *ir.Node) bool {
	if len(n.Args) == 0 || !c.slot[n.Args[0]] {
		return false
	}
	if n.Op.ID == ir.OpCast {
		dt := c.f.Values[n.Results[0]].Type.DType
		return dt.Int() && dt.Wrap(-1) == -1
	}
	return n.Op.Lowering == ir.LowerView
}
