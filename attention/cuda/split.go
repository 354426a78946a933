package cuda

import (
	"math"

	"pwc/attention"
)

// split has the largest numbers of parts of a context, for calls of a shape.
type split struct {
	parts     int
	longParts int // of contexts of at least longUnits units, in small tiles
}

// most returns the largest number of parts of any context.
func (s *split) most() int { return max(s.parts, s.longParts) }

// launchOrder says whether a launch overlaps with no other one of its call, or is the first or the second of two that
// may overlap. The kernel has the same numbers (ORDER_FIRST, ORDER_SECOND).
type launchOrder uint64

const (
	orderOnly launchOrder = iota
	orderFirst
	orderSecond
)

// launch computes the requests of a step with minPairs to maxPairs pairs by the kernel of a variant.
type launch struct {
	variant            *Variant
	resident           int // blocks per multiprocessor
	order              launchOrder
	minPairs, maxPairs int
	split              split
	partCapacity       int // parts for which scratch has room, the same for all launches of a call
	tiles, parts       int // of the grid
}

// launches returns the launches of a call, in order. If there is a kernel of large tiles and the step
// has requests of both kinds, the first one is for requests with more pairs than a small tile and the
// second for the others; blocks of the second start where blocks of the first have ended or leave room. A captured
// call has one launch, with a grid for any step: most replays are decodes, for which the blocks of a second launch
// would do nothing. A warm-up runs both, one after the other.
func (o *Op) launches(s *attention.Shape, k *kinds, recorded, warm bool) (of [2]launch, n int) {
	small, resident := o.small(s, k)
	of[0], n = launch{variant: small, resident: resident, minPairs: 1, maxPairs: math.MaxInt32}, 1
	if !recorded && k.large.Large {
		of[0].maxPairs = smallTile
		large := launch{variant: &k.large, resident: k.large.Resident, minPairs: 1, maxPairs: math.MaxInt32}
		wide, narrow := o.step.widest*small.Group > smallTile, o.step.narrowest*small.Group <= smallTile
		switch {
		case warm:
			of, n = [2]launch{large, of[0]}, 2
		case wide && narrow:
			large.minPairs, large.order, of[0].order = smallTile+1, orderFirst, orderSecond
			of, n = [2]launch{large, of[0]}, 2
		case wide:
			of[0] = large
		}
	}
	for i := range of[:n] {
		l := &of[i]
		l.split = o.split(s, l.variant, l.resident)
		if recorded {
			l.tiles, l.parts = l.variant.tiles(s.Rows, min(s.Rows, o.options.MaxRequests)), l.split.most()
		} else {
			l.tiles, l.parts = o.step.grid(l)
		}
	}
	of[0].partCapacity = max(of[0].split.most(), of[1].split.most())
	of[1].partCapacity = of[0].partCapacity
	return of, n
}

// small returns the variant that computes small tiles, and how many of its blocks run on a
// multiprocessor at once. It depends only on the size of the step, not on its requests, so
// that other requests of a step do not change the bits of a row's sums.
//
// A step ends when the multiprocessor with the most blocks ends. So small takes the number of blocks at once with which
// a multiprocessor has the fewest blocks in all waves together, and of equal ones the largest. A single wave of dense
// blocks is better than several waves of others. A multiprocessor must have no room for more blocks: blocks of the
// next launch would take it and be distributed unevenly.
func (o *Op) small(s *attention.Shape, k *kinds) (v *Variant, resident int) {
	blocks := s.Rows * k.few.rowTiles() * s.KVHeads
	if blocks <= k.few.Resident*o.sms {
		return &k.few, k.few.Resident
	}
	for i := range k.dense {
		if d := &k.dense[i]; blocks > k.many.Resident*o.sms && blocks <= d.Resident*o.sms {
			return d, d.Resident
		}
	}
	each := func(resident int) int { return (blocks + resident*o.sms - 1) / (resident * o.sms) * resident }
	v, resident = &k.many, k.many.Resident
	for n := resident - 1; n >= k.few.Resident; n-- {
		of := &k.many
		if n == k.few.Resident {
			of = &k.few
		}
		// Blocks with more warps (few) are only for steps of a single wave.
		if of.Warps == k.many.Warps && each(n) < each(resident) {
			v, resident = of, n
		}
	}
	return v, resident
}

// split returns how calls of a shape split contexts. Small tiles fill the GPU if every row is a
// request, large tiles if one request has all rows. Two blocks keep a multiprocessor busy; more of
// them pay for the combining only if a context would have one part. Long contexts get more parts
// if that balances the load of the multiprocessors.
func (o *Op) split(s *attention.Shape, v *Variant, resident int) split {
	if v.Large {
		n := 1
		if s.Rows*v.Group > smallTile {
			n = min(maxParts, max(1, resident*o.sms/((s.Rows*v.Group+v.tile()-1)/v.tile()*s.KVHeads)))
		}
		return split{parts: n, longParts: n}
	}
	slots := resident * o.sms
	blocks := max(1, s.Rows*v.rowTiles()*s.KVHeads)
	p := split{parts: min(maxParts, max(1, min(2, resident)*o.sms/blocks, min(2, slots/blocks)))}
	p.longParts = p.parts
	// n blocks take ⌈n/slots⌉ waves; each part adds a cost of its own. The conversion of its product prevents
	// a fused multiply-add, so that the split does not depend on the host's processor.
	cost := func(parts int) float64 {
		return float64((blocks*parts+slots-1)/slots)/float64(parts) + float64(0.03*float64(parts))
	}
	for n := p.parts + 1; n <= maxMore && blocks <= 2*slots; n++ {
		if cost(n) < cost(p.longParts) {
			p.longParts = n
		}
	}
	return p
}

// grid returns the numbers of tiles and parts of a launch's grid in this step.
func (st *step) grid(l *launch) (tiles, parts int) {
	units := max(1, (st.longest+unit-1)/unit)
	switch {
	case l.variant.Large:
		parts = min(l.split.parts, (units+minUnits-1)/minUnits)
	case units >= longUnits:
		parts = min(l.split.longParts, units)
	default:
		parts = min(l.split.parts, units)
	}
	if l.maxPairs <= smallTile { // a tile has all pairs of its request
		return max(1, st.requests), parts
	}
	return max(1, l.variant.tiles(st.rows, st.requests)), parts
}

// scratch returns the most bytes of scratch of a call with up to s.Rows rows, so it never shrinks
// with more rows. A call needs bytes in proportion to its rows and its parts, and the number of
// parts falls with the number of rows, differently for each kind of launch.
func (o *Op) scratch(s *attention.Shape, k *kinds) int64 {
	most := 0
	for _, v := range k.each() {
		slots := v.Resident * o.sms
		switch {
		case !v.Large:
			blocks := v.rowTiles() * s.KVHeads
			most = max(most, min(s.Rows*maxParts, slots/blocks), maxMore*min(s.Rows, 2*slots/blocks))
		case s.Rows*v.Group > smallTile:
			most = max(most, min(s.Rows*maxParts, slots*v.tile()/(v.Group*s.KVHeads)))
		}
	}
	return partBytes(s) * int64(most)
}

// partBytes returns the bytes of a part's result for one row: for each head the weighted values, the
// largest score and the sum of weights.
func partBytes(s *attention.Shape) int64 {
	return int64(s.Heads) * int64((s.HeadDim+3)/4*4+partExtra) * 4
}
