package loopgen

import (
	"fmt"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// Rows of up to threadColumns columns are one thread's, of up to warpGroups
// groups of neighbouring columns one warp's, or as many lanes' of it as there are groups where
// they are only reduced: a head of 64 elements in bf16 has 8. Longer ones are a block's of up to
// maxThreads threads, and those of which such a thread would have more than
// cgen.CacheTrips groups a cluster's of up to maxCluster blocks: a few rows of a
// vocabulary must not be read by a few multiprocessors. Those blocks have
// clusterThreads threads with up to clusterTrips groups each, so that a multiprocessor
// has room for two and one computes while the other waits for its cluster. A block of a row
// whose length is not known has someThreads.
const (
	threadColumns  = 8
	warpGroups     = 64
	warpLanes      = 32
	warpsEach      = 4 // of a block, where a row is one warp's
	maxThreads     = 1024
	maxCluster     = 8 // what every GPU with clusters can schedule
	clusterThreads = 512
	clusterTrips   = 8
	clusterBlocks  = 2 // of a cluster that a multiprocessor has room for
	someThreads    = 256

	// Rows that lie side by side in memory, such as the sums of a gradient over all tokens, are read
	// by threads side by side: a block has rowsAcross of them, 32 bytes of bf16, and gives each to
	// threadsAcross threads, if it has so many columns that one thread would be slow.
	rowsAcross    = 16
	threadsAcross = 64
	columnsAcross = 4 * threadsAcross // least
	reducedAcross = 8                 // reductions at most: each takes 4 or 8 KiB of shared memory
)

// rowSplit is how a row is spread over threads.
type rowSplit struct {
	threads     int     // that share a row
	warps       int     // of a block; 0: one thread
	cluster     int     // blocks that share a row
	rowsOfBlock int     // rows in a block
	groups      dim.Dim // of neighbouring columns
	across      bool    // threads of a row are rowsAcross apart
	trips       int64   // groups of a thread, if known; else 0
	full        int64   // of them those that every thread has

	// neighbours says that a thread's groups are neighbours: a running sum has one
	// partial sum for each thread then. Else neighbouring threads have neighbouring groups, so
	// that they read memory together.
	neighbours bool
}

// group is the group of a thread in its t-th trip.
func (p *rowSplit) group() string {
	if p.neighbours {
		return fmt.Sprintf("lane * %d + t", p.trips)
	}
	return fmt.Sprintf("t * %d + lane", p.threads)
}

// exact reports whether every thread has all its groups.
func (p *rowSplit) exact() bool { return p.trips > 0 && p.full == p.trips }

// whole reports whether a thread has all its neighbouring groups or none of them.
func (p *rowSplit) whole() bool {
	n, _ := p.groups.Const()
	return p.neighbours && n%p.trips == 0
}

// unrolled reports whether a thread's groups are few enough that each has code of
// its own.
func (p *rowSplit) unrolled() bool {
	return p.trips > 0 && (p.trips <= cgen.CacheTrips || p.cluster > 1 && p.trips <= clusterTrips)
}

// unrolledTrips is the number of groups of a thread each of which has code of its own; 0: they
// are a loop.
func (p *rowSplit) unrolledTrips() int64 {
	if !p.unrolled() {
		return 0
	}
	return p.trips
}

// onlyReduces reports whether a kernel visits columns once, and that to reduce them.
func onlyReduces(k *loop.Kernel) bool {
	for i, p := range k.Phases {
		for _, in := range p.Body {
			if i > 0 || in.Op == loop.Store || in.Op == loop.CumSum {
				return false
			}
		}
	}
	return true
}

// reducesAcross reports whether a kernel only reduces its columns, in a way that does not tell of their
// order.
func reducesAcross(k *loop.Kernel) bool {
	n := 0
	for in := range nest.Bodies(k) {
		if in.Op == loop.ArgMax {
			return false
		}
		if in.Op.Reduces() {
			n++
		}
	}
	return n <= reducedAcross && onlyReduces(k)
}

// rowSplit decides by the number of columns alone, so that the order of sums does
// not depend on how many rows there are.
func (e *writer) rowSplit(s *cgen.Context) rowSplit {
	k := e.K
	p := rowSplit{groups: nest.Product(k.Cols), cluster: 1}
	if s.Width > 1 {
		p.groups, _ = p.groups.Div(dim.Const(int64(s.Width)))
	}
	n, known := p.groups.Const()
	switch {
	case known && n >= columnsAcross && s.Width == 1 && nest.AcrossRows(k) && reducesAcross(k):
		p.across, p.threads, p.rowsOfBlock = true, threadsAcross, rowsAcross
		return p
	case known && n*int64(s.Width) <= threadColumns, nest.AcrossRows(k):
		p.threads, p.rowsOfBlock = 1, elementThreads/2
	case known && n <= warpLanes/2 && onlyReduces(k):
		for p.threads = 1; int64(p.threads) < n; {
			p.threads *= 2
		}
		p.warps, p.rowsOfBlock = 1, warpsEach*warpLanes/p.threads
	case known && n <= warpGroups:
		p.threads, p.warps, p.rowsOfBlock = 32, 1, warpsEach
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
		p.threads, p.warps, p.rowsOfBlock = int(warps)*32*p.cluster, int(warps), 1
	default:
		p.threads, p.warps, p.rowsOfBlock = someThreads, someThreads/32, 1
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
