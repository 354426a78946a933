package cuda

import (
	"fmt"
	"slices"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// epilogue is what happens to the sums of a product's block once they lie in
// shared memory: part[split][rows][pitch], of the block's rows and columns. A
// thread takes a few of a row's columns at a time.
type epilogue struct {
	e    *emitter // of the product
	f    *fused
	p    productShape
	s    *cgen.Context // in the product: batch, row and columns
	each int           // groups of columns in a row of the block; of a product alone
}

func newEpilogue(e *emitter, f *fused, p productShape, batch []string) *epilogue {
	s := &cgen.Context{Width: 1, Rows: append(slices.Clone(batch), "m"), Cols: []string{"c"}, Pos: "c", Acc: "acc"}
	if len(f.tails) == 0 {
		s.Width = nest.VectorWidth(e.K)
		for s.Width > 1 && (p.cols%s.Width != 0 || p.rows*p.cols < p.threads*s.Width) {
			s.Width /= 2
		}
	}
	return &epilogue{e: e, f: f, p: p, s: s, each: p.cols / s.Width}
}

// write writes all of it.
func (o *epilogue) write() {
	e := o.e
	switch p := o.p; {
	case p.collects():
		e.Line("if (send_sums<%d, %d, %d, %d, %d, %d>(part, inbox, inbox_full)) return;", p.cluster, p.split, p.rows, p.cols, p.pitch, p.threads)
	case p.cluster > 1:
		e.Line("scatter_sums<%d, %d, %d, %d, %d>(part, inbox);", p.cluster, p.split, p.rows, p.pitch, p.threads)
	default:
		e.Use("add_parts")
		e.Line("__syncthreads();")
	}
	if len(o.f.tails) > 0 {
		o.tails()
	} else {
		o.own()
	}
}

// own writes what the product itself does with its sums.
func (o *epilogue) own() {
	k := o.e.K
	o.overColumns(func() {
		o.sums(o.s.Width)
		o.s.Vector, o.s.Element = o.hooks(-1, k, o.s.Width)
		o.e.Row(k.Phases[0].Row, o.s)
		o.e.Columns(k.Phases[0].Body, o.s)
	})
}

// overColumns writes the body for each of the block's rows and groups of columns
// that exist.
func (o *epilogue) overColumns(body func()) {
	e := o.e
	o.over(o.each)
	e.Line("const int block_row = n / %d, block_col = n %% %d * %d;", o.each, o.each, o.s.Width)
	e.Line("const %s m = first_row + block_row, c = first_col + block_col;", e.Index())
	e.Open("if (m < rows && c < cols)")
	body()
	e.Close()
	e.Close()
}

// once reports whether every thread takes one group of so many in a row, if any.
func (o *epilogue) once(each int) bool { return o.p.share()*each <= o.p.threads }

// over opens a block for group n of all rows of the block, of which a row has so
// many; of a cluster's block for those of its share, if it has one.
func (o *epilogue) over(each int) {
	first, end := "threadIdx.x", fmt.Sprint(o.p.rows*each)
	if o.p.cluster > 1 && !o.p.collects() {
		first, end = fmt.Sprintf("share * %d + threadIdx.x", each), fmt.Sprintf("share_end * %d", each)
	}
	if o.once(each) {
		o.e.Open("if (const int n = %s; n < %s)", first, end)
	} else {
		o.e.Open("for (int n = %s; n < %s; n += %d)", first, end, o.p.threads)
	}
}

// sums writes acc, the sums of neighbouring columns of the block.
func (o *epilogue) sums(count int) {
	e, p := o.e, o.p
	e.Line("float acc[%d];", count)
	at := fmt.Sprintf("part + block_row * %d + block_col", p.pitch)
	switch {
	case p.collects():
		e.Line("add_collected<%d, %d, %d, %d>(acc, %s, inbox + block_row * %d + block_col, inbox_full);", p.cluster, p.split, p.rows*p.pitch, p.rows*p.cols, at, p.cols)
	case p.cluster > 1:
		e.Line("add_scattered<%d, %d>(acc, %s, inbox + (block_row - share) * %d + block_col);", p.cluster, p.share()*p.pitch, at, p.pitch)
	case e.K.MatMul.Select != nil:
		e.Line("add_parts<%d, %d>(acc, %s, chosen);", p.split, p.rows*p.pitch, at)
	default:
		e.Line("add_parts<%d, %d>(acc, %s);", p.split, p.rows*p.pitch, at)
	}
}

// maxAhead is how many loads of an epilogue are made ahead at most.
const maxAhead = 4

// ahead is a load that is made before the sums are, as soon as the kernel before
// is done, so that nobody waits for it after them.
type ahead struct {
	in   loop.Instr
	name string
	wide bool // a vector
}

// aheads returns the loads of an epilogue that are made ahead: its own, tail -1, or
// that of a tail, whose first operand is at hand by itself.
func (o *epilogue) aheads(tail int, k *loop.Kernel, width int) []ahead {
	each := o.each
	if tail >= 0 {
		each = o.p.cols / len(o.f.tails[tail].parts) / width
	}
	if !o.once(each) {
		return nil
	}
	var out []ahead
	for _, in := range k.Phases[0].Body {
		a := in.Access
		if in.Op != loop.Load || a.Index != nil || tail >= 0 && a.Arg == o.f.tails[tail].mid || len(out) == maxAhead {
			continue
		}
		wide := width > 1 && nest.IsConst(nest.Inner(a), 1)
		if !wide && width > 1 && !nest.IsConst(nest.Inner(a), 0) {
			continue
		}
		out = append(out, ahead{in, fmt.Sprintf("ahead%d_%d", tail+1, in.Dst), wide})
	}
	return out
}

// declare writes the variables of loads that are made ahead, and what a cluster's blocks
// share.
func (o *epilogue) declare() {
	switch p := o.p; {
	case p.collects():
		o.e.Use("send_sums")
		o.e.Line("__shared__ unsigned long long inbox_barrier;")
		o.e.Line("const unsigned inbox_full = shared_address(&inbox_barrier);")
		o.e.Line("open_inbox(inbox_full, %d);", p.inboxBytes())
	case p.cluster > 1:
		o.e.Use("scatter_sums")
		o.e.Use("add_scattered")
		o.e.Line("const int share = %d * cluster_rank() / %d, share_end = %d * (cluster_rank() + 1) / %d;  // of the rows", p.rows, p.cluster, p.rows, p.cluster)
		o.e.Line("cluster_arrive();")
	}
	write := func(tail int, k *loop.Kernel, width int) {
		for _, a := range o.aheads(tail, k, width) {
			dt := o.e.Storage(k.Args[a.in.Access.Arg].DType)
			if a.wide {
				o.e.Use("vec")
				dt = fmt.Sprintf("vec<%s, %d>", dt, width)
			}
			o.e.Line("%s %s;", dt, a.name)
		}
	}
	if len(o.f.tails) == 0 {
		write(-1, o.e.K, o.s.Width)
	}
	for i, t := range o.f.tails {
		write(i, t.k, o.tailWidth(&t))
	}
}

// loads writes the loads that are made ahead, by the block that uses them.
func (o *epilogue) loads() {
	if o.p.collects() {
		o.e.Line("cluster_wait();  // all blocks run, so that they can be written to")
		o.e.Open("if (cluster_rank() == 0)")
		defer o.e.Close()
	}
	write := func(e *emitter, s *cgen.Context, list []ahead) {
		for _, a := range list {
			at := fmt.Sprintf("a%d + %s", a.in.Access.Arg, e.Address(a.in.Access, s, ""))
			if a.wide {
				e.Line("%s = load<%d>(%s);", a.name, s.Width, at)
			} else {
				e.Line("%s = *(%s);", a.name, at)
			}
		}
	}
	if len(o.f.tails) == 0 {
		if list := o.aheads(-1, o.e.K, o.s.Width); len(list) > 0 {
			o.overColumns(func() { write(o.e, o.s, list) })
			o.later(list)
		}
		return
	}
	list := func(i int) []ahead {
		t := &o.f.tails[i]
		return o.aheads(i, t.k, o.tailWidth(t))
	}
	o.overTails(func(i int) bool { return len(list(i)) > 0 }, func(i int, indices []string) {
		t := &o.f.tails[i]
		write(o.e.emitter(t.k), t.site(indices, o.tailWidth(t)), list(i))
	})
	for i := range o.f.tails {
		o.later(list(i))
	}
}

// later lets loads that were made ahead arrive while the product is made.
func (o *epilogue) later(list []ahead) {
	for _, a := range list {
		o.e.Line("%s(%s);", o.e.Use("later"), a.name)
	}
}

// hooks returns what finds the loads that were made ahead.
func (o *epilogue) hooks(tail int, k *loop.Kernel, width int) (load, element func(loop.Instr) (string, bool)) {
	list := o.aheads(tail, k, width)
	find := func(wide bool) func(loop.Instr) (string, bool) {
		return func(in loop.Instr) (string, bool) {
			i := slices.IndexFunc(list, func(a ahead) bool { return a.in.Dst == in.Dst && a.wide == wide })
			if i < 0 {
				return "", false
			}
			return list[i].name, true
		}
	}
	return find(true), find(false)
}
