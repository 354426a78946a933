package split_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/split"
)

// llama builds a decoder with rotary embeddings and paged attention: @forward
// and @logits, of hidden size 32, 4 heads of 8, 2 KV heads.
func llama(t testing.TB, layers int) *ir.Module {
	t.Helper()
	const hidden, heads, kv, size, inner, vocab = 32, 4, 2, 8, 48, 64
	b := ir.NewBuilder("llama")
	n, m := b.Symbol("N", 1, 8192, ir.Batch), b.Symbol("M", 1, 1024, ir.Batch)
	blocks := b.Symbol("B", 1, 1<<20, ir.Load)
	b.Extern(&ir.Extern{Name: "attention::paged", Mut: []bool{false, false, false, true, true}, Split: true})
	k := func(v int64) dim.Dim { return dim.Const(v) }
	weight := func(name string, shape ...dim.Dim) { b.Weight(name, ir.TypeOf(dtype.F32, shape...), nil) }
	weight("embed", k(vocab), k(hidden))
	weight("cos", k(512), k(size/2))
	weight("sin", k(512), k(size/2))
	f := b.Func("forward")
	ids := f.Param("ids", ir.TypeOf(dtype.I32, n))
	pos := f.Param("pos", ir.TypeOf(dtype.I32, n))
	x := f.Op1("embedding", []ir.Value{f.Weight("embed"), ids})
	cos := f.Op1("embedding", []ir.Value{f.Weight("cos"), pos})
	sin := f.Op1("embedding", []ir.Value{f.Weight("sin"), pos})
	norm := func(f *ir.FuncBuilder, x ir.Value, w string) ir.Value {
		return f.Op1("rms_norm", []ir.Value{x, f.Weight(w)}, ir.FloatAttr("eps", 1e-5))
	}
	linear := func(f *ir.FuncBuilder, x ir.Value, w string) ir.Value {
		return f.Op1("linear", []ir.Value{x, f.Weight(w)})
	}
	for l := range layers {
		p := func(s string) string { return fmt.Sprintf("layers.%d.%s", l, s) }
		weight(p("norm1"), k(hidden))
		weight(p("norm2"), k(hidden))
		weight(p("qkv"), k((heads+2*kv)*size), k(hidden))
		weight(p("o"), k(hidden), k(heads*size))
		weight(p("gate_up"), k(2*inner), k(hidden))
		weight(p("down"), k(hidden), k(inner))
		b.State(p("kv"), ir.TypeOf(dtype.F32, blocks, k(2), k(16), k(kv), k(size)))
		f.SetLoc(p("self_attn"))
		qkv := linear(f, norm(f, x, p("norm1")), p("qkv"))
		parts := f.Op("split", []ir.Value{qkv}, ir.IntAttr("axis", 1), ir.IntsAttr("sizes", heads*size, kv*size, kv*size))
		rope := func(v ir.Value, h int64) ir.Value {
			r := f.Op1("reshape", []ir.Value{v}, ir.DimsAttr("shape", n, k(h), k(size)))
			return f.Op1("rope", []ir.Value{r, cos, sin})
		}
		q, key := rope(parts[0], heads), rope(parts[1], kv)
		v := f.Op1("reshape", []ir.Value{parts[2]}, ir.DimsAttr("shape", n, k(kv), k(size)))
		o := f.Op1("empty_like", []ir.Value{q})
		f.Call("attention::paged", []ir.Value{q, key, v, o, f.State(p("kv"))}, nil, ir.FloatAttr("scale", 0.35))
		o = f.Op1("reshape", []ir.Value{o}, ir.DimsAttr("shape", n, k(heads*size)))
		x = f.Op1("add", []ir.Value{x, linear(f, o, p("o"))})
		f.SetLoc(p("mlp"))
		gu := f.Op("split", []ir.Value{linear(f, norm(f, x, p("norm2")), p("gate_up"))}, ir.IntAttr("axis", 1), ir.IntsAttr("sizes", inner, inner))
		act := f.Op1("mul", []ir.Value{f.Op1("silu", []ir.Value{gu[0]}), gu[1]})
		x = f.Op1("add", []ir.Value{x, linear(f, act, p("down"))})
	}
	weight("norm", k(hidden))
	f.SetLoc("norm")
	f.Return(norm(f, x, "norm"))

	g := b.Func("logits")
	h := g.Param("h", ir.TypeOf(dtype.F32, n, k(hidden)))
	rows := g.Param("rows", ir.TypeOf(dtype.I32, m))
	y := g.Op1("gather", []ir.Value{h, rows})
	weight("lm_head", k(vocab), k(hidden))
	g.Return(linear(g, y, "lm_head"))
	mod, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return mod
}

// TestLlama: a model of 32 layers has three distinct pieces in @forward (before,
// between and after attention) and one in @logits.
func TestLlama(t *testing.T) {
	m := llama(t, 32)
	forward, err := split.Split(m, m.Func("forward"), nil)
	if err != nil {
		t.Fatal(err)
	}
	checkPlan(t, forward)
	if got, want := forward.Counts(), (split.Counts{Graphs: 1, Piecewise: 65, Capturable: 33}); got != want {
		t.Errorf("counts %+v, want %+v", got, want)
	}
	pieces := map[[sha256.Size]byte]int{}
	for i, it := range forward.Items {
		if it.ID != i || it.Splitting != (i%2 == 1) {
			t.Fatalf("item %d: id %d, splitting %v", i, it.ID, it.Splitting)
		}
		if p := it.Units[0].Piece; p != nil {
			pieces[p.Hash]++
		} else if u := it.Units[0]; forward.Func.Nodes[u.Call].Name() != "attention::paged" {
			t.Errorf("item %d calls %s", i, forward.Func.Nodes[u.Call].Name())
		}
	}
	var counts []int
	for _, n := range pieces {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	if !slices.Equal(counts, []int{1, 1, 31}) {
		t.Errorf("distinct pieces occur %v times", counts)
	}
	// Piece 14 is between the attention of layer 6 and that of layer 7.
	p := forward.Items[2*7].Units[0].Piece
	if got := m.Weights[p.Weights[0]].Name; got != "layers.6.o" {
		t.Errorf("piece 14 starts with weight %s", got)
	}
	if got := m.Weights[p.Weights[len(p.Weights)-1]].Name; got != "layers.7.qkv" {
		t.Errorf("piece 14 ends with weight %s", got)
	}
	if got := forward.Func.Nodes[p.Origins[len(p.Origins)-1]].Loc; got != "layers.7.self_attn" {
		t.Errorf("its last node is at %s", got)
	}
	for i, n := range p.Func.Nodes {
		if want := forward.Func.Nodes[p.Origins[i]].Origin; n.Origin != want {
			t.Errorf("node %d of the piece comes from %s, want %s", i, n.At(), want.At())
		}
	}
	logits, err := split.Split(m, m.Func("logits"), nil)
	if err != nil {
		t.Fatal(err)
	}
	checkPlan(t, logits)
	if len(logits.Units) != 1 || pieces[logits.Units[0].Piece.Hash] != 0 {
		t.Errorf("@logits is not one piece with another hash than those of @forward:\n%s", logits)
	}
}

// TestLlamaRuns compares runs of a small model, unit by unit, with its functions.
func TestLlamaRuns(t *testing.T) {
	m := llama(t, 3)
	for _, f := range m.Funcs {
		p, err := split.Split(m, f, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := sameAsFunction(context.Background(), p, 7); err != nil {
			t.Error(err)
		}
	}
}

// TestOneChangedLayer: a layer that differs in an attribute, or in an operand that is a literal or
// the same value twice, is another piece. Other values for the operands, or another loc, give the
// same piece.
func TestOneChangedLayer(t *testing.T) {
	distinct := func(body string) int {
		text := `pwc 1
module "m" {
  sym N in [1, 64] batch
  op "s::s"(tensor) -> (tensor) split
  func @f(%x: f32[N, 4], %y: f32[N, 4]) -> (f32[N, 4]) {
    %a0 = sub(%x, %y)
    %b0 = softmax(%a0, axis=1)
    %c0 = call "s::s"(%b0) : f32[N, 4]
` + body + `
    return %b1
  }
}
`
		m, err := ir.Parse("m", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		p, err := split.Split(m, m.Funcs[0], nil)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[[32]byte]bool{}
		for _, u := range p.Units {
			if u.Piece != nil {
				seen[u.Piece.Hash] = true
			}
		}
		return len(seen)
	}
	for body, want := range map[string]int{
		"%a1 = sub(%x, %c0)\n%b1 = softmax(%a1, axis=1)":            1,
		"%a1 = sub(%c0, %x)\n%b1 = softmax(%a1, axis=1)":            1,
		"%a1 = sub(%x, %x)\n%b1 = softmax(%a1, axis=1)":             2,
		"%a1 = sub(%x, %c0)\n%b1 = softmax(%a1, axis=0)":            2,
		"%a1 = sub(%x, 1)\n%b1 = softmax(%a1, axis=1)":              2,
		"%a1 = sub(%c0, %x) loc(\"z\")\n%b1 = softmax(%a1, axis=1)": 1,
	} {
		if got := distinct(body); got != want {
			t.Errorf("%s: %d distinct pieces, want %d", body, got, want)
		}
	}
}
