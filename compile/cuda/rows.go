package cuda

import (
	"fmt"
	"slices"

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
	someThreads    = 256
)

// Vectors that later phases read again stay in registers: up to keptBytes a
// thread at a time, which is half of what a thread of maxThreads has, and of rows of
// up to keptTrips groups a thread, or clusterTrips.
//
// Of rows that a cluster shares, more is kept in up to keptShared percent of the
// shared memory, so that two blocks have room beside each other.
const (
	keptShared = 40
	keptBytes  = 128
	keptTrips  = 4
)

// rowPlan is how a row is spread over threads.
type rowPlan struct {
	threads int // that share a row
	warps   int // of a block; 0: one thread
	cluster int // blocks that share a row
	each    int // rows in a block
	groups  dim.Dim
	trips   int64 // groups a thread, if known; else 0
	exact   bool  // every thread has all its groups
}

// unrolled reports whether a thread's groups are few enough that each has code of
// its own.
func (p *rowPlan) unrolled() bool {
	return p.trips > 0 && (p.trips <= keptTrips || p.cluster > 1 && p.trips <= clusterTrips)
}

// rowPlan decides by the number of columns alone, so that the order of sums does
// not depend on how many rows there are.
func (e *emitter) rowPlan(s *site) rowPlan {
	k := e.k
	p := rowPlan{groups: product(k.Cols), cluster: 1}
	if s.width > 1 {
		p.groups, _ = p.groups.Div(dim.Const(int64(s.width)))
	}
	n, known := p.groups.Const()
	switch {
	case known && n*int64(s.width) <= threadColumns, e.acrossRows():
		p.threads, p.each = 1, flatThreads/2
	case known && n <= warpGroups:
		p.threads, p.warps, p.each = 32, 1, warpsEach
	case known:
		most := int64(maxThreads)
		if e.arch >= 90 && n > keptTrips*maxThreads {
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
		p.exact = n == p.trips*int64(p.threads)
	}
	return p
}

// acrossRows reports whether neighbouring elements in memory belong to
// neighbouring rows, so that a thread for each row reads them together.
func (e *emitter) acrossRows() bool {
	along, across := 0, 0
	for _, p := range e.k.Phases {
		for _, in := range p.Body {
			a := in.Access
			if a == nil || a.Arg < 0 || a.Index != nil {
				continue
			}
			switch {
			case isConst(inner(a), 1):
				along++
			case len(a.Rows) > 0 && isConst(a.Rows[len(a.Rows)-1], 1):
				across++
			}
		}
	}
	return across > along
}

// rowwise gives each row to a thread, a warp or a block.
func (e *emitter) rowwise() {
	k := e.k
	s := &site{width: e.width()}
	p := e.rowPlan(s)
	s.warps, s.cluster = p.warps, p.cluster
	e.threads = int32(p.threads / p.cluster * p.each)
	rows := product(k.Rows)
	e.grid[0] = rows.CeilDiv(int64(p.each))
	if p.cluster > 1 {
		e.cluster = p.cluster
		e.grid[0] = rows.Mul(dim.Const(int64(p.cluster)))
	}
	ix := e.index()
	lane := "threadIdx.x"
	row := "blockIdx.x"
	switch {
	case p.warps == 0:
		lane, row = "0", fmt.Sprintf("(%s)blockIdx.x * %d + threadIdx.x", ix, p.each)
	case p.cluster > 1:
		lane, row = fmt.Sprintf("%s() * %d + threadIdx.x", e.use("cluster_rank"), e.threads), fmt.Sprintf("blockIdx.x / %d", p.cluster)
	case p.each > 1:
		lane, row = "threadIdx.x % 32", fmt.Sprintf("(%s)blockIdx.x * %d + threadIdx.x / 32", ix, p.each)
	}
	e.wait()
	e.line("const %s row = %s;", ix, row)
	if p.each > 1 {
		e.line("if (row >= %s) return;", e.dim(rows))
	}
	if p.warps > 0 {
		e.line("const int lane = %s;", lane)
		s.lead = "lane == 0"
	}
	if p.cluster > 1 {
		e.use("cluster")
		e.line("cluster_sync();  // all blocks of the row run, so that they can write to each other")
	}
	e.splitRow("row", s)
	kept := e.keep(s, p)
	for i, ph := range k.Phases {
		if len(k.Phases) > 1 {
			e.line("// phase %d", i)
		}
		e.row(ph.Row, s)
		if len(ph.Body) == 0 {
			continue
		}
		e.start(ph.Body, s)
		e.visit(i, ph.Body, s, p, kept)
		e.end(ph.Body, s)
	}
}

// start writes the accumulators of a phase.
func (e *emitter) start(list []loop.Instr, s *site) {
	room := func(in loop.Instr, t string) {
		if s.warps > 1 {
			e.line("__shared__ %s room%d[%d];", t, in.Dst, s.warps)
		}
		if s.cluster > 1 {
			turns := 1
			if in.Op == loop.CumSum {
				turns = 2 // of which one may be read while the next is written
			}
			e.line("__shared__ %s over%d[%d];", t, in.Dst, turns*s.cluster)
		}
	}
	for _, in := range list {
		switch {
		case in.Op == loop.CumSum:
			t := "unsigned long long"
			if e.k.Values[in.Dst].DType.Float() {
				t = "double"
			}
			e.line("%s s%d = 0;", t, in.Dst)
			room(in, t)
		case in.Op.Reduces():
			r := e.reduction(in)
			e.line("%s s%d = %s;", r.acc, in.Dst, r.start)
			room(in, r.acc)
		}
	}
}

// end writes the row values that a phase reduced. All of its reductions go through
// each barrier together.
func (e *emitter) end(list []loop.Instr, s *site) {
	var reduced []loop.Instr
	for _, in := range list {
		if in.Op.Reduces() {
			reduced = append(reduced, in)
		}
	}
	if len(reduced) == 0 {
		return
	}
	each := func(format string, args func(in loop.Instr, r reduction) []any) {
		for _, in := range reduced {
			e.line(format, args(in, e.reduction(in))...)
		}
	}
	if s.warps > 0 {
		e.use("over_warp")
		each("s%d = over_warp<%s>(s%d);", func(in loop.Instr, r reduction) []any { return []any{in.Dst, r.op, in.Dst} })
	}
	if s.warps > 1 {
		e.use("over_room")
		each("if (threadIdx.x %% 32 == 0) room%d[threadIdx.x / 32] = s%d;", func(in loop.Instr, _ reduction) []any { return []any{in.Dst, in.Dst} })
		e.line("__syncthreads();")
		each("s%d = over_room<%s, %d>(room%d);", func(in loop.Instr, r reduction) []any { return []any{in.Dst, r.op, s.warps, in.Dst} })
	}
	if s.cluster > 1 {
		e.use("tell_cluster")
		each("tell_cluster<%d>(s%d, over%d);", func(in loop.Instr, _ reduction) []any { return []any{s.cluster, in.Dst, in.Dst} })
		e.line("cluster_sync();")
		each("s%d = over_room<%s, %d>(over%d);", func(in loop.Instr, r reduction) []any { return []any{in.Dst, r.op, s.cluster, in.Dst} })
	}
	for _, in := range reduced {
		x := fmt.Sprintf("s%d", in.Dst)
		switch r := e.reduction(in); {
		case in.Op == loop.ArgMax:
			x = fmt.Sprintf("%s.at == nowhere ? 0 : (int)%s.at", x, x)
		case r.acc == "double":
			x = "(float)" + x
		}
		e.define(in, x)
	}
}

// visit writes a loop over the columns of a row.
func (e *emitter) visit(phase int, list []loop.Instr, s *site, p rowPlan, kept *keeper) {
	scans := slices.ContainsFunc(list, func(in loop.Instr) bool { return in.Op == loop.CumSum })
	at := *s
	group := "lane"
	switch {
	case p.warps == 0:
		e.open("for (%s g = 0; g < %s; g++)", e.index(), e.dim(p.groups))
		group = "g"
	case p.trips == 1 || p.unrolled() && (kept != nil || scans):
		at.load, at.keep = kept.hooks(phase)
		at.turn = "0"
		if scans && p.cluster > 1 && p.trips > 1 && s.width > 1 {
			e.tripSums(list, &at, p)
			at.tripped = true
		}
		if p.trips > 1 {
			e.line("#pragma unroll")
			e.open("for (int t = 0; t < %d; t++)", p.trips)
			group, at.turn = fmt.Sprintf("t * %d + lane", p.threads), "t % 2"
		} else {
			e.open("")
		}
		switch {
		case p.exact:
		case scans: // every thread has a part in the sums
			at.live = "live"
			e.line("const bool live = %s < %s;", group, e.dim(p.groups))
		default:
			e.open("if (%s < %s)", group, e.dim(p.groups))
			defer e.close()
		}
	case scans:
		e.open("for (%s first_group = 0; first_group < %s; first_group += %d)", e.index(), e.dim(p.groups), p.threads)
		e.line("const %s g = first_group + lane;", e.index())
		group = "g"
		at.live, at.turn = "live", fmt.Sprintf("first_group / %d %% 2", p.threads)
		e.line("const bool live = g < %s;", e.dim(p.groups))
	default:
		e.open("for (%s g = lane; g < %s; g += %d)", e.index(), e.dim(p.groups), p.threads)
		group = "g"
	}
	defer e.close()
	e.splitColumns(group, &at)
	e.columns(list, &at)
}

// tripSums writes, ahead of the unrolled loop over a thread's groups of columns,
// what comes before each of them in a running sum: so that all of them go through
// one barrier of the cluster.
func (e *emitter) tripSums(list []loop.Instr, s *site, p rowPlan) {
	at := *s
	scan := list[slices.IndexFunc(list, func(in loop.Instr) bool { return in.Op == loop.CumSum })]
	n, acc := scan.Dst, e.sumType(scan)
	e.line("%s trips%d[%d];", acc, n, p.trips)
	e.line("__shared__ %s rooms%d[%d], overs%d[%d];", acc, n, p.trips*int64(p.warps), n, p.trips*int64(p.cluster))
	e.line("#pragma unroll")
	e.open("for (int t = 0; t < %d; t++)", p.trips)
	group := fmt.Sprintf("t * %d + lane", p.threads)
	if !p.exact {
		at.live = "live"
		e.line("const bool live = %s < %s;", group, e.dim(p.groups))
	}
	at.keep = nil // the loop that follows does
	e.splitColumns(group, &at)
	e.partSums(list, &at, e.vectors(list, &at))
	e.line("trips%d[t] = sum%d;", n, n)
	e.close()
	e.line("%s<%d, %d, %d, %s>(trips%d, s%d, rooms%d, overs%d);", e.use("running_over_trips"), p.trips, p.warps, p.cluster, acc, n, n, n, n)
}
