package dim

import (
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// expr is a formula that does not use Dim. The oracle evaluates it in big integers.
type expr struct {
	op   byte // 'k', 's', '+', '-', '*', '/'
	k    int64
	sym  string
	a, b *expr
}

var names = []string{"N", "M", "K"}

func drawExpr(t *rapid.T, depth int) *expr {
	ops := []byte{'k', 's', '+', '-', '*', '/', '/'}
	if depth == 0 {
		ops = ops[:2]
	}
	e := &expr{op: rapid.SampledFrom(ops).Draw(t, "op")}
	switch e.op {
	case 'k':
		e.k = rapid.Int64Range(-20, 20).Draw(t, "k")
	case 's':
		e.sym = rapid.SampledFrom(names).Draw(t, "sym")
	case '/':
		e.k = rapid.Int64Range(1, 12).Draw(t, "divisor")
		e.a = drawExpr(t, depth-1)
	default:
		e.a = drawExpr(t, depth-1)
		e.b = drawExpr(t, depth-1)
	}
	return e
}

func (e *expr) dim() Dim {
	switch e.op {
	case 'k':
		return Const(e.k)
	case 's':
		return Sym(e.sym)
	case '+':
		return e.a.dim().Add(e.b.dim())
	case '-':
		return e.a.dim().Sub(e.b.dim())
	case '*':
		return e.a.dim().Mul(e.b.dim())
	}
	return e.a.dim().FloorDiv(e.k)
}

func (e *expr) eval(env map[string]int64) *big.Int {
	z := new(big.Int)
	switch e.op {
	case 'k':
		return z.SetInt64(e.k)
	case 's':
		return z.SetInt64(env[e.sym])
	case '+':
		return z.Add(e.a.eval(env), e.b.eval(env))
	case '-':
		return z.Sub(e.a.eval(env), e.b.eval(env))
	case '*':
		return z.Mul(e.a.eval(env), e.b.eval(env))
	}
	// Euclidean division is floor division for a positive divisor.
	return z.Div(e.a.eval(env), big.NewInt(e.k))
}

// drawDim draws a Dim without an error.
func drawDim(t *rapid.T, label string) Dim {
	return rapid.Custom(func(t *rapid.T) Dim { return drawExpr(t, 4).dim() }).
		Filter(func(d Dim) bool { return d.Err() == nil }).Draw(t, label)
}

func drawEnv(t *rapid.T) map[string]int64 {
	env := map[string]int64{}
	for _, s := range names {
		env[s] = rapid.Int64Range(-50, 50).Draw(t, s)
	}
	return env
}

func lookup(env map[string]int64) func(string) (int64, bool) {
	return func(s string) (int64, bool) { v, ok := env[s]; return v, ok }
}

func TestEvalIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawExpr(t, 5)
		env := drawEnv(t)
		d := e.dim()
		got, err := d.Eval(lookup(env))
		if err != nil {
			// Only a number or an expression that is too large may end the evaluation.
			if !errors.Is(err, ErrOverflow) && !errors.Is(err, ErrTooLarge) {
				t.Fatalf("%s at %v: %v", d, env, err)
			}
			return
		}
		if want := e.eval(env); want.Cmp(big.NewInt(got)) != 0 {
			t.Fatalf("%s at %v is %d, want %s", d, env, got, want)
		}
	})
}

func TestRingLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := drawDim(t, "a"), drawDim(t, "b"), drawDim(t, "c")
		eq := func(law string, x, y Dim) {
			t.Helper()
			if x.Err() != nil || y.Err() != nil {
				return
			}
			if !x.Equal(y) || x.Compare(y) != 0 || x.String() != y.String() {
				t.Fatalf("%s: %s and %s", law, x, y)
			}
		}
		eq("a+b = b+a", a.Add(b), b.Add(a))
		eq("(a+b)+c = a+(b+c)", a.Add(b).Add(c), a.Add(b.Add(c)))
		eq("a*b = b*a", a.Mul(b), b.Mul(a))
		eq("(a*b)*c = a*(b*c)", a.Mul(b).Mul(c), a.Mul(b.Mul(c)))
		eq("a*(b+c) = a*b+a*c", a.Mul(b.Add(c)), a.Mul(b).Add(a.Mul(c)))
		eq("a-b+b = a", a.Sub(b).Add(b), a)
		eq("a-a = 0", a.Sub(a), Dim{})
		eq("a+0 = a", a.Add(Dim{}), a)
		eq("a*1 = a", a.Mul(Const(1)), a)
		k := rapid.Int64Range(1, 9).Draw(t, "k")
		j := rapid.Int64Range(1, 9).Draw(t, "j")
		eq("(k*a+b)/k = a+b/k", a.Mul(Const(k)).Add(b).FloorDiv(k), a.Add(b.FloorDiv(k)))
		eq("(k*a)/(k*j) = a/j", a.Mul(Const(k)).FloorDiv(k*j), a.FloorDiv(j))
		eq("-(-a) = a", Dim{}.Sub(Dim{}.Sub(a)), a)
	})
}

func TestRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDim(t, "d")
		back, err := Parse(d.String())
		if err != nil || !back.Equal(d) || back.String() != d.String() {
			t.Fatalf("Parse(%q) = %s, %v", d, back, err)
		}
	})
}

func TestCompareIsAnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ds := []Dim{drawDim(t, "a"), drawDim(t, "b"), drawDim(t, "c")}
		for _, a := range ds {
			for _, b := range ds {
				if a.Compare(b) != -b.Compare(a) || (a.Compare(b) == 0) != a.Equal(b) {
					t.Fatalf("%s and %s: %d and %d", a, b, a.Compare(b), b.Compare(a))
				}
				for _, c := range ds {
					if a.Compare(b) < 0 && b.Compare(c) < 0 && a.Compare(c) >= 0 {
						t.Fatalf("not transitive: %s, %s, %s", a, b, c)
					}
				}
			}
		}
	})
}

func TestBoundsAreSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDim(t, "d")
		env := drawEnv(t)
		within := map[string]Interval{}
		for _, s := range names {
			within[s] = Interval{
				env[s] - rapid.Int64Range(0, 30).Draw(t, "below"),
				env[s] + rapid.Int64Range(0, 30).Draw(t, "above"),
			}
		}
		b, ok := d.Bounds(func(s string) (Interval, bool) { v, ok := within[s]; return v, ok })
		v, err := d.Eval(lookup(env))
		if !ok || err != nil {
			return
		}
		if v < b.Lo || v > b.Hi {
			t.Fatalf("%s is %d at %v, outside %v", d, v, env, b)
		}
	})
}

func TestSubstCommutesWithEval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDim(t, "d")
		env := drawEnv(t)
		with := map[string]Dim{"N": drawDim(t, "for N"), "M": drawDim(t, "for M")}
		inner := map[string]int64{"K": env["K"]}
		for s, e := range with {
			v, err := e.Eval(lookup(env))
			if err != nil {
				return
			}
			inner[s] = v
		}
		want, err := d.Eval(lookup(inner))
		if err != nil {
			return
		}
		got, err := d.Subst(func(s string) (Dim, bool) { e, ok := with[s]; return e, ok }).Eval(lookup(env))
		if err != nil {
			if !errors.Is(err, ErrOverflow) && !errors.Is(err, ErrTooLarge) {
				t.Fatal(err)
			}
			return
		}
		if got != want {
			t.Fatalf("%s with %v at %v: %d, want %d", d, with, env, got, want)
		}
	})
}

func TestDivUndoesMul(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, r := drawDim(t, "a"), drawDim(t, "b"), drawDim(t, "r")
		p := a.Mul(b)
		if zero, ok := b.Const(); p.Err() == nil && !(ok && zero == 0) {
			// A quotient of more terms than the limit is refused; these are small.
			if q, ok := p.Div(b); !ok || !q.Equal(a) {
				t.Fatalf("(%s) / (%s) = %s, %v, want %s", p, b, q, ok, a)
			}
		}
		if q, ok := r.Div(b); ok && !q.Mul(b).Equal(r) {
			t.Fatalf("(%s) / (%s) = %s, which is wrong", r, b, q)
		}
	})
}

// TestSymbolsAreThoseOfTheText: Symbols is sorted and has exactly the symbols in the text of a Dim.
func TestSymbolsAreThoseOfTheText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDim(t, "d")
		syms := d.Symbols()
		if !slices.IsSorted(syms) || len(slices.Compact(slices.Clone(syms))) != len(syms) {
			t.Fatalf("%s: %v", d, syms)
		}
		for _, s := range names {
			if slices.Contains(syms, s) != strings.Contains(d.String(), s) {
				t.Fatalf("%s: %v", d, syms)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"N", "2*N + 1", "(N + 15) / 16", "-(N/4)*-3", "M*N*N - 9223372036854775808", "((N+M)/3+(N-M)/5)/7", "((", "1//2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := Parse(s)
		if err != nil {
			var pe *ParseError
			if !errors.As(err, &pe) || pe.Offset < 0 || pe.Offset > len(s) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if d.Err() != nil {
			t.Fatalf("%q parsed to an error", s)
		}
		back, err := Parse(d.String())
		if err != nil || !back.Equal(d) {
			t.Fatalf("%q prints as %q, which gives %s, %v", s, d, back, err)
		}
	})
}

func BenchmarkSym(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = Sym("N")
	}
}

func BenchmarkConstArithmetic(b *testing.B) {
	b.ReportAllocs()
	d := Const(12)
	for b.Loop() {
		_ = d.Mul(Const(64)).Add(Const(1)).FloorDiv(3)
	}
}

func BenchmarkMulConstDiv(b *testing.B) {
	b.ReportAllocs()
	d := Sym("N")
	for b.Loop() {
		if _, ok := d.Mul(Const(768)).Div(Const(64)); !ok {
			b.Fatal("does not divide")
		}
	}
}

func BenchmarkCeilDiv(b *testing.B) {
	b.ReportAllocs()
	d := Sym("N")
	for b.Loop() {
		_ = d.CeilDiv(16)
	}
}

func BenchmarkEval(b *testing.B) {
	b.ReportAllocs()
	d := Sym("N").Mul(Const(768)).Add(Sym("N").CeilDiv(16))
	env := func(string) (int64, bool) { return 12, true }
	for b.Loop() {
		if _, err := d.Eval(env); err != nil {
			b.Fatal(err)
		}
	}
}
