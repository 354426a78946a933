package loopgen

import (
	"fmt"
	"slices"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// leastParallel is the number of rows from which those that write other places run in parallel.
const leastParallel = 64

// serial runs the rows in order; the threads share the columns.
func (e *writer) serial() {
	k := e.K
	if rows, known := nest.Product(k.Rows).Const(); known && rows >= leastParallel {
		if place, ok := rowPlace(k); ok {
			e.serialByPlace(place)
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

// rowPlace returns the value that says where a row writes, if all of its stores go by one.
func rowPlace(k *loop.Kernel) (loop.Value, bool) {
	place, ok := loop.NoValue, len(k.Phases) == 1
	for _, p := range k.Phases {
		for _, in := range p.Row {
			ok = ok && in.Op != loop.Store
		}
		for _, in := range p.Body {
			if in.Op != loop.Store {
				continue
			}
			ok = ok && in.Access.Index != nil && (place == loop.NoValue || place == in.Access.Index.At) &&
				slices.ContainsFunc(p.Row, func(r loop.Instr) bool { return r.Dst == in.Access.Index.At })
			if ok {
				place = in.Access.Index.At
			}
		}
	}
	return place, ok && place != loop.NoValue
}

// serialByPlace gives each place that is written a block: that of the first row that names it, which
// runs all rows that do in order. The threads share the columns, so each element is one thread's.
// Every block looks at the places of all rows, which are few beside what the rows have.
func (e *writer) serialByPlace(place loop.Value) {
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
	e.Open("auto place_of = [&](%s row)", ix)
	e.splitRow("row", s)
	e.Row(k.Phases[0].Row, s)
	e.Line("return (long long)%s;", e.Value(place))
	e.Close()
	e.Line(";")
	e.Line("const %s first = blockIdx.x;", ix)
	e.Line("const long long at = place_of(first);")
	e.Line("bool earlier = false;")
	e.Line("for (%s r = threadIdx.x; r < first; r += %d) earlier |= place_of(r) == at;", ix, elementThreads)
	e.collect("earlier")
	e.Line("unsigned any = 0;")
	e.Line("for (int w = 0; w < %d; w++) any |= hits[w];", warps)
	e.Line("if (any) return;  // another block has the place")
	e.Open("for (%s base = first; base < %s; base += %d)", ix, e.Dim(rows), elementThreads)
	e.Line("__syncthreads();")
	e.Line("const %s mine = base + threadIdx.x;", ix)
	e.collect(fmt.Sprintf("mine < %s && place_of(mine) == at", e.Dim(rows)))
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

// collect writes a bit for each thread of the block to hits.
func (e *writer) collect(condition string) {
	e.Line("{ const unsigned bits = __ballot_sync(~0u, %s); if (threadIdx.x %% %d == 0) hits[threadIdx.x / %d] = bits; }", condition, warpLanes, warpLanes)
	e.Line("__syncthreads();")
}
