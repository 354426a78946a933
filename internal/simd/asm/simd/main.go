// Command simd generates the assembly of package simd for amd64:
//
//	go generate ./internal/simd
//
// # GEMM tiles
//
// muladd{R}x{W}{T} adds R rows of A times k rows of B, of numbers of type T, to an R×W tile of C. The
// tile stays in registers: 6×16 is the tile of BLIS for this processor family (Van Zee and van de
// Geijn, ACM TOMS 41(3), 2015; kernels/haswell); 3×32 has as many accumulators, for the few rows of
// a decode. Each element of C is one chain of fused multiply-adds in the order of k.
//
// # Transposition
//
// turn8{T} writes eight rows as eight columns, in steps of eight elements: it interleaves pairs of
// rows, shuffles pairs to groups of four elements, and exchanges halves between registers.
//
// # Dot products
//
// dots{R}x32{T} transposes 32 rows of B in registers of AVX-512 and multiplies them with R rows of A
// there: a decode has too few rows to pay for a transposed copy in memory. Rows of 16 bits are
// transposed as pairs of elements.
package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"pwc/internal/simd/asm/kit"
)

const (
	panel = 32 // columns of a panel of transposed rows: simd.Panel
)

func main() {
	ConstraintExpr("amd64,!purego")
	for _, e := range kit.Elements {
		for rows := 1; rows <= 6; rows++ {
			mulAdd(rows, 2, e)
		}
		for rows := 1; rows <= 3; rows++ {
			mulAdd(rows, 4, e)
		}
		for rows := 1; rows <= 6; rows++ {
			if rows > 1 { // one row has too few sums to keep two FMA units busy
				mulAddWide(rows, 2, e)
			}
			mulAddWide(rows, 4, e)
			dots(rows, e)
		}
		turn(e)
	}
	for _, e := range kit.Elements[1:] {
		kit.Widen(e)
	}
	prefetch()
	scale()
	blend()
	largest()
	f := floats{}
	weigh(f)
	softcap(f)
	Generate()
}

// rowsOf addresses up to six rows that are stride bytes apart.
type rowsOf struct{ base, fourth, stride reg.GPVirtual }

func newRows(base, stride reg.GPVirtual, rows int) rowsOf {
	r := rowsOf{base: base, stride: stride}
	if rows > 3 {
		r.fourth = GP64()
		LEAQ(operand.Mem{Base: stride, Index: stride, Scale: 2}, r.fourth)
		ADDQ(base, r.fourth)
	}
	return r
}

func (r rowsOf) at(i, disp int) operand.Mem {
	m := operand.Mem{Base: r.base, Disp: disp}
	if i >= 3 {
		m.Base, i = r.fourth, i-3
	}
	if i > 0 {
		m.Index, m.Scale = r.stride, uint8(i)
	}
	return m
}

func (r rowsOf) advance(bytes int) {
	step := operand.Constant(operand.U8(uint8(bytes)))
	if bytes > math.MaxInt8 {
		step = operand.U32(uint32(bytes))
	}
	ADDQ(step, r.base)
	if r.fourth != nil {
		ADDQ(step, r.fourth)
	}
}

// tile has the operands of a GEMM tile.
type tile struct {
	k, b, ldb reg.GPVirtual
	a, c      rowsOf
}

func newTile(name string, rows, cols int, e kit.Element) *tile {
	TEXT(name, NOSPLIT, "func(k int, a *float32, lda int, b *byte, ldb int, c *float32, ldc int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s adds %d rows of A times k rows of %s to %d columns of C.", name, rows, e.Doc, cols))
	m := &tile{k: kit.Load64("k"), b: kit.Load64("b"), ldb: kit.Load64("ldb")}
	lda, ldc := kit.Load64("lda"), kit.Load64("ldc")
	kit.BytesOf(4, lda)
	kit.BytesOf(4, ldc)
	kit.BytesOf(e.Size, m.ldb)
	m.a, m.c = newRows(kit.Load64("a"), lda, rows), newRows(kit.Load64("c"), ldc, rows)
	return m
}

// loop emits the loop over k.
func (m *tile) loop(step func()) {
	Label("loop")
	SUBQ(operand.U8(1), m.k)
	JLT(operand.LabelRef("done"))
	step()
	m.a.advance(4)
	ADDQ(m.ldb, m.b)
	JMP(operand.LabelRef("loop"))
	Label("done")
}

func mulAdd(rows, vectors int, e kit.Element) {
	m := newTile(fmt.Sprintf("muladd%dx%d%s", rows, vectors*kit.Lanes, e.Name), rows, vectors*kit.Lanes, e)
	a, b, c := m.a, m.b, m.c
	acc := make([][]reg.VecVirtual, rows)
	for i := range acc {
		for j := range vectors {
			acc[i] = append(acc[i], YMM())
			VMOVUPS(c.at(i, 4*kit.Lanes*j), acc[i][j])
		}
	}
	loadB := func(j int) reg.VecVirtual {
		y := YMM()
		e.Load(operand.Mem{Base: b, Disp: e.Size * kit.Lanes * j}, y)
		return y
	}
	loadA := func(i int) reg.VecVirtual {
		x := YMM()
		VBROADCASTSS(a.at(i, 0), x)
		return x
	}
	m.loop(func() {
		if rows <= vectors { // sixteen registers hold A and one vector of B, or B and one number of A
			x := make([]reg.VecVirtual, rows)
			for i := range x {
				x[i] = loadA(i)
			}
			for j := range vectors {
				y := loadB(j)
				for i := range x {
					VFMADD231PS(y, x[i], acc[i][j])
				}
			}
			return
		}
		y := make([]reg.VecVirtual, vectors)
		for j := range y {
			y[j] = loadB(j)
		}
		for i := range rows {
			x := loadA(i)
			for j := range y {
				VFMADD231PS(y[j], x, acc[i][j])
			}
		}
	})
	for i := range acc {
		for j, s := range acc[i] {
			VMOVUPS(s, c.at(i, 4*kit.Lanes*j))
		}
	}
	kit.End()
}

// mulAddWide emits wide{R}x{W}{T}: muladd{R}x{W}{T} with registers of AVX-512, vectors of them for a row.
func mulAddWide(rows, vectors int, e kit.Element) {
	const wide = 2 * kit.Lanes
	m := newTile(fmt.Sprintf("wide%dx%d%s", rows, vectors*wide, e.Name), rows, vectors*wide, e)
	acc := make([][]reg.VecVirtual, rows)
	for i := range acc {
		for j := range vectors {
			acc[i] = append(acc[i], ZMM())
			VMOVUPS(m.c.at(i, 4*wide*j), acc[i][j])
		}
	}
	m.loop(func() {
		y := make([]reg.VecVirtual, vectors)
		for j := range y {
			y[j] = ZMM()
			e.LoadWide(operand.Mem{Base: m.b, Disp: e.Size * wide * j}, y[j])
		}
		for i := range rows {
			x := ZMM()
			VBROADCASTSS(m.a.at(i, 0), x)
			for j := range y {
				VFMADD231PS(y[j], x, acc[i][j])
			}
		}
	})
	for i := range acc {
		for j, s := range acc[i] {
			VMOVUPS(s, m.c.at(i, 4*wide*j))
		}
	}
	kit.End()
}

// wideLanes is the number of float32 in a register of AVX-512, and of rows that are transposed
// together.
const wideLanes = 2 * kit.Lanes

// dots emits dots{R}x32{T}. A step multiplies 64 bytes of each row, 16 columns of dwords: first of the 16 rows at
// b0, then of those at b1.
func dots(rows int, e kit.Element) {
	name := fmt.Sprintf("dots%dx%d%s", rows, 2*wideLanes, e.Name)
	TEXT(name, NOSPLIT, "func(n int, a *float32, lda int, b0, b1 *byte, ldb int, c *float32, ldc int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s sets C to the dot products of %d rows of A with 16 rows at b0 and 16 at b1, of n %s numbers each.", name, rows, e.Doc))
	n, ldb := kit.Load64("n"), kit.Load64("ldb")
	kit.BytesOf(e.Size, ldb)
	triple := GP64()
	LEAQ(operand.Mem{Base: ldb, Index: ldb, Scale: 2}, triple)
	lda := kit.Load64("lda")
	kit.BytesOf(4, lda)
	a := newRows(kit.Load64("a"), lda, rows)
	b := []reg.GPVirtual{kit.Load64("b0"), kit.Load64("b1")}
	acc := make([][]reg.VecVirtual, len(b))
	for half := range acc {
		for range rows {
			z := ZMM()
			VPXORD(z, z, z)
			acc[half] = append(acc[half], z)
		}
	}
	each := 64 / e.Size // elements of a row in a step
	var split func(z reg.VecVirtual, use func(i int, x reg.VecVirtual))
	switch e.Name {
	case "F32":
		split = func(z reg.VecVirtual, use func(int, reg.VecVirtual)) { use(0, z) }
	case "BF16":
		upper := ZMM()
		VPTERNLOGD(operand.U8(0xff), upper, upper, upper)
		VPSLLD(operand.U8(16), upper, upper)
		split = func(z reg.VecVirtual, use func(int, reg.VecVirtual)) {
			x := ZMM()
			VPSLLD(operand.U8(16), z, x)
			use(0, x)
			VPANDD(upper, z, z)
			use(1, z)
		}
	default:
		split = func(z reg.VecVirtual, use func(int, reg.VecVirtual)) {
			x, y := ZMM(), YMM()
			VPMOVDW(z, y)
			VCVTPH2PS(y, x)
			use(0, x)
			VPSRLD(operand.U8(16), z, z)
			VPMOVDW(z, y)
			VCVTPH2PS(y, z)
			use(1, z)
		}
	}
	Label("loop")
	SUBQ(operand.U8(uint8(each)), n)
	JLT(operand.LabelRef("done"))
	for half := range b {
		columns := transposed(b[half], ldb, triple)
		for j := range wideLanes {
			split(columns(j), func(i int, x reg.VecVirtual) {
				for r := range rows {
					VFMADD231PS_BCST(a.at(r, 4*(j*each/wideLanes+i)), x, acc[half][r])
				}
			})
		}
		ADDQ(operand.U8(64), b[half])
	}
	a.advance(4 * each)
	JMP(operand.LabelRef("loop"))
	Label("done")
	ldc := kit.Load64("ldc")
	kit.BytesOf(4, ldc)
	c := newRows(kit.Load64("c"), ldc, rows)
	for half := range acc {
		for r, z := range acc[half] {
			VMOVUPS(z, c.at(r, 4*wideLanes*half))
		}
	}
	kit.End()
}

// transposed loads 16 dwords of each of 16 rows and returns a function that emits column j. It is
// called once for each j, in ascending order. Dwords of two rows are interleaved, then of four; at
// the end quarters of registers are exchanged.
func transposed(base, stride, triple reg.GPVirtual) func(j int) reg.VecVirtual {
	var t, u [wideLanes]reg.VecVirtual
	at := GP64()
	MOVQ(base, at)
	for i := 0; i < wideLanes; i += 4 {
		row := [4]reg.VecVirtual{ZMM(), ZMM(), ZMM(), ZMM()}
		VMOVUPS(operand.Mem{Base: at}, row[0])
		VMOVUPS(operand.Mem{Base: at, Index: stride, Scale: 1}, row[1])
		VMOVUPS(operand.Mem{Base: at, Index: stride, Scale: 2}, row[2])
		VMOVUPS(operand.Mem{Base: at, Index: triple, Scale: 1}, row[3])
		if i+4 < wideLanes {
			LEAQ(operand.Mem{Base: at, Index: stride, Scale: 4}, at)
		}
		for k := 0; k < 4; k += 2 {
			t[i+k], t[i+k+1] = ZMM(), ZMM()
			VUNPCKLPS(row[k+1], row[k], t[i+k])
			VUNPCKHPS(row[k+1], row[k], t[i+k+1])
		}
		for k := range 2 {
			u[i+2*k], u[i+2*k+1] = ZMM(), ZMM()
			VSHUFPS(operand.U8(0x44), t[i+k+2], t[i+k], u[i+2*k])
			VSHUFPS(operand.U8(0xee), t[i+k+2], t[i+k], u[i+2*k+1])
		}
	}
	// halves[c][k] has columns c and c+4 (k < 2), or c+8 and c+12, of the first eight rows (k even) or
	// the last eight.
	var halves [4][4]reg.VecVirtual
	for c := range 4 {
		for k := range 4 {
			halves[c][k] = ZMM()
			x, y := u[8*(k%2)+c], u[8*(k%2)+4+c]
			VSHUFF32X4(operand.U8([]uint8{0x44, 0xee}[k/2]), y, x, halves[c][k])
		}
	}
	return func(j int) reg.VecVirtual {
		quarter, c := j/4, j%4
		z := ZMM()
		pair := halves[c][quarter/2*2:]
		VSHUFF32X4(operand.U8([]uint8{0x88, 0xdd}[quarter%2]), pair[1], pair[0], z)
		return z
	}
}

func turn(e kit.Element) {
	TEXT("turn8"+e.Name, NOSPLIT, "func(n int, d *float32, s *byte, stride int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("turn8%s writes eight rows of n %s numbers, stride elements apart, as columns of a panel.", e.Name, e.Doc))
	n, d, s, stride := kit.Load64("n"), kit.Load64("d"), kit.Load64("s"), kit.Load64("stride")
	kit.BytesOf(e.Size, stride)
	triple, upper := GP64(), GP64()
	LEAQ(operand.Mem{Base: stride, Index: stride, Scale: 2}, triple)
	LEAQ(operand.Mem{Base: s, Index: stride, Scale: 4}, upper)
	at := func(i int) operand.Mem {
		m := operand.Mem{Base: s}
		if i >= 4 {
			m.Base, i = upper, i-4
		}
		switch i {
		case 1, 2:
			m.Index, m.Scale = stride, uint8(i)
		case 3:
			m.Index, m.Scale = triple, 1
		}
		return m
	}
	Label("loop")
	SUBQ(operand.U8(kit.Lanes), n)
	JLT(operand.LabelRef("done"))
	var r, t [kit.Lanes]reg.VecVirtual
	pair := func(x, y reg.VecVirtual) (lo, hi reg.VecVirtual) {
		lo, hi = YMM(), YMM()
		VUNPCKLPS(y, x, lo)
		VUNPCKHPS(y, x, hi)
		return lo, hi
	}
	for i := 0; i < kit.Lanes; i += 2 {
		x, y := YMM(), YMM()
		e.Load(at(i), x)
		e.Load(at(i+1), y)
		t[i], t[i+1] = pair(x, y)
	}
	quarter := func(x, y reg.VecVirtual) (lo, hi reg.VecVirtual) {
		lo, hi = YMM(), YMM()
		VSHUFPS(operand.U8(0x44), y, x, lo)
		VSHUFPS(operand.U8(0xee), y, x, hi)
		return lo, hi
	}
	for i := 0; i < kit.Lanes; i += 4 {
		r[i], r[i+1] = quarter(t[i], t[i+2])
		r[i+2], r[i+3] = quarter(t[i+1], t[i+3])
	}
	for i := range 4 {
		lo, hi := YMM(), YMM()
		VPERM2F128(operand.U8(0x20), r[i+4], r[i], lo)
		VMOVUPS(lo, operand.Mem{Base: d, Disp: 4 * panel * i})
		VPERM2F128(operand.U8(0x31), r[i+4], r[i], hi)
		VMOVUPS(hi, operand.Mem{Base: d, Disp: 4 * panel * (i + 4)})
	}
	ADDQ(operand.U8(uint8(kit.Lanes*e.Size)), s)
	ADDQ(operand.U8(uint8(kit.Lanes*e.Size)), upper)
	ADDQ(operand.U32(4*panel*kit.Lanes), d)
	JMP(operand.LabelRef("loop"))
	Label("done")
	kit.End()
}

func prefetch() {
	TEXT("prefetchLines", NOSPLIT, "func(rows, bytes int, s *byte, stride int)")
	Pragma("noescape")
	Doc("prefetchLines prefetches rows of bytes, stride bytes apart, into the second-level cache.")
	rows, bytes, s, stride := kit.Load64("rows"), kit.Load64("bytes"), kit.Load64("s"), kit.Load64("stride")
	Label("row")
	SUBQ(operand.U8(1), rows)
	JLT(operand.LabelRef("done"))
	left, p := GP64(), GP64()
	MOVQ(bytes, left)
	MOVQ(s, p)
	Label("line")
	PREFETCHT1(operand.Mem{Base: p})
	ADDQ(operand.U8(64), p)
	SUBQ(operand.U8(64), left)
	JGT(operand.LabelRef("line"))
	ADDQ(stride, s)
	JMP(operand.LabelRef("row"))
	Label("done")
	RET()
}

// argument broadcasts a float32 parameter.
func argument(name string) reg.VecVirtual {
	x, y := XMM(), YMM()
	Load(Param(name), x)
	VBROADCASTSS(x, y)
	return y
}

func scale() {
	var x reg.VecVirtual
	kit.Block("scale8", "func(n int, d *float32, x float32)", "multiplies n numbers by x.", []string{"d"}, []int{4},
		func([]reg.GPVirtual) { x = argument("x") },
		func(p []reg.GPVirtual) {
			v := YMM()
			VMULPS(kit.At(p[0]), x, v)
			VMOVUPS(v, kit.At(p[0]))
		})
	kit.End()
}

func blend() {
	var x, y reg.VecVirtual
	kit.Block("blend8", "func(n int, d, s *float32, x, y float32)", "sets n numbers d to d*x + s*y, with three roundings.", []string{"d", "s"}, []int{4, 4},
		func([]reg.GPVirtual) { x, y = argument("x"), argument("y") },
		func(p []reg.GPVirtual) {
			v, w := YMM(), YMM()
			VMULPS(kit.At(p[0]), x, v)
			VMULPS(kit.At(p[1]), y, w)
			VADDPS(w, v, v)
			VMOVUPS(v, kit.At(p[0]))
		})
	kit.End()
}

func largest() {
	var top reg.VecVirtual
	kit.Block("largest8", "func(n int, s *float32, top *[8]float32)", "sets top[i%8] to the larger of it and element i, for n elements; NaNs are ignored.", []string{"s", "top"}, []int{4, 0},
		func(p []reg.GPVirtual) {
			top = YMM()
			VMOVUPS(kit.At(p[1]), top)
		},
		func(p []reg.GPVirtual) {
			v := YMM()
			VMOVUPS(kit.At(p[0]), v)
			VMAXPS(top, v, top) // for NaN the operand that is first here
		})
	VMOVUPS(top, kit.At(kit.Load64("top")))
	kit.End()
}

// The constants of the exponential are those of exp.go.
const (
	expLeast = -87
	expShift = 0x1.8p23
	expLn2Hi = 0.693359375
	expLn2Lo = -2.12194440e-4
)

var expPolynomial = []float32{1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1}

// The polynomial of tanh is that of exp.go.
const tanhSmall = 0.625

var tanhPolynomial = []float32{-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1}

// floats has a read-only constant of eight equal numbers for each number that is used.
type floats map[uint32]operand.Mem

func (f floats) at(v float32) operand.Mem { return f.bits(math.Float32bits(v)) }

func (f floats) bits(v uint32) operand.Mem {
	m, ok := f[v]
	if !ok {
		m = GLOBL(fmt.Sprintf("floats%08x", v), RODATA|NOPTR)
		for i := range kit.Lanes {
			DATA(4*i, operand.U32(v))
		}
		f[v] = m
	}
	return m
}

// horner computes a polynomial of x, the highest coefficient first.
func (f floats) horner(x reg.VecVirtual, coefficients []float32) reg.VecVirtual {
	y := YMM()
	VMOVUPS(f.at(coefficients[0]), y)
	for _, c := range coefficients[1:] {
		VMULPS(x, y, y)
		VADDPS(f.at(c), y, y)
	}
	return y
}

// exp returns e to the x for x <= 0 and NaN, as exp.go defines it.
func (f floats) exp(x reg.VecVirtual) reg.VecVirtual {
	z, r, t, nan := YMM(), YMM(), YMM(), YMM()
	VMULPS(f.at(math.Log2E), x, z)
	VADDPS(f.at(expShift), z, z)
	VSUBPS(f.at(expShift), z, t)
	VMULPS(f.at(expLn2Hi), t, r)
	VSUBPS(r, x, r)
	VMULPS(f.at(expLn2Lo), t, t)
	VSUBPS(t, r, r)
	y := f.horner(r, expPolynomial)
	VMULPS(r, r, t)
	VMULPS(t, y, y)
	VADDPS(r, y, y)
	VADDPS(f.at(1), y, y)
	VPSLLD(operand.U8(23), z, z)
	VPADDD(z, y, y)
	VCMPPS(operand.U8(5), f.at(expLeast), x, t) // not less than, or unordered
	VANDPS(t, y, y)
	VCMPPS(operand.U8(3), x, x, nan) // unordered
	VORPS(nan, y, y)
	return y
}

func weigh(f floats) {
	var top, sum reg.VecVirtual
	kit.Block("weigh8", "func(n int, d *float32, top float32, sums *[8]float32)", "sets n numbers d to e to the d-top, and adds element i to sums[i%8].", []string{"d", "sums"}, []int{4, 0},
		func(p []reg.GPVirtual) {
			top, sum = argument("top"), YMM()
			VMOVUPS(kit.At(p[1]), sum)
		},
		func(p []reg.GPVirtual) {
			x := YMM()
			VMOVUPS(kit.At(p[0]), x)
			VSUBPS(top, x, x)
			y := f.exp(x)
			VMOVUPS(y, kit.At(p[0]))
			VADDPS(y, sum, sum)
		})
	VMOVUPS(sum, kit.At(kit.Load64("sums")))
	kit.End()
}

func softcap(f floats) {
	const signBit = 1 << 31
	var limit reg.VecVirtual
	kit.Block("softcap8", "func(n int, d *float32, limit float32)", "sets n numbers d to limit·tanh(d/limit).", []string{"d"}, []int{4},
		func([]reg.GPVirtual) { limit = argument("limit") },
		func(p []reg.GPVirtual) {
			x, s, z, t := YMM(), YMM(), YMM(), YMM()
			VMOVUPS(kit.At(p[0]), x)
			VDIVPS(limit, x, x)
			VMULPS(x, x, s)
			y := f.horner(s, tanhPolynomial)
			VMULPS(s, y, y)
			VMULPS(x, y, y)
			VADDPS(x, y, y)
			VANDPS(f.bits(signBit-1), x, z)
			VMULPS(f.at(-2), z, t)
			e := f.exp(t)
			VADDPS(f.at(1), e, s)
			VMOVUPS(f.at(1), t)
			VSUBPS(e, t, t)
			VDIVPS(s, t, t)
			VCMPPS(operand.U8(1), f.at(tanhSmall), z, z) // less than
			VBLENDVPS(z, y, t, t)
			VANDPS(f.bits(signBit), x, x)
			VORPS(x, t, t)
			VMULPS(limit, t, t)
			VMOVUPS(t, kit.At(p[0]))
		})
	kit.End()
}
