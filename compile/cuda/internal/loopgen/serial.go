package loopgen

import (
	"fmt"
	"slices"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// leastParallel is the smallest constant number of rows for which rows with different indices run in parallel.
const leastParallel = 64

// serial writes a kernel that runs the rows in order; the threads share the columns. If the number of
// rows is a constant of at least leastParallel and rowIndex finds an index, only rows with equal indices
// run in order.
func (e *writer) serial() {
	k := e.K
	if rows, known := nest.Product(k.Rows).Const(); known && rows >= leastParallel {
		if index, ok := rowIndex(k); ok {
			e.serialByIndex(index)
			return
		}
	}
	e.Threads = elementThreads
	s := &cgen.Context{Width: nest.VectorWidth(e.K), StoresRow: "t == 0"}
	groups := nest.Product(k.Cols)
	if s.Width > 1 {
		groups, _ = groups.Div(dim.Const(int64(s.Width)))
	}
	e.Grid[0] = groups.CeilDiv(elementThreads)
	e.Wait()
	e.Line("const %s t = (%s)blockIdx.x * %d + threadIdx.x;", e.Index(), e.Index(), elementThreads)
	e.Line("if (t >= %s) return;", e.Dim(groups))
	c := "t"
	if nest.IsConst(groups, 1) {
		c = "0"
	}
	e.splitColumns(c, s)
	e.Open("for (%s row = 0; row < %s; row++)", e.Index(), e.Dim(nest.Product(k.Rows)))
	e.splitRow("row", s)
	for _, p := range k.Phases {
		e.Row(p.Row, s)
		e.Columns(p.Body, s)
	}
	e.Close()
}

// rowIndex returns the index at which a row stores, if the kernel has one phase, all stores are in its
// body, and all of them have the same index, which is a value of the row.
func rowIndex(k *loop.Kernel) (loop.Value, bool) {
	index, ok := loop.NoValue, len(k.Phases) == 1
	for _, p := range k.Phases {
		for _, in := range p.Row {
			ok = ok && in.Op != loop.Store
		}
		for _, in := range p.Body {
			if in.Op != loop.Store {
				continue
			}
			ok = ok && in.Access.Index != nil && (index == loop.NoValue || index == in.Access.Index.At) &&
				slices.ContainsFunc(p.Row, func(r loop.Instr) bool { return r.Dst == in.Access.Index.At })
			if ok {
				index = in.Access.Index.At
			}
		}
	}
	return index, ok && index != loop.NoValue
}

// serialByIndex writes a kernel in which one block runs all rows with the same index, in order: the block
// of the first such row. The threads share the columns, so only one thread writes to an element. Each
// block computes the indices of all rows before its own, and of all rows if none before has its index: the
// total is quadratic in the number of rows.
func (e *writer) serialByIndex(index loop.Value) {
	k, ix := e.K, e.Index()
	const warps = elementThreads / warpLanes
	e.Threads = elementThreads
	s := &cgen.Context{Width: nest.VectorWidth(e.K)}
	rows, groups := nest.Product(k.Rows), nest.Product(k.Cols)
	if s.Width > 1 {
		groups, _ = groups.Div(dim.Const(int64(s.Width)))
	}
	e.Grid[0] = rows
	e.Wait()
	e.Line("__shared__ unsigned hits[%d];", warps)
	e.Open("auto index_of = [&](%s row)", ix)
	e.splitRow("row", s)
	e.Row(k.Phases[0].Row, s)
	e.Line("return (long long)%s;", e.Value(index))
	e.Close()
	e.Line(";")
	e.Line("const %s first = blockIdx.x;", ix)
	e.Line("const long long at = index_of(first);")
	e.Line("bool earlier = false;")
	e.Line("for (%s r = threadIdx.x; r < first; r += %d) earlier |= index_of(r) == at;", ix, elementThreads)
	e.ballot("earlier")
	e.Line("unsigned any = 0;")
	e.Line("for (int w = 0; w < %d; w++) any |= hits[w];", warps)
	e.Line("if (any) return;  // the block of the first row with this index runs all of its rows")
	e.Open("for (%s base = first; base < %s; base += %d)", ix, e.Dim(rows), elementThreads)
	e.Line("__syncthreads();")
	e.Line("const %s mine = base + threadIdx.x;", ix)
	e.ballot(fmt.Sprintf("mine < %s && index_of(mine) == at", e.Dim(rows)))
	e.Open("for (int w = 0; w < %d; w++)", warps)
	e.Open("for (unsigned left = hits[w]; left; left &= left - 1)")
	e.Line("const %s row = base + w * %d + __ffs(left) - 1;", ix, warpLanes)
	e.splitRow("row", s)
	e.Row(k.Phases[0].Row, s)
	e.Open("for (%s t = threadIdx.x; t < %s; t += %d)", ix, e.Dim(groups), elementThreads)
	e.splitColumns("t", s)
	e.Columns(k.Phases[0].Body, s)
	for range 4 {
		e.Close()
	}
}

// ballot writes code that stores the condition of each thread of the block as a bit of hits, followed by
// a barrier, which every thread of the block must reach.
func (e *writer) ballot(condition string) {
	e.Line("{ const unsigned bits = __ballot_sync(~0u, %s); if (threadIdx.x %% %d == 0) hits[threadIdx.x / %d] = bits; }", condition, warpLanes, warpLanes)
	e.Line("__syncthreads();")
}
