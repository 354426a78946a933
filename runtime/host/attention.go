package host

import (
	"math"
	"unsafe"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

// Attention runs in tiles, without a matrix of all scores: FlashAttention-2 (Dao,
// arXiv:2307.08691), with sums of exponentials in float64. A part is a block of queries of one
// head, or, for gradients of keys and values, a block of keys of one group of heads. A part
// visits the other sequence in blocks that start at multiples of attendCols, so sums do not
// depend on which rows share a part.
const (
	attendRows = 48 // most rows of a part; a multiple of the rows that a micro kernel takes together
	attendCols = 64 // rows of a block of the other sequence; a multiple of lanes and microCols
)

// attention is a vec.Attention bound to memory.
type attention struct {
	queries, keys    int64
	heads, groups    int64
	size             int
	scale            float32
	causal           bool
	q, k, v          sequence
	out              sequence // of gradients: the cotangent of the result, which is read
	lse              sequence
	delta            sequence // delta, dq, dk and dv are set if grad is true
	dq, dk, dv       sequence
	grad             bool
	queryParts       int64 // blocks of queries of all heads and batches; their parts come before those of keys
	queryBlocks      int64 // blocks of queries of one head
	keyBlocks        int64 // blocks of keys of one group of heads
	unit             *unit
	pitch            int   // of rows that hold the elements of a head
	macsOfRowAndCols int64 // multiplications of a row with attendCols of the other sequence, at most
}

// sequence is an access with strides along the sequence, its heads and their elements.
type sequence struct {
	access
	at, head, element int64
}

func (k *kernel) bindAttention(z *sizer, code *vec.Attention, outer []int64, args [][]byte) error {
	lengths := z.extents([]dim.Dim{code.Queries, code.Keys})
	a := &attention{queries: lengths[0], keys: lengths[1], heads: code.Heads, groups: code.Groups, size: int(code.Size),
		scale: float32(code.Scale), causal: code.Causal, grad: code.Grad != nil, unit: k.pool.unit, pitch: pitchOf(int(code.Size))}
	b := &attentionBinder{z: z, k: k, a: a, outer: outer, args: args}
	b.bind(&code.Q, a.queries, a.heads, &a.q)
	b.bind(&code.K, a.keys, a.groups, &a.k)
	b.bind(&code.V, a.keys, a.groups, &a.v)
	b.bind(&code.Out, a.queries, a.heads, &a.out)
	b.bind(&code.LSE, a.queries, a.heads, &a.lse)
	products := 2.0
	if g := code.Grad; g != nil {
		b.bind(&g.Delta, a.queries, a.heads, &a.delta)
		b.bind(&g.DQ, a.queries, a.heads, &a.dq)
		b.bind(&g.DK, a.keys, a.groups, &a.dk)
		b.bind(&g.DV, a.keys, a.groups, &a.dv)
		a.keyBlocks = (a.keys + attendRows - 1) / attendRows
		products = 7
	}
	a.queryBlocks = (a.queries + attendRows - 1) / attendRows
	a.queryParts = z.product([]int64{k.rows, a.heads, a.queryBlocks})
	keyParts := z.product([]int64{k.rows, a.groups, a.keyBlocks})
	k.cols = z.product([]int64{a.heads, a.queries, max(a.keys, 1)})
	if z.err != nil {
		return z.err
	}
	a.macsOfRowAndCols = int64(products) * attendCols * int64(a.size)
	k.attend, k.parts = a, a.queryParts+keyParts
	k.alone = flopCost*products*float64(k.rows)*float64(k.cols)*float64(a.size) < parallelCost
	return nil
}

// attentionBinder is the state of bindAttention.
type attentionBinder struct {
	z     *sizer
	k     *kernel
	a     *attention
	outer []int64
	args  [][]byte
}

// bind binds an access and proves that its addresses are within its buffer.
func (b *attentionBinder) bind(a *vec.Access, length, heads int64, out *sequence) {
	z := b.z
	strides, inner := z.evalAll(a.Outer), z.evalAll(a.Inner)
	out.dtype, out.unit, out.offset = a.DType, b.k.pool.unit, z.eval(a.Offset)
	out.outer = merge(nil, b.outer, strides)
	out.at, out.head = inner[0], inner[1]
	reach := span{out.offset, out.offset}
	for i, n := range b.outer {
		reach = z.add(reach, n, strides[i])
	}
	reach = z.add(reach, length, out.at)
	reach = z.add(reach, heads, out.head)
	if len(inner) > 2 {
		out.element = inner[2]
		reach = z.add(reach, int64(b.a.size), out.element)
	}
	data := b.args[a.Arg]
	z.back(&out.access, data, reach, b.k.rows > 0 && length > 0)
}

// attentionScratch is a lane's memory for attention. Tiles of elements of a head have the
// attention's pitch, those of scores and transposed ones attendCols.
type attentionScratch struct {
	rows, rows2    []float32 // of the part
	cols, cols2    []float32 // of the block of the other sequence
	turned         []float32 // a tile of the block, transposed
	scores, slopes []float32
	acc, acc2      []float32
	line           [attendCols]float32
	lse, delta     [attendCols]float32
	top            [attendRows]float32
	total          [attendRows]float64
	sum            [4]float64 // of a row's exponentials; here, because the calls of a unit let a local escape
	out            narrowSums
}

func (s *attentionScratch) fit(a *attention) {
	for _, tile := range []*[]float32{&s.rows, &s.rows2, &s.acc, &s.acc2} {
		*tile = resize(*tile, attendRows*a.pitch)
	}
	s.cols, s.cols2 = resize(s.cols, attendCols*a.pitch), resize(s.cols2, attendCols*a.pitch)
	s.turned = resize(s.turned, (a.size+microCols-1)&^(microCols-1)*attendCols)
	s.scores, s.slopes = resize(s.scores, attendRows*attendCols), resize(s.slopes, attendRows*attendCols)
}

func (a *attention) run(part int64, l *lane) {
	l.attend.fit(a)
	switch {
	case part >= a.queryParts:
		part -= a.queryParts
		rest := part / a.keyBlocks
		a.keyGradients(rest/a.groups, rest%a.groups, part%a.keyBlocks*attendRows, l)
	case a.grad:
		rest := part / a.queryBlocks
		a.queryGradients(rest/a.heads, rest%a.heads, part%a.queryBlocks*attendRows, l)
	default:
		rest := part / a.queryBlocks
		a.forward(rest/a.heads, rest%a.heads, part%a.queryBlocks*attendRows, l)
	}
}

// load converts rows of a sequence to float32, and appends rows of zeros up to a multiple of
// microCols.
func (a *attention) load(d []float32, from *sequence, batch, head, at int64, rows int) tile {
	base := from.row(batch) + head*from.head + at*from.at
	for r := range rows {
		row := d[r*a.pitch : (r+1)*a.pitch]
		from.getF(row[:a.size], base+int64(r)*from.at, from.element)
		clear(row[a.size:])
	}
	clear(d[rows*a.pitch : min((rows+microCols-1)&^(microCols-1)*a.pitch, len(d))])
	return floatTile(d, a.pitch)
}

// store rounds rows to a sequence.
func (a *attention) store(from []float32, to *sequence, batch, head, at int64, rows int) {
	base := to.row(batch) + head*to.head + at*to.at
	for r := range rows {
		to.putF(from[r*a.pitch:][:a.size], base+int64(r)*to.at, to.element)
	}
}

// line reads len(d) numbers of a sequence from row at on, one for each row.
func (s *sequence) line(d []float32, batch, head, at int64) {
	s.getF(d, s.row(batch)+head*s.head+at*s.at, s.at)
}

func floatTile(s []float32, pitch int) tile {
	return tile{unsafe.Pointer(unsafe.SliceData(s)), pitch, 4, dtype.F32}
}

// turn transposes a block: element e of row r becomes element r of row e.
func (a *attention) turn(d, from []float32, rows int) tile {
	clear(d)
	for r := range rows {
		for e, x := range from[r*a.pitch:][:a.size] {
			d[e*attendCols+r] = x
		}
	}
	return floatTile(d, attendCols)
}

// scores computes the dot products of n rows with the rows of a block.
func (a *attention) scores(d []float32, s *attentionScratch, rows, cols tile, n, wide int) {
	clear(d[:n*attendCols])
	a.unit.products(&s.out, d, attendCols, rows, cols, n, wide, a.size)
}

// add adds scores times a block to acc. turned is the transposed block.
func (a *attention) add(acc []float32, s *attentionScratch, scores []float32, turned tile, n, wide int) {
	a.unit.products(&s.out, acc, a.pitch, floatTile(scores, attendCols), turned, n, a.size, wide)
}

// times multiplies elements by a number.
func times(d []float32, by float32) {
	for i := range d {
		d[i] *= by
	}
}

func fill(d []float32, x float32) []float32 {
	for i := range d {
		d[i] = x
	}
	return d
}

// forward computes the results of a block of queries.
func (a *attention) forward(batch, head, from int64, l *lane) {
	s := &l.attend
	n := int(min(attendRows, a.queries-from))
	q := a.load(s.rows, &a.q, batch, head, from, n)
	times(s.rows[:n*a.pitch], a.scale)
	clear(s.acc[:n*a.pitch])
	for r := range n {
		s.top[r], s.total[r] = float32(math.Inf(-1)), 0
	}
	group := head / (a.heads / a.groups)
	for k0 := int64(0); k0 < a.keys && (!a.causal || k0 < from+int64(n)); k0 += attendCols {
		wide := int(min(attendCols, a.keys-k0))
		if l.spend(int64(n) * a.macsOfRowAndCols / macsPerWork) {
			return
		}
		k := a.load(s.cols, &a.k, batch, group, k0, wide)
		a.scores(s.scores, s, q, k, n, wide)
		for r := range n {
			seen := wide
			if a.causal {
				seen = int(min(int64(wide), from+int64(r)+1-k0))
			}
			a.weigh(s, r, seen)
		}
		a.load(s.cols, &a.v, batch, group, k0, wide)
		a.add(s.acc, s, s.scores, a.turn(s.turned, s.cols, wide), n, wide)
	}
	lse := a.lse.row(batch) + head*a.lse.head + from*a.lse.at
	for r := range n {
		if a.keys > 0 && s.total[r] == 0 {
			s.total[r] = math.NaN() // of softmax of -Inf alone
		}
		if a.keys > 0 {
			times(s.acc[r*a.pitch:][:a.size], float32(1/s.total[r]))
		}
		s.line[r] = float32(float64(s.top[r]) + math.Log(s.total[r]))
	}
	a.lse.putF(s.line[:n], lse, a.lse.at)
	a.store(s.acc, &a.out, batch, head, from, n)
}

// weigh replaces the first seen scores of row r by exp(score - largest score so far), and the
// others by zeros. If the largest score changed, it rescales the sums of the row.
func (a *attention) weigh(s *attentionScratch, r, seen int) {
	row := s.scores[r*attendCols : (r+1)*attendCols]
	if seen <= 0 {
		clear(row)
		return
	}
	clear(row[seen:])
	row = row[:seen]
	top := s.top[r]
	for _, x := range row {
		top = max(top, x)
	}
	if top != s.top[r] {
		by := math.Exp(float64(s.top[r]) - float64(top))
		s.total[r] *= by
		times(s.acc[r*a.pitch:][:a.size], float32(by))
		s.top[r] = top
	}
	if math.IsInf(float64(top), -1) {
		top = 0 // a later key may have a finite score; -Inf - -Inf is NaN
	}
	a.unit.sub(row, row, fill(s.line[:seen], top))
	a.unit.exp(row, row)
	s.sum = [4]float64{}
	a.unit.sum(&s.sum, row)
	s.total[r] += (s.sum[0] + s.sum[2]) + (s.sum[1] + s.sum[3])
}

// queryGradients computes the gradients of a block of queries.
func (a *attention) queryGradients(batch, head, from int64, l *lane) {
	s := &l.attend
	n := int(min(attendRows, a.queries-from))
	q := a.load(s.rows, &a.q, batch, head, from, n)
	times(s.rows[:n*a.pitch], a.scale)
	grad := a.load(s.rows2, &a.out, batch, head, from, n)
	a.lse.line(s.lse[:n], batch, head, from)
	a.delta.line(s.delta[:n], batch, head, from)
	clear(s.acc[:n*a.pitch])
	group := head / (a.heads / a.groups)
	for k0 := int64(0); k0 < a.keys && (!a.causal || k0 < from+int64(n)); k0 += attendCols {
		wide := int(min(attendCols, a.keys-k0))
		if l.spend(int64(n) * a.macsOfRowAndCols / macsPerWork) {
			return
		}
		k, v := a.load(s.cols, &a.k, batch, group, k0, wide), a.load(s.cols2, &a.v, batch, group, k0, wide)
		a.scores(s.scores, s, q, k, n, wide)
		a.scores(s.slopes, s, grad, v, n, wide)
		for r := range n {
			row, slope := s.scores[r*attendCols:(r+1)*attendCols], s.slopes[r*attendCols:(r+1)*attendCols]
			seen := wide
			if a.causal {
				seen = int(max(min(int64(wide), from+int64(r)+1-k0), 0))
			}
			clear(slope[seen:])
			row, slope = row[:seen], slope[:seen]
			a.unit.sub(row, row, fill(s.line[:seen], s.lse[r]))
			a.unit.exp(row, row)
			a.unit.sub(slope, slope, fill(s.line[:seen], s.delta[r]))
			a.unit.mul(slope, slope, row)
		}
		a.add(s.acc, s, s.slopes, a.turn(s.turned, s.cols, wide), n, wide)
	}
	times(s.acc[:n*a.pitch], a.scale)
	a.store(s.acc, &a.dq, batch, head, from, n)
}

// keyGradients computes the gradients of a block of keys and of their values. Scores have
// keys as rows here.
func (a *attention) keyGradients(batch, group, from int64, l *lane) {
	s := &l.attend
	n := int(min(attendRows, a.keys-from))
	k := a.load(s.rows, &a.k, batch, group, from, n)
	v := a.load(s.rows2, &a.v, batch, group, from, n)
	clear(s.acc[:n*a.pitch])
	clear(s.acc2[:n*a.pitch])
	first := int64(0)
	if a.causal {
		first = from / attendCols * attendCols
	}
	share := a.heads / a.groups
	for head := group * share; head < (group+1)*share; head++ {
		for q0 := first; q0 < a.queries; q0 += attendCols {
			wide := int(min(attendCols, a.queries-q0))
			if l.spend(int64(n) * a.macsOfRowAndCols / macsPerWork) {
				return
			}
			q := a.load(s.cols, &a.q, batch, head, q0, wide)
			times(s.cols[:wide*a.pitch], a.scale)
			grad := a.load(s.cols2, &a.out, batch, head, q0, wide)
			a.lse.line(s.lse[:wide], batch, head, q0)
			a.delta.line(s.delta[:wide], batch, head, q0)
			a.scores(s.scores, s, k, q, n, wide)
			a.scores(s.slopes, s, v, grad, n, wide)
			for r := range n {
				row, slope := s.scores[r*attendCols:(r+1)*attendCols], s.slopes[r*attendCols:(r+1)*attendCols]
				hidden := 0 // queries before the key
				if a.causal {
					hidden = int(min(max(from+int64(r)-q0, 0), int64(wide)))
				}
				clear(row[:hidden])
				clear(slope[:hidden])
				row, slope = row[hidden:wide], slope[hidden:wide]
				a.unit.sub(row, row, s.lse[hidden:wide])
				a.unit.exp(row, row)
				a.unit.sub(slope, slope, s.delta[hidden:wide])
				a.unit.mul(slope, slope, row)
			}
			a.add(s.acc2, s, s.scores, a.turn(s.turned, s.cols2, wide), n, wide)
			a.add(s.acc, s, s.slopes, a.turn(s.turned, s.cols, wide), n, wide)
		}
	}
	a.store(s.acc, &a.dk, batch, group, from, n)
	a.store(s.acc2, &a.dv, batch, group, from, n)
}
