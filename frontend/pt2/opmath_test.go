package pt2

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"pwc/autodiff"
	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// floats are the dtypes of the tests of rounding, and the largest distance of a result from the definition in units of
// its last digit. Results of f16 and bf16 are computed in f32, so they differ only near the middle of two numbers.
var floats = []struct {
	dt   dtype.DType
	ulps float64
}{{dtype.F16, 1}, {dtype.BF16, 1}, {dtype.F32, 8}}

// magnitudes are operands up to almost the largest numbers of bf16 and f32, and ±Inf. A test of f16 has those above
// 65504, its largest number, as ±Inf.
var magnitudes = []float64{0, 0x1p-14, 1e-3, 0.3, 0.499, 0.501, 0.9995, 1, 1.25, 2.5, 3.5, 5, 8.5, 11.5, 12, 15.5, 17, 60, 88, 89, 127, 300, 2049, 40000, 65504, 1e10, 1e19, 1e20, 3e38, math.Inf(1)}

// A definition is an element-wise op by its definition in float64.
type definition struct {
	op, args string
	f        func(x float64) float64
	from, to float64 // the smallest and the largest operand of the test; both 0: all operands
}

var unaryDefinitions = []definition{
	{op: "aten.tan.default", f: math.Tan, from: -300, to: 300},
	{op: "aten.log2.default", f: math.Log2}, {op: "aten.log10.default", f: math.Log10}, {op: "aten.exp2.default", f: math.Exp2},
	{op: "aten.log1p.default", f: math.Log1p}, {op: "aten.expm1.default", f: math.Expm1},
	{op: "aten.sinh.default", f: math.Sinh}, {op: "aten.cosh.default", f: math.Cosh},
	{op: "aten.asinh.default", f: math.Asinh}, {op: "aten.acosh.default", f: math.Acosh}, {op: "aten.atanh.default", f: math.Atanh},
	{op: "aten.atan.default", f: math.Atan}, {op: "aten.asin.default", f: math.Asin}, {op: "aten.acos.default", f: math.Acos, from: -1, to: 0.9995},
	{op: "aten.erfc.default", f: math.Erfc, from: -300, to: 8.5},
	{op: "aten.mish.default", f: func(x float64) float64 { return x * math.Tanh(softplus(x)) }, from: -60, to: math.Inf(1)},
	{op: "aten.softplus.default", f: softplus},
	{op: "aten.softplus.default", args: `{"beta": {"as_float": 4.0}}`, f: func(x float64) float64 { return softplus(4*x) / 4 }, from: -15.5, to: 3e38},
	{op: "aten.log_sigmoid.default", f: func(x float64) float64 { return -softplus(-x) }},
	{op: "aten.hardsigmoid.default", f: hardSigmoid},
	{op: "aten.hardswish.default", f: func(x float64) float64 { return x * hardSigmoid(x) }, from: -1e20, to: 1e20},
	{op: "aten.softsign.default", f: func(x float64) float64 { return x / (1 + math.Abs(x)) }},
	{op: "aten.sinc.default", f: func(x float64) float64 { return math.Sin(math.Pi*x) / (math.Pi * x) }, from: 0x1p-14, to: 0.501},
	{op: "aten.logit.default", f: func(x float64) float64 { return math.Log(x / (1 - x)) }, from: 0x1p-14, to: 0.3},
	{op: "aten.elu.default", args: `{"alpha": {"as_float": 1.7}}`, f: func(x float64) float64 { return elu(x, 1.7, 1, 1) }},
	{op: "aten.celu.default", args: `{"alpha": {"as_float": 1.7}}`, f: func(x float64) float64 { return elu(x, 1.7, 1, 1/1.7) }},
	{op: "aten.selu.default", f: func(x float64) float64 { return elu(x, 1.6732632423543772, 1.0507009873554805, 1) }, from: -300, to: 1e20},
	{op: "aten.pow.Tensor_Scalar", args: `{"exponent": {"as_int": 3}}`, f: func(x float64) float64 { return x * x * x }},
	{op: "aten.square.default", f: func(x float64) float64 { return x * x }},
	{op: "aten.add.Scalar", args: `{"other": {"as_float": 40000.0}}, {"alpha": {"as_int": 3}}`, f: func(x float64) float64 { return x + 120000 }},
}

func softplus(x float64) float64 { return math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

func hardSigmoid(x float64) float64 { return min(max(x+3, 0), 6) / 6 }

func elu(x, alpha, scale, in float64) float64 {
	if x > 0 {
		return scale * x
	}
	return scale * alpha * math.Expm1(x*in)
}

// pairs are operands of ops of two tensors.
var pairs = [][2]float64{{300, 400}, {-300, 400}, {3, -4}, {0.2, 0.3}, {40000, 50000}, {-40000, -50000}, {1e-3, 2e-3}, {1, 0.1}, {-7, 0.3}, {0, 5}, {5, 0}, {0, -5}, {-1, 60}, {1e20, 1e20}, {-3e37, 1e10}, {math.Inf(1), 3}, {3, math.Inf(1)}, {math.Inf(-1), math.Inf(1)}}

var binaryDefinitions = []struct {
	op, args string
	names    [2]string
	f        func(x, y float64) float64
}{
	{op: "aten.hypot.default", f: math.Hypot},
	{op: "aten.atan2.default", f: math.Atan2},
	{op: "aten.logaddexp.default", f: func(x, y float64) float64 {
		if x == y {
			return x + math.Ln2
		}
		return max(x, y) + math.Log1p(math.Exp(-math.Abs(x-y)))
	}},
	{op: "aten.xlogy.Tensor", f: func(x, y float64) float64 {
		if x == 0 {
			return 0
		}
		return x * math.Log(y)
	}},
	{op: "aten.add.Tensor", args: `{"alpha": {"as_float": 1.75}}`, f: func(x, y float64) float64 { return x + 1.75*y }},
	{op: "aten.rsub.Tensor", args: `{"alpha": {"as_float": 1.75}}`, f: func(x, y float64) float64 { return y - 1.75*x }},
	{op: "aten.floor_divide.default", f: func(x, y float64) float64 { return quotientOf(x, y) }},
	{op: "aten.div.Tensor_mode", args: `{"rounding_mode": {"as_string": "floor"}}`, f: quotientOf},
	{op: "aten.div.Tensor_mode", args: `{"rounding_mode": {"as_string": "trunc"}}`, f: func(x, y float64) float64 { return math.Trunc(float64(float32(x / y))) }},
	{op: "aten.lerp.Scalar", args: `{"weight": {"as_float": 1.0}}`, names: [2]string{"self", "end"}, f: func(x, y float64) float64 { return y + 0*(y-x) }},
	{op: "aten.lerp.Scalar", args: `{"weight": {"as_float": 0.25}}`, names: [2]string{"self", "end"}, f: func(x, y float64) float64 { return x + 0.25*(y-x) }},
}

// quotientOf is x // y of Python, with PyTorch's results for infinite operands and y = 0.
func quotientOf(x, y float64) float64 {
	switch {
	case y == 0:
		return x / y
	case math.IsInf(x, 0):
		return math.NaN()
	}
	r := math.Mod(x, y)
	q := math.Round((x - r) / y)
	if r != 0 && (r < 0) != (y < 0) {
		q--
	}
	return q
}

// opmathCases are ops that compose ops of the IR, with operands at which intermediate values of the dtype would
// overflow or lose digits. Results are rounded once from the definition in float64.
func opmathCases() []opCase {
	var out []opCase
	for _, f := range floats {
		for _, d := range unaryDefinitions {
			var x []float64
			for _, v := range magnitudes {
				for _, v := range []float64{v, -v} {
					if v = f.dt.Round(v); d.from == 0 && d.to == 0 || d.from <= v && v <= d.to {
						x = append(x, v)
					}
				}
			}
			y := make([]float64, len(x))
			for i, v := range x {
				y[i] = d.f(v)
			}
			n := []int64{int64(len(x))}
			out = append(out, opCase{name: fmt.Sprint(d.op, d.args, f.dt), op: d.op, args: d.args, ulps: f.ulps,
				operands: []operand{{"self", f.dt, n, x}}, results: []operand{{"y", f.dt, n, y}}})
		}
		for _, d := range binaryDefinitions {
			names := d.names
			if names[0] == "" {
				names = [2]string{"self", "other"}
			}
			var x, y, z []float64
			for _, p := range pairs {
				a, b := f.dt.Round(p[0]), f.dt.Round(p[1])
				x, y, z = append(x, a), append(y, b), append(z, d.f(a, b))
			}
			n := []int64{int64(len(x))}
			out = append(out, opCase{name: fmt.Sprint(d.op, d.args, f.dt), op: d.op, args: d.args, ulps: f.ulps,
				operands: []operand{{names[0], f.dt, n, x}, {names[1], f.dt, n, y}}, results: []operand{{"z", f.dt, n, z}}})
		}
		for _, c := range wideCases() {
			c.name, c.ulps = fmt.Sprint(c.name, " ", f.dt), f.ulps
			c.operands, c.results = slices.Clone(c.operands), slices.Clone(c.results)
			for _, list := range [][]operand{c.operands, c.results} {
				for i := range list {
					if list[i].dt == dtype.F32 {
						list[i].dt = f.dt
					}
				}
			}
			out = append(out, c)
		}
	}
	return out
}

// wideCases are further ops, most of them not element-wise, in f32. Their operands are numbers of every dtype of floats.
func wideCases() []opCase {
	two := func(name string, x, y float64) operand { return f32(name, []float64{x, y}, 2) }
	return []opCase{
		{name: "mse_loss", op: "aten.mse_loss.default", operands: []operand{two("self", 300, 0), two("target", 0, 0)}, results: []operand{f32("y", []float64{45000})}},
		{name: "huber_loss", op: "aten.huber_loss.default", args: `{"delta": {"as_float": 300.0}}`, operands: []operand{two("self", 300, 0), two("target", 0, 0)}, results: []operand{f32("y", []float64{22500})}},
		{name: "smooth_l1_loss", op: "aten.smooth_l1_loss.default", args: `{"beta": {"as_float": 512.0}}`, operands: []operand{two("self", 400, 0), two("target", 0, 0)}, results: []operand{f32("y", []float64{400 * 400 / 2048.0})}},
		{name: "l1_loss", op: "aten.l1_loss.default", operands: []operand{two("self", 40960, 0), two("target", -40960, 0)}, results: []operand{f32("y", []float64{40960})}},
		{name: "binary_cross_entropy_with_logits", op: "aten.binary_cross_entropy_with_logits.default", operands: []operand{two("self", 12, -12), two("target", 0.25, 0.75)},
			results: []operand{f32("y", []float64{0.75*12 + softplus(-12)})}},
		{name: "binary_cross_entropy", op: "aten.binary_cross_entropy.default", operands: []operand{two("self", 0x1p-9, 0.75), two("target", 0.25, 0.75)},
			results: []operand{f32("y", []float64{-(0.25*math.Log(0x1p-9) + 0.75*math.Log1p(-0x1p-9) + 0.75*math.Log(0.75) + 0.25*math.Log(0.25)) / 2})}},
		{name: "kl_div", op: "aten.kl_div.default", args: `{"reduction": {"as_int": 2}}`, operands: []operand{two("self", -40960, -0.5), two("target", 2, 2)},
			results: []operand{f32("y", []float64{4*math.Ln2 + 2*40960.5})}},
		{name: "cosine_similarity", op: "aten.cosine_similarity.default", args: `{"dim": {"as_int": 0}}`, operands: []operand{two("x1", 384, 512), two("x2", 512, 384)}, results: []operand{f32("y", []float64{0.96})}},
		{name: "nanmean", op: "aten.nanmean.default", operands: []operand{f32("self", []float64{49152, 49152, math.NaN(), 49152}, 4)}, results: []operand{f32("y", []float64{49152})}},
		{name: "mean", op: "aten.mean.default", operands: []operand{two("self", 49152, 49152)}, results: []operand{f32("y", []float64{49152})}},
		{name: "std", op: "aten.std.correction", args: `{"correction": {"as_int": 0}}`, operands: []operand{two("self", -49152, 49152)}, results: []operand{f32("y", []float64{49152})}},
		{name: "linalg_vector_norm", op: "aten.linalg_vector_norm.default", operands: []operand{two("self", 384, 512)}, results: []operand{f32("y", []float64{640})}},
		{name: "linalg_vector_norm of p = 3", op: "aten.linalg_vector_norm.default", args: `{"ord": {"as_float": 3.0}}`, operands: []operand{f32("self", slices.Repeat([]float64{1024}, 8), 8)}, results: []operand{f32("y", []float64{2048})}},
		{name: "logsumexp", op: "aten.logsumexp.default", args: `{"dim": {"as_ints": [0]}}`, operands: []operand{two("self", 12, 12)}, results: []operand{f32("y", []float64{12 + math.Ln2})}},
		{name: "logcumsumexp", op: "aten.logcumsumexp.default", args: `{"dim": {"as_int": 0}}`, operands: []operand{two("self", 12, 12)}, results: []operand{two("y", 12, 12+math.Ln2)}},
		{name: "log_softmax", op: "aten.log_softmax.int", args: `{"dim": {"as_int": 0}}`, operands: []operand{two("self", 49152, 0)}, results: []operand{two("y", 0, -49152)}},
		{name: "cumsum", op: "aten.cumsum.default", args: `{"dim": {"as_int": 0}}`, operands: []operand{f32("self", []float64{32768, 49152, -32768}, 3)}, results: []operand{f32("y", []float64{32768, 81920, 49152}, 3)}},
		{name: "cdist", op: "aten.cdist.default", operands: []operand{f32("x1", []float64{384, 512}, 1, 2), f32("x2", []float64{0, 0}, 1, 2)}, results: []operand{f32("y", []float64{640}, 1, 1)}},
		{name: "_weight_norm", op: "aten._weight_norm.default", operands: []operand{f32("v", []float64{3 * 0x1p-14, 4 * 0x1p-14}, 1, 2), f32("g", []float64{40}, 1, 1)}, results: []operand{f32("y", []float64{24, 32}, 1, 2)}},
		{name: "glu", op: "aten.glu.default", operands: []operand{two("self", 49152, -20)}, results: []operand{f32("y", []float64{49152 / (1 + math.Exp(20))}, 1)}},
		{name: "addcmul", op: "aten.addcmul.default", args: `{"value": {"as_float": 0.125}}`, operands: []operand{two("self", 1, 2), two("tensor1", 512, 512), two("tensor2", 512, -512)}, results: []operand{two("y", 32769, -32766)}},
		{name: "addcdiv", op: "aten.addcdiv.default", args: `{"value": {"as_float": 0.125}}`, operands: []operand{two("self", 1, 2), two("tensor1", 512, 512), two("tensor2", 0x1p-9, -0x1p-9)}, results: []operand{two("y", 32769, -32766)}},
		{name: "avg_pool1d", op: "aten.avg_pool1d.default", args: `{"kernel_size": {"as_ints": [2]}}`, operands: []operand{f32("self", []float64{49152, 49152}, 1, 1, 2)}, results: []operand{f32("y", []float64{49152}, 1, 1, 1)}},
		{name: "adaptive_avg_pool2d", op: "aten.adaptive_avg_pool2d.default", args: `{"output_size": {"as_ints": [1, 1]}}`, operands: []operand{f32("self", []float64{1, 1, 1 + 0x1p-7, 1}, 1, 1, 2, 2)}, results: []operand{f32("y", []float64{1 + 0x1p-9}, 1, 1, 1, 1)}},
		{name: "scatter_add", op: "aten.scatter_add.default", args: `{"dim": {"as_int": 0}}`, operands: []operand{two("self", -49152, 1), i64s("index", []float64{0, 0}, 2), two("src", 49152, 49152)}, results: []operand{two("y", 49152, 1)}},
		{name: "scatter_reduce mean", op: "aten.scatter_reduce.two", args: `{"dim": {"as_int": 0}}, {"reduce": {"as_string": "mean"}}`, operands: []operand{two("self", 49152, 1), i64s("index", []float64{0, 0}, 2), two("src", 49152, 49152)}, results: []operand{two("y", 49152, 1)}},
		{name: "index_add", op: "aten.index_add.default", args: `{"dim": {"as_int": 0}}, {"alpha": {"as_float": 0.5}}`, operands: []operand{two("self", -49152, 1), i64s("index", []float64{0, 0}, 2), two("source", 65280, 65280)}, results: []operand{two("y", 16128, 1)}},
		{name: "index_put", op: "aten.index_put.default", args: `{"indices": {"as_tensors": [{"name": "index"}]}}, {"accumulate": {"as_bool": true}}`, operands: []operand{two("self", -49152, 1), i64s("index", []float64{0, 0}, 2), two("values", 49152, 49152)}, results: []operand{two("y", 49152, 1)}},
		{name: "baddbmm", op: "aten.baddbmm.default", args: `{"alpha": {"as_float": 0.1875}}`, operands: []operand{f32("self", []float64{8}, 1, 1, 1), f32("batch1", []float64{320, 320}, 1, 1, 2), f32("batch2", []float64{320, 320}, 1, 2, 1)}, results: []operand{f32("y", []float64{38408}, 1, 1, 1)}},
		{name: "scaled_dot_product_attention", op: "aten.scaled_dot_product_attention.default", operands: []operand{f32("query", slices.Repeat([]float64{64}, 64), 1, 64), f32("key", append(slices.Repeat([]float64{64}, 64), slices.Repeat([]float64{80}, 64)...), 2, 64), f32("value", []float64{1, 2}, 2, 1)}, results: []operand{f32("y", []float64{2}, 1, 1)}},
		{name: "addr", op: "aten.addr.default", args: `{"alpha": {"as_float": 0.25}}`, operands: []operand{f32("self", []float64{512}, 1, 1), f32("vec1", []float64{384}, 1), f32("vec2", []float64{512}, 1)}, results: []operand{f32("y", []float64{512 + 384*128}, 1, 1)}},
		{name: "cross", op: "aten.linalg_cross.default", operands: []operand{f32("self", []float64{512, 384, 0}, 3), f32("other", []float64{384, 256, 0}, 3)}, results: []operand{f32("y", []float64{0, 0, 512*256 - 384*384}, 3)}},
		{name: "bilinear", op: "aten.bilinear.default", operands: []operand{f32("input1", []float64{512}, 1, 1), f32("input2", []float64{512}, 1, 1), f32("weight", []float64{0.125}, 1, 1, 1)}, results: []operand{f32("y", []float64{32768}, 1, 1)}},
		{name: "depthwise convolution", op: "aten.conv1d.default", args: `{"groups": {"as_int": 2}}`, operands: []operand{f32("input", []float64{512, 512, 3, 5}, 1, 2, 2), f32("weight", []float64{512, -512, 1, 1}, 2, 1, 2)}, results: []operand{f32("y", []float64{0, 8}, 1, 2, 1)}},
		{name: "batch_norm", op: "aten._native_batch_norm_legit_no_training.default", operands: []operand{f32("input", []float64{49152}, 1, 1), f32("running_mean", []float64{-49152}, 1), f32("running_var", []float64{65280}, 1)}, results: []operand{f32("y", []float64{98304 / math.Sqrt(65280+1e-5)}, 1, 1)}},
		{name: "group_norm", op: "aten.group_norm.default", args: `{"num_groups": {"as_int": 1}}`, operands: []operand{f32("input", []float64{49152, -49152}, 1, 2)}, results: []operand{f32("y", []float64{1, -1}, 1, 2)}},
	}
}

// apart returns the distance of a result from the exact value, in units of the last digit of the value rounded to dt.
// It is 0 for equal infinities and for two NaNs, and infinite for other values that are not finite.
func apart(dt dtype.DType, got, exact float64) float64 {
	want := dt.Round(exact)
	switch {
	case got == want || got != got && want != want:
		return 0
	case math.IsInf(got, 0) || math.IsInf(want, 0) || got != got || want != want:
		return math.Inf(1)
	}
	digits, least := map[dtype.DType]int{dtype.F16: 11, dtype.BF16: 8, dtype.F32: 24}[dt], map[dtype.DType]int{dtype.F16: -13, dtype.BF16: -125, dtype.F32: -125}[dt]
	_, exponent := math.Frexp(want)
	if want == 0 {
		exponent = least
	}
	return math.Abs(got-want) / math.Ldexp(1, max(exponent, least)-digits)
}

// near reports the elements of a result that are not within c.ulps of the definition.
func (c *opCase) near(t *testing.T, got *interp.Tensor, want operand) {
	t.Helper()
	for i, x := range want.data {
		if y := got.At(i); apart(want.dt, y, x) > c.ulps {
			var at []float64
			for _, o := range c.operands {
				if len(o.data) == len(want.data) {
					at = append(at, o.data[i])
				}
			}
			t.Errorf("%s[%d] of %g is %g, want %g (%g units apart)", want.name, i, at, y, want.dt.Round(x), apart(want.dt, y, x))
		}
	}
}

// TestGradients compares gradients of element-wise ops with differences of their definitions, where these are smooth.
// The branches of a rule that are not taken must not make them NaN.
func TestGradients(t *testing.T) {
	for _, d := range unaryDefinitions {
		t.Run(d.op+d.args, func(t *testing.T) {
			var x []float64
			for _, v := range []float64{0, 0.3, 0.6, 0.9, 1.5, 5, 9, 17, 25, 60, 100, 1e4, 1e10} {
				for _, v := range []float64{v, -v} {
					left, right := (d.f(v)-d.f(v-1e-6))/1e-6, (d.f(v+1e-6)-d.f(v))/1e-6
					smooth := math.Abs(left-right) < 1e-3*max(1, math.Abs(left)) // false for NaN, too
					if in := d.from == 0 && d.to == 0 || d.from <= v && v <= d.to; in && smooth && math.Abs(left) < 1e30 {
						x = append(x, float64(float32(v)))
					}
				}
			}
			n := []int64{int64(len(x))}
			c := opCase{op: d.op, args: d.args, operands: []operand{{"self", dtype.F32, n, x}}, results: []operand{{"y", dtype.F32, n, x}}}
			m, err := read(t, c.archive(t))
			if err != nil {
				t.Fatal(err)
			}
			joint, err := autodiff.Joint(m.Module, FuncName, []string{"self"}, autodiff.Options{})
			if err != nil {
				t.Fatal(err)
			}
			in := []*interp.Tensor{c.operands[0].tensor(t), operand{"g", dtype.F32, n, slices.Repeat([]float64{1}, len(x))}.tensor(t)}
			out, err := interp.Run(context.Background(), joint, joint.Funcs[0], &interp.Env{}, in)
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range x {
				h := 1e-6 * max(1, math.Abs(v))
				if got, want := out[0].At(i), (d.f(v+h)-d.f(v-h))/(2*h); math.Abs(got-want) > 1e-3*max(math.Abs(want), 1e-3) || got != got {
					t.Errorf("the slope at %g is %g, want %g", v, got, want)
				}
			}
		})
	}
}
