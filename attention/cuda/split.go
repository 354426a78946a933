package cuda

import "pwc/attention"

// split says into how many parts contexts may be split, for calls of a shape.
type split struct {
	parts int // of small tiles
	more  int // of small tiles with a long context
	large int // of large tiles
}

// spread is the parts that scratch has room for.
func (s *split) spread() int { return max(s.parts, s.more, s.large) }

// small returns the variant of the steps of a shape that have no large tiles, whatever
// their requests, and how many of its blocks each multiprocessor holds at once. All steps
// of a size have small tiles of one: what is beside a row does not change the bits of its
// sums.
//
// A step ends when the multiprocessor with the most blocks does, which has all that it
// can hold in each turn: the fewest of them are best, and of these more at once; and one
// turn of blocks that were made for it before two of others. It matters that there is no
// room for more: blocks of the next launch would take it, and come to lie unevenly.
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
	slots := resident * o.sms
	blocks := max(1, s.Rows*v.rowTiles()*s.KVHeads)
	p := split{parts: min(maxParts, max(1, min(2, resident)*o.sms/blocks, min(2, slots/blocks))), large: o.large(s, v)}
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

// large is the parts of large tiles.
func (o *Op) large(s *attention.Shape, v *Variant) int {
	if !v.Tensor || s.Rows*v.Group <= smallTile {
		return 1
	}
	return min(maxParts, max(1, v.Resident*o.sms/((s.Rows*v.Group+v.tile()-1)/v.tile()*s.KVHeads)))
}

// grid returns for how many tiles and parts the step needs blocks.
func (st *step) grid(v *Variant, p *split) (tiles, parts int) {
	units := max(1, (st.longest+unit-1)/unit)
	parts = p.parts
	if units >= longUnits {
		parts = p.more
	}
	parts = min(parts, units)
	if st.widest*v.Group > smallTile {
		parts = max(parts, min(p.large, (units+leastUnits-1)/leastUnits))
	}
	return max(1, v.tiles(st.rows, st.requests)), parts
}

// scratch bounds what calls of up to so many rows need: it never shrinks with
// more. What a call needs is in proportion to its rows and its parts, and parts
// are fewer the more rows there are, each kind in its own way.
func (o *Op) scratch(s *attention.Shape, k *kinds) int64 {
	parts, more, large := 0, 0, 0
	for _, v := range k.each() {
		slots := v.Resident * o.sms
		parts = max(parts, min(s.Rows*maxParts, slots/(v.rowTiles()*s.KVHeads)))
		more = max(more, maxMore*min(s.Rows, 2*slots/(v.rowTiles()*s.KVHeads)))
		if v.Tensor && s.Rows*v.Group > smallTile {
			large = max(large, min(s.Rows*maxParts, slots*v.tile()/(v.Group*s.KVHeads)))
		}
	}
	return partBytes(s) * int64(max(parts, more, large))
}

// partBytes is the memory for a part of a row: of each head the sums, the largest
// score and the weight.
func partBytes(s *attention.Shape) int64 {
	return int64(s.Heads) * int64((s.HeadDim+3)/4*4+partExtra) * 4
}
