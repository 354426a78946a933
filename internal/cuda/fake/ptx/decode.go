package ptx

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"unsafe"
)

// slot is the index of a register; if it is negative, ^slot is the index of a constant.
type slot int32

// number is the type of a value in a register.
type number interface {
	int32 | uint32 | float32 | int64 | uint64 | float64
}

// lanes returns the values of a register in all lanes. T has the size of the register's file.
func lanes[T number](w *warp, s slot) *[lanesOfWarp]T {
	var t T
	switch {
	case unsafe.Sizeof(t) == 8 && s < 0:
		return (*[lanesOfWarp]T)(unsafe.Pointer(&w.entry.c64[^s]))
	case unsafe.Sizeof(t) == 8:
		return (*[lanesOfWarp]T)(unsafe.Pointer(&w.b64[s]))
	case s < 0:
		return (*[lanesOfWarp]T)(unsafe.Pointer(&w.entry.c32[^s]))
	}
	return (*[lanesOfWarp]T)(unsafe.Pointer(&w.b32[s]))
}

// map1 sets d to f of a.
func map1[D, A number](d, a slot, f func(A) D) exec {
	return func(w *warp, m uint32) {
		x, p := lanes[D](w, d), lanes[A](w, a)
		if m == all {
			for i := range x {
				x[i] = f(p[i])
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m)
			x[i] = f(p[i])
		}
	}
}

// map2 sets d to f of a and b.
func map2[D, A, B number](d, a, b slot, f func(A, B) D) exec {
	return func(w *warp, m uint32) {
		x, p, q := lanes[D](w, d), lanes[A](w, a), lanes[B](w, b)
		if m == all {
			for i := range x {
				x[i] = f(p[i], q[i])
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m)
			x[i] = f(p[i], q[i])
		}
	}
}

// map3 sets d to f of a, b and c.
func map3[D, A, B, C number](d, a, b, c slot, f func(A, B, C) D) exec {
	return func(w *warp, m uint32) {
		x, p, q, r := lanes[D](w, d), lanes[A](w, a), lanes[B](w, b), lanes[C](w, c)
		if m == all {
			for i := range x {
				x[i] = f(p[i], q[i], r[i])
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m)
			x[i] = f(p[i], q[i], r[i])
		}
	}
}

// onOne decodes an operation with one operand, of the type of its result.
func onOne[T number](d *decoder, k kind, f func(T) T) exec {
	d.operands(2, 2)
	return map1(d.target(0, k), d.source(1, k), f)
}

// onTwo decodes an operation with two operands, of the type of its result.
func onTwo[T number](d *decoder, k kind, f func(a, b T) T) exec {
	d.operands(3, 3)
	return map2(d.target(0, k), d.source(1, k), d.source(2, k), f)
}

// test sets a predicate to f of a and b.
func test[T number](d int32, a, b slot, f func(a, b T) bool) exec {
	return func(w *warp, m uint32) {
		p, q := lanes[T](w, a), lanes[T](w, b)
		v := uint32(0)
		for x := m; x != 0; x &= x - 1 {
			i := bits.TrailingZeros32(x)
			if f(p[i], q[i]) {
				v |= 1 << i
			}
		}
		w.preds[d] = w.preds[d]&^m | v
	}
}

// decoder decodes the instructions of an entry to ops.
type decoder struct {
	e       *Entry
	in      *instruction
	base    string   // of the opcode
	parts   []string // modifiers that are not decoded yet
	c32     map[uint32]slot
	c64     map[uint64]slot
	named   map[string]slot // special registers
	symbols map[*variable]map[int64]slot
	err     error
}

// decode decodes the entry's instructions.
func (e *Entry) decode() error {
	d := &decoder{e: e, c32: map[uint32]slot{}, c64: map[uint64]slot{}, named: map[string]slot{}, symbols: map[*variable]map[int64]slot{}}
	e.unit, e.globalUnit = 4, 4
	e.tail = (int64(e.StaticShared) + 15) / 16 * 16
	for i := range e.body {
		o, err := d.instruction(&e.body[i])
		if err != nil {
			return &SyntaxError{e.body[i].line, err.Error()}
		}
		e.code = append(e.code, o)
		e.places = append(e.places, place{e.body[i].line, e.body[i].opcode, e.body[i].source})
	}
	last := place{opcode: "ret"}
	if n := len(e.places); n > 0 {
		last.line = e.places[n-1].line
	}
	e.code = append(e.code, op{kind: opExit, guard: -1})
	e.places = append(e.places, last)
	return nil
}

func (d *decoder) instruction(in *instruction) (op, error) {
	d.in, d.err = in, nil
	parts := strings.Split(in.opcode, ".")
	d.base, d.parts = parts[0], parts[1:]
	o := op{guard: -1, negated: in.negated}
	if in.guard != nil {
		o.guard = in.guard.index
	}
	switch d.base {
	case "bra":
		d.flag("uni")
		o.kind = opBranch
		d.operands(1, 1)
		if d.err == nil {
			at, ok := in.scope.label(in.operands[0].text)
			if !ok || in.operands[0].kind != operandLabel {
				d.fail("no label %q", in.operands[0].text)
			}
			o.target = int32(at)
		}
	case "ret", "exit":
		d.flag("uni")
		d.operands(0, 0)
		o.kind = opExit
	default:
		d.decode(&o)
	}
	if len(d.parts) > 0 {
		d.fail("unknown")
	}
	if d.err == nil && o.run == nil && o.kind != opBranch && o.kind != opExit {
		d.fail("unknown")
	}
	if d.err != nil {
		return o, fmt.Errorf("%s: %w", in.opcode, d.err)
	}
	return o, nil
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

// flag removes the first of names that is a modifier, and reports whether there is one.
func (d *decoder) flag(names ...string) bool {
	for _, n := range names {
		if i := slices.Index(d.parts, n); i >= 0 {
			d.parts = slices.Delete(d.parts, i, i+1)
			return true
		}
	}
	return false
}

// choice removes and returns the first of names that is a modifier. If no name is one, it returns otherwise.
func (d *decoder) choice(otherwise string, names ...string) string {
	for _, n := range names {
		if d.flag(n) {
			return n
		}
	}
	return otherwise
}

// typ removes the last modifier, which is a type.
func (d *decoder) typ() kind {
	if len(d.parts) == 0 {
		d.fail("no type")
		return kind{classBits, 32, 1}
	}
	name := d.parts[len(d.parts)-1]
	k, ok := kindOf(name)
	if !ok {
		d.fail("no type %q", name)
		return kind{classBits, 32, 1}
	}
	d.parts = d.parts[:len(d.parts)-1]
	return k
}

// operands checks the number of operands.
func (d *decoder) operands(lo, hi int) {
	if n := len(d.in.operands); n < lo || n > hi {
		d.fail("%d operands", n)
	}
}

// operand returns operand i, or a sink if it is missing.
func (d *decoder) operand(i int) *operand {
	if i >= len(d.in.operands) {
		d.fail("%d operands", len(d.in.operands))
		return &operand{kind: operandSink}
	}
	return &d.in.operands[i]
}

// constant returns the slot of a constant.
func (d *decoder) constant(v uint64, bits int) slot {
	switch bits {
	case 64:
		return constantOf(d.c64, &d.e.c64, v)
	case 16:
		v &= 0xffff
	}
	return constantOf(d.c32, &d.e.c32, uint32(v))
}

// constantOf returns the slot of a constant. It adds a new constant to all.
func constantOf[T uint32 | uint64](known map[T]slot, all *[][lanesOfWarp]T, v T) slot {
	if s, ok := known[v]; ok {
		return s
	}
	s := ^slot(len(*all))
	var x [lanesOfWarp]T
	for i := range x {
		x[i] = v
	}
	*all = append(*all, x)
	known[v] = s
	return s
}

// hidden adds a register without a name, whose value is set when a warp starts.
func (d *decoder) hidden(wide bool, value func(w *warp, lane int) uint64) slot {
	n := &d.e.n32
	if wide {
		n = &d.e.n64
	}
	s := slot(*n)
	*n++
	d.e.specials = append(d.e.specials, special{wide, int32(s), value})
	return s
}

// source returns the slot of operand i as an input of a type.
func (d *decoder) source(i int, k kind) slot { return d.input(d.operand(i), k) }

func (d *decoder) input(o *operand, k kind) slot {
	switch o.kind {
	case operandRegister:
		if o.reg.kind.bits != k.bits || k.bits == 1 || o.negated {
			d.fail("%s is no register of %d bits", o.text, k.bits)
		}
		return slot(o.reg.index)
	case operandImmediate, operandFloat:
		v, err := o.bits(k)
		if err != nil {
			d.fail("%v", err)
		}
		return d.constant(v, k.bits)
	case operandSpecial:
		return d.specialRegister(o.text, k)
	case operandSymbol:
		if k.bits != 64 && k.bits != 32 {
			break
		}
		return d.symbol(o.symbol, o.value, k.bits == 64)
	}
	d.fail("%q is no input", o.text)
	return 0
}

// target returns the slot of operand i as a register that is written.
func (d *decoder) target(i int, k kind) slot { return d.output(d.operand(i), k) }

func (d *decoder) output(o *operand, k kind) slot {
	if o.kind != operandRegister || o.reg.kind.bits != k.bits || k.bits == 1 || o.negated {
		d.fail("%q is no register of %d bits", o.text, k.bits)
		return 0
	}
	return slot(o.reg.index)
}

// predicate returns operand i, a predicate, and whether it is negated.
func (d *decoder) predicate(i int) (index int32, negated bool) {
	o := d.operand(i)
	if o.kind != operandRegister || o.reg.kind.class != classPred {
		d.fail("%q is no predicate", o.text)
		return 0, false
	}
	return o.reg.index, o.negated
}

// predicateOf returns the lanes in which a predicate is true, or false if it is negated.
func predicateOf(w *warp, index int32, negated bool) uint32 {
	if negated {
		return ^w.preds[index]
	}
	return w.preds[index]
}

// Windows of the generic address space. The shared memory of the block of rank r is at (r+1)<<sharedShift, an
// address of 32 bits.
const (
	sharedWindow = 1 << 40
	localWindow  = 2 << 40
	sharedShift  = 20
	localBase    = mostAlign // so no variable has the address 0
)

// symbol returns the slot of a variable's address in its space, plus off.
func (d *decoder) symbol(v *variable, off int64, wide bool) slot {
	if s, ok := d.symbols[v][off]; ok && wide {
		return s
	}
	var value func(w *warp, lane int) uint64
	switch v.space {
	case spaceGlobal:
		at := uint64(v.offset + off)
		value = func(w *warp, _ int) uint64 { return w.m.launch.Data + at }
	case spaceShared:
		at := uint64(v.offset + off)
		if v.dynamic {
			if d.e.tail%v.align != 0 {
				d.e.tail = (d.e.tail + v.align - 1) / v.align * v.align
			}
			value = func(w *warp, _ int) uint64 {
				return uint64(w.block.rank+1)<<sharedShift + uint64(w.entry.tail) + uint64(off)
			}
		} else {
			value = func(w *warp, _ int) uint64 { return uint64(w.block.rank+1)<<sharedShift + at }
		}
	case spaceLocal:
		at := uint64(v.offset + off + localBase)
		value = func(*warp, int) uint64 { return at }
	default:
		d.fail("the address of a parameter")
		return 0
	}
	s := d.hidden(wide, value)
	if wide {
		if d.symbols[v] == nil {
			d.symbols[v] = map[int64]slot{}
		}
		d.symbols[v][off] = s
	}
	return s
}

// specialRegister returns the slot of a special register.
func (d *decoder) specialRegister(name string, k kind) slot {
	key := fmt.Sprintf("%s %d", name, k.bits)
	if s, ok := d.named[key]; ok {
		return s
	}
	base, axis := name, -1
	if i := strings.IndexByte(name, '.'); i >= 0 {
		base, axis = name[:i], strings.Index("xyz", name[i+1:])
		if len(name) != i+2 {
			axis = -1
		}
	}
	var value func(w *warp, lane int) uint64
	of := func(f func(l *Launch, w *warp) [3]uint32) {
		if axis >= 0 {
			value = func(w *warp, _ int) uint64 { return uint64(f(&w.m.launch, w)[axis]) }
		}
	}
	switch base {
	case "%tid":
		if axis >= 0 {
			value = func(w *warp, lane int) uint64 {
				b, t := w.m.launch.Block, uint32(w.first+lane)
				return uint64([3]uint32{t % b[0], t / b[0] % b[1], t / b[0] / b[1]}[axis])
			}
		}
	case "%ntid":
		of(func(l *Launch, _ *warp) [3]uint32 { return l.Block })
	case "%ctaid":
		of(func(_ *Launch, w *warp) [3]uint32 { return w.block.at })
	case "%nctaid":
		of(func(l *Launch, _ *warp) [3]uint32 { return l.Grid })
	case "%cluster_ctaid":
		of(func(l *Launch, w *warp) [3]uint32 {
			return [3]uint32{w.block.at[0] % l.Cluster[0], w.block.at[1] % l.Cluster[1], w.block.at[2] % l.Cluster[2]}
		})
	case "%cluster_nctaid":
		of(func(l *Launch, _ *warp) [3]uint32 { return l.Cluster })
	case "%clusterid":
		of(func(l *Launch, w *warp) [3]uint32 {
			return [3]uint32{w.block.at[0] / l.Cluster[0], w.block.at[1] / l.Cluster[1], w.block.at[2] / l.Cluster[2]}
		})
	case "%nclusterid":
		of(func(l *Launch, _ *warp) [3]uint32 {
			return [3]uint32{l.Grid[0] / l.Cluster[0], l.Grid[1] / l.Cluster[1], l.Grid[2] / l.Cluster[2]}
		})
	default:
		value = scalar(name)
	}
	if value == nil {
		d.fail("no special register %s", name)
		return 0
	}
	s := d.hidden(k.bits == 64, value)
	d.named[key] = s
	return s
}

// scalar returns the value of a special register that is not a vector; nil for another name.
func scalar(name string) func(w *warp, lane int) uint64 {
	switch name {
	case "%laneid":
		return func(_ *warp, lane int) uint64 { return uint64(lane) }
	case "%warpid":
		return func(w *warp, _ int) uint64 { return uint64(w.first / lanesOfWarp) }
	case "%nwarpid":
		return func(w *warp, _ int) uint64 { return uint64(len(w.block.warps)) }
	case "%lanemask_eq":
		return func(_ *warp, lane int) uint64 { return 1 << lane }
	case "%lanemask_lt":
		return func(_ *warp, lane int) uint64 { return 1<<lane - 1 }
	case "%lanemask_le":
		return func(_ *warp, lane int) uint64 { return 2<<lane - 1 }
	case "%lanemask_gt":
		return func(_ *warp, lane int) uint64 { return uint64(^uint32(2<<lane - 1)) }
	case "%lanemask_ge":
		return func(_ *warp, lane int) uint64 { return uint64(^uint32(1<<lane - 1)) }
	case "%cluster_ctarank":
		return func(w *warp, _ int) uint64 { return uint64(w.block.rank) }
	case "%cluster_nctarank":
		return func(w *warp, _ int) uint64 {
			c := w.m.launch.Cluster
			return uint64(c[0] * c[1] * c[2])
		}
	case "%dynamic_smem_size":
		return func(w *warp, _ int) uint64 { return uint64(w.m.launch.Dynamic) }
	case "%total_smem_size":
		return func(w *warp, _ int) uint64 { return uint64(len(w.block.shared)) }
	}
	return nil
}

// decode decodes an instruction that is neither a branch nor ret or exit.
func (d *decoder) decode(o *op) {
	switch d.base {
	case "mov":
		o.run = d.mov()
	case "selp":
		o.run = d.selp()
	case "setp":
		o.run = d.setp()
	case "cvt":
		o.run = d.cvt()
	case "add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "abs", "neg", "and", "or", "xor", "not", "cnot", "shl", "shr",
		"rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "copysign", "sad":
		o.run = d.arithmetic()
	case "bfe", "bfi", "bfind", "brev", "popc", "clz", "prmt", "shf", "lop3":
		o.run = d.bitwise()
	case "ld", "st", "cvta", "mapa", "prefetch", "atom", "red":
		o.run = d.memory()
	case "cp":
		o.run = d.async()
	case "createpolicy":
		o.run = d.policy()
	case "fence", "membar":
		o.run = d.fence()
	case "griddepcontrol":
		d.operands(0, 0)
		switch d.choice("", "wait", "launch_dependents") {
		case "wait":
			d.e.waits = true
			o.run = (*warp).waitForEarlier
		case "launch_dependents":
			d.e.late = d.e.waits
			o.run = (*warp).letNextBegin
		}
	case "nanosleep":
		d.typ()
		d.operands(1, 1)
		o.run = func(*warp, uint32) {}
	case "bar", "barrier":
		d.barrier(o)
	case "mbarrier":
		d.mbarrier(o)
	case "shfl", "vote", "activemask", "ldmatrix", "mma", "redux", "wgmma":
		d.across(o)
	default:
		d.fail("unknown")
	}
}
