package train

import (
	"cmp"
	"slices"

	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/optim"
)

// emitLoss emits the training functions of one loss.
func (p *builder) emitLoss(i int) {
	s := &p.sources[i]
	p.Losses = append(p.Losses, Loss{Name: s.f.Name, weights: s.weights})
	l := &p.Losses[i]
	for _, g := range s.f.Generators() {
		l.Generators = append(l.Generators, Generator{Name: s.f.Values[g.Value].Name, Advance: g.Advance})
	}
	if !p.separate {
		fb := p.b.Func(l.Name)
		started := p.start(fb, l)
		r := p.reducer(fb)
		values := p.gradients(fb, s, r.add)
		p.update(fb, l, started, p.mean(fb, s, r.finish(values)))
		return
	}
	states := []string{stateLoss}
	if p.weighted(s) {
		states = append(states, stateWeight)
	}
	for _, w := range l.weights {
		states = append(states, accumulated(p.Weights[w].Name))
	}
	fb := p.b.Func(l.Name + ".accumulate")
	for i, x := range p.gradients(fb, s, nil) {
		old := fb.State(states[i])
		fb.Op("copy", []ir.Value{old, fb.Op1("add", []ir.Value{old, x})})
	}
	fb.Return()

	fb = p.b.Func(l.Name + ".update")
	var values []ir.Value
	for _, state := range states {
		// A separate value: the state is cleared below, before results are read.
		values = append(values, fb.Op1("add", []ir.Value{fb.State(state), fb.Float(0)}))
	}
	values = p.reducer(fb).finish(values)
	for _, state := range states {
		v := fb.State(state)
		zero := fb.Op1("full", []ir.Value{fb.Float(0)}, ir.DimsAttr("shape", fb.Type(v).Shape...), ir.DTypeAttr(dtype.F32))
		fb.Op("copy", []ir.Value{v, zero})
	}
	p.update(fb, l, p.start(fb, l), p.mean(fb, s, values))
}

// gradients emits forward and backward of one part of a step. It returns the values that are
// summed over the parts, in f32: the loss, the weight of the batch if p.weighted, and the gradients of
// the trained weights, times the scale of the loss. All are divided by the number of parts. If
// p.weighted, the loss and the gradients are multiplied by the weight of the batch. ready, if not nil,
// is called for each gradient that a node computes, right after that node, with the gradient and its
// index among the returned values: the first gradient has index 1, or 2 if p.weighted.
func (p *builder) gradients(fb *ir.FuncBuilder, s *source, ready func(i int, v ir.Value)) []ir.Value {
	args := params(fb, s.f)
	for _, v := range args {
		fb.Place(v, p.varying()...)
	}
	fb.SetPos(s.f.Pos)
	out := fb.Inline(s.d.Forward, ir.Inlining{Args: args})
	part := fb.Float(1 / p.parts())
	full := func(x ir.Value) ir.Value {
		return fb.Op1("full", []ir.Value{x}, ir.DimsAttr("shape"), ir.DTypeAttr(dtype.F32))
	}
	mul := func(a, b ir.Value) ir.Value { return fb.Op1("mul", []ir.Value{a, b}) }
	sums := out[:1:1]
	var seed ir.Value
	switch {
	case p.weighted(s):
		weight := mul(out[1], part)
		sums = []ir.Value{mul(out[0], weight), weight}
		if seed = weight; p.options.Scaler != nil {
			seed = mul(fb.State(stateScale), weight)
		}
	default:
		if p.parts() > 1 {
			sums = []ir.Value{mul(out[0], part)}
		}
		if seed = full(part); p.options.Scaler != nil {
			seed = mul(fb.State(stateScale), part)
		}
	}
	var in []ir.Value
	for _, v := range s.d.Plan.Saved {
		in = append(in, out[v.Result])
	}
	for _, i := range s.d.Params {
		in = append(in, args[i])
	}
	in = append(in, seed)
	if len(s.f.Returns) == 2 { // the weight of a batch has no gradient
		in = append(in, full(fb.Float(0)))
	}
	how := ir.Inlining{Args: in}
	if ready != nil {
		made := producers(s.d.Backward)
		how.After = func(node int, value func(ir.Value) ir.Value) {
			for _, r := range made[node] {
				ready(len(sums)+r.index, value(r.value))
			}
		}
	}
	return append(sums, fb.Inline(s.d.Backward, how)...)
}

// produced is a result of a function: its index and its value.
type produced struct {
	index int
	value ir.Value
}

// producers returns the results of f by the node that computes them. A backward ends with a reshape
// of each gradient to its own shape, which computes nothing: the node before it counts.
func producers(f *ir.Func) map[int][]produced {
	node := map[ir.Value]int{}
	for i, n := range f.Nodes {
		for _, v := range n.Results {
			node[v] = i
		}
	}
	out := map[int][]produced{}
	for k, v := range f.Returns {
		at, ok := node[v]
		for ok && f.Nodes[at].Op.ID == ir.OpReshape && f.Type(f.Nodes[at].Args[0]).Equal(f.Type(v)) {
			v = f.Nodes[at].Args[0]
			at, ok = node[v]
		}
		if ok {
			out[at] = append(out[at], produced{k, v})
		}
	}
	return out
}

// mean emits the loss and the gradients of a step from the sums over its parts. If all weights
// are 0, so are the means.
func (p *builder) mean(fb *ir.FuncBuilder, s *source, sums []ir.Value) []ir.Value {
	if !p.weighted(s) {
		return sums
	}
	some := fb.Op1("compare", []ir.Value{sums[1], fb.Float(0)}, ir.EnumAttr("dir", "gt"))
	by := fb.Op1("where", []ir.Value{some, fb.Op1("reciprocal", []ir.Value{sums[1]}), fb.Float(1)})
	out := slices.Delete(slices.Clone(sums), 1, 2)
	for i, x := range out {
		out[i] = fb.Op1("mul", []ir.Value{x, by})
	}
	return out
}

// update emits the optimizer after the loss and the gradients, and the results of the step.
func (p *builder) update(fb *ir.FuncBuilder, l *Loss, started started, values []ir.Value) {
	o := &p.options
	loss, gradients := values[0], values[1:]
	results := []ir.Value{loss}
	l.Results = []string{"loss"}
	result := func(name string, v ir.Value) {
		l.Results, results = append(l.Results, name), append(results, v)
	}
	finite := ir.NoValue
	if o.Scaler != nil {
		gradients, finite = o.Scaler.Unscale(fb, gradients, fb.State(stateScale))
	}
	unclipped := gradients
	if o.ClipNorm > 0 {
		norm := optim.GlobalNorm(fb, gradients)
		result("grad_norm", norm)
		gradients = optim.ClipNorm(fb, gradients, norm, o.ClipNorm)
	}
	if o.Scaler != nil {
		result("finite", finite)
	}
	if o.Gradients {
		for k, w := range l.weights {
			result("grad."+p.Weights[w].Name, unclipped[k])
		}
	}
	p.optimizer(fb, l, started, gradients, finite)
	fb.Return(results...)
}

// started has the values that all updates of a step share.
type started struct {
	counts  []string                // states that count steps
	next    map[string]ir.Value     // their new values
	updates map[string]optim.Update // by count
}

// start emits the values that updates need in addition to gradients. In a step of one function it precedes
// the gradients, so an update can be part of the kernel that computes the gradient.
func (p *builder) start(fb *ir.FuncBuilder, l *Loss) started {
	o := &p.options
	lr := fb.State(stateLR)
	if o.Schedule != nil {
		done := fb.Op1("cast", []ir.Value{fb.State(stateStep)}, ir.DTypeAttr(dtype.F32))
		lr = fb.Op1("mul", []ir.Value{lr, o.Schedule.Factor(fb, done)})
	}
	s := started{counts: []string{stateStep}, next: map[string]ir.Value{}, updates: map[string]optim.Update{}}
	for _, w := range l.weights {
		if c := p.counts[w]; !slices.Contains(s.counts, c) {
			s.counts = append(s.counts, c)
		}
	}
	for _, c := range s.counts {
		s.next[c] = fb.Op1("add", []ir.Value{fb.State(c), fb.Int(1)})
		s.updates[c] = o.Optimizer.Start(fb, lr, s.next[c])
	}
	return s
}

// optimizer emits the updates of weights and step counts, in the order in which gradients are
// emitted: the first updates then overlap with the sums of the last gradients over the ranks. With a
// scaler, a step in which finite is false keeps weights, optimizer states and counts; optimizer also emits
// the next scale of the loss. Without a scaler, finite is ir.NoValue.
func (p *builder) optimizer(fb *ir.FuncBuilder, l *Loss, started started, gradients []ir.Value, finite ir.Value) {
	o := &p.options
	write := func(state, next ir.Value) {
		if finite != ir.NoValue {
			next = fb.Op1("where", []ir.Value{finite, next, state})
		}
		fb.Op("copy", []ir.Value{state, next})
	}
	order := make([]int, len(gradients))
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(gradients[a], gradients[b]) })
	for _, k := range order {
		i := l.weights[k]
		name := p.Weights[i].Name
		fb.SetLoc(name)
		var states []ir.Value
		for _, s := range o.Optimizer.States() {
			states = append(states, fb.State(optimizerState(s, name)))
		}
		w := fb.State(name)
		w2, states2 := started.updates[p.counts[i]](w, gradients[k], states)
		for j, s := range states2 {
			write(states[j], s)
		}
		write(w, w2)
	}
	fb.SetLoc("")
	for _, c := range started.counts {
		write(fb.State(c), started.next[c])
	}
	if o.Scaler != nil {
		scale, growth := fb.State(stateScale), fb.State(stateGrowth)
		scale2, growth2 := o.Scaler.Next(fb, finite, scale, growth)
		fb.Op("copy", []ir.Value{scale, scale2})
		fb.Op("copy", []ir.Value{growth, growth2})
	}
}

// emitChoose emits the function that chooses the loss of a step.
func (p *builder) emitChoose(f *ir.Func) {
	f, _, err := p.cast(f)
	if err != nil {
		p.b.Errorf(ir.Pos{}, "%v", err)
		return
	}
	fb := p.b.Func(f.Name)
	fb.Return(fb.Inline(f, ir.Inlining{Args: params(fb, f)})...)
}
