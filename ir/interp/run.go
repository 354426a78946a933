// Package interp is the reference interpreter of the IR. It defines every op by plain loops over
// float64 and int64. Tests compare compilers, kernels and devices with it. It is written to be
// easy to check, not fast.
//
// Floats are computed in float64 from the stored operands and rounded once to the dtype of the
// result, for any number of steps in an op, with two exceptions: dropout rounds to f32 first, and
// scatter with add rounds after each addition. Sums are float64 sums in index order. Literals keep
// all bits. Integers wrap to their width.
package interp

import (
	"context"
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Call is one call of an extern op.
type Call struct {
	Name    string    // "ns::op" or "ns::op.overload"
	Attrs   []ir.Attr // as in the text; every dim is evaluated to a constant
	Args    []*Tensor // operands; the call writes those that the op declares mut, in place, and no others
	Results []*Tensor // fresh results: zeros of the declared type, or nil if a size is unknown ("?"); the op fills or replaces them
}

// Extern is the reference of an extern op.
type Extern func(call *Call) error

// Env has the inputs of a run other than arguments. The zero Env is for functions
// without weights, states and extern ops.
type Env struct {
	Weights map[string]*Tensor // by name without "@"; never written
	States  map[string]*Tensor // by name without "@"; written in place

	// Symbols has the values of symbols that are not alone an extent of a parameter, weight or state of
	// the function. A value of another symbol must be equal to that extent.
	Symbols map[string]int64

	Externs map[string]Extern // by full name

	// Observe, if not nil, is called after each node with its results, then the operands that it
	// wrote, in operand order. They are the run's own tensors: the callee must not write them,
	// and must clone those that it keeps.
	Observe func(node int, n *ir.Node, results []*Tensor)

	// Unrounded makes every float of the run a float64 that no op rounds: the function over the
	// real numbers, for derivatives by differences. Random numbers are those of their dtypes.
	// Operands may be [Tensor.Unrounded]; floats that may be written (states and mut parameters) must be.
	Unrounded bool

	// MaxBytes bounds the memory of the run at any node, without inputs, weights and states: 8
	// bytes for each element of a value of any dtype. It is checked before the run allocates,
	// from the function and the symbols. 0: DefaultMaxBytes.
	MaxBytes int64

	// IndexErrors collects the reports of C12: one entry for each node of the run with indices
	// out of range. A run appends to it and continues.
	IndexErrors []*IndexError
}

// IndexError reports indices out of range of a node. The node read zeros or wrote nothing for
// them, and the run continued.
type IndexError struct {
	At      *ir.Error // the node: position in the text, function, loc
	Op      string
	Loc     string // the node's place in the model
	Count   int    // indices out of range
	Element int    // the first element of the index operand that is out of range
	Index   int64  // the value of that element
	Extent  int64  // valid indices are 0 to Extent-1
}

// Error returns the message with the node's origin.
func (e *IndexError) Error() string {
	if e.At == nil {
		return fmt.Sprintf("interp: index %d is out of range of an extent of %d", e.Index, e.Extent)
	}
	return e.At.Error()
}

// nodeError is an error of a node with the cause that the extern op returned.
type nodeError struct {
	at    *ir.Error
	cause error
}

// Error returns the message with the node's origin.
func (e *nodeError) Error() string { return e.at.Error() }

// Unwrap returns the error at the node and its cause.
func (e *nodeError) Unwrap() []error { return []error{e.at, e.cause} }

// Run interprets function f of the verified module m and returns its results. inputs has one
// tensor for each parameter. Run writes inputs of mut parameters and states in place, and changes
// no other input. Results have their own storage. Errors are, among others: inputs of a wrong
// type, missing weights, states and extern ops, errors and wrong results of an extern op, and the
// end of ctx, which Run checks before each node and every 65,536 visited elements or after a
// longer row. If the run would exceed Env.MaxBytes, the error is a [MemoryError].
func Run(ctx context.Context, m *ir.Module, f *ir.Func, env *Env, inputs []*Tensor) ([]*Tensor, error) {
	r, err := newRun(ctx, m, f, env, inputs)
	if err != nil {
		return nil, err
	}
	for i, n := range f.Nodes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := r.step(i, n); err != nil {
			return nil, err
		}
	}
	return r.results(), nil
}

// newRun binds a run of f.
func newRun(ctx context.Context, m *ir.Module, f *ir.Func, env *Env, inputs []*Tensor) (*run, error) {
	if m == nil || f == nil {
		return nil, fmt.Errorf("interp: %w", ir.ErrNoModule)
	}
	if env == nil {
		env = &Env{}
	}
	values, symbols, err := bind(m, f, env, inputs)
	if err != nil {
		return nil, err
	}
	r := &run{ctx: ctx, m: m, f: f, env: env, symbols: symbols, values: values, last: lastUses(f)}
	return r, r.checkMemory(r.last)
}

// results returns the results of f.
func (r *run) results() []*Tensor {
	results := make([]*Tensor, len(r.f.Returns))
	for i, v := range r.f.Returns {
		results[i] = r.values[v].Clone()
	}
	return results
}

// lastUses returns for each value the last node that reads it: the number of nodes for a returned
// value, -1 for a value that is never read.
func lastUses(f *ir.Func) []int {
	last := slices.Repeat([]int{-1}, len(f.Values))
	for i, n := range f.Nodes {
		for _, v := range n.Args {
			last[v] = i
		}
	}
	for _, v := range f.Returns {
		last[v] = len(f.Nodes)
	}
	return last
}

// run is one run of a function.
type run struct {
	m       *ir.Module
	f       *ir.Func
	env     *Env
	symbols map[string]int64
	values  []*Tensor // by ir.Value; versions of one storage are one tensor
	last    []int     // by ir.Value: the last node that reads it

	ctx   context.Context
	left  int   // visits until the next check of ctx
	ended error // the error of ctx; the current node stays unfinished
}

// visitStep is the number of visited elements between two checks of the context.
const visitStep = 1 << 16

// visits counts elements that are about to be visited. It reports whether the context has ended,
// in which case the caller stops.
func (n *node) visits(count int) bool {
	r := n.run
	if r.left -= count; r.left < 0 {
		r.left = visitStep
		r.ended = r.ctx.Err()
	}
	return r.ended != nil
}

// node is the view of a node for the rule of its op: its operands, and its results, which are
// zeros of their types until the rule fills them.
type node struct {
	*ir.Node
	run      *run
	args     []*Tensor
	out      []*Tensor
	badIndex *IndexError // first index out of range, or nil
}

// rule computes a node: it fills out, and writes mut operands.
type rule func(n *node) error

// step runs a node on one device.
func (r *run) step(i int, irn *ir.Node) error {
	n, err := r.enter(i, irn)
	if err != nil {
		return err
	}
	if err := r.compute(i, n); err != nil {
		return err
	}
	r.leave(i, n)
	return nil
}

// enter collects the node's operands, and makes its results as zeros; a result with an unknown
// size stays nil.
func (r *run) enter(i int, irn *ir.Node) (*node, error) {
	n := &node{Node: irn, run: r, args: make([]*Tensor, len(irn.Args)), out: make([]*Tensor, len(irn.Results))}
	for j, v := range irn.Args {
		if r.f.Values[v].Kind == ir.LiteralValue {
			n.args[j] = r.literal(irn, v)
		} else {
			n.args[j] = r.values[v]
		}
	}
	for j, v := range irn.Results {
		t := r.f.Type(v)
		if t.HasUnknown() {
			continue
		}
		shape, err := evalAll(t.Shape, r.symbols)
		if err == nil {
			if n.out[j], err = Zeros(t.DType, shape); err == nil {
				n.out[j].unrounded = r.env.Unrounded
			}
		}
		if err != nil {
			return nil, r.m.ErrorAt(r.f, i, "%s: result %d: %v", irn.Name(), j, err)
		}
	}
	return n, nil
}

// compute computes a node that needs no other rank.
func (r *run) compute(i int, n *node) error {
	if n.Extern != nil {
		return r.call(i, n)
	}
	if n.Op.Class == ir.Collective {
		return r.m.ErrorAt(r.f, i, "%s needs all ranks: run them together, with RunRanks", n.Op.Name)
	}
	rule := rules[n.Op.ID]
	if rule == nil {
		return r.m.ErrorAt(r.f, i, "%s has no interpreter rule", n.Op.Name)
	}
	if err := rule(n); err != nil {
		return r.m.ErrorAt(r.f, i, "%s: %v", n.Op.Name, err)
	}
	return r.ended
}

// leave stores the results of a node, calls the observer, and drops values without later reads.
func (r *run) leave(i int, n *node) {
	irn := n.Node
	for j, v := range irn.Results {
		r.values[v] = n.out[j]
	}
	observed := slices.Clone(n.out)
	for _, w := range irn.Versions {
		if r.last[w.Value] > i {
			r.values[w.Value] = n.args[w.Arg]
		}
		observed = append(observed, n.args[w.Arg])
	}
	if e := n.badIndex; e != nil {
		e.At = r.m.ErrorAt(r.f, i, "%s: element %d of the index is %d, out of range of an extent of %d (indices out of range: %d)", irn.Op.Name, e.Element, e.Index, e.Extent, e.Count)
		r.env.IndexErrors = append(r.env.IndexErrors, e)
	}
	if r.env.Observe != nil {
		r.env.Observe(i, irn, observed)
	}
	for _, v := range slices.Concat(irn.Args, irn.Results) {
		if r.last[v] <= i {
			r.values[v] = nil
		}
	}
}

// literal returns a literal operand as a scalar. Its dtype is that of the node's first
// tensor operand (without where's condition), or that of the result if the op is a
// Creation. A float is not rounded.
func (r *run) literal(n *ir.Node, v ir.Value) *Tensor {
	l := r.f.Values[v].Literal
	var dt dtype.DType
	if n.Op.Class == ir.Creation {
		dt = r.f.Type(n.Results[0]).DType
	}
	for j, u := range n.Args {
		isCond := n.Op.ID == ir.OpWhere && j == 0
		if r.f.Values[u].Kind != ir.LiteralValue && !isCond {
			dt = r.f.Type(u).DType
			break
		}
	}
	if isFloat(dt) {
		return &Tensor{Type: dt, floats: []float64{l.Float64()}}
	}
	return &Tensor{Type: dt, ints: []int64{l.Int}}
}

// call runs an extern op, and checks that it wrote only mut operands and returned fresh results of
// the declared types.
func (r *run) call(i int, n *node) error {
	name := n.Extern.Name
	f := r.env.Externs[name]
	if f == nil {
		return r.m.ErrorAt(r.f, i, "no reference is given for extern op %q", name)
	}
	attrs, err := evalAttrs(n.Attrs, r.symbols)
	if err != nil {
		return r.m.ErrorAt(r.f, i, "%s: %v", name, err)
	}
	before := make([]*Tensor, len(n.args))
	for j, t := range n.args {
		if !n.Extern.Mut[j] {
			before[j] = t.Clone()
		}
	}
	c := &Call{Name: name, Attrs: attrs, Args: slices.Clone(n.args), Results: n.out}
	if err := f(c); err != nil {
		return &nodeError{r.m.ErrorAt(r.f, i, "%s: %v", name, err), err}
	}
	for j, t := range before {
		if t != nil && !sameBits(t, n.args[j]) {
			return r.m.ErrorAt(r.f, i, "%s wrote operand %d, which it does not declare mut", name, j)
		}
	}
	if len(c.Results) != len(n.Results) {
		return r.m.ErrorAt(r.f, i, "%s gave %d results, declares %d", name, len(c.Results), len(n.Results))
	}
	for j, t := range c.Results {
		want := r.f.Type(n.Results[j])
		if t == nil {
			return r.m.ErrorAt(r.f, i, "%s gave no result %d", name, j)
		}
		if slices.Contains(n.args, t) || slices.Contains(c.Results[:j], t) {
			return r.m.ErrorAt(r.f, i, "%s: result %d is no fresh tensor", name, j)
		}
		ok := t.Type == want.DType && len(t.Shape) == want.Rank()
		for k := 0; ok && k < want.Rank(); k++ {
			if d := want.Shape[k]; !slices.Contains(d.Symbols(), ir.Unknown) {
				v, err := d.Eval(lookup(r.symbols))
				ok = err == nil && t.Shape[k] == v
			}
		}
		if !ok {
			return r.m.ErrorAt(r.f, i, "%s gave %s as result %d, which is declared %s", name, t, j, want)
		}
	}
	n.out = c.Results
	return nil
}

// dim evaluates the node's attribute of that name.
func (n *node) dim(name string) (int64, error) {
	a, _ := n.Attr(name)
	return a.Dim.Eval(lookup(n.run.symbols))
}

// dims evaluates the node's list attribute of that name.
func (n *node) dims(name string) ([]int64, error) {
	a, _ := n.Attr(name)
	return evalAll(a.Dims, n.run.symbols)
}

func lookup(symbols map[string]int64) func(string) (int64, bool) {
	return func(s string) (int64, bool) { v, ok := symbols[s]; return v, ok }
}

func evalAll(dims []dim.Dim, symbols map[string]int64) ([]int64, error) {
	out := make([]int64, len(dims))
	for i, d := range dims {
		v, err := d.Eval(lookup(symbols))
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// evalAttrs returns the attributes with every dim evaluated.
func evalAttrs(attrs []ir.Attr, symbols map[string]int64) ([]ir.Attr, error) {
	out := slices.Clone(attrs)
	for i, a := range out {
		switch a.Kind {
		case ir.AttrDim:
			v, err := a.Dim.Eval(lookup(symbols))
			if err != nil {
				return nil, err
			}
			out[i].Dim = dim.Const(v)
		case ir.AttrDims:
			vs, err := evalAll(a.Dims, symbols)
			if err != nil {
				return nil, err
			}
			out[i].Dims = ir.IntsAttr(a.Name, vs...).Dims
		}
	}
	return out, nil
}

// label names a value in messages.
func label(f *ir.Func, v ir.Value) string {
	info := f.Values[v]
	switch info.Kind {
	case ir.ParamValue:
		if info.Name == "" {
			return fmt.Sprintf("parameter %d", info.Index)
		}
		return "parameter %" + info.Name
	case ir.WeightValue:
		return "weight @" + info.Name
	}
	return "state @" + info.Name
}
