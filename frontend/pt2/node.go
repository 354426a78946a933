package pt2

import (
	"errors"
	"slices"
	"strings"

	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dtype"
)

// A call is a node of the graph that a rule imports. Its methods refuse a wrong argument, which ends the rule.
type call struct {
	*importer
	n        *node
	name     string // "aten.add", as the archive has it
	base     string // the key of the op in the rules, see canonical
	overload string // "Tensor"
	in       map[string]*argument
	outs     []string // names of the results; empty: not a tensor
	opmath   bool     // operands of f16 and bf16 are read as f32, and out gives f32 for such results; see [opmath]
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
	c := &call{importer: im, n: n, name: base, base: canonical(base), overload: overload, in: map[string]*argument{}}
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
	err := try(func() {
		if !c.runsRegion() {
			c.bind(c.results())
		}
	})
	if err == nil {
		return nil
	}
	keep := ""
	if errors.Is(err, errNoRule) {
		if c.idle() {
			im.stand(c)
			return nil
		}
		if c.writes() == "" && len(c.outs) > 0 {
			keep = c.externName()
		}
	}
	im.miss(n, strings.TrimSuffix(base+"."+overload, "."), err, keep)
	im.stand(c)
	return nil
}

// idle reports whether a call is of an ATen op that writes nothing and whose results nothing reads: models of
// transformers draw random numbers that only training uses.
func (c *call) idle() bool {
	if !strings.HasPrefix(c.base, "aten.") || c.writes() != "" {
		return false
	}
	return !slices.ContainsFunc(c.outs, func(name string) bool { return name == "" || c.used(name) })
}

// otherNode imports a node that is not a torch.ops op. Arithmetic of sizes needs no nodes, as the archive has its
// results as expressions. Nodes that return tensors or take graphs are refused.
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
	if c.external() { // Options.Externs takes precedence over rules
		return c.extern()
	}
	if c.writesOut() {
		panic(refusal{errNoRule})
	}
	if rule, ok := viewRules[c.base]; ok {
		views := rule(c)
		if strings.HasSuffix(c.base, "_copy") {
			for i, v := range views {
				views[i] = fresh(c.read(v))
			}
		}
		return views
	}
	if rule, ok := opRules[c.base]; ok {
		var out []*tensor
		for _, v := range rule(c) {
			out = append(out, fresh(v))
		}
		return out
	}
	if name, ok := strings.CutSuffix(c.base, "_"); ok && strings.HasPrefix(name, "aten.") {
		if rule, ok := opRules[name]; ok {
			return c.inPlace(rule)
		}
	}
	if strings.HasPrefix(c.base, "higher_order.") {
		c.fail("a higher-order op, whose operands are graphs")
	}
	panic(refusal{errNoRule})
}

// errNoRule is the error of an op without a rule. It is empty: an op in the list of an [ImportError] without a reason
// has no rule.
var errNoRule = errors.New("")

// inPlace runs a rule and writes its first result to self.
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

// bind stores the results by their names, and compares their types with the archive.
func (c *call) bind(results []*tensor) {
	for i, name := range c.outs {
		if name == "" {
			continue
		}
		if i >= len(results) {
			if c.used(name) {
				c.fail("the program reads result %d, which is not supported", i)
			}
			continue
		}
		want := c.out(i)
		// PyTorch may record wrong sizes for results that nothing reads (the states of lstm).
		if v := c.read(results[i]); !c.fb.Type(v).Equal(want) && c.used(name) {
			c.fail("result %d is %s, the archive says %s", i, c.fb.Type(v), want)
		}
		c.values[name] = results[i]
	}
}

// stand gives placeholder values to the results of a node that cannot be imported, so that the nodes after it are
// checked too.
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

// miss records a node that cannot be imported.
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

// place returns the innermost source line of a node outside of PyTorch. If all lines are in PyTorch, it returns the
// outermost one, and without source lines the name of the node.
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

// used reports whether a node or an output of the graph reads a value.
func (c *call) used(name string) bool {
	if c.reads[c.graph] == nil {
		if c.reads == nil {
			c.reads = map[*graph]map[string]bool{}
		}
		c.reads[c.graph] = c.graph.reads()
	}
	return c.reads[c.graph][name]
}

// reads returns the names of the values that nodes and outputs of a graph read.
func (g *graph) reads() map[string]bool {
	out := map[string]bool{}
	add := func(a *argument) {
		refs := slices.Clone(a.Tensors)
		if a.Tensor != nil {
			refs = append(refs, *a.Tensor)
		}
		optional := slices.Clone(a.OptionalTensors)
		if a.OptionalTensor != nil {
			optional = append(optional, *a.OptionalTensor)
		}
		for _, t := range optional {
			if t.Tensor != nil {
				refs = append(refs, *t.Tensor)
			}
		}
		for _, t := range refs {
			out[t.Name] = true
		}
	}
	for i := range g.Nodes {
		for j := range g.Nodes[i].Inputs {
			add(&g.Nodes[i].Inputs[j].Arg)
		}
	}
	for i := range g.Outputs {
		add(&g.Outputs[i])
	}
	return out
}
