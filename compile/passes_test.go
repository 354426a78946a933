package compile_test

import (
	"context"
	"errors"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pwc/compile"
	hostbackend "pwc/compile/host"
	"pwc/compile/loop"
	"pwc/internal/irgen"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dim"
)

// TestPassOrder checks that the order of the table meets its constraints.
func TestPassOrder(t *testing.T) {
	at := make(map[string]int)
	for i, p := range compile.Passes() {
		if _, twice := at[p.Name]; twice || p.Name == "" || p.Does == "" {
			t.Errorf("pass %d, %q: named twice or not described", i, p.Name)
		}
		at[p.Name] = i
	}
	for i, p := range compile.Passes() {
		for _, o := range p.Order {
			if (o.After == "") == (o.Before == "") || o.Reason == "" {
				t.Errorf("%s: a constraint names one pass and a reason", p.Name)
			}
			if j, ok := at[o.After]; o.After != "" && (!ok || j >= i) {
				t.Errorf("%s must come after %s: %s", p.Name, o.After, o.Reason)
			}
			if j, ok := at[o.Before]; o.Before != "" && (!ok || j <= i) {
				t.Errorf("%s must come before %s: %s", p.Name, o.Before, o.Reason)
			}
		}
	}
}

// TestPassNames pins the names that flags, keys and documents have.
func TestPassNames(t *testing.T) {
	var names []string
	for _, p := range compile.Passes() {
		names = append(names, p.Name)
	}
	if got, want := strings.Join(names, " "), "static user lower noop fold cse dce fuse overlap allreduce chain inplace beside emit"; got != want {
		t.Errorf("passes %s, want %s", got, want)
	}
}

// TestDriver: every row that is not switched off, and each of the user's passes, is
// dumped and timed, in order.
func TestDriver(t *testing.T) {
	m := testkit.Parse(t, module("  func @piece(%x: f32[N]) -> (f32[N]) {\n    %y = add(%x, 1.0) : f32[N]\n    return %y\n  }\n"))
	same := func(_ *ir.Module, f *ir.Func) (*ir.Func, error) { return f, nil }
	for _, off := range append(compile.Passes(), compile.PassInfo{}) {
		if off.Required {
			continue
		}
		var want, dumped, timed []string
		o := compile.Options{Passes: []compile.Pass{{Name: "one", Run: same}, {Name: "two", Run: same}},
			Dump: func(pass, text string) {
				dumped = append(dumped, pass)
				if text == "" {
					t.Errorf("%s shows nothing", pass)
				}
			},
			Time: func(pass string, took time.Duration) {
				timed = append(timed, pass)
				if took < 0 {
					t.Errorf("%s took %s", pass, took)
				}
			}}
		if off.Name != "" {
			o.Disable = []string{off.Name}
		}
		for _, p := range compile.Passes() {
			switch {
			case p.Name == off.Name && p.Name != "static" && p.Name != "fuse": // these two do less instead
			case p.Name == "user":
				want = append(want, "one", "two")
			default:
				want = append(want, p.Name)
			}
		}
		compileHost(t, m, compile.Shape{}, o)
		if !slices.Equal(dumped, want) || !slices.Equal(timed, want) {
			t.Errorf("without %q: dumped %v, timed %v, want %v", off.Name, dumped, timed, want)
		}
	}
}

// TestDisable: switching off an unknown or a required pass is an error, as is a pass without a function. An error lists
// all of them.
func TestDisable(t *testing.T) {
	m := testkit.Parse(t, module("  func @piece(%x: f32[N]) -> (f32[N]) {\n    return %x\n  }\n"))
	for name, want := range map[string]string{"lower": "cannot be switched off", "emit": "cannot be switched off", "vectorize": "unknown pass"} {
		_, err := compile.Compile(context.Background(), m, compile.Shape{}, hostbackend.New(), compile.Options{Disable: []string{name}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	_, err := compile.Compile(context.Background(), m, compile.Shape{}, hostbackend.New(), compile.Options{Disable: []string{"vectorize", "lower"}, Passes: []compile.Pass{{Name: "a"}}})
	for _, want := range []string{`unknown pass "vectorize"`, "pass lower cannot be switched off", "Options.Passes[0] has no name or no function"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
}

// TestFingerprint: each option that may change a program changes the fingerprint. Dump, and
// the order and repetition of names in Disable, do not.
func TestFingerprint(t *testing.T) {
	run := func(*ir.Module, *ir.Func) (*ir.Func, error) { return nil, nil }
	all := []compile.Options{
		{},
		{Disable: []string{"cse"}},
		{Disable: []string{"cse", "fold"}},
		{MatMul: loop.F32},
		{MatMul: loop.TF32},
		{Passes: []compile.Pass{{Name: "a", Version: "1", Run: run}}},
		{Passes: []compile.Pass{{Name: "a", Version: "2", Run: run}}},
		{Passes: []compile.Pass{{Name: "a", Version: "1", Run: run}, {Name: "b", Run: run}}},
		{Passes: []compile.Pass{{Name: "b", Run: run}, {Name: "a", Version: "1", Run: run}}},
	}
	var seen []string
	for i, o := range all {
		f := o.Fingerprint()
		if slices.Contains(seen, f) {
			t.Errorf("options %d have the fingerprint of others: %s", i, f)
		}
		seen = append(seen, f)
	}
	a, b := compile.Options{Disable: []string{"fold", "cse", "cse"}}, compile.Options{Disable: []string{"cse", "fold"}, Dump: func(string, string) {}}
	if a.Fingerprint() != b.Fingerprint() {
		t.Errorf("%s and %s differ", a.Fingerprint(), b.Fingerprint())
	}
}

// TestUserPass runs a pass that turns every add into a sub.
func TestUserPass(t *testing.T) {
	m := testkit.Parse(t, module("  func @piece(%x: f32[N]) -> (f32[N]) {\n    %y = add(%x, 1.0) : f32[N]\n    return %y\n  }\n"))
	var after string
	p := compileHost(t, m, compile.Shape{}, compile.Options{
		Passes: []compile.Pass{{Name: "flip", Version: "1", Run: func(m *ir.Module, f *ir.Func) (*ir.Func, error) {
			return ir.Rewrite(m, f, func(rw *ir.Rewriter, _ int, n *ir.Node) {
				if n.Op.ID != ir.OpAdd {
					rw.Keep(n)
					return
				}
				rw.Replace(n.Results[0], rw.Op1("sub", []ir.Value{rw.Map(n.Args[0]), rw.Map(n.Args[1])}))
			})
		}}},
		Dump: func(pass, text string) {
			if pass == "flip" {
				after = text
			}
		},
	})
	if !strings.Contains(after, "sub(%x") || !strings.Contains(p.String(), "sub f") {
		t.Errorf("the pass did not take effect:\n%s\n%s", after, p)
	}
}

// TestUserPassIsChecked: errors of a user's pass are reported, also those that the verifier does
// not find.
func TestUserPassIsChecked(t *testing.T) {
	m := testkit.Parse(t, module("  func @piece(%x: f32[N], %y: f32[N]) -> (f32[N]) {\n    %z = add(%x, %y) : f32[N]\n    return %z\n  }\n"))
	for want, run := range map[string]func(m *ir.Module, f *ir.Func) (*ir.Func, error){
		"returned no function": func(*ir.Module, *ir.Func) (*ir.Func, error) { return nil, nil },
		"changed the types of parameters or results": func(_ *ir.Module, f *ir.Func) (*ir.Func, error) {
			g := *f
			g.Returns, g.ResultTypes = nil, nil
			return &g, nil
		},
		"changed the types of": func(_ *ir.Module, f *ir.Func) (*ir.Func, error) { // in place
			f.Returns, f.ResultTypes = nil, nil
			return f, nil
		},
		"node 0 (add) has an origin that no node of the pass's input has: test.ir:99:1, ID 1": func(m *ir.Module, f *ir.Func) (*ir.Func, error) {
			return ir.Rewrite(m, f, func(rw *ir.Rewriter, _ int, n *ir.Node) {
				rw.SetPos(ir.Pos{Line: 99, Col: 1})
				rw.Keep(n)
			})
		},
		"has node 0, which cannot define it": func(_ *ir.Module, f *ir.Func) (*ir.Func, error) {
			g := *f
			g.Nodes = nil
			return &g, nil
		},
	} {
		o := compile.Options{Passes: []compile.Pass{{Name: "bad", Run: run}}}
		_, err := compile.Compile(context.Background(), m, compile.Shape{}, hostbackend.New(), o)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "pass bad") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestPassError: an error in a user's pass names the pass and keeps its position. Its node is
// that of the piece, even if earlier passes have rewritten the function.
func TestPassError(t *testing.T) {
	m := testkit.Parse(t, module("  func @piece(%x: f32[N]) -> (f32[N]) {\n    %y = add(%x, 1.0) : f32[N]\n    %z = neg(%y) : f32[N]\n    return %z\n  }\n"))
	double := func(m *ir.Module, f *ir.Func) (*ir.Func, error) {
		return ir.Rewrite(m, f, func(rw *ir.Rewriter, _ int, n *ir.Node) {
			rw.Replace(n.Results[0], rw.Op1("abs", rw.Keep(n).Results))
		})
	}
	for want, run := range map[string]func(m *ir.Module, f *ir.Func) (*ir.Func, error){
		"pass bad: no luck": func(*ir.Module, *ir.Func) (*ir.Func, error) { return nil, errors.New("no luck") },
		"test.ir:18:10: pass bad: not this": func(m *ir.Module, f *ir.Func) (*ir.Func, error) {
			return nil, m.ErrorAt(f, 2, "not this")
		},
		`test.ir:18:10: pass bad: unknown op "nothing"`: func(m *ir.Module, f *ir.Func) (*ir.Func, error) {
			return ir.Rewrite(m, f, func(rw *ir.Rewriter, i int, n *ir.Node) {
				if rw.Keep(n); i == 2 {
					rw.Op("nothing", nil)
				}
			})
		},
		"test.ir:17:10: pass bad: operand 0 of add": func(m *ir.Module, f *ir.Func) (*ir.Func, error) { // the verifier's
			g := *f
			g.Nodes = slices.Clone(f.Nodes)
			n := *f.Nodes[0]
			n.Args = slices.Clone(n.Args)
			n.Args[0] = f.Nodes[2].Results[0]
			g.Nodes[0] = &n
			return &g, nil
		},
	} {
		o := compile.Options{Passes: []compile.Pass{{Name: "double", Run: double}, {Name: "bad", Run: run}}}
		_, err := compile.Compile(context.Background(), m, compile.Shape{}, hostbackend.New(), o)
		var pass *compile.PassError
		if !errors.As(err, &pass) || pass.Pass != "bad" || !pass.User || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		var at *ir.Error
		if errors.As(err, &at) && (at.Func != "piece" || at.Node != int(at.Pos.Line)-17) {
			t.Errorf("%v is at node %d of @%s", err, at.Node, at.Func)
		}
	}
}

// TestErrors pins errors of wrong arguments, and of elements that no kernel can load.
func TestErrors(t *testing.T) {
	ctx := context.Background()
	one := "  func @piece(%x: f32[N]) -> (f32[N]) {\n    return %x\n  }\n"
	for _, c := range []struct {
		text  string
		shape compile.Shape
		want  string
	}{
		{module(one + strings.Replace(one, "piece", "other", 1)), compile.Shape{}, "has one function"},
		{module(one), compile.Shape{Ranges: map[string]dim.Interval{"N": {Lo: 1, Hi: 65}}}, "is not within the declared [0, 64]"},
		{module(one), compile.Shape{Ranges: map[string]dim.Interval{"N": {Lo: 3, Hi: 2}}}, "range [3, 2] of symbol N is empty"},
		{module(one), compile.Shape{Ranges: map[string]dim.Interval{"M": {Lo: 1, Hi: 2}}}, "the shape has a range for symbol M, which module test does not declare"},
		{module("  func @piece(%x: i4[N, 2]) -> (i4[2, N]) {\n    %y = transpose(%x, perm=[1, 0]) : i4[2, N]\n    return %y\n  }\n"), compile.Shape{},
			"test.ir:17:10: elements of i4 are narrower than a byte"},
	} {
		_, err := compile.Compile(ctx, testkit.Parse(t, c.text), c.shape, hostbackend.New(), compile.Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	if _, err := compile.Compile(ctx, nil, compile.Shape{}, hostbackend.New(), compile.Options{}); !errors.Is(err, ir.ErrNoModule) {
		t.Errorf("without a piece: %v, want ErrNoModule", err)
	}
	if _, err := compile.Compile(ctx, testkit.Parse(t, module(one)), compile.Shape{}, nil, compile.Options{}); err == nil || !strings.Contains(err.Error(), "no backend") {
		t.Errorf("without a backend: %v", err)
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := compile.Compile(stopped, testkit.Parse(t, module(one)), compile.Shape{}, hostbackend.New(), compile.Options{}); err == nil {
		t.Error("a cancelled context compiles")
	}
}

// TestDeterminism compiles the same modules in other orders, from several goroutines: the
// programs must have the same bytes, and the modules must not change.
func TestDeterminism(t *testing.T) {
	var mods []*ir.Module
	var texts []string
	for i := range 30 {
		m := irgen.Generate(rand.New(rand.NewSource(int64(i))), irgen.Options{MixRows: true})
		mods, texts = append(mods, m), append(texts, ir.Print(m))
	}
	encode := func(m *ir.Module) []byte {
		code, err := compileHost(t, m, compile.Shape{}, compile.Options{}).Encode()
		if err != nil {
			t.Error(err)
		}
		return code
	}
	var want [][]byte
	for _, m := range mods {
		want = append(want, encode(m))
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for _, i := range rand.New(rand.NewSource(int64(w))).Perm(len(mods)) {
				if !slices.Equal(encode(mods[i]), want[i]) {
					t.Errorf("module %d: other bytes", i)
				}
			}
		})
	}
	wg.Wait()
	for i, m := range mods {
		if ir.Print(m) != texts[i] {
			t.Errorf("module %d was changed", i)
		}
		again, err := ir.Parse("again", []byte(texts[i]))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(encode(again), want[i]) {
			t.Errorf("module %d: other bytes from its text", i)
		}
	}
}
