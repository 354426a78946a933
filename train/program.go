package train

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/autodiff"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/optim"
)

// Names of a program's states other than weights.
const (
	stateLR     = "train.lr"     // f32[]: the learning rate before the schedule
	stateStep   = "train.step"   // i32[]: steps that updated weights
	stateScale  = "train.scale"  // f32[]: the scale of the loss
	stateGrowth = "train.growth" // i32[]: steps since the scale changed
	stateLoss   = "train.loss"   // f32[]: the sum over the micro-batches so far
	stateWeight = "train.weight" // f32[]: the sum of their weights, if a loss returns one
)

// Program has the functions of a training step.
type Program struct {
	// Module has a state for each trained weight, by the weight's name, and the states of the
	// optimizer. Other weights stay weights.
	Module *ir.Module

	Weights []*ir.Weight // trained ones, with the expressions that load them
	Losses  []Loss
	Choose  *ir.Func // chooses the loss of a step; nil: there is one loss
	Inputs  []Input  // parameters of the losses and of Choose in a batch

	source  *ir.Module // the original module
	options Options
}

// Input is a tensor of a batch: the parameters with that name.
type Input struct {
	Name string
	Type ir.Type // its sizes are constants
}

// Loss is a trained function.
type Loss struct {
	Name string // of the function in the original module

	// Step runs forward, backward and optimizer. nil: a step is a run of Accumulate for each
	// micro-batch, and one of Update.
	Step *ir.Func

	Accumulate *ir.Func // forward and backward: adds to the gradients
	Update     *ir.Func // the optimizer, without parameters: it clears the gradients

	// Results names the results of Step or Update: "loss", then "grad_norm" if gradients are
	// clipped, "finite" (bool[]) with a scaler, and "grad.NAME" with Options.Gradients.
	Results []string

	// Generators are the generator parameters, i64[2]. Generator states of the module are
	// parameters here.
	Generators []Generator

	weights []int // indices of its trained weights in Program.Weights
}

// Generator is a parameter with a seed and an offset.
type Generator struct {
	Name    string
	Advance int64 // by how much one forward advances the offset (see ir.Generator)
}

// Build makes the functions of a step of m. Errors in functions of the module have positions.
func Build(m *ir.Module, o Options) (*Program, error) {
	if m == nil {
		return nil, fmt.Errorf("train: %w", ir.ErrNoModule)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.MicroBatches == 0 {
		o.MicroBatches = 1
	}
	if o.Ranks == 0 {
		o.Ranks = 1
	}
	if o.BucketBytes == 0 {
		o.BucketBytes = defaultBucket
	}
	if err := m.Verify(); err != nil {
		return nil, err
	}
	losses, choose, err := functions(m, &o)
	if err != nil {
		return nil, err
	}
	p := &builder{Program: &Program{source: m, options: o}, separate: o.Separate || o.MicroBatches > 1}
	if err := p.bind(m, losses, choose); err != nil {
		return nil, err
	}
	for _, f := range p.m.Funcs[:len(losses)] {
		if err := p.differentiate(f); err != nil {
			return nil, err
		}
	}
	p.declare()
	for i := range p.sources {
		p.emitLoss(i)
	}
	if choose != nil {
		p.emitChoose(p.m.Funcs[len(losses)])
	}
	if p.Module, err = p.b.Build(); err != nil {
		return nil, err
	}
	p.find()
	return p.Program, nil
}

// functions returns the losses of the module and the function that chooses among them.
func functions(m *ir.Module, o *Options) (losses []*ir.Func, choose *ir.Func, err error) {
	names := o.Losses
	if len(names) == 0 {
		for _, f := range m.Funcs {
			if len(m.Funcs) == 1 || f.Name == "loss" || strings.HasPrefix(f.Name, "loss.") {
				names = append(names, f.Name)
			}
		}
		if len(names) == 0 {
			return nil, nil, errors.New(`train: no function of the module is named "loss" or "loss.…"; name the one that returns the loss`)
		}
	}
	var errs ir.ErrorList
	for _, name := range names {
		f := m.Func(strings.TrimPrefix(name, "@"))
		switch {
		case f == nil:
			return nil, nil, fmt.Errorf("train: the module has no function @%s", strings.TrimPrefix(name, "@"))
		case len(f.ResultTypes) < 1 || len(f.ResultTypes) > 2 || slices.ContainsFunc(f.ResultTypes, func(t ir.Type) bool { return !t.Equal(optim.Scalar) }):
			errs = append(errs, refuse(m, f, "@%s returns %s: a function that is trained returns f32[], the loss, and at most one more f32[], the weight of its batch", f.Name, typeList(f.ResultTypes)))
		case slices.Contains(losses, f):
			errs = append(errs, refuse(m, f, "@%s is twice in Options.Losses", f.Name))
		}
		losses = append(losses, f)
	}
	if len(losses) == 1 {
		return losses, nil, errs.Err()
	}
	name := o.Choose
	if name == "" {
		name = "choose"
	}
	name = strings.TrimPrefix(name, "@")
	choose = m.Func(name)
	switch {
	case choose == nil:
		errs = append(errs, refuse(m, losses[1], "the module has %d losses and no function @%s, which chooses the loss that a step trains", len(losses), name))
	case len(choose.ResultTypes) != 1 || !choose.ResultTypes[0].Equal(optim.Count):
		errs = append(errs, refuse(m, choose, "@%s returns %s, want i32[], the index of a loss", name, typeList(choose.ResultTypes)))
	case o.MicroBatches > 1:
		return nil, nil, fmt.Errorf("train: Options.MicroBatches is %d: batches of a module with several losses are not cut, since each micro-batch could choose another one", o.MicroBatches)
	case o.Ranks > 1:
		return nil, nil, fmt.Errorf("train: Options.Ranks is %d: a module with several losses is trained on one device, since each rank could choose another one", o.Ranks)
	}
	return losses, choose, errs.Err()
}

func refuse(m *ir.Module, f *ir.Func, format string, args ...any) *ir.Error {
	return &ir.Error{Source: m.Source, Origin: ir.Origin{Pos: f.Pos}, Func: f.Name, Node: -1, Msg: fmt.Sprintf(format, args...)}
}

func typeList(types []ir.Type) string {
	out := make([]string, len(types))
	for i, t := range types {
		out[i] = t.String()
	}
	return "(" + strings.Join(out, ", ") + ")"
}

// builder makes a program.
type builder struct {
	*Program
	m        *ir.Module // with only the losses and Choose, their symbols bound
	b        *ir.Builder
	sources  []source
	separate bool
	counts   []string // by trained weight: the state that counts its steps
}

// source is a loss with its gradients.
type source struct {
	d       *autodiff.Derivative
	f       *ir.Func // the differentiated function
	weights []int
}

// parts returns the number of micro-batches of a step, over all ranks.
func (p *builder) parts() float64 { return float64(p.options.MicroBatches * p.options.Ranks) }

// weighted reports whether the parts of a step have weights.
func (p *builder) weighted(s *source) bool { return p.parts() > 1 && len(s.f.Returns) == 2 }

// differentiate adds a loss and the weights that it reads.
func (p *builder) differentiate(f *ir.Func) error {
	cast, m, err := p.cast(f)
	if err != nil {
		return err
	}
	s := source{f: cast}
	var names []string
	errs := p.written(f)
	for _, w := range read(p.m, f) {
		switch {
		case !w.Type.DType.Float():
			continue
		case w.Type.DType != dtype.F32:
			errs = append(errs, &ir.Error{Source: p.m.Source, Origin: ir.Origin{Pos: w.Pos}, Func: f.Name, Node: -1,
				Msg: fmt.Sprintf("weight @%s is %s: weights that are trained must be f32; Options.Precision is the dtype of GEMMs", w.Name, w.Type)})
			continue
		}
		i := slices.Index(p.Weights, w)
		if i < 0 {
			i = len(p.Weights)
			p.Weights = append(p.Weights, w)
		}
		s.weights = append(s.weights, i)
		names = append(names, "@"+w.Name)
	}
	if err := errs.Err(); err != nil {
		return err
	}
	if len(names) == 0 {
		return refuse(p.source, p.source.Func(f.Name), "@%s reads no weight that could be trained", f.Name)
	}
	if s.d, err = autodiff.Gradients(m, f.Name, names, autodiff.Options{Save: autodiff.SaveAll}); err != nil {
		return err
	}
	p.sources = append(p.sources, s)
	return nil
}

// written refuses functions that write states of the module if there are several ranks: each rank
// would write other values.
func (p *builder) written(f *ir.Func) (errs ir.ErrorList) {
	for _, n := range f.Nodes {
		for _, v := range n.Versions {
			if info := &f.Values[f.Base(v.Value)]; p.options.Ranks > 1 && info.Kind == ir.StateValue {
				errs = append(errs, &ir.Error{Source: p.m.Source, Origin: n.Origin, Func: f.Name, Node: slices.Index(f.Nodes, n),
					Msg: fmt.Sprintf("%s writes state @%s, whose contents would differ between the %d ranks that train it: train it on one device", n.Name(), info.Name, p.options.Ranks)})
			}
		}
	}
	return errs
}

// cast returns f in the precision of the options, and its module.
func (p *builder) cast(f *ir.Func) (*ir.Func, *ir.Module, error) {
	if p.options.Precision == dtype.Invalid || p.options.Precision == dtype.F32 {
		return f, p.m, nil
	}
	m, err := Autocast(p.m, f.Name, p.options.Precision)
	if err != nil {
		return nil, nil, err
	}
	return m.Func(f.Name), m, nil
}

// read returns the weights that f reads, in the module's order.
func read(m *ir.Module, f *ir.Func) []*ir.Weight {
	used := make([]bool, len(m.Weights))
	for i := range f.Values {
		if v := &f.Values[i]; v.Kind == ir.WeightValue {
			used[v.Index] = true
		}
	}
	var out []*ir.Weight
	for i, w := range m.Weights {
		if used[i] {
			out = append(out, w)
		}
	}
	return out
}

// declare starts the module of the step.
func (p *builder) declare() {
	p.b = declare(p.m)
	p.b.Module().Strict, p.b.Module().Unread = false, nil // weights are states here: Load checks the original module
	if p.options.Ranks > 1 {
		p.b.Group(Group, int64(p.options.Ranks), "")
	}
	for _, w := range p.m.Weights {
		if slices.Contains(p.Weights, w) {
			p.b.AddState(&ir.State{Name: w.Name, Type: w.Type, Pos: w.Pos})
		} else {
			p.b.AddWeight(w)
		}
	}
	for _, s := range p.m.States {
		p.b.AddState(s)
	}
	for _, w := range p.Weights {
		for _, s := range p.options.Optimizer.States() {
			p.b.State(optimizerState(s, w.Name), w.Type)
		}
		if p.separate {
			p.b.AddState(&ir.State{Name: accumulated(w.Name), Type: w.Type, Placements: p.varying()})
		}
	}
	p.b.State(stateLR, optim.Scalar)
	p.b.State(stateStep, optim.Count)
	p.declareCounts()
	if p.separate {
		p.b.AddState(&ir.State{Name: stateLoss, Type: optim.Scalar, Placements: p.varying()})
		if slices.ContainsFunc(p.sources, func(s source) bool { return p.weighted(&s) }) {
			p.b.AddState(&ir.State{Name: stateWeight, Type: optim.Scalar, Placements: p.varying()})
		}
	}
	if p.options.Scaler != nil {
		p.b.State(stateScale, optim.Scalar)
		p.b.State(stateGrowth, optim.Count)
	}
}

// declareCounts assigns each weight the state that counts its steps. A weight that a step does
// not use keeps its count, as in PyTorch, so weights with the same losses share a state.
func (p *builder) declareCounts() {
	by := map[string]string{}
	for i := range p.Weights {
		var key strings.Builder
		all := true
		for _, s := range p.sources {
			in := slices.Contains(s.weights, i)
			all = all && in
			fmt.Fprint(&key, in, " ")
		}
		if all {
			by[key.String()] = stateStep
		} else if by[key.String()] == "" {
			by[key.String()] = fmt.Sprintf("%s.%d", stateStep, len(by))
			p.b.State(by[key.String()], optim.Count)
		}
		p.counts = append(p.counts, by[key.String()])
	}
}

// optimizerState returns the name of an optimizer state of a weight.
func optimizerState(state, weight string) string { return "train." + state + "." + weight }

// accumulated returns the name of the sum of a weight's gradients over micro-batches.
func accumulated(weight string) string { return "train.grad." + weight }

// find sets the functions of the losses from the finished module.
func (p *builder) find() {
	for i := range p.Losses {
		l := &p.Losses[i]
		l.Step = p.Module.Func(l.Name)
		if p.separate {
			l.Step = nil
			l.Accumulate, l.Update = p.Module.Func(l.Name+".accumulate"), p.Module.Func(l.Name+".update")
		}
	}
	if len(p.Losses) > 1 {
		p.Choose = p.Module.Funcs[len(p.Module.Funcs)-1]
	}
}
