package host

import (
	"fmt"
	"unsafe"

	"pwc/ir/dtype"
	"pwc/program/vec"
)

// The sums of a GEMM are dot products over chunks of K. Within a chunk, accumulator i of
// eight adds the elements with k mod 8 = i in order. Then the accumulators are added as
//
//	((s0+s4) + (s2+s6)) + ((s1+s5) + (s3+s7))
//
// and the sums of chunks are added in order, all in float32. So the order depends only on
// K: a row's result has the same bits for any number of rows and in every code path. Vector
// units do exactly this with eight lanes for each sum. If a machine fuses multiplication and
// addition, all code paths of that machine do.
const (
	lanes      = 8
	chunk      = 1024 // of K; a multiple of lanes
	tileRows   = 96   // most rows of A of a tile; a multiple of the rows that a micro kernel takes together
	selectRows = 4096 // most rows of a part that are grouped by their B
	maxColumns = 256  // most rows of B in a part
	minColumns = 64
	panel      = 16  // rows of B that are transposed together; a multiple of microCols
	pitchSkew  = 16  // keeps the rows of converted tiles from sharing cache sets
	directRows = 64  // with more rows of A, bf16 of B is converted before the micro kernels, not in them
	flopCost   = 0.1 // nanoseconds of a multiplication and addition, approximately
	microCols  = 4   // rows of B that a micro kernel takes
	maxPitch   = chunk + pitchSkew
)

// matMul is a vec.MatMul bound to memory.
type matMul struct {
	batches, m, n, k int64
	a, b             operand
	tileM, tileN     int64     // of a part
	countM, countN   int64     // parts along M and N
	sel              *selector // nil: all rows of a batch have the same B
	unit             *unit
}

// operand is a matrix, or one for each batch.
type operand struct {
	access
	row, col int64
}

// bindMatMul binds a GEMM and proves that the addresses of its operands are within their buffers.
func (k *kernel) bindMatMul(z *sizer, m *vec.MatMul, outer []int64, n int64, args [][]byte, faults map[int32]*fault) error {
	last := len(outer) - 1
	mm := &matMul{batches: z.product(outer[:last]), m: outer[last], n: n, k: z.eval(m.K), unit: k.pool.unit}
	if z.err == nil && mm.k < 0 {
		z.fail(fmt.Errorf("extent %s = %d is negative", m.K, mm.k))
	}
	if m.Select != nil {
		mm.sel = k.bindSelect(z, m.Select, outer, args[m.Select.Arg], faults)
	}
	bind := func(a *vec.MatAccess, rows int64, out *operand) {
		batch := z.evalAll(a.Batch)
		out.dtype, out.unit = a.DType, k.pool.unit
		out.offset, out.row, out.col = z.eval(a.Offset), z.eval(a.Row), z.eval(a.Col)
		out.outer = merge(nil, outer[:last], batch)
		reach := span{out.offset, out.offset}
		for i, n := range outer[:last] {
			reach = z.add(reach, n, batch[i])
		}
		reach = z.add(reach, rows, out.row)
		reach = z.add(reach, mm.k, out.col)
		data := args[a.Arg]
		read := k.rows > 0 && k.cols > 0 && mm.k > 0
		if a == &m.B && mm.sel != nil {
			reach = z.add(reach, mm.sel.extent, mm.sel.stride)
			read = read && mm.sel.extent > 0
		}
		z.back(&out.access, data, reach, read)
	}
	bind(&m.A, mm.m, &mm.a)
	bind(&m.B, mm.n, &mm.b)
	if z.err != nil {
		return z.err
	}
	if mm.sel != nil {
		mm.a.outer = merge(nil, outer, append(z.evalAll(m.A.Batch), mm.a.row))
		mm.sel.batch = merge(nil, outer, append(z.evalAll(m.B.Batch), 0))
		mm.batches, mm.m = 1, k.rows
	}
	k.mat = mm
	k.splitMatMul()
	return nil
}

// splitMatMul divides a GEMM into tiles of rows and columns. Results do not depend on the
// tiles.
func (k *kernel) splitMatMul() {
	mm := k.mat
	mm.tileM, mm.tileN = max(min(mm.m, tileRows), 1), maxColumns
	if mm.sel != nil {
		mm.tileM = max(min(mm.m, selectRows), 1)
	}
	count := func() { mm.countM, mm.countN = (mm.m+mm.tileM-1)/mm.tileM, (mm.n+mm.tileN-1)/mm.tileN }
	workers := int64(len(k.pool.helpers) + 1)
	small := func() bool {
		count()
		cost := flopCost * float64(mm.tileM) * float64(mm.tileN) * float64(mm.k)
		return cost < 2*partCost || mm.batches*mm.countM*mm.countN >= 2*workers
	}
	for !small() && mm.tileN > minColumns {
		mm.tileN /= 2
	}
	for !small() && mm.tileM > tileRows {
		mm.tileM = (mm.tileM + 1) / 2
	}
	count()
	k.parts = mm.batches * mm.countM * mm.countN
	k.alone = flopCost*float64(k.rows)*float64(k.cols)*float64(mm.k) < parallelCost
}

// matScratch is a lane's memory for tiles.
type matScratch struct {
	a, b, c []float32
	at      []int64 // addresses of the rows of A
	rows    []selected
	line    [panel]float32
	out     narrowSums
}

// run computes one tile and runs the epilogue on it.
func (mm *matMul) run(k *kernel, part int64, l *lane) {
	if mm.sel != nil {
		mm.runSelected(k, part, l)
		return
	}
	batch := part / (mm.countM * mm.countN)
	rest := part % (mm.countM * mm.countN)
	// Neighbouring parts have the same columns, so that their rows of B stay in the cache.
	n0 := rest / mm.countM * mm.tileN
	m0 := rest % mm.countM * mm.tileM
	rows, cols := min(mm.tileM, mm.m-m0), min(mm.tileN, mm.n-n0)
	l.fit(k)
	s := &l.mat
	s.at = resize(s.at, int(rows))
	a0 := mm.a.offset + addr(mm.a.outer, batch) + m0*mm.a.row
	for r := range s.at {
		s.at[r] = a0 + int64(r)*mm.a.row
	}
	if !mm.sums(l, mm.b.offset+addr(mm.b.outer, batch)+n0*mm.b.row, int(cols)) {
		return
	}
	l.vec.exec(k.setup, k.block)
	l.vec.sumsAt = n0
	for r := range rows {
		l.vec.sums = s.c[r*cols : (r+1)*cols]
		if !k.row(batch*mm.m+m0+r, n0, n0+cols, l) {
			break
		}
	}
	l.vec.sums = nil
}

// sums puts the sums of the rows of A at s.at and cols rows of B from address b0
// on into s.c, row by row. It returns false if the lane must stop (spend): the sums are
// not done.
func (mm *matMul) sums(l *lane, b0 int64, cols int) bool {
	s := &l.mat
	rows := len(s.at)
	s.c = resize(s.c, rows*cols)
	clear(s.c)
	step := microCols
	if mm.b.row == 1 {
		step = panel
	}
	// If the rows of A fit into the scratch memory, columns take all chunks of K before the next columns:
	// each row of B is then read in one pass.
	span := mm.k
	if mm.k > chunk && int64(rows)*int64(pitchOf(int(mm.k))) > tileRows*maxPitch {
		span = chunk
	}
	for k0 := int64(0); k0 < mm.k; k0 += span {
		end := min(k0+span, mm.k)
		a := mm.tileA(s, k0*mm.a.col, int(end-k0))
		for n := 0; n < cols; n += step {
			wide := min(step, cols-n)
			for k := k0; k < end; k += chunk {
				kc := int(min(chunk, end-k))
				if l.spend(int64(rows+1) * int64(wide) * int64(kc) / macsPerWork) {
					return false
				}
				at := b0 + int64(n)*mm.b.row + k*mm.b.col
				var b tile
				if mm.direct(rows, kc) && wide%microCols == 0 {
					b = mm.b.tile(at)
				} else {
					b = mm.panelB(s, at, wide, kc)
				}
				mm.unit.products(&s.out, s.c[n:], cols, a.from(int(k-k0)), b, rows, wide, kc)
			}
		}
	}
	return true
}

// macsPerWork is how many multiplications and additions take about as long as an instruction
// on an element.
const macsPerWork = 4

// products adds the dot products of all rows of a with the first wide rows of b to the first
// columns of c, whose rows are pitch elements apart. There are rows of b up to a multiple of
// microCols. If kc is not a multiple of lanes, zeros follow in each row up to the next multiple.
func (u *unit) products(out *narrowSums, c []float32, pitch int, a, b tile, rows, wide, kc int) {
	kc = (kc + lanes - 1) &^ (lanes - 1)
	micro := u.dotsF32
	switch b.dtype {
	case dtype.BF16:
		micro = u.dotsBF16
	case dtype.F16:
		micro = u.dotsF16
	}
	for n := 0; n < wide; n += microCols {
		bp := unsafe.Add(b.p, n*b.pitch*b.size)
		ahead := microCols * b.pitch // distance to the next rows of B
		nc := wide - n
		if nc >= microCols {
			_ = c[(rows-1)*pitch+n+microCols-1]
			micro(rows, kc, (*float32)(a.p), a.pitch, bp, b.pitch, ahead, &c[n], pitch)
			continue
		}
		clear(out[:rows*microCols])
		micro(rows, kc, (*float32)(a.p), a.pitch, bp, b.pitch, ahead, &out[0], microCols)
		for i := range rows {
			row := c[i*pitch+n:][:nc]
			for j := range row {
				row[j] += out[i*microCols+j]
			}
		}
	}
}

// tile is rows of numbers, pitch elements apart.
type tile struct {
	p     unsafe.Pointer
	pitch int
	size  int // bytes of an element
	dtype dtype.DType
}

// from returns the rows from column k on.
func (t tile) from(k int) tile {
	t.p = unsafe.Add(t.p, k*t.size)
	return t
}

// direct reports whether the micro kernels read rows of B in place. The rows must be contiguous along K, with
// a multiple of lanes elements. Rows in bf16 and f16 also need a micro kernel that converts them. Reading f16
// in place is faster for any number of rows of A, because one instruction converts it; reading bf16 in place
// is faster up to directRows rows of A.
func (mm *matMul) direct(rows, kc int) bool {
	if mm.b.col != 1 || kc%lanes != 0 {
		return false
	}
	switch mm.b.dtype {
	case dtype.F32:
		return true
	case dtype.BF16:
		return rows <= directRows && mm.unit.dotsBF16 != nil
	}
	return mm.unit.dotsF16 != nil
}

// tile returns rows of the operand in place, from address at on.
func (o *operand) tile(at int64) tile {
	t := tile{pitch: int(o.row), dtype: o.dtype}
	if o.dtype == dtype.F32 {
		t.p, t.size = unsafe.Pointer(&o.f32[at]), 4
	} else {
		t.p, t.size = unsafe.Pointer(&o.u16[at]), 2
	}
	return t
}

// tileA returns the rows of A at s.at, from offset on, as float32: in place if they are
// contiguous float32, evenly spaced and of a multiple of lanes elements, else converted.
func (mm *matMul) tileA(s *matScratch, offset int64, kc int) tile {
	if mm.a.dtype == dtype.F32 && mm.a.col == 1 && kc%lanes == 0 {
		if pitch, ok := spacing(s.at); ok {
			t := mm.a.tile(s.at[0] + offset)
			t.pitch = pitch
			return t
		}
	}
	s.a = resize(s.a, tileRows*maxPitch)
	pitch := pitchOf(kc)
	for r, at := range s.at {
		convertRow(s.a[r*pitch:(r+1)*pitch], &mm.a, at+offset, kc)
	}
	return tile{unsafe.Pointer(unsafe.SliceData(s.a)), pitch, 4, dtype.F32}
}

// spacing returns the distance of consecutive addresses, if it is the same for all.
func spacing(at []int64) (int, bool) {
	if len(at) < 2 {
		return 0, true
	}
	step := at[1] - at[0]
	for i := 2; i < len(at); i++ {
		if at[i]-at[i-1] != step {
			return 0, false
		}
	}
	return int(step), true
}

// panelB returns rows of B converted to float32, with rows of zeros up to a multiple of
// microCols.
func (mm *matMul) panelB(s *matScratch, at int64, wide, kc int) tile {
	s.b = resize(s.b, panel*maxPitch)
	if mm.b.row == 1 && mm.b.col != 1 {
		return transposeRows(s, &mm.b, at, wide, kc)
	}
	pitch := pitchOf(kc)
	for r := range wide {
		convertRow(s.b[r*pitch:(r+1)*pitch], &mm.b, at+int64(r)*mm.b.row, kc)
	}
	clear(s.b[wide*pitch : (wide+microCols-1)&^(microCols-1)*pitch])
	return tile{unsafe.Pointer(unsafe.SliceData(s.b)), pitch, 4, dtype.F32}
}

// pitchOf is the pitch of converted rows of kc elements.
func pitchOf(kc int) int { return (kc+lanes-1)&^(lanes-1) + pitchSkew }

// convertRow converts a row of kc elements, and sets the rest of d to zero.
func convertRow(d []float32, o *operand, at int64, kc int) {
	o.getF(d[:kc], at, o.col)
	clear(d[kc:])
}

// transposeRows converts rows of a matrix in which the elements of neighbouring rows are contiguous in
// memory, and those of a row are not: it reads one element of all rows together.
func transposeRows(s *matScratch, o *operand, at int64, rows, kc int) tile {
	pitch := pitchOf(kc)
	dst := s.b
	clear(dst[:panel*pitch])
	for k := range kc {
		line := s.line[:rows]
		o.getF(line, at+int64(k)*o.col, 1)
		for r, v := range line {
			dst[r*pitch+k] = v
		}
	}
	return tile{unsafe.Pointer(unsafe.SliceData(dst)), pitch, 4, dtype.F32}
}
