package ir_test

import (
	"slices"
	"testing"

	"pwc/ir"
	"pwc/ir/dtype"
)

const drawing = `pwc 1
module "draws" {
  sym N in [1, 64] batch
  state @rng : i64[2]
  func @f(%g: i64[2], %unused: i64[2], %x: f32[N, 4]) -> (f32[N, 4]) {
    %a = uniform(%g, shape=[N, 4], dtype=f32)
    %b = dropout(%x, @rng, p=0.5)
    %c = uniform(%g, shape=[2], dtype=bf16, offset=16)
    %d = dropout(%x, %g, p=0.5)
    %e = dropout(%d, %g, p=0.5, offset=0, redraw=true)
    return %e
  }
  func @again(%g: i64[2], %x: f32[N, 4]) -> (f32[N, 4]) {
    %a = dropout(%x, %g, p=0.5, offset=8, redraw=true)
    return %a
  }
  func @none(%x: f32[N, 4]) -> (f32[N, 4]) {
    return %x
  }
}
`

func offsets(f *ir.Func) []int64 {
	var out []int64
	for _, n := range f.Nodes {
		if _, ok := n.Generator(); ok {
			out = append(out, n.Int("offset"))
		}
	}
	return out
}

// TestDrawsArePlaced: a draw without an offset gets an offset above those of all earlier draws from
// the same generator.
func TestDrawsArePlaced(t *testing.T) {
	m := mustParse(t, drawing)
	if got, want := offsets(m.Func("f")), []int64{0, 0, 16, 20, 0}; !slices.Equal(got, want) {
		t.Errorf("offsets %v, want %v", got, want)
	}
	roundTrip(t, "draws", []byte(ir.Print(m)))
}

// TestGenerators pins the generators that a function draws from, and by how much a run
// advances them: draws count, redraws do not.
func TestGenerators(t *testing.T) {
	m := mustParse(t, drawing)
	f := m.Func("f")
	got := f.Generators()
	if len(got) != 2 || got[0] != (ir.Generator{Value: f.Params[0], Advance: 24}) ||
		f.Values[got[1].Value].Kind != ir.StateValue || got[1].Advance != 4 {
		t.Errorf("@f: %+v", got)
	}
	again := m.Func("again")
	if got := again.Generators(); len(got) != 1 || got[0] != (ir.Generator{Value: again.Params[0]}) {
		t.Errorf("@again: %+v", got)
	}
	if got := m.Func("none").Generators(); got != nil {
		t.Errorf("@none: %+v", got)
	}
}

// TestRewriteKeepsOffsets: a pass that drops draws changes no other offset, and draws that it
// adds get offsets above all of the function's.
func TestRewriteKeepsOffsets(t *testing.T) {
	m := mustParse(t, drawing)
	f, err := ir.Rewrite(m, m.Func("f"), func(rw *ir.Rewriter, i int, n *ir.Node) {
		switch i {
		case 0:
			rw.Op1("uniform", []ir.Value{rw.Map(n.Args[0])}, ir.IntsAttr("shape", 3), ir.DTypeAttr(dtype.F32)) // instead of the node
		case 2:
		default:
			rw.Keep(n)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := offsets(f), []int64{24, 0, 20, 0}; !slices.Equal(got, want) {
		t.Errorf("offsets %v, want %v", got, want)
	}
}
