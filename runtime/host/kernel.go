package host

import (
	"fmt"
	"math"
	"slices"

	"pwc/ir/dtype"
	"pwc/program"
	"pwc/program/vec"
)

// kernel is a vector program bound to memory and sizes. It is not changed after newKernel, so
// that any number of lanes can run it.
type kernel struct {
	rows, cols int64
	block      int // elements of a vector register

	// Part p covers rows [p/colParts*rowStep, …) and columns [p%colParts*colStep, …).
	rowStep, colStep int64
	colParts, parts  int64
	alone            bool // the caller runs all parts, because there is too little work for the workers

	access []access
	setup  []inst // instructions whose results no row changes: run once for each part
	phases []phase
	work   int64 // of a row, without the bodies: instructions on elements
	regs   vec.RegCount
	pool   *pool

	mat    *matMul
	topK   *topK
	attend *attention
}

// phase is a vec.Phase with resolved operands.
type phase struct {
	scalar, pre, body []inst
	reduce            []inst // of body: the reductions
}

// inst is an instruction with registers as offsets in their files.
type inst struct {
	op           vec.Op
	dst, a, b, c int
	x            *access
	dtype        dtype.DType
	slot         int // of a reduction or scan: index of its state
	f            float32
	i            int64
}

// The length of blocks is such that the vector registers take at most half of a first-level cache
// of 32 KiB, unless there are so many that minBlock elements of them take more. The other half is
// for the elements that are loaded and stored.
const (
	registerBytes = 16 << 10
	minBlock      = 64
	maxBlock      = 1024
)

func blockLength(r vec.RegCount) int {
	bytes := 4*int(r.F) + 8*int(r.I)
	if bytes == 0 {
		return maxBlock
	}
	return min(max(registerBytes/bytes/minBlock*minBlock, minBlock), maxBlock)
}

// newKernel binds code to memory: args are the kernel's buffers, with the lengths that the
// program declares.
func newKernel(x *Executable, code *vec.Kernel, env program.Env, args [][]byte) (*kernel, error) {
	z := &sizer{env: env}
	l := &code.Loop
	outer, inner := z.extents(l.Outer), z.extents(l.Inner)
	k := &kernel{rows: z.product(outer), cols: z.product(inner), regs: l.Regs, block: blockLength(l.Regs), pool: x.dev.pool}
	flat := pointwise(code)
	if all := z.product([]int64{k.rows, k.cols}); flat {
		k.rows, k.cols = min(k.rows, 1), all
	}
	if k.cols == 0 && !slices.ContainsFunc(l.Phases, func(p vec.Phase) bool { return len(p.Scalar) > 0 }) {
		k.rows = 0 // rows without columns and scalar instructions store nothing
	}
	if z.err != nil {
		return nil, z.err
	}
	switch {
	case code.TopK != nil:
		if err := k.bindTopK(z, code.TopK, outer, args); err != nil {
			return nil, err
		}
		return k, k.checkWork(args)
	case code.Attention != nil:
		if err := k.bindAttention(z, code.Attention, outer, args); err != nil {
			return nil, err
		}
		return k, k.checkWork(args)
	}
	b := &kernelBinder{x: x, z: z, code: code, k: k, flat: flat, outer: outer, inner: inner, args: args}
	if err := b.accesses(); err != nil {
		return nil, err
	}
	b.phases()
	if z.err != nil {
		return nil, z.err
	}
	for i := range k.phases {
		p := &k.phases[i]
		k.work += 1 + int64(len(p.scalar)) + int64(len(p.pre))*int64(k.block)
	}
	if code.MatMul != nil {
		if err := k.bindMatMul(z, code.MatMul, outer, inner[0], args, x.faults); err != nil {
			return nil, err
		}
		return k, k.checkWork(args)
	}
	cost := 0.0
	for i := range k.phases {
		for _, in := range k.phases[i].body {
			cost += opCost(in.op)
		}
	}
	k.split(cost, !code.Loop.Serial, columnsSplit(code))
	return k, k.checkWork(args)
}

// pointwise reports whether a kernel does the same for every element, so that its
// rows and columns can be one row of elements.
func pointwise(code *vec.Kernel) bool {
	l := &code.Loop
	if code.MatMul != nil || code.TopK != nil || code.Attention != nil || l.Serial || len(l.Phases) != 1 || len(l.Phases[0].Scalar) > 0 || !columnsSplit(code) {
		return false
	}
	for _, a := range l.Access {
		if a.Index != nil && a.Index.Scalar {
			return false
		}
	}
	return !slices.ContainsFunc(l.Phases[0].Pre, func(in vec.Instr) bool {
		info, _ := in.Op.Info()
		return info.X == vec.XLoad
	})
}

// columnsSplit reports whether the columns of a row may be divided into parts.
func columnsSplit(code *vec.Kernel) bool {
	l := &code.Loop
	if l.Serial || len(l.Phases) != 1 {
		return false
	}
	if slices.ContainsFunc(l.Phases[0].Scalar, func(in vec.Instr) bool {
		info, _ := in.Op.Info()
		return info.X == vec.XStore
	}) {
		return false
	}
	return !slices.ContainsFunc(l.Phases[0].Body, func(in vec.Instr) bool {
		info, _ := in.Op.Info()
		return info.Reduce || info.Scan
	})
}

// kernelBinder is the state of newKernel.
type kernelBinder struct {
	x            *Executable
	z            *sizer
	code         *vec.Kernel
	k            *kernel
	flat         bool
	outer, inner []int64
	args         [][]byte
	atZero       []*access // accesses at column 0, made when first used
	writers      [2][]int  // how many instructions assign each vector register
	slots        int
}

// accesses binds the accesses and proves that their addresses are within their buffers.
func (b *kernelBinder) accesses() error {
	list := b.code.Loop.Access
	b.k.access = make([]access, len(list))
	b.atZero = make([]*access, len(list))
	inScalar := make([]bool, len(list))
	for i := range b.code.Loop.Phases {
		for _, in := range b.code.Loop.Phases[i].Scalar {
			if info, _ := in.Op.Info(); info.X == vec.XLoad || info.X == vec.XStore {
				inScalar[in.X] = true
			}
		}
	}
	for i := range list {
		// Without columns only instructions of Scalar are executed.
		never := b.k.rows == 0 || b.k.cols == 0 && !inScalar[i]
		b.k.access[i].id = i
		if err := b.bindAccess(&list[i], &b.k.access[i], never); err != nil {
			return fmt.Errorf("access %d: %w", i, err)
		}
	}
	return nil
}

func (b *kernelBinder) bindAccess(a *vec.Access, out *access, never bool) error {
	z := b.z
	outer, inner := z.evalAll(a.Outer), z.evalAll(a.Inner)
	out.dtype, out.unit = a.DType, b.k.pool.unit
	out.offset = z.eval(a.Offset)
	if b.flat {
		out.inner = merge(merge(nil, b.outer, outer), b.inner, inner)
	} else {
		out.outer, out.inner = merge(nil, b.outer, outer), merge(nil, b.inner, inner)
	}
	if len(out.inner) == 0 {
		out.inner = []axis{{1, 0}}
	}
	reach := span{out.offset, out.offset}
	for i, n := range b.outer {
		reach = z.add(reach, n, outer[i])
	}
	for i, n := range b.inner {
		if b.k.cols > 0 {
			reach = z.add(reach, n, inner[i])
		}
	}
	if x := a.Index; x != nil {
		out.index = &index{reg: int(x.Reg), scalar: x.Scalar, stride: z.eval(x.Stride), extent: z.eval(x.Extent), fault: b.x.faults[x.Origin]}
		if !x.Scalar {
			out.index.reg *= b.k.block
		}
		reach = z.add(reach, out.index.extent, out.index.stride)
		never = never || out.index.extent <= 0
	}
	if z.err != nil {
		return z.err
	}
	if a.Arg < 0 {
		out.position = true
		return nil
	}
	data := b.args[a.Arg]
	if !never {
		if err := within(reach, data, a.DType); err != nil {
			return err
		}
	}
	return out.memory(data)
}

// columnZero returns the access at column 0, as instructions outside Body use it.
func (b *kernelBinder) columnZero(i int32) *access {
	if b.atZero[i] == nil {
		a := b.k.access[i]
		a.inner = []axis{{math.MaxInt64, 0}}
		b.atZero[i] = &a
	}
	return b.atZero[i]
}

func (b *kernelBinder) phases() {
	l := &b.code.Loop
	b.writers = [2][]int{make([]int, l.Regs.F), make([]int, l.Regs.I)}
	for _, p := range l.Phases {
		for _, list := range [][]vec.Instr{p.Pre, p.Body} {
			for _, in := range list {
				if w := b.writer(in); w != nil {
					*w++
				}
			}
		}
	}
	b.k.phases = make([]phase, len(l.Phases))
	for i, p := range l.Phases {
		out := &b.k.phases[i]
		b.slots = 0
		out.scalar = b.list(p.Scalar, vec.InScalar)
		out.pre = b.list(p.Pre, vec.InPre)
		out.body = b.list(p.Body, vec.InBody)
		for _, in := range out.body {
			if info, _ := in.op.Info(); info.Reduce || info.Scan {
				out.reduce = append(out.reduce, in)
			}
		}
	}
}

// writer returns the count of the vector register that an instruction assigns, if any.
func (b *kernelBinder) writer(in vec.Instr) *int {
	switch info, _ := in.Op.Info(); info.Dst {
	case vec.F:
		return &b.writers[0][in.Dst]
	case vec.I:
		return &b.writers[1][in.Dst]
	}
	return nil
}

func (b *kernelBinder) list(list []vec.Instr, place vec.Place) []inst {
	var out []inst
	for _, in := range list {
		r := b.resolve(in, place)
		if place != vec.InScalar && (in.Op == vec.OpConstF || in.Op == vec.OpConstI || in.Op == vec.OpDim) && *b.writer(in) == 1 {
			b.k.setup = append(b.k.setup, r)
			continue
		}
		out = append(out, r)
	}
	return out
}

// resolve replaces register numbers by offsets, and numbers of accesses, dims and dtypes by
// their values.
func (b *kernelBinder) resolve(in vec.Instr, place vec.Place) inst {
	info, _ := in.Op.Info()
	at := func(f vec.File, reg uint16) int {
		if place == vec.InScalar || f == vec.SF || f == vec.SI {
			return int(reg)
		}
		return int(reg) * b.k.block
	}
	out := inst{op: in.Op, dst: at(info.Dst, in.Dst), a: at(info.A, in.A), b: at(info.B, in.B), c: at(info.C, in.C), f: float32(in.F), i: in.I}
	switch info.X {
	case vec.XLoad, vec.XStore:
		if place == vec.InBody {
			out.x = &b.k.access[in.X]
		} else {
			out.x = b.columnZero(in.X)
		}
	case vec.XDim:
		out.op, out.i = vec.OpConstI, b.z.eval(b.code.Loop.Dims[in.X])
	case vec.XDType:
		out.dtype = dtype.DType(in.X)
	}
	if info.Reduce || info.Scan {
		out.slot = b.slots
		b.slots++
	}
	return out
}

// Costs are in nanoseconds. Work of parallelCost or more is divided into parts for the workers.
// Parts of partCost keep the workers evenly busy.
const (
	parallelCost = 20e3
	partCost     = 10e3
	partsEach    = 4   // parts for each worker, approximately at most
	rowCost      = 100 // of a row, without its elements
)

// split divides the iteration space into parts. cost is that of an element in nanoseconds.
func (k *kernel) split(cost float64, byRows, byColumns bool) {
	k.rowStep, k.colStep, k.colParts, k.parts = max(k.rows, 1), k.cols, 1, 1
	workers := len(k.pool.helpers) + 1
	total := float64(k.rows) * (rowCost + float64(k.cols)*cost)
	if workers == 1 || total < parallelCost || !byRows {
		return
	}
	want := int64(min(float64(workers*partsEach), total/partCost))
	if k.rows >= want || !byColumns {
		k.rowStep = (k.rows + want - 1) / want
	} else {
		k.rowStep = 1
		each := (want + k.rows - 1) / k.rows
		step := (k.cols + each - 1) / each
		block := int64(k.block)
		k.colStep = (step + block - 1) / block * block
		k.colParts = (k.cols + k.colStep - 1) / k.colStep
	}
	k.parts = (k.rows + k.rowStep - 1) / k.rowStep * k.colParts
}

// launch runs the kernel on the calling goroutine and the workers.
func (k *kernel) launch(s *Stream) {
	switch {
	case k.rows == 0:
	case k.alone:
		runHere(k, k.parts, &s.lane)
	default:
		k.pool.run(k, k.parts, &s.lane)
	}
}

// run runs one part.
func (k *kernel) run(part int64, l *lane) {
	switch {
	case k.mat != nil:
		k.mat.run(k, part, l)
		return
	case k.topK != nil:
		k.topK.run(k, part, l)
		return
	case k.attend != nil:
		k.attend.run(part, l)
		return
	}
	l.fit(k)
	l.vec.exec(k.setup, k.block)
	r0 := part / k.colParts * k.rowStep
	c0 := part % k.colParts * k.colStep
	for r := r0; r < min(r0+k.rowStep, k.rows); r++ {
		if !k.row(r, c0, min(c0+k.colStep, k.cols), l) {
			return
		}
	}
}

// row runs all phases over columns [c0, c1) of a row. It returns false if the lane must stop (spend): the
// row is not done.
func (k *kernel) row(r, c0, c1 int64, l *lane) bool {
	if l.spend(k.work) {
		return false
	}
	for i := range k.access {
		l.base[i] = k.access[i].row(r)
	}
	for i := range k.phases {
		p := &k.phases[i]
		l.scalar.exec(p.scalar, 1)
		if c0 < c1 {
			l.vec.exec(p.pre, k.block) // for later phases too
		}
		if len(p.body) == 0 {
			continue
		}
		l.vec.start(p.reduce)
		for c := c0; c < c1; c += int64(k.block) {
			n := min(int64(k.block), c1-c)
			if l.spend(n * int64(len(p.body))) {
				return false
			}
			l.vec.column = c
			l.vec.exec(p.body, int(n))
		}
		l.vec.finish(p.reduce)
	}
	return true
}

// lane is the state of one goroutine that runs kernels: register files and scratch memory,
// which grow to the size of the largest kernel.
type lane struct {
	vec    frame
	scalar frame
	base   []int64 // address of column 0 of the row, by access
	mat    matScratch
	heap   []candidate
	attend attentionScratch

	imports *imports   // of the device
	stop    *interrupt // of the stream that the lane works for
	left    int64      // work until the next check of stop
}

// frame is a set of register files: of blocks, or of single elements.
type frame struct {
	unit   *unit
	f      []float32
	i      []int64
	si     []int64   // scalar registers of integers: i of lane.scalar
	sf     []float32 // scalar registers of floats: f of lane.scalar
	base   []int64
	column int64
	sums   []float32 // of a GEMM, from column sumsAt on
	sumsAt int64
	state  []reduction
}

// fit resizes the register files for a kernel.
func (l *lane) fit(k *kernel) {
	l.vec.f = resize(l.vec.f, int(k.regs.F)*k.block)
	l.vec.i = resize(l.vec.i, int(k.regs.I)*k.block)
	l.scalar.f = resize(l.scalar.f, int(k.regs.SF))
	l.scalar.i = resize(l.scalar.i, int(k.regs.SI))
	l.base = resize(l.base, len(k.access))
	slots := 0
	for i := range k.phases {
		slots = max(slots, len(k.phases[i].reduce))
	}
	l.vec.state = resize(l.vec.state, slots)
	l.vec.sf, l.vec.si = l.scalar.f, l.scalar.i
	l.scalar.sf, l.scalar.si = l.scalar.f, l.scalar.i
	l.vec.base, l.scalar.base = l.base, l.base
	l.vec.unit, l.scalar.unit = k.pool.unit, k.pool.unit
}

// resize returns s with length n, of undefined contents.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
