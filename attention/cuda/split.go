package cuda

import (
	"math"

	"pwc/attention"
)

// split says into how many parts contexts may be split, for calls of a shape.
type split struct {
	parts int
	more  int // of a long context, where tiles are small
}

// most is the most parts that any context has.
func (s *split) most() int { return max(s.parts, s.more) }

// turn says where a launch is among those of its call. The kernel has the same numbers (common.cu).
type turn uint64

const (
	alone turn = iota
	first
	second
)

// launch is how the kernel of a variant computes the requests of a step that have so many pairs.
type launch struct {
	variant      *Variant
	resident     int // blocks of a multiprocessor
	turn         turn
	least, most  int // pairs
	split        split
	spread       int // parts that scratch has room for, alike in all launches of a call
	tiles, parts int // of the grid
}

// launches returns the launches of a call, in order: one for requests with more pairs than a small
// tile, and a second one for the others, whose blocks start where those of the first have ended or
// leave room. A captured call has one launch, with a grid for any step: most replays decode, and
// would start the blocks of a second launch for nothing. A warm-up runs both in turn.
func (o *Op) launches(s *attention.Shape, k *kinds, recorded, warm bool) (of [2]launch, n int) {
	small, resident := o.small(s, k)
	of[0], n = launch{variant: small, resident: resident, least: 1, most: math.MaxInt32}, 1
	if !recorded && k.large.Large {
		of[0].most = smallTile
		large := launch{variant: &k.large, resident: k.large.Resident, least: 1, most: math.MaxInt32}
		wide, narrow := o.step.widest*small.Group > smallTile, o.step.narrowest*small.Group <= smallTile
		switch {
		case warm:
			of, n = [2]launch{large, of[0]}, 2
		case wide && narrow:
			large.least, large.turn, of[0].turn = smallTile+1, first, second
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
	of[0].spread = max(of[0].split.most(), of[1].split.most())
	of[1].spread = of[0].spread
	return of, n
}

// small returns the variant that computes small tiles, and how many of its blocks each
// multiprocessor holds at once. It depends only on the size of the step, not on its requests, so
// that other rows of a step do not change the bits of a row's sums.
//
// A step ends when the multiprocessor with the most blocks ends. So the fewest waves of blocks
// are best, and of these the ones with more blocks at once; a single wave of dense blocks is
// better than two of others. A multiprocessor must have no room for more blocks: those of the
// next launch would take it, and be spread unevenly.
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
		// Blocks of more warps are for steps whose blocks all run at once.
		if of.Warps == k.many.Warps && each(n) < each(resident) {
			v, resident = of, n
		}
	}
	return v, resident
}

// split fills the card when every row is a request of its own, and for large
// tiles when one request has all rows. Two blocks keep a multiprocessor busy; more
// are worth the combining where there would be one part. Long contexts are split
// further where that levels out what multiprocessors have to do.
func (o *Op) split(s *attention.Shape, v *Variant, resident int) split {
	if v.Large {
		n := 1
		if s.Rows*v.Group > smallTile {
			n = min(maxParts, max(1, resident*o.sms/((s.Rows*v.Group+v.tile()-1)/v.tile()*s.KVHeads)))
		}
		return split{n, n}
	}
	slots := resident * o.sms
	blocks := max(1, s.Rows*v.rowTiles()*s.KVHeads)
	p := split{parts: min(maxParts, max(1, min(2, resident)*o.sms/blocks, min(2, slots/blocks)))}
	p.more = p.parts
	// The time of n blocks is that of ⌈n/slots⌉ in turn, each part has some of its own.
	cost := func(parts int) float64 {
		return float64((blocks*parts+slots-1)/slots)/float64(parts) + 0.03*float64(parts)
	}
	for n := p.parts + 1; n <= maxMore && blocks <= 2*slots; n++ {
		if cost(n) < cost(p.more) {
			p.more = n
		}
	}
	return p
}

// grid returns the numbers of tiles and parts that a launch has blocks for in this step.
func (st *step) grid(l *launch) (tiles, parts int) {
	units := max(1, (st.longest+unit-1)/unit)
	switch {
	case l.variant.Large:
		parts = min(l.split.parts, (units+leastUnits-1)/leastUnits)
	case units >= longUnits:
		parts = min(l.split.more, units)
	default:
		parts = min(l.split.parts, units)
	}
	if l.most <= smallTile { // a tile has all pairs of its request
		return max(1, st.requests), parts
	}
	return max(1, l.variant.tiles(st.rows, st.requests)), parts
}

// scratch bounds what calls of up to so many rows need: it never shrinks with
// more. The need of a call is proportional to its rows and its parts, and the number of parts
// falls with the number of rows, for each kind of launch differently.
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

// partBytes is the memory for a part of a row: of each head the sums, the largest
// score and the weight.
func partBytes(s *attention.Shape) int64 {
	return int64(s.Heads) * int64((s.HeadDim+3)/4*4+partExtra) * 4
}
