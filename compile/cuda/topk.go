package cuda

import (
	"fmt"

	"pwc/compile/loop"
)

// selectThreads is the size of the block that selects in one row.
const selectThreads = 512

// selectKernel makes the source of a topk: a block for each row finds the
// largest element k times over, each time among those that come after the one
// before. That reads a row k times, from the second-level cache, and needs no
// memory of its own.
func selectKernel(k *loop.Kernel, on gpu) Source {
	e := newEmitter(k, on, "")
	t := k.TopK
	e.threads = selectThreads
	e.grid[0] = product(k.Rows)
	s := &site{}
	dt := k.Args[t.In.Arg].DType
	start := "__int_as_float(0xff800000)"
	if !dt.Float() {
		lo, _ := limits(dt)
		start = integer(lo)
	}
	best := e.best(valueType(dt))
	e.wait()
	e.line("const %s row = blockIdx.x;", e.index())
	e.splitRow("row", s)
	e.line("__shared__ %s room[2][%d];", best, selectThreads/32)
	e.line("%s last;", best)
	e.open("for (int r = 0; r < %d; r++)", t.K)
	e.line("%s x = {%s, nowhere};", best, start)
	e.open("for (%s c = threadIdx.x; c < %s; c += %d)", e.index(), e.dim(t.N), selectThreads)
	s.cols = []string{"c"}
	e.line("const %s y = {%s, c};", best, e.fromStorage(fmt.Sprintf("a%d[%s]", t.In.Arg, e.address(&t.In, s, "")), dt))
	e.line("if ((r == 0 || before(last, y)) && before(y, x)) x = y;")
	e.close()
	op := fmt.Sprintf("first_of<%s>", valueType(dt))
	e.line("x = %s<%s>(x);", e.use("over_warp"), op)
	e.line("if (threadIdx.x %% 32 == 0) room[r %% 2][threadIdx.x / 32] = x;")
	e.line("__syncthreads();")
	e.line("last = %s<%s, %d>(room[r %% 2]);", e.use("over_room"), op, selectThreads/32)
	e.open("if (threadIdx.x == 0)")
	from := *s
	from.cols = []string{"(" + e.index() + ")last.at"}
	s.cols = []string{"r"}
	e.line("a%d[%s] = a%d[%s];", t.Values.Arg, e.address(&t.Values, s, ""), t.In.Arg, e.address(&t.In, &from, ""))
	e.line("a%d[%s] = (int)last.at;", t.Index.Arg, e.address(&t.Index, s, ""))
	e.close()
	e.close()
	return e.finish(fmt.Sprintf("%s: the %d largest of %s elements in each of rows %s", k.Name, t.K, t.N, extents(k.Rows)))
}
