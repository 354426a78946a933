package loopgen

import (
	"fmt"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// selectThreads is the number of threads of the block that selects the elements of a row.
const selectThreads = 512

// TopK returns the source of a topk. A block for each row finds the largest element k times, each time
// among the elements that come after the previous one in the order. That reads a row k times, from the
// second-level cache, and needs no scratch memory.
func TopK(k *loop.Kernel, on cgen.GPU) cgen.Source {
	e := newWriter(k, on)
	t := k.TopK
	e.Threads = selectThreads
	e.Grid[0] = nest.Product(k.Rows)
	s := &cgen.Context{}
	dt := k.Args[t.In.Arg].DType
	start := "__int_as_float(0xff800000)"
	if !dt.Float() {
		lo, _ := dt.IntLimits()
		start = cgen.Integer(lo)
	}
	elem := e.IndexedValue(cgen.ValueType(dt))
	e.Wait()
	e.Line("const %s row = blockIdx.x;", e.Index())
	e.splitRow("row", s)
	e.Line("__shared__ %s warp_partials[2][%d];", elem, selectThreads/32)
	e.Line("%s last;", elem)
	e.Open("for (int r = 0; r < %d; r++)", t.K)
	e.Line("%s x = {%s, no_index};", elem, start)
	e.Open("for (%s c = threadIdx.x; c < %s; c += %d)", e.Index(), e.Dim(t.N), selectThreads)
	s.Cols = []string{"c"}
	e.Line("const %s y = {%s, c};", elem, e.FromStorage(fmt.Sprintf("a%d[%s]", t.In.Arg, e.Address(&t.In, s, "")), dt))
	e.Line("if ((r == 0 || before(last, y)) && before(y, x)) x = y;")
	e.Close()
	op := fmt.Sprintf("argmax<%s>", cgen.ValueType(dt))
	e.Line("x = %s<%s>(x);", e.Use("warp_reduce"), op)
	e.Line("if (threadIdx.x %% 32 == 0) warp_partials[r %% 2][threadIdx.x / 32] = x;")
	e.Line("__syncthreads();")
	e.Line("last = %s<%s, %d>(warp_partials[r %% 2]);", e.Use("warp_reduce_shared"), op, selectThreads/32)
	e.Open("if (threadIdx.x == 0)")
	from := *s
	from.Cols = []string{"(" + e.Index() + ")last.index"}
	s.Cols = []string{"r"}
	e.Line("a%d[%s] = a%d[%s];", t.Values.Arg, e.Address(&t.Values, s, ""), t.In.Arg, e.Address(&t.In, &from, ""))
	e.Line("a%d[%s] = (int)last.index;", t.Index.Arg, e.Address(&t.Index, s, ""))
	e.Close()
	e.Close()
	return e.Finish(fmt.Sprintf("%s: the %d largest of %s elements in each of rows %s", k.Name, t.K, t.N, nest.Extents(k.Rows)))
}
