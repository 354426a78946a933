package loopgen

import (
	"fmt"
	"slices"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// rowwise writes a kernel in which a thread, several threads of a block, or a cluster computes a row.
func (e *writer) rowwise() {
	k := e.K
	s := &cgen.Context{Width: nest.VectorWidth(e.K)}
	p := e.rowSplit(s)
	s.Warps, s.Cluster = p.warps, p.cluster
	e.Threads = int32(p.threads / p.cluster * p.rowsOfBlock)
	rows := nest.Product(k.Rows)
	e.Grid[0] = rows.CeilDiv(int64(p.rowsOfBlock))
	if p.cluster > 1 {
		e.Cluster, e.MinBlocks = p.cluster, clusterBlocks
		e.Grid[0] = rows.Mul(dim.Const(int64(p.cluster)))
	}
	ix := e.Index()
	lane := "threadIdx.x"
	row := "blockIdx.x"
	switch {
	case p.across:
		lane, row = fmt.Sprintf("threadIdx.x / %d", rowsAcross), fmt.Sprintf("(%s)blockIdx.x * %d + threadIdx.x %% %d", ix, rowsAcross, rowsAcross)
	case p.warps == 0:
		lane, row = "0", fmt.Sprintf("(%s)blockIdx.x * %d + threadIdx.x", ix, p.rowsOfBlock)
	case p.cluster > 1:
		lane, row = fmt.Sprintf("%s() * %d + threadIdx.x", e.Use("cluster_rank"), e.Threads), fmt.Sprintf("blockIdx.x / %d", p.cluster)
	case p.rowsOfBlock > 1:
		lane, row = fmt.Sprintf("threadIdx.x %% %d", p.threads), fmt.Sprintf("(%s)blockIdx.x * %d + threadIdx.x / %d", ix, p.rowsOfBlock, p.threads)
	}
	if p.warps > 0 || p.across {
		e.Line("const int lane = %s;", lane)
		s.StoresRow = "lane == 0"
	}
	prefetched := e.prefetchRow(s, p)
	e.Wait()
	if k.AllReduce != nil {
		e.allReduce(rows, p)
	}
	switch {
	case p.across, p.warps > 0 && p.threads < warpLanes: // threads of several rows reduce together, so none may return
		e.Line("const %s unclamped_row = %s, row = unclamped_row < %[3]s ? unclamped_row : %[3]s - 1;", ix, row, e.Dim(rows))
		s.StoresRow = "lane == 0 && unclamped_row == row"
	default:
		e.Line("const %s row = %s;", ix, row)
		if p.rowsOfBlock > 1 {
			e.Line("if (row >= %s) return;", e.Dim(rows))
		}
	}
	if p.cluster > 1 {
		e.Use("cluster")
		e.Line("cluster_sync();  // all blocks of the row run, so that they can write to each other")
	}
	e.splitRow("row", s)
	cache := e.NewCache(s, p.unrolledGroups(), prefetched)
	loops := e.rolledLoops(cache)
	buffer := e.newReductionBuffer(p, len(loops) > 0)
	phase := func(i int, ph loop.Phase) {
		e.Row(ph.Row, s)
		if len(ph.Body) == 0 {
			return
		}
		e.start(ph.Body, s, buffer)
		cond := cache.Reached(ph.Body)
		if cond != "" { // the whole warp decides, because its lanes reduce together
			e.Open("if (__any_sync(~0u, %s))", cond)
		}
		e.visit(i, ph.Body, s, p, cache, prefetched)
		e.overWarps(ph.Body, s, p)
		if cond != "" {
			e.Close()
		}
		e.end(ph.Body, s)
		if p.across { // one thread of each row continues
			e.Line("if (!(%s)) return;", s.StoresRow)
		}
	}
	for i := 0; i < len(k.Phases); i++ {
		if r := loops[i]; r != nil {
			e.Line("// phases %d to %d", i, i+r.iterations-1)
			r.open()
			buffer.roll(r.iterations, func() { phase(i, r.phase) })
			r.close()
			i += r.iterations - 1
			continue
		}
		if len(k.Phases) > 1 {
			e.Line("// phase %d", i)
		}
		phase(i, k.Phases[i])
	}
}

// prefetchRow writes the loads of vectors that are the same for all rows and that no kernel writes, such
// as the weights of a norm, before the dependency wait: they come from memory, and are used after the
// reductions.
func (e *writer) prefetchRow(s *cgen.Context, p rowSplit) cgen.Prefetched {
	var out cgen.Prefetched
	if !e.GPU.PDL() || s.Width == 1 || p.warps == 0 || !p.unrolled() || p.neighbours || len(e.K.Cols) != 1 {
		return out
	}
	for _, in := range e.RowInvariant(p.iterations) {
		exists := e.within(p.group(), p)
		if p.exact() {
			exists = ""
		}
		out = e.Prefetch(out, in, s.Width, p.iterations, p.group(), exists)
	}
	return out
}

// visit writes a loop over the columns of a row. Vectors that are prefetched or cached are not
// loaded.
func (e *writer) visit(phase int, list []loop.Instr, s *cgen.Context, p rowSplit, cache *cgen.Cache, prefetched cgen.Prefetched) {
	scans := slices.ContainsFunc(list, func(in loop.Instr) bool { return in.Op == loop.CumSum })
	at := *s
	group := "lane"
	switch {
	case p.warps == 0 && !p.across:
		e.Open("for (%s g = 0; g < %s; g++)", e.Index(), e.Dim(p.groups))
		group = "g"
	case p.iterations == 1 || p.unrolled() && (cache != nil || scans || len(prefetched) > 0):
		cache.Attach(&at, phase)
		if p.iterations == 1 {
			prefetched.Attach(&at, "0")
		} else {
			prefetched.Attach(&at, "t")
		}
		at.Turn = "0"
		if scans && p.neighbours {
			e.sumBefore(list, &at, p)
			at.Running = true
		}
		whole := p.whole() && !scans
		if whole { // the condition is outside of the unrolled loop, so that no branch separates its iterations
			e.Open("if (%s)", e.within(group, p))
			defer e.Close()
		}
		if p.iterations > 1 {
			e.Line("#pragma unroll")
			e.Open("for (int t = 0; t < %d; t++)", p.iterations)
			group, at.Turn = p.group(), "t % 2"
		} else {
			e.Open("")
		}
		switch {
		case p.exact(), whole:
		case scans: // all threads take part in the scan
			at.Live = "live"
			e.Line("const bool live = %s;", e.within(group, p))
		default:
			e.Open("if (%s)", e.within(group, p))
			defer e.Close()
		}
	case scans:
		e.Open("for (%s first_group = 0; first_group < %s; first_group += %d)", e.Index(), e.Dim(p.groups), p.threads)
		e.Line("const %s g = first_group + lane;", e.Index())
		group = "g"
		at.Live, at.Turn = "live", fmt.Sprintf("first_group / %d %% 2", p.threads)
		e.Line("const bool live = g < %s;", e.Dim(p.groups))
	default:
		if p.across {
			e.Line("#pragma unroll 8")
		}
		e.Open("for (%s g = lane; g < %s; g += %d)", e.Index(), e.Dim(p.groups), p.threads)
		group = "g"
	}
	defer e.Close()
	e.splitColumns(group, &at)
	e.Columns(list, &at)
}

// within returns the condition that a thread has a group in an iteration of an unrolled loop. If every
// thread has a group in an iteration, the compiler can evaluate the condition, so that no branch
// separates such iterations.
func (e *writer) within(group string, p rowSplit) string {
	has := fmt.Sprintf("%s < %s", group, e.Dim(p.groups))
	switch n, _ := p.groups.Const(); {
	case p.whole():
		return fmt.Sprintf("lane < %d", n/p.iterations)
	case p.iterations > 1 && p.full > 0:
		return fmt.Sprintf("t < %d || %s", p.full, has)
	}
	return has
}

// sumBefore writes, before the unrolled loop over a thread's neighbouring groups of columns, the running
// sum of all columns before them. The loop adds to it.
func (e *writer) sumBefore(list []loop.Instr, s *cgen.Context, p rowSplit) {
	at := *s
	scan := list[slices.IndexFunc(list, func(in loop.Instr) bool { return in.Op == loop.CumSum })]
	n, acc := scan.Dst, e.SumType(scan)
	e.Line("%s thread_sum%d = 0;", acc, n)
	e.Line("#pragma unroll")
	e.Open("for (int t = 0; t < %d; t++)", p.iterations)
	group := p.group()
	if !p.exact() {
		at.Live = "live"
		e.Line("const bool live = %s;", e.within(group, p))
	}
	at.Visited = nil // the loop that follows fills the cache
	e.splitColumns(group, &at)
	e.PartSums(list, &at, e.Vectors(list, &at))
	e.Line("thread_sum%d += sum%d;", n, n)
	e.Close()
	at.Turn = "0"
	e.Line("%s prefix%d = %s;", acc, n, e.Before(scan, fmt.Sprintf("thread_sum%d", n), &at))
}
