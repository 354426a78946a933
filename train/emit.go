package train

import (
	"slices"

	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/optim"
)

// emitLoss emits the functions that train one loss.
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
		part := 1 / float64(p.options.Ranks)
		loss, gradients := p.gradients(fb, s, part)
		if p.options.Ranks > 1 {
			loss, gradients = p.reduce(fb, fb.Op1("mul", []ir.Value{loss, fb.Float(part)}), gradients)
		}
		p.update(fb, l, started, loss, gradients)
		return
	}
	parts := float64(p.options.MicroBatches * p.options.Ranks)
	fb := p.b.Func(l.Name + ".accumulate")
	loss, gradients := p.gradients(fb, s, 1/parts)
	add := func(state string, x ir.Value) {
		old := fb.State(state)
		fb.Op("copy", []ir.Value{old, fb.Op1("add", []ir.Value{old, x})})
	}
	add(stateLoss, fb.Op1("mul", []ir.Value{loss, fb.Float(1 / parts)}))
	for k, w := range l.weights {
		add(accumulated(p.Weights[w].Name), gradients[k])
	}
	fb.Return()

	fb = p.b.Func(l.Name + ".update")
	// Values of their own: the states are cleared below, and results are read after.
	held := func(state string) ir.Value {
		v := fb.State(state)
		return fb.Op1("add", []ir.Value{v, fb.Float(0)})
	}
	loss, gradients = held(stateLoss), nil
	for _, w := range l.weights {
		gradients = append(gradients, held(accumulated(p.Weights[w].Name)))
	}
	loss, gradients = p.reduce(fb, loss, gradients)
	clear := func(state string) {
		v := fb.State(state)
		zero := fb.Op1("full", []ir.Value{fb.Float(0)}, ir.DimsAttr("shape", fb.Type(v).Shape...), ir.DTypeAttr(dtype.F32))
		fb.Op("copy", []ir.Value{v, zero})
	}
	clear(stateLoss)
	for _, w := range l.weights {
		clear(accumulated(p.Weights[w].Name))
	}
	p.update(fb, l, p.start(fb, l), loss, gradients)
}

// gradients emits forward and backward, and returns the loss and the gradients of the weights in
// f32, multiplied by part and by the scale of the loss.
func (p *builder) gradients(fb *ir.FuncBuilder, s *source, part float64) (loss ir.Value, gradients []ir.Value) {
	args := params(fb, s.f)
	for _, v := range args {
		fb.Place(v, p.varying()...)
	}
	fb.SetPos(s.f.Pos)
	out := fb.Inline(s.d.Forward, ir.Inlining{Args: args})
	seed := fb.Op1("full", []ir.Value{fb.Float(part)}, ir.DimsAttr("shape"), ir.DTypeAttr(dtype.F32))
	if p.options.Scaler != nil {
		seed = fb.Op1("mul", []ir.Value{fb.State(stateScale), fb.Float(part)})
	}
	var in []ir.Value
	for _, v := range s.d.Plan.Saved {
		in = append(in, out[v.Result])
	}
	for _, i := range s.d.Params {
		in = append(in, args[i])
	}
	return out[0], fb.Inline(s.d.Backward, ir.Inlining{Args: append(in, seed)})
}

// update emits what follows the gradients of a step, and its results.
func (p *builder) update(fb *ir.FuncBuilder, l *Loss, started started, loss ir.Value, gradients []ir.Value) {
	o := &p.options
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

// started is what the updates of a step have in common.
type started struct {
	counts  []string                // states that count steps
	next    map[string]ir.Value     // what they become
	updates map[string]optim.Update // by count
}

// start emits what updates need beside the gradients. It comes before these, so that an update can be
// part of the kernel that computes the gradient.
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

// optimizer emits the updates of weights and of what counts steps. Where finite is a value and
// false, all keep what they hold, but for the scale.
func (p *builder) optimizer(fb *ir.FuncBuilder, l *Loss, started started, gradients []ir.Value, finite ir.Value) {
	o := &p.options
	write := func(state, next ir.Value) {
		if finite != ir.NoValue {
			next = fb.Op1("where", []ir.Value{finite, next, state})
		}
		fb.Op("copy", []ir.Value{state, next})
	}
	for k, i := range l.weights {
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

// emitChoose emits the function that says which loss a step trains.
func (p *builder) emitChoose(f *ir.Func) {
	f, _, err := p.cast(f)
	if err != nil {
		p.b.Errorf(ir.Pos{}, "%v", err)
		return
	}
	fb := p.b.Func(f.Name)
	fb.Return(fb.Inline(f, ir.Inlining{Args: params(fb, f)})...)
}
