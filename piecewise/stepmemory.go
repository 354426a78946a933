package piecewise

import (
	"fmt"

	"pwc/ir"
)

// StepMemory is the memory of a function's step, for reports: lifetimes and offsets.
type StepMemory struct {
	Storages []StepStorage
	Arena    []int64 // bytes of the arena, by size
	Captured []int64 // capture sizes of the function, ascending
	From     []int64 // by index of Captured: the fewest rows that the size serves
}

// StepStorage is an input, a result, a tensor between units, or the scratch of a unit.
type StepStorage struct {
	Name        string  // of the tensor's first value, "%12", or "scratch of unit 3"
	Type        ir.Type // zero for scratch
	First, Last int     // lifetime in the arena, in units; of inputs and results, all units
	Where       string  // "arena", "input" or "result"
	Bytes       []int64 // by size
	Offset      []int64 // in the arena, by size; nil for inputs and results
}

// Memory returns the memory of a step of a function at the given sizes, by index of sizes. It
// allocates no device memory. Weights and states are not included: they live as long as the backend.
func (b *Backend) Memory(fn string, sizes []int64) (StepMemory, error) {
	f := b.Func(fn)
	if f == nil {
		return StepMemory{}, fmt.Errorf("%w: @%s", ErrNoFunc, fn)
	}
	return f.fn.function.memory(sizes)
}

func (fn *function) memory(sizes []int64) (StepMemory, error) {
	m := StepMemory{Captured: fn.sizes}
	from := fn.lo
	for _, n := range fn.sizes {
		if fn.noPad != nil {
			from = n
		}
		m.From = append(m.From, from)
		from = n + 1
	}
	layouts := make([]*layout, len(sizes))
	for i, n := range sizes {
		l, err := fn.place(n)
		if err != nil {
			return StepMemory{}, err
		}
		layouts[i] = l
		m.Arena = append(m.Arena, l.total)
	}
	text := ir.NewFuncPrinter(fn.plan.module, fn.ir)
	for i, s := range fn.storages {
		out := StepStorage{Name: text.Value(s.base), Type: s.typ, Last: len(fn.units) - 1}
		switch s.kind {
		case inWork:
			out.Where, out.First, out.Last = "arena", s.first, s.last
		case inParam:
			out.Where = "input"
		case inResult:
			out.Where = "result"
		default:
			continue
		}
		for _, l := range layouts {
			out.Bytes = append(out.Bytes, l.bytes[i])
			if s.kind == inWork {
				out.Offset = append(out.Offset, l.offset[i])
			}
		}
		m.Storages = append(m.Storages, out)
	}
	for u := range fn.units {
		out := StepStorage{Name: fmt.Sprintf("scratch of unit %d", u), First: u, Last: u, Where: "arena"}
		used := false
		for _, l := range layouts {
			out.Bytes, out.Offset = append(out.Bytes, l.need[u]), append(out.Offset, l.scratch[u])
			used = used || l.need[u] > 0
		}
		if used {
			m.Storages = append(m.Storages, out)
		}
	}
	return m, nil
}
