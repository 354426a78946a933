package gemm

import (
	"fmt"
	"slices"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// epilogue writes the code after a block's sums, which are in shared memory: part[split][rows][pitch],
// for the block's rows and columns. A thread computes a few neighbouring columns of a row in each
// iteration.
type epilogue struct {
	w    *writer
	s    *cgen.Context // in the GEMM: batch, row and columns
	each int           // groups of columns in a row of the block, without fused epilogues
}

// newEpilogue returns the epilogue of a block.
func newEpilogue(w *writer, batch []string) *epilogue {
	s := &cgen.Context{Width: 1, Rows: append(slices.Clone(batch), "m"), Cols: []string{"c"}, Pos: "c", Acc: "acc"}
	if len(w.fused.Epilogues) == 0 {
		s.Width = nest.VectorWidth(w.K)
		for s.Width > 1 && (w.r.Cols%s.Width != 0 || w.r.Rows*w.r.Cols < w.r.Threads*s.Width) {
			s.Width /= 2
		}
	}
	return &epilogue{w: w, s: s, each: w.r.Cols / s.Width}
}

// write writes the epilogue.
func (o *epilogue) write() {
	w, r := o.w, o.w.r
	switch {
	case r.LeaderReduces:
		w.Line("if (send_to_leader<%d, %d, %d, %d, %d, %d>(part, dsmem_buffer, dsmem_full)) return;", r.Cluster, r.SplitK, r.Rows, r.Cols, r.Pitch, r.Threads)
	case r.Cluster > 1:
		w.Line("cluster_reduce_scatter<%d, %d, %d, %d, %d>(part, dsmem_buffer);", r.Cluster, r.SplitK, r.Rows, r.Pitch, r.Threads)
	default:
		w.Use("add_split_k")
		w.Line("__syncthreads();")
	}
	if len(o.w.fused.Epilogues) > 0 {
		o.fused()
	} else {
		o.unfused()
	}
}

// unfused writes the GEMM's own epilogue.
func (o *epilogue) unfused() {
	k := o.w.K
	o.overColumns(func() {
		o.sums(o.s.Width)
		o.s.Vector, o.s.Element = o.prefetched(own, k, o.s.Width)
		o.w.Row(k.Phases[0].Row, o.s)
		o.w.Columns(k.Phases[0].Body, o.s)
	})
}

// overColumns writes a loop over the rows and groups of columns of the block, with body for those that
// exist.
func (o *epilogue) overColumns(body func()) {
	w := o.w
	o.over(o.each)
	w.Line("const int block_row = n / %d, block_col = n %% %d * %d;", o.each, o.each, o.s.Width)
	w.Line("const %s m = first_row + block_row, c = first_col + block_col;", w.Index())
	w.Open("if (m < rows && c < cols)")
	body()
	w.Close()
	w.Close()
}

// once reports whether a thread has at most one group of columns. each is the number of groups in a row of
// the block.
func (o *epilogue) once(each int) bool { return o.w.r.share()*each <= o.w.r.Threads }

// over opens a loop (or an if, see once) over the groups n of columns of all rows of the block. each is the
// number of groups in a row. If the blocks of a cluster share the rows, it is over this block's share.
func (o *epilogue) over(each int) {
	first, end := "threadIdx.x", fmt.Sprint(o.w.r.Rows*each)
	if o.w.r.Cluster > 1 && !o.w.r.LeaderReduces {
		first, end = fmt.Sprintf("share * %d + threadIdx.x", each), fmt.Sprintf("share_end * %d", each)
	}
	if o.once(each) {
		o.w.Open("if (const int n = %s; n < %s)", first, end)
	} else {
		o.w.Open("for (int n = %s; n < %s; n += %d)", first, end, o.w.r.Threads)
	}
}

// sums writes the array acc with the sums of count neighbouring columns of the block.
func (o *epilogue) sums(count int) {
	w, r := o.w, o.w.r
	w.Line("float acc[%d];", count)
	at := fmt.Sprintf("part + block_row * %d + block_col", r.Pitch)
	switch {
	case r.LeaderReduces:
		w.Line("add_from_cluster<%d, %d, %d, %d>(acc, %s, dsmem_buffer + block_row * %d + block_col, dsmem_full);", r.Cluster, r.SplitK, r.Rows*r.Pitch, r.Rows*r.Cols, at, r.Cols)
	case r.Cluster > 1:
		w.Line("add_scattered<%d, %d>(acc, %s, dsmem_buffer + (block_row - share) * %d + block_col);", r.Cluster, r.share()*r.Pitch, at, r.Pitch)
	case w.K.MatMul.Select != nil:
		w.Line("add_split_k<%d, %d>(acc, %s, chosen);", r.SplitK, r.Rows*r.Pitch, at)
	default:
		w.Line("add_split_k<%d, %d>(acc, %s);", r.SplitK, r.Rows*r.Pitch, at)
	}
}

// maxPrefetched is the most loads of an epilogue that are prefetched.
const maxPrefetched = 4

// prefetchedLoad is a load of an epilogue that is issued after the dependency wait and before the GEMM's
// main loop, so that the epilogue does not wait for it.
type prefetchedLoad struct {
	in     loop.Instr
	name   string
	vector bool
}

// own is the number of the GEMM's own epilogue. Fused epilogues have the numbers from 0 on.
const own = -1

// prefetchedLoads returns the loads of epilogue n that are prefetched. k is its kernel.
func (o *epilogue) prefetchedLoads(n int, k *loop.Kernel, width int) []prefetchedLoad {
	each := o.each
	if n != own {
		each = o.w.r.Cols / len(o.w.fused.Epilogues[n].Parts) / width
	}
	if !o.once(each) {
		return nil
	}
	var out []prefetchedLoad
	for _, in := range k.Phases[0].Body {
		a := in.Access
		if in.Op != loop.Load || a.Index != nil || n != own && a.Arg == o.w.fused.Epilogues[n].Result || len(out) == maxPrefetched {
			continue
		}
		vector := width > 1 && nest.IsConst(nest.Inner(a), 1)
		if !vector && width > 1 && !nest.IsConst(nest.Inner(a), 0) {
			continue
		}
		out = append(out, prefetchedLoad{in, fmt.Sprintf("prefetched%d_%d", n+1, in.Dst), vector})
	}
	return out
}

// declare writes the variables of prefetched loads, and, in a cluster, those with which its blocks add
// their sums.
func (o *epilogue) declare() {
	switch r := o.w.r; {
	case r.LeaderReduces:
		o.w.Use("send_to_leader")
		o.w.Line("__shared__ unsigned long long dsmem_barrier;")
		o.w.Line("const unsigned dsmem_full = shared_address(&dsmem_barrier);")
		o.w.Line("open_dsmem_buffer(dsmem_full, %d);", r.reductionBytes())
	case r.Cluster > 1:
		o.w.Use("cluster_reduce_scatter")
		o.w.Use("add_scattered")
		o.w.Line("const int share = %d * cluster_rank() / %d, share_end = %d * (cluster_rank() + 1) / %d;  // [share, share_end): rows whose sums this block adds", r.Rows, r.Cluster, r.Rows, r.Cluster)
		o.w.Line("cluster_arrive();")
	}
	write := func(n int, k *loop.Kernel, width int) {
		for _, a := range o.prefetchedLoads(n, k, width) {
			dt := o.w.Storage(k.Args[a.in.Access.Arg].DType)
			if a.vector {
				o.w.Use("vec")
				dt = fmt.Sprintf("vec<%s, %d>", dt, width)
			}
			o.w.Line("%s %s;", dt, a.name)
		}
	}
	if len(o.w.fused.Epilogues) == 0 {
		write(own, o.w.K, o.s.Width)
	}
	for i, t := range o.w.fused.Epilogues {
		write(i, t.Nest, o.unitsAtOnce(&t))
	}
}

// loads writes the loads that are prefetched, in the block that uses them.
func (o *epilogue) loads() {
	if o.w.r.LeaderReduces {
		o.w.Line("cluster_wait();  // all blocks run, so that they can be written to")
		o.w.Open("if (cluster_rank() == 0)")
		defer o.w.Close()
	}
	write := func(e *cgen.Emitter, s *cgen.Context, list []prefetchedLoad) {
		for _, a := range list {
			at := fmt.Sprintf("a%d + %s", a.in.Access.Arg, e.Address(a.in.Access, s, ""))
			if a.vector {
				e.Line("%s = load<%d>(%s);", a.name, s.Width, at)
			} else {
				e.Line("%s = *(%s);", a.name, at)
			}
		}
	}
	if len(o.w.fused.Epilogues) == 0 {
		if list := o.prefetchedLoads(own, o.w.K, o.s.Width); len(list) > 0 {
			o.overColumns(func() { write(o.w.Emitter, o.s, list) })
			o.barrier(list)
		}
		return
	}
	list := func(i int) []prefetchedLoad {
		t := &o.w.fused.Epilogues[i]
		return o.prefetchedLoads(i, t.Nest, o.unitsAtOnce(t))
	}
	o.overUnits(func(i int) bool { return len(list(i)) > 0 }, func(i int, indices []string) {
		t := &o.w.fused.Epilogues[i]
		write(o.w.Nest(t.Nest), unitContext(t, indices, o.unitsAtOnce(t)), list(i))
	})
	for i := range o.w.fused.Epilogues {
		o.barrier(list(i))
	}
}

// barrier writes an optimization barrier after each prefetched load. Without it the compiler converts the
// value right after the load, and so waits for it before the main loop.
func (o *epilogue) barrier(list []prefetchedLoad) {
	for _, a := range list {
		o.w.Line("%s(%s);", o.w.Use("optimization_barrier"), a.name)
	}
}

// prefetched returns the functions that find the variables of prefetched loads: of vectors, and of elements.
func (o *epilogue) prefetched(n int, k *loop.Kernel, width int) (vector, element func(loop.Instr) (string, bool)) {
	list := o.prefetchedLoads(n, k, width)
	find := func(vector bool) func(loop.Instr) (string, bool) {
		return func(in loop.Instr) (string, bool) {
			i := slices.IndexFunc(list, func(a prefetchedLoad) bool { return a.in.Dst == in.Dst && a.vector == vector })
			if i < 0 {
				return "", false
			}
			return list[i].name, true
		}
	}
	return find(true), find(false)
}

// ready writes the function that templates call after the dependency wait; it prefetches.
func (o *epilogue) ready() {
	o.w.Open("const auto ready = [&]()")
	o.loads()
	o.w.CloseLambda()
}
