package autodiff_test

import (
	"math"
	"strings"
	"testing"

	"pwc/autodiff"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
)

// The bytes of the plan, by hand: N is at most 64.
func TestPlanBytes(t *testing.T) {
	for _, c := range []struct {
		what, signature  string
		lines            []string
		auto, all, least int64 // SaveAuto, SaveAll, SaveNothing
	}{
		{"the mask of dropout is drawn again", "(%x: f32[N, 8], %r: i64[2]) -> (f32[N, 8])", []string{"%y = dropout(%x, %r, p=0.5)", "return %y"}, 0, 0, 0},
		{"a result costs nothing", "(%x: f32[N, 8]) -> (f32[N, 8])", []string{"%y = softmax(%x)", "return %y"}, 0, 0, 0},
		// silu reads its operand, the result of a GEMM in bf16
		{"two bytes each in bf16", "(%x: bf16[N, 16], %w: bf16[4, 16]) -> (bf16[N, 4])", []string{"%a = linear(%x, %w)", "%y = silu(%a)", "return %y"}, 64 * 4 * 2, 64 * 4 * 2, 0},
		// relu's rule and the second GEMM both read relu's result
		{"one value for two rules", "(%x: f32[N, 16], %w: f32[32, 16], %v: f32[8, 32]) -> (f32[N, 8])", []string{"%a = linear(%x, %w)", "%b = relu(%a)", "%y = linear(%b, %v)", "return %y"}, 64 * 32 * 4, 64 * 32 * 4, 0},
		// where reads the condition, which is compared again from a parameter
		{"a condition is a byte an element", "(%x: f32[N, 8], %y: f32[N, 8]) -> (f32[N, 8])", []string{"%c = compare(%x, %y, dir=gt)", "%z = where(%c, %x, %y)", "return %z"}, 0, 64 * 8, 0},
		// tanh(a) and b are read; both follow from the narrow a
		{"the narrow value before a broadcast", "(%x: f32[N, 16], %w: f32[1, 16]) -> (f32[N, 8])", []string{"%a = linear(%x, %w)", "%t = tanh(%a)", "%b = broadcast_to(%t, shape=[N, 8])", "%y = mul(%b, %b)", "return %y"}, 64 * 1 * 4, 64*1*4 + 64*8*4, 0},
		// a static value: 3 * 5 elements, for any N
		{"no symbol", "(%x: f32[3, 4], %w: f32[5, 4], %s: f32[N]) -> (f32[3, 5], f32[N])", []string{"%a = linear(%x, %w)", "%y = mul(%a, %a)", "%z = neg(%s)", "return %y, %z"}, 3 * 5 * 4, 3 * 5 * 4, 0},
	} {
		m := testkit.Parse(t, fn(c.signature, c.lines...))
		for save, want := range map[autodiff.Save]int64{autodiff.SaveAuto: c.auto, autodiff.SaveAll: c.all, autodiff.SaveNothing: c.least} {
			holdPlan(t, c.what, m, autodiff.Options{Save: save}, want)
		}
	}
	// Results of custom ops, and memory that they write, cannot be computed again.
	m := testkit.Parse(t, strings.ReplaceAll(customs, "[4, 2]", "[64, 2]"))
	for _, save := range []autodiff.Save{autodiff.SaveAuto, autodiff.SaveAll, autodiff.SaveNothing} {
		want := int64(64 * 2 * 4) // out, which my::scale writes; a is a result of the function
		holdPlan(t, "custom ops", m, autodiff.Options{Save: save, Custom: customGradients}, want)
	}
	huge := testkit.Parse(t, strings.ReplaceAll(fn("(%x: f32[N, 1], %w: f32[1, 1]) -> (f32[N, 1])", "%a = linear(%x, %w)", "%y = silu(%a)", "return %y"), "[1, 64]", "[1, 4611686018427387903]"))
	holdPlan(t, "more than int64 holds", huge, autodiff.Options{}, math.MaxInt64)
}

// holdPlan compares the plan with bytes counted by hand, and with the results of the forward.
func holdPlan(t *testing.T, what string, m *ir.Module, o autodiff.Options, want int64) {
	t.Helper()
	d, err := autodiff.Gradients(m, "f", nil, o)
	if err != nil {
		t.Fatal(err)
	}
	if d.Plan.Bytes != want {
		t.Errorf("%s, save %d: %d bytes, want %d\n%s", what, o.Save, d.Plan.Bytes, want, ir.Print(d.Module))
	}
	if want == math.MaxInt64 {
		return
	}
	own, total := len(m.Funcs[0].Returns), int64(0)
	for _, typ := range d.Forward.ResultTypes[own:] {
		shape, err := oracle.Extents(typ.Shape, map[string]int64{"N": 64})
		if err != nil {
			t.Fatal(err)
		}
		n := int64(1)
		for _, e := range shape {
			n *= e
		}
		total += typ.DType.Bytes(n)
	}
	if total != d.Plan.Bytes {
		t.Errorf("%s, save %d: the forward returns %d bytes more than the function, the plan says %d", what, o.Save, total, d.Plan.Bytes)
	}
}
