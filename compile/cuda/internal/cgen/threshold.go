package cgen

import (
	"fmt"
	"slices"

	"pwc/compile/loop"
	"pwc/ir/dtype"
)

// A search for a threshold (top-k, top-p) has many phases that only sum over the elements that reach a
// threshold. A warp skips such a phase if none of its elements reaches the lowest threshold. Once the
// thresholds select a few likely tokens, most warps skip it. The cache has the largest of each thread's
// elements, which is computed when the cache is filled.

// Reached returns the condition that one of this thread's elements reaches the lowest threshold of a
// phase. It returns "" if threads may not skip the phase.
func (c *Cache) Reached(list []loop.Instr) string {
	if c == nil {
		return ""
	}
	load, from := c.e.thresholds(list)
	if load == nil {
		return ""
	}
	n := c.holds(load.Access)
	if n < 0 {
		return ""
	}
	lowest := c.e.Value(from[0])
	for _, v := range from[1:] {
		lowest = fmt.Sprintf("fminf(%s, %s)", lowest, c.e.Value(v))
	}
	return fmt.Sprintf("thread_max%d >= %s", n, lowest)
}

// thresholds returns the load of the elements that a body compares, and the thresholds, which are values
// of the row. It returns nil unless the body only adds to sums where such a comparison holds.
func (e *Emitter) thresholds(list []loop.Instr) (load *loop.Instr, from []loop.Value) {
	compares := make(map[loop.Value]loop.Instr)
	for i := range list {
		in := &list[i]
		switch in.Op {
		case loop.Load:
			if load != nil || e.K.Values[in.Dst].DType != dtype.F32 || e.K.Args[in.Access.Arg].DType != dtype.F32 {
				return nil, nil
			}
			load = in
		case loop.Ge, loop.Gt:
			if load != nil && in.Args[0] == load.Dst && e.K.Values[in.Args[1]].Row {
				compares[in.Dst] = *in
			}
		case loop.Sum:
			w, ok := e.orZero[in.Args[0]]
			if !ok {
				return nil, nil
			}
			c, ok := compares[w.Args[0]]
			if !ok {
				return nil, nil
			}
			if !slices.Contains(from, c.Args[1]) {
				from = append(from, c.Args[1])
			}
		case loop.Store, loop.CumSum, loop.Acc:
			return nil, nil
		default:
			if in.Op.Reduces() {
				return nil, nil
			}
		}
	}
	if len(from) == 0 {
		return nil, nil
	}
	return load, from
}
