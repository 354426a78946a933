package compile_test

import (
	"context"
	"fmt"
	"math"
	"math/rand"
	"testing"

	"pwc/compile"
	hostbackend "pwc/compile/host"
	"pwc/internal/irgen"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// TestRandomExactModules compares random modules with the interpreter bit by bit (except for
// the payloads of NaNs). The modules of TestRandomModules keep numbers small and indices in
// range, so that sums can be compared. These ([irgen.Exact]) have only ops whose results are
// the same in every implementation, for any numbers and sizes.
func TestRandomExactModules(t *testing.T) {
	first, n, held := seed(t), modules(t, 1000), 0
	for i := range n {
		r := rand.New(rand.NewSource(int64(first + i)))
		m := irgen.Exact(r, 40)
		s, symbols := exactShape(r)
		b, err := exactInputs(t, r, m, symbols)
		if err != nil {
			continue // too large to interpret
		}
		var o compile.Options
		if p := compile.Passes()[r.Intn(len(compile.Passes()))]; !p.Required && r.Intn(3) == 0 {
			o.Disable = []string{p.Name}
		}
		if err := checkExact(m, s, o, b); err != nil {
			t.Fatalf("module %d, symbols %v, shape %v, without %v: %v\n%s", first+i, symbols, s.Ranges, o.Disable, err, ir.Print(m))
		}
		held++
	}
	t.Logf("%d of %d modules were small enough", held, n)
	if held < n/2 {
		t.Errorf("only %d of %d modules were small enough to be compared", held, n)
	}
}

// exactShape draws sizes, 0 among them, and a shape in which some symbols have that size.
func exactShape(r *rand.Rand) (compile.Shape, map[string]int64) {
	s := compile.Shape{Ranges: make(map[string]dim.Interval)}
	symbols := make(map[string]int64)
	for _, name := range []string{"N", "M"} {
		n := []int64{0, 1, 2, 3, 5}[r.Intn(5)]
		symbols[name] = n
		if r.Intn(3) == 0 {
			s.Ranges[name] = dim.Interval{Lo: n, Hi: n}
		}
	}
	return s, symbols
}

func exactInputs(t *testing.T, r *rand.Rand, m *ir.Module, symbols map[string]int64) (*oracle.Inputs, error) {
	f := m.Funcs[0]
	for _, info := range f.Values {
		shape, err := oracle.Extents(info.Type.Shape, symbols)
		if err != nil {
			return nil, err
		}
		size := int64(1)
		for _, n := range shape {
			size *= n
		}
		if size > 1<<14 {
			return nil, fmt.Errorf("%d elements", size)
		}
	}
	b := &oracle.Inputs{Symbols: symbols}
	for i, p := range f.Params {
		typ := f.Type(p)
		shape, err := oracle.Extents(typ.Shape, symbols)
		if err != nil {
			return nil, err
		}
		values := irgen.Special(typ.DType)
		if r.Intn(2) == 0 && typ.DType != dtype.Bool { // indices, some of them in range
			values = []float64{0, 1, 2, 3, 1, 4, 0, 2}
		}
		b.Params = append(b.Params, tensorOf(t, typ.DType, shape, values, 3*i+r.Intn(5)))
	}
	return b, nil
}

// checkExact is check for results that must have the same bits, except for the payloads of NaNs.
func checkExact(m *ir.Module, s compile.Shape, o compile.Options, b *oracle.Inputs) error {
	p, err := compile.Compile(context.Background(), m, s, hostbackend.New(), o)
	if err != nil {
		return err
	}
	left, right := b.Clone(), b.Clone()
	want, err := oracle.Interpret(context.Background(), m, right)
	if err != nil {
		return err
	}
	got, err := execute(p, m, left)
	if err != nil {
		return err
	}
	got, want = append(got, left.Params...), append(want, right.Params...)
	for i, w := range want {
		for j := range w.Len() {
			x, y := got[i].At(j), w.At(j)
			if same := math.Float64bits(x) == math.Float64bits(y) && got[i].Int(j) == w.Int(j); !same && (x == x || y == y) {
				return fmt.Errorf("tensor %d (results, then parameters), element %d: %v, want %v\n%s", i, j, x, y, p)
			}
		}
	}
	return nil
}
