package pt2

import (
	"errors"
	"fmt"

	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// has reports whether an argument is given and not None.
func (c *call) has(name string) bool {
	a := c.in[name]
	return a != nil && a.kind != "as_none" && (a.OptionalTensor == nil || a.OptionalTensor.Tensor != nil)
}

// ref returns a tensor argument itself, so that a rule can make views of it or write to it.
func (c *call) ref(name string) *tensor {
	a := c.in[name]
	if a != nil && a.OptionalTensor != nil && a.OptionalTensor.Tensor != nil {
		return c.named(a.OptionalTensor.Tensor.Name)
	}
	if a == nil || a.Tensor == nil {
		c.fail("argument %s is not a tensor", name)
	}
	return c.named(a.Tensor.Name)
}

func (c *call) named(name string) *tensor {
	t := c.values[name]
	if t == nil {
		c.fail("%s is not a value of the program", termsafe.Quote(name))
	}
	return t
}

// value returns the value of a tensor in the dtype in which the rule computes.
func (c *call) value(t *tensor) ir.Value {
	v := c.autocastOperand(c.read(t))
	if c.opmath {
		return c.wide(v)
	}
	return v
}

// tensor returns the value of a tensor argument.
func (c *call) tensor(name string) ir.Value { return c.value(c.ref(name)) }

// tensors returns the values of a list of tensors.
func (c *call) tensors(name string) []ir.Value {
	list := c.refs(name)
	out := make([]ir.Value, len(list))
	for i, t := range list {
		out[i] = c.value(t)
	}
	return out
}

// refs returns the tensors of a list themselves, see [call.ref].
func (c *call) refs(name string) []*tensor {
	a := c.in[name]
	if a == nil || a.kind != "as_tensors" {
		c.fail("argument %s is not a list of tensors", name)
	}
	out := make([]*tensor, len(a.Tensors))
	for i, t := range a.Tensors {
		out[i] = c.named(t.Name)
	}
	return out
}

// optionalTensors returns the values of a list of tensors, ir.NoValue for None, and which of them are given.
func (c *call) optionalTensors(name string) (out []ir.Value, given []bool) {
	a := c.in[name]
	switch {
	case a != nil && a.kind == "as_tensors":
		out = c.tensors(name)
		given = make([]bool, len(out))
		for i := range given {
			given[i] = true
		}
		return out, given
	case a == nil || a.kind != "as_optional_tensors":
		c.fail("argument %s is not a list of tensors", name)
	}
	for _, t := range a.OptionalTensors {
		v := ir.NoValue
		if t.Tensor != nil {
			v = c.value(c.named(t.Tensor.Name))
		}
		out, given = append(out, v), append(given, t.Tensor != nil)
	}
	return out, given
}

// int returns an integer argument, def if it is not given.
func (c *call) int(name string, def int64) int64 {
	if !c.has(name) {
		return def
	}
	n, ok := c.dim(name, dim.Const(def)).Const()
	if !ok {
		c.fail("argument %s depends on a dynamic dimension", name)
	}
	return n
}

// dim returns an argument that may be a size.
func (c *call) dim(name string, def dim.Dim) dim.Dim {
	if !c.has(name) {
		return def
	}
	switch a := c.in[name]; {
	case a.Int != nil:
		return dim.Const(*a.Int)
	case a.SymInt != nil:
		d, err := c.symInt(a.SymInt)
		if err != nil {
			c.fail("argument %s: %v", name, err)
		}
		return d
	}
	c.fail("argument %s is not an integer (%s)", name, c.in[name].kind)
	return def
}

// symInt returns the size that an argument names.
func (im *importer) symInt(a *symIntArg) (dim.Dim, error) {
	switch {
	case a.Int != nil:
		return dim.Const(*a.Int), nil
	case a.Name == nil:
		return dim.Dim{}, errors.New("a size has neither a name nor a number")
	}
	n, ok := im.graph.SymIntValues[*a.Name]
	if !ok {
		return dim.Dim{}, fmt.Errorf("%s is not a size of the program", termsafe.Quote(*a.Name))
	}
	return im.syms.size(n)
}

// dims returns a list of sizes.
func (c *call) dims(name string) []dim.Dim {
	a := c.in[name]
	switch {
	case a == nil || a.kind == "as_none":
		return nil
	case a.Int != nil || a.SymInt != nil:
		return []dim.Dim{c.dim(name, dim.Const(0))}
	case a.kind == "as_ints":
		out := make([]dim.Dim, len(a.Ints))
		for i, n := range a.Ints {
			out[i] = dim.Const(n)
		}
		return out
	case a.kind == "as_sym_ints":
		out := make([]dim.Dim, len(a.SymInts))
		for i := range a.SymInts {
			var err error
			if out[i], err = c.symInt(&a.SymInts[i]); err != nil {
				c.fail("argument %s: %v", name, err)
			}
		}
		return out
	}
	c.fail("argument %s is not a list of sizes (%s)", name, a.kind)
	return nil
}

// ints returns a list of constants.
func (c *call) ints(name string) []int64 {
	var out []int64
	for _, d := range c.dims(name) {
		n, ok := d.Const()
		if !ok {
			c.fail("argument %s depends on a dynamic dimension", name)
		}
		out = append(out, n)
	}
	return out
}

func (c *call) float(name string, def float64) float64 {
	if !c.has(name) {
		return def
	}
	switch a := c.in[name]; {
	case a.Float != nil:
		return float64(*a.Float)
	case a.Int != nil:
		return float64(*a.Int)
	case a.Bool != nil && *a.Bool:
		return 1
	case a.Bool != nil:
		return 0
	}
	c.fail("argument %s is not a number (%s)", name, c.in[name].kind)
	return def
}

func (c *call) floats(name string) []float64 {
	if !c.has(name) {
		return nil
	}
	a := c.in[name]
	if a.kind != "as_floats" {
		c.fail("argument %s is not a list of numbers (%s)", name, a.kind)
	}
	out := make([]float64, len(a.Floats))
	for i, x := range a.Floats {
		out[i] = float64(x)
	}
	return out
}

func (c *call) bool(name string, def bool) bool {
	if !c.has(name) {
		return def
	}
	if c.in[name].Bool == nil {
		c.fail("argument %s is not a bool (%s)", name, c.in[name].kind)
	}
	return *c.in[name].Bool
}

func (c *call) str(name, def string) string {
	if !c.has(name) {
		return def
	}
	if c.in[name].String == nil {
		c.fail("argument %s is not a string (%s)", name, c.in[name].kind)
	}
	return *c.in[name].String
}

// out returns the type that the archive gives result i, with the dtype in which the rule computes.
func (c *call) out(i int) ir.Type {
	if i >= len(c.outs) || c.outs[i] == "" {
		c.fail("there is no result %d", i)
	}
	meta, ok := c.graph.TensorValues[c.outs[i]]
	if !ok {
		c.fail("%s has no entry in tensor_values", termsafe.Quote(c.outs[i]))
	}
	t, err := c.metaType(&meta)
	if err != nil {
		c.fail("%v", err)
	}
	if c.opmath && half(t.DType) {
		t.DType = dtype.F32
	}
	return t
}

// operand returns an argument of a pointwise op as an operand of a dtype: a tensor, a literal,
// or the value of a size.
func (c *call) operand(name string, dt dtype.DType) ir.Value {
	a := c.in[name]
	switch {
	case a == nil:
		c.fail("argument %s is missing", name)
		return ir.NoValue
	case a.Tensor != nil || a.OptionalTensor != nil:
		return c.cast(c.tensor(name), dt)
	case a.SymInt != nil:
		return c.dimValue(c.dim(name, dim.Const(0)), dt)
	case a.Int != nil && !dt.Float():
		return c.i(*a.Int)
	}
	return c.number(c.float(name, 0), dt)
}

// axis returns an axis argument for a tensor of the given rank. As in PyTorch, a scalar takes axis 0 or -1.
func (c *call) axis(name string, def int64, rank int) int {
	return c.normal(c.int(name, def), rank)
}

func (c *call) normal(a int64, rank int) int {
	n := int64(max(rank, 1))
	if a < -n || a >= n {
		c.fail("axis %d is out of range for a tensor with %d axes", a, rank)
	}
	return int((a + n) % n)
}

// axes returns a list of axes; all axes if the argument is empty or not given.
func (c *call) axes(name string, rank int) []int {
	if out := c.listedAxes(name, rank); len(out) > 0 {
		return out
	}
	return lead(rank)
}

// listedAxes returns a list of axes, which may be empty.
func (c *call) listedAxes(name string, rank int) []int {
	list := c.ints(name)
	out := make([]int, len(list))
	for i, a := range list {
		out[i] = c.normal(a, rank)
	}
	return out
}
