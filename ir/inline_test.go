package ir_test

import (
	"math/rand"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/internal/irgen"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// A function with the same parameters that only inlines f has the hash of f.
func TestInlineKeepsAll(t *testing.T) {
	for seed := range int64(100) {
		m := irgen.Generate(rand.New(rand.NewSource(seed)), irgen.Options{MixRows: true, Odd: seed%2 == 0})
		f := m.Funcs[0]
		b := ir.NewBuilder(m.Name)
		for _, s := range m.Symbols {
			b.AddSymbol(s)
		}
		for _, e := range m.Externs {
			b.Extern(e)
		}
		for _, w := range m.Weights {
			b.AddWeight(w)
		}
		for _, s := range m.States {
			b.AddState(s)
		}
		fb := b.Func(f.Name)
		var how ir.Inlining
		for _, p := range f.Params {
			info := &f.Values[p]
			v := ir.NoValue
			if info.Mut {
				v = fb.MutParam(info.Name, info.Type)
			} else {
				v = fb.Param(info.Name, info.Type)
			}
			if info.Padded {
				fb.Padded(v)
			}
			how.Args = append(how.Args, v)
		}
		fb.Return(fb.Inline(f, how)...)
		n, err := b.Build()
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if ir.HashFunc(m, f) != ir.HashFunc(n, n.Funcs[0]) {
			t.Fatalf("seed %d: another hash:\n%s", seed, cmp.Diff(ir.PrintFunc(m, f), ir.PrintFunc(n, n.Funcs[0])))
		}
	}
}

// The caller replaces symbols and states of an inlined function, and a weight may be a state of the
// caller's module that has the same name.
func TestInline(t *testing.T) {
	m := mustParse(t, `pwc 1
module "m" {
  sym N in [1, 64] batch
  weight @w : f32[2]
  state @s : f32[2]
  func @g(%x: f32[N, 2]) -> (f32[N, 2], f32[2 * N]) {
    %y = mul(%x, @w) loc("y")
    copy(@s, @w)
    %z = add(%y, @s)
    %r = reshape(%z, shape=[2 * N])
    return %z, %r
  }
}
`)
	b := ir.NewBuilder("n")
	b.State("w", ir.TypeOf(dtype.F32, dim.Const(2)))
	fb := b.Func("f")
	x := fb.Param("x", ir.TypeOf(dtype.F32, dim.Const(4), dim.Const(2)))
	own := fb.MutParam("own", ir.TypeOf(dtype.F32, dim.Const(2)))
	a := fb.Inline(m.Funcs[0], ir.Inlining{Args: []ir.Value{x}, Named: map[string]ir.Value{"s": own}, Symbols: map[string]dim.Dim{"N": dim.Const(4)}})
	fb.Return(append(a, fb.State("w"))...)
	n, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	const want = `func @f(%x: f32[4, 2], %own: mut f32[2]) -> (f32[4, 2], f32[8], f32[2]) {
  %y = mul(%x, @w) : f32[4, 2] loc("y")
  copy(%own, @w)
  %z = add(%y, %own) : f32[4, 2]
  %r = reshape(%z, shape=[8]) : f32[8]
  return %z, %r, @w
}
`
	if diff := cmp.Diff(want, ir.PrintFunc(n, n.Funcs[0])); diff != "" {
		t.Error(diff)
	}
}

// Inline calls After after each node, so that the caller can add nodes there.
func TestInlineAfter(t *testing.T) {
	f := mustParse(t, `pwc 1
module "m" {
  func @f(%x: f32[4]) -> (f32[4]) {
    %y = neg(%x)
    %z = exp(%y)
    return %z
  }
}`).Funcs[0]
	b := ir.NewBuilder("n")
	fb := b.Func("g")
	x := fb.Param("x", f.Type(f.Params[0]))
	var doubled []ir.Value
	fb.Inline(f, ir.Inlining{Args: []ir.Value{x}, After: func(node int, value func(ir.Value) ir.Value) {
		v := value(f.Nodes[node].Results[0])
		doubled = append(doubled, fb.Op1("add", []ir.Value{v, v}))
	}})
	fb.Return(doubled...)
	n, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	var ops []string
	for _, node := range n.Funcs[0].Nodes {
		ops = append(ops, node.Name())
	}
	if got := strings.Join(ops, " "); got != "neg add exp add" {
		t.Errorf("the nodes are %s", got)
	}
}
