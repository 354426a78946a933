package compile

import (
	"slices"

	"pwc/ir/dim"
	"pwc/program"
)

// freeDims adds the attribute that lists the dims of a launch that are not proved to be at most
// the number of elements of a buffer of the step, such as numbers that the kernel computes with.
// When a launch is bound, the device checks the other dims against the sizes of buffers.
func (e *emitter) freeDims(s *program.Step) {
	i := slices.IndexFunc(s.Launch.Attrs, func(a program.Attr) bool { return a.Name == program.LaunchDims })
	if i < 0 {
		return
	}
	var sizes []dim.Dim
	for _, a := range s.Args {
		n := dim.Const(1)
		for _, d := range e.p.Buffers[a].Shape {
			n = n.Mul(d)
		}
		if !slices.ContainsFunc(sizes, n.Equal) {
			sizes = append(sizes, n)
		}
	}
	var free []dim.Dim
	for j, d := range s.Launch.Attrs[i].Dims {
		if !slices.ContainsFunc(sizes, func(n dim.Dim) bool { return e.atMost(d, n) }) {
			free = append(free, dim.Const(int64(j)))
		}
	}
	if len(free) > 0 {
		s.Launch.Attrs = append(slices.Clone(s.Launch.Attrs), program.Attr{Name: program.LaunchFree, Kind: program.AttrDims, Dims: free})
	}
}

// maxTried is the largest number of values of a symbol for which atMost evaluates both sides.
const maxTried = 4096

// atMost reports whether d <= n is proved for all values of symbols. It may return false
// although d <= n holds.
func (e *emitter) atMost(d, n dim.Dim) bool {
	symbol := func(name string) (dim.Interval, bool) {
		r, ok := e.ranges[name]
		return r, ok
	}
	if b, ok := n.Sub(d).Bounds(symbol); ok && b.Lo >= 0 {
		return true
	}
	names := n.Sub(d).Symbols()
	if len(names) != 1 {
		return false
	}
	r, ok := e.ranges[names[0]]
	if !ok || r.Lo > r.Hi || uint64(r.Hi)-uint64(r.Lo) >= maxTried {
		return false
	}
	for v := r.Lo; ; v++ { // Bounds is not tight if terms with quotients depend on the same symbol
		at := func(string) (int64, bool) { return v, true }
		x, err1 := d.Eval(at)
		y, err2 := n.Eval(at)
		if err1 != nil || err2 != nil || x > y {
			return false
		}
		if v == r.Hi {
			return true
		}
	}
}
