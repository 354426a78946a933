package compile

import (
	"testing"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// elementwise makes a step over n elements of memories.
func elementwise(mems []*memory, do ...move) *planned {
	st := moves(mems, do)
	st.kernels[0].Cols = []dim.Dim{dim.Sym("N")}
	last := loop.NoValue
	for i := range st.kernels[0].Phases[0].Body {
		if in := &st.kernels[0].Phases[0].Body[i]; in.Op == loop.Load {
			last = loop.Value(i)
			in.Dst = last
		} else {
			in.Args, in.Dst = []loop.Value{last}, loop.NoValue
		}
	}
	return st
}

// TestWriteThrough pins which kernels write directly to the memory that their output is copied to.
func TestWriteThrough(t *testing.T) {
	n := dim.Sym("N")
	for _, c := range []struct {
		name string
		make func(w, g, next, other *memory) []*planned // next is copied to w
		want bool
	}{
		{"an update", func(w, g, next, _ *memory) []*planned {
			return []*planned{elementwise([]*memory{g, w, next}, load(0), load(1), store(2)), elementwise([]*memory{next, w}, load(0), store(1))}
		}, true},
		{"read by others before and after the copy", func(w, g, next, other *memory) []*planned {
			return []*planned{elementwise([]*memory{g, next}, load(0), store(1)), elementwise([]*memory{next, other}, load(0), store(1)),
				elementwise([]*memory{next, w}, load(0), store(1)), elementwise([]*memory{next, w, other}, load(0), load(1), store(2))}
		}, true},
		{"the kernel reads the target after it stored", func(w, g, next, _ *memory) []*planned {
			return []*planned{elementwise([]*memory{g, w, next}, load(0), store(2), load(1)), elementwise([]*memory{next, w}, load(0), store(1))}
		}, false},
		{"another reads the target before the copy", func(w, g, next, other *memory) []*planned {
			return []*planned{elementwise([]*memory{g, next}, load(0), store(1)), elementwise([]*memory{w, other}, load(0), store(1)), elementwise([]*memory{next, w}, load(0), store(1))}
		}, false},
		{"the target changes while the output lives", func(w, g, next, other *memory) []*planned {
			return []*planned{elementwise([]*memory{g, next}, load(0), store(1)), elementwise([]*memory{next, w}, load(0), store(1)),
				elementwise([]*memory{other, w}, load(0), store(1)), elementwise([]*memory{next, other}, load(0), store(1))}
		}, false},
		{"an extern op changes the target while the output lives", func(w, g, next, other *memory) []*planned {
			call := &planned{group: &group{call: &callStep{args: []*memory{next, w}, write: []*memory{w}}}, mems: []*memory{next, w}}
			return []*planned{elementwise([]*memory{g, next}, load(0), store(1)), elementwise([]*memory{next, w}, load(0), store(1)),
				call, elementwise([]*memory{next, g, other}, load(0), load(1), store(2))}
		}, false},
		{"an extern op reads the target while the output lives", func(w, g, next, other *memory) []*planned {
			call := &planned{group: &group{call: &callStep{args: []*memory{w, other}, write: []*memory{other}}}, mems: []*memory{w, other}}
			return []*planned{elementwise([]*memory{g, next}, load(0), store(1)), elementwise([]*memory{next, w}, load(0), store(1)),
				call, elementwise([]*memory{next, g, other}, load(0), load(1), store(2))}
		}, true},
		{"two kernels write the output", func(w, g, next, _ *memory) []*planned {
			return []*planned{elementwise([]*memory{g, next}, load(0), store(1)), elementwise([]*memory{g, next}, load(0), store(1)), elementwise([]*memory{next, w}, load(0), store(1))}
		}, false},
		{"it is no copy but a sum", func(w, g, next, _ *memory) []*planned {
			return []*planned{elementwise([]*memory{g, next}, load(0), store(1)), elementwise([]*memory{next, w}, load(0), load(1), store(1))}
		}, false},
	} {
		w := &memory{kind: paramMemory, typ: ir.TypeOf(dtype.F32, n), result: -1}
		g := &memory{kind: paramMemory, index: 1, typ: ir.TypeOf(dtype.F32, n), result: -1}
		next, other := scratchOf(dtype.F32, n), scratchOf(dtype.F32, n)
		steps := c.make(w, g, next, other)
		got := writeThrough(steps)
		if through := next.root() == w; through != c.want || len(got) != len(steps)-map[bool]int{true: 1}[c.want] {
			t.Errorf("%s: written through: %v, %d of %d steps are left", c.name, through, len(got), len(steps))
		}
	}
	// In a chain, only the first copy is dropped: the lifetime of next is then also that of first.
	w, other := &memory{kind: paramMemory, typ: ir.TypeOf(dtype.F32, n), result: -1}, scratchOf(dtype.F32, n)
	g, first, next := scratchOf(dtype.F32, n), scratchOf(dtype.F32, n), scratchOf(dtype.F32, n)
	chain := writeThrough([]*planned{elementwise([]*memory{g, first}, load(0), store(1)), elementwise([]*memory{w, other}, load(0), store(1)),
		elementwise([]*memory{first, next}, load(0), store(1)), elementwise([]*memory{next, w}, load(0), store(1))})
	if len(chain) != 3 || first.root() != next {
		t.Errorf("%d of 4 steps are left of a chain of copies; w is read in the second of them", len(chain))
	}
	row := loop.Phase{Row: []loop.Instr{{Op: loop.Store, Access: &loop.Access{}}}}
	columns := loop.Phase{Body: []loop.Instr{{Op: loop.Neg}}}
	for _, c := range []struct {
		phases []loop.Phase
		want   bool
	}{{[]loop.Phase{columns, row}, false}, {[]loop.Phase{row, columns}, true}, {[]loop.Phase{columns}, false}} {
		if got := storesBeforeColumns(&loop.Kernel{Phases: c.phases}, 0); got != c.want {
			t.Errorf("%+v: stores before columns: %v", c.phases, got)
		}
	}
	w = &memory{kind: paramMemory, typ: ir.TypeOf(dtype.F32, n), result: -1, fixed: true}
	g, next = scratchOf(dtype.F32, n), scratchOf(dtype.F32, n)
	writeThrough([]*planned{elementwise([]*memory{g, next}, load(0), store(1)), elementwise([]*memory{next, w}, load(0), store(1))})
	if next.root() == w {
		t.Error("a weight was written")
	}
}
