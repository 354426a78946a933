package compile_test

import (
	"math/rand"
	"slices"
	"testing"

	"pwc/compile"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// TestLimits compares functions that are large for a kernel, a lazy expression or a lowering with
// the interpreter, and bounds their steps.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps int // at most
		body  func(fb *ir.FuncBuilder, n dim.Dim, x ir.Value) []ir.Value
	}{
		{"a long chain", 4, func(fb *ir.FuncBuilder, _ dim.Dim, x ir.Value) []ir.Value {
			for range 300 {
				x = fb.Op1("mul", []ir.Value{fb.Op1("cos", []ir.Value{x}), fb.Float(0.5)})
			}
			return []ir.Value{x}
		}},
		{"a value with many readers", 2, func(fb *ir.FuncBuilder, _ dim.Dim, x ir.Value) []ir.Value {
			y := fb.Op1("exp", []ir.Value{x})
			sum := y
			for i := range 200 {
				sum = fb.Op1("add", []ir.Value{sum, fb.Op1("mul", []ir.Value{y, fb.Float(float64(i) / 256)})})
			}
			return []ir.Value{sum}
		}},
		{"squares of squares", 3, func(fb *ir.FuncBuilder, _ dim.Dim, x ir.Value) []ir.Value {
			for range 60 {
				x = fb.Op1("sin", []ir.Value{fb.Op1("mul", []ir.Value{x, x})})
			}
			return []ir.Value{x}
		}},
		{"a deep chain of layouts", 6, func(fb *ir.FuncBuilder, n dim.Dim, x ir.Value) []ir.Value {
			for range 70 {
				y := fb.Op1("reshape", []ir.Value{x}, ir.DimsAttr("shape", n, dim.Const(2), dim.Const(4)))
				y = fb.Op1("transpose", []ir.Value{y}, ir.IntsAttr("perm", 2, 0, 1))
				y = fb.Op1("slice", []ir.Value{y}, ir.IntAttr("axis", 0), ir.IntAttr("start", 0), ir.IntAttr("end", 4))
				y = fb.Op1("transpose", []ir.Value{y}, ir.IntsAttr("perm", 1, 0, 2))
				x = fb.Op1("reshape", []ir.Value{y}, ir.DimsAttr("shape", n, dim.Const(8)))
			}
			return []ir.Value{x}
		}},
		{"many operands", 3, func(fb *ir.FuncBuilder, n dim.Dim, x ir.Value) []ir.Value {
			var parts []ir.Value
			for i := range 100 {
				parts = append(parts, fb.Op1("add", []ir.Value{x, fb.Float(float64(i))}))
			}
			return []ir.Value{fb.Op1("concat", parts, ir.IntAttr("axis", 1))}
		}},
		{"a tree of many tensors", 12, func(fb *ir.FuncBuilder, n dim.Dim, x ir.Value) []ir.Value {
			var list []ir.Value
			for i := range 200 {
				s := fb.Op1("slice", []ir.Value{x}, ir.IntAttr("axis", 1), ir.IntAttr("start", int64(i%8)), ir.IntAttr("end", int64(i%8+1)))
				list = append(list, fb.Op1("mul", []ir.Value{s, fb.Float(float64(i) / 128)}))
			}
			for len(list) > 1 {
				list = append(list[2:], fb.Op1("add", list[:2]))
			}
			return list
		}},
		{"an integer GEMM with the largest number of axes", 4, func(fb *ir.FuncBuilder, n dim.Dim, x ir.Value) []ir.Value {
			shape := func(first, second, rows, cols dim.Dim) ir.Attr {
				s := slices.Repeat([]dim.Dim{dim.Const(1)}, ir.MaxRank)
				s[0], s[1], s[ir.MaxRank-2], s[ir.MaxRank-1] = first, second, rows, cols
				return ir.DimsAttr("shape", s...)
			}
			one, two, four := dim.Const(1), dim.Const(2), dim.Const(4)
			y := fb.Op1("cast", []ir.Value{fb.Op1("mul", []ir.Value{x, fb.Float(8)})}, ir.DTypeAttr(dtype.I32))
			a, b := fb.Op1("reshape", []ir.Value{y}, shape(n, one, two, four)), fb.Op1("reshape", []ir.Value{y}, shape(one, n, four, two))
			return []ir.Value{fb.Op1("matmul", []ir.Value{a, b})}
		}},
		{"norms of norms", 12, func(fb *ir.FuncBuilder, n dim.Dim, x ir.Value) []ir.Value {
			w := fb.Op1("full", []ir.Value{fb.Float(0.75)}, ir.IntsAttr("shape", 8), ir.DTypeAttr(dtype.F32))
			for range 30 {
				x = fb.Op1("rms_norm", []ir.Value{x, w}, ir.FloatAttr("eps", 0.5))
			}
			return []ir.Value{x}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := ir.NewBuilder("limits")
			n := b.Symbol("N", 1, 8, ir.Batch)
			fb := b.Func("piece")
			fb.Return(c.body(fb, n, fb.Param("x", ir.TypeOf(dtype.F32, n, dim.Const(8))))...)
			m, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range []compile.Options{{}, {Disable: []string{"noop", "cse"}}} {
				if p := compileHost(t, m, compile.Shape{}, o); len(o.Disable) == 0 && len(p.Steps) > c.steps {
					t.Errorf("%d steps, at most %d", len(p.Steps), c.steps)
				}
				in, err := oracle.Draw(rand.New(rand.NewSource(1)), m, map[string]int64{"N": 5}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := check(m, compile.Shape{}, o, in, false); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
