package pt2

import (
	"fmt"
	"slices"
	"strings"

	"pwc/ir"
	"pwc/ir/dim"
)

// externName returns the entry of Options.Externs that keeps the op: "toy::attention". The overload is part of it,
// unless it is the default.
func (c *call) externName() string {
	ns, op, ok := strings.Cut(c.name, ".")
	if !ok {
		return ""
	}
	name := ns + "::" + op
	if c.overload != "default" && c.overload != "" {
		name += "." + c.overload
	}
	return name
}

// external reports whether the options keep the op as an extern op of the runner.
func (c *call) external() bool { return slices.Contains(c.options.Externs, c.externName()) }

// writers are the ATen ops that write an argument by their schema (native_functions.yaml of PyTorch 2.11: "Tensor(a!)")
// although neither name nor overload tells. record_stream and retain_grad are not listed: they change no elements.
var writers = map[string]bool{
	"aten.rrelu_with_noise": true, "aten._native_batch_norm_legit": true, "aten._batch_norm_with_update": true,
	"aten.fused_moving_avg_obs_fake_quant": true, "aten._fused_moving_avg_obs_fq_helper": true,
	"aten._cummax_helper": true, "aten._cummin_helper": true, "aten.set_data": true,
}

// outOverloads are the out overloads of ATen in native_functions.yaml of PyTorch 2.11 that neither have an argument out
// or out0 nor are named out or *_out.
var outOverloads = map[string]bool{
	"output": true, "result": true, "grad_input": true, "values": true, "values_stable": true,
	"dim_values": true, "dim_max": true, "dim_min": true, "names_dim_values": true, "names_dim_max": true,
	"names_dim_min": true, "dimname_values": true, "dimname_values_stable": true,
	"a": true, "L": true, "Q": true, "U": true, "X": true, "inverse": true, "sign": true,
	"eigenvalues": true, "eigvals": true,
}

// writesOut reports whether a call is of an overload that writes its results to arguments: torch.sum(x, 0, out=y) is
// aten.sum.IntList_out.
func (c *call) writesOut() bool {
	aten := strings.HasPrefix(c.name, "aten.")
	switch o := c.overload; {
	case o == "out", strings.HasSuffix(o, "_out"), aten && outOverloads[o]:
		return true
	case aten && (o == "default" || o == ""): // no out overload; the backward ops of attention read an argument out
		return false
	}
	return c.has("out") || c.has("out0")
}

// writes returns why an op writes an argument, or "" if the archive does not tell: it has no schemas of ops.
func (c *call) writes() string {
	op := c.name[strings.LastIndexByte(c.name, '.')+1:]
	switch special := strings.HasPrefix(op, "__") && strings.HasSuffix(op, "__"); { // __and__ and the in-place __iand__
	case special && strings.HasPrefix(op, "__i"), !special && strings.HasSuffix(op, "_"):
		return "its name is that of an op that writes its first argument"
	case c.writesOut():
		return "it writes the argument of its results"
	case writers[c.name] && c.overload != "no_stats": // _native_batch_norm_legit without running statistics
		return "it writes an argument"
	}
	return ""
}

// extern makes a call of an extern op. Its operands are the tensors, in the order of the op's schema; other arguments
// are attributes with the argument's name. No operand is mut, so an op that writes an argument is refused, here or by
// [importer.assign], if the archive tells.
func (c *call) extern() []*tensor {
	if why := c.writes(); why != "" {
		c.fail("%s, and a call of an extern op does not write its tensors: export an op that returns the new value", why)
	}
	var operands []ir.Value
	var attrs []ir.Attr
	var types []ir.Type
	for i := range c.n.Inputs {
		in := &c.n.Inputs[i]
		switch a := &in.Arg; {
		case a.Tensor != nil || a.OptionalTensor != nil && a.OptionalTensor.Tensor != nil:
			operands = append(operands, c.tensor(in.Name))
			c.ref(in.Name).st.operandOf = c.externName()
		case a.kind == "as_tensors":
			operands = append(operands, c.tensors(in.Name)...)
			for _, t := range c.refs(in.Name) {
				t.st.operandOf = c.externName()
			}
		default:
			if attr, ok := c.attr(in.Name); ok {
				attrs = append(attrs, attr)
			}
		}
	}
	for i, name := range c.outs {
		if name == "" {
			c.fail("result %d of an extern op is not a tensor", i)
		}
		types = append(types, c.out(i))
	}
	if len(types) == 0 {
		c.fail("an extern op without results would have no effect: a call does not write its tensors")
	}
	if len(operands) == 0 {
		c.fail("an extern op without tensors among its arguments cannot be called")
	}
	name := c.externName()
	e := c.externs[name]
	if e == nil {
		e = c.b.Extern(&ir.Extern{Name: name, Mut: make([]bool, len(operands)), Results: len(types)})
		c.externs[name] = e
	}
	if len(e.Mut) != len(operands) || e.Results != len(types) {
		c.fail("it is called with %d tensors and %d results, and earlier with %d and %d", len(operands), len(types), len(e.Mut), e.Results)
	}
	var out []*tensor
	for _, v := range c.fb.Call(name, operands, types, attrs...) {
		out = append(out, fresh(v))
	}
	return out
}

// attr returns an argument that is not a tensor as an attribute. None, devices, layouts and memory formats become no
// attribute.
func (c *call) attr(name string) (ir.Attr, bool) {
	switch a := c.in[name]; {
	case a.kind == "as_none", a.OptionalTensor != nil, a.Device != nil, a.Layout != nil, a.MemoryFormat != nil:
		return ir.Attr{}, false
	case a.Int != nil, a.SymInt != nil:
		return ir.DimAttr(name, c.dim(name, dim.Const(0))), true
	case a.kind == "as_ints", a.kind == "as_sym_ints":
		return ir.DimsAttr(name, c.dims(name)...), true
	case a.Float != nil:
		return ir.FloatAttr(name, float64(*a.Float)), true
	case a.kind == "as_floats":
		return ir.FloatsAttr(name, c.floats(name)...), true
	case a.Bool != nil:
		return ir.BoolAttr(name, *a.Bool), true
	case a.String != nil:
		return ir.StringAttr(name, *a.String), true
	case a.ScalarType != nil:
		return ir.StringAttr(name, scalarTypeName(*a.ScalarType)), true
	}
	panic(refusal{fmt.Errorf("argument %s (%s) cannot be an attribute of an extern op", name, c.in[name].kind)})
}
