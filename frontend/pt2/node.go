package pt2

import (
	"errors"
	"fmt"
	"strings"

	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// call is one node of the graph while a rule makes nodes of the IR of it. Its methods refuse
// what is wrong, which ends the rule.
type call struct {
	*importer
	n        *node
	base     string // "aten.add"
	overload string // "Tensor"
	in       map[string]*argument
	outs     []string // names of the results; empty: not a tensor
}

func (c *call) fail(format string, args ...any) { c.refuse(format, args...) }

// node imports one node.
func (im *importer) node(n *node) error {
	target, ok := strings.CutPrefix(n.Target, "torch.ops.")
	if !ok {
		return im.otherNode(n)
	}
	base, overload := target, ""
	if i := strings.LastIndexByte(target, '.'); i > strings.IndexByte(target, '.') {
		base, overload = target[:i], target[i+1:]
	}
	c := &call{importer: im, n: n, base: base, overload: overload, in: map[string]*argument{}}
	for i := range n.Inputs {
		in := &n.Inputs[i]
		if c.in[in.Name] != nil && in.Name != "" { // operands of higher-order ops have no names
			return im.errorf("node %s has two arguments %s", termsafe.Quote(n.Name), termsafe.Quote(in.Name))
		}
		c.in[in.Name] = &in.Arg
	}
	if err := c.outputNames(); err != nil {
		return err
	}
	im.fb.SetLoc(modulePath(n.Metadata["nn_module_stack"]))
	err := try(func() { c.bind(c.results()) })
	if err == nil {
		return nil
	}
	keep := ""
	if errors.Is(err, errNoRule) {
		keep = c.externName()
	}
	im.miss(n, strings.TrimSuffix(base+"."+overload, "."), err, keep)
	im.stand(c)
	return nil
}

// otherNode is a node that is no op of a library: arithmetic of sizes, whose results the
// archive has as expressions, or a higher-order op.
func (im *importer) otherNode(n *node) error {
	tensors := false
	for _, o := range n.Outputs {
		tensors = tensors || o.Tensor != nil || o.kind == "as_tensors"
	}
	for _, in := range n.Inputs {
		tensors = tensors || in.Arg.Graph != nil
	}
	if !tensors {
		return nil
	}
	im.miss(n, n.Target, errNoRule, "")
	c := &call{importer: im, n: n}
	if err := c.outputNames(); err != nil {
		return err
	}
	im.stand(c)
	return nil
}

// results runs the rule of the op.
func (c *call) results() []*tensor {
	if rule, ok := viewRules[c.base]; ok {
		return rule(c)
	}
	if rule, ok := opRules[c.base]; ok && c.overload != "out" {
		var out []*tensor
		for _, v := range rule(c) {
			out = append(out, fresh(v))
		}
		return out
	}
	if name, ok := strings.CutSuffix(c.base, "_"); ok && strings.HasPrefix(name, "aten.") {
		if rule, ok := opRules[name]; ok && c.overload != "out" {
			return c.inPlace(rule)
		}
	}
	if c.external() {
		return c.extern()
	}
	if strings.HasPrefix(c.base, "higher_order.") {
		c.fail("a higher-order op, whose operands are graphs")
	}
	panic(refusal{errNoRule})
}

// errNoRule says that an op has no rule; that its name is listed says so already.
var errNoRule = errors.New("")

// inPlace runs a rule and writes its result to self.
func (c *call) inPlace(rule opRule) []*tensor {
	self := c.ref("self")
	results := rule(c)
	old := c.read(self)
	c.write(self, c.expand(c.cast(results[0], c.dtype(old)), c.shape(old)...))
	return []*tensor{self}
}

// outputNames collects the names of the results.
func (c *call) outputNames() error {
	for i := range c.n.Outputs {
		switch o := &c.n.Outputs[i]; {
		case o.Tensor != nil:
			c.outs = append(c.outs, o.Tensor.Name)
		case o.kind == "as_tensors":
			for _, t := range o.Tensors {
				c.outs = append(c.outs, t.Name)
			}
		default:
			c.outs = append(c.outs, "")
		}
	}
	for _, name := range c.outs {
		if name != "" && c.values[name] != nil {
			return c.errorf("two values are named %s", termsafe.Quote(name))
		}
	}
	return nil
}

// bind gives the results their names, and holds their types to what the archive says.
func (c *call) bind(results []*tensor) {
	for i, name := range c.outs {
		if name == "" {
			continue
		}
		if i >= len(results) || results[i] == nil {
			c.fail("result %d is not supported", i)
		}
		want := c.out(i)
		// Of results that nothing reads PyTorch does not keep the sizes right (lstm's states).
		if v := c.read(results[i]); !c.fb.Type(v).Equal(want) && c.used(name) {
			c.fail("result %d is %s, the archive says %s", i, c.fb.Type(v), want)
		}
		c.values[name] = results[i]
	}
}

// stand gives the results of a node that cannot be imported values of their types, so that
// the nodes after it are looked at too.
func (im *importer) stand(c *call) {
	for _, name := range c.outs {
		if name == "" || im.values[name] != nil {
			continue
		}
		meta := im.graph.TensorValues[name]
		t, err := im.metaType(&meta)
		if err != nil {
			t = ir.Type{DType: dtype.F32}
			if shape, err := im.syms.shape(&meta); err == nil {
				t.Shape = shape
			}
		}
		v := ir.NoValue
		if try(func() { v = im.empty(t) }) != nil {
			v = im.empty(ir.Type{DType: t.DType})
		}
		im.values[name] = fresh(v)
	}
}

func (im *importer) empty(t ir.Type) ir.Value {
	return im.op("empty", nil, ir.DimsAttr("shape", t.Shape...), ir.DTypeAttr(t.DType))
}

// miss notes what cannot be imported.
func (im *importer) miss(n *node, op string, reason error, extern string) {
	key := [2]string{op, reason.Error()}
	if i, ok := im.index[key]; ok {
		im.missing[i].Count++
		return
	}
	im.index[key] = len(im.missing)
	im.missing = append(im.missing, Missing{Op: op, Reason: reason.Error(), Count: 1,
		Place: place(n), Module: modulePath(n.Metadata["nn_module_stack"]), Extern: extern})
}

// modulePath returns the path of the innermost module of a stack:
// "L__self__,,M;L__self__l.0,l.0,Block" is in l.0.
func modulePath(stack string) string {
	last := stack[strings.LastIndexByte(stack, ';')+1:]
	parts := strings.Split(last, ",")
	if len(parts) < 3 {
		return ""
	}
	return parts[1]
}

// place returns the innermost line of the source that a node comes from, of those that are
// not PyTorch's own, or the name of the node.
func place(n *node) string {
	trace := strings.Split(n.Metadata["stack_trace"], "\n")
	file := ""
	for i := len(trace) - 1; i >= 0; i-- {
		line, ok := strings.CutPrefix(strings.TrimSpace(trace[i]), "File ")
		if !ok {
			continue
		}
		file = strings.NewReplacer("\"", "", ", line ", ":", ", in ", " in ").Replace(line)
		if !strings.Contains(file, "torch/nn/") && !strings.Contains(file, "torch/_") {
			break
		}
	}
	if file == "" {
		return "node " + termsafe.Quote(n.Name)
	}
	return file
}

// has reports whether an argument is given and not None.
func (c *call) has(name string) bool {
	a := c.in[name]
	return a != nil && a.kind != "as_none" && (a.OptionalTensor == nil || a.OptionalTensor.Tensor != nil)
}

// ref returns a tensor argument as it is in the graph.
func (c *call) ref(name string) *tensor {
	a := c.in[name]
	if a != nil && a.OptionalTensor != nil && a.OptionalTensor.Tensor != nil {
		return c.named(a.OptionalTensor.Tensor.Name)
	}
	if a == nil || a.Tensor == nil {
		c.fail("argument %s is no tensor", name)
	}
	return c.named(a.Tensor.Name)
}

func (c *call) named(name string) *tensor {
	t := c.values[name]
	if t == nil {
		c.fail("%s is no value of the program", termsafe.Quote(name))
	}
	return t
}

func (c *call) readNamed(name string) ir.Value { return c.read(c.named(name)) }

// tensor returns the value of a tensor argument.
func (c *call) tensor(name string) ir.Value { return c.read(c.ref(name)) }

// tensors returns the values of a list of tensors.
func (c *call) tensors(name string) []ir.Value {
	a := c.in[name]
	if a == nil || a.kind != "as_tensors" {
		c.fail("argument %s is no list of tensors", name)
	}
	out := make([]ir.Value, len(a.Tensors))
	for i, t := range a.Tensors {
		out[i] = c.readNamed(t.Name)
	}
	return out
}

// optionalTensors returns the values of a list of tensors; ir.NoValue for None.
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
		c.fail("argument %s is no list of tensors", name)
	}
	for _, t := range a.OptionalTensors {
		v := ir.NoValue
		if t.Tensor != nil {
			v = c.readNamed(t.Tensor.Name)
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
	c.fail("argument %s is no integer (%s)", name, c.in[name].kind)
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
		return dim.Dim{}, fmt.Errorf("%s is no size of the program", termsafe.Quote(*a.Name))
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
	c.fail("argument %s is no list of sizes (%s)", name, a.kind)
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
	c.fail("argument %s is no number (%s)", name, c.in[name].kind)
	return def
}

func (c *call) floats(name string) []float64 {
	if !c.has(name) {
		return nil
	}
	a := c.in[name]
	if a.kind != "as_floats" {
		c.fail("argument %s is no list of numbers (%s)", name, a.kind)
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
		c.fail("argument %s is no bool (%s)", name, c.in[name].kind)
	}
	return *c.in[name].Bool
}

func (c *call) str(name, def string) string {
	if !c.has(name) {
		return def
	}
	if c.in[name].String == nil {
		c.fail("argument %s is no string (%s)", name, c.in[name].kind)
	}
	return *c.in[name].String
}

// out returns the type that the archive says result i has.
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

// axis returns an axis argument of a tensor of that rank; a scalar has one axis to name.
func (c *call) axis(name string, def int64, rank int) int {
	return c.normal(c.int(name, def), rank)
}

func (c *call) normal(a int64, rank int) int {
	n := int64(max(rank, 1))
	if a < -n || a >= n {
		c.fail("axis %d of a tensor with %d axes", a, rank)
	}
	return int((a + n) % n)
}

// axes returns a list of axes; all, where none is given.
func (c *call) axes(name string, rank int) []int {
	list := c.ints(name)
	if len(list) == 0 {
		out := make([]int, rank)
		for i := range out {
			out[i] = i
		}
		return out
	}
	out := make([]int, len(list))
	for i, a := range list {
		out[i] = c.normal(a, rank)
	}
	return out
}
