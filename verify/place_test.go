package verify_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/host"
	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/verify"
)

// The paths are those of Mixtral, with some modules of GPT-2, GPT-NeoX and Phi.
func TestFind(t *testing.T) {
	m := parse(t, `pwc 1
module "m" {
  sym N in [1, 64] batch
  weight @w : f32[6, 4] = concat("model.layers.0.q.weight", "model.layers.0.k.weight")
  weight @v : f32[4, 4] = transpose("model.layers.0.v.weight", perm=[1, 0])
  weight @s : f32[4, 4] = slice("model.layers.0.part.weight", axis=0, start=0, end=4)

  func @f(%x: f32[N, 4]) -> (f32[N, 4]) {
    %y = linear(%x, @w) : f32[N, 6]
    %q, %k = split(%y, axis=1, sizes=[4, 2]) : f32[N, 4], f32[N, 2]
    %v = linear(%q, @v) : f32[N, 4]
    %p = linear(%v, @s) : f32[N, 4] loc("model.layers.0.block_sparse_moe.gate")
    %e = exp(%p) : f32[N, 4] loc("model.layers.0.block_sparse_moe")
    %r = add(%e, %x) : f32[N, 4] loc("model.layers.0")
    return %r
  }
}
`)
	x, text := verify.NewIndex(m), ir.NewFuncPrinter(m, m.Funcs[0])
	for path, want := range map[string]string{
		"model.layers.0.q": "%q", "model.layers.0.k": "%k", "model.layers.0.v": "%v",
		"model.layers.0": "%r", "model": "%r", "model.layers.0.block_sparse_moe": "%e",
		"model.layers.0.mlp.gate":                "%p", // as transformers 5 calls it
		"model.language_model.layers.0.mlp":      "%e",
		"layers.0":                               "%r", // a base model traced alone
		"model.layers.0.mlp.resid_dropout":       "%e", // at the end of its parent
		"model.layers.0.mlp.attn_dropout":        "",   // of attention weights
		"model.layers.0.resid_mlp_dropout":       "%e",
		"model.layers.0.resid_dropout":           "%e", // not the layer's output
		"model.layers.0.post_attention_dropout":  "",   // the model has no module attention
		"mlp.dropout":                            "",
		"dropout":                                "",
		"model.layers.0.part":                    "", // some rows of a tensor are no module's output
		"model.layers.1":                         "",
		"model.layers.0.block_sparse_moe.gate.x": "",
	} {
		p, ok := x.Find(path)
		got := ""
		if ok {
			got = text.Value(p.Value)
		}
		if got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}

func TestAskRefuses(t *testing.T) {
	m := parse(t, `pwc 1
module "m" {
  sym N in [1, 64] batch
  sym M in [1, 64] batch

  func @f(%x: f32[N], %z: f32[M]) -> (f32[N]) {
    %a = exp(%x) : f32[N]
    %s = sum(%a, axes=[0]) : f32[]
    %o = exp(%z) : f32[M]
    %b = add(%a, %s) : f32[N]
    %t = sum(%o, axes=[0]) : f32[]
    %c = add(%b, %t) : f32[N]
    return %c
  }
}
`)
	f := m.Funcs[0]
	at := func(name string) verify.Place {
		return verify.Place{Func: "f", Value: ir.Value(slices.IndexFunc(f.Values, func(v ir.ValueInfo) bool { return v.Name == name }))}
	}
	_, got, err := verify.Ask(m, []verify.Place{at("a"), at("s"), at("o"), at("c")})
	if want := []int{1, -1, -1, 0}; err != nil || !slices.Equal(got, want) {
		t.Errorf("results %v, %v; want %v: a scalar and a value of other rows cannot be returned, and c is a result", got, err, want)
	}
	if len(f.Returns) != 1 {
		t.Error("the model was changed")
	}
	if _, _, err := verify.Ask(m, []verify.Place{{Func: "g"}}); err == nil {
		t.Error("no error for a function that the model does not have")
	}
}

// Bounds by hand: λ·√(2·Σ(u² + K·2⁻⁴⁸)), λ = 4.
func TestBounds(t *testing.T) {
	m := parse(t, `pwc 1
module "m" {
  sym N in [1, 64] batch
  weight @w : f32[2, 16] = "w"

  func @f(%x: f32[N, 16]) -> (f32[N, 2]) {
    %a = exp(%x) : f32[N, 16]
    %y = linear(%a, @w) : f32[N, 2]
    %r = reshape(%y, shape=[N, 2]) : f32[N, 2]
    return %r
  }

  func @g(%r: f32[N, 2]) -> (bf16[N, 2]) {
    %b = cast(%r, dtype=bf16) : bf16[N, 2]
    return %b
  }
}
`)
	b := verify.NewBounds(m)
	u := math.Pow(2, -24)
	exp := u * u
	gemm := exp + u*u + 16*u*u
	for _, c := range []struct {
		place verify.Place
		want  float64
	}{
		{verify.Place{Func: "f", Value: m.Funcs[0].Nodes[0].Results[0]}, 4 * math.Sqrt(2*exp)},
		{verify.Place{Func: "f", Value: m.Funcs[0].Nodes[1].Results[0]}, 4 * math.Sqrt(2*gemm)},
		{verify.Place{Func: "f", Value: m.Funcs[0].Nodes[2].Results[0]}, 4 * math.Sqrt(2*gemm)}, // moves elements
		{verify.Place{Func: "g", Value: m.Funcs[1].Nodes[0].Results[0]}, 4 * math.Sqrt(2*(gemm+math.Pow(2, -16)))},
	} {
		if got := b.Of(m, c.place); math.Abs(got-c.want) > 1e-12*c.want {
			t.Errorf("bound of %v is %g, want %g", c.place, got, c.want)
		}
	}
}

// A trace keeps a batch of 1, joins axes, or has heads before rows. Other shapes, and a NaN, depart.
func TestShapesOfTraces(t *testing.T) {
	const text = `pwc 1
module "m" {
  sym N in [1, 64] batch

  func @f(%x: f32[N, 3, 2]) -> (f32[N, 3, 2]) {
    %y = neg(%x) : f32[N, 3, 2] loc("heads")
    return %y
  }
}
`
	x := random(t, 1, 5, 3, 2)
	y, heads := random(t, 1, 5, 3, 2), random(t, 0, 1, 3, 5, 2)
	for i := range 5 {
		for j := range 3 {
			for k := range 2 {
				v := -x.At((i*3+j)*2 + k)
				y.Set((i*3+j)*2+k, v)
				heads.Set((j*5+i)*2+k, v)
			}
		}
	}
	shaped := func(x *interp.Tensor, shape ...int64) *interp.Tensor {
		out, err := interp.FromBytes(x.Type, shape, x.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	nan := random(t, 1, 5, 3, 2)
	nan.Set(7, math.NaN())
	for _, c := range []struct {
		name   string
		tensor *interp.Tensor
		ok     bool
	}{
		{"as it is", y, true}, {"with a batch", shaped(y, 1, 5, 3, 2), true}, {"joined", shaped(y, 1, 5, 6), true}, {"heads first", heads, true},
		{"other rows", shaped(y, 3, 5, 2), false}, {"all rows joined", shaped(y, 30), false}, {"NaN", nan, false},
	} {
		s := &interpreted{args: []*interp.Tensor{x}}
		r, err := verify.Compare(context.Background(), parse(t, text), []verify.Wanted{{Name: "heads", Tensor: c.tensor}}, s, verify.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if r.OK(false) != c.ok {
			t.Errorf("%s: %+v, want ok %v", c.name, r.Layers, c.ok)
		}
	}
	wrong := []verify.Wanted{{Name: "heads", Tensor: shaped(y, 30)}, {Name: "heads", Tensor: shaped(y, 30)}}
	r, err := verify.Compare(context.Background(), parse(t, text), wrong, &interpreted{args: []*interp.Tensor{x}}, verify.Config{})
	if err != nil || r.Layers[1].Growth != 0 {
		t.Errorf("an infinite error after an infinite one: %+v, %v; want growth 0", r, err)
	}
}

// A report without a compared value is not OK. One with an unmapped name is OK only if such names are allowed.
func TestUnmapped(t *testing.T) {
	s, c := searchOf(t, model)
	for _, x := range []struct {
		wanted          []verify.Wanted
		strict, lenient bool
	}{
		{nil, false, false},
		{[]verify.Wanted{{Name: "other", Tensor: c.args[0]}}, false, false},
		{append(trace(t, s), verify.Wanted{Name: "other", Tensor: c.args[0]}), false, true},
		{trace(t, s), true, true},
	} {
		r, err := verify.Compare(context.Background(), s.Module, x.wanted, s.Test, verify.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if r.OK(false) != x.strict || r.OK(true) != x.lenient {
			t.Errorf("%d names: ok %v and %v, want %v and %v", len(x.wanted), r.OK(false), r.OK(true), x.strict, x.lenient)
		}
	}
}

// doubled is a backend with two variants of each GEMM, of which the first leaves out the last row.
type doubled struct{ compile.Backend }

func (b doubled) Lower(k *loop.Kernel) (compile.Code, error) {
	right, err := b.Backend.Lower(k)
	if err != nil || k.MatMul == nil {
		return right, err
	}
	wrong, err := shortened(b).Lower(k)
	for i := range wrong.Variants {
		for j := range wrong.Variants[i].Steps {
			wrong.Variants[i].Steps[j].Kernel.Name = "tile_128"
		}
		wrong.Variants[i].Guard = program.Guard{Expr: k.Rows[len(k.Rows)-1], Lo: 1, Hi: 64}
	}
	right.Variants = append(wrong.Variants, right.Variants...)
	return right, err
}

// TestVariantsKeepTheBackend: a backend without some variants fuses all_reduces and reads unaligned weights
// if the whole backend does, so that a departure does not disappear because kernels are cut in another way.
func TestVariantsKeepTheBackend(t *testing.T) {
	filtered := func(b compile.Backend) compile.Backend {
		return verify.Variants(b, verify.Config{Avoid: []string{"other"}})
	}
	for _, c := range []struct {
		backend      compile.Backend
		reduces, raw bool
	}{{host.New(), false, true}, {reducer{host.New()}, true, false}, {doubled{host.New()}, false, false}} {
		b := filtered(c.backend)
		reduces, raw := b.(compile.AllReduceFuser).FusesAllReduce(&loop.Kernel{}), b.(compile.WeightReader).ReadsUnalignedWeights()
		if reduces != c.reduces || raw != c.raw {
			t.Errorf("%T: fuses all_reduces: %v, reads unaligned weights: %v; want %v and %v", c.backend, reduces, raw, c.reduces, c.raw)
		}
	}
}

// reducer is a backend that computes all_reduces in kernels.
type reducer struct{ compile.Backend }

func (reducer) FusesAllReduce(*loop.Kernel) bool { return true }

func TestVariantIsNamed(t *testing.T) {
	s, c := searchOf(t, model)
	c.backend = doubled{host.New()}
	f := bisect(t, s)
	if f.Kind != verify.InVariant || f.Variant != "tile_128" {
		t.Errorf("blames %s %v %q, want the variant tile_128", f.Kind, f.Passes, f.Variant)
	}
	if len(f.Nodes) != 1 || !strings.Contains(f.Nodes[0].Msg, "linear(") {
		t.Errorf("the smallest case is %v, want the GEMM alone", f.Nodes)
	}
	reproduces(t, s, f)
}
