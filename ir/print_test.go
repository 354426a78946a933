package ir_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// TestEveryOpHasATypeByHand holds that testdata/modules/ops.ir leaves no op of
// the table out, and writes the types of all results. It also checks facts of the table.
func TestEveryOpHasATypeByHand(t *testing.T) {
	text := string(modules(t)["testdata/modules/ops.ir"])
	m := mustParse(t, text)
	used := map[string]bool{}
	for _, f := range m.Funcs {
		for _, n := range f.Nodes {
			used[n.Op.Name] = true
			line := strings.Split(text, "\n")[n.Pos.Line-1]
			if len(n.Results) > 0 && !strings.Contains(line, " : ") {
				t.Errorf("no type by hand: %s", line)
			}
		}
	}
	for _, op := range ir.Ops() {
		if !used[op.Name] {
			t.Errorf("%s is missing", op.Name)
		}
		if ir.LookupOp(op.Name) != op {
			t.Errorf("%s is not found by its name", op.Name)
		}
		if op.Doc == "" || op.Class != ir.Call && op.Results == 0 && op.Effects&ir.Write == 0 {
			t.Errorf("%s has no doc, or neither result nor effect", op.Name)
		}
		for i, o := range op.Operands {
			if last := i == len(op.Operands)-1; !last && (o.Optional || o.Variadic) {
				t.Errorf("%s: operand %s is optional or variadic and not the last", op.Name, o.Name)
			}
			if want := op.Effects&ir.Write != 0 && i == 0; o.Mut != want {
				t.Errorf("%s: Mut of operand %s is %v, want %v: an op with Write writes its first operand only", op.Name, o.Name, o.Mut, want)
			}
		}
	}
	if ir.LookupOp("nope") != nil || ir.OpCall.String() != "call" {
		t.Error("LookupOp finds an op nope, or OpCall has another name")
	}
}

// TestNames holds that values with equal names are told apart, and that names
// which look like numbers or like the suffixes stay as they are.
func TestNames(t *testing.T) {
	b := ir.NewBuilder("m")
	fb := b.Func("f")
	x := fb.Param("x", f32(2))
	names := []string{"x", "x_1", "x", "", "1", "a b", "a b", "", "x"}
	for _, name := range names {
		x = fb.Op1("neg", []ir.Value{x})
		fb.SetName(x, name)
	}
	fb.SetName(ir.NoValue, "nothing")
	fb.Return(x)
	m, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	p := ir.NewFuncPrinter(m, m.Funcs[0])
	want := []string{"%x", "%x_2", "%x_1", "%x_3", "%0", `%"1"`, `%"a b"`, `%"a b_1"`, "%1", "%x_4"}
	for i, w := range want {
		v := m.Funcs[0].Params[0]
		if i > 0 {
			v = m.Funcs[0].Nodes[i-1].Results[0]
		}
		if got := p.Value(v); got != w {
			t.Errorf("value %d is %s, want %s", i, got, w)
		}
	}
	roundTrip(t, "names", []byte(ir.Print(m)))
}

func TestNodeString(t *testing.T) {
	m := mustParse(t, hashed)
	f := m.Func("f")
	for i, want := range map[int]string{
		0: "%a = add(%x, @w) : f32[N, 4]",
		2: "%c = mul(%a, 1.5) : f32[N, 4]",
		4: `%e = rms_norm(%c, @w, eps=1e-5) : f32[N, 4] loc("here")`,
		5: `call "ns::w"(%d, %m, scale=2.0, n=N)`,
		6: "scatter(@s, %i, %e)",
	} {
		if got := m.NodeString(f, i); got != want {
			t.Errorf("node %d is %s, want %s", i, got, want)
		}
	}
	if got := ir.NewFuncPrinter(m, f).Value(f.Returns[1]); got != "%m" {
		t.Errorf("a version is %s, want its base's name %%m", got)
	}
	f.Nodes[0].Args[0] = 1000 // an operand that does not exist, which the verifier refuses
	if got := m.NodeString(f, 0); got != "%a = add(%?, @w) : f32[N, 4]" {
		t.Error(got)
	}
}

func TestPrintFunc(t *testing.T) {
	m := mustParse(t, `pwc 1 module "m" { func @f(%x: f32[2]) -> (f32[2]) { %0 = neg(%x) return %0 } }`)
	const want = "func @f(%x: f32[2]) -> (f32[2]) {\n  %0 = neg(%x) : f32[2]\n  return %0\n}\n"
	if got := ir.PrintFunc(m, m.Funcs[0]); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestPrintFuncOfBadFunctions prints functions that the verifier refuses: one with several wrong entries in its
// tables, and functions with one to three random changes.
func TestPrintFuncOfBadFunctions(t *testing.T) {
	text := `pwc 1 module "m" { func @f(%x: mut f32[2]) -> (f32[2]) { %0 = neg(%x) copy(%x, %0) return %x } }`
	m := mustParse(t, text)
	f := m.Funcs[0]
	f.Params = append(f.Params, 99)
	f.Values[f.Nodes[1].Versions[0].Value].Base = f.Nodes[1].Versions[0].Value // a version of itself
	f.Values = append(f.Values, ir.ValueInfo{Kind: ir.ResultValue, Name: "lost"})
	f.Nodes[0].Args[0] = ir.Value(len(f.Values) - 1)
	f.Nodes = append(f.Nodes, nil, &ir.Node{Args: []ir.Value{-5}, Results: []ir.Value{1000, ir.NoValue}})
	const want = "func @f(%x: mut f32[2], %?: ?) -> (f32[2]) {\n  %0 = neg(%?) : f32[2]\n  copy(%x, %0)\n  ?\n  %?, %? = ?(%?) : ?, ?\n  return %?\n}\n"
	if got := ir.PrintFunc(m, f); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		m := mustParse(t, text)
		f := m.Funcs[0]
		n, bad := f.Nodes[rng.IntN(2)], ir.Value(rng.IntN(9)-2)
		info := &f.Values[rng.IntN(len(f.Values))]
		changes := []func(){
			func() { f.Params[0] = bad }, func() { f.Returns[0] = bad }, func() { n.Args[0] = bad }, func() { n.Results = []ir.Value{bad} },
			func() { info.Base = bad }, func() { info.Kind = ir.ValueKind(rng.IntN(9)) }, func() { info.Type = ir.Type{DType: 200} },
			func() { f.Values = f.Values[:rng.IntN(len(f.Values)+1)] }, func() { f.Nodes[rng.IntN(2)] = nil }, func() { n.Op = nil },
			func() { n.Attrs = []ir.Attr{{Kind: 77}} }, func() { f.ResultTypes = append(f.ResultTypes, ir.Type{}) },
		}
		for range 1 + rng.IntN(3) {
			changes[rng.IntN(len(changes))]()
		}
		if got := ir.PrintFunc(m, f); !strings.HasPrefix(got, "func @f(") || !strings.HasSuffix(got, "}\n") {
			t.Fatalf("got\n%s", got)
		}
	}
}

func TestFormatRefuses(t *testing.T) {
	if _, err := ir.Format("x", []byte("pwc 1 module")); err == nil {
		t.Error("Format takes a text that does not parse")
	}
}

func TestTypes(t *testing.T) {
	n := dim.Sym("N")
	a := ir.TypeOf(dtype.F32, n, dim.Const(4))
	for _, c := range []struct {
		t        ir.Type
		text     string
		elements string
		equal    bool
		unknown  bool
	}{
		{a, "f32[N, 4]", "4*N", true, false},
		{ir.TypeOf(dtype.F32, n.Add(n).Sub(n), dim.Const(4)), "f32[N, 4]", "4*N", true, false},
		{ir.TypeOf(dtype.F16, n, dim.Const(4)), "f16[N, 4]", "4*N", false, false},
		{ir.TypeOf(dtype.F32, n), "f32[N]", "N", false, false},
		{ir.TypeOf(dtype.F32), "f32[]", "1", false, false},
		{ir.TypeOf(dtype.F32, ir.UnknownDim(), dim.Const(4)), "f32[?, 4]", "4*_", false, true},
	} {
		if c.t.String() != c.text || c.t.Elements().String() != c.elements || c.t.Equal(a) != c.equal || c.t.HasUnknown() != c.unknown {
			t.Errorf("%s: elements %s, equal %v, unknown %v", c.t, c.t.Elements(), c.t.Equal(a), c.t.HasUnknown())
		}
	}
	if a.Rank() != 2 {
		t.Errorf("the rank of %s is %d", a, a.Rank())
	}
}

// TestEffects checks Effects, Writable and IsEmpty of nodes, and look-ups by name.
func TestEffects(t *testing.T) {
	m := mustParse(t, `pwc 1
module "m" {
  op "a::w"(mut tensor) random
  op "a::h"() host
  func @f(%x: mut f32[2], %x2: f32[2]) {
    call "a::w"(%x)
    call "a::h"()
    copy(%x, %x2)
    %y = reshape(%x, shape=[2])
    %z = neg(%y)
    %e = empty(shape=[2], dtype=f32)
    %l = empty_like(%e)
    %u = full(0.0, shape=[2], dtype=f32)
  }
}`)
	f := m.Funcs[0]
	for i, want := range []struct {
		name            string
		effects         ir.Effects
		writable, empty bool
	}{
		{"a::w", ir.Write | ir.Random, true, false}, {"a::h", ir.Host, true, false}, {"copy", ir.Write, false, false},
		{"reshape", ir.Alias, false, false}, {"neg", 0, false, false},
		{"empty", 0, true, true}, {"empty_like", 0, true, true}, {"full", 0, true, false},
	} {
		n := f.Nodes[i]
		if n.Name() != want.name || n.Effects() != want.effects || n.Writable() != want.writable || n.IsEmpty() != want.empty {
			t.Errorf("node %d: %s, effects %d, writable %v, empty %v", i, n.Name(), n.Effects(), n.Writable(), n.IsEmpty())
		}
	}
	if m.Extern("a::w") == nil || m.Extern("a::x") != nil || m.Func("g") != nil || m.Symbol("N") != nil {
		t.Error("a look-up finds no declared extern op, or a name that is not declared")
	}
	if _, ok := m.Bounds("N"); ok {
		t.Error("an undeclared symbol has bounds")
	}
}
