package autodiff_test

import (
	"context"
	"math/rand"
	"strings"
	"testing"

	"pwc/autodiff"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// divided is a block with a residual. With the lines marked "one" it is for one device. With those
// marked "ranks" it is for two times two: rows are divided over dp, features over tp.
const divided = `pwc 1
module "m" {
  // ranks sym d in [0, 1] load sym t in [0, 1] load group dp in 2 rank d group tp in 2 rank t
  weight @scale : f32[6]
  weight @up : f32[8, 6] // one
  weight @down : f32[6, 8] // one
  weight @head : f32[8, 6] // one
  // ranks weight @up : f32[4, 6] = shard("up", axis=0, group=tp)
  // ranks weight @down : f32[6, 4] = shard("down", axis=1, group=tp)
  // ranks weight @head : f32[4, 6] = shard("head", axis=0, group=tp)
  func @f(%x: f32[4, 6]) -> (f32[4, 8]) { // one
  // ranks func @f(%x: f32[2, 6] shard 0 over dp) -> (f32[2, 8] shard 0 over dp) {
    %n = rms_norm(%x, @scale, eps=1e-5)
    %h = linear(%n, @up)
    %a = silu(%h)
    %p = linear(%a, @down)
    %s = mul(%p, 0.7) // one
    %u = add(%s, %p) // one
    // ranks %m = mul(%p, 0.7)
    // ranks %s = all_reduce(%m, group=tp)
    // ranks %b = reduce_scatter(%p, group=tp, axis=1)
    // ranks %w = all_gather(%b, group=tp, axis=1)
    // ranks %u = add(%s, %w)
    %v = mul(%u, 0.5)
    %q = mul(%s, 2.0)
    %r = add(%v, %q)
    %y = add(%x, %r)
    %z = linear(%y, @head)
    %g = tanh(%z) // one
    // ranks %zt = tanh(%z)
    // ranks %g = all_gather(%zt, group=tp, axis=1)
    return %g
  }
}`

func variantOf(mark string) string {
	var out []string
	for _, line := range strings.Split(divided, "\n") {
		code, comment, marked := strings.Cut(line, "// ")
		switch {
		case !marked:
			out = append(out, line)
		case comment == "one" && mark == "one":
			out = append(out, code)
		case strings.HasPrefix(comment, mark+" "):
			out = append(out, strings.TrimPrefix(comment, mark+" "))
		}
	}
	return strings.Join(out, "\n")
}

// TestGradientsOfRanks holds the gradients of a function that four devices run, in shards of
// features and of rows, to those of the function that one device runs: they are its shards, summed
// over the rows of all.
func TestGradientsOfRanks(t *testing.T) {
	one, ranks := testkit.Parse(t, variantOf("one")), testkit.Parse(t, variantOf("ranks"))
	r := rand.New(rand.NewSource(1))
	random := func(shape ...int64) *interp.Tensor {
		x, err := interp.Zeros(dtype.F32, shape)
		if err != nil {
			t.Fatal(err)
		}
		for i := range x.Len() {
			x.Set(i, r.Float64()*2-1)
		}
		return x
	}
	whole := map[string]*interp.Tensor{"scale": random(6), "up": random(8, 6), "down": random(6, 8), "head": random(8, 6)}
	x, seed := random(4, 6), random(4, 8)
	wrt := []string{"%x", "@scale", "@up", "@down", "@head"}
	gradient := func(m *ir.Module) (*ir.Module, *ir.Func) {
		g, err := autodiff.Joint(m, "f", wrt, autodiff.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return g, g.Funcs[0]
	}
	m, f := gradient(one)
	want, err := interp.Run(t.Context(), m, f, &interp.Env{Weights: whole}, []*interp.Tensor{x, seed})
	if err != nil {
		t.Fatal(err)
	}
	m, f = gradient(ranks)
	var envs []*interp.Env
	var inputs [][]*interp.Tensor
	for d := range m.World() {
		env := &interp.Env{Weights: map[string]*interp.Tensor{}}
		for _, w := range m.Weights {
			part, err := interp.EvalWeight(t.Context(), m, m.WeightOf(w, d), func(name string) (*interp.Tensor, error) { return whole[name], nil })
			if err != nil {
				t.Fatal(err)
			}
			env.Weights[w.Name] = part
		}
		envs = append(envs, env)
		inputs = append(inputs, []*interp.Tensor{block(t, x, 0, d/2), block(t, seed, 0, d/2)})
	}
	got, err := interp.RunRanks(t.Context(), m, f, envs, inputs)
	if err != nil {
		t.Fatal(err)
	}
	for d := range got {
		expect := []*interp.Tensor{block(t, want[0], 0, d/2), want[1], block(t, want[2], 0, d%2), block(t, want[3], 1, d%2), block(t, want[4], 0, d%2)}
		for i, e := range expect {
			if diff := interp.Compare(got[d][i], e); !diff.Within(1e-5) {
				t.Errorf("device %d, gradient by %s: %s", d, wrt[i], diff)
			}
		}
	}
	// Placements are also valid if forward and backward are separate.
	if _, err := autodiff.Gradients(ranks, "f", wrt, autodiff.Options{}); err != nil {
		t.Error(err)
	}
}

// block returns one half of a matrix along an axis.
func block(t *testing.T, x *interp.Tensor, axis int, part int) *interp.Tensor {
	t.Helper()
	m := testkit.Parse(t, `pwc 1 module "m" { weight @w : f32[1] }`)
	shape := ir.TypeOf(dtype.F32)
	for i, d := range x.Shape {
		if i == axis {
			d /= 2
		}
		shape.Shape = append(shape.Shape, ir.IntAttr("", d).Dim)
	}
	w := &ir.Weight{Name: "w", Type: shape, Expr: &ir.WeightExpr{Op: ir.WeightShard, Args: []*ir.WeightExpr{{Name: "x"}},
		Attrs: []ir.Attr{ir.IntAttr("axis", int64(axis)), ir.IntAttr("parts", 2), ir.IntAttr("part", int64(part))}}}
	out, err := interp.EvalWeight(context.Background(), m, w, func(string) (*interp.Tensor, error) { return x, nil })
	if err != nil {
		t.Fatal(err)
	}
	return out
}
