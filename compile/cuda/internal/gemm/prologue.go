package gemm

import (
	"fmt"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/loop"
)

// readyFromPrologue writes the code after the dependency wait if the prologue computes the row of
// x: the loads that the epilogue prefetches, then the prologue. Every group of SplitK warps computes the
// whole row. Weights that the prologue reads are prefetched before the wait (see prefetch).
func (w *writer) readyFromPrologue(k GEMV, o *epilogue) {
	p := &prologue{w: w, e: w.Nest(w.fused.Prologue), k: k}
	prefetched := p.prefetch()
	for _, ph := range p.e.K.Phases {
		for _, in := range ph.Body {
			if in.Op.Reduces() && k.SplitK > 1 {
				w.Line("__shared__ float warp_partials%d[%d];", in.Dst, k.Warps)
			}
		}
	}
	w.Open("const auto ready = [&](%s &to, int k, int end)", k.xSlice())
	o.loads()
	s := &cgen.Context{Width: 8, Rows: []string{"first_row"}, Cols: []string{"c"}, Pos: "c", Warps: k.SplitK}
	groups := k.parts()
	if groups > cgen.MaxCachedGroups {
		groups = 0
	}
	cache := p.e.NewCache(s, groups, prefetched)
	for i, ph := range p.e.K.Phases {
		p.e.Row(ph.Row, s)
		if len(ph.Body) == 0 {
			continue
		}
		at := *s
		cache.Attach(&at, i)
		prefetched.Attach(&at, "t")
		p.start(ph)
		p.visit(ph, &at)
		p.reduce(ph)
	}
	w.CloseLambda()
}

// prologue writes the nest before a GEMV.
type prologue struct {
	w *writer
	e *cgen.Emitter // of the nest
	k GEMV
}

// start writes the accumulators of a phase.
func (p *prologue) start(ph loop.Phase) {
	for _, in := range ph.Body {
		if in.Op.Reduces() {
			p.w.Line("float s%d = %s;", in.Dst, p.e.Reduction(in).Start)
		}
	}
}

// visit writes a phase's loop over a lane's parts of the row. Stores go to the lane's slice of x.
func (p *prologue) visit(ph loop.Phase, s *cgen.Context) {
	w, exact := p.w, p.k.exact()
	w.Line("#pragma unroll")
	w.Open("for (int t = 0; t < %d; t++)", p.k.parts())
	if !exact {
		w.Open("if (k + t * 32 < end)")
	}
	w.Line("const %s c = (k + t * 32) * 8;", w.Index())
	puts := false
	s.Sink = func(_ loop.Instr, vector string) {
		w.Line("to.put(0, t, %s(%s));", w.Use("as_uint4"), vector)
		puts = true
	}
	p.e.Columns(ph.Body, s)
	if !exact {
		w.Close()
		if puts {
			w.Line("else to.put(0, t, make_uint4(0, 0, 0, 0));")
		}
	}
	w.Close()
}

// reduce writes the row values of a phase: it reduces over the warps that share the row.
func (p *prologue) reduce(ph loop.Phase) {
	for _, in := range ph.Body {
		if !in.Op.Reduces() {
			continue
		}
		partials := "(float *)nullptr"
		if p.k.SplitK > 1 {
			partials = fmt.Sprintf("warp_partials%d", in.Dst)
		}
		p.e.Define(in, fmt.Sprintf("%s<%s, %d>(s%d, %s)", p.w.Use("split_k_reduce"), p.e.Reduction(in).Op, p.k.SplitK, in.Dst, partials))
	}
}

// prefetch writes, if the GPU has PDL, the loads of vectors that are the same for all rows and that no
// kernel writes, as many as [cgen.Emitter.RowInvariant] lists.
func (p *prologue) prefetch() cgen.Prefetched {
	var out cgen.Prefetched
	if !p.w.GPU.PDL() {
		return out
	}
	depth, split := p.k.Depth, p.k.SplitK
	for _, in := range p.e.RowInvariant(p.k.parts()) {
		if len(out) == 0 {
			p.w.Line("const int first_vector = %d * (threadIdx.x / 32 %% %d) / %d + threadIdx.x %% 32, end_vector = %d * (threadIdx.x / 32 %% %d + 1) / %d;", depth/8, split, split, depth/8, split, split)
		}
		exists := "first_vector + t * 32 < end_vector"
		if p.k.exact() {
			exists = ""
		}
		out = p.e.Prefetch(out, in, 8, p.k.parts(), "first_vector + t * 32", exists)
	}
	return out
}
