package cuda

import (
	"slices"

	"pwc/compile/loop"
	"pwc/ir/dtype"
)

// A phase that only sums up what belongs to elements from thresholds on, as a search for
// one does again and again, is passed over by a warp none of whose elements reaches the
// lowest: by most, once the thresholds are those of a few likely tokens among many. The
// largest of each thread's kept elements, found when they are kept, tells.

// thresholds returns the load of the elements that a body compares and what it compares
// them with, values of the row, if all that the body does is to add to sums where such a
// comparison holds; else nil.
func (e *emitter) thresholds(list []loop.Instr) (load *loop.Instr, from []loop.Value) {
	compares := make(map[loop.Value]loop.Instr)
	for i := range list {
		in := &list[i]
		switch in.Op {
		case loop.Load:
			if load != nil || e.k.Values[in.Dst].DType != dtype.F32 || e.k.Args[in.Access.Arg].DType != dtype.F32 {
				return nil, nil
			}
			load = in
		case loop.Ge, loop.Gt:
			if load != nil && in.Args[0] == load.Dst && e.k.Values[in.Args[1]].Row {
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
