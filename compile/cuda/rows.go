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
	clusterBlocks  = 2 // of a cluster that a multiprocessor has room for
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
		if e.gpu.arch >= 90 && n > keptTrips*maxThreads {
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
		if p.cluster > 1 && p.trips > 1 && p.unrolled() && s.width > 1 && e.scans() {
			p.neighbours = true
			if !p.exact() {
				p.full = 0
			}
		}
	}
	return p
}

// scans reports whether the kernel has a running sum.
func (e *emitter) scans() bool {
	return slices.ContainsFunc(e.k.Phases, func(p loop.Phase) bool {
		return slices.ContainsFunc(p.Body, func(in loop.Instr) bool { return in.Op == loop.CumSum })
	})
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
		e.cluster, e.blocks = p.cluster, clusterBlocks
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
	if p.warps > 0 {
		e.line("const int lane = %s;", lane)
		s.lead = "lane == 0"
	}
	early := e.earlyRow(s, p)
	e.wait()
	e.line("const %s row = %s;", ix, row)
	if p.each > 1 {
		e.line("if (row >= %s) return;", e.dim(rows))
	}
	if p.cluster > 1 {
		e.use("cluster")
		e.line("cluster_sync();  // all blocks of the row run, so that they can write to each other")
	}
	e.splitRow("row", s)
	kept := e.keep(s, p, early)
	repeats := e.repeats(kept)
	told := e.told(p, len(repeats) > 0)
	phase := func(i int, ph loop.Phase) {
		e.row(ph.Row, s)
		if len(ph.Body) == 0 {
			return
		}
		e.start(ph.Body, s, told)
		cond := kept.reached(i, ph.Body)
		if cond != "" { // of all lanes, which join their sums
			e.open("if (__any_sync(~0u, %s))", cond)
		}
		e.visit(i, ph.Body, s, p, kept, early)
		e.overWarps(ph.Body, s)
		if cond != "" {
			e.close()
		}
		e.end(ph.Body, s)
	}
	for i := 0; i < len(k.Phases); i++ {
		if r := repeats[i]; r != nil {
			e.line("// phases %d to %d", i, i+r.trips-1)
			r.open()
			told.repeat(r.trips, func() { phase(i, r.phase) })
			r.close()
			i += r.trips - 1
			continue
		}
		if len(k.Phases) > 1 {
			e.line("// phase %d", i)
		}
		phase(i, k.Phases[i])
	}
}

// earlyRow requests the vectors that are the same for all rows and that no kernel writes,
// weights of a norm, while the kernel before runs: they come from memory, and are used after
// what is reduced.
func (e *emitter) earlyRow(s *site, p rowPlan) requested {
	var out requested
	if !e.dependent() || s.width == 1 || p.warps == 0 || !p.unrolled() || p.neighbours || len(e.k.Cols) != 1 {
		return out
	}
	for _, in := range e.sameForRows(p.trips) {
		exists := e.within(p.group(), p)
		if p.exact() {
			exists = ""
		}
		out = e.loadEarly(out, in, s.width, p.trips, p.group(), exists)
	}
	return out
}

// start writes the accumulators of a phase.
func (e *emitter) start(list []loop.Instr, s *site, told *told) {
	room := func(in loop.Instr, t string) {
		if s.warps > 1 {
			e.line("__shared__ %s room%d[%d];", t, in.Dst, s.warps)
		}
		if s.cluster > 1 { // of two turns one may be read while the next is written
			e.line("__shared__ %s over%d[%d];", t, in.Dst, 2*s.cluster)
		}
	}
	at, reduces := 0, false
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
			if told == nil {
				if s.warps > 1 {
					e.line("__shared__ %s room%d[%d];", r.acc, in.Dst, s.warps)
				}
				continue
			}
			for _, x := range []struct {
				name string
				n    int
			}{{"room", s.warps}, {"over", s.cluster}} {
				if x.n <= 1 {
					continue // nobody else has a part
				}
				e.line("%s *const %s%d = (%s *)(told[%s] + %d);", r.acc, x.name, in.Dst, r.acc, told.which(), at/16)
				at += toldBytes(r.acc, x.n)
			}
			reduces = true
		}
	}
	if reduces {
		told.turn = 1 - told.turn
	}
}

// overWarps joins what the lanes of each warp have reduced.
func (e *emitter) overWarps(list []loop.Instr, s *site) {
	for _, in := range list {
		if in.Op.Reduces() && s.warps > 0 {
			e.line("s%d = %s<%s>(s%d);", in.Dst, e.use("over_warp"), e.reduction(in).op, in.Dst)
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
	if s.warps > 1 {
		e.use("over_room")
		each("if (threadIdx.x %% 32 == 0) room%d[threadIdx.x / 32] = s%d;", func(in loop.Instr, _ reduction) []any { return []any{in.Dst, in.Dst} })
		e.line("__syncthreads();")
		if s.cluster > 1 { // few messages go between blocks
			together := alike(reduced, e.reduction, min(s.warps, 32/s.cluster))
			for _, list := range together {
				first := list[0].Dst
				if len(list) == 1 {
					e.line("if (threadIdx.x < 32) %s<%d>(over_room<%s, %d>(room%d), over%d);", e.use("tell_cluster"), s.cluster, e.reduction(list[0]).op, s.warps, first, first)
					continue
				}
				at := fmt.Sprintf("threadIdx.x / 32 * %d", toldEach(e.reduction(list[0]).acc, s.warps, s.cluster))
				e.line("if (threadIdx.x / 32 < %d) %s<%d>(over_room<%s, %d>(room%d + %s), over%d + %s);", len(list), e.use("tell_cluster"), s.cluster, e.reduction(list[0]).op, s.warps, first, at, first, at)
			}
			e.line("cluster_sync();")
			for _, list := range together {
				r, first := e.reduction(list[0]), list[0].Dst
				if len(list) == 1 {
					e.line("s%d = over_room<%s, %d>(over%d);", first, r.op, s.cluster, first)
					continue
				}
				e.line("s%d = %s<%s, %d, %d, %d>(over%d);", first, e.use("over_rooms"), r.op, s.cluster, len(list), toldEach(r.acc, s.warps, s.cluster), first)
				for i, in := range slices.Backward(list) { // the first has them all till then
					e.line("s%d = __shfl_sync(~0u, s%d, %d);", in.Dst, first, i*s.cluster)
				}
			}
		} else {
			each("s%d = over_room<%s, %d>(room%d);", func(in loop.Instr, r reduction) []any { return []any{in.Dst, r.op, s.warps, in.Dst} })
		}
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

// visit writes a loop over the columns of a row. Vectors are at hand that were requested
// early, or kept.
func (e *emitter) visit(phase int, list []loop.Instr, s *site, p rowPlan, kept *keeper, early requested) {
	scans := slices.ContainsFunc(list, func(in loop.Instr) bool { return in.Op == loop.CumSum })
	at := *s
	group := "lane"
	switch {
	case p.warps == 0:
		e.open("for (%s g = 0; g < %s; g++)", e.index(), e.dim(p.groups))
		group = "g"
	case p.trips == 1 || p.unrolled() && (kept != nil || scans || len(early) > 0):
		var load func(loop.Instr) (string, bool)
		load, at.keep, at.spare = kept.hooks(phase)
		at.load = func(in loop.Instr) (string, bool) {
			switch name, ok := early.find(in.Access); {
			case ok && p.trips == 1:
				return name + "[0]", true
			case ok:
				return name + "[t]", true
			case load == nil:
				return "", false
			}
			return load(in)
		}
		at.turn = "0"
		if scans && p.neighbours {
			e.sumBefore(list, &at, p)
			at.running = true
		}
		whole := p.whole() && !scans
		if whole { // outside of the trips, so that nothing stands between them
			e.open("if (%s)", e.within(group, p))
			defer e.close()
		}
		if p.trips > 1 {
			e.line("#pragma unroll")
			e.open("for (int t = 0; t < %d; t++)", p.trips)
			group, at.turn = p.group(), "t % 2"
		} else {
			e.open("")
		}
		switch {
		case p.exact(), whole:
		case scans: // every thread has a part in the sums
			at.live = "live"
			e.line("const bool live = %s;", e.within(group, p))
		default:
			e.open("if (%s)", e.within(group, p))
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

// within returns the condition that a thread has a group in an unrolled trip: known
// where every thread has, so that nothing stands between those trips.
func (e *emitter) within(group string, p rowPlan) string {
	has := fmt.Sprintf("%s < %s", group, e.dim(p.groups))
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
func (e *emitter) sumBefore(list []loop.Instr, s *site, p rowPlan) {
	at := *s
	scan := list[slices.IndexFunc(list, func(in loop.Instr) bool { return in.Op == loop.CumSum })]
	n, acc := scan.Dst, e.sumType(scan)
	e.line("%s own%d = 0;", acc, n)
	e.line("#pragma unroll")
	e.open("for (int t = 0; t < %d; t++)", p.trips)
	group := p.group()
	if !p.exact() {
		at.live = "live"
		e.line("const bool live = %s;", e.within(group, p))
	}
	at.keep = nil // the loop that follows does
	e.splitColumns(group, &at)
	e.partSums(list, &at, e.vectors(list, &at))
	e.line("own%d += sum%d;", n, n)
	e.close()
	at.turn = "0"
	e.line("%s before%d = %s;", acc, n, e.before(scan, fmt.Sprintf("own%d", n), &at))
}
