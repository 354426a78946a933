package host

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

// refRow is the state of one row in the reference: whole rows as registers,
// addresses by the definition, nothing merged, blocked or split.
type refRow struct {
	l      *vec.Loop
	args   []tensor // memory, changed in place
	faults map[int32]bool
	row    []int64 // coordinates
	cols   [][]int64
	f, i   map[uint16][]float64 // registers; integers below 2^53 in the tests
	sf, si map[uint16]float64
}

func coords(extents []int64) [][]int64 {
	out := [][]int64{{}}
	for _, n := range extents {
		var next [][]int64
		for _, c := range out {
			for k := range n {
				next = append(next, append(slices.Clone(c), k))
			}
		}
		out = next
	}
	return out
}

func values(ds []dim.Dim) []int64 {
	var out []int64
	for _, d := range ds {
		k, _ := d.Const()
		out = append(out, k)
	}
	return out
}

// reference runs a loop by its definition.
func reference(k *vec.Kernel, args []tensor) map[int32]bool {
	faults := map[int32]bool{}
	for _, row := range coords(values(k.Loop.Outer)) {
		r := &refRow{l: &k.Loop, args: args, faults: faults, row: row, cols: coords(values(k.Loop.Inner)),
			f: map[uint16][]float64{}, i: map[uint16][]float64{}, sf: map[uint16]float64{}, si: map[uint16]float64{}}
		for _, p := range k.Loop.Phases {
			for _, in := range p.Scalar {
				r.scalar(in)
			}
			zero := *r
			zero.cols = slices.Repeat([][]int64{make([]int64, len(k.Loop.Inner))}, len(r.cols))
			for _, in := range p.Pre {
				zero.vector(in)
			}
			reduced := map[vec.Instr]bool{}
			for _, in := range p.Body {
				r.vector(in)
				if info, _ := in.Op.Info(); info.Reduce {
					reduced[in] = true
				}
			}
			for in := range reduced {
				r.reduce(in)
			}
		}
	}
	return faults
}

// address returns the element that a load or a store reaches, and false if the index is out of range.
func (r *refRow) address(a *vec.Access, store bool, col []int64, pos func() float64) (int64, bool) {
	at, _ := a.Offset.Const()
	for i, s := range values(a.Outer) {
		at += s * r.row[i]
	}
	for i, s := range values(a.Inner) {
		at += s * col[i]
	}
	if x := a.Index; x != nil {
		p, extent, stride := int64(pos()), values([]dim.Dim{x.Extent})[0], values([]dim.Dim{x.Stride})[0]
		if p < 0 || p >= extent {
			if p != -1 || !store {
				r.faults[x.Origin] = true
			}
			return 0, false
		}
		at += p * stride
	}
	return at, true
}

func (r *refRow) element(a *vec.Access, at int64) float64 {
	if a.Arg < 0 {
		return float64(at)
	}
	size := int64(a.DType.Bits() / 8)
	x := tensor{a.DType, r.args[a.Arg].data[at*size : (at+1)*size]}
	if a.DType.Float() {
		return x.values()[0]
	}
	return float64(x.ints()[0])
}

func (r *refRow) put(a *vec.Access, at int64, v float64) {
	size := int64(a.DType.Bits() / 8)
	var x tensor
	if a.DType.Float() {
		x = floats(a.DType, v)
	} else {
		x = integers(a.DType, a.DType.Wrap(int64(v)))
	}
	copy(r.args[a.Arg].data[at*size:], x.data)
}

// compute is one element of an op that has no state.
func compute(in vec.Instr, a, b, c float64) float64 {
	f32 := func(x float64) float64 { return float64(float32(x)) }
	is := func(x bool) float64 {
		if x {
			return 1
		}
		return 0
	}
	switch in.Op {
	case vec.OpConstF:
		return f32(in.F)
	case vec.OpConstI:
		return float64(in.I)
	case vec.OpMoveF, vec.OpMoveI, vec.OpSplatF, vec.OpSplatI:
		return a
	case vec.OpNeg, vec.OpNegI:
		return -a
	case vec.OpAdd, vec.OpAddI:
		return f32(a + b)
	case vec.OpSub, vec.OpSubI:
		return f32(a - b)
	case vec.OpMul:
		return f32(a * b)
	case vec.OpMax, vec.OpMaxI:
		return math.Max(a, b)
	case vec.OpLt, vec.OpLtI:
		return is(a < b)
	case vec.OpSelectF, vec.OpSelectI:
		if c != 0 {
			return a
		}
		return b
	case vec.OpItoF:
		return f32(a)
	case vec.OpRoundBF16:
		return dtype.BF16.Round(a)
	}
	panic(in.Op.String())
}

func (r *refRow) scalar(in vec.Instr) {
	info, _ := in.Op.Info()
	file := func(f vec.File) map[uint16]float64 {
		if f == vec.F {
			return r.sf
		}
		return r.si
	}
	zero := make([]int64, len(r.l.Inner))
	pos := func() float64 { return r.si[r.l.Access[in.X].Index.Reg] }
	switch info.X {
	case vec.XLoad:
		a := &r.l.Access[in.X]
		v := 0.0
		if at, ok := r.address(a, false, zero, pos); ok {
			v = r.element(a, at)
		}
		file(info.Dst)[in.Dst] = v
	case vec.XStore:
		a := &r.l.Access[in.X]
		if at, ok := r.address(a, true, zero, pos); ok {
			r.put(a, at, file(info.A)[in.A])
		}
	default:
		file(info.Dst)[in.Dst] = compute(in, file(info.A)[in.A], file(info.B)[in.B], file(info.C)[in.C])
	}
}

func (r *refRow) vector(in vec.Instr) {
	info, _ := in.Op.Info()
	read := func(f vec.File, reg uint16, c int) float64 {
		switch f {
		case vec.F:
			return r.f[reg][c]
		case vec.I:
			return r.i[reg][c]
		case vec.SF:
			return r.sf[reg]
		case vec.SI:
			return r.si[reg]
		}
		return 0
	}
	if info.Reduce {
		return
	}
	out := make([]float64, len(r.cols))
	sum := 0.0
	for c, col := range r.cols {
		pos := func() float64 {
			x := r.l.Access[in.X].Index
			if x.Scalar {
				return r.si[x.Reg]
			}
			return r.i[x.Reg][c]
		}
		switch {
		case info.X == vec.XLoad:
			a := &r.l.Access[in.X]
			if at, ok := r.address(a, false, col, pos); ok {
				out[c] = r.element(a, at)
			}
		case info.X == vec.XStore:
			a := &r.l.Access[in.X]
			if at, ok := r.address(a, true, col, pos); ok {
				r.put(a, at, read(info.A, in.A, c))
			}
		case info.Scan:
			sum += read(info.A, in.A, c)
			out[c] = float64(float32(sum))
		default:
			out[c] = compute(in, read(info.A, in.A, c), read(info.B, in.B, c), read(info.C, in.C, c))
		}
	}
	switch info.Dst {
	case vec.F:
		r.f[in.Dst] = out
	case vec.I:
		r.i[in.Dst] = out
	}
}

func (r *refRow) reduce(in vec.Instr) {
	v := math.Inf(-1)
	if in.Op == vec.OpSum || in.Op == vec.OpSumI {
		v = 0
	}
	at := 0
	src := r.f[in.A]
	if info, _ := in.Op.Info(); info.A == vec.I {
		src = r.i[in.A]
	}
	for c, x := range src {
		switch in.Op {
		case vec.OpSum, vec.OpSumI:
			v += x
		case vec.OpRMax:
			v = math.Max(v, x)
		case vec.OpArgMax:
			if x > v {
				v, at = x, c
			}
		}
	}
	switch in.Op {
	case vec.OpSum, vec.OpRMax:
		r.sf[in.Dst] = float64(float32(v))
	case vec.OpSumI:
		r.si[in.Dst] = v
	case vec.OpArgMax:
		r.si[in.Dst] = float64(at)
	}
}

// drawLoop draws a valid loop over small extents with its memory.
func drawLoop(t *rapid.T) (*vec.Kernel, []tensor) {
	g := &loopGen{t: t, k: &vec.Kernel{}}
	axes := func(name string, most int) []dim.Dim {
		n := rapid.IntRange(0, most).Draw(t, name)
		var out []dim.Dim
		for range n {
			out = append(out, dim.Const(rapid.SampledFrom([]int64{0, 1, 2, 3, 5, 70}).Draw(t, name+" extent")))
		}
		return out
	}
	l := &g.k.Loop
	l.Outer, l.Inner = axes("outer", 2), axes("inner", 2)
	l.Regs = vec.RegCount{F: 64, I: 64, SF: 16, SI: 16}
	for range rapid.IntRange(1, 2).Draw(t, "phases") {
		g.phase()
	}
	g.k.Args = int32(len(g.args))
	return g.k, g.args
}

// loopGen emits instructions in SSA form: every register is assigned once.
type loopGen struct {
	t      *rapid.T
	k      *vec.Kernel
	args   []tensor
	f, i   []uint16 // registers to read
	sf, si []uint16
	nf, ni uint16
	nsf    uint16
	nsi    uint16
}

func (g *loopGen) strides(name string, extents []dim.Dim, lo, hi *int64, store bool, step *int64) []dim.Dim {
	out := make([]dim.Dim, len(extents))
	for i := len(extents) - 1; i >= 0; i-- {
		n, _ := extents[i].Const()
		s := *step
		if store {
			*step *= max(n, 1)
		} else {
			switch rapid.IntRange(0, 4).Draw(g.t, name) {
			case 0:
				s = 0
			case 1:
				s = int64(rapid.IntRange(-3, 3).Draw(g.t, "stride"))
			default:
				*step *= max(n, 1)
			}
		}
		if n > 1 && s < 0 {
			*lo += (n - 1) * s
		} else if n > 1 {
			*hi += (n - 1) * s
		}
		out[i] = dim.Const(s)
	}
	return out
}

// access makes an access of memory of its own. Loads may repeat elements, skip some or
// go backwards; stores without an index reach no element twice.
func (g *loopGen) access(dt dtype.DType, store bool, index *vec.Index) int32 {
	l := &g.k.Loop
	lo, hi, step := int64(0), int64(0), int64(1)
	a := vec.Access{Arg: int32(len(g.args)), DType: dt, Index: index}
	a.Inner = g.strides("inner stride", l.Inner, &lo, &hi, store, &step)
	a.Outer = g.strides("outer stride", l.Outer, &lo, &hi, store, &step)
	if index != nil {
		e, _ := index.Extent.Const()
		index.Stride = dim.Const(step)
		if e > 1 {
			hi += (e - 1) * step
		}
	}
	a.Offset = dim.Const(-lo)
	n := int(hi - lo + 1)
	x := tensor{dt: dt}
	seed := rapid.IntRange(0, 12).Draw(g.t, "elements")
	for j := range n {
		v := int64((j*7+seed)%13 - 4)
		if dt.Float() {
			x.data = append(x.data, floats(dt, float64(v)).data...)
		} else {
			x.data = append(x.data, integers(dt, dt.Wrap(v)).data...)
		}
	}
	g.args = append(g.args, x)
	l.Access = append(l.Access, a)
	return int32(len(l.Access) - 1)
}

var floatTypes = []dtype.DType{dtype.F32, dtype.F16, dtype.BF16}
var intTypes = []dtype.DType{dtype.I8, dtype.U8, dtype.I16, dtype.I32, dtype.I64, dtype.Bool}

func (g *loopGen) newF() uint16  { g.nf++; return g.nf - 1 }
func (g *loopGen) newI() uint16  { g.ni++; return g.ni - 1 }
func (g *loopGen) newSF() uint16 { g.nsf++; return g.nsf - 1 }
func (g *loopGen) newSI() uint16 { g.nsi++; return g.nsi - 1 }

func (g *loopGen) phase() {
	t := g.t
	var p vec.Phase
	pick := func(name string, regs []uint16) uint16 { return rapid.SampledFrom(regs).Draw(t, name) }
	index := func(scalar bool, regs []uint16) *vec.Index {
		if len(regs) == 0 || !rapid.Bool().Draw(t, "indexed") {
			return nil
		}
		return &vec.Index{Reg: pick("position", regs), Scalar: scalar, Extent: dim.Const(int64(rapid.IntRange(0, 6).Draw(t, "positions"))), Origin: int32(rapid.IntRange(0, 3).Draw(t, "origin"))}
	}
	if rapid.Bool().Draw(t, "scalar load") {
		r := g.newSI()
		p.Scalar = append(p.Scalar, vec.Instr{Op: vec.OpLoadI, Dst: r, X: g.access(rapid.SampledFrom(intTypes).Draw(t, "dtype"), false, index(true, g.si))})
		g.si = append(g.si, r)
	}
	if len(g.sf) > 0 && rapid.Bool().Draw(t, "scalar op") {
		r := g.newSF()
		p.Scalar = append(p.Scalar, vec.Instr{Op: vec.OpAdd, Dst: r, A: pick("a", g.sf), B: pick("b", g.sf)})
		g.sf = append(g.sf, r)
		if rapid.Bool().Draw(t, "scalar store") {
			p.Scalar = append(p.Scalar, vec.Instr{Op: vec.OpStoreF, A: r, X: g.access(dtype.F32, true, nil)})
		}
	}
	if len(g.sf) > 0 && rapid.Bool().Draw(t, "splat") {
		r := g.newF()
		p.Pre = append(p.Pre, vec.Instr{Op: vec.OpSplatF, Dst: r, A: pick("a", g.sf)})
		g.f = append(g.f, r)
	}
	if len(g.si) > 0 && rapid.Bool().Draw(t, "splat") {
		r := g.newI()
		p.Pre = append(p.Pre, vec.Instr{Op: vec.OpSplatI, Dst: r, A: pick("a", g.si)})
		g.i = append(g.i, r)
	}
	if rapid.Bool().Draw(t, "load in pre") {
		r := g.newF()
		p.Pre = append(p.Pre, vec.Instr{Op: vec.OpLoadF, Dst: r, X: g.access(dtype.F32, false, index(true, g.si))})
		g.f = append(g.f, r)
	}
	nf, ni := len(g.f), len(g.i) // later phases do not read registers that Body assigns
	emit := func(in vec.Instr) { p.Body = append(p.Body, in) }
	setF := func(in vec.Instr) {
		in.Dst = g.newF()
		emit(in)
		g.f = append(g.f, in.Dst)
	}
	setI := func(in vec.Instr) {
		in.Dst = g.newI()
		emit(in)
		g.i = append(g.i, in.Dst)
	}
	for range rapid.IntRange(1, 6).Draw(t, "instructions") {
		switch rapid.IntRange(0, 8).Draw(t, "what") {
		case 0, 1:
			x := index(false, g.i)
			if x == nil {
				x = index(true, g.si)
			}
			setF(vec.Instr{Op: vec.OpLoadF, X: g.access(rapid.SampledFrom(append(floatTypes, intTypes...)).Draw(t, "dtype"), false, x)})
		case 2:
			setI(vec.Instr{Op: vec.OpLoadI, X: g.access(rapid.SampledFrom(intTypes).Draw(t, "dtype"), false, index(false, g.i))})
		case 3:
			if len(g.f) > 0 {
				setF(vec.Instr{Op: rapid.SampledFrom([]vec.Op{vec.OpAdd, vec.OpSub, vec.OpMul, vec.OpMax}).Draw(t, "op"), A: pick("a", g.f), B: pick("b", g.f)})
			}
		case 4:
			if len(g.i) > 0 {
				setI(vec.Instr{Op: rapid.SampledFrom([]vec.Op{vec.OpAddI, vec.OpSubI, vec.OpLtI, vec.OpMaxI}).Draw(t, "op"), A: pick("a", g.i), B: pick("b", g.i)})
			}
		case 5:
			if len(g.f) > 0 && len(g.i) > 0 {
				setF(vec.Instr{Op: vec.OpSelectF, A: pick("a", g.f), B: pick("b", g.f), C: pick("c", g.i)})
				setF(vec.Instr{Op: vec.OpItoF, A: pick("a", g.i)})
			}
		case 6:
			// addresses as values: an access without memory
			l := &g.k.Loop
			lo, hi, step := int64(0), int64(0), int64(1)
			l.Access = append(l.Access, vec.Access{Arg: -1, Inner: g.strides("inner", l.Inner, &lo, &hi, false, &step), Outer: g.strides("outer", l.Outer, &lo, &hi, false, &step)})
			setI(vec.Instr{Op: vec.OpLoadI, X: int32(len(l.Access) - 1)})
		case 7:
			setF(vec.Instr{Op: vec.OpConstF, F: float64(rapid.IntRange(-2, 2).Draw(t, "const"))})
		case 8:
			if len(g.f) > 0 && rapid.Bool().Draw(t, "scan") {
				setF(vec.Instr{Op: vec.OpCumSum, A: pick("a", g.f)})
			}
		}
	}
	if len(g.f) > 0 && rapid.Bool().Draw(t, "reduce") {
		op := rapid.SampledFrom([]vec.Op{vec.OpSum, vec.OpRMax, vec.OpArgMax}).Draw(t, "reduction")
		in := vec.Instr{Op: op, A: pick("a", g.f)}
		if op == vec.OpArgMax {
			in.Dst = g.newSI()
			defer func() { g.si = append(g.si, in.Dst) }()
		} else {
			in.Dst = g.newSF()
			defer func() { g.sf = append(g.sf, in.Dst) }()
		}
		emit(in)
	}
	if len(g.f) > 0 {
		emit(vec.Instr{Op: vec.OpStoreF, A: pick("stored", g.f), X: g.access(rapid.SampledFrom(floatTypes).Draw(t, "dtype"), true, nil)})
	}
	if len(g.i) > 0 {
		emit(vec.Instr{Op: vec.OpStoreI, A: pick("stored", g.i), X: g.access(rapid.SampledFrom(intTypes).Draw(t, "dtype"), true, index(false, g.i))})
		l := &g.k.Loop
		if l.Access[len(l.Access)-1].Index != nil {
			l.Serial = true // equal indices: the last wins
		}
	}
	g.f, g.i = g.f[:nf], g.i[:ni]
	g.k.Loop.Phases = append(g.k.Loop.Phases, p)
}

// TestLoopsAgainstReference runs random loops, on one worker and on several,
// and compares all memory and all faults with the definition.
func TestLoopsAgainstReference(t *testing.T) {
	one, many := openDevice(t, 1), openDevice(t, 3)
	rapid.Check(t, func(rt *rapid.T) {
		k, args := drawLoop(rt)
		want := make([]tensor, len(args))
		for i, a := range args {
			want[i] = tensor{a.dt, slices.Clone(a.data)}
		}
		faults := reference(k, want)
		for _, d := range []*Device{one, many} {
			l := load(t, d, k, args...)
			if d == many { // as if it were much work
				l.launch.(*bound).steps[0].node.kernel.split(1e6, !k.Loop.Serial, columnsSplit(k))
			}
			if err := l.stream.Launch(l.launch); err != nil {
				rt.Fatal(err)
			}
			for i := range args {
				if got := l.read(t, i); !slices.Equal(got.data, want[i].data) {
					rt.Fatalf("argument %d:\n got %s\nwant %s\n%s", i, show(got), show(want[i]), k)
				}
			}
			got, err := d.TakeFaults(l.stream)
			if err != nil {
				rt.Fatal(err)
			}
			if len(got) != len(faults) {
				rt.Fatalf("faults %v, want %v\n%s", got, faults, k)
			}
			for _, f := range got {
				if !faults[f.Origin] || f.Executable != l.exec {
					rt.Fatalf("fault %v, want %v", f, faults)
				}
			}
			if err := l.exec.Close(); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

func show(x tensor) string {
	if x.dt.Float() {
		return fmt.Sprint(x.values())
	}
	return fmt.Sprint(x.ints())
}
