package compile_test

import (
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"testing"

	"pwc/compile"
	"pwc/internal/irgen"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dim"
)

// modules is how many random modules tests try: PWC_RANDOM_MODULES, or few if it is not set.
func modules(t testing.TB, few int) int {
	s := os.Getenv("PWC_RANDOM_MODULES")
	if s == "" {
		return few
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// seed is the first seed: PWC_RANDOM_SEED, or 0.
func seed(t testing.TB) int {
	s := os.Getenv("PWC_RANDOM_SEED")
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// randomShape draws a size and a shape that serves it: the exact size, a range
// around it, or the declared range.
func randomShape(r *rand.Rand, m *ir.Module) (compile.Shape, map[string]int64) {
	s := compile.Shape{Ranges: make(map[string]dim.Interval)}
	symbols := make(map[string]int64)
	for _, y := range m.Symbols {
		n := y.Lo + r.Int63n(min(y.Hi, y.Lo+24)-y.Lo+1)
		symbols[y.Name] = n
		switch r.Intn(3) {
		case 0:
			s.Ranges[y.Name] = dim.Interval{Lo: n, Hi: n}
		case 1:
			s.Ranges[y.Name] = dim.Interval{Lo: n - r.Int63n(n-y.Lo+1), Hi: n + r.Int63n(y.Hi-n+1)}
		}
	}
	return s, symbols
}

func tryRandom(m *ir.Module, r *rand.Rand, o compile.Options) error {
	irgen.ReturnMore(r, m)
	s, symbols := randomShape(r, m)
	b, err := oracle.Draw(r, m, symbols, nil)
	if err != nil {
		return err
	}
	if err := check(m, s, o, b, false); err != nil {
		return fmt.Errorf("symbols %v, shape %v: %w\n%s", symbols, s.Ranges, err, ir.Print(m))
	}
	return nil
}

// someOps draws the ops of a module: all of them, or a few, which meet more
// often.
func someOps(r *rand.Rand) []string {
	if r.Intn(2) == 0 {
		return nil
	}
	var names []string
	for range 4 + r.Intn(12) {
		names = append(names, ir.Ops()[r.Intn(len(ir.Ops()))].Name)
	}
	return names
}

// TestRandomModules compares compiled random modules with the interpreter.
func TestRandomModules(t *testing.T) {
	first := seed(t)
	for i := range modules(t, 150) {
		r := rand.New(rand.NewSource(int64(first + i)))
		o := irgen.Options{MixRows: true, Load: r.Intn(2) == 0, Odd: r.Intn(8) == 0, MaxOps: 1 + r.Intn(60), Ops: someOps(r)}
		m := irgen.Generate(r, o)
		if err := tryRandom(m, r, compile.Options{}); err != nil {
			t.Errorf("module %d: %v", first+i, err)
			return
		}
	}
}

// TestRandomModulesWithoutAPass compares random modules with the interpreter, with each optional
// pass switched off in turn.
func TestRandomModulesWithoutAPass(t *testing.T) {
	first := seed(t)
	for _, p := range compile.Passes() {
		if p.Required {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			for i := range modules(t, 15) {
				r := rand.New(rand.NewSource(int64(first + i)))
				m := irgen.Generate(r, irgen.Options{MixRows: true})
				if err := tryRandom(m, r, compile.Options{Disable: []string{p.Name}}); err != nil {
					t.Errorf("module %d: %v", first+i, err)
					return
				}
			}
		})
	}
}
