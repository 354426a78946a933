package dim

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

var (
	n, m, k = Sym("N"), Sym("M"), Sym("K")
)

func c(v int64) Dim { return Const(v) }

func TestNormalForm(t *testing.T) {
	for _, x := range []struct {
		d    Dim
		want string
	}{
		{Dim{}, "0"},
		{c(-7), "-7"},
		{n, "N"},
		{n.Add(n).Add(c(1)), "2*N + 1"},
		{n.Sub(n), "0"},
		{c(0).Sub(n), "-N"},
		{n.Sub(m), "-M + N"},
		{n.Add(m).Mul(n.Sub(m)), "-M*M + N*N"},
		{n.Mul(m).Mul(n), "M*N*N"},
		{n.Add(c(1)).Mul(n.Sub(c(1))), "N*N - 1"},
		{n.Mul(c(0)), "0"},
		{c(2).Mul(n).Mul(c(3)).Sub(c(4)), "6*N - 4"},
		{n.Add(m).Add(n.Mul(m)), "M*N + M + N"},
		{c(0).Sub(n).Add(c(math.MinInt64)), "-N + -9223372036854775808"},
		{n.Sub(c(math.MaxInt64)).Sub(c(1)), "N + -9223372036854775808"},
		// Floor division.
		{n.Add(c(15)).FloorDiv(16), "(N + 15) / 16"},
		{n.CeilDiv(16), "(N + 15) / 16"},
		{n.FloorDiv(1), "N"},
		{n.FloorDiv(4), "N / 4"},
		{c(7).FloorDiv(2), "3"},
		{c(-7).FloorDiv(2), "-4"},
		{c(-8).FloorDiv(2), "-4"},
		{c(6).Mul(n).FloorDiv(3), "2*N"},
		{c(6).Mul(n).Add(m).Add(c(7)).FloorDiv(3), "2*N + (M + 1) / 3 + 2"},
		{c(3).Mul(n).FloorDiv(2), "N + N / 2"},
		{n.Sub(c(1)).FloorDiv(16), "(N + 15) / 16 - 1"},
		{c(0).Sub(n).FloorDiv(2), "-N + N / 2"},
		{c(4).Mul(n).Add(c(3)).FloorDiv(8), "N / 2"},
		{c(6).Mul(n).Add(c(5)).FloorDiv(9), "(2*N + 1) / 3"},
		{n.FloorDiv(4).FloorDiv(2), "N / 8"},
		{n.FloorDiv(4).Add(c(1)).FloorDiv(2), "(N + 4) / 8"},
		{n.FloorDiv(4).Add(m).FloorDiv(2), "(4*M + N) / 8"},
		{n.FloorDiv(4).Add(m.FloorDiv(3)).FloorDiv(2), "(M / 3 + N / 4) / 2"},
		{n.FloorDiv(4).Mul(c(-1)), "-(N / 4)"},
		{m.Sub(n.FloorDiv(4)), "M - N / 4"},
		{n.FloorDiv(4).Mul(c(4)), "4*(N / 4)"},
		{n.FloorDiv(4).Mul(m), "M*(N / 4)"},
		{n.Mul(m).FloorDiv(4), "(M*N) / 4"},
		{n.Add(c(16)).FloorDiv(16).Add(n), "N + N / 16 + 1"},
	} {
		if err := x.d.Err(); err != nil {
			t.Errorf("%s: %v", x.want, err)
		} else if got := x.d.String(); got != x.want {
			t.Errorf("got %s, want %s", got, x.want)
		}
	}
}

func TestConstAndSymbols(t *testing.T) {
	if v, ok := n.Sub(n).Add(c(5)).Const(); !ok || v != 5 {
		t.Errorf("N - N + 5 is %d, %v", v, ok)
	}
	if _, ok := n.Const(); ok {
		t.Error("N is a constant")
	}
	if got := n.Add(c(1)).FloorDiv(4).Mul(m).Add(k).Sub(n).Symbols(); !slices.Equal(got, []string{"K", "M", "N"}) {
		t.Errorf("symbols %v", got)
	}
	if got := c(3).Symbols(); len(got) != 0 {
		t.Errorf("symbols of 3: %v", got)
	}
}

func TestErrorsStick(t *testing.T) {
	big := c(math.MaxInt64)
	deep := n
	for range maxDepth + 1 { // two quotients in each numerator keep the levels apart
		deep = deep.FloorDiv(2).Add(m.FloorDiv(3)).FloorDiv(2)
	}
	nested := n
	for range maxDepth {
		nested = nested.FloorDiv(3).Mul(c(2)) // 2·(x / 3) stays apart under / 3
	}
	if nested.Err() != nil {
		t.Fatal(nested.Err())
	}
	var full Dim // of size maxSize - 2
	for range (maxSize - 2) / 2 {
		full = full.Add(Sym("f" + strings.Repeat("f", full.size()/2%200) + string(rune('a'+full.size()/400))))
	}
	if full.Err() != nil || full.size() != maxSize-2 {
		t.Fatal(full.size(), full.Err())
	}
	wide := Dim{}
	for i := range maxSize {
		wide = wide.Add(Sym("s" + strings.Repeat("x", i%200) + string(rune('a'+i/200))))
	}
	for name, x := range map[string]struct {
		d    Dim
		want error
	}{
		"add":          {big.Add(c(1)), ErrOverflow},
		"sub":          {c(math.MinInt64).Sub(c(1)), ErrOverflow},
		"mul":          {c(1 << 32).Mul(c(1 << 31)), ErrOverflow},
		"min times -1": {c(math.MinInt64).Mul(c(-1)), ErrOverflow},
		"coefficient":  {n.Mul(big).Add(n), ErrOverflow},
		"negation":     {c(0).Sub(n.Mul(c(math.MinInt64))), ErrOverflow},
		"product":      {n.Mul(big).Mul(m.Mul(c(2))), ErrOverflow},
		"cross":        {n.Mul(big).Mul(m.Add(c(2))), ErrOverflow},
		"divide by 0":  {n.FloorDiv(0), ErrDivisor},
		"negative":     {n.FloorDiv(-4), ErrDivisor},
		"ceil":         {n.CeilDiv(0), ErrDivisor},
		"ceil add":     {n.Add(big).CeilDiv(2), ErrOverflow},
		"empty name":   {Sym(""), ErrName},
		"odd name":     {Sym("a b"), ErrName},
		"digit":        {Sym("0a"), ErrName},
		"long name":    {Sym(strings.Repeat("a", maxName+1)), ErrName},
		"deep":         {deep, ErrTooLarge},
		"nested":       {nested.FloorDiv(3), ErrTooLarge},
		"wide":         {wide, ErrTooLarge},
		"wide / 2":     {full.FloorDiv(2), ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			for op, e := range map[string]Dim{
				"itself": x.d, "d+1": x.d.Add(c(1)), "1+d": c(1).Add(x.d), "N-d": n.Sub(x.d), "d*0": x.d.Mul(c(0)),
				"0*d": c(0).Mul(x.d), "d/2": x.d.FloorDiv(2), "ceil": x.d.CeilDiv(2),
				"subst": n.Subst(func(string) (Dim, bool) { return x.d, true }),
				"of":    x.d.Subst(func(string) (Dim, bool) { return c(1), true }),
			} {
				if !errors.Is(e.Err(), x.want) {
					t.Errorf("%s has error %v, want %v", op, e.Err(), x.want)
				}
			}
			if x.d.Equal(x.d) {
				t.Error("equals itself")
			}
			if _, ok := x.d.Const(); ok {
				t.Error("is a constant")
			}
			if _, err := x.d.Eval(nil); !errors.Is(err, x.want) {
				t.Errorf("Eval: %v", err)
			}
			if _, ok := x.d.Bounds(nil); ok {
				t.Error("has bounds")
			}
			if _, ok := x.d.Div(c(1)); ok {
				t.Error("divides")
			}
			if _, ok := c(1).Div(x.d); ok {
				t.Error("is a divisor")
			}
			if _, err := Parse(x.d.String()); err == nil {
				t.Error("its text parses")
			}
			if x.d.Compare(n) != 1 || n.Compare(x.d) != -1 || x.d.Compare(x.d) != 0 {
				t.Error("does not sort last")
			}
		})
	}
}

// TestSizeLimitHolds squares a sum twenty times. The size limit must refuse the result;
// without it, the test would run out of memory.
func TestSizeLimitHolds(t *testing.T) {
	d := n.Add(m).Add(k).Add(c(1))
	for range 20 {
		d = d.Mul(d)
	}
	if !errors.Is(d.Err(), ErrTooLarge) {
		t.Errorf("error %v", d.Err())
	}
	d = n
	for range 20 {
		d = d.Mul(d)
	}
	if !errors.Is(d.Err(), ErrTooLarge) {
		t.Errorf("N^(2^20): error %v", d.Err())
	}
}

func TestDiv(t *testing.T) {
	for _, x := range []struct{ d, e, want string }{
		{"N*12*64", "12*64", "N"},
		{"N*M + N", "N", "M + 1"},
		{"N*N - M*M", "N - M", "M + N"},
		{"N*N*N - 1", "N - 1", "N*N + N + 1"},
		{"(N / 4)*6", "2*(N / 4)", "3"},
		{"0", "N", "0"},
		{"0", "5", "0"},
		{"12", "-4", "-3"},
		{"(N + 1)*(M + 2)*(K + 3)", "(K + 3)*(N + 1)", "M + 2"},
		{"2*N", "4", ""},
		{"N", "M", ""},
		{"N + 1", "N", ""},
		{"N*N + 1", "N + 1", ""},
		{"1", "N", ""},
		{"N", "0", ""},
		{"0", "0", ""},
		{"-9223372036854775808*N", "-1", ""},
		{"-9223372036854775808*N", "-2", "4611686018427387904*N"},
	} {
		d, e := parse(t, x.d), parse(t, x.e)
		q, ok := d.Div(e)
		if ok != (x.want != "") || ok && q.String() != x.want {
			t.Errorf("(%s) / (%s) = %s, %v; want %s", x.d, x.e, q, ok, x.want)
		}
	}
	// N^40 - 1 over N - 1 has 40 terms; the 45 of N^45 - 1 are over the size limit.
	power := n
	for i := 2; i <= 45; i++ {
		power = power.Mul(n)
		q, ok := power.Sub(c(1)).Div(n.Sub(c(1)))
		if i == 40 && (!ok || len(q.Symbols()) != 1 || !q.Mul(n.Sub(c(1))).Equal(power.Sub(c(1)))) {
			t.Errorf("N^40 - 1: %s, %v", q, ok)
		}
		if i == 45 && ok {
			t.Errorf("N^45 - 1: %s", q)
		}
	}
}

func parse(t testing.TB, s string) Dim {
	t.Helper()
	d, err := Parse(s)
	if err != nil {
		t.Fatalf("Parse(%q): %v", s, err)
	}
	return d
}

func TestEvalErrors(t *testing.T) {
	env := func(s string) (int64, bool) {
		switch s {
		case "N":
			return math.MaxInt64, true
		case "M":
			return 3, true
		}
		return 0, false
	}
	for _, s := range []string{"N + 1", "N*M", "N + M", "(N*2 + M) / 7"} {
		if v, err := parse(t, s).Eval(env); !errors.Is(err, ErrOverflow) {
			t.Errorf("%s = %d, %v", s, v, err)
		}
	}
	var unbound *UnboundError
	if _, err := parse(t, "M + (K + 1) / 3").Eval(env); !errors.As(err, &unbound) || unbound.Symbol != "K" {
		t.Errorf("unknown symbol: %v", err)
	}
	if v, err := parse(t, "(M - 10) / 4 + 2*M*M").Eval(env); err != nil || v != 16 {
		t.Errorf("got %d, %v, want 16", v, err)
	}
}

func TestBounds(t *testing.T) {
	env := func(s string) (Interval, bool) {
		switch s {
		case "N":
			return Interval{1, 8192}, true
		case "M", "Z": // before and after N in a product
			return Interval{-3, 5}, true
		case "E":
			return Interval{2, 1}, true
		case "H":
			return Interval{0, math.MaxInt64}, true
		}
		return Interval{}, false
	}
	for _, x := range []struct {
		d      string
		lo, hi int64
		ok     bool
	}{
		{"7", 7, 7, true},
		{"2*N + 1", 3, 16385, true},
		{"-N", -8192, -1, true},
		{"(N + 15) / 16", 1, 512, true},
		{"N*M", -24576, 40960, true},
		{"N*Z", -24576, 40960, true},
		{"M*Z", -15, 25, true},
		{"M / 2", -2, 2, true},
		{"H", 0, math.MaxInt64, true},
		{"H + 1", 0, 0, false},
		{"2*H", 0, 0, false},
		{"K", 0, 0, false},
		{"N + K / 2", 0, 0, false},
		{"E", 0, 0, false},
	} {
		got, ok := parse(t, x.d).Bounds(env)
		if ok != x.ok || ok && got != (Interval{x.lo, x.hi}) {
			t.Errorf("bounds of %s: %v, %v; want [%d, %d], %v", x.d, got, ok, x.lo, x.hi, x.ok)
		}
	}
}

func TestSubstIsSimultaneous(t *testing.T) {
	swap := func(s string) (Dim, bool) {
		switch s {
		case "N":
			return m, true
		case "M":
			return n, true
		}
		return Dim{}, false
	}
	if got := parse(t, "2*N + M + K + N / 3").Subst(swap); got.String() != "K + 2*M + N + M / 3" {
		t.Errorf("got %s", got)
	}
}

func TestParse(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{" N ", "N"}, {"N+N", "2*N"}, {"2*N/3", "(2*N) / 3"}, {"-N/2", "-N + N / 2"}, {"0 - N/2", "-(N / 2)"},
		{"-7/2", "-4"}, {"1 - 7/2", "-2"}, {"7/2*2", "6"}, {"--N", "N"}, {"2*-N", "-2*N"}, {"N - -1", "N + 1"},
		{"(N + 15) / 16 * 16", "16*((N + 15) / 16)"}, {"\t( ( N ) )", "N"}, {"a.b_1*_x", "_x*a.b_1"},
		{"-9223372036854775808", "-9223372036854775808"}, {"007", "7"},
	} {
		if got := parse(t, x.text); got.String() != x.want {
			t.Errorf("Parse(%q) = %s, want %s", x.text, got, x.want)
		}
	}
	for _, x := range []struct {
		text   string
		offset int
		msg    string
	}{
		{"", 0, "an operand is missing at the end"},
		{"N +", 3, "an operand is missing at the end"},
		{"N M", 2, `unexpected 'M'`},
		{"N / M", 4, "the divisor of / must be a positive integer"},
		{"N / -2", 4, "the divisor of / must be a positive integer"},
		{"N / 0", 2, "dim: divisor is not positive: N / 0"},
		{"(N", 2, "missing ) for the ( at offset 0"},
		{"N)", 1, `unexpected ')'`},
		{"N % 2", 2, `unexpected '%'`},
		{"2N", 1, `unexpected 'N'`},
		{"N\x00", 1, `unexpected '\x00'`},
		{"\x00", 0, `unexpected '\x00'`},
		{"9223372036854775808", 0, "the integer overflows int64"},
		{"N / 9223372036854775808", 4, "the integer overflows int64"},
		{"4611686018427387904*N*2", 21, "dim: overflows int64: multiplying 4611686018427387904*N and 2"},
		{strings.Repeat("(", 1000) + "N", maxNesting + 1, "nested too deep"},
		{strings.Repeat("-", 1000) + "N", maxNesting + 1, "nested too deep"},
		{strings.Repeat("a", 256), 0, "dim: not a symbol name: " + `"` + strings.Repeat("a", 256) + `"`},
	} {
		_, err := Parse(x.text)
		var pe *ParseError
		if !errors.As(err, &pe) {
			t.Errorf("Parse(%.20q): %v", x.text, err)
		} else if pe.Offset != x.offset || pe.Msg != x.msg {
			t.Errorf("Parse(%.20q): offset %d: %s; want %d: %s", x.text, pe.Offset, pe.Msg, x.offset, x.msg)
		}
	}
}

// TestParseWork checks that Parse refuses a text whose products are within the size limit,
// but need more work in sum than maxWork.
func TestParseWork(t *testing.T) {
	wide := "(N+M+K+L+P+Q+R+S+1)"
	text := wide + "*" + wide + "*" + wide
	text = strings.Repeat(text+"-"+text+"+", 20000) + "1"
	if _, err := Parse(text); !errors.Is(err, ErrTooLarge) {
		t.Errorf("error %v", err)
	}
}

func TestAllocations(t *testing.T) {
	env := func(string) (int64, bool) { return 12, true }
	d := n.Mul(c(768)).Add(n.CeilDiv(16))
	for name, x := range map[string]struct {
		want float64
		f    func()
	}{
		"constants": {0, func() {
			if v, _ := c(3).Add(c(4)).Mul(c(5)).FloorDiv(2).Const(); v != 17 {
				t.Error(v)
			}
		}},
		"symbol":     {1, func() { _ = Sym("N") }},
		"N + 1":      {0, func() { _ = n.Add(c(1)) }},
		"evaluation": {0, func() { _, _ = d.Eval(env) }},
		"equality":   {0, func() { _ = d.Equal(n) }},
	} {
		if got := testing.AllocsPerRun(100, x.f); got > x.want {
			t.Errorf("%s: %v allocations, want %v", name, got, x.want)
		}
	}
}
