package loopgen

import (
	"fmt"
	"slices"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/loop"
)

// start writes the accumulators of a phase.
func (e *writer) start(list []loop.Instr, s *cgen.Context, buffer *reductionBuffer) {
	declare := func(in loop.Instr, t string) {
		if s.Warps > 1 {
			e.Line("__shared__ %s warp_partials%d[%d];", t, in.Dst, s.Warps)
		}
		if s.Cluster > 1 { // double-buffered: a block may still read one half while another block writes the other
			e.Line("__shared__ %s cta_partials%d[%d];", t, in.Dst, 2*s.Cluster)
		}
	}
	at, reduces := 0, false
	for _, in := range list {
		switch {
		case in.Op == loop.CumSum:
			t := "unsigned long long"
			if e.K.Values[in.Dst].DType.Float() {
				t = "double"
			}
			e.Line("%s s%d = 0;", t, in.Dst)
			declare(in, t)
		case in.Op.Reduces():
			r := e.Reduction(in)
			e.Line("%s s%d = %s;", r.Acc, in.Dst, r.Start)
			if buffer == nil {
				if s.Warps > 1 {
					e.Line("__shared__ %s warp_partials%d[%d];", r.Acc, in.Dst, s.Warps)
				}
				continue
			}
			for _, x := range []struct {
				name string
				n    int
			}{{"warp_partials", s.Warps}, {"cta_partials", s.Cluster}} {
				if x.n <= 1 {
					continue // there are no other partial results
				}
				e.Line("%s *const %s%d = (%s *)(reduction_buffer[%s] + %d);", r.Acc, x.name, in.Dst, r.Acc, buffer.half(), at/16)
				at += bufferBytes(r.Acc, x.n)
			}
			reduces = true
		}
	}
	if reduces {
		buffer.next = 1 - buffer.next
	}
}

// overWarps writes the reduction over the lanes of each warp, or over the threads of a row if those are
// part of a warp or rowsAcross apart.
func (e *writer) overWarps(list []loop.Instr, s *cgen.Context, p rowSplit) {
	for _, in := range list {
		switch {
		case !in.Op.Reduces():
		case p.across:
			r := e.Reduction(in)
			e.Line("__shared__ %s partials%d[%d];", r.Acc, in.Dst, e.Threads)
			e.Line("s%d = %s<%s, %d, %d>(s%d, partials%d);", in.Dst, e.Use("column_reduce"), r.Op, threadsAcross, rowsAcross, in.Dst, in.Dst)
		case s.Warps == 0:
		case p.threads < warpLanes:
			e.Line("s%d = %s<%s, %d>(s%d);", in.Dst, e.Use("lane_group_reduce"), e.Reduction(in).Op, p.threads, in.Dst)
		default:
			e.Line("s%d = %s<%s>(s%d);", in.Dst, e.Use("warp_reduce"), e.Reduction(in).Op, in.Dst)
		}
	}
}

// end writes the row values that a phase reduced. All its reductions share barriers.
func (e *writer) end(list []loop.Instr, s *cgen.Context) {
	reduced := slices.DeleteFunc(slices.Clone(list), func(in loop.Instr) bool { return !in.Op.Reduces() })
	if len(reduced) > 0 && s.Warps > 1 {
		e.overBlock(reduced, s)
	}
	for _, in := range reduced {
		x := fmt.Sprintf("s%d", in.Dst)
		switch r := e.Reduction(in); {
		case in.Op == loop.ArgMax:
			x = fmt.Sprintf("%s.index == no_index ? 0 : (int)%s.index", x, x)
		case r.Acc == "double":
			x = "(float)" + x
		}
		e.Define(in, x)
	}
}

// overBlock writes the reduction over the warps of a block, and over the blocks of a cluster.
func (e *writer) overBlock(reduced []loop.Instr, s *cgen.Context) {
	e.Use("warp_reduce_shared")
	for _, in := range reduced {
		e.Line("if (threadIdx.x %% 32 == 0) warp_partials%d[threadIdx.x / 32] = s%d;", in.Dst, in.Dst)
	}
	e.Line("__syncthreads();")
	if s.Cluster <= 1 {
		for _, in := range reduced {
			e.Line("s%d = warp_reduce_shared<%s, %d>(warp_partials%d);", in.Dst, e.Reduction(in).Op, s.Warps, in.Dst)
		}
		return
	}
	batches := sameReductions(reduced, e.Reduction, min(s.Warps, 32/s.Cluster)) // blocks exchange a batch in parallel
	for _, list := range batches {
		r, first := e.Reduction(list[0]), list[0].Dst
		if len(list) == 1 {
			e.Line("if (threadIdx.x < 32) %s<%d>(warp_reduce_shared<%s, %d>(warp_partials%d), cta_partials%d);", e.Use("cluster_broadcast"), s.Cluster, r.Op, s.Warps, first, first)
			continue
		}
		at := fmt.Sprintf("threadIdx.x / 32 * %d", bufferStride(r.Acc, s.Warps, s.Cluster))
		e.Line("if (threadIdx.x / 32 < %d) %s<%d>(warp_reduce_shared<%s, %d>(warp_partials%d + %s), cta_partials%d + %s);", len(list), e.Use("cluster_broadcast"), s.Cluster, r.Op, s.Warps, first, at, first, at)
	}
	e.Line("cluster_sync();")
	for _, list := range batches {
		r, first := e.Reduction(list[0]), list[0].Dst
		if len(list) == 1 {
			e.Line("s%d = warp_reduce_shared<%s, %d>(cta_partials%d);", first, r.Op, s.Cluster, first)
			continue
		}
		e.Line("s%d = %s<%s, %d, %d, %d>(cta_partials%d);", first, e.Use("warp_reduce_segments"), r.Op, s.Cluster, len(list), bufferStride(r.Acc, s.Warps, s.Cluster), first)
		for i, in := range slices.Backward(list) { // backward, because the first accumulator has the results of all
			e.Line("s%d = __shfl_sync(~0u, s%d, %d);", in.Dst, first, i*s.Cluster)
		}
	}
}

// sameReductions cuts a list of reductions into batches of consecutive ones of the same kind, at most
// most in each, whose results blocks exchange together. An argmax, whose accumulator has an index, too, is
// a batch of its own.
func sameReductions(list []loop.Instr, of func(loop.Instr) cgen.Reduction, most int) [][]loop.Instr {
	var out [][]loop.Instr
	for _, in := range list {
		n := len(out) - 1
		if n >= 0 && len(out[n]) < most && in.Op != loop.ArgMax && of(in) == of(out[n][0]) {
			out[n] = append(out[n], in)
			continue
		}
		out = append(out, []loop.Instr{in})
	}
	return out
}
