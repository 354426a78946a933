package cuda

import (
	"fmt"
	"slices"

	"pwc/compile/loop"
	"pwc/ir/dim"
)

// ready writes what a product does as soon as the kernel before is done: the loads
// that its epilogue makes ahead and, with f, what puts a lane's parts of x at hand,
// which are in memory or made by the lead.
func (e *emitter) ready(f *fused, p productShape, o *epilogue) {
	if f == nil {
		e.line("const auto ready = [&]() {")
		e.depth++
		o.loads()
		e.depth--
		e.line("};")
		return
	}
	depth, _ := e.k.MatMul.K.Const()
	if f.lead != nil {
		e.lead(f, p, o)
		return
	}
	choice := e.k.MatMul.Select != nil
	if choice { // a block without a matrix has no product that would call ready
		o.loads()
	}
	e.line("const auto ready = [&](%s &to, int k, int end) {", p.partsOfX(depth))
	e.depth++
	e.line("#pragma unroll")
	e.open("for (int b = 0; b < %d; b++)", p.m)
	row := "first_row"
	if p.m > 1 {
		row = "min(first_row + b, rows - 1)"
	}
	e.line("const uint4 *row = (const uint4 *)(x + %s * x_row);", row)
	e.line("#pragma unroll")
	e.line("for (int t = 0; t < %d; t++) to.put(b, t, k + t * 32 < end ? row[k + t * 32] : make_uint4(0, 0, 0, 0));", p.parts(depth))
	e.close()
	if !choice {
		o.loads()
	}
	e.depth--
	e.line("};")
}

// lead writes ready for a row of x that the nest before the product makes, every
// group of warps for itself. What it reads of weights is requested before the
// kernel before is done.
func (e *emitter) lead(f *fused, p productShape, o *epilogue) {
	depth, _ := e.k.MatMul.K.Const()
	parts := p.parts(depth)
	exact := depth/8%int64(p.split*32) == 0
	le := e.emitter(f.lead)
	early := le.earlyVectors(p, parts, exact)
	for _, ph := range f.lead.Phases {
		for _, in := range ph.Body {
			if in.Op.Reduces() && p.split > 1 {
				e.line("__shared__ float room%d[%d];", in.Dst, p.warps)
			}
		}
	}
	e.line("const auto ready = [&](%s &to, int k, int end) {", p.partsOfX(depth))
	e.depth++
	o.loads()
	s := &site{width: 8, rows: []string{"first_row"}, cols: []string{"c"}, pos: "c", warps: p.split}
	kept := le.keep(s, rowPlan{warps: p.split, trips: parts}, early)
	for i, ph := range f.lead.Phases {
		le.row(ph.Row, s)
		if len(ph.Body) == 0 {
			continue
		}
		for _, in := range ph.Body {
			if in.Op.Reduces() {
				e.line("float s%d = %s;", in.Dst, le.reduction(in).start)
			}
		}
		e.line("#pragma unroll")
		e.open("for (int t = 0; t < %d; t++)", parts)
		if !exact {
			e.open("if (k + t * 32 < end)")
		}
		e.line("const %s c = (k + t * 32) * 8;", e.index())
		at := *s
		load, keep, _ := kept.hooks(i)
		at.keep = keep
		at.load = func(in loop.Instr) (string, bool) {
			if name, ok := early.find(in.Access); ok {
				return name + "[t]", true
			}
			if load == nil {
				return "", false
			}
			return load(in)
		}
		puts := false
		at.store = func(in loop.Instr, vector string) {
			e.line("to.put(0, t, %s(%s));", e.use("bits"), vector)
			puts = true
		}
		le.columns(ph.Body, &at)
		if !exact {
			e.close()
			if puts {
				e.line("else to.put(0, t, make_uint4(0, 0, 0, 0));")
			}
		}
		e.close()
		for _, in := range ph.Body {
			if in.Op.Reduces() {
				room := "(float *)nullptr"
				if p.split > 1 {
					room = fmt.Sprintf("room%d", in.Dst)
				}
				le.define(in, fmt.Sprintf("%s<%s, %d>(s%d, %s)", e.use("reduce_slices"), le.reduction(in).op, p.split, in.Dst, room))
			}
		}
	}
	e.depth--
	e.line("};")
}

// requested is the vectors of a row that are requested while the kernel before runs. They are at
// hand in all phases.
type requested []request

type request struct {
	access *loop.Access
	name   string // of a thread's parts
}

// find returns the name of the vector that an access reaches.
func (r requested) find(a *loop.Access) (name string, ok bool) {
	for _, v := range r {
		if sameElements(v.access, a) {
			return v.name, true
		}
	}
	return "", false
}

// earlyVectors requests the vectors of a row that are the same for all rows and
// that no kernel writes.
func (e *emitter) earlyVectors(p productShape, parts int64, exact bool) requested {
	var out requested
	if !e.dependent() {
		return out
	}
	depth, _ := e.k.Cols[0].Const()
	for _, in := range e.sameForRows(parts) {
		if len(out) == 0 {
			e.line("const int early = %d * (threadIdx.x / 32 %% %d) / %d + threadIdx.x %% 32, early_end = %d * (threadIdx.x / 32 %% %d + 1) / %d;", depth/8, p.split, p.split, depth/8, p.split, p.split)
		}
		exists := "early + t * 32 < early_end"
		if exact {
			exists = ""
		}
		out = e.loadEarly(out, in, 8, parts, "early + t * 32", exists)
	}
	return out
}

// sameForRows lists the first loads of vectors that are the same for all rows and that no kernel
// writes: as many as a lane requests early if each has so many parts.
func (e *emitter) sameForRows(parts int64) []loop.Instr {
	var out []loop.Instr
	for _, ph := range e.k.Phases {
		for _, in := range ph.Body {
			a := in.Access
			if in.Op != loop.Load || a.Arg < 0 || !e.k.Args[a.Arg].Const || a.Index != nil || !isConst(inner(a), 1) || int64(len(out)+1)*parts > earlyMost {
				continue
			}
			if !slices.ContainsFunc(a.Rows, func(d dim.Dim) bool { return !isConst(d, 0) }) && !slices.ContainsFunc(out, func(o loop.Instr) bool { return sameElements(o.Access, a) }) {
				out = append(out, in)
			}
		}
	}
	return out
}

// loadEarly writes the loads of a vector's parts, each of which is the t-th of a lane: group
// of so many elements, if it exists. It returns those that are requested with this one.
func (e *emitter) loadEarly(others requested, in loop.Instr, width int, parts int64, group, exists string) requested {
	a := in.Access
	t := fmt.Sprintf("vec<%s, %d>", e.storage(e.k.Args[a.Arg].DType), width)
	name := fmt.Sprintf("early%d", in.Dst)
	e.use("vec")
	e.line("%s %s[%d];", t, name, parts)
	e.line("#pragma unroll")
	x := fmt.Sprintf("load<%d>(a%d + %s)", width, a.Arg, sum(e.offset(a.Offset), fmt.Sprintf("(%s) * %d", group, width)))
	if exists != "" {
		x = fmt.Sprintf("%s ? %s : %s()", exists, x, t)
	}
	e.line("for (int t = 0; t < %d; t++) %s[t] = %s;", parts, name, x)
	return append(others, request{a, name})
}

// earlyMost is how many vectors a lane requests early at most.
const earlyMost = 4
