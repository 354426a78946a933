package compile_test

import (
	"math"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/internal/irgen"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// foldable has the pointwise ops that fold on floats (f) and integers (i), by hand: those
// whose results IEEE 754 or two's complement defines.
var foldable = map[string]string{
	"neg": "fi", "abs": "fi", "relu": "fi", "add": "fi", "sub": "fi", "mul": "fi", "div": "fi", "maximum": "fi", "minimum": "fi", "compare": "fi",
	"where": "fi", "clamp": "fi", "sqrt": "f", "reciprocal": "f", "floor": "f", "ceil": "f", "round": "f", "not": "i", "rem": "i", "and": "i", "or": "i", "xor": "i",
}

// TestFold computes every pointwise op on constants: vectors, which are folded
// element by element, and uniform tensors. The results must be the interpreter's, and
// exactly the ops of foldable must be folded. Casts fold for some numbers only.
func TestFold(t *testing.T) {
	for _, o := range ir.Ops() {
		if o.Class != ir.Pointwise {
			continue
		}
		tried := 0
		for _, dt := range dtype.All() {
			if !dt.Computes() {
				continue
			}
			for i, c := range pointwiseCases(o) {
				picks := 3
				switch {
				case foldable[o.Name] == "" && o.Name != "cast":
					picks = 1 // the relative error of a single denormal may exceed the tolerance
				case len(c.shapes) == 1:
					picks = len(irgen.Special(dt))
				}
				for pick := range picks + 1 {
					m := constantModule(dt, c, pick-1)
					if m == nil {
						continue
					}
					tried++
					left := ""
					dump := func(pass, text string) {
						if pass == "fold" {
							left = text
						}
					}
					err := check(m, compile.Shape{}, compile.Options{Dump: dump}, &oracle.Inputs{}, true)
					if foldable[o.Name] != "" && err == nil { // folded with the interpreter's bits
						err = checkExact(m, compile.Shape{}, compile.Options{}, &oracle.Inputs{})
					}
					if err != nil {
						t.Errorf("%s of %s, case %d: %v\n%s", o.Name, dt, i, err, ir.Print(m))
						continue
					}
					kind := "i"
					if dt.Float() {
						kind = "f"
					}
					if folds := strings.Contains(foldable[o.Name], kind); o.Name != "cast" && folds == strings.Contains(left, " = "+o.Name+"(") {
						t.Errorf("%s of %s, case %d: folds should be %v:\n%s", o.Name, dt, i, folds, left)
					}
				}
			}
		}
		least := 6 // three float dtypes, as vectors and as uniform tensors
		if o.Name == "philox" {
			least = 2 // only i64
		}
		if tried < least {
			t.Errorf("%s was tried on constants %d times", o.Name, tried)
		}
	}
}

// TestFoldToLimits folds vectors to the least i64, which const holds, and not to the largest, which is no float64.
func TestFoldToLimits(t *testing.T) {
	for op, folds := range map[string]bool{"mul": true, "xor": false} {
		b := ir.NewBuilder("constants")
		fb := b.Func("piece")
		x := fb.Op1("const", nil, ir.FloatsAttr("values", -1<<62, 1), ir.DTypeAttr(dtype.I64))
		y := fb.Literal(ir.Literal{IsInt: true, Int: 2})
		if op == "xor" { // -2^62 xor this is 2^63 - 1
			y = fb.Literal(ir.Literal{IsInt: true, Int: -1<<62 ^ math.MaxInt64})
		}
		fb.Return(fb.Op1(op, []ir.Value{x, y}))
		m, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		left := ""
		dump := func(pass, text string) {
			if pass == "fold" {
				left = text
			}
		}
		if err := check(m, compile.Shape{}, compile.Options{Dump: dump}, &oracle.Inputs{}, true); err != nil {
			t.Errorf("%s: %v", op, err)
		}
		if folds == strings.Contains(left, " = "+op+"(") {
			t.Errorf("%s: folds should be %v:\n%s", op, folds, left)
		}
	}
}

// constantModule applies the op of a case to constants. If pick is -1, they are vectors of 20
// numbers. Else all elements of operand i are number pick+i of the dtype's list. It returns nil
// if the op does not take the dtype.
func constantModule(dt dtype.DType, c opCase, pick int) *ir.Module {
	b := ir.NewBuilder("constants")
	fb := b.Func("piece")
	values := irgen.Special(dt)
	if dt == dtype.I64 {
		values = values[1:8] // results that are no float64 do not fold, such as 2^63 - 1
	}
	var x []ir.Value
	for i := range c.shapes {
		if pick >= 0 {
			v := values[(pick+i)%len(values)]
			l := ir.Literal{Float: v}
			if !dt.Float() {
				l = ir.Literal{IsInt: true, Int: int64(v)}
			}
			x = append(x, fb.Op1("full", []ir.Value{fb.Literal(l)}, ir.DimsAttr("shape", dim.Const(3)), ir.DTypeAttr(dt)))
			continue
		}
		var list []float64
		for j := range 20 {
			list = append(list, values[(j*(2*i+1)+i)%len(values)])
		}
		x = append(x, fb.Op1("const", nil, ir.FloatsAttr("values", list...), ir.DTypeAttr(dt)))
	}
	fb.Return(c.apply(fb, x)...)
	m, err := b.Build()
	if err != nil {
		return nil
	}
	return m
}

// TestCastsThereAndBack casts each computing dtype to every other one and back, and compares the
// bits with the interpreter. The pairs of lossless are dropped, and no others.
func TestCastsThereAndBack(t *testing.T) {
	lossless := map[dtype.DType]string{
		dtype.Bool: "f32 f16 bf16 i8 u8 i16 i32 i64", dtype.I8: "f32 i16 i32 i64", dtype.U8: "f32 i16 i32 i64", dtype.I16: "f32 i32 i64",
		dtype.I32: "i64", dtype.F16: "f32", dtype.BF16: "f32",
	}
	for _, from := range dtype.All() {
		for _, to := range dtype.All() {
			if !from.Computes() || !to.Computes() || from == to {
				continue
			}
			b := ir.NewBuilder("casts")
			fb := b.Func("piece")
			x := fb.Param("x", ir.TypeOf(from, dim.Const(20)))
			there := fb.Op1("cast", []ir.Value{x}, ir.DTypeAttr(to))
			back := fb.Op1("cast", []ir.Value{there}, ir.DTypeAttr(from))
			fb.Return(fb.Op1("reshape", []ir.Value{back}, ir.IntsAttr("shape", 4, 5))) // a copy: a parameter is not returned in place of it
			m, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			left := ""
			dump := func(pass, text string) {
				if pass == "dce" {
					left = text
				}
			}
			in := &oracle.Inputs{}
			in.Params = append(in.Params, tensorOf(t, from, []int64{20}, irgen.Special(from), 0))
			if err := checkExact(m, compile.Shape{}, compile.Options{Dump: dump}, in); err != nil {
				t.Errorf("%s to %s and back: %v", from, to, err)
			}
			want := strings.Contains(" "+lossless[from]+" ", " "+to.String()+" ")
			if gone := !strings.Contains(left, "cast"); gone != want {
				t.Errorf("%s to %s and back is dropped: %v, want %v", from, to, gone, want)
			}
		}
	}
}
