package compile_test

import (
	"context"
	"fmt"
	"math/rand"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

// TestDraws: random numbers on the host have the interpreter's bits, for several sizes, with all
// passes and with each optional pass switched off. Every second of these compiles for one size.
func TestDraws(t *testing.T) {
	modules, err := oracle.Draws()
	if err != nil {
		t.Fatal(err)
	}
	options := []compile.Options{{}}
	for _, p := range compile.Passes() {
		if !p.Required {
			options = append(options, compile.Options{Disable: []string{p.Name}})
		}
	}
	for name, m := range modules {
		for k, o := range options {
			for _, n := range []int64{0, 1, 3, 18} {
				shape := compile.Shape{}
				if k%2 == 1 {
					shape.Ranges = map[string]dim.Interval{"N": {Lo: n, Hi: n}}
				}
				in, err := oracle.DrawInputs(rand.New(rand.NewSource(n)), m, n)
				if err != nil {
					t.Fatal(err)
				}
				want, err := oracle.Interpret(context.Background(), m, in.Clone())
				if err != nil {
					t.Fatal(err)
				}
				p := compileHost(t, m, shape, o)
				got, err := execute(p, m, in.Clone())
				if err == nil {
					err = oracle.SameBits(got, want)
				}
				if err != nil {
					t.Fatalf("%s, N = %d, without %v: %v\n%s", name, n, o.Disable, err, p)
				}
			}
		}
	}
}

// TestDrawsAreNotMerged: a draw and its redraw stay two nodes after all passes on the function,
// so that the numbers need not be stored between them.
func TestDrawsAreNotMerged(t *testing.T) {
	m := testkit.Parse(t, module(`  func @piece(%g: i64[2], %x: f32[N]) -> (f32[N], f32[N]) {
    %a = dropout(%x, %g, p=0.5)
    %b = dropout(%x, %g, p=0.5, offset=0, redraw=true)
    return %a, %b
  }
`))
	count := func(pass string) int {
		n := 0
		o := compile.Options{Dump: func(name, text string) {
			if name != pass {
				return
			}
			f, err := ir.Parse(name, []byte("pwc 1\nmodule \"m\" {\n  sym N in [1, 64] batch\n"+text+"}\n"))
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			for _, node := range f.Funcs[0].Nodes {
				if _, ok := node.Generator(); ok {
					n++
				}
			}
		}}
		compileHost(t, m, compile.Shape{}, o)
		return n
	}
	if got := count("dce"); got != 2 {
		t.Errorf("%d draws are left, want 2", got)
	}
}

// TestAdvance: a program advances its generators by the draws of the function as it was written,
// even if passes drop draws.
func TestAdvance(t *testing.T) {
	if program.DrawStep != ir.DrawStep {
		t.Errorf("program.DrawStep is %d, ir.DrawStep %d", program.DrawStep, ir.DrawStep)
	}
	m := testkit.Parse(t, `pwc 1
module "advance" {
  sym N in [1, 64] batch
  state @other : f32[2]
  state @rng : i64[2]
  weight @w : f32[2]
  func @piece(%x: f32[N], %g: i64[2], %again: i64[2]) -> (f32[N], f32[N]) {
    %a = dropout(%x, %g, p=0.5)
    %unused = uniform(%g, shape=[8], dtype=f32, offset=12)
    %b = uniform(@rng, shape=[N], dtype=f32)
    %c = dropout(%a, %again, p=0.5, offset=8, redraw=true)
    return %c, %b
  }
}
`)
	want := []program.Generator{{Param: 1, Advance: 16}, {Param: 2}, {Param: 5, Advance: 4}}
	for _, o := range []compile.Options{{}, {Disable: []string{"dce", "cse"}}} {
		p := compileHost(t, m, compile.Shape{}, o)
		if got := p.Generators(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("without %v: %v, want %v", o.Disable, got, want)
		}
		for _, g := range p.Generators() {
			if a := p.Params[g.Param]; a.DType != dtype.I64 {
				t.Errorf("parameter %d is %s", g.Param, a.DType)
			}
		}
	}
	// A pass of the user adds a draw.
	more := compile.Pass{Name: "more", Version: "1", Run: func(m *ir.Module, f *ir.Func) (*ir.Func, error) {
		return ir.Rewrite(m, f, func(rw *ir.Rewriter, i int, n *ir.Node) {
			rw.Keep(n)
			if i == 0 {
				rw.Op1("uniform", []ir.Value{rw.Map(n.Args[1])}, ir.IntsAttr("shape", 2), ir.DTypeAttr(dtype.F32))
			}
		})
	}}
	want[0].Advance = 20
	if got := compileHost(t, m, compile.Shape{}, compile.Options{Passes: []compile.Pass{more}}).Generators(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("with a pass that draws: %v, want %v", got, want)
	}
}
