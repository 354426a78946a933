package cuda

import (
	"fmt"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/loop"
)

// ready writes what a product does as soon as the kernel before is done: the loads
// that its epilogue makes ahead and, with f, what puts a lane's parts of x at hand,
// which are in memory or made by the lead.
func (e *emitter) ready(f *fused, p productShape, o *epilogue) {
	if f == nil {
		e.Open("const auto ready = [&]()")
		o.loads()
		e.CloseLambda()
		return
	}
	depth, _ := e.K.MatMul.K.Const()
	if f.lead != nil {
		e.lead(f, p, o)
		return
	}
	choice := e.K.MatMul.Select != nil
	if choice { // a block without a matrix has no product that would call ready
		o.loads()
	}
	e.Open("const auto ready = [&](%s &to, int k, int end)", p.partsOfX(depth))
	e.Line("#pragma unroll")
	e.Open("for (int b = 0; b < %d; b++)", p.m)
	row := "first_row"
	if p.m > 1 {
		row = "min(first_row + b, rows - 1)"
	}
	e.Line("const uint4 *row = (const uint4 *)(x + %s * x_row);", row)
	e.Line("#pragma unroll")
	e.Line("for (int t = 0; t < %d; t++) to.put(b, t, k + t * 32 < end ? row[k + t * 32] : make_uint4(0, 0, 0, 0));", p.parts(depth))
	e.Close()
	if !choice {
		o.loads()
	}
	e.CloseLambda()
}

// lead writes ready for a row of x that the nest before the product makes, every
// group of warps for itself. What it reads of weights is requested before the
// kernel before is done.
func (e *emitter) lead(f *fused, p productShape, o *epilogue) {
	depth, _ := e.K.MatMul.K.Const()
	parts := p.parts(depth)
	exact := depth/8%int64(p.split*32) == 0
	le := e.emitter(f.lead)
	early := le.earlyVectors(p, parts, exact)
	for _, ph := range f.lead.Phases {
		for _, in := range ph.Body {
			if in.Op.Reduces() && p.split > 1 {
				e.Line("__shared__ float room%d[%d];", in.Dst, p.warps)
			}
		}
	}
	e.Open("const auto ready = [&](%s &to, int k, int end)", p.partsOfX(depth))
	o.loads()
	s := &cgen.Context{Width: 8, Rows: []string{"first_row"}, Cols: []string{"c"}, Pos: "c", Warps: p.split}
	trips := parts
	if parts > cgen.CacheTrips {
		trips = 0
	}
	kept := le.NewCache(s, trips, early)
	for i, ph := range f.lead.Phases {
		le.Row(ph.Row, s)
		if len(ph.Body) == 0 {
			continue
		}
		for _, in := range ph.Body {
			if in.Op.Reduces() {
				e.Line("float s%d = %s;", in.Dst, le.Reduction(in).Start)
			}
		}
		e.Line("#pragma unroll")
		e.Open("for (int t = 0; t < %d; t++)", parts)
		if !exact {
			e.Open("if (k + t * 32 < end)")
		}
		e.Line("const %s c = (k + t * 32) * 8;", e.Index())
		at := *s
		kept.Attach(&at, i)
		early.Attach(&at, "t")
		puts := false
		at.Sink = func(in loop.Instr, vector string) {
			e.Line("to.put(0, t, %s(%s));", e.Use("bits"), vector)
			puts = true
		}
		le.Columns(ph.Body, &at)
		if !exact {
			e.Close()
			if puts {
				e.Line("else to.put(0, t, make_uint4(0, 0, 0, 0));")
			}
		}
		e.Close()
		for _, in := range ph.Body {
			if in.Op.Reduces() {
				room := "(float *)nullptr"
				if p.split > 1 {
					room = fmt.Sprintf("room%d", in.Dst)
				}
				le.Define(in, fmt.Sprintf("%s<%s, %d>(s%d, %s)", e.Use("reduce_slices"), le.Reduction(in).Op, p.split, in.Dst, room))
			}
		}
	}
	e.CloseLambda()
}

// earlyVectors requests the vectors of a row that are the same for all rows and
// that no kernel writes.
func (e *emitter) earlyVectors(p productShape, parts int64, exact bool) cgen.Prefetched {
	var out cgen.Prefetched
	if !e.GPU.PDL() {
		return out
	}
	depth, _ := e.K.Cols[0].Const()
	for _, in := range e.RowInvariant(parts) {
		if len(out) == 0 {
			e.Line("const int early = %d * (threadIdx.x / 32 %% %d) / %d + threadIdx.x %% 32, early_end = %d * (threadIdx.x / 32 %% %d + 1) / %d;", depth/8, p.split, p.split, depth/8, p.split, p.split)
		}
		exists := "early + t * 32 < early_end"
		if exact {
			exists = ""
		}
		out = e.Prefetch(out, in, 8, parts, "early + t * 32", exists)
	}
	return out
}
