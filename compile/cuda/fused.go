package cuda

import (
	"slices"

	"pwc/compile"
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// fused is a product and the kernels around it that run in its launch. Their
// arguments are numbered together: those of the launch first, then what is
// handed on from kernel to kernel and never written to memory.
type fused struct {
	name    string
	args    []loop.Arg // of the launch
	from    []int32    // arguments of the chain that they are; nil: all in order
	lead    *loop.Kernel
	product *loop.Kernel
	tails   []tail // none: the product's own epilogue stores its result
}

// tail is a nest over columns of the product: unit u of it needs, in the same row,
// the columns at parts[0] + x, parts[1] + x, ... where x is the sum of its indices
// times steps.
type tail struct {
	k       *loop.Kernel
	mid     int32 // argument: the product's result
	rows    bool  // its first axis is the product's rows
	extents []int64
	steps   []int64
	parts   []int64
	units   int64
}

// maxParts is the most columns that a unit of a tail may need: what a group of
// warps makes at once in a kernel for few rows.
const maxParts = fewColumns

// fuse returns a chain as one launch, or nil if it cannot be one.
func fuse(c *compile.Chain) *fused {
	at := slices.IndexFunc(c.Kernels, func(k *loop.Kernel) bool { return k.MatMul != nil })
	if at != 0 && at != 1 {
		return nil
	}
	j := joinArgs(c)
	for i := range c.Kernels {
		if !j.independent(i, at) {
			return nil
		}
	}
	f := &fused{product: c.Kernels[at]}
	m := f.product.MatMul
	if depth, known := m.K.Const(); !known || m.Select != nil || len(f.product.Rows) != 1 || depth == 0 || depth%8 != 0 || !nest.HalfOperands(f.product) {
		return nil
	}
	if _, known := f.product.Cols[0].Const(); !known {
		return nil
	}
	if at == 1 {
		j.handOn(j.root(1, m.A.Arg))
	}
	store := nest.OnlyStore(f.product)
	if tails := at+1 < len(c.Kernels); tails {
		if store == nil {
			return nil
		}
		j.handOn(j.root(at, store.Access.Arg))
	}
	if j.alive {
		return nil
	}
	f.product = j.renumber(at)
	f.name = f.product.Name
	if at == 1 {
		f.lead = j.renumber(0)
		f.name = f.lead.Name + "_" + f.name
		if !leads(f.lead, f.product) {
			return nil
		}
	}
	wanted := int64(0)
	for i := at + 1; i < len(c.Kernels); i++ {
		t, ok := tailOf(j.renumber(i), f.product)
		if !ok {
			return nil
		}
		wanted += t.units * int64(len(t.parts))
		f.tails = append(f.tails, t)
		f.name += "_" + t.k.Name
	}
	if cols, _ := f.product.Cols[0].Const(); wanted > cols { // some would be computed twice
		return nil
	}
	f.args, f.from = j.launch()
	return f
}

// joined is the arguments of a chain, one for each memory.
type joined struct {
	c     *compile.Chain
	first []int32 // by kernel: its first argument in the chain
	mids  []int32 // memory that is handed on
	alive bool    // one of them is used outside the chain
}

func joinArgs(c *compile.Chain) *joined {
	j := &joined{c: c}
	n := int32(0)
	for _, k := range c.Kernels {
		j.first = append(j.first, n)
		n += int32(len(k.Args))
	}
	return j
}

// root returns the memory of a kernel's argument: the chain's first argument that
// is the same.
func (j *joined) root(kernel int, arg int32) int32 { return j.c.Same[j.first[kernel]+arg] }

// handOn makes memory one that is handed on.
func (j *joined) handOn(root int32) {
	j.mids = append(j.mids, root)
	j.alive = j.alive || !j.c.Dead[root]
}

// independent reports whether nothing that kernel i writes is touched by another one,
// but for what the lead writes and the product reads, and what the product writes
// and a tail reads. Blocks do not wait for each other.
func (j *joined) independent(i, product int) bool {
	for a, x := range j.c.Kernels[i].Args {
		if !x.Write {
			continue
		}
		for o, k := range j.c.Kernels {
			handed := i < product && o == product || i == product && o > product
			for b, y := range k.Args {
				if o != i && j.root(i, int32(a)) == j.root(o, int32(b)) && (y.Write || !handed) {
					return false
				}
			}
		}
	}
	return true
}

// launch returns the arguments of a launch: all memory that is not handed on.
func (j *joined) launch() (args []loop.Arg, from []int32) {
	for i, k := range j.c.Kernels {
		for a, x := range k.Args {
			root := j.root(i, int32(a))
			if slices.Contains(j.mids, root) {
				continue
			}
			n := slices.Index(from, root)
			if n < 0 {
				args, from = append(args, x), append(from, root)
				continue
			}
			args[n].Write = args[n].Write || x.Write
			args[n].Const = args[n].Const && x.Const
		}
	}
	return args, from
}

// renumber returns a kernel of the chain with arguments as a fused one has them.
func (j *joined) renumber(i int) *loop.Kernel {
	args, from := j.launch()
	for _, root := range j.mids {
		args, from = append(args, j.arg(root)), append(from, root)
	}
	return nest.WithArgs(j.c.Kernels[i], args, func(a int32) int32 { return int32(slices.Index(from, j.root(i, a))) })
}

func (j *joined) arg(root int32) loop.Arg {
	i := len(j.first) - 1
	for j.first[i] > root {
		i--
	}
	return j.c.Kernels[i].Args[root-j.first[i]]
}

// leads reports whether a nest makes the rows of the product's first operand, and
// nothing else, from sums over them at most: a block can do that for itself. What
// it would have to look up first keeps the block from its weights for longer than
// a launch of its own would.
func leads(k, product *loop.Kernel) bool {
	m := product.MatMul
	for _, p := range product.Phases {
		for _, in := range slices.Concat(p.Row, p.Body) {
			if in.Access != nil && in.Access.Arg == m.A.Arg {
				return false
			}
		}
	}
	store := nest.OnlyStore(k)
	if k.TopK != nil || k.Serial || store == nil || len(k.Rows) != 1 || len(k.Cols) != 1 || !k.Rows[0].Equal(product.Rows[0]) || !k.Cols[0].Equal(m.K) {
		return false
	}
	for _, p := range k.Phases {
		for _, list := range [][]loop.Instr{p.Row, p.Body} {
			for _, in := range list {
				switch {
				case in.Access != nil && in.Access.Index != nil, in.Op == loop.CumSum, in.Op.Reduces() && (in.Op == loop.ArgMax || in.Op == loop.Prod || !k.Values[in.Args[0]].DType.Float()),
					in.Op == loop.Load && in.Access.Arg == m.A.Arg:
					return false
				}
			}
		}
	}
	a := store.Access
	return a.Arg == m.A.Arg && a.Arg != m.B.Arg && a.Offset.Equal(m.A.Offset) && a.Rows[0].Equal(m.A.Row) && a.Cols[0].Equal(m.A.Col) && nest.VectorWidth(k) == 8
}

// tailOf returns a nest as a tail of the product, if it can be one.
func tailOf(k, product *loop.Kernel) (tail, bool) {
	t := tail{k: k, units: 1}
	store := nest.OnlyStore(product).Access
	t.mid = store.Arg
	if k.TopK != nil || k.MatMul != nil || k.Serial || nest.Rowwise(k) || !nest.IsConst(nest.Inner(store), 1) {
		return t, false
	}
	own := slices.Concat(k.Rows, k.Cols)
	t.rows = len(k.Rows) > 0 && k.Rows[0].Equal(product.Rows[0])
	if t.rows {
		own = own[1:]
	} else if !nest.IsConst(product.Rows[0], 1) {
		return t, false
	}
	for _, d := range own {
		n, known := d.Const()
		if !known || n <= 0 {
			return t, false
		}
		t.extents, t.units = append(t.extents, n), t.units*n
	}
	cols, _ := product.Cols[0].Const()
	for _, p := range k.Phases {
		for _, in := range slices.Concat(p.Row, p.Body) {
			if in.Access == nil || in.Access.Arg != t.mid {
				continue
			}
			at, steps, ok := t.reaches(in.Access, store)
			if !ok || in.Op != loop.Load || t.steps != nil && !slices.Equal(t.steps, steps) {
				return t, false
			}
			last := at
			for i, s := range steps {
				last += s * (t.extents[i] - 1)
			}
			if at < 0 || last >= cols {
				return t, false
			}
			if t.steps = steps; !slices.Contains(t.parts, at) {
				t.parts = append(t.parts, at)
			}
		}
	}
	n := len(t.parts)
	return t, n > 0 && n <= maxParts && n&(n-1) == 0
}

// reaches returns which column of the product an access of the tail reaches: at +
// the sum of its indices times steps.
func (t *tail) reaches(a, store *loop.Access) (at int64, steps []int64, ok bool) {
	own := slices.Concat(a.Rows, a.Cols)
	if t.rows {
		if !own[0].Equal(store.Rows[0]) {
			return 0, nil, false
		}
		own = own[1:]
	}
	at, ok = a.Offset.Sub(store.Offset).Const()
	steps = make([]int64, len(own))
	for i, d := range own {
		s, known := d.Const()
		if !known || s < 0 {
			return 0, nil, false
		}
		steps[i] = s
	}
	return at, steps, ok && a.Index == nil
}

// others returns the kernels beside the product.
func (f *fused) others() []*loop.Kernel {
	var out []*loop.Kernel
	if f.lead != nil {
		out = append(out, f.lead)
	}
	for _, t := range f.tails {
		out = append(out, t.k)
	}
	return out
}

// shapes returns the ways to compute a chain in one launch, by rising number of
// rows, for as many rows as that is faster than more launches: up to tiles, which want
// neighbouring columns.
func (f *fused) shapes(on cgen.GPU) []productShape {
	var out []productShape
	for _, p := range productShapes(f.product, on) {
		if p.bm > 0 || len(f.tails) == 0 && !p.leads() {
			break
		}
		if f.lead != nil && p.leads() {
			p.u = 1 // requests go on while the row is made
		}
		out = append(out, p)
	}
	return out
}

// leads reports whether kernels of the shape make the row of x themselves. Two rows
// cost a block more than a launch of their own does.
func (p productShape) leads() bool { return p.m == 1 }
