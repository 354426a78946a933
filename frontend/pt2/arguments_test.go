package pt2

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"pwc/ir/dtype"
)

// TestArguments checks ops where an argument has a special value, or operands differ in shape or dtype.
func TestArguments(t *testing.T) {
	const along = `{"dim": {"as_int": 0}}`
	nan, inf := math.NaN(), math.Inf(1)
	row := []float64{1, 2, 3}
	for _, c := range []opCase{
		{name: "flip of no axis", op: "aten.flip.default", operands: []operand{f32("self", row, 3)}, args: `{"dims": {"as_ints": []}}`, results: []operand{f32("y", row, 3)}},
		{name: "tensordot without sums", op: "aten.tensordot.default", operands: []operand{f32("self", row[:2], 2), f32("other", row, 3)},
			args: `{"dims_self": {"as_ints": []}}, {"dims_other": {"as_ints": []}}`, results: []operand{f32("y", []float64{1, 2, 3, 2, 4, 6}, 2, 3)}},
		{name: "nan_to_num to -inf", op: "aten.nan_to_num.default", operands: []operand{f32("self", []float64{nan, 1, inf, -inf}, 4)},
			args: `{"nan": {"as_float": "-Infinity"}}, {"posinf": {"as_float": 7.0}}`, results: []operand{f32("y", []float64{-inf, 1, 7, -dtype.F32.MaxFinite()}, 4)}},
		{name: "addr with beta=0", op: "aten.addr.default", operands: []operand{f32("self", []float64{nan, inf}, 1, 2), f32("vec1", row[2:], 1), f32("vec2", row[:2], 2)},
			args: `{"beta": {"as_int": 0}}`, results: []operand{f32("y", []float64{3, 6}, 1, 2)}},
		{name: "addmm with beta=0", op: "aten.addmm.default", operands: []operand{f32("self", []float64{nan}, 1), f32("mat1", row[:2], 1, 2), f32("mat2", row[1:], 2, 1)},
			args: `{"beta": {"as_int": 0}}, {"alpha": {"as_int": 2}}`, results: []operand{f32("y", []float64{16}, 1, 1)}},
		{name: "_weight_norm over all axes", op: "aten._weight_norm.default", operands: []operand{f32("v", []float64{3, 0, 0, 4}, 2, 2), f32("g", []float64{10})},
			args: `{"dim": {"as_int": -1}}`, results: []operand{f32("y", []float64{6, 0, 0, 8}, 2, 2)}},
		{name: "cosine_similarity of a vector and rows", op: "aten.cosine_similarity.default", operands: []operand{f32("x1", []float64{1, 0}, 2), f32("x2", []float64{3, 4, 0, 2}, 2, 2)},
			args: `{"dim": {"as_int": -1}}`, results: []operand{f32("y", []float64{0.6, 0}, 2)}},
		{name: "cosine_similarity of a column", op: "aten.cosine_similarity.default", operands: []operand{f32("x1", []float64{1}, 1, 1), f32("x2", []float64{3, 4}, 1, 2)},
			results: []operand{f32("y", []float64{7 / (5 * math.Sqrt2)}, 1)}},
		{name: "searchsorted of floats in integers", op: "aten.searchsorted.Tensor", operands: []operand{i64s("sorted_sequence", row, 3), f32("self", []float64{2.5, 2}, 2)}, results: []operand{i64s("y", []float64{2, 1}, 2)}},
		{name: "bucketize of integers", op: "aten.bucketize.Tensor", operands: []operand{i64s("self", row[:2], 2), f32("boundaries", []float64{0.5, 1.5}, 2)}, results: []operand{i64s("y", []float64{1, 2}, 2)}},
		{name: "bucketize of NaN", op: "aten.bucketize.Tensor", operands: []operand{f32("self", []float64{nan, inf, -inf, 2}, 4), f32("boundaries", row, 3)}, results: []operand{i64s("y", []float64{3, 3, 0, 1}, 4)}},
		{name: "searchsorted of NaN", op: "aten.searchsorted.Tensor", operands: []operand{f32("sorted_sequence", row, 3), f32("self", []float64{nan, 2}, 2)},
			args: `{"right": {"as_bool": true}}`, results: []operand{i64s("y", []float64{3, 2}, 2)}},
		{name: "gather from a number", op: "aten.gather.default", operands: []operand{f32("self", row[:1]), i64s("index", []float64{0, 0, 0}, 3)}, args: along, results: []operand{f32("y", []float64{1, 1, 1}, 3)}},
		{name: "take_along_dim of a number", op: "aten.take_along_dim.default", operands: []operand{f32("self", row[1:2]), i64s("indices", []float64{-1})}, args: along, results: []operand{f32("y", row[1:2])}},
		{name: "scatter to a number", op: "aten.scatter.src", operands: []operand{f32("self", row[:1]), i64s("index", []float64{0}), f32("src", row[2:])}, args: along, results: []operand{f32("y", row[2:])}},
		{name: "scatter a vector to a number", op: "aten.scatter.value", operands: []operand{f32("self", row[:1]), i64s("index", []float64{0}, 1)}, args: along + `, {"value": {"as_float": 5.0}}`, results: []operand{f32("y", []float64{5})}},
		{name: "index_copy to a number", op: "aten.index_copy.default", operands: []operand{f32("self", row[:1]), i64s("index", []float64{0}), f32("source", row[2:])}, args: along, results: []operand{f32("y", row[2:])}},
		{name: "index_copy of a number", op: "aten.index_copy.default", operands: []operand{f32("self", row, 3), i64s("index", []float64{1}), f32("source", row[2:])}, args: along, results: []operand{f32("y", []float64{1, 3, 3}, 3)}},
		{name: "index_fill of a number", op: "aten.index_fill.int_Scalar", operands: []operand{f32("self", row[:1]), i64s("index", []float64{0}, 1)}, args: along + `, {"value": {"as_float": 5.0}}`, results: []operand{f32("y", []float64{5})}},
	} {
		t.Run(c.name, c.run)
	}
}

// TestIndicesOutOfRange gives ops indices that PyTorch refuses, in most cases after one in range. Reads there give
// zero, and writes do nothing. All are reported.
func TestIndicesOutOfRange(t *testing.T) {
	const along, indices = `{"dim": {"as_int": 0}}`, `{"indices": {"as_tensors": [{"name": "index"}]}}`
	const pairs, accumulate = `{"indices": {"as_tensors": [{"name": "index"}, {"name": "column"}]}}`, `, {"accumulate": {"as_bool": true}}`
	x, src := f32("self", []float64{1, 2, 3}, 3), f32("src", []float64{7, 8, 9, 10}, 4)
	raw := i64s("index", []float64{1, -1, 3, -4}, 4)    // for ops that refuse negative indices
	signed := i64s("index", []float64{-2, -4, 3, 5}, 4) // for ops whose negative indices count from the end
	values, source := src, src
	values.name, source.name = "values", "source"
	written := f32("y", []float64{1, 7, 3}, 3)
	for _, c := range []struct {
		opCase
		reports int
	}{
		{opCase{op: "aten.gather.default", operands: []operand{x, raw}, args: along, results: []operand{f32("y", []float64{2, 0, 0, 0}, 4)}}, 3},
		{opCase{op: "aten.gather.default", name: "number", operands: []operand{f32("self", []float64{2}), i64s("index", []float64{0, 1}, 2)}, args: along, results: []operand{f32("y", []float64{2, 0}, 2)}}, 1},
		{opCase{op: "aten.index.Tensor", operands: []operand{x, signed}, args: indices, results: []operand{f32("y", []float64{2, 0, 0, 0}, 4)}}, 3},
		{opCase{op: "aten.index_select.default", name: "number", operands: []operand{f32("self", []float64{2}), i64s("index", []float64{-1}, 1)}, args: along, results: []operand{f32("y", []float64{0})}}, 1},
		{opCase{op: "aten.scatter.src", operands: []operand{x, raw, src}, args: along, results: []operand{written}}, 3},
		{opCase{op: "aten.scatter.src", name: "number", operands: []operand{f32("self", []float64{2}), i64s("index", []float64{-1}), f32("src", []float64{7})}, args: along, results: []operand{f32("y", []float64{2})}}, 1},
		{opCase{op: "aten.index_copy.default", operands: []operand{x, raw, source}, args: along, results: []operand{written}}, 3},
		{opCase{op: "aten.index_put.default", operands: []operand{x, signed, values}, args: indices, results: []operand{written}}, 3},
		{opCase{op: "aten.index_put.default", name: "pairs", operands: []operand{f32("self", []float64{1, 2, 3}, 1, 3), i64s("index", []float64{0, 0, 1, -2}, 4), i64s("column", []float64{1, 3, 0, 0}, 4), values},
			args: pairs, results: []operand{f32("y", []float64{1, 7, 3}, 1, 3)}}, 3},
		{opCase{op: "aten.max_unpool2d.default", operands: []operand{f32("self", []float64{7, 8, 9}, 1, 1, 1, 3), i64s("indices", []float64{1, -1, 3}, 1, 1, 1, 3)},
			args: `{"output_size": {"as_ints": [1, 3]}}`, results: []operand{f32("y", []float64{0, 7, 0}, 1, 1, 1, 3)}}, 2},
		{opCase{op: "aten.scatter_add.default", operands: []operand{x, raw, src}, args: along, results: []operand{f32("y", []float64{1, 9, 3}, 3)}}, 3},
		{opCase{op: "aten.index_put.default", name: "accumulate", operands: []operand{x, signed, values}, args: indices + accumulate, results: []operand{f32("y", []float64{1, 9, 3}, 3)}}, 3},
		{opCase{op: "aten.index_add.default", operands: []operand{x, raw, source}, args: along, results: []operand{f32("y", []float64{1, 9, 3}, 3)}}, 3},
		{opCase{op: "aten.index_fill.int_Scalar", operands: []operand{x, signed}, args: along + `, {"value": {"as_float": 7.0}}`, results: []operand{written}}, 3},
		{opCase{op: "aten.one_hot.default", operands: []operand{i64s("self", []float64{1, -1, 2}, 3)}, results: []operand{i64s("y", []float64{0, 1, 0, 0, 0, 0}, 3, 2)}}, 2},
		{opCase{op: "aten.nll_loss.default", operands: []operand{f32("self", []float64{1, 2, 3, 4, 5, 6}, 3, 2), i64s("target", []float64{1, -100, 2}, 3)},
			args: `{"reduction": {"as_int": 0}}`, results: []operand{f32("y", []float64{-2, 0, 0}, 3)}}, 1},
	} {
		t.Run(c.op+" "+c.name, func(t *testing.T) {
			reports := 0
			for _, e := range c.evaluate(t).IndexErrors {
				reports += e.Count
			}
			if reports != c.reports {
				t.Errorf("%d indices are reported, want %d", reports, c.reports)
			}
		})
	}
}

// TestEpsilonOfRMSNorm compares rms_norm without eps at x = 2^-12 with aten/src/ATen/native/layer_norm.cpp
// (rms_norm_composite): the default is the epsilon of the dtype in which PyTorch computes, 2^-23 of f32, also for f16
// and bf16. The documentation of torch.nn.RMSNorm names finfo(x.dtype).eps, with which y would be 0.0078 for f16.
func TestEpsilonOfRMSNorm(t *testing.T) {
	x, y := 1.0/4096, 1/math.Sqrt(3) // x² + 2^-23 is 3·2^-24
	for _, dt := range []dtype.DType{dtype.F32, dtype.F16, dtype.BF16} {
		for _, eps := range []string{"", `{"eps": {"as_none": true}}`} {
			in, out := operand{"input", dt, []int64{1, 2}, []float64{x, -x}}, operand{"y", dt, []int64{1, 2}, []float64{y, -y}}
			c := opCase{op: "aten.rms_norm.default", operands: []operand{in}, args: `{"normalized_shape": {"as_ints": [2]}}`, results: []operand{out}}
			if eps != "" {
				c.args += ", " + eps
			}
			t.Run(dt.String()+eps, c.run)
			c.op, c.results = "aten._fused_rms_norm.default", append(c.results, f32("rstd", []float64{4096 * y}, 1, 1))
			t.Run("fused "+dt.String()+eps, c.run)
		}
	}
}

// TestAnyOfNone: any of no elements is false and all is true, no element is in an empty list, and an empty index fills
// nothing.
func TestAnyOfNone(t *testing.T) {
	none := operand{"self", dtype.Bool, []int64{2, 0}, nil}
	bools := func(data ...float64) []operand { return []operand{{"y", dtype.Bool, []int64{2}, data}} }
	for _, c := range []opCase{
		{op: "aten.any.dim", operands: []operand{none}, args: `{"dim": {"as_int": 1}}`, results: bools(0, 0)},
		{op: "aten.all.dim", operands: []operand{none}, args: `{"dim": {"as_int": 1}}`, results: bools(1, 1)},
		{op: "aten.isin.Tensor_Tensor", operands: []operand{f32("elements", []float64{1, 2}, 2), f32("test_elements", nil, 0)}, results: bools(0, 0)},
		{op: "aten.index_fill.int_Scalar", operands: []operand{f32("self", []float64{1, 2}, 2), i64s("index", nil, 0)},
			args: `{"dim": {"as_int": 0}, "value": {"as_float": 9}}`, results: []operand{f32("y", []float64{1, 2}, 2)}},
	} {
		t.Run(c.op, c.run)
	}
}

// TestRefusedArguments checks that a call with arguments which no rule supports is refused.
func TestRefusedArguments(t *testing.T) {
	x := f32("self", []float64{1, 2}, 1, 2)
	y := f32("y", []float64{0}, 1)
	for _, c := range []struct {
		opCase
		reason string // of the node; empty: there is no rule
	}{
		{opCase{op: "aten.sum.IntList_out", operands: []operand{x, f32("out", []float64{0}, 1)}, args: `{"dim": {"as_ints": [1]}}`, results: []operand{y}}, ""},
		{opCase{op: "aten.max.dim_max", operands: []operand{x, f32("max", []float64{0}, 1), i64s("max_values", []float64{0}, 1)}, args: `{"dim": {"as_int": 1}}`, results: []operand{y, i64s("i", []float64{0}, 1)}}, ""},
		{opCase{op: "aten.instance_norm.default", operands: []operand{f32("input", []float64{1, 2}, 1, 1, 2), f32("running_mean", []float64{0}, 1), f32("running_var", []float64{1}, 1)},
			args: `{"use_input_stats": {"as_bool": true}}`, results: []operand{f32("y", []float64{0, 0}, 1, 1, 2)}}, "it changes running statistics"},
		{opCase{op: "aten._scaled_dot_product_attention_math.default", operands: []operand{f32("query", []float64{1}, 1, 1), f32("key", []float64{1}, 1, 1), f32("value", []float64{1}, 1, 1), {"dropout_mask", dtype.Bool, []int64{1, 1}, []float64{0}}},
			results: []operand{f32("y", []float64{0}, 1, 1)}}, "dropout_mask"},
		{opCase{op: "aten.index_put.default", operands: []operand{x, {"mask", dtype.U8, []int64{1}, []float64{1}}, f32("values", []float64{9}, 1)},
			args: `{"indices": {"as_tensors": [{"name": "mask"}]}}`, results: []operand{f32("y", []float64{9, 9}, 1, 2)}}, "a mask as an index"},
		{opCase{op: "aten.pow.Tensor_Scalar", operands: []operand{i64s("self", []float64{1}, 1)}, args: `{"exponent": {"as_int": 65}}`, results: []operand{i64s("y", []float64{1}, 1)}}, "a constant exponent from 0 to 64"},
		{opCase{op: "aten._assert_scalar.default", operands: []operand{f32("x", []float64{1}, 1)}, args: `{"self": {"as_bool": false}}`}, "a condition that is false"},
	} {
		t.Run(c.op, func(t *testing.T) {
			_, err := read(t, c.archive(t))
			e, ok := errors.AsType[*ImportError](err)
			if !ok || len(e.Missing) != 1 || !strings.Contains(e.Missing[0].Reason, c.reason) || (c.reason == "") != (e.Missing[0].Reason == "") {
				t.Errorf("%v; its reason should be %q", err, c.reason)
			}
		})
	}
}

// TestExternWithoutResults refuses an extern op that could only write its arguments, because its declaration has no mut
// operands.
func TestExternWithoutResults(t *testing.T) {
	c := opCase{op: "toy.update.default", operands: []operand{f32("cache", []float64{1}, 1)}}
	data := zipped(t, c.archive(t))
	a, err := Read(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Import(Options{Externs: []string{"toy::update"}}); err == nil || !strings.Contains(err.Error(), "without results") {
		t.Error(err)
	}
}

// TestExternThatWrites refuses extern ops that write an argument by their name, their overload, an argument out or
// ATen's schema. An error about such an op without Options.Externs does not offer to keep it.
func TestExternThatWrites(t *testing.T) {
	x, y := f32("x", []float64{1}, 1), f32("y", []float64{1}, 1)
	type row struct {
		op, extern, out string
		refused         bool
	}
	rows := []row{
		{"toy.update_.default", "toy::update_", "x", true},
		{"toy.update_.part", "toy::update_.part", "x", true},
		{"toy.__iand__.default", "toy::__iand__", "x", true},
		{"toy.update.out", "toy::update.out", "x", true},
		{"toy.update.default", "toy::update", "out", true},
		{"aten.rrelu_with_noise.default", "aten::rrelu_with_noise", "noise", true},
		{"aten._native_batch_norm_legit.default", "aten::_native_batch_norm_legit", "x", true},
		{"aten._native_batch_norm_legit.no_stats", "aten::_native_batch_norm_legit.no_stats", "x", false},
		{"aten._cummax_helper.default", "aten::_cummax_helper", "values", true},
		{"aten.xlogy.OutTensor", "aten::xlogy.OutTensor", "out", true},
		{"aten._flash_attention_backward.default", "aten::_flash_attention_backward", "out", false}, // it reads out
		{"aten.frexp.Tensor", "aten::frexp.Tensor", "self", false},
		{"toy.update.U", "toy::update.U", "x", false},
		{"toy.__and__.default", "toy::__and__", "x", false},
		{"toy.update.default", "toy::update", "x", false},
	}
	// Out overloads of ATen without an argument out or out0.
	for _, op := range strings.Fields(`frexp.Tensor_out histogram.bins_tensor_out cummax.dimname_out nll_loss_forward.output
		_linalg_det.result gelu_backward.grad_input topk.values sort.values_stable median.dim_values max.dim_max min.dim_min
		median.names_dim_values max.names_dim_max min.names_dim_min sort.dimname_values sort.dimname_values_stable geqrf.a
		linalg_cholesky_ex.L qr.Q linalg_svd.U triangular_solve.X linalg_inv_ex.inverse _linalg_slogdet.sign
		_linalg_eigh.eigenvalues linalg_eigh.eigvals`) {
		rows = append(rows, row{"aten." + op, "aten::" + op, "x", true})
	}
	for _, c := range rows {
		x.name = c.out
		op := opCase{op: c.op, operands: []operand{x}, results: []operand{y}}
		data := zipped(t, op.archive(t))
		a, err := Read(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = a.Import(Options{Externs: []string{c.extern}})
		if refused := err != nil && strings.Contains(err.Error(), "does not write its tensors"); refused != c.refused || !refused && err != nil {
			t.Errorf("%s of %s: %v, want refused: %v", c.op, c.out, err, c.refused)
		}
		_, err = a.Import(Options{})
		if !strings.HasPrefix(c.op, "aten._native") && (err == nil || strings.Contains(err.Error(), "Options.Externs") == c.refused) {
			t.Errorf("%s of %s: %v", c.op, c.out, err)
		}
	}
}

// TestExternWritesByTheSignature imports programs whose signature says that a call of toy::update changes its input.
// If the new value of the input is the input itself, or its copy, the op wrote it, which is refused. If the new value
// is the result of the call, the input becomes a mut parameter.
func TestExternWritesByTheSignature(t *testing.T) {
	const meta = `{"dtype": 7, "sizes": [{"as_int": 2}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}, "layout": 7}`
	for _, c := range []struct{ operand, changed, err string }{
		{"cache", "cache", `the program writes "cache", an argument of toy::update: a call of an extern op does not write`},
		{"copy", "copy", `the program writes "cache", an argument of toy::update: a call of an extern op does not write`},
		{"cache", "y", ""},
		{"copy", "y", ""},
	} {
		text := `{"graph_module": {"graph": {"inputs": [{"as_tensor": {"name": "cache"}}], "outputs": [{"as_tensor": {"name": "` + c.changed + `"}}, {"as_tensor": {"name": "y"}}], "nodes": [
  {"target": "torch.ops.aten.clone.default", "name": "copy", "metadata": {}, "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "cache"}}, "kind": 1}], "outputs": [{"as_tensor": {"name": "copy"}}]},
  {"target": "torch.ops.toy.update.default", "name": "y", "metadata": {}, "inputs": [{"name": "cache", "arg": {"as_tensor": {"name": "` + c.operand + `"}}, "kind": 1}], "outputs": [{"as_tensor": {"name": "y"}}]}],
 "tensor_values": {"cache": ` + meta + `, "copy": ` + meta + `, "y": ` + meta + `}, "sym_int_values": {}, "sym_bool_values": {}},
 "signature": {"input_specs": [{"user_input": {"arg": {"as_tensor": {"name": "cache"}}}}],
  "output_specs": [{"user_input_mutation": {"arg": {"name": "` + c.changed + `"}, "user_input_name": "cache"}}, {"user_output": {"arg": {"as_tensor": {"name": "y"}}}}]}, "module_call_graph": []},
 "opset_version": {"aten": 10}, "range_constraints": {}, "schema_version": {"major": 8, "minor": 17}, "torch_version": "2.11.0", "guards_code": []}`
		data := zipped(t, append(tinyEntries()[:3], entry{name: "model/models/model.json", data: text}))
		a, err := Read(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		m, err := a.Import(Options{Externs: []string{"toy::update"}})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s, then %s: %v, want %q", c.operand, c.changed, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if f := m.Module.Func(FuncName); !f.Values[f.Params[0]].Mut {
			t.Errorf("%s, then %s: the input is not mut", c.operand, c.changed)
		}
	}
}

// TestInputAndParameterOfOneName: if the program writes an input, a parameter of the same name stays a weight.
func TestInputAndParameterOfOneName(t *testing.T) {
	e := tinyEntries()
	e[3].data = strings.NewReplacer(`"x"`, `"w"`, `"outputs": [{"as_tensor": {"name": "add"}}],
 "nodes"`, `"outputs": [{"as_tensor": {"name": "add"}}, {"as_tensor": {"name": "add"}}],
 "nodes"`, `"output_specs": [`, `"output_specs": [{"user_input_mutation": {"arg": {"name": "add"}, "user_input_name": "w"}}, `).Replace(e[3].data)
	m, err := read(t, e)
	if err != nil {
		t.Fatal(err)
	}
	if f := m.Module.Func(FuncName); len(m.Module.Weights) != 1 || len(m.Module.States) != 0 || !f.Values[f.Params[0]].Mut {
		t.Errorf("%d weights, %d states and mut %t, want 1, 0 and true", len(m.Module.Weights), len(m.Module.States), f.Values[f.Params[0]].Mut)
	}
}

// TestWrittenBufferSharesMemory: a program that writes a buffer is refused if it reads another tensor in the same memory,
// which the write changes in PyTorch.
func TestWrittenBufferSharesMemory(t *testing.T) {
	for offset, refuses := range map[string]bool{"0": true, "1": true, "2": false} {
		e := tinyEntries()
		e[3].data = strings.NewReplacer(`"outputs": [{"as_tensor": {"name": "add"}}],
 "nodes"`, `"outputs": [{"as_tensor": {"name": "add"}}, {"as_tensor": {"name": "add"}}],
 "nodes"`,
			`{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}`, `{"buffer": {"arg": {"name": "x"}, "buffer_name": "b"}}`,
			`"output_specs": [`, `"output_specs": [{"buffer_mutation": {"arg": {"name": "add"}, "buffer_name": "b"}}, `).Replace(e[3].data)
		second := strings.Replace(meta, `"storage_offset": {"as_int": 0}`, `"storage_offset": {"as_int": `+offset+`}`, 1)
		e[4].data = strings.Replace(e[4].data, `{"config": {`, `{"config": {"b": {"path_name": "weight_0", "is_param": false, "use_pickle": false, "tensor_meta": `+second+`}, `, 1)
		e[5].data += e[5].data
		_, err := read(t, e)
		if refused := err != nil && strings.Contains(err.Error(), `buffer "b", whose memory "w" may share`); refused != refuses || !refuses && err != nil {
			t.Errorf("offset %s: %v", offset, err)
		}
	}
}

// TestContiguousAliases adds to the result of contiguous(memory_format=torch.channels_last). It changes the input only
// if the input has these strides already.
func TestContiguousAliases(t *testing.T) {
	image := func(strides string) string {
		return `{"dtype": 7, "sizes": [{"as_int": 1}, {"as_int": 2}, {"as_int": 3}, {"as_int": 4}], "strides": ` + strides + `, "storage_offset": {"as_int": 0}, "layout": 7}`
	}
	rows := image(`[{"as_int": 24}, {"as_int": 12}, {"as_int": 4}, {"as_int": 1}]`)
	last := image(`[{"as_int": 24}, {"as_int": 1}, {"as_int": 8}, {"as_int": 2}]`)
	for x, changes := range map[string]bool{rows: false, last: true} {
		text := `{"graph_module": {"graph": {"inputs": [{"as_tensor": {"name": "x"}}], "outputs": [{"as_tensor": {"name": "z"}}], "nodes": [
  {"target": "torch.ops.aten.contiguous.default", "name": "y", "metadata": {}, "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1},
   {"name": "memory_format", "arg": {"as_memory_format": 2}, "kind": 2}], "outputs": [{"as_tensor": {"name": "y"}}]},
  {"target": "torch.ops.aten.add_.Scalar", "name": "z", "metadata": {}, "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "y"}}, "kind": 1},
   {"name": "other", "arg": {"as_int": 1}, "kind": 1}], "outputs": [{"as_tensor": {"name": "z"}}]}],
 "tensor_values": {"x": ` + x + `, "y": ` + last + `, "z": ` + last + `}, "sym_int_values": {}, "sym_bool_values": {}},
 "signature": {"input_specs": [{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}],
  "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "z"}}}}]}, "module_call_graph": []},
 "opset_version": {"aten": 10}, "range_constraints": {}, "schema_version": {"major": 8, "minor": 17}, "torch_version": "2.11.0", "guards_code": []}`
		m, err := read(t, append(tinyEntries()[:3], entry{name: "model/models/model.json", data: text}))
		if err != nil {
			t.Fatal(err)
		}
		f := m.Module.Func(FuncName)
		if mut := f.Values[f.Params[0]].Mut; mut != changes {
			t.Errorf("the input is mut: %v, want %v", mut, changes)
		}
	}
}
