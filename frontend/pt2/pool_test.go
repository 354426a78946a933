package pt2

import (
	"context"
	"slices"
	"testing"

	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// TestCeilModeOfDynamicAxis pools an axis of dynamic size with ceil_mode: at odd sizes the last window has one element.
func TestCeilModeOfDynamicAxis(t *testing.T) {
	image := func(n string) string {
		return `{"dtype": 7, "sizes": [{"as_int": 1}, {"as_int": 1}, ` + n + `], "strides": [` + n + `, ` + n + `, {"as_int": 1}], "storage_offset": {"as_int": 0}, "layout": 7}`
	}
	text := `{"graph_module": {"graph": {"inputs": [{"as_tensor": {"name": "x"}}], "outputs": [{"as_tensor": {"name": "y"}}], "nodes": [
  {"target": "torch.ops.aten.max_pool1d.default", "name": "y", "metadata": {}, "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1},
   {"name": "kernel_size", "arg": {"as_ints": [2]}, "kind": 1}, {"name": "stride", "arg": {"as_ints": [2]}, "kind": 1},
   {"name": "ceil_mode", "arg": {"as_bool": true}, "kind": 1}], "outputs": [{"as_tensor": {"name": "y"}}]}],
 "tensor_values": {"x": ` + image(`{"as_expr": {"expr_str": "Symbol('s0')"}}`) + `, "y": ` + image(`{"as_expr": {"expr_str": "FloorDiv(Add(Symbol('s0'), Integer(1)), Integer(2))"}}`) + `}, "sym_int_values": {}, "sym_bool_values": {}},
 "signature": {"input_specs": [{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}],
  "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "y"}}}}]}, "module_call_graph": []},
 "opset_version": {"aten": 10}, "range_constraints": {"s0": {"min_val": 2, "max_val": 9}}, "schema_version": {"major": 8, "minor": 17}, "torch_version": "2.11.0", "guards_code": []}`
	m, err := read(t, append(tinyEntries()[:3], entry{name: "model/models/model.json", data: text}))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ x, want []float64 }{{[]float64{1, 3, 2, 5, -4}, []float64{3, 5, -4}}, {[]float64{1, 3, 2, 5}, []float64{3, 5}}} {
		x, err := interp.FromFloat64s(dtype.F32, []int64{1, 1, int64(len(c.x))}, c.x)
		if err != nil {
			t.Fatal(err)
		}
		env := &interp.Env{}
		out, err := interp.Run(context.Background(), m.Module, m.Module.Func(FuncName), env, []*interp.Tensor{x})
		if err != nil {
			t.Fatal(err)
		}
		if got := out[0].Float64s(); !slices.Equal(got, c.want) || len(env.IndexErrors) > 0 {
			t.Errorf("%v is pooled to %v, want %v; %v", c.x, got, c.want, env.IndexErrors)
		}
	}
}
