package ir_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir"
)

const hashed = `pwc 1
module "m" {
  weights from "a/"
  weights strict
  unread "t.*.u"
  unread "u" = "a"
  context 64
  eos [1, 2]
  sym N in [1, 64] batch
  sym B in [1, 16] load
  op "ns::w"(tensor, mut tensor) split
  op "ns::r"(tensor) -> (tensor) capture version "1"
  weight @w : f32[4] = concat("a", "b")
  weight @v : f32[4]
  state @s : f32[B, 4]

  func @f(%x: f32[N, 4], %m: mut f32[N, 4], %i: i32[N]) -> (f32[N, 4], f32[N, 4]) {
    %a = add(%x, @w)
    %b = mul(%x, @v)
    %c = mul(%a, 1.5)
    %d = add(%b, 1)
    %e = rms_norm(%c, @w, eps=1e-5) loc("here")
    call "ns::w"(%d, %m, scale=2.0, n=N)
    scatter(@s, %i, %e)
    %g = call "ns::r"(%e) : f32[N, 4]
    return %g, %m
  }
}
`

func mustParse(t testing.TB, text string) *ir.Module {
	t.Helper()
	m, err := ir.Parse("test.ir", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// edits has changes of the text above: pairs of an old and a new string.
var edits = []struct {
	name  string
	same  bool // the hash ignores it
	pairs []string
}{
	{"value names", true, []string{"%x", "%other", "%a", "%0", "%b", `%"1 2"`}},
	{"what a state starts from", false, []string{"f32[B, 4]\n", "f32[4, 4] = \"s\"\n"}},
	{"weight names", true, []string{"@w", "@z", "@v", "@a"}},
	{"state and function names", true, []string{"@s", `@"kv cache"`, "@f", "@forward"}},
	{"symbol names", true, []string{"sym N", "sym Z", "[N", "[Z", "=N", "=Z", "sym B", "sym A", "[B", "[A"}},
	{"tensor names", true, []string{`"a", "b"`, `"x", "y"`, `= concat`, ` = concat`}},
	{"an own name written out", true, []string{"weight @v : f32[4]", `weight @v : f32[4] = "v"`}},
	{"strict", true, []string{"  weights strict\n", ""}},
	{"unread", true, []string{`unread "t.*.u"`, `unread "t"`, `unread "u" = "a"`, `unread "u" = "b"`}},
	{"context and eos", true, []string{"context 64", "context 65", "eos [1, 2]", "eos [3]"}},
	{"module name and directory", true, []string{`"m" {`, `"n" {`, `"a/"`, `"b/"`}},
	{"locs and comments", true, []string{`loc("here")`, "// here\n", "%b = ", "// there\n%b = ", "%d = add(%b, 1)", `%d = add(%b, 1) loc("d")`}},
	{"order of a call's attributes", true, []string{"scale=2.0, n=N", "n=N, scale=2.0"}},
	{"a default written out", true, []string{"scatter(@s, %i, %e)", "scatter(@s, %i, %e, axis=0)"}},
	{"declarations without a use", true, []string{"  weight @w", "  sym U in [1, 2]\n op \"ns::u\"()\n weight @u : f32[2]\n state @t : f32[2]\n weight @w"}},
	{"order of declarations", true, []string{"  weight @v : f32[4]\n", "", "  weight @w", "  weight @v : f32[4]\n  weight @w"}},

	{"program order", false, []string{"    %a = add(%x, @w)\n    %b = mul(%x, @v)\n", "    %b = mul(%x, @v)\n    %a = add(%x, @w)\n"}},
	{"an operand", false, []string{"add(%x, @w)", "add(%m, @w)"}},
	{"the order of operands", false, []string{"add(%x, @w)", "add(@w, %x)"}},
	{"an op", false, []string{"add(%x, @w)", "sub(%x, @w)"}},
	{"a weight used twice", false, []string{"mul(%x, @v)", "mul(%x, @w)"}},
	{"a float's last bit", false, []string{"1.5)", "1.5000000000000002)"}},
	{"an integer for a float", false, []string{"add(%b, 1)", "add(%b, 1.0)"}},
	{"an attribute", false, []string{"eps=1e-5", "eps=1e-6"}},
	{"an attribute of a call", false, []string{"n=N", "n=N + 1"}},
	{"the name of a call's attribute", false, []string{"n=N", "m=N"}},
	{"the kind of a call's attribute", false, []string{"scale=2.0", "scale=2"}},
	{"a dtype", false, []string{"%i: i32", "%i: i64"}},
	{"an extent", false, []string{"f32[B, 4]", "f32[B + 1, 4]"}},
	{"a symbol's range", false, []string{"[1, 64]", "[1, 65]"}},
	{"a load symbol's range", false, []string{"[1, 16]", "[1, 15]"}},
	{"a symbol's kind", false, []string{"[1, 64] batch", "[1, 64]"}},
	{"mut", false, []string{"%x: f32", "%x: mut f32"}},
	{"a result that is another parameter", false, []string{"return %g, %m", "return %g, %x"}},
	{"a result twice", false, []string{"return %g, %m", "return %g, %g"}},
	{"the order of results", false, []string{"return %g, %m", "return %m, %g"}},
	{"the name of an extern op", false, []string{"ns::r", "ns::q"}},
	{"the version of an extern op", false, []string{`"1"`, `"2"`}},
	{"capture", false, []string{" capture", ""}},
	{"split", false, []string{" split", ""}},
	{"random", false, []string{" split", " split random"}},
	{"rowwise", false, []string{" split", " split rowwise"}},
	{"the value of padded rows", false, []string{"%i: i32[N]", "%i: i32[N] padded -1"}},
	{"host", false, []string{" split", " split host"}},
	{"which operands an extern op writes", false, []string{"(tensor, mut tensor)", "(mut tensor, mut tensor)", "call \"ns::w\"(%d", "%k = empty_like(%d) call \"ns::w\"(%k"}},
	{"a weight's structure", false, []string{`concat("a", "b")`, `concat("a", "b", "c")`}},
	{"an attribute of a weight's structure", false, []string{`concat("a", "b")`, `concat("a", "b", axis=1)`}},
	{"a weight for a state", false, []string{"add(%x, @w)", "add(%x, @q)", "  state @s", "  state @q : f32[4]\n  state @s"}},
	{"another function", false, []string{"    return %g, %m\n  }\n", "    return %g, %m\n  }\n  func @g() {\n  }\n"}},
}

// TestHashCountsAxes: an axis counted from the end has the hash of the same axis counted from
// the start, and the order of axes does not matter. Attributes of an extern op are hashed as
// they are written.
func TestHashCountsAxes(t *testing.T) {
	hash := func(node string) [32]byte {
		return mustParse(t, "pwc 1\nmodule \"m\" {\n op \"a::b\"(tensor) -> (tensor)\n func @f(%x: f32[2, 3, 4]) {\n  %y = "+node+"\n }\n}\n").Hash()
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"softmax(%x)", "softmax(%x, axis=2)", true},
		{"softmax(%x, axis=-2)", "softmax(%x, axis=1)", true},
		{"softmax(%x)", "softmax(%x, axis=1)", false},
		{"concat(%x, %x)", "concat(%x, %x, axis=-3)", true},
		{"concat(%x, %x)", "concat(%x, %x, axis=-1)", false},
		{"iota(shape=[2, 3], axis=-1, dtype=i32)", "iota(shape=[2, 3], axis=1, dtype=i32)", true},
		{"sum(%x, axes=[0, 2])", "sum(%x, axes=[-1, -3])", true},
		{"sum(%x, axes=[0, 2])", "sum(%x, axes=[0, 1])", false},
		{`call "a::b"(%x, axis=-1) : f32[4]`, `call "a::b"(%x, axis=2) : f32[4]`, false},
		{`call "a::b"(%x, axes=[0, 1]) : f32[4]`, `call "a::b"(%x, axes=[1, 0]) : f32[4]`, false},
		{`call "a::b"(%x, axis=2, n=1) : f32[4]`, `call "a::b"(%x, n=1, axis=2) : f32[4]`, true},
	} {
		if same := hash(c.a) == hash(c.b); same != c.same {
			t.Errorf("%s and %s: same hash: %v", c.a, c.b, same)
		}
	}
}

// TestHashTellsNamesFromSymbols: a bare name of a call that is equal to the canonical name of
// a symbol does not become the symbol.
func TestHashTellsNamesFromSymbols(t *testing.T) {
	canonical := func(n string) string {
		m := mustParse(t, "pwc 1\nmodule \"m\" {\n sym N in [1, 8]\n op \"a::b\"(tensor)\n func @f(%x: f32[N]) {\n  call \"a::b\"(%x, n="+n+")\n }\n}\n")
		text := ir.Canonical(m, nil)
		if again := ir.Canonical(mustParse(t, text), nil); again != text {
			t.Errorf("n=%s: the canonical text is not its own:\n%s", n, cmp.Diff(text, again))
		}
		return text
	}
	symbol, name, other := canonical("N"), canonical("s0"), canonical("s1")
	if symbol == name || name == other || symbol == other {
		t.Errorf("texts are equal:\n%s\n%s\n%s", symbol, name, other)
	}
}

func TestHash(t *testing.T) {
	base := mustParse(t, hashed)
	if want := sha256.Sum256([]byte(ir.Canonical(base, nil))); base.Hash() != want {
		t.Error("the hash is not that of the canonical text")
	}
	if want := sha256.Sum256([]byte(ir.Canonical(base, base.Funcs[0]))); ir.HashFunc(base, base.Funcs[0]) != want {
		t.Error("a function's hash is not that of its canonical text")
	}
	for _, e := range edits {
		text := hashed
		for i := 0; i < len(e.pairs); i += 2 {
			if !strings.Contains(text, e.pairs[i]) {
				t.Errorf("%s: nothing to replace by %q", e.name, e.pairs[i+1])
			}
			text = strings.ReplaceAll(text, e.pairs[i], e.pairs[i+1])
		}
		m, err := ir.Parse(e.name, []byte(text))
		if err != nil {
			t.Errorf("%s: %v", e.name, err)
			continue
		}
		if same := m.Hash() == base.Hash(); same != e.same {
			t.Errorf("%s: same hash: %v\n%s", e.name, same, cmp.Diff(ir.Canonical(base, nil), ir.Canonical(m, nil)))
		}
		if len(m.Funcs) == 1 && (ir.HashFunc(m, m.Funcs[0]) == ir.HashFunc(base, base.Funcs[0])) != e.same {
			t.Errorf("%s: the function's hash differs from the module's in this", e.name)
		}
	}
}

// TestHashIsPinned compares the canonical text with one written by hand: a change of it
// invalidates every cache.
func TestHashIsPinned(t *testing.T) {
	const want = `pwc 1
module "" {
  sym s0 in [1, 64] batch
  sym s1 in [1, 16] load
  op "ns::w"(tensor, mut tensor) split
  op "ns::r"(tensor) -> (tensor) capture version "1"
  weight @w0 : f32[4] = concat("t", "t")
  weight @w1 : f32[4] = "t"
  state @x0 : f32[s1, 4]

  func @f0(%0: f32[s0, 4], %1: mut f32[s0, 4], %2: i32[s0]) -> (f32[s0, 4], f32[s0, 4]) {
    %3 = add(%0, @w0) : f32[s0, 4]
    %4 = mul(%0, @w1) : f32[s0, 4]
    %5 = mul(%3, 1.5) : f32[s0, 4]
    %6 = add(%4, 1) : f32[s0, 4]
    %7 = rms_norm(%5, @w0, eps=1e-5) : f32[s0, 4]
    call "ns::w"(%6, %1, n=s0, scale=2.0)
    scatter(@x0, %2, %7)
    %8 = call "ns::r"(%7) : f32[s0, 4]
    return %8, %1
  }
}
`
	if diff := cmp.Diff(want, ir.Canonical(mustParse(t, hashed), nil)); diff != "" {
		t.Error(diff)
	}
}

// TestSymbolsThatMeet holds that symbols which first occur in one extent are
// told apart by their uses and not by their names.
func TestSymbolsThatMeet(t *testing.T) {
	for _, c := range []struct {
		name, a, b string
		same       bool
	}{
		{"by their part in it", "(%x: f32[A + 2*B]) { }", "(%x: f32[B + 2*A]) { }", true},
		{"the other way round", "(%x: f32[A + 2*B], %y: f32[A]) { }", "(%x: f32[B + 2*A], %y: f32[B]) { }", true},
		{"another extent later", "(%x: f32[A + 2*B], %y: f32[A]) { }", "(%x: f32[A + 2*B], %y: f32[B]) { }", false},
		{"by a later use", "(%x: f32[A*B], %y: f32[A]) { }", "(%x: f32[A*B], %y: f32[B]) { }", true},
		{"by two later uses", "(%x: f32[A*B], %y: f32[A], %z: f32[B]) { }", "(%x: f32[A*B], %y: f32[B], %z: f32[A]) { }", true},
		{"the same one twice", "(%x: f32[A*B], %y: f32[A], %z: f32[A]) { }", "(%x: f32[A*B], %y: f32[B], %z: f32[A]) { }", false},
		{"by what they meet later", "(%x: f32[A*B], %y: f32[C*D], %z: f32[A*C], %w: f32[B*D], %v: f32[A]) { }",
			"(%x: f32[C*D], %y: f32[A*B], %z: f32[D*A], %w: f32[C*B], %v: f32[D]) { }", true},
		{"alike, with partners", "(%x: f32[A*B], %y: f32[C*D], %z: f32[A*C], %w: f32[B*D]) { }",
			"(%x: f32[A*B], %y: f32[C*D], %z: f32[A*D], %w: f32[B*C]) { }", true},
		{"alike", "(%x: f32[A*B]) { }", "(%x: f32[C*D]) { }", true},
		{"in quotients", "(%x: f32[(A + B + 1) / 2], %y: f32[B / 3]) { }", "(%x: f32[(A + B + 1) / 2], %y: f32[A / 3]) { }", true},
		{"by their ranges", "(%x: f32[A*E]) { }", "(%x: f32[E*A]) { }", true},
		{"by which of their ranges", "(%x: f32[A*E], %y: f32[A]) { }", "(%x: f32[A*E], %y: f32[E]) { }", false},
	} {
		const head = `pwc 1 module "m" { sym A in [1, 9] sym B in [1, 9] sym C in [1, 9] sym D in [1, 9] sym E in [1, 8] func @f`
		a, b := mustParse(t, head+c.a+"}"), mustParse(t, head+c.b+"}")
		if same := a.Hash() == b.Hash(); same != c.same {
			t.Errorf("%s: same hash: %v\n%s\n%s", c.name, same, ir.Canonical(a, nil), ir.Canonical(b, nil))
		}
	}
}

// TestManySymbolsThatMeet holds that the canonical text of hundreds of symbols in one extent
// is found quickly (without maxWork it takes most of an hour) and has all symbols.
func TestManySymbolsThatMeet(t *testing.T) {
	var declared, sum strings.Builder
	for i := range 480 {
		fmt.Fprintf(&declared, " sym a%d in [1, 2]", i)
		fmt.Fprintf(&sum, " + a%d", i)
	}
	m := mustParse(t, `pwc 1 module "m" {`+declared.String()+" func @f(%x: f32["+sum.String()[3:]+"], %y: f32[a7]) { } }")
	text := ir.Canonical(m, nil)
	if again := ir.Canonical(mustParse(t, text), nil); strings.Count(again, "\n") != strings.Count(text, "\n") || !strings.Contains(text, "sym s479 ") {
		t.Errorf("the text is not one of the same module:\n%s", text)
	}
}

// TestSharedNumbering holds that a module's canonical text says which weights
// its functions share.
func TestSharedNumbering(t *testing.T) {
	text := func(w string) string {
		return `pwc 1 module "m" { weight @a : f32[2] weight @b : f32[2]
  func @f() -> (f32[2]) { return @a }
  func @g() -> (f32[2]) { return ` + w + ` } }`
	}
	a, b := mustParse(t, text("@a")), mustParse(t, text("@b"))
	if a.Hash() == b.Hash() {
		t.Error("the hash does not see which weights two functions share")
	}
	for _, f := range []string{"f", "g"} {
		if ir.HashFunc(a, a.Func(f)) != ir.HashFunc(b, b.Func("f")) {
			t.Errorf("@%s alone has another hash", f)
		}
	}
}

// TestIdsDoNotCount holds that neither text nor hash depend on the ids of
// values, which passes give in any order.
func TestIdsDoNotCount(t *testing.T) {
	m := chain()
	f := m.Funcs[0]
	text, hash := ir.Print(m), m.Hash()
	a, b := f.Nodes[0].Results[0], f.Nodes[4].Results[0]
	swap := func(vs []ir.Value) {
		for i, v := range vs {
			switch v {
			case a:
				vs[i] = b
			case b:
				vs[i] = a
			}
		}
	}
	for _, n := range f.Nodes {
		swap(n.Args)
		swap(n.Results)
	}
	f.Values[a], f.Values[b] = f.Values[b], f.Values[a]
	f.Values[a].Base, f.Values[b].Base = a, b
	if err := m.Verify(); err != nil {
		t.Fatal(err)
	}
	if ir.Print(m) != text || m.Hash() != hash {
		t.Errorf("other ids give another text:\n%s", cmp.Diff(text, ir.Print(m)))
	}
}
