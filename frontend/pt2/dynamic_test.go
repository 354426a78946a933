package pt2

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pwc/ir/interp"
)

// TestDynamicAxes runs ops along an axis of dynamic size at sizes with an edge case. Pooled with ceil_mode, an axis of
// odd size has a last window of one element. With align_corners, an axis of one element has its coordinate at the
// start of an image that is resampled, and in the middle of an affine grid.
func TestDynamicAxes(t *testing.T) {
	const n, one = `{"as_expr": {"expr_str": "Symbol('s0')"}}`, `{"as_int": 1}`
	meta := func(sizes ...string) string {
		strides := strings.Repeat(one+", ", len(sizes)-1) + one
		return `{"dtype": 7, "sizes": [` + strings.Join(sizes, ", ") + `], "strides": [` + strides + `], "storage_offset": {"as_int": 0}, "layout": 7}`
	}
	type run struct{ x, want []float64 }
	for _, c := range []struct {
		op, name, args string
		in, out        string
		shape          []int64 // of the input; 0: its dynamic size
		runs           map[int64]run
	}{
		{"aten.max_pool1d.default", "self", `{"name": "kernel_size", "arg": {"as_ints": [2]}, "kind": 1}, {"name": "stride", "arg": {"as_ints": [2]}, "kind": 1}, {"name": "ceil_mode", "arg": {"as_bool": true}, "kind": 1}`,
			meta(one, one, n), meta(one, one, `{"as_expr": {"expr_str": "FloorDiv(Add(Symbol('s0'), Integer(1)), Integer(2))"}}`), []int64{1, 1, 0},
			map[int64]run{5: {[]float64{1, 3, 2, 5, -4}, []float64{3, 5, -4}}, 4: {[]float64{1, 3, 2, 5}, []float64{3, 5}}}},
		{"aten.upsample_bilinear2d.vec", "input", `{"name": "align_corners", "arg": {"as_bool": true}, "kind": 1}`,
			meta(one, one, one, `{"as_int": 3}`), meta(one, one, one, n), []int64{1, 1, 1, 3},
			map[int64]run{1: {[]float64{4, 5, 8}, []float64{4}}, 2: {[]float64{4, 5, 8}, []float64{4, 8}}, 3: {[]float64{4, 5, 8}, []float64{4, 5, 8}}}},
		{"aten.affine_grid_generator.default", "theta", `{"name": "align_corners", "arg": {"as_bool": true}, "kind": 1}`,
			meta(one, `{"as_int": 2}`, `{"as_int": 3}`), meta(one, one, n, `{"as_int": 2}`), []int64{1, 2, 3},
			map[int64]run{1: {[]float64{1, 0, 0, 0, 1, 0}, []float64{0, 0}}, 2: {[]float64{1, 0, 0, 0, 1, 0}, []float64{-1, 0, 1, 0}}}},
	} {
		text := `{"graph_module": {"graph": {"inputs": [{"as_tensor": {"name": "x"}}, {"as_tensor": {"name": "z"}}], "outputs": [{"as_tensor": {"name": "y"}}], "nodes": [
  {"target": "torch.ops.` + c.op + `", "name": "y", "metadata": {}, "inputs": [{"name": "` + c.name + `", "arg": {"as_tensor": {"name": "x"}}, "kind": 1}, ` + c.args + `], "outputs": [{"as_tensor": {"name": "y"}}]}],
 "tensor_values": {"x": ` + c.in + `, "z": ` + meta(n) + `, "y": ` + c.out + `}, "sym_int_values": {}, "sym_bool_values": {}},
 "signature": {"input_specs": [{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}, {"user_input": {"arg": {"as_tensor": {"name": "z"}}}}],
  "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "y"}}}}]}, "module_call_graph": []},
 "opset_version": {"aten": 10}, "range_constraints": {"s0": {"min_val": 1, "max_val": 9}}, "schema_version": {"major": 8, "minor": 17}, "torch_version": "2.11.0", "guards_code": []}`
		m, err := read(t, append(tinyEntries()[:3], entry{name: "model/models/model.json", data: text}))
		if err != nil {
			t.Fatal(err)
		}
		for size, r := range c.runs {
			shape := slices.Clone(c.shape)
			if i := slices.Index(shape, 0); i >= 0 {
				shape[i] = size
			}
			inputs := []*interp.Tensor{f32("x", r.x, shape...).tensor(t), f32("z", make([]float64, size), size).tensor(t)}
			env := &interp.Env{}
			out, err := interp.Run(context.Background(), m.Module, m.Module.Func(FuncName), env, inputs)
			if err != nil {
				t.Fatal(err)
			}
			if got := out[0].Float64s(); !slices.Equal(got, r.want) || len(env.IndexErrors) > 0 {
				t.Errorf("%s at size %d: %v, want %v; %v", c.op, size, got, r.want, env.IndexErrors)
			}
		}
	}
}
