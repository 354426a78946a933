package split_test

import (
	"context"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"pwc/internal/irgen"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/split"
)

// choices is a source of random choices for irgen.Generate, drawn by rapid.
type choices struct{ t *rapid.T }

func (c choices) Intn(n int) int { return rapid.IntRange(0, n-1).Draw(c.t, "choice") }

// TestItemsEqualFunction: for random modules, split at random ops, the items run in
// order, on storages with the lifetimes of the plan, give the results of the function.
func TestItemsEqualFunction(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := irgen.Generate(choices{t}, irgen.Options{MixRows: true, Load: true, MaxOps: 30, Externs: []*ir.Extern{
			irgen.SillyAttention(),
			{Name: "t::fresh", Mut: []bool{false}, Results: 1, Split: true},
			{Name: "t::inplace.v2", Mut: []bool{true, false}, Capture: true},
			{Name: "t::pair", Mut: []bool{false, true}, Results: 2, Capture: true},
		}})
		f := m.Funcs[0]
		var ops []string // nil in half of the runs
		if rapid.Bool().Draw(t, "list") {
			ops = []string{}
			for _, n := range f.Nodes {
				if rapid.IntRange(0, 4).Draw(t, "on the list") == 0 {
					ops = append(ops, n.Name())
				}
			}
		}
		p, err := split.Split(m, f, ops)
		if err != nil {
			t.Fatal(err)
		}
		checkPlan(t, p)
		checkItems(t, p)
		if err := sameAsFunction(context.Background(), p, rapid.Uint64().Draw(t, "data")); err != nil {
			t.Fatalf("%v\n%s\n%s", err, ir.Print(m), p)
		}
	})
}

// checkItems checks ids by the definition of the rules: it numbers the nodes one by
// one, and then moves pieces of one allocation.
func checkItems(t reporter, p *split.Plan) {
	t.Helper()
	f := p.Func
	listed := map[string]bool{}
	for _, op := range p.Ops {
		listed[op] = true
	}
	ids := make([]int, len(f.Nodes))
	splitting := map[int]bool{}
	members := map[int][]int{}
	id := 0
	for i, n := range f.Nodes {
		if listed[n.Name()] {
			id++
			splitting[id] = true
		}
		ids[i] = id
		members[id] = append(members[id], i)
		if listed[n.Name()] {
			if i+1 < len(f.Nodes) && listed[f.Nodes[i+1].Name()] {
				id--
			} else {
				id++
			}
		}
	}
	previous := -1
	for at := 0; at <= id; at++ {
		if len(members[at]) == 0 || splitting[at] {
			continue
		}
		lone := len(members[at]) == 1 && f.Nodes[members[at][0]].IsEmpty() && previous >= 0
		if lone {
			for _, a := range f.Nodes[members[at][0]].Args {
				if def := f.Values[f.Base(a)].Node; def >= 0 && ids[def] > previous {
					lone = false
				}
			}
		}
		if lone {
			ids[members[at][0]] = previous
		} else {
			previous = at
		}
	}
	got := make([]int, len(f.Nodes))
	for _, it := range p.Items {
		for _, n := range it.Nodes {
			got[n] = it.ID
		}
		if it.Splitting != splitting[it.ID] {
			t.Errorf("item %d: splitting is %v", it.ID, it.Splitting)
		}
	}
	for i := range ids {
		if got[i] != ids[i] {
			t.Errorf("node %d has id %d, want %d", i, got[i], ids[i])
		}
	}
}

// chainOf returns a function of n nodes, every tenth a splitting op. Values are read
// by a near and by a distant node.
func chainOf(b *testing.B, n int) *ir.Module {
	m := ir.NewBuilder("chain")
	sym := m.Symbol("N", 1, 8192, ir.Batch)
	m.Extern(&ir.Extern{Name: "s::s", Mut: []bool{false, true}, Split: true})
	f := m.Func("f")
	x := f.Param("x", ir.TypeOf(dtype.F32, sym, dim.Const(64)))
	early := x
	for i := range n {
		switch i % 10 {
		case 8:
			o := f.Op1("empty_like", []ir.Value{x})
			f.Call("s::s", []ir.Value{x, o}, nil)
			x = o
		case 9:
		case 5:
			x = f.Op1("add", []ir.Value{x, early})
			early = x
		default:
			x = f.Op1("mul", []ir.Value{x, f.Float(0.5)})
		}
	}
	f.Return(x, early)
	mod, err := m.Build()
	if err != nil {
		b.Fatal(err)
	}
	return mod
}

// BenchmarkSplit reports the time per node, which should not grow with the function.
func BenchmarkSplit(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := chainOf(b, n)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := split.Split(m, m.Funcs[0], nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
	}
}
