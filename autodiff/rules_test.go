package autodiff_test

import (
	"fmt"
	"math"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"pwc/autodiff"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// Every op of the table has a rule, or a reason for having none. Each rule has a case in differences, except
// those of collectives, which TestGradientsOfRanks holds.
func TestEveryOpHasARule(t *testing.T) {
	used := map[string]bool{}
	for _, c := range differences {
		for _, n := range testkit.Parse(t, fn(c.signature, c.lines...)).Funcs[0].Nodes {
			used[n.Op.Name] = true
		}
	}
	for _, op := range ir.Ops() {
		has, why := autodiff.Rule(op)
		switch {
		case has && why != "" || !has && why == "":
			t.Errorf("%s: rule %v, reason %q: want one of both", op.Name, has, why)
		case strings.HasPrefix(why, "the table of package autodiff"):
			t.Error(why)
		case has && !used[op.Name] && op.Class != ir.Collective:
			t.Errorf("%s has a rule and no case in differences", op.Name)
		}
	}
	if _, why := autodiff.Rule(&ir.Op{Name: "new"}); !strings.Contains(why, "no entry for new") {
		t.Errorf("an op that is not in the table: %q", why)
	}
	if _, why := autodiff.Rule(nil); why == "" {
		t.Error("no reason for no op")
	}
}

// differences are functions whose gradients are held to central differences. Floats are drawn from [0.3, 1.7), with
// both signs where signed is set. No operand is so near a kink that a difference would reach beyond it.
var differences = []struct {
	signature string
	signed    bool
	lines     []string
}{
	{"(%x: f32[N, 3]) -> (f32[N, 3])", true, []string{"%a = neg(%x)", "%b = abs(%a)", "%c = exp(%b)", "%y = tanh(%c)", "return %y"}},
	{"(%x: f32[N]) -> (f32[N], f32[N], f32[N], f32[N])", false, []string{"%a = log(%x)", "%b = sqrt(%x)", "%c = rsqrt(%x)", "%d = reciprocal(%x)", "return %a, %b, %c, %d"}},
	{"(%x: f32[N]) -> (f32[N], f32[N], f32[N], f32[N])", true, []string{"%a = sin(%x)", "%b = cos(%x)", "%c = erf(%x)", "%d = sigmoid(%x)", "return %a, %b, %c, %d"}},
	{"(%x: f32[N]) -> (f32[N], f32[N], f32[N], f32[N])", true, []string{"%a = silu(%x)", "%b = gelu(%x)", "%c = gelu_tanh(%x)", "%d = relu(%x)", "return %a, %b, %c, %d"}},
	{"(%x: f32[N, 3], %y: f32[3], %z: f32[]) -> (f32[N, 3])", true, []string{"%a = add(%x, %y)", "%b = sub(%z, %a)", "%c = mul(%b, %x)", "%d = div(%c, %y)", "return %d"}},
	{"(%x: f32[N, 1], %y: f32[3]) -> (f32[N, 3], f32[3])", false, []string{"%a = rem(%x, %y)", "%b = pow(%y, 3.0)", "return %a, %b"}},
	{"(%x: f32[N, 1], %y: f32[1, 3]) -> (f32[N, 3], f32[N, 1], f32[1, 3])", false, []string{"%a = pow(%x, %y)", "%b = pow(2.0, %x)", "%c = pow(%y, 0.0)", "return %a, %b, %c"}},
	{"(%x: f32[N, 3], %y: f32[3]) -> (f32[N, 3], f32[N, 3])", true, []string{"%a = maximum(%x, %y)", "%b = minimum(%y, %x)", "return %a, %b"}},
	{"(%x: f32[N, 3], %y: f32[3]) -> (f32[N, 3])", true, []string{"%c = compare(%x, 0.0, dir=gt)", "%y1 = where(%c, %x, %y)", "return %y1"}},
	{"(%x: f32[N, 3], %lo: f32[3], %hi: f32[1]) -> (f32[N, 3])", true, []string{"%y = clamp(%x, %lo, %hi)", "return %y"}},
	{"(%x: f32[N, 3], %hi: f32[]) -> (f32[N, 3])", true, []string{"%y = clamp(%x, -0.1, %hi)", "return %y"}},
	{"(%x: f32[N, 3]) -> (f32[N, 3])", true, []string{"%h = cast(%x, dtype=f32)", "%f = floor(%x)", "%y = mul(%h, %f)", "return %y"}},
	{"(%x: f32[N, 3, 2]) -> (f32[3], f32[N, 1, 2], f32[N, 3])", true, []string{"%a = sum(%x, axes=[0, -1])", "%b = mean(%x, axes=[1], keepdims=true)", "%c = max(%x, axes=[2])", "return %a, %b, %c"}},
	{"(%x: f32[N, 3, 2]) -> (f32[3], f32[2], f32[N, 2])", true, []string{"%a = mean(%x, axes=[0, 2])", "%b = min(%x, axes=[0, 1])", "%c = prod(%x, axes=[1])", "return %a, %b, %c"}},
	{"(%x: f32[N, 3]) -> (f32[N, 3], f32[N, 3])", true, []string{"%a = cumsum(%x, axis=0)", "%b = cumsum(%x)", "return %a, %b"}},
	{"(%x: f32[N, 5]) -> (f32[N, 2])", true, []string{"%v, %i = topk(%x, k=2)", "return %v"}},
	{"(%x: f32[N, 5]) -> (f32[N, 5], f32[N, 5])", true, []string{"%a = softmax(%x)", "%b = softmax(%x, axis=0)", "return %a, %b"}},
	{"(%x: f32[N, 4], %w: f32[4], %b: f32[4]) -> (f32[N, 4], f32[N, 4])", true, []string{"%a = rms_norm(%x, %w, eps=1e-3)", "%c = layer_norm(%x, %w, %b, eps=1e-3)", "return %a, %c"}},
	{"(%x: f32[N, 2, 6], %c: f32[N, 2], %s: f32[N, 2]) -> (f32[N, 2, 6], f32[N, 2, 6])", true, []string{"%a = rope(%x, %c, %s)", "%b = rope(%x, %c, %s, style=interleaved)", "return %a, %b"}},
	{"(%x: f32[2, 1, N, 3], %y: f32[4, 3, 5]) -> (f32[2, 4, N, 5])", true, []string{"%a = matmul(%x, %y)", "return %a"}},
	{"(%x: f32[2, N, 3], %w: f32[4, 3], %b: f32[4]) -> (f32[2, N, 4])", true, []string{"%a = linear(%x, %w, %b)", "return %a"}},
	{"(%x: f32[3], %w: f32[4, 3]) -> (f32[4])", true, []string{"%a = linear(%x, %w)", "return %a"}},
	{"(%x: f32[N, 1, 3], %w: f32[3, 4, 3], %i: i32[N, 2], %b: f32[3, 4]) -> (f32[N, 2, 4])", true, []string{"%a = linear_select(%x, %w, %i, %b)", "return %a"}},
	{"(%q: f32[N, 4, 3], %k: f32[N, 2, 3], %v: f32[N, 2, 3]) -> (f32[N, 4, 3])", true, []string{"%o, %l = attention(%q, %k, %v, scale=0.5, causal=true)", "return %o"}},
	{"(%q: f32[2, N, 2, 3], %k: f32[2, 5, 1, 3]) -> (f32[2, N, 2, 3], f32[2, N, 2])", true, []string{"%o, %l = attention(%q, %k, %k, scale=0.7)", "return %o, %l"}},
	{"(%q: f32[N, 1, 2], %k: f32[N, 1, 2]) -> (f32[N, 1])", true, []string{"%o, %l = attention(%q, %k, %k, scale=-1.5, causal=true)", "return %l"}},
	{"(%x: f32[5, 2, 2], %i: i32[N, 2]) -> (f32[N, 2, 2, 2])", true, []string{"%a = embedding(%x, %i)", "return %a"}},
	{"(%x: f32[2, 5, 3], %i: i32[N, 2]) -> (f32[2, N, 2, 3], f32[2, 5, N, 2])", true, []string{"%a = gather(%x, %i, axis=1)", "%j = minimum(%i, 2)", "%b = gather(%x, %j, axis=2)", "return %a, %b"}},
	{"(%x: f32[2, 7], %s: f32[2, N], %i: i32[N]) -> (f32[2, 7], f32[2, 7])", true, []string{
		"%d = full(0.5, shape=[2, 7], dtype=f32)", "copy(%d, %x)", "%old = mul(%d, %d)", "scatter(%d, %i, %s, axis=1)", "%y = mul(%d, %d)", "return %y, %old"}},
	{"(%x: f32[N, 6]) -> (f32[3, 2, N])", true, []string{"%a = reshape(%x, shape=[N, 3, 2])", "%b = transpose(%a, perm=[1, 2, 0])", "return %b"}},
	{"(%x: f32[N, 1]) -> (f32[2, N, 3])", true, []string{"%a = broadcast_to(%x, shape=[2, N, 3])", "return %a"}},
	{"(%x: f32[2*N, 7]) -> (f32[N, 7], f32[2*N, 2], f32[2*N, 3])", true, []string{"%a = slice(%x, axis=0, start=N, end=2*N)", "%b = slice(%x, axis=1, start=2, end=6, step=3)", "%c = slice(%x, axis=1, start=0, end=7, step=3)", "return %a, %b, %c"}},
	{"(%x: f32[2*N, 2]) -> (f32[N, 2])", true, []string{"%a = slice(%x, axis=0, start=0, end=2*N, step=2)", "return %a"}},
	{"(%x: f32[N, 5], %z: f32[N, 2]) -> (f32[N, 4], f32[N, 3])", true, []string{"%a, %b, %c = split(%x, axis=1, sizes=[2, 1, 2])", "%d = concat(%a, %z, axis=1)", "%e = concat(%c, %b, axis=1)", "return %d, %e"}},
	{"(%x: f32[N, 2], %v: f32[]) -> (f32[N + 1, 4])", true, []string{"%a = pad(%x, %v, low=[0, 2], high=[1, 0])", "return %a"}},
	{"(%x: f32[N, 8], %r: i64[2]) -> (f32[N, 8])", true, []string{"%a = mul(%x, %x)", "%b = dropout(%a, %r, p=0.5)", "%u = uniform(%r, shape=[N, 8], dtype=f32)", "%c = mul(%b, %u)", "return %c"}},
	{"(%x: f32[N, 2]) -> (f32[N, 2], f32[N, 2], f32[N, 2])", true, []string{"%e = empty_like(%x)", "copy(%e, %x)", "%a = mul(%e, %x)", "return %x, %a, %a"}},
}

// draw returns an operand of a case.
func draw(r *rand.Rand, typ ir.Type, n int64, signed bool) *interp.Tensor {
	shape, err := oracle.Extents(typ.Shape, map[string]int64{"N": n})
	if err != nil {
		panic(err)
	}
	x, err := interp.Zeros(typ.DType, shape)
	if err != nil {
		panic(err)
	}
	for i := range x.Len() {
		if !typ.DType.Float() {
			x.SetInt(i, int64(r.Intn(5)))
			continue
		}
		v := 0.3 + 1.4*r.Float64()
		if signed && r.Intn(2) == 0 {
			v = -v
		}
		x.Set(i, v)
	}
	return x
}

// Gradients are the slopes of the function over the real numbers. In f32 they are the same within 1e-5, in the
// interpreter and on the host, in one function and in two, however much is saved.
func TestDifferences(t *testing.T) {
	for k, c := range differences {
		t.Run(fmt.Sprint(k, " ", c.lines), func(t *testing.T) {
			const n = 4
			r := rand.New(rand.NewSource(int64(k)))
			m := testkit.Parse(t, fn(c.signature, c.lines...))
			f := m.Funcs[0]
			in := &oracle.Inputs{Symbols: map[string]int64{"N": n}}
			var floats []int
			for i, p := range f.Params {
				in.Params = append(in.Params, draw(r, f.Type(p), n, c.signed))
				if f.Type(p).DType.Float() {
					floats = append(floats, i)
				}
			}
			var weights []*interp.Tensor
			for _, typ := range f.ResultTypes {
				weights = append(weights, draw(r, typ, n, true))
			}
			real := in.Unround()
			loss := func(in *oracle.Inputs) (total, size float64) {
				for i, x := range interpret(t, m, in) {
					for e := range x.Len() {
						total += x.At(e) * weights[i].At(e)
						size += math.Abs(x.At(e) * weights[i].At(e))
					}
				}
				return total, size
			}
			g := joint(t, m)
			all := in.Clone()
			all.Params = append(all.Params, weights...)
			exact := interpret(t, g, all.Unround())
			for k, i := range floats {
				want := exact[k].Clone()
				for e := range want.Len() {
					l := measure(func(by float64) (float64, float64) {
						at := real.Clone()
						at.Params[i].Set(e, at.Params[i].At(e)+by)
						return loss(at)
					})
					if want.Set(e, l.slope); !l.smooth {
						t.Errorf("grad_in%d: a kink at element %d", k, e)
					}
				}
				if err := near(exact[k], want, 1e-7); err != nil {
					t.Errorf("grad_in%d: %v\n%s", k, err, ir.Print(g))
				}
			}
			got := interpret(t, g, all.Clone())
			for i, x := range got {
				if err := near(x, exact[i], 1e-5); err != nil {
					t.Errorf("f32: grad_in%d: %v", i, err)
				}
			}
			for i, x := range onHost(t, g, all.Clone()) {
				if err := near(x, got[i], 1e-5); err != nil {
					t.Errorf("host: grad_in%d: %v", i, err)
				}
			}
			for _, save := range []autodiff.Save{autodiff.SaveAuto, autodiff.SaveAll, autodiff.SaveNothing} {
				d, err := autodiff.Gradients(m, "@f", nil, autodiff.Options{Save: save})
				if err != nil {
					t.Fatal(err)
				}
				apart := twoSteps(t, d, in, weights, interpret)
				if err := oracle.SameBits(apart, got); err != nil {
					t.Errorf("save %d: forward and backward apart: %v\n%s", save, err, ir.Print(d.Module))
				}
				for i, x := range twoSteps(t, d, in, weights, onHost) {
					if err := near(x, got[i], 1e-5); err != nil {
						t.Errorf("save %d: host: grad_in%d: %v", save, i, err)
					}
				}
			}
		})
	}
}

// twoSteps runs the forward, then the backward, and returns the gradients.
func twoSteps(t *testing.T, d *autodiff.Derivative, in *oracle.Inputs, cotangents []*interp.Tensor, run func(testing.TB, *ir.Module, *oracle.Inputs) []*interp.Tensor) []*interp.Tensor {
	t.Helper()
	first := in.Clone()
	results := run(t, only(d.Module, d.Forward), first)
	second := &oracle.Inputs{Symbols: in.Symbols, Unrounded: in.Unrounded, Weights: in.Weights, States: first.States}
	for _, s := range d.Plan.Saved {
		second.Params = append(second.Params, results[s.Result])
	}
	for _, i := range d.Params {
		second.Params = append(second.Params, first.Params[i])
	}
	second.Params = append(second.Params, cotangents...)
	return run(t, only(d.Module, d.Backward), second)
}

// gradients runs @f.gradient in the interpreter and on the host, which must agree to the bit.
func gradients(t *testing.T, text string, params ...*interp.Tensor) []*interp.Tensor {
	t.Helper()
	g := joint(t, testkit.Parse(t, text))
	in := &oracle.Inputs{Symbols: map[string]int64{"N": 3}, Params: params}
	got := interpret(t, g, in.Clone())
	if err := oracle.SameBits(onHost(t, g, in.Clone()), got); err != nil {
		t.Errorf("host: %v", err)
	}
	return got
}

func wantValues(t *testing.T, what string, got *interp.Tensor, want ...float64) {
	t.Helper()
	values := make([]float64, got.Len())
	for i := range values {
		values[i] = got.At(i)
	}
	if !slices.Equal(values, want) {
		t.Errorf("%s: gradient %v, want %v", what, values, want)
	}
}

// At ties and bounds, gradients are PyTorch's, by its derivatives.yaml and FunctionsManual.cpp. Where PyTorch leaves
// them open (indices out of range, slices that are written twice, ties of topk), they follow from the IR.
func TestConventions(t *testing.T) {
	inf := math.Inf(1)
	three := func(v ...float64) *interp.Tensor { return f32(t, []int64{3}, v...) }
	ones := three(1, 1, 1)

	g := gradients(t, fn("(%x: f32[3]) -> (f32[3])", "%y = clamp(%x, -1.0, 2.0)", "return %y"), three(-1, 2, 3), ones)
	wantValues(t, "clamp at its bounds", g[0], 1, 1, 0)
	g = gradients(t, fn("(%x: f32[3]) -> (f32[3])", "%y = relu(%x)", "return %y"), three(0, -1, 1), ones)
	wantValues(t, "relu at 0", g[0], 0, 0, 1)
	g = gradients(t, fn("(%x: f32[3]) -> (f32[3])", "%y = abs(%x)", "return %y"), three(0, -1, 1), ones)
	wantValues(t, "abs at 0", g[0], 0, -1, 1)
	g = gradients(t, fn("(%x: f32[3]) -> (f32[])", "%y = max(%x, axes=[0])", "return %y"), three(2, 1, 2), f32(t, nil, 4))
	wantValues(t, "max with a tie", g[0], 2, 0, 2)
	g = gradients(t, fn("(%x: f32[3]) -> (f32[])", "%y = min(%x, axes=[0])", "return %y"), three(2, 2, 2), f32(t, nil, 3))
	wantValues(t, "min with ties", g[0], 1, 1, 1)
	g = gradients(t, fn("(%x: f32[3]) -> (f32[2])", "%v, %i = topk(%x, k=2)", "return %v"), three(5, 5, 5), f32(t, []int64{2}, 1, 2))
	wantValues(t, "topk with ties", g[0], 1, 2, 0)
	g = gradients(t, fn("(%x: f32[3], %y: f32[3]) -> (f32[3])", "%z = minimum(%x, %y)", "return %z"), three(1, 2, 3), three(1, 1, 4), ones)
	wantValues(t, "minimum, first operand", g[0], 0.5, 0, 1)
	wantValues(t, "minimum, second operand", g[1], 0.5, 1, 0)
	g = gradients(t, fn("(%x: f32[3], %y: f32[3]) -> (f32[3])", "%z = pow(%x, %y)", "return %z"), three(0, 0, 2), three(0, 2, 0), ones)
	wantValues(t, "pow by its base", g[0], 0, 0, 0)
	wantValues(t, "pow by its exponent at a base of 0", f32(t, []int64{2}, g[1].At(0), g[1].At(1)), 0, 0)
	g = gradients(t, fn("(%x: f32[3]) -> (f32[])", "%y = prod(%x, axes=[0])", "return %y"), three(2, 0, 3), f32(t, nil, 1))
	wantValues(t, "prod with a zero", g[0], 0, 6, 0)
	g = gradients(t, fn("(%x: f32[3]) -> (f32[])", "%y = prod(%x, axes=[0])", "return %y"), three(0, 0, 3), f32(t, nil, 1))
	wantValues(t, "prod with two zeros", g[0], 0, 0, 0)
	g = gradients(t, fn("(%x: f32[3], %c: f32[3]) -> (f32[3])", "%p = compare(%c, 0.0, dir=gt)", "%y = where(%p, %x, 1.0)", "return %y"), three(1, 2, 3), three(1, 0, 1), three(1, inf, 1))
	wantValues(t, "where drops an infinite cotangent", g[0], 1, 0, 1)
	wantValues(t, "where by what the condition compares", g[1], 0, 0, 0)

	g = gradients(t, fn("(%x: f32[4, 1], %i: i32[5]) -> (f32[5, 1])", "%y = embedding(%x, %i)", "return %y"),
		f32(t, []int64{4, 1}, 1, 2, 3, 4), i32(t, []int64{5}, 2, 0, 2, -1, 2), f32(t, []int64{5, 1}, 1, 2, 4, 8, 16))
	wantValues(t, "embedding with repeated ids and one out of range", g[0], 2, 0, 21, 0)

	// Slice 1 is written twice, -1 writes nothing.
	g = gradients(t, fn("(%x: mut f32[3], %s: f32[4], %i: i32[4]) -> (f32[3])", "scatter(%x, %i, %s)", "return %x"),
		three(1, 2, 3), f32(t, []int64{4}, 5, 6, 7, 8), i32(t, []int64{4}, 1, -1, 1, 2), three(10, 20, 30))
	wantValues(t, "scatter, what was there", g[0], 10, 0, 0)
	wantValues(t, "scatter, what is written", g[1], 0, 0, 20, 30)

	// With add, both writes to slice 1 have its cotangent, and the memory before keeps all of its own.
	g = gradients(t, fn("(%x: mut f32[3], %s: f32[4], %i: i32[4]) -> (f32[3])", "scatter(%x, %i, %s, add=true)", "return %x"),
		three(1, 2, 3), f32(t, []int64{4}, 5, 6, 7, 8), i32(t, []int64{4}, 1, -1, 1, 2), three(10, 20, 30))
	wantValues(t, "scatter that adds, what was there", g[0], 10, 20, 30)
	wantValues(t, "scatter that adds, what is added", g[1], 20, 0, 20, 30)

	g = gradients(t, fn("(%x: f32[3]) -> (f32[1])", "%y = slice(%x, axis=0, start=1, end=3, step=9223372036854775806)", "return %y"), ones, f32(t, []int64{1}, 7))
	wantValues(t, "slice with a step beyond the extent", g[0], 0, 7, 0)

	// A value that nothing depends on, and one that is returned as it is.
	g = gradients(t, fn("(%x: f32[3], %y: f32[3]) -> (f32[3])", "%z = floor(%y)", "return %x"), ones, ones, three(1, 2, 3))
	wantValues(t, "a parameter that is returned", g[0], 1, 2, 3)
	wantValues(t, "a parameter that reaches no result", g[1], 0, 0, 0)
}

// A gradient has the dtype of its value. In bf16 it differs by at most 2 % of its largest element from that in f32.
func TestNarrow(t *testing.T) {
	m := testkit.Parse(t, fn("(%x: bf16[N, 4], %w: f32[4], %m: bf16[2, 4]) -> (bf16[N, 2])", "%n = rms_norm(%x, %w, eps=1e-5)", "%s = silu(%n)", "%y = linear(%s, %m)", "return %y"))
	g := joint(t, m)
	if got := fmt.Sprint(g.Funcs[0].ResultTypes); got != "[bf16[N, 4] f32[4] bf16[2, 4]]" {
		t.Errorf("types of the gradients: %s", got)
	}
	wide := testkit.Parse(t, strings.ReplaceAll(fn("(%x: bf16[N, 4], %w: f32[4], %m: bf16[2, 4]) -> (bf16[N, 2])", "%n = rms_norm(%x, %w, eps=1e-5)", "%s = silu(%n)", "%y = linear(%s, %m)", "return %y"), "bf16", "f32"))
	r := rand.New(rand.NewSource(1))
	in, exact := &oracle.Inputs{Symbols: map[string]int64{"N": 5}}, &oracle.Inputs{Symbols: map[string]int64{"N": 5}}
	f := g.Funcs[0]
	for _, p := range f.Params {
		x := draw(r, f.Type(p), 5, true)
		y, _ := interp.Zeros(dtype.F32, x.Shape)
		for i := range x.Len() {
			y.Set(i, x.At(i))
		}
		in.Params, exact.Params = append(in.Params, x), append(exact.Params, y)
	}
	want := interpret(t, joint(t, wide), exact)
	for i, x := range interpret(t, g, in) {
		y, _ := interp.Zeros(dtype.F32, x.Shape)
		for e := range x.Len() {
			y.Set(e, x.At(e))
		}
		if err := near(y, want[i], 0.02); err != nil {
			t.Errorf("grad_in%d: %v", i, err)
		}
	}
}

// Errors name the function, the value or the op. Those of ops and of values that have no gradient have a position.
func TestErrors(t *testing.T) {
	m := testkit.Parse(t, `pwc 1
module "m" {
  op "my::op"(tensor) -> (tensor)
  weight @ids : i32[4]
  state @s : f32[4]
  func @f(%x: f32[4], %i: i32[4]) -> (f32[4], i32[4]) {
    %a = call "my::op"(%x) : f32[4]
    return %a, %i
  }
  func @g(%i: i32[4]) -> (i32[4]) {
    %y = add(%i, @ids)
    return %y
  }
  func @h(%x: f32[4], %grad_out0: f32[4]) -> (f32[4]) {
    return %x
  }
}
`)
	for _, c := range []struct {
		function string
		wrt      []string
		want     string
	}{
		{"f", nil, "test.ir:7:10: my::op has no gradient: pwc does not know the derivative of an extern op"},
		{"f", []string{"%i"}, "test.ir:6:23: %i is i32[4]: only values of f32, f16 and bf16 have gradients"},
		{"f", []string{"@ids"}, "test.ir:4:"},
		{"f", []string{"x", "%x"}, "%x is named twice"},
		{"f", []string{"nope"}, `"nope" is neither a parameter of @f nor a weight or state`},
		{"f", []string{"@x"}, `"@x" is neither a parameter of @f nor`},
		{"g", nil, "@g has no parameter of f32, f16 or bf16"},
		{"g", []string{"@s"}, "@g returns no value of f32, f16 or bf16"},
		{"h", nil, "rename the parameter"},
		{"none", nil, "no function @none"},
	} {
		_, err := autodiff.Joint(m, c.function, c.wrt, autodiff.Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("@%s by %v: %v, want %q", c.function, c.wrt, err, c.want)
		}
		if _, again := autodiff.Gradients(m, c.function, c.wrt, autodiff.Options{}); fmt.Sprint(again) != fmt.Sprint(err) {
			t.Errorf("@%s by %v: Gradients says %v", c.function, c.wrt, again)
		}
	}
	// A call is no error if no gradient has to pass it.
	if _, err := autodiff.Joint(m, "f", []string{"@s"}, autodiff.Options{}); err != nil {
		t.Error(err)
	}
	if _, err := autodiff.Joint(nil, "f", nil, autodiff.Options{}); err == nil {
		t.Error("no error without a module")
	}
	if _, err := autodiff.Gradients(m, "f", []string{"@s"}, autodiff.Options{Save: 9}); err == nil || !strings.Contains(err.Error(), "Options.Save is 9") {
		t.Errorf("Save 9: %v", err)
	}
}

// Weights and states are differentiated, a state by its contents before the function. In the interpreter, the
// forward and the joint module write the state as the function does.
func TestWeightsAndStates(t *testing.T) {
	m := testkit.Parse(t, `pwc 1
module "m" {
  weight @w : f32[3]
  state @s : f32[3]
  func @f(%x: f32[3]) -> (f32[3]) {
    %a = mul(@s, @w)
    copy(@s, %a)
    %y = mul(@s, %x)
    %z = mul(%y, @s)
    return %z
  }
}
`)
	x, w, s := []float64{1, 2, 3}, []float64{4, 5, 6}, []float64{-1, 2, 3}
	inputs := func() *oracle.Inputs {
		return &oracle.Inputs{Params: []*interp.Tensor{f32(t, []int64{3}, x...)},
			Weights: map[string]*interp.Tensor{"w": f32(t, []int64{3}, w...)}, States: map[string]*interp.Tensor{"s": f32(t, []int64{3}, s...)}}
	}
	one := f32(t, []int64{3}, 1, 1, 1)
	var gs, gw, left []float64 // z = x*(s*w)^2
	for i := range x {
		gs = append(gs, 2*x[i]*s[i]*w[i]*w[i])
		gw = append(gw, 2*x[i]*s[i]*s[i]*w[i])
		left = append(left, s[i]*w[i])
	}
	for _, save := range []autodiff.Save{autodiff.SaveAuto, autodiff.SaveAll, autodiff.SaveNothing} {
		d, err := autodiff.Gradients(m, "f", []string{"s", "@w"}, autodiff.Options{Save: save})
		if err != nil {
			t.Fatal(err)
		}
		for k, run := range []func(testing.TB, *ir.Module, *oracle.Inputs) []*interp.Tensor{interpret, onHost} {
			first := inputs()
			results := run(t, only(d.Module, d.Forward), first)
			if k == 0 { // onHost does not read states back
				wantValues(t, "the state after the forward", first.States["s"], left...)
			}
			if d.Backward.Params == nil {
				t.Fatal("the backward has no parameters")
			}
			second := inputs()
			second.States["s"] = f32(t, []int64{3}, 99, 99, 99) // others have written it since
			second.Params = nil
			for _, v := range d.Plan.Saved {
				second.Params = append(second.Params, results[v.Result])
			}
			for _, i := range d.Params {
				second.Params = append(second.Params, first.Params[i])
			}
			second.Params = append(second.Params, one)
			got := run(t, only(d.Module, d.Backward), second)
			wantValues(t, "state", got[0], gs...)
			wantValues(t, "weight", got[1], gw...)
		}
	}
	g := joint(t, m, "s", "w")
	in := inputs()
	in.Params = append(in.Params, one)
	got := interpret(t, g, in)
	wantValues(t, "state, in one function", got[0], gs...)
	wantValues(t, "weight, in one function", got[1], gw...)
	wantValues(t, "what is left in the state", in.States["s"], left...)
}

// The plan: with SaveAuto pointwise ops are repeated if that saves bytes, and results of GEMMs are saved.
func TestPlan(t *testing.T) {
	m := testkit.Parse(t, fn("(%x: f32[N, 8], %w: f32[32, 8], %v: f32[8, 32]) -> (f32[N, 8])",
		"%a = linear(%x, %w)", "%b = silu(%a)", "%c = mul(%b, 2.0)", "%d = tanh(%c)", "%y = linear(%d, %v)", "return %y"))
	for _, c := range []struct {
		save              autodiff.Save
		saved             string
		bytes             int64
		params, recompute int
	}{
		{autodiff.SaveAuto, "[linear]", 64 * 32 * 4, 3, 3},         // a; b, c and d again
		{autodiff.SaveAll, "[linear tanh]", 2 * 64 * 32 * 4, 3, 0}, // tanh's rule reads its result, silu's its operand
		{autodiff.SaveNothing, "[]", 0, 3, 4},                      // a, b, c and d again
	} {
		d, err := autodiff.Gradients(m, "f", nil, autodiff.Options{Save: c.save})
		if err != nil {
			t.Fatal(err)
		}
		var ops []string
		for _, s := range d.Plan.Saved {
			ops = append(ops, s.Op)
		}
		if got := fmt.Sprint(ops); got != c.saved || d.Plan.Bytes != c.bytes || len(d.Params) != c.params || d.Plan.Recomputed != c.recompute {
			t.Errorf("save %d: saves %s, %d bytes, %d parameters, repeats %d; want %s, %d, %d, %d\n%s", c.save, got, d.Plan.Bytes, len(d.Params), d.Plan.Recomputed, c.saved, c.bytes, c.params, c.recompute, ir.Print(d.Module))
		}
	}
	// Saving a result of the function costs no bytes.
	d, err := autodiff.Gradients(testkit.Parse(t, fn("(%x: f32[N]) -> (f32[N])", "%y = exp(%x)", "return %y")), "f", nil, autodiff.Options{})
	if err != nil || len(d.Plan.Saved) != 1 || d.Plan.Saved[0].Result != 0 || d.Plan.Bytes != 0 || len(d.Forward.Returns) != 1 {
		t.Errorf("%+v, %v: want the result to be saved, and nothing else", d, err)
	}
}

// SaveAuto never saves more bytes than SaveAll, and the gradients are the same to the bit.
func TestAutoSavesNoMoreThanAll(t *testing.T) {
	for seed := range int64(40) {
		r := rand.New(rand.NewSource(seed))
		lines := []string{"%v0 = linear(%x, %w)"}
		widths := []int{4}
		for i := 1; i < 8; i++ {
			a := r.Intn(i)
			if k := r.Intn(3); k == 0 && widths[a] > 1 {
				lines = append(lines, fmt.Sprintf("%%v%d = slice(%%v%d, axis=1, start=0, end=1)", i, a))
				widths = append(widths, 1)
			} else if k == 1 {
				lines = append(lines, fmt.Sprintf("%%v%d = sum(%%v%d, axes=[1], keepdims=true)", i, a))
				widths = append(widths, 1)
			} else {
				b := r.Intn(i)
				lines = append(lines, fmt.Sprintf("%%v%d = mul(%%v%d, %%v%d)", i, a, b))
				widths = append(widths, max(widths[a], widths[b]))
			}
		}
		lines = append(lines, "%y = sum(%v7, axes=[0, 1])", "return %y")
		m := testkit.Parse(t, fn("(%x: f32[N, 4], %w: f32[4, 4]) -> (f32[])", lines...))
		auto, err := autodiff.Gradients(m, "f", nil, autodiff.Options{})
		if err != nil {
			t.Fatal(err)
		}
		all, err := autodiff.Gradients(m, "f", nil, autodiff.Options{Save: autodiff.SaveAll})
		if err != nil {
			t.Fatal(err)
		}
		if auto.Plan.Bytes > all.Plan.Bytes {
			t.Errorf("seed %d: %d bytes are saved, where %d do without repeating anything", seed, auto.Plan.Bytes, all.Plan.Bytes)
		}
		in := &oracle.Inputs{Symbols: map[string]int64{"N": 3}}
		for _, p := range m.Funcs[0].Params {
			in.Params = append(in.Params, draw(r, m.Funcs[0].Type(p), 3, true))
		}
		c := []*interp.Tensor{f32(t, nil, 1)}
		if err := oracle.SameBits(twoSteps(t, auto, in, c, interpret), twoSteps(t, all, in, c, interpret)); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}
