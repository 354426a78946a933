package cuda

import (
	"fmt"
	"slices"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// Rows of up to threadColumns columns are one thread's, of up to warpGroups
// groups of neighbouring columns one warp's; longer ones are a block's of up to
// maxThreads threads, and those of which such a thread would have more than
// keptTrips groups a cluster's of up to maxCluster blocks: a few rows of a
// vocabulary must not be read by a few multiprocessors. Those blocks have
// clusterThreads threads with up to clusterTrips groups each, so that two fit beside
// each other and one computes while the other waits for its cluster. A block of a row
// whose length is not known has someThreads.
const (
	threadColumns  = 8
	warpGroups     = 64
	warpsEach      = 4 // rows of one warp in a block
	maxThreads     = 1024
	maxCluster     = 8 // what every GPU with clusters can schedule
	clusterThreads = 512
	clusterTrips   = 8
	clusterBlocks  = 2 // of a cluster that a multiprocessor has room for
	someThreads    = 256
)

// rowPlan is how a row is spread over threads.
type rowPlan struct {
	threads int // that share a row
	warps   int // of a block; 0: one thread
	cluster int // blocks that share a row
	each    int // rows in a block
	groups  dim.Dim
	trips   int64 // groups a thread, if known; else 0
	full    int64 // of them those that every thread has

	// neighbours says that a thread's groups lie side by side: what is scanned has one
	// sum for each thread then. Else neighbouring threads have neighbouring groups, so
	// that they read memory together.
	neighbours bool
}

// group is the group of a thread in its t-th trip.
func (p *rowPlan) group() string {
	if p.neighbours {
		return fmt.Sprintf("lane * %d + t", p.trips)
	}
	return fmt.Sprintf("t * %d + lane", p.threads)
}

// exact reports whether every thread has all its groups.
func (p *rowPlan) exact() bool { return p.trips > 0 && p.full == p.trips }

// whole reports whether a thread has all its neighbouring groups or none of them.
func (p *rowPlan) whole() bool {
	n, _ := p.groups.Const()
	return p.neighbours && n%p.trips == 0
}

// unrolled reports whether a thread's groups are few enough that each has code of
// its own.
func (p *rowPlan) unrolled() bool {
	return p.trips > 0 && (p.trips <= cgen.CacheTrips || p.cluster > 1 && p.trips <= clusterTrips)
}

// unrolledTrips is the number of groups of a thread each of which has code of its own; 0: they
// are a loop.
func (p *rowPlan) unrolledTrips() int64 {
	if !p.unrolled() {
		return 0
	}
	return p.trips
}

// rowPlan decides by the number of columns alone, so that the order of sums does
// not depend on how many rows there are.
func (e *emitter) rowPlan(s *cgen.Context) rowPlan {
	k := e.K
	p := rowPlan{groups: nest.Product(k.Cols), cluster: 1}
	if s.Width > 1 {
		p.groups, _ = p.groups.Div(dim.Const(int64(s.Width)))
	}
	n, known := p.groups.Const()
	switch {
	case known && n*int64(s.Width) <= threadColumns, nest.AcrossRows(k):
		p.threads, p.each = 1, flatThreads/2
	case known && n <= warpGroups:
		p.threads, p.warps, p.each = 32, 1, warpsEach
	case known:
		most := int64(maxThreads)
		if e.GPU.Arch >= 90 && n > cgen.CacheTrips*maxThreads {
			most = clusterThreads
			for p.cluster = 2; p.cluster < maxCluster && n > clusterTrips*most*int64(p.cluster); {
				p.cluster *= 2
			}
		}
		part := (n + int64(p.cluster) - 1) / int64(p.cluster)
		trips := (part + most - 1) / most
		warps := ((part+trips-1)/trips + 31) / 32
		p.threads, p.warps, p.each = int(warps)*32*p.cluster, int(warps), 1
	default:
		p.threads, p.warps, p.each = someThreads, someThreads/32, 1
	}
	if known {
		p.trips = (n + int64(p.threads) - 1) / int64(p.threads)
		p.full = n / int64(p.threads)
		if p.cluster > 1 && p.trips > 1 && p.unrolled() && s.Width > 1 && nest.Scans(k) {
			p.neighbours = true
			if !p.exact() {
				p.full = 0
			}
		}
	}
	return p
}

// rowwise gives each row to a thread, a warp or a block.
func (e *emitter) rowwise() {
	k := e.K
	s := &cgen.Context{Width: nest.VectorWidth(e.K)}
	p := e.rowPlan(s)
	s.Warps, s.Cluster = p.warps, p.cluster
	e.Threads = int32(p.threads / p.cluster * p.each)
	rows := nest.Product(k.Rows)
	e.Grid[0] = rows.CeilDiv(int64(p.each))
	if p.cluster > 1 {
		e.Cluster, e.MinBlocks = p.cluster, clusterBlocks
		e.Grid[0] = rows.Mul(dim.Const(int64(p.cluster)))
	}
	ix := e.Index()
	lane := "threadIdx.x"
	row := "blockIdx.x"
	switch {
	case p.warps == 0:
		lane, row = "0", fmt.Sprintf("(%s)blockIdx.x * %d + threadIdx.x", ix, p.each)
	case p.cluster > 1:
		lane, row = fmt.Sprintf("%s() * %d + threadIdx.x", e.Use("cluster_rank"), e.Threads), fmt.Sprintf("blockIdx.x / %d", p.cluster)
	case p.each > 1:
		lane, row = "threadIdx.x % 32", fmt.Sprintf("(%s)blockIdx.x * %d + threadIdx.x / 32", ix, p.each)
	}
	if p.warps > 0 {
		e.Line("const int lane = %s;", lane)
		s.StoresRow = "lane == 0"
	}
	early := e.earlyRow(s, p)
	e.Wait()
	e.Line("const %s row = %s;", ix, row)
	if p.each > 1 {
		e.Line("if (row >= %s) return;", e.Dim(rows))
	}
	if p.cluster > 1 {
		e.Use("cluster")
		e.Line("cluster_sync();  // all blocks of the row run, so that they can write to each other")
	}
	e.splitRow("row", s)
	kept := e.NewCache(s, p.unrolledTrips(), early)
	repeats := e.repeats(kept)
	told := e.told(p, len(repeats) > 0)
	phase := func(i int, ph loop.Phase) {
		e.Row(ph.Row, s)
		if len(ph.Body) == 0 {
			return
		}
		e.start(ph.Body, s, told)
		cond := kept.Reached(i, ph.Body)
		if cond != "" { // of all lanes, which join their sums
			e.Open("if (__any_sync(~0u, %s))", cond)
		}
		e.visit(i, ph.Body, s, p, kept, early)
		e.overWarps(ph.Body, s)
		if cond != "" {
			e.Close()
		}
		e.end(ph.Body, s)
	}
	for i := 0; i < len(k.Phases); i++ {
		if r := repeats[i]; r != nil {
			e.Line("// phases %d to %d", i, i+r.trips-1)
			r.open()
			told.repeat(r.trips, func() { phase(i, r.phase) })
			r.close()
			i += r.trips - 1
			continue
		}
		if len(k.Phases) > 1 {
			e.Line("// phase %d", i)
		}
		phase(i, k.Phases[i])
	}
}

// earlyRow requests the vectors that are the same for all rows and that no kernel writes,
// weights of a norm, while the kernel before runs: they come from memory, and are used after
// what is reduced.
func (e *emitter) earlyRow(s *cgen.Context, p rowPlan) cgen.Prefetched {
	var out cgen.Prefetched
	if !e.GPU.PDL() || s.Width == 1 || p.warps == 0 || !p.unrolled() || p.neighbours || len(e.K.Cols) != 1 {
		return out
	}
	for _, in := range e.RowInvariant(p.trips) {
		exists := e.within(p.group(), p)
		if p.exact() {
			exists = ""
		}
		out = e.Prefetch(out, in, s.Width, p.trips, p.group(), exists)
	}
	return out
}

// start writes the accumulators of a phase.
func (e *emitter) start(list []loop.Instr, s *cgen.Context, told *told) {
	room := func(in loop.Instr, t string) {
		if s.Warps > 1 {
			e.Line("__shared__ %s room%d[%d];", t, in.Dst, s.Warps)
		}
		if s.Cluster > 1 { // of two turns one may be read while the next is written
			e.Line("__shared__ %s over%d[%d];", t, in.Dst, 2*s.Cluster)
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
			room(in, t)
		case in.Op.Reduces():
			r := e.Reduction(in)
			e.Line("%s s%d = %s;", r.Acc, in.Dst, r.Start)
			if told == nil {
				if s.Warps > 1 {
					e.Line("__shared__ %s room%d[%d];", r.Acc, in.Dst, s.Warps)
				}
				continue
			}
			for _, x := range []struct {
				name string
				n    int
			}{{"room", s.Warps}, {"over", s.Cluster}} {
				if x.n <= 1 {
					continue // nobody else has a part
				}
				e.Line("%s *const %s%d = (%s *)(told[%s] + %d);", r.Acc, x.name, in.Dst, r.Acc, told.which(), at/16)
				at += toldBytes(r.Acc, x.n)
			}
			reduces = true
		}
	}
	if reduces {
		told.turn = 1 - told.turn
	}
}

// overWarps joins what the lanes of each warp have reduced.
func (e *emitter) overWarps(list []loop.Instr, s *cgen.Context) {
	for _, in := range list {
		if in.Op.Reduces() && s.Warps > 0 {
			e.Line("s%d = %s<%s>(s%d);", in.Dst, e.Use("over_warp"), e.Reduction(in).Op, in.Dst)
		}
	}
}

// end writes the row values that a phase reduced. All of its reductions go through
// each barrier together.
func (e *emitter) end(list []loop.Instr, s *cgen.Context) {
	var reduced []loop.Instr
	for _, in := range list {
		if in.Op.Reduces() {
			reduced = append(reduced, in)
		}
	}
	if len(reduced) == 0 {
		return
	}
	each := func(format string, args func(in loop.Instr, r cgen.Reduction) []any) {
		for _, in := range reduced {
			e.Line(format, args(in, e.Reduction(in))...)
		}
	}
	if s.Warps > 1 {
		e.Use("over_room")
		each("if (threadIdx.x %% 32 == 0) room%d[threadIdx.x / 32] = s%d;", func(in loop.Instr, _ cgen.Reduction) []any { return []any{in.Dst, in.Dst} })
		e.Line("__syncthreads();")
		if s.Cluster > 1 { // few messages go between blocks
			together := alike(reduced, e.Reduction, min(s.Warps, 32/s.Cluster))
			for _, list := range together {
				first := list[0].Dst
				if len(list) == 1 {
					e.Line("if (threadIdx.x < 32) %s<%d>(over_room<%s, %d>(room%d), over%d);", e.Use("tell_cluster"), s.Cluster, e.Reduction(list[0]).Op, s.Warps, first, first)
					continue
				}
				at := fmt.Sprintf("threadIdx.x / 32 * %d", toldEach(e.Reduction(list[0]).Acc, s.Warps, s.Cluster))
				e.Line("if (threadIdx.x / 32 < %d) %s<%d>(over_room<%s, %d>(room%d + %s), over%d + %s);", len(list), e.Use("tell_cluster"), s.Cluster, e.Reduction(list[0]).Op, s.Warps, first, at, first, at)
			}
			e.Line("cluster_sync();")
			for _, list := range together {
				r, first := e.Reduction(list[0]), list[0].Dst
				if len(list) == 1 {
					e.Line("s%d = over_room<%s, %d>(over%d);", first, r.Op, s.Cluster, first)
					continue
				}
				e.Line("s%d = %s<%s, %d, %d, %d>(over%d);", first, e.Use("over_rooms"), r.Op, s.Cluster, len(list), toldEach(r.Acc, s.Warps, s.Cluster), first)
				for i, in := range slices.Backward(list) { // the first has them all till then
					e.Line("s%d = __shfl_sync(~0u, s%d, %d);", in.Dst, first, i*s.Cluster)
				}
			}
		} else {
			each("s%d = over_room<%s, %d>(room%d);", func(in loop.Instr, r cgen.Reduction) []any { return []any{in.Dst, r.Op, s.Warps, in.Dst} })
		}
	}
	for _, in := range reduced {
		x := fmt.Sprintf("s%d", in.Dst)
		switch r := e.Reduction(in); {
		case in.Op == loop.ArgMax:
			x = fmt.Sprintf("%s.at == nowhere ? 0 : (int)%s.at", x, x)
		case r.Acc == "double":
			x = "(float)" + x
		}
		e.Define(in, x)
	}
}

// visit writes a loop over the columns of a row. Vectors are at hand that were requested
// early, or kept.
func (e *emitter) visit(phase int, list []loop.Instr, s *cgen.Context, p rowPlan, kept *cgen.Cache, early cgen.Prefetched) {
	scans := slices.ContainsFunc(list, func(in loop.Instr) bool { return in.Op == loop.CumSum })
	at := *s
	group := "lane"
	switch {
	case p.warps == 0:
		e.Open("for (%s g = 0; g < %s; g++)", e.Index(), e.Dim(p.groups))
		group = "g"
	case p.trips == 1 || p.unrolled() && (kept != nil || scans || len(early) > 0):
		kept.Attach(&at, phase)
		if p.trips == 1 {
			early.Attach(&at, "0")
		} else {
			early.Attach(&at, "t")
		}
		at.Turn = "0"
		if scans && p.neighbours {
			e.sumBefore(list, &at, p)
			at.Running = true
		}
		whole := p.whole() && !scans
		if whole { // outside of the trips, so that nothing stands between them
			e.Open("if (%s)", e.within(group, p))
			defer e.Close()
		}
		if p.trips > 1 {
			e.Line("#pragma unroll")
			e.Open("for (int t = 0; t < %d; t++)", p.trips)
			group, at.Turn = p.group(), "t % 2"
		} else {
			e.Open("")
		}
		switch {
		case p.exact(), whole:
		case scans: // every thread has a part in the sums
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
		e.Open("for (%s g = lane; g < %s; g += %d)", e.Index(), e.Dim(p.groups), p.threads)
		group = "g"
	}
	defer e.Close()
	e.splitColumns(group, &at)
	e.Columns(list, &at)
}

// within returns the condition that a thread has a group in an unrolled trip: known
// where every thread has, so that nothing stands between those trips.
func (e *emitter) within(group string, p rowPlan) string {
	has := fmt.Sprintf("%s < %s", group, e.Dim(p.groups))
	switch n, _ := p.groups.Const(); {
	case p.whole():
		return fmt.Sprintf("lane < %d", n/p.trips)
	case p.trips > 1 && p.full > 0:
		return fmt.Sprintf("t < %d || %s", p.full, has)
	}
	return has
}

// sumBefore writes, ahead of the unrolled loop over a thread's neighbouring groups of
// columns, what comes before them in a running sum, to which the loop adds.
func (e *emitter) sumBefore(list []loop.Instr, s *cgen.Context, p rowPlan) {
	at := *s
	scan := list[slices.IndexFunc(list, func(in loop.Instr) bool { return in.Op == loop.CumSum })]
	n, acc := scan.Dst, e.SumType(scan)
	e.Line("%s own%d = 0;", acc, n)
	e.Line("#pragma unroll")
	e.Open("for (int t = 0; t < %d; t++)", p.trips)
	group := p.group()
	if !p.exact() {
		at.Live = "live"
		e.Line("const bool live = %s;", e.within(group, p))
	}
	at.Visited = nil // the loop that follows does
	e.splitColumns(group, &at)
	e.PartSums(list, &at, e.Vectors(list, &at))
	e.Line("own%d += sum%d;", n, n)
	e.Close()
	at.Turn = "0"
	e.Line("%s before%d = %s;", acc, n, e.Before(scan, fmt.Sprintf("own%d", n), &at))
}
