package autodiff

import (
	"fmt"
	"strings"

	"pwc/ir"
	"pwc/ir/dim"
)

// joint is one function that computes F and its gradients. [joint.gradient] and
// [joint.partition] take their functions from it.
type joint struct {
	*copier // from F
	m       *ir.Module
	f       *ir.Func // F
	b       *ir.Builder
	targets []Target
	customs map[string]Custom // gradients of extern ops by name

	primal  int                   // the nodes before this index compute F
	outputs []int                 // results of F that have a cotangent
	seeds   []ir.Value            // their cotangents
	outs    []ir.Value            // F's results
	results []ir.Value            // the gradients
	copies  map[ir.Value]ir.Value // by value of F: its copy, if there is one (see copy)
	frozen  map[ir.Value]ir.Value // the same copies by value of the joint
	isCopy  map[ir.Value]bool     // by value of the joint

	active []bool                // by value of F: a float that depends on a target
	grads  map[ir.Value]ir.Value // by value of F: the cotangent so far
	errs   ir.ErrorList
}

func differentiate(m *ir.Module, function string, wrt []string, custom map[string]Custom) (*joint, error) {
	if m == nil {
		return nil, fmt.Errorf("autodiff: %w", ir.ErrNoModule)
	}
	f := m.Func(strings.TrimPrefix(function, "@"))
	if f == nil {
		return nil, fmt.Errorf("autodiff: the module has no function @%s", strings.TrimPrefix(function, "@"))
	}
	if err := m.Verify(); err != nil {
		return nil, err
	}
	ts, err := targets(m, f, wrt)
	if err != nil {
		return nil, err
	}
	b := declare(m)
	declareCustom(b, m, custom)
	j := &joint{copier: newCopier(b.Func(f.Name+".gradient"), f), m: m, f: f, b: b, targets: ts, customs: custom,
		isCopy: map[ir.Value]bool{}, copies: map[ir.Value]ir.Value{}, frozen: map[ir.Value]ir.Value{}, grads: map[ir.Value]ir.Value{}}
	j.forward()
	j.activity()
	j.backward()
	if err := j.errs.Err(); err != nil {
		return nil, err
	}
	if _, err := b.Build(); err != nil {
		return nil, err
	}
	return j, nil
}

// forward emits F. It copies a value before a node overwrites it, since the backward may read
// it. It also copies the last contents of states and mut parameters that F writes, since other
// functions may write them before the backward runs.
func (j *joint) forward() {
	for _, p := range j.f.Params {
		j.param(p)
	}
	j.cotangents()
	last := map[ir.Value]ir.Value{} // by states and mut parameters that are written
	var order []ir.Value
	for _, n := range j.f.Nodes {
		j.fb.SetOrigin(n.Origin)
		for _, w := range n.Versions {
			v := n.Args[w.Arg]
			if d := j.f.Def(v); d == nil || !d.IsEmpty() { // else its contents are undefined
				j.copy(v)
			}
			base := j.f.Base(v)
			if k := j.f.Values[base].Kind; k == ir.ParamValue || k == ir.StateValue {
				if _, ok := last[base]; !ok {
					order = append(order, base)
				}
				last[base] = w.Value
			}
		}
		j.node(n, false)
	}
	for _, base := range order {
		j.copy(last[base])
	}
	j.primal = len(j.fb.Func().Nodes)
	for _, r := range j.f.Returns {
		j.outs = append(j.outs, j.value(r))
	}
}

// copy copies a value of F, because F overwrites it or other functions may.
func (j *joint) copy(v ir.Value) {
	c := j.reshape(j.value(v), j.f.Type(v).Shape...)
	j.copies[v], j.frozen[j.value(v)], j.isCopy[c] = c, c, true
}

// cotangents adds a parameter for each float result.
func (j *joint) cotangents() {
	used := map[string]bool{}
	for _, p := range j.f.Params {
		used[j.f.Values[p].Name] = true
	}
	for i, t := range j.f.ResultTypes {
		if !differentiable(t.DType) {
			continue
		}
		name := fmt.Sprintf("grad_out%d", i)
		if used[name] {
			j.errs = append(j.errs, j.m.ErrorAt(j.f, -1, "@%s has a parameter %%%s: the cotangent of result %d needs that name; rename the parameter", j.f.Name, name, i))
		}
		j.outputs = append(j.outputs, i)
		j.fb.SetPos(j.f.ReturnPos)
		seed := j.fb.Param(name, t)
		j.fb.Place(seed, ofCotangent(j.f.ResultPlacement(i))...)
		j.seeds = append(j.seeds, seed)
	}
	if len(j.outputs) == 0 {
		j.errs = append(j.errs, j.m.ErrorAt(j.f, -1, "@%s returns no value of f32, f16 or bf16, so it has no gradient", j.f.Name))
	}
}

// give adds a cotangent of v to the ones so far.
func (j *joint) give(v, g ir.Value) {
	g = j.ofAllRanks(v, g)
	if have, ok := j.grads[v]; ok {
		g = j.fb.Op1("add", []ir.Value{have, g})
	}
	j.grads[v] = g
}

// is reports whether v is the value of a target before F writes it.
func (j *joint) is(v ir.Value, t Target) bool {
	info := &j.f.Values[v]
	return info.Kind == t.Kind && int(info.Index) == t.Index
}

// activity finds the values that depend on a target through floats.
func (j *joint) activity() {
	j.active = make([]bool, len(j.f.Values))
	for v := range j.f.Values {
		for _, t := range j.targets {
			j.active[v] = j.active[v] || j.is(ir.Value(v), t)
		}
	}
	for _, n := range j.f.Nodes {
		on := false
		for _, a := range n.Args {
			on = on || j.active[a]
		}
		if !on || n.Extern == nil && table[n.Op.ID].flat {
			continue
		}
		for _, r := range n.Results {
			j.active[r] = differentiable(j.f.Type(r).DType)
		}
		for _, w := range n.Versions {
			j.active[w.Value] = differentiable(j.f.Type(w.Value).DType)
		}
	}
}

// backward visits the nodes of F in reverse and emits the rules of those that have a
// cotangent and depend on a target.
func (j *joint) backward() {
	j.fb.SetPos(j.f.ReturnPos)
	j.fb.SetLoc("")
	for k, i := range j.outputs {
		j.give(j.f.Returns[i], j.seeds[k])
	}
	for i := len(j.f.Nodes) - 1; i >= 0; i-- {
		n := j.f.Nodes[i]
		reached := false
		for _, r := range n.Results {
			_, ok := j.grads[r]
			reached = reached || ok && j.active[r]
		}
		for _, w := range n.Versions {
			_, ok := j.grads[w.Value]
			reached = reached || ok && j.active[w.Value]
		}
		if !reached {
			continue
		}
		e := table[n.Op.ID]
		if c := j.custom(n); c != nil {
			e.rule = func(s *step) {
				if err := s.call(c); err != nil {
					j.errs = append(j.errs, j.m.ErrorAt(j.f, i, "%s has no gradient: %v", n.Name(), err))
				}
			}
		}
		if e.rule == nil {
			j.errs = append(j.errs, j.m.ErrorAt(j.f, i, "%s has no gradient: %s", n.Name(), e.why))
			continue
		}
		j.fb.SetOrigin(n.Origin)
		e.rule(&step{j, n})
	}
	j.fb.SetPos(j.f.ReturnPos)
	j.fb.SetLoc("")
	for k, t := range j.targets {
		g := ir.NoValue
		for v := range j.f.Values {
			if h, ok := j.grads[ir.Value(v)]; ok && j.is(ir.Value(v), t) {
				g = h
			}
		}
		if j.targets[k].Reached = g != ir.NoValue; g == ir.NoValue {
			g = j.zeros(t.Type)
		} else { // a separate value, because g may be a cotangent or the gradient of another target
			g = j.reshape(g, t.Type.Shape...)
		}
		j.fb.SetName(g, fmt.Sprintf("grad_in%d", k))
		j.results = append(j.results, g)
	}
	placeAll(j.fb, j.results, nil)
}

// zeros returns a tensor of zeros.
func (j *joint) zeros(t ir.Type) ir.Value {
	return j.fb.Op1("full", []ir.Value{j.fb.Float(0)}, ir.DimsAttr("shape", t.Shape...), ir.DTypeAttr(t.DType))
}

// reshape returns a copy of x with other extents.
func (j *joint) reshape(x ir.Value, shape ...dim.Dim) ir.Value {
	return j.fb.Op1("reshape", []ir.Value{x}, ir.DimsAttr("shape", shape...))
}

// saved returns the value that the backward reads for a value of F: its copy if there is one.
func (j *joint) saved(v ir.Value) ir.Value {
	if c, ok := j.copies[v]; ok {
		return c
	}
	return j.value(v)
}

// live marks the nodes of the joint that the values need. With effects, it also marks nodes that
// write states and mut parameters, and calls that are random or use host state.
func (j *joint) live(effects bool, values ...ir.Value) []bool {
	f := j.fb.Func()
	need := make([]bool, len(f.Values))
	for _, v := range values {
		need[v] = true
	}
	out := make([]bool, len(f.Nodes))
	for i := len(f.Nodes) - 1; i >= 0; i-- {
		n := f.Nodes[i]
		for _, r := range n.Results {
			out[i] = out[i] || need[r]
		}
		for _, w := range n.Versions {
			kind := f.Values[f.Base(w.Value)].Kind
			out[i] = out[i] || need[w.Value] || effects && (kind == ir.ParamValue || kind == ir.StateValue)
		}
		out[i] = out[i] || effects && n.Extern != nil && n.Effects()&(ir.Host|ir.Random) != 0
		if out[i] {
			for _, a := range n.Args {
				need[a] = true
			}
		}
	}
	return out
}

// gradient returns the module with @F.gradient.
func (j *joint) gradient() (*ir.Module, error) {
	b := j.declare()
	f := j.fb.Func()
	c := newCopier(b.Func(f.Name), f)
	for _, p := range f.Params {
		c.param(p)
	}
	live := j.live(true, j.results...)
	for i, n := range f.Nodes {
		if live[i] {
			c.node(n, false)
		}
	}
	j.finish(c)
	return b.Build()
}

// finish ends a function whose results are the gradients.
func (j *joint) finish(c *copier) {
	out := make([]ir.Value, len(j.results))
	for k, g := range j.results {
		out[k] = c.value(g)
	}
	c.fb.SetPos(j.f.ReturnPos)
	placeAll(c.fb, out, nil)
}
