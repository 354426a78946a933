package interp

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// TestEveryOpHasARule checks that every op of the table has a rule, except for calls and
// collectives, which have no rule.
func TestEveryOpHasARule(t *testing.T) {
	for _, op := range ir.Ops() {
		if alone := op.Class != ir.Call && op.Class != ir.Collective; (rules[op.ID] != nil) != alone {
			t.Errorf("%s: rule %v, computed without other devices %v", op.Name, rules[op.ID] != nil, alone)
		}
	}
}

const runText = `pwc 1
module "run" {
  sym N in [1, 8] batch
  sym M in [0, 4]
  sym B in [1, 100] load
  op "t::axpy"(tensor, mut tensor)
  op "t::fresh"(tensor) -> (tensor, tensor)
  op "t::unknown"(tensor) -> (tensor)
  weight @w : f32[2]
  state @kv : f32[B, 2]

  func @shapes(%a: f32[2*N + M], %b: f32[N], %c: i32[M]) -> (i32[N, M], f32[2*N]) {
    %i = iota(shape=[N, M], dtype=i32) : i32[N, M]
    %s = slice(%a, axis=0, start=M, end=2*N + M) : f32[2*N]
    return %i, %s
  }
  func @versions(%x: f32[2], %p: mut f32[2]) -> (f32[2], f32[2], f32[2]) {
    %e = full(1, shape=[2], dtype=f32) : f32[2]
    %before = add(%e, 0) : f32[2]
    call "t::axpy"(%x, %e)
    %between = add(%e, 0) : f32[2]
    copy(%e, %between)
    call "t::axpy"(%between, %e)
    call "t::axpy"(%x, %p)
    return %before, %between, %e
  }
  func @state(%x: f32[2]) -> (f32[1, 2], f32[2]) {
    %at = const(values=[1], dtype=i32) : i32[1]
    %row = reshape(%x, shape=[1, 2]) : f32[1, 2]
    scatter(@kv, %at, %row)
    %y = gather(@kv, %at) : f32[1, 2]
    return %y, @w
  }
  func @blocks() -> (f32[]) {
    %n = sum(@kv, axes=[0, 1]) : f32[]
    return %n
  }
  func @load() -> (i32[B]) {
    %i = iota(shape=[B], dtype=i32) : i32[B]
    return %i
  }
  func @fresh(%x: f32[N]) -> (f32[N], i32[2]) {
    %y, %z = call "t::fresh"(%x, scale=2.5, rows=N, list=[N, 3], mode=fast) : f32[N], i32[2] loc("here")
    return %y, %z
  }
  func @unknown(%x: f32[N]) -> (f32[N]) {
    %y = call "t::unknown"(%x) : f32[?]
    return %x
  }
  func @identity(%x: f32[2]) -> (f32[2], f32[2]) {
    return %x, %x
  }
}
`

func exec(t *testing.T, name string, env *Env, inputs ...*Tensor) ([]*Tensor, error) {
	t.Helper()
	m := parse(t, runText)
	return Run(context.Background(), m, m.Func(name), env, inputs)
}

func axpy(c *Call) error {
	for i := range c.Args[1].Len() {
		c.Args[1].Set(i, c.Args[1].At(i)+c.Args[0].At(i))
	}
	return nil
}

func TestSymbols(t *testing.T) {
	a, b, c := f32(0, 1, 2, 3, 4, 5, 6), f32(0, 0), i32(0, 0, 0) // N = 2, M = 3
	out, err := exec(t, "shapes", nil, a, b, c)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "iota[N, M]", out[0], of(dtype.I32, s(2, 3), 0, 0, 0, 1, 1, 1))
	check(t, "slice", out[1], f32(3, 4, 5, 6))
	out, err = exec(t, "shapes", &Env{Symbols: map[string]int64{"N": 2}}, f32(7, 8, 9, 10), b, i32())
	if err != nil {
		t.Fatal(err)
	}
	check(t, "iota[N, 0]", out[0], of(dtype.I32, s(2, 0)))
	check(t, "slice", out[1], f32(7, 8, 9, 10))

	// A load symbol comes from Symbols, or else from a state's extent.
	out, err = exec(t, "load", &Env{Symbols: map[string]int64{"B": 3}})
	if err != nil {
		t.Fatal(err)
	}
	check(t, "iota[B]", out[0], i32(0, 1, 2))
	if _, err := exec(t, "blocks", &Env{States: map[string]*Tensor{"kv": of(dtype.F32, s(3, 2), 1, 2, 3, 4, 5, 6)}}); err != nil {
		t.Error(err)
	}
}

func TestBindErrors(t *testing.T) {
	kv := of(dtype.F32, s(3, 2), 1, 2, 3, 4, 5, 6)
	shared := f32(1, 2)
	for _, c := range []struct {
		fn     string
		env    *Env
		inputs []*Tensor
		want   string
	}{
		{"shapes", nil, nil, "@shapes: has 3 parameters, got 0 inputs"},
		{"shapes", nil, []*Tensor{f32(1), nil, i32()}, "parameter %b has no tensor"},
		{"shapes", nil, []*Tensor{f32(1), f32(1), f32(1)}, "parameter %c is i32[M], got f32[1]"},
		{"shapes", nil, []*Tensor{f32(1), of(dtype.F32, s(1, 1), 1), i32()}, "parameter %b is f32[N], got f32[1, 1]"},
		{"shapes", nil, []*Tensor{f32(1, 2, 3), f32(1, 2), i32(1)}, "parameter %a: axis 0 has extent 3, want M + 2*N = 5; M is 1 by parameter %c; N is 2 by parameter %b"},
		{"shapes", nil, []*Tensor{f32(), f32(), i32()}, "symbol N is 0 by parameter %b, outside [1, 8]"},
		{"shapes", nil, []*Tensor{f32(1, 2), f32(1), i32(1, 2, 3, 4, 5)}, "symbol M is 5 by parameter %c, outside [0, 4]"},
		{"shapes", &Env{Symbols: map[string]int64{"N": 2}}, []*Tensor{f32(1, 2), f32(1), i32()}, "parameter %a: axis 0 has extent 2, want M + 2*N = 4"},
		{"shapes", &Env{Symbols: map[string]int64{"Q": 2}}, []*Tensor{f32(1, 2), f32(1), i32()}, "symbol Q, which the module does not declare"},
		{"state", nil, []*Tensor{f32(1, 2)}, "state @kv has no tensor"},
		{"state", &Env{States: map[string]*Tensor{"kv": kv}}, []*Tensor{f32(1, 2)}, "weight @w has no tensor"},
		{"blocks", &Env{States: map[string]*Tensor{"kv": kv}, Symbols: map[string]int64{"B": 4}}, nil, "state @kv: axis 0 has extent 3, want B = 4; B is 4 by the given value"},
		{"blocks", &Env{Symbols: map[string]int64{"B": 101}, States: map[string]*Tensor{"kv": kv}}, nil, "symbol B is 101 by the given value, outside [1, 100]"},
		{"load", nil, nil, "symbol B has no value"},
		{"versions", nil, []*Tensor{shared, shared}, "parameter %x and parameter %p are one tensor, which may be written"},
	} {
		_, err := exec(t, c.fn, c.env, c.inputs...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("@%s: error %v, want %q", c.fn, err, c.want)
		}
	}
	if _, err := exec(t, "identity", nil, shared); err != nil {
		t.Error(err)
	}
}

// TestUnboundParameter: a symbol that occurs only in expressions needs a value in Env.Symbols.
func TestUnboundParameter(t *testing.T) {
	b := ir.NewBuilder("m")
	n := b.Symbol("N", 1, 8, ir.Batch)
	fb := b.Func("f")
	fb.Return(fb.Param("x", ir.TypeOf(dtype.F32, n.Mul(dim.Const(2)))))
	m, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	_, err = Run(context.Background(), m, m.Func("f"), nil, []*Tensor{f32(1, 2)})
	if err == nil || !strings.Contains(err.Error(), "symbol N has no value; set the symbol in Env.Symbols") {
		t.Errorf("error %v", err)
	}
	if _, err := Run(context.Background(), m, m.Func("f"), &Env{Symbols: map[string]int64{"N": 1}}, []*Tensor{f32(1, 2)}); err != nil {
		t.Error(err)
	}
}

func TestVersions(t *testing.T) {
	x, p := f32(2, 3), f32(10, 20)
	env := &Env{Externs: map[string]Extern{"t::axpy": axpy}}
	out, err := exec(t, "versions", env, x, p)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "before", out[0], f32(1, 1))
	check(t, "between", out[1], f32(3, 4))
	check(t, "after", out[2], f32(6, 8))
	check(t, "mut parameter", p, f32(12, 23))
	check(t, "parameter", x, f32(2, 3))
}

func TestStates(t *testing.T) {
	kv, w, x := of(dtype.F32, s(2, 2), 1, 2, 3, 4), f32(7, 8), f32(5, 6)
	env := &Env{States: map[string]*Tensor{"kv": kv}, Weights: map[string]*Tensor{"w": w}}
	out, err := exec(t, "state", env, x)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "a read after the write", out[0], of(dtype.F32, s(1, 2), 5, 6))
	check(t, "state", kv, of(dtype.F32, s(2, 2), 1, 2, 5, 6))
	if out[1] == w {
		t.Error("a returned weight is the weight itself")
	}
	out, err = exec(t, "identity", nil, x)
	if err != nil || out[0] == x || out[0] == out[1] {
		t.Errorf("a returned parameter is the parameter itself, %v", err)
	}
}

func TestObserve(t *testing.T) {
	var seen []string
	env := &Env{Externs: map[string]Extern{"t::axpy": axpy}, Observe: func(i int, n *ir.Node, results []*Tensor) {
		line := n.Name()
		for _, r := range results {
			line += " " + r.String()
			for _, v := range r.Float64s() {
				line += " " + string(rune('0'+int(v)))
			}
		}
		seen = append(seen, line)
		if len(seen) != i+1 {
			t.Errorf("node %d is seen as number %d", i, len(seen)-1)
		}
	}}
	if _, err := exec(t, "versions", env, f32(2, 3), f32(0, 0)); err != nil {
		t.Fatal(err)
	}
	want := []string{"full f32[2] 1 1", "add f32[2] 1 1", "t::axpy f32[2] 3 4", "add f32[2] 3 4", "copy f32[2] 3 4", "t::axpy f32[2] 6 8", "t::axpy f32[2] 2 3"}
	if !slices.Equal(seen, want) {
		t.Errorf("observed %q, want %q", seen, want)
	}
}

func TestCalls(t *testing.T) {
	var got *Call
	env := &Env{Externs: map[string]Extern{"t::fresh": func(c *Call) error {
		got = c
		for i := range c.Results[0].Len() {
			c.Results[0].Set(i, 2*c.Args[0].At(i))
		}
		c.Results[1] = i32(4, 5)
		return nil
	}}}
	out, err := exec(t, "fresh", env, f32(1, 2, 3))
	if err != nil {
		t.Fatal(err)
	}
	check(t, "filled", out[0], f32(2, 4, 6))
	check(t, "replaced", out[1], i32(4, 5))
	want := []ir.Attr{ir.FloatAttr("scale", 2.5), ir.IntAttr("rows", 3), ir.IntsAttr("list", 3, 3), ir.EnumAttr("mode", "fast")}
	if got.Name != "t::fresh" || !slices.EqualFunc(got.Attrs, want, ir.Attr.Equal) {
		t.Errorf("call %s %+v", got.Name, got.Attrs)
	}

	env = &Env{Externs: map[string]Extern{"t::unknown": func(c *Call) error {
		if c.Results[0] != nil {
			t.Error("a result of unknown extent is made beforehand")
		}
		c.Results[0] = f32(1, 2)
		return nil
	}}, Observe: func(_ int, _ *ir.Node, results []*Tensor) { check(t, "unknown extent", results[0], f32(1, 2)) }}
	if _, err := exec(t, "unknown", env, f32(1)); err != nil {
		t.Fatal(err)
	}
}

func TestCallErrors(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		fn, want string
		f        Extern
	}{
		{"fresh", `no reference is given for extern op "t::fresh"`, nil},
		{"fresh", "t::fresh: broken", func(*Call) error { return broken }},
		{"fresh", "t::fresh wrote operand 0, which it does not declare mut", func(c *Call) error { c.Args[0].Set(0, 9); return nil }},
		{"fresh", "t::fresh gave 1 results, declares 2", func(c *Call) error { c.Results = c.Results[:1]; return nil }},
		{"fresh", "t::fresh: result 0 is no fresh tensor", func(c *Call) error { c.Results[0] = c.Args[0]; return nil }},
		{"fresh", "t::fresh gave f32[3] as result 0, which is declared f32[N]", func(c *Call) error { c.Results[0] = f32(1, 2, 3); return nil }},
		{"fresh", "t::fresh gave f32[2] as result 1, which is declared i32[2]", func(c *Call) error { c.Results[1] = f32(1, 2); return nil }},
		{"unknown", "t::unknown gave no result 0", func(c *Call) error { return nil }},
		{"unknown", "t::unknown gave f32[1, 1] as result 0, which is declared f32[?]", func(c *Call) error { c.Results[0] = of(dtype.F32, s(1, 1), 1); return nil }},
	} {
		env := &Env{Externs: map[string]Extern{"t::" + c.fn: c.f}}
		if c.f == nil {
			env.Externs = nil
		}
		_, err := exec(t, c.fn, env, f32(1))
		var at *ir.Error
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &at) || !at.Pos.IsValid() {
			t.Errorf("@%s: error %v, want %q with a position", c.fn, err, c.want)
		}
		if c.want == "t::fresh: broken" && !errors.Is(err, broken) {
			t.Error("the cause is lost")
		}
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	env := &Env{Externs: map[string]Extern{"t::axpy": func(*Call) error { cancel(); return nil }}}
	m := parse(t, runText)
	if _, err := Run(ctx, m, m.Func("versions"), env, []*Tensor{f32(1, 2), f32(1, 2)}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestSharedLiteral uses one literal value with operands of two dtypes.
func TestSharedLiteral(t *testing.T) {
	b := ir.NewBuilder("m")
	fb := b.Func("f")
	x, y := fb.Param("x", ir.TypeOf(dtype.F32, dim.Const(1))), fb.Param("y", ir.TypeOf(dtype.I32, dim.Const(1)))
	two := fb.Int(2)
	p := fb.Op1("mul", []ir.Value{x, two})
	q := fb.Op1("mul", []ir.Value{two, y})
	fb.Return(p, q)
	m, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	out, err := Run(context.Background(), m, m.Func("f"), nil, []*Tensor{f32(1.5), i32(3)})
	if err != nil {
		t.Fatal(err)
	}
	check(t, "f32", out[0], f32(3))
	check(t, "i32", out[1], i32(6))
}

func TestTooLarge(t *testing.T) {
	m := parse(t, `pwc 1
module "large" {
  sym N in [1, 1000000] batch
  func @f(%x: f32[N]) -> (f32[N, N, N]) {
    %y = empty(shape=[N, N, N], dtype=f32) : f32[N, N, N] loc("cube")
    return %y
  }
}
`)
	x, err := Zeros(dtype.F32, s(1_000_000))
	_, err = Run(context.Background(), m, m.Func("f"), nil, []*Tensor{must(t, x, err)})
	if !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), "too large to interpret") {
		t.Errorf("error %v", err)
	}
}
