package compile

import (
	"slices"
	"testing"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// moves makes a step that does the given loads and stores of arguments, phase
// by phase, all at the same address.
func moves(mems []*memory, phases ...[]move) *planned {
	k := &loop.Kernel{Cols: []dim.Dim{dim.Sym("N")}, Args: make([]loop.Arg, len(mems))}
	for _, list := range phases {
		var ph loop.Phase
		for _, m := range list {
			op := loop.Load
			if m.store {
				op, k.Args[m.arg].Write = loop.Store, true
			}
			ph.Body = append(ph.Body, loop.Instr{Op: op, Access: &loop.Access{Arg: m.arg, Cols: []dim.Dim{one}}})
		}
		k.Phases = append(k.Phases, ph)
	}
	return &planned{group: &group{}, kernels: []*loop.Kernel{k}, mems: mems}
}

type move struct {
	arg   int32
	store bool
}

func load(arg int32) move  { return move{arg, false} }
func store(arg int32) move { return move{arg, true} }

func scratchOf(dt dtype.DType, d dim.Dim) *memory {
	return &memory{kind: localMemory, typ: ir.TypeOf(dt, d), result: -1}
}

// TestInPlace pins which outputs take the memory of which inputs.
func TestInPlace(t *testing.T) {
	n := dim.Sym("N")
	f32 := func() *memory { return scratchOf(dtype.F32, n) }
	for _, c := range []struct {
		name string
		mems []*memory
		do   [][]move
		want []int // by argument: the argument whose memory it takes, or itself
	}{
		{"taken", []*memory{f32(), f32()}, [][]move{{load(0), store(1)}}, []int{0, 0}},
		{"stored before it is read", []*memory{f32(), f32()}, [][]move{{store(1), load(0)}}, []int{0, 1}},
		{"read again by a later phase", []*memory{f32(), f32()}, [][]move{{load(0), store(1)}, {load(0)}}, []int{0, 1}},
		{"stored by a later phase", []*memory{f32(), f32()}, [][]move{{load(0)}, {load(0), store(1)}}, []int{0, 0}},
		{"another dtype", []*memory{f32(), scratchOf(dtype.BF16, n)}, [][]move{{load(0), store(1)}}, []int{0, 1}},
		{"another size", []*memory{f32(), scratchOf(dtype.F32, n.Add(one))}, [][]move{{load(0), store(1)}}, []int{0, 1}},
		{"two outputs, one input", []*memory{f32(), f32(), f32()}, [][]move{{load(0), store(1), store(2)}}, []int{0, 0, 2}},
		{"a value for a later phase in the output", []*memory{f32(), f32()}, [][]move{{store(0)}, {load(0), store(1)}}, []int{1, 1}},
		{"two of them, one output", []*memory{f32(), f32(), f32()}, [][]move{{store(0), store(1)}, {load(0), load(1), store(2)}}, []int{2, 1, 2}},
	} {
		// A step before the kernel writes the arguments that the kernel loads before it stores
		// them. A step after it reads the arguments whose last access is a store.
		var inputs, outputs []*memory
		var writes, reads []move
		for a, m := range c.mems {
			var mine []move
			for _, mv := range slices.Concat(c.do...) {
				if mv.arg == int32(a) {
					mine = append(mine, mv)
				}
			}
			if !mine[0].store {
				writes = append(writes, store(int32(len(inputs))))
				inputs = append(inputs, m)
			}
			if mine[len(mine)-1].store {
				reads = append(reads, load(int32(len(outputs))))
				outputs = append(outputs, m)
			}
		}
		steps := []*planned{moves(inputs, writes), moves(c.mems, c.do...), moves(outputs, reads)}
		if err := inPlace(&state{steps: steps}); err != nil {
			t.Fatal(err)
		}
		for a, m := range c.mems {
			if want := c.mems[c.want[a]]; m.root() != want {
				t.Errorf("%s: argument %d is not in the memory of argument %d", c.name, a, c.want[a])
			}
		}
	}
}

// TestSameAccess: arguments share memory only if each element is read and written at the
// same address. Otherwise a device that runs elements in any order may compute wrong results, even
// if the host, which reads whole blocks first, does not.
func TestSameAccess(t *testing.T) {
	n := dim.Sym("N")
	base := func() *loop.Access {
		return &loop.Access{Offset: one, Rows: []dim.Dim{n, dim.Const(8)}, Cols: []dim.Dim{dim.Const(4), one}}
	}
	for name, change := range map[string]func(a *loop.Access){
		"another offset":        func(a *loop.Access) { a.Offset = dim.Dim{} },
		"rows swapped":          func(a *loop.Access) { slices.Reverse(a.Rows) },
		"columns swapped":       func(a *loop.Access) { slices.Reverse(a.Cols) },
		"indices from a tensor": func(a *loop.Access) { a.Index = &loop.Index{} },
	} {
		a, b := base(), base()
		if !sameAccess(a, b) {
			t.Fatal("equal accesses differ")
		}
		change(b)
		if sameAccess(a, b) || sameAccess(b, a) {
			t.Errorf("%s: sameAccess is true", name)
		}
	}
}

// TestVerifySteps: verifySteps refuses steps whose memory or chain does not fit their arguments,
// and a step that does nothing.
func TestVerifySteps(t *testing.T) {
	n := dim.Sym("N")
	f32 := func() *memory { return scratchOf(dtype.F32, n) }
	step := func(mems ...*memory) *planned {
		st := moves(mems, []move{load(0), store(1)})
		for i := range st.kernels[0].Args {
			st.kernels[0].Args[i].DType = dtype.F32
		}
		return st
	}
	if err := verifySteps([]*planned{step(f32(), f32())}); err != nil {
		t.Error(err)
	}
	fewer, more, chained := step(f32(), f32()), step(f32(), f32()), step(f32(), f32())
	fewer.mems, more.mems, chained.chain = fewer.mems[:1], append(more.mems, f32()), &Chain{}
	for name, st := range map[string]*planned{
		"less memory than arguments": fewer, "more memory than arguments": more, "a chain of other arguments": chained,
		"memory of another dtype": step(f32(), scratchOf(dtype.BF16, n)), "nothing to do": {group: &group{}},
	} {
		if err := verifySteps([]*planned{st}); err == nil {
			t.Errorf("%s: not found", name)
		}
	}
}
