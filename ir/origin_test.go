package ir_test

import (
	"strings"
	"testing"

	"pwc/ir"
)

// TestOrigins: the parser sets the origin of each node, a Rewriter gives new nodes the origin
// of the node that it visits, and errors have it even if the module has no text.
func TestOrigins(t *testing.T) {
	m, err := ir.Parse("m.ir", []byte("pwc 1\nmodule \"m\" {\n  func @f(%x: f32[4]) -> (f32[4]) {\n    %y = neg(%x) loc(\"mlp\")\n    %z = exp(%y)\n    return %z\n  }\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	f := m.Func("f")
	for i, want := range []string{"m.ir:4:10 (mlp)", "m.ir:5:10"} {
		if got := f.Nodes[i].Origin.At(); got != want {
			t.Errorf("node %d comes from %s, want %s", i, got, want)
		}
	}
	m.Source = nil
	twice, err := ir.Rewrite(m, f, func(rw *ir.Rewriter, _ int, n *ir.Node) {
		k := rw.Keep(n)
		rw.Replace(n.Results[0], rw.Op1("abs", k.Results))
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range twice.Nodes {
		if want := f.Nodes[i/2].Origin; n.Origin != want {
			t.Errorf("node %d of the new function comes from %s, want %s", i, n.At(), want.At())
		}
	}
	if got := m.ErrorAt(twice, 1, "bad").Error(); got != "m.ir:4:10: bad" {
		t.Error(got)
	}
	_, err = ir.Rewrite(m, f, func(rw *ir.Rewriter, _ int, n *ir.Node) { rw.Op1("nothing", nil) })
	if err == nil || !strings.HasPrefix(err.Error(), "m.ir:4:10: ") {
		t.Errorf("an error of a rewriter: %v", err)
	}
}

// TestOriginText gives the parts that are known.
func TestOriginText(t *testing.T) {
	for want, o := range map[string]ir.Origin{
		"":            {},
		"3:4":         {Pos: ir.Pos{Line: 3, Col: 4}},
		"layers.0":    {Loc: "layers.0"},
		"a:1:2 (mlp)": {File: "a", Pos: ir.Pos{Line: 1, Col: 2}, Loc: "mlp"},
	} {
		if got := o.At(); got != want {
			t.Errorf("%#v: %q, want %q", o, got, want)
		}
	}
}
