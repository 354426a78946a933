package cuda

import (
	"fmt"
	"slices"

	"pwc/compile/loop"
)

// epilogue is what happens to the sums of a product's block once they lie in
// shared memory: part[split][rows][pitch], of the block's rows and columns. A
// thread takes a few of a row's columns at a time.
type epilogue struct {
	e    *emitter // of the product
	f    *fused
	p    productShape
	s    *site // in the product: batch, row and columns
	each int   // groups of columns in a row of the block; of a product alone
}

func newEpilogue(e *emitter, f *fused, p productShape, batch []string) *epilogue {
	s := &site{width: 1, rows: append(slices.Clone(batch), "m"), cols: []string{"c"}, pos: "c", acc: "acc"}
	if len(f.tails) == 0 {
		s.width = e.width()
		for s.width > 1 && (p.cols%s.width != 0 || p.rows*p.cols < p.threads*s.width) {
			s.width /= 2
		}
	}
	return &epilogue{e: e, f: f, p: p, s: s, each: p.cols / s.width}
}

// write writes all of it.
func (o *epilogue) write() {
	e := o.e
	switch p := o.p; {
	case p.collects():
		e.line("if (send_sums<%d, %d, %d, %d, %d, %d>(part, inbox, inbox_full)) return;", p.cluster, p.split, p.rows, p.cols, p.pitch, p.threads)
	case p.cluster > 1:
		e.line("scatter_sums<%d, %d, %d, %d, %d>(part, inbox);", p.cluster, p.split, p.rows, p.pitch, p.threads)
	default:
		e.use("add_parts")
		e.line("__syncthreads();")
	}
	if len(o.f.tails) > 0 {
		o.tails()
	} else {
		o.own()
	}
}

// own writes what the product itself does with its sums.
func (o *epilogue) own() {
	k := o.e.k
	o.overColumns(func() {
		o.sums(o.s.width)
		o.s.load, o.s.element = o.hooks(-1, k, o.s.width)
		o.e.row(k.Phases[0].Row, o.s)
		o.e.columns(k.Phases[0].Body, o.s)
	})
}

// overColumns writes the body for each of the block's rows and groups of columns
// that exist.
func (o *epilogue) overColumns(body func()) {
	e := o.e
	o.over(o.each)
	e.line("const int block_row = n / %d, block_col = n %% %d * %d;", o.each, o.each, o.s.width)
	e.line("const %s m = first_row + block_row, c = first_col + block_col;", e.index())
	e.open("if (m < rows && c < cols)")
	body()
	e.close()
	e.close()
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
		o.e.open("if (const int n = %s; n < %s)", first, end)
	} else {
		o.e.open("for (int n = %s; n < %s; n += %d)", first, end, o.p.threads)
	}
}

// sums writes acc, the sums of neighbouring columns of the block.
func (o *epilogue) sums(count int) {
	e, p := o.e, o.p
	e.line("float acc[%d];", count)
	at := fmt.Sprintf("part + block_row * %d + block_col", p.pitch)
	switch {
	case p.collects():
		e.line("add_collected<%d, %d, %d, %d>(acc, %s, inbox + block_row * %d + block_col, inbox_full);", p.cluster, p.split, p.rows*p.pitch, p.rows*p.cols, at, p.cols)
	case p.cluster > 1:
		e.line("add_scattered<%d, %d>(acc, %s, inbox + (block_row - share) * %d + block_col);", p.cluster, p.share()*p.pitch, at, p.pitch)
	case e.k.MatMul.Select != nil:
		e.line("add_parts<%d, %d>(acc, %s, chosen);", p.split, p.rows*p.pitch, at)
	default:
		e.line("add_parts<%d, %d>(acc, %s);", p.split, p.rows*p.pitch, at)
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
		wide := width > 1 && isConst(inner(a), 1)
		if !wide && width > 1 && !isConst(inner(a), 0) {
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
		o.e.use("send_sums")
		o.e.line("__shared__ unsigned long long inbox_barrier;")
		o.e.line("const unsigned inbox_full = shared_address(&inbox_barrier);")
		o.e.line("open_inbox(inbox_full, %d);", p.inboxBytes())
	case p.cluster > 1:
		o.e.use("scatter_sums")
		o.e.use("add_scattered")
		o.e.line("const int share = %d * cluster_rank() / %d, share_end = %d * (cluster_rank() + 1) / %d;  // of the rows", p.rows, p.cluster, p.rows, p.cluster)
		o.e.line("cluster_arrive();")
	}
	write := func(tail int, k *loop.Kernel, width int) {
		for _, a := range o.aheads(tail, k, width) {
			dt := o.e.storage(k.Args[a.in.Access.Arg].DType)
			if a.wide {
				o.e.use("vec")
				dt = fmt.Sprintf("vec<%s, %d>", dt, width)
			}
			o.e.line("%s %s;", dt, a.name)
		}
	}
	if len(o.f.tails) == 0 {
		write(-1, o.e.k, o.s.width)
	}
	for i, t := range o.f.tails {
		write(i, t.k, o.tailWidth(&t))
	}
}

// loads writes the loads that are made ahead, by the block that uses them.
func (o *epilogue) loads() {
	if o.p.collects() {
		o.e.line("cluster_wait();  // all blocks run, so that they can be written to")
		o.e.open("if (cluster_rank() == 0)")
		defer o.e.close()
	}
	write := func(e *emitter, s *site, list []ahead) {
		for _, a := range list {
			at := fmt.Sprintf("a%d + %s", a.in.Access.Arg, e.address(a.in.Access, s, ""))
			if a.wide {
				e.line("%s = load<%d>(%s);", a.name, s.width, at)
			} else {
				e.line("%s = *(%s);", a.name, at)
			}
		}
	}
	if len(o.f.tails) == 0 {
		if list := o.aheads(-1, o.e.k, o.s.width); len(list) > 0 {
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
		o.e.line("%s(%s);", o.e.use("later"), a.name)
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
