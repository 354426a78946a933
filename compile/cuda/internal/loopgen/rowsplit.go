package loopgen

import (
	"fmt"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// The number of columns decides how many threads compute a row:
//   - one thread up to threadColumns columns, or for any number if neighbouring threads then read
//     rows that are neighbours in memory (nest.AcrossRows), except for rowsAcross below;
//   - one warp up to warpGroups groups of neighbouring columns; if the kernel only reduces up to 16
//     groups, as many lanes of a warp as there are groups, rounded up to a power of two (a head of 64
//     elements in bf16 has 8 groups);
//   - a block of up to maxThreads threads;
//   - on GPUs with clusters, a cluster of up to maxCluster blocks if a thread of such a block would
//     have more than cgen.MaxCachedGroups groups: a few rows of a vocabulary must not be read by a few
//     multiprocessors. Its blocks have up to clusterThreads threads, with up to clusterGroups groups
//     each unless maxCluster blocks are too few, so that a multiprocessor has room for two blocks and
//     one computes while the other waits for its cluster;
//   - a block of unknownThreads threads if the number is not known.
const (
	threadColumns  = 8
	warpGroups     = 64
	warpLanes      = 32
	warpsEach      = 4 // of a block, if a warp computes a row
	maxThreads     = 1024
	maxCluster     = 8 // the largest portable cluster size of CUDA
	clusterThreads = 512
	clusterGroups  = 8
	clusterBlocks  = 2 // blocks of clusters per multiprocessor
	unknownThreads = 256

	// Neighbouring threads read rows that are neighbours in memory, such as the sums of a gradient
	// over all tokens. A block has rowsAcross rows (32 bytes of bf16) with threadsAcross threads each,
	// if there are at least columnsAcross columns: with fewer, one thread is fast enough.
	rowsAcross    = 16
	threadsAcross = 64
	columnsAcross = 4 * threadsAcross
	reducedAcross = 8 // the most reductions: each takes 4 or 8 KiB of shared memory
)

// rowSplit is how a row is distributed over threads.
type rowSplit struct {
	threads     int     // that share a row
	warps       int     // of a block that share a row; 0: one thread, or across
	cluster     int     // blocks that share a row
	rowsOfBlock int     // rows in a block
	groups      dim.Dim // of neighbouring columns
	across      bool    // threads of a row are rowsAcross apart
	iterations  int64   // groups of a thread; 0: not known, or across
	full        int64   // iterations in which every thread has a group

	// neighbours says that a thread's groups are neighbours, so that a running sum has one partial
	// sum for each thread. Otherwise neighbouring threads have neighbouring groups, so that their
	// loads are coalesced.
	neighbours bool
}

// group returns the group of a thread in iteration t.
func (p *rowSplit) group() string {
	if p.neighbours {
		return fmt.Sprintf("lane * %d + t", p.iterations)
	}
	return fmt.Sprintf("t * %d + lane", p.threads)
}

// exact reports whether every thread has all its groups.
func (p *rowSplit) exact() bool { return p.iterations > 0 && p.full == p.iterations }

// whole reports whether a thread has all its neighbouring groups or none of them.
func (p *rowSplit) whole() bool {
	n, _ := p.groups.Const()
	return p.neighbours && n%p.iterations == 0
}

// unrolled reports whether the loop over a thread's groups is short enough to be unrolled.
func (p *rowSplit) unrolled() bool {
	return p.iterations > 0 && (p.iterations <= cgen.MaxCachedGroups || p.cluster > 1 && p.iterations <= clusterGroups)
}

// unrolledGroups returns the number of groups of a thread if their loop is unrolled, else 0.
func (p *rowSplit) unrolledGroups() int64 {
	if !p.unrolled() {
		return 0
	}
	return p.iterations
}

// onlyReduces reports whether a kernel visits columns in one phase, which only reduces them.
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

// reducesAcross reports whether a kernel only reduces its columns, by few reductions other than argmax.
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

// rowSplit returns how a row is distributed. It does not depend on the number of rows, so that the order
// of sums does not, either.
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
		if e.GPU.Arch >= 90 && n > cgen.MaxCachedGroups*maxThreads {
			most = clusterThreads
			for p.cluster = 2; p.cluster < maxCluster && n > clusterGroups*most*int64(p.cluster); {
				p.cluster *= 2
			}
		}
		part := (n + int64(p.cluster) - 1) / int64(p.cluster)
		iterations := (part + most - 1) / most
		warps := ((part+iterations-1)/iterations + 31) / 32
		p.threads, p.warps, p.rowsOfBlock = int(warps)*32*p.cluster, int(warps), 1
	default:
		p.threads, p.warps, p.rowsOfBlock = unknownThreads, unknownThreads/32, 1
	}
	if known {
		p.iterations = (n + int64(p.threads) - 1) / int64(p.threads)
		p.full = n / int64(p.threads)
		if p.cluster > 1 && p.iterations > 1 && p.unrolled() && s.Width > 1 && nest.Scans(k) {
			p.neighbours = true
			if !p.exact() {
				p.full = 0
			}
		}
	}
	return p
}
