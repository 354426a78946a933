package cuda_test

import (
	"fmt"
	"math"
	"math/rand"
	"regexp"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
)

// step is one step of a search. It counts the elements of x that reach low + by. If the count times
// share is at least want, low + by is low of the next step.
type step struct {
	x, one    string
	by, share float64
	dir       string // of the comparison with the elements
	want      string
	low       string // the value of the step before
	scan      bool   // counts by a running sum
}

// searchModule returns a module that searches a threshold in each row, in a number of steps, which
// edit may change. Its results are the threshold, the count of the last step, and for each name in
// also the sum of the threshold and that value.
func searchModule(t testing.TB, dt dtype.DType, cols, steps int, edit func(i int, s *step), also ...string) *ir.Module {
	t.Helper()
	var b strings.Builder
	row, all := fmt.Sprintf("%s[N, 1]", dt), fmt.Sprintf("%s[N, %d]", dt, cols)
	fmt.Fprintf(&b, "%%one = full(1.0, shape=[N, %d], dtype=%s) : %s\n", cols, dt, all)
	low, by := "%start", 16.0
	for i := range steps {
		s := step{x: "%x", one: "%one", by: by, share: 1, dir: "ge", want: "%want", low: low}
		if by /= 2; edit != nil {
			edit(i, &s)
		}
		fmt.Fprintf(&b, "%%t%d = add(%s, %s) : %s\n", i, low, decimal(s.by), row)
		fmt.Fprintf(&b, "%%c%d = compare(%s, %%t%d, dir=%s) : bool[N, %d]\n", i, s.x, i, s.dir, cols)
		fmt.Fprintf(&b, "%%q%d = where(%%c%d, %s, 0.0) : %s\n", i, i, s.one, all)
		if s.scan {
			fmt.Fprintf(&b, "%%r%d = cumsum(%%q%d, axis=1) : %s\n", i, i, all)
			fmt.Fprintf(&b, "%%n%d = max(%%r%d, axes=[1], keepdims=true) : %s\n", i, i, row)
		} else {
			fmt.Fprintf(&b, "%%n%d = sum(%%q%d, axes=[1], keepdims=true) : %s\n", i, i, row)
		}
		fmt.Fprintf(&b, "%%w%d = mul(%%n%d, %s) : %s\n", i, i, decimal(s.share), row)
		fmt.Fprintf(&b, "%%e%d = compare(%%w%d, %s, dir=ge) : bool[N, 1]\n", i, i, s.want)
		fmt.Fprintf(&b, "%%low%d = where(%%e%d, %%t%d, %s) : %s\n", i, i, i, s.low, row)
		low = fmt.Sprintf("%%low%d", i)
	}
	results := []string{low, fmt.Sprintf("%%n%d", steps-1)}
	for i, name := range also {
		fmt.Fprintf(&b, "%%sum%d = add(%s, %s) : %s\n", i, low, name, row)
		results = append(results, fmt.Sprintf("%%sum%d", i))
	}
	types := strings.TrimSuffix(strings.Repeat(row+", ", len(results)), ", ")
	text := fmt.Sprintf("pwc 1\nmodule \"search\" {\nsym N in [1, 64] batch\nweight @ones : %s[%d]\nfunc @piece(%%x: %s, %%y: %s, %%start: %s, %%want: %s, %%other: %s) -> (%s) {\n%sreturn %s\n}\n}\n",
		dt, cols, all, all, row, row, row, types, b.String(), strings.Join(results, ", "))
	m, err := ir.Parse("search.ir", []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return m
}

// decimal returns a number in the syntax of the IR.
func decimal(x float64) string {
	s := fmt.Sprint(x)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

var repeated = regexp.MustCompile(`// phases (\d+ to \d+)`)

// at returns a function that edits step i only.
func at(i int, edit func(s *step)) func(int, *step) {
	return func(n int, s *step) {
		if n == i {
			edit(s)
		}
	}
}

// TestRolling: three or more consecutive phases without running sums become a loop if each computes the
// same from the results of the previous one, and later phases read only results of the last one.
func TestRolling(t *testing.T) {
	const steps = 9 // the first phase differs from the others, so it is not part of the loop
	for name, c := range map[string]struct {
		steps int
		edit  func(i int, s *step)
		also  []string
		want  string
	}{
		"a search":                                    {steps, nil, nil, "1 to 8"},
		"equal steps":                                 {steps, func(_ int, s *step) { s.by = 1 }, nil, "1 to 8"},
		"two constants that differ":                   {steps, func(i int, s *step) { s.share = float64(2 + i) }, nil, "1 to 8"},
		"four steps":                                  {4, nil, nil, "1 to 3"},
		"three steps":                                 {3, nil, nil, ""},
		"one step with another comparison":            {steps, at(4, func(s *step) { s.dir = "gt" }), nil, "1 to 3, 5 to 8"},
		"a value from before the loop":                {steps, func(_ int, s *step) { s.want = "%other" }, nil, "1 to 8"},
		"one step with another value":                 {steps, at(3, func(s *step) { s.want = "%other" }), nil, "1 to 3, 5 to 8"},
		"one step with the value of two steps before": {steps, at(4, func(s *step) { s.low = "%low2" }), nil, "1 to 3, 5 to 8"},
		"one step with other elements":                {steps, at(4, func(s *step) { s.x = "%y" }), nil, "1 to 3, 5 to 8"},
		"the last threshold is read later":            {steps, nil, []string{"%t8"}, "1 to 8"},
		"a threshold in between is read later":        {steps, nil, []string{"%t4"}, "1 to 4, 5 to 8"},
		"a count in between is read later":            {steps, nil, []string{"%n5"}, "1 to 5, 6 to 8"},
		"the first threshold is read later":           {steps, nil, []string{"%t0"}, "1 to 8"},
		"running sums":                                {steps, func(_ int, s *step) { s.scan = true }, nil, ""},
	} {
		for _, cols := range []int{6, 200, 3000, 40000} {
			if got := loopsOf(t, searchModule(t, dtype.F32, cols, c.steps, c.edit, c.also...)); got != c.want {
				t.Errorf("%s, %d columns: %q, want %q", name, cols, got, c.want)
			}
		}
	}
}

// loopsOf returns the ranges of phases of a module's kernels that are loops.
func loopsOf(t *testing.T, m *ir.Module) string {
	t.Helper()
	r := newRecorder(t, "cuda:sm_90")
	if err := r.record(m, compile.Shape{}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, text := range r.order {
		for _, m := range repeated.FindAllStringSubmatch(text, -1) {
			got = append(got, m[1])
		}
	}
	return strings.Join(got, ", ")
}

// TestRollingKeepsCache: a phase that fills the register cache is not part of a loop, because each iteration
// would load the elements again. Prefetched vectors are in registers before all phases and do not matter.
func TestRollingKeepsCache(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(i int, s *step)
		want string
	}{
		"elements that the fifth reads first": {func(i int, s *step) {
			if i >= 4 {
				s.x = "%y"
			}
		}, "1 to 3, 5 to 8"},
		"weights": {func(_ int, s *step) { s.one = "@ones" }, "1 to 8"},
	} {
		if got := loopsOf(t, searchModule(t, dtype.F32, 2048, 9, c.edit)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestDeviceRolling runs searches in which a thread, a warp, a block or a cluster computes a row.
func TestDeviceRolling(t *testing.T) {
	g := openDevice(t)
	const rows = 5
	for _, c := range []struct {
		dt    dtype.DType
		cols  int
		steps int
		edit  func(i int, s *step)
		also  []string
	}{
		{dtype.F32, 6, 8, nil, nil},
		{dtype.F32, 200, 8, nil, []string{"%t7"}},
		{dtype.BF16, 200, 8, nil, []string{"%t3"}},
		{dtype.F32, 3000, 9, func(i int, s *step) { s.share = float64(2 + i%3) }, []string{"%n4"}},
		{dtype.F32, 3001, 8, func(i int, s *step) { s.by = 1 }, nil},
		{dtype.F32, 40000, 8, nil, []string{"%low3", "%t7"}},
		{dtype.F32, 40000, 9, at(4, func(s *step) { s.want = "%other" }), nil},
	} {
		m := searchModule(t, c.dt, c.cols, c.steps, c.edit, c.also...)
		b, err := oracle.Draw(rand.New(rand.NewSource(int64(c.cols))), m, map[string]int64{"N": rows}, func(r *rand.Rand, _ dtype.DType) float64 {
			return math.Floor(r.NormFloat64()*512) / 64
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			b.Params[2].Set(i, -16)
			b.Params[3].Set(i, float64(1+i*i))
			b.Params[4].Set(i, 3)
		}
		if err := g.check(m, compile.Shape{}, b, tolerance); err != nil {
			t.Errorf("%s, %d columns: %.600s", c.dt, c.cols, err)
		}
	}
}
