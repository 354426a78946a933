package compile

import "pwc/ir/dim"

// A coord is an index along one axis of a value, as an affine function of the loop axes
// of a group: off + Σ coef*axis, plus an indirect part if the index comes from a tensor.
// An instruction computes a value at one coord for each axis of the value.
type coord struct {
	off   dim.Dim
	terms []term    // row-major: the first varies slowest
	ind   *indirect // nil: none
	free  bool      // undecided: along a broadcast axis, for which any loop axis may be used
}

// term is one loop axis times a coefficient.
type term struct {
	axis int
	coef dim.Dim
}

// indirect is an index from a tensor, times coef. at is the number of the instruction that
// computes the index. With an index outside [0, extent), a load reads zero and a store does nothing.
type indirect struct {
	at     int
	coef   dim.Dim
	extent dim.Dim
}

var one = dim.Const(1)

func isConst(d dim.Dim, k int64) bool { v, ok := d.Const(); return ok && v == k }

func isOne(d dim.Dim) bool { return isConst(d, 1) }

func isZero(d dim.Dim) bool { return isConst(d, 0) }

// axisCoord is the coord that is the loop axis itself.
func axisCoord(axis int) coord { return coord{terms: []term{{axis, one}}} }

// scaled returns start + step*c.
func (c coord) scaled(start, step dim.Dim) coord {
	out := coord{off: start.Add(step.Mul(c.off)), free: c.free}
	for _, t := range c.terms {
		out.terms = append(out.terms, term{t.axis, step.Mul(t.coef)})
	}
	if c.ind != nil {
		out.ind = &indirect{c.ind.at, step.Mul(c.ind.coef), c.ind.extent}
	}
	return out
}

// plus returns c + d, and false when both have an indirect part.
func (c coord) plus(d coord) (coord, bool) {
	if c.ind != nil && d.ind != nil {
		return coord{}, false
	}
	out := coord{off: c.off.Add(d.off), ind: c.ind}
	if d.ind != nil {
		out.ind = d.ind
	}
	out.terms = append(append(out.terms, c.terms...), d.terms...)
	return out, true
}

// equalCoords reports whether coords over leaf axes are equal.
func equalCoords(a, b []coord) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].equal(b[i]) {
			return false
		}
	}
	return true
}

func (c coord) equal(d coord) bool {
	if c.free || d.free || !c.off.Equal(d.off) || len(c.terms) != len(d.terms) || (c.ind == nil) != (d.ind == nil) {
		return false
	}
	if c.ind != nil && (c.ind.at != d.ind.at || !c.ind.coef.Equal(d.ind.coef)) {
		return false
	}
	for i := range c.terms {
		if c.terms[i].axis != d.terms[i].axis || !c.terms[i].coef.Equal(d.terms[i].coef) {
			return false
		}
	}
	return true
}

// stretch returns the coords of an operand that broadcasts to a result with the given
// coords: axes align at the right, and axes of extent 1 are repeated.
func stretch(result []coord, operand []dim.Dim) []coord {
	out := make([]coord, len(operand))
	lead := len(result) - len(operand)
	for i, d := range operand {
		if !isOne(d) {
			out[i] = result[lead+i]
		}
	}
	return out
}

// contiguous returns the strides of a contiguous tensor.
func contiguous(shape []dim.Dim) []dim.Dim {
	out := make([]dim.Dim, len(shape))
	s := one
	for i := len(shape) - 1; i >= 0; i-- {
		out[i] = s
		s = s.Mul(shape[i])
	}
	return out
}

// reshape turns the coords of a value of shape from into those of the same
// element (in row-major order) of a value of shape to. Axes are matched in
// segments of equal product, from the right. Joining axes is affine. Splitting an
// axis needs loop axes that run over all of it exactly once; they are split, too. It returns
// false if the coords have no such form, and if an axis of extent 1 would be dropped whose index
// comes from a tensor: that index must still read zero if it is out of range.
func (g *group) reshape(from []dim.Dim, coords []coord, to []dim.Dim) ([]coord, bool) {
	out := make([]coord, len(to))
	i, j := len(from)-1, len(to)-1
	for i >= 0 || j >= 0 {
		if i >= 0 && isOne(from[i]) {
			if coords[i].ind != nil {
				return nil, false
			}
			i--
			continue
		}
		if j >= 0 && isOne(to[j]) {
			j--
			continue
		}
		if i < 0 || j < 0 {
			return nil, false
		}
		fi, tj := i, j
		pf, pt := from[i], to[j]
		for !pf.Equal(pt) {
			_, more := pt.Div(pf)
			_, less := pf.Div(pt)
			switch {
			case fi > 0 && (more || !less || tj == 0):
				fi--
				pf = pf.Mul(from[fi])
			case tj > 0:
				tj--
				pt = pt.Mul(to[tj])
			default:
				return nil, false
			}
		}
		if !g.segment(from[fi:i+1], coords[fi:i+1], to[tj:j+1], out[tj:j+1]) {
			return nil, false
		}
		i, j = fi-1, tj-1
	}
	return out, true
}

// segment is reshape for axes whose products are equal.
func (g *group) segment(from []dim.Dim, coords []coord, to []dim.Dim, out []coord) bool {
	if len(from) == 1 && len(to) == 1 {
		out[0] = coords[0]
		return true
	}
	free := 0
	wide := 0
	for i, c := range coords {
		if !isOne(from[i]) {
			wide++
			if c.free {
				free++
			}
		}
	}
	if free > 0 {
		if free < wide {
			return false
		}
		for j, d := range to {
			out[j] = coord{free: !isOne(d)}
		}
		return true
	}
	if len(to) == 1 {
		sum := coord{}
		stride := one
		for i := len(from) - 1; i >= 0; i-- {
			c, ok := coords[i].scaled(dim.Dim{}, stride).plus(sum)
			if !ok {
				return false
			}
			sum, stride = c, stride.Mul(from[i])
		}
		out[0] = sum
		return true
	}
	var list []int // leaf axes that cover the segment, row-major
	for i, c := range coords {
		axes, ok := g.cover(c, from[i])
		if !ok {
			return false
		}
		list = append(list, axes...)
	}
	for j := len(to) - 1; j >= 0; j-- {
		c, rest, ok := g.take(list, to[j])
		if !ok {
			return false
		}
		out[j], list = c, rest
	}
	return len(list) == 0
}

// cover returns the leaf axes of a coord, row-major, if they run over all of an axis of
// that extent exactly once.
func (g *group) cover(c coord, extent dim.Dim) ([]int, bool) {
	if c.ind != nil {
		return nil, false
	}
	if isOne(extent) {
		return nil, true
	}
	c = g.leaves(c)
	if c.free || !isZero(c.off) {
		return nil, false
	}
	axes := make([]int, len(c.terms))
	stride := one
	for i := len(c.terms) - 1; i >= 0; i-- {
		t := c.terms[i]
		if !t.coef.Equal(stride) {
			return nil, false
		}
		axes[i] = t.axis
		stride = stride.Mul(g.axes[t.axis].extent)
	}
	return axes, stride.Equal(extent)
}
