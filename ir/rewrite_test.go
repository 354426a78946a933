package ir_test

import (
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/internal/irgen"
	"pwc/ir"
)

// TestRewriteKeepsAll holds that a pass which keeps every node changes nothing.
func TestRewriteKeepsAll(t *testing.T) {
	for seed := range int64(100) {
		m := irgen.Generate(rand.New(rand.NewSource(seed)), irgen.Options{MixRows: true, Odd: seed%2 == 0})
		f := m.Funcs[0]
		g, err := ir.Rewrite(m, f, func(rw *ir.Rewriter, i int, n *ir.Node) { rw.Keep(n) })
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if diff := cmp.Diff(ir.PrintFunc(m, f), ir.PrintFunc(m, g)); diff != "" {
			t.Fatalf("seed %d:\n%s", seed, diff)
		}
		if ir.HashFunc(m, f) != ir.HashFunc(m, g) {
			t.Fatalf("seed %d: another hash", seed)
		}
	}
}

// TestRewrite holds that a pass can drop, replace and add nodes, that uses
// follow, and that the old function stays as it was.
func TestRewrite(t *testing.T) {
	m := mustParse(t, `pwc 1
module "m" {
  weight @w : f32[2]
  state @s : f32[2]
  func @f(%x: f32[2], %m: mut f32[2]) -> (f32[2], f32[2], f32[2]) {
    %a = neg(%x) loc("a")
    %b = neg(%a) loc("b")
    %c = add(%b, 2.0) loc("c") // kept
    copy(%m, %c)
    copy(@s, %m)
    %d = mul(%m, @w)
    return %d, %m, @s
  }
}`)
	f := m.Funcs[0]
	before := ir.Print(m)
	g, err := ir.Rewrite(m, f, func(rw *ir.Rewriter, i int, n *ir.Node) {
		switch {
		case i == 0: // dropped, because its only use is replaced
		case i == 1: // neg(neg(x)) is x
			rw.Replace(n.Results[0], rw.Map(rw.Old().Params[0]))
		case n.Op.Name == "mul":
			x, w := rw.Map(n.Args[0]), rw.Map(n.Args[1])
			rw.KeepWith(n, []ir.Value{rw.Op1("abs", []ir.Value{x}), w})
		default:
			rw.Keep(n)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `func @f(%x: f32[2], %m: mut f32[2]) -> (f32[2], f32[2], f32[2]) {
  %c = add(%x, 2.0) : f32[2] loc("c")
  copy(%m, %c)
  copy(@s, %m)
  %0 = abs(%m) : f32[2]
  %d = mul(%0, @w) : f32[2]
  return %d, %m, @s
}
`
	if diff := cmp.Diff(want, ir.PrintFunc(m, g)); diff != "" {
		t.Error(diff)
	}
	if g.Nodes[0].Trivia.Trail != "// kept" || g.Nodes[0].Pos != f.Nodes[2].Pos {
		t.Error("the comment or the position is lost")
	}
	if ir.Print(m) != before {
		t.Error("the old function has changed")
	}
}

// TestRewriteIsVerified holds that a pass cannot return a function that breaks a rule: neither
// one that the builder checks, nor one that only the verifier checks.
func TestRewriteIsVerified(t *testing.T) {
	m := chain()
	_, err := ir.Rewrite(m, m.Funcs[0], func(rw *ir.Rewriter, i int, n *ir.Node) {
		if n.Op.Name == "copy" { // of a shape that does not fit
			rw.KeepWith(n, []ir.Value{rw.Map(n.Args[0]), rw.Op1("reshape", []ir.Value{rw.Map(n.Args[1])}, ir.IntsAttr("shape", 2, 1))})
			return
		}
		rw.Keep(n)
	})
	if err == nil {
		t.Error("no error for a node that the builder refuses")
	}
	spoil := func(rw *ir.Rewriter, i int, n *ir.Node) {
		if k := rw.Keep(n); n.Op.Name == "copy" {
			k.Versions = nil
		}
	}
	if _, err := ir.RewriteUnverified(m, m.Funcs[0], spoil); err != nil {
		t.Errorf("RewriteUnverified: %v", err)
	}
	if _, err := ir.Rewrite(m, m.Funcs[0], spoil); err == nil {
		t.Error("no error for a write without a version")
	}
}
