package autodiff_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"pwc/autodiff"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/interp"
)

// customs is a function with two custom ops: one returns its result, one writes an operand.
const customs = `pwc 1
module "m" {
  op "my::cube"(tensor) -> (tensor)
  op "my::scale"(tensor, tensor, mut tensor) split
  func @f(%x: f32[4, 2], %s: f32[4, 2]) -> (f32[4, 2], f32[4, 2]) {
    %a = call "my::cube"(%x) : f32[4, 2]
    %out = empty(shape=[4, 2], dtype=f32) : f32[4, 2]
    call "my::scale"(%a, %s, %out)
    %b = mul(%out, %out) : f32[4, 2]
    return %b, %a
  }
}
`

// tableOps is the same function with ops of the table.
const tableOps = `pwc 1
module "m" {
  func @f(%x: f32[4, 2], %s: f32[4, 2]) -> (f32[4, 2], f32[4, 2]) {
    %q = mul(%x, %x) : f32[4, 2]
    %a = mul(%q, %x) : f32[4, 2]
    %out = mul(%a, %s) : f32[4, 2]
    %b = mul(%out, %out) : f32[4, 2]
    return %b, %a
  }
}
`

// customGradients has the gradients of the two ops: one by ops of the table, one by a custom op.
var customGradients = map[string]autodiff.Custom{
	"my::cube": {Gradient: func(c *autodiff.CustomCall) ([]ir.Value, error) {
		b := c.Builder
		square := b.Op1("mul", []ir.Value{c.Args[0], c.Args[0]})
		slope := b.Op1("mul", []ir.Value{square, b.Float(3)})
		return []ir.Value{b.Op1("mul", []ir.Value{c.Grads[0], slope})}, nil
	}},
	"my::scale": {
		Externs: []*ir.Extern{{Name: "my::scale_grad", Mut: []bool{false, false, false, true, true}, Split: true}},
		Gradient: func(c *autodiff.CustomCall) ([]ir.Value, error) {
			b := c.Builder
			like := func(v ir.Value) ir.Value { return b.Op1("empty_like", []ir.Value{v}) }
			dx, ds := like(c.Args[0]), like(c.Args[1])
			b.Call("my::scale_grad", []ir.Value{c.Args[0], c.Args[1], c.WrittenGrads[2], dx, ds}, nil)
			return []ir.Value{dx, ds, ir.NoValue}, nil
		},
	},
}

// customMeaning implements the ops in the interpreter.
var customMeaning = map[string]interp.Extern{
	"my::cube": func(c *interp.Call) error {
		for i := range c.Results[0].Len() {
			x := c.Args[0].At(i)
			c.Results[0].Set(i, x*x*x)
		}
		return nil
	},
	"my::scale": func(c *interp.Call) error {
		for i := range c.Args[2].Len() {
			c.Args[2].Set(i, c.Args[0].At(i)*c.Args[1].At(i))
		}
		return nil
	},
	"my::scale_grad": func(c *interp.Call) error {
		for i := range c.Args[2].Len() {
			c.Args[3].Set(i, c.Args[2].At(i)*c.Args[1].At(i))
			c.Args[4].Set(i, c.Args[2].At(i)*c.Args[0].At(i))
		}
		return nil
	},
}

func withCustoms(t testing.TB, m *ir.Module, in *oracle.Inputs) []*interp.Tensor {
	t.Helper()
	env := &interp.Env{Unrounded: in.Unrounded, Externs: customMeaning}
	out, err := interp.Run(context.Background(), m, m.Funcs[0], env, in.Params)
	if err != nil {
		t.Fatalf("%v\n%s", err, ir.Print(m))
	}
	return out
}

// Gradients of custom ops use ops of the table, or other custom ops, which the joint module then
// declares. The results are those of the same function without custom ops.
func TestCustom(t *testing.T) {
	m, plain := testkit.Parse(t, customs), testkit.Parse(t, tableOps)
	o := autodiff.Options{Custom: customGradients}
	g, err := autodiff.Joint(m, "f", nil, o)
	if err != nil {
		t.Fatal(err)
	}
	g = testkit.Parse(t, ir.Print(g))
	r := rand.New(rand.NewSource(3))
	in := &oracle.Inputs{}
	for range 2 {
		in.Params = append(in.Params, draw(r, m.Funcs[0].Type(m.Funcs[0].Params[0]), 1, true))
	}
	in = in.Unround()
	cotangents := []*interp.Tensor{draw(r, m.Funcs[0].ResultTypes[0], 1, true), draw(r, m.Funcs[0].ResultTypes[0], 1, true)}
	all := in.Clone()
	all.Params = append(all.Params, cotangents...)
	want := interpret(t, joint(t, plain), all.Clone())
	got := withCustoms(t, g, all.Clone())
	for i := range want {
		if err := near(got[i], want[i], 1e-12); err != nil {
			t.Errorf("grad_in%d: %v\n%s", i, err, ir.Print(g))
		}
	}
	for _, save := range []autodiff.Save{autodiff.SaveAuto, autodiff.SaveAll, autodiff.SaveNothing} {
		o.Save = save
		d, err := autodiff.Gradients(m, "f", nil, o)
		if err != nil {
			t.Fatal(err)
		}
		apart := twoSteps(t, d, in, cotangents, withCustoms)
		if err := oracle.SameBits(apart, got); err != nil {
			t.Errorf("save %d: %v\n%s", save, err, ir.Print(d.Module))
		}
	}
	// The gradient by one operand alone.
	one, err := autodiff.Joint(m, "f", []string{"s"}, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := near(withCustoms(t, one, all.Clone())[0], want[1], 1e-12); err != nil {
		t.Errorf("by %%s alone: %v", err)
	}
}

// A custom op without a gradient, or with one that fails, is an error with the position of the call.
func TestCustomErrors(t *testing.T) {
	m := testkit.Parse(t, customs)
	with := func(name string, f func(c *autodiff.CustomCall) ([]ir.Value, error)) map[string]autodiff.Custom {
		custom := map[string]autodiff.Custom{}
		for n, c := range customGradients {
			custom[n] = c
		}
		custom[name] = autodiff.Custom{Gradient: f}
		return custom
	}
	unknown := testkit.Parse(t, `pwc 1
module "m" {
  op "my::cube"(tensor) -> (tensor, tensor)
  func @f(%x: f32[4]) -> (f32[4]) {
    %a, %b = call "my::cube"(%x) : f32[4], f32[?]
    return %a
  }
}
`)
	for _, c := range []struct {
		m      *ir.Module
		custom map[string]autodiff.Custom
		want   string
	}{
		{m, nil, "test.ir:8:5: my::scale has no gradient: pwc does not know the derivative of an extern op: give it in Options.Custom"},
		{m, with("my::cube", nil), "test.ir:6:10: my::cube has no gradient: pwc does not know"},
		{m, with("my::cube", func(*autodiff.CustomCall) ([]ir.Value, error) { return nil, errors.New("not today") }), "test.ir:6:10: my::cube has no gradient: not today"},
		{m, with("my::cube", func(*autodiff.CustomCall) ([]ir.Value, error) { return nil, nil }), "test.ir:6:10: my::cube has no gradient: its gradient returned 0 cotangents for 1 operands"},
		{m, with("my::cube", func(c *autodiff.CustomCall) ([]ir.Value, error) {
			return []ir.Value{c.Builder.Op1("sum", []ir.Value{c.Grads[0]}, ir.IntsAttr("axes", 0))}, nil
		}), "test.ir:6:10: my::cube has no gradient: its gradient returned f32[2] as the cotangent of operand 0, which is f32[4, 2]"},
		{m, with("my::cube", func(c *autodiff.CustomCall) ([]ir.Value, error) {
			return c.Builder.Call("my::nowhere", []ir.Value{c.Grads[0]}, []ir.Type{c.Builder.Type(c.Args[0])}), nil
		}), `extern op "my::nowhere" is not declared`},
		{unknown, customGradients, "test.ir:5:14: my::cube has no gradient: result 1 is f32[?], with an extent that only the op knows"},
	} {
		_, err := autodiff.Joint(c.m, "f", nil, autodiff.Options{Custom: c.custom})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if _, again := autodiff.Gradients(c.m, "f", nil, autodiff.Options{Custom: c.custom}); fmt.Sprint(again) != fmt.Sprint(err) {
			t.Errorf("Gradients says %v, Joint %v", again, err)
		}
	}
}
