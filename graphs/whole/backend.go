package whole

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"pwc/graphs"
	"pwc/graphs/tree"
	"pwc/internal/opattr"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/pieces"
	"pwc/runtime/device"
	"pwc/split"
)

// BackendOptions configure a backend.
type BackendOptions struct {
	Options

	// Partition cuts a function at the ops that cannot be captured: the parts between
	// them are functions of one tree. Without it such a function runs eagerly.
	Partition bool

	// NoMutation skips functions that write an input that is not static.
	NoMutation bool

	// OrError makes every skip of the backend an error. tree.Options.OrError does so for the manager's.
	OrError bool

	// Warn, if not nil, gets each skip.
	Warn func(*Skip)
}

// Backend runs functions of modules from a graph tree.
type Backend struct {
	m     *tree.Manager
	s     *graphs.Session
	opts  BackendOptions
	skips map[Reason]int
	funcs []*Graphed
}

// New returns a backend over a manager. The caller closes the manager before the backend.
func New(m *tree.Manager, o BackendOptions) *Backend {
	return &Backend{m: m, s: m.Session(), opts: o, skips: map[Reason]int{}}
}

// Skips returns the number of skips by reason.
func (b *Backend) Skips() map[Reason]int { return maps.Clone(b.skips) }

// Close unloads the functions. Reset or close the manager first.
func (b *Backend) Close() error {
	var errs []error
	for _, f := range b.funcs {
		for i := range f.parts {
			if p := f.parts[i].prog; p != nil {
				errs = append(errs, p.Close())
			}
		}
	}
	b.funcs = nil
	return errors.Join(errs...)
}

// FunctionOptions describe a function to a backend.
type FunctionOptions struct {
	Mode   tree.Mode
	Static []int // parameters that keep their address between calls

	// Forward is the forward of a function of mode backward. If the forward was skipped, the
	// backward runs eagerly without a warning.
	Forward *Graphed

	// Generators are the generators that the function draws from: first those of parameters, then those
	// of states, in the order of the function and of the module.
	Generators []*graphs.Generator

	// Symbols are the values of symbols that are the same in every call.
	Symbols map[string]int64

	// Keys names the symbols whose values are the integer keys of a call, in order. A part needs
	// them for a symbol that the shapes of its operands do not determine.
	Keys []string
}

// Graphed is a function of a backend. Graphs serve the parts of it that can be captured.
type Graphed struct {
	b     *Backend
	fn    *ir.Func
	mode  tree.Mode
	gens  []*graphs.Generator
	drawn []int // generator states: the index of a parameter, or the number of parameters plus a state's index
	given map[string]int64
	keys  []string // symbols
	plan  *split.Plan
	parts []part
	skip  *Skip // see Skipped
	quiet bool  // a backward whose forward was skipped

	weights, states []int            // indices in the module
	last            map[ir.Value]int // the last part that reads a memory between parts
}

// part is a piece of a function, or one call that runs between graphs.
type part struct {
	unit *split.Unit
	prog *graphs.Program
	fn   *tree.Func // nil: it runs eagerly
	op   device.Op
	loc  string
}

// Function compiles a function and registers it with the manager. If the function cannot be graphed,
// it is counted as a skip and given to Warn; with OrError that is an error. The backward of a skipped
// forward runs eagerly and is not counted as a skip. A function that returns a weight or a state is
// refused, as by [Compile].
func (b *Backend) Function(ctx context.Context, m *ir.Module, name string, o FunctionOptions) (*Graphed, error) {
	fn := m.Func(name)
	if fn == nil {
		return nil, fmt.Errorf("whole: module %s has no function @%s", m.Name, name)
	}
	if err := returnable(m, fn); err != nil {
		return nil, err
	}
	f := &Graphed{b: b, fn: fn, mode: o.Mode, gens: o.Generators, given: o.Symbols, keys: o.Keys}
	if o.Forward != nil && o.Forward.skip != nil {
		f.quiet = true
	} else if err := f.check(m, o); err != nil {
		return nil, err
	}
	cuts := []string{}
	eager := f.quiet || f.skip != nil
	if b.opts.Partition && !eager {
		front, err := Front(m, fn, b.opts.Ops)
		if err != nil {
			return nil, err
		}
		if front != fn {
			moved := *m
			moved.Funcs = slices.Clone(m.Funcs)
			moved.Funcs[slices.Index(m.Funcs, fn)] = front
			m, fn, f.fn = &moved, front, front
		}
		for _, n := range fn.Nodes {
			if reasonOf(n, b.opts.Ops) != "" && !slices.Contains(cuts, n.Extern.Name) {
				cuts = append(cuts, n.Extern.Name)
			}
		}
	}
	var err error
	if f.plan, err = split.Split(m, fn, cuts); err != nil {
		return nil, fmt.Errorf("whole: @%s: %w", name, err)
	}
	res, err := pieces.Build(ctx, []*split.Plan{f.plan}, pieces.Options{Compiler: b.opts.Compiler, Store: b.opts.Store, Extras: b.opts.Extras, Frozen: b.opts.Frozen})
	if err != nil {
		return nil, fmt.Errorf("whole: @%s: %w", name, err)
	}
	b.funcs = append(b.funcs, f)
	graphable := 0
	for _, u := range f.plan.Units {
		p := part{unit: u}
		if u.Piece == nil {
			n := fn.Nodes[u.Call]
			p.loc = place(m.ErrorAt(fn, u.Call, ""))
			i := slices.IndexFunc(b.opts.Ops, func(op device.Op) bool { return op.Signature().Name == n.Extern.Name })
			if i < 0 {
				return nil, m.ErrorAt(fn, u.Call, "no implementation of %s is given", n.Extern.Name)
			}
			p.op = b.opts.Ops[i]
		} else if err := f.load(m, &p, res, o, !eager && !f.plan.Items[u.Item].Splitting); err != nil {
			return nil, err
		}
		if p.fn != nil {
			graphable++
		}
		f.parts = append(f.parts, p)
	}
	if b.opts.Partition && !eager && graphable == 0 {
		// Nothing of the function is graphed. PyTorch does not warn here (#176611). There is no skip if the
		// function only allocates.
		if skips := Check(m, fn, CheckOptions{Static: o.Static, Ops: b.opts.Ops}); len(skips) > 0 {
			f.skip = skips[0]
			if err := b.warn(f.skip); err != nil {
				return nil, err
			}
		}
	}
	f.lives()
	return f, nil
}

// check looks for reasons not to graph the function.
func (f *Graphed) check(m *ir.Module, o FunctionOptions) error {
	skips := Check(m, f.fn, CheckOptions{Static: o.Static, NoMutation: f.b.opts.NoMutation, Ops: f.b.opts.Ops})
	for _, s := range skips {
		if f.b.opts.Partition && (s.Reason == HostDevice || s.Reason == IncompatibleOp) {
			continue // the function is cut there
		}
		f.skip = s
		return f.b.warn(s)
	}
	return nil
}

// load loads the program of a piece. If graphed, it registers the piece as a function of the tree.
func (f *Graphed) load(m *ir.Module, p *part, res *pieces.Result, o FunctionOptions, graphed bool) error {
	piece := p.unit.Piece
	prog, err := res.Program(piece, 0)
	if err != nil {
		var un *pieces.UncoveredError
		if !errors.As(err, &un) || len(un.Ranges) == 0 {
			return fmt.Errorf("whole: @%s: %w", f.fn.Name, err)
		}
		if prog, err = res.Program(piece, un.Ranges[0].Lo); err != nil {
			return fmt.Errorf("whole: @%s: %w", f.fn.Name, err)
		}
	}
	if p.prog, err = f.b.s.Load(prog, f.fn.Name, f.b.opts.Ops...); err != nil {
		return err
	}
	// A piece with only allocations would give an empty graph.
	if !graphed || !slices.ContainsFunc(piece.Origins, func(i int) bool { return !f.fn.Nodes[i].IsEmpty() }) {
		return nil
	}
	def := tree.Function{Name: f.fn.Name, Mode: tree.Inference, Generators: o.Generators}
	if len(f.plan.Units) > 1 {
		def.Name = fmt.Sprintf("%s, part %d", f.fn.Name, p.unit.Seq)
	}
	for i, b := range piece.Params {
		if j := slices.Index(f.fn.Params, b.Base); j >= 0 && slices.Contains(o.Static, j) {
			def.Static = append(def.Static, i)
		}
		if b.Mut {
			def.Mutated = append(def.Mutated, i)
		}
	}
	for i := range len(piece.Weights) + len(piece.States) {
		def.Static = append(def.Static, len(piece.Params)+i)
	}
	for i := range prog.Params {
		if prog.Params[i].Mut && i >= len(piece.Params) {
			def.Mutated = append(def.Mutated, i)
		}
	}
	for _, r := range piece.Results {
		def.Outputs = append(def.Outputs, position(m, f.fn, r.Base))
	}
	loaded := *p
	def.Body = func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
		return r.RunSymbols(loaded.prog, f.symbols(&loaded, in.Keys), f.operands(&loaded, in.All())...)
	}
	p.fn, err = f.b.m.Add(def)
	return err
}

// values returns the values of symbols in a call with these integer keys.
func (f *Graphed) values(keys []int64) map[string]int64 {
	env := map[string]int64{}
	maps.Copy(env, f.given)
	for i, name := range f.keys {
		if i < len(keys) {
			env[name] = keys[i]
		}
	}
	return env
}

// symbols returns the given values of a piece's symbols in a call, by the piece's names.
func (f *Graphed) symbols(p *part, keys []int64) map[string]int64 {
	given := f.values(keys)
	out := map[string]int64{}
	for i, s := range p.unit.Piece.Module.Symbols {
		if v, ok := given[p.unit.Piece.Symbols[i]]; ok && slices.Contains(p.prog.Program().Symbols, s.Name) {
			out[s.Name] = v
		}
	}
	return out
}

// operands replaces each operand that is the state of a generator by the generator, if it is given.
func (f *Graphed) operands(p *part, ts []graphs.Tensor) []graphs.Arg {
	args := graphs.Args(ts...)
	for i := range args {
		if at := slices.Index(f.drawn, f.generator(p, i)); at >= 0 && at < len(f.gens) {
			args[i] = f.gens[at]
		}
	}
	return args
}

// generator returns operand i of a piece as an element of Graphed.drawn; -1 if it is not the state of a
// generator.
func (f *Graphed) generator(p *part, i int) int {
	piece := p.unit.Piece
	if !p.prog.Program().Params[i].Generator {
		return -1
	}
	if i < len(piece.Params) {
		return slices.Index(f.fn.Params, piece.Params[i].Base)
	}
	return len(f.fn.Params) + piece.States[i-len(piece.Params)-len(piece.Weights)]
}

// lives finds the last part that reads each memory between parts, the weights and states that the
// parts read, and the generators that they draw from.
func (f *Graphed) lives() {
	f.last = map[ir.Value]int{}
	for _, s := range f.plan.Storages {
		f.last[s.Base] = s.Last
		if s.Returned {
			f.last[s.Base] = len(f.parts)
		}
	}
	for _, p := range f.parts {
		if p.unit.Piece == nil {
			for _, a := range f.fn.Nodes[p.unit.Call].Args {
				switch info := f.fn.Values[f.fn.Base(a)]; info.Kind {
				case ir.WeightValue:
					f.weights = add(f.weights, int(info.Index))
				case ir.StateValue:
					f.states = add(f.states, int(info.Index))
				}
			}
			continue
		}
		for _, w := range p.unit.Piece.Weights {
			f.weights = add(f.weights, w)
		}
		for _, s := range p.unit.Piece.States {
			f.states = add(f.states, s)
		}
		for i := range p.prog.Program().Params {
			if g := f.generator(&p, i); g >= 0 {
				f.drawn = add(f.drawn, g)
			}
		}
	}
	slices.Sort(f.drawn)
}

func add(list []int, x int) []int {
	if slices.Contains(list, x) {
		return list
	}
	return append(list, x)
}

// Weights returns the indices of the module's weights that the function reads. Call takes them in
// this order, after the parameters.
func (f *Graphed) Weights() []int { return f.weights }

// States returns the indices of the module's states that the function uses. Call takes them in this
// order, after the weights.
func (f *Graphed) States() []int { return f.states }

// Skipped returns why the function runs eagerly; nil if graphs serve it, if it is the backward of a
// skipped forward, or if it only allocates.
func (f *Graphed) Skipped() *Skip { return f.skip }

// Parts returns the number of parts that graphs serve, and the number of all parts.
func (f *Graphed) Parts() (graphed, all int) {
	for _, p := range f.parts {
		if p.fn != nil {
			graphed++
		}
	}
	return graphed, len(f.parts)
}

// Call runs the function on its parameters, weights and states and returns its results, each with an
// owner for the caller. A taken parameter belongs to the call, unless the call is refused for its inputs.
// An input of another session is counted as a skip and refused.
func (f *Graphed) Call(in []tree.Input) ([]graphs.Tensor, error) { return f.CallWith(in, nil) }

// CallWith is Call with the metadata of a step, which the ops between graphs get unchanged, and with
// integer keys: the parts are recorded separately for each set of keys.
func (f *Graphed) CallWith(in []tree.Input, meta any, keys ...int64) (results []graphs.Tensor, err error) {
	want := len(f.fn.Params) + len(f.weights) + len(f.states)
	if len(in) != want {
		return nil, fmt.Errorf("%w: @%s has %d inputs (%d parameters, %d weights, %d states), %d were given", graphs.ErrArguments, f.fn.Name, want, len(f.fn.Params), len(f.weights), len(f.states), len(in))
	}
	for i := range in {
		if err := in[i].Tensor.Err(); err != nil {
			return nil, fmt.Errorf("whole: input %d of @%s: %w", i, f.fn.Name, err)
		}
		if !f.b.s.Owns(in[i].Tensor) {
			s := &Skip{Reason: MultipleDevices, Func: f.fn.Name}
			return nil, errors.Join(f.b.warn(s), fmt.Errorf("%w: input %d of @%s belongs to another session", device.ErrForeignBuffer, i, f.fn.Name))
		}
	}
	defer func() {
		if f.mode == tree.Backward && err == nil {
			f.b.m.EndBackward() // also after a skipped backward
		} else if f.mode == tree.Forward && err == nil && f.skip == nil {
			f.b.m.BeginForward()
		}
	}()
	x := &call{f: f, at: map[ir.Value]held{}, meta: meta, keys: keys}
	for i, p := range f.fn.Params {
		x.at[p] = held{t: in[i].Tensor, mine: in[i].Take}
	}
	x.weights, x.states = in[len(f.fn.Params):], in[len(f.fn.Params)+len(f.weights):]
	for i := range f.parts {
		if err := x.part(i); err != nil {
			return nil, errors.Join(fmt.Errorf("whole: @%s: %w", f.fn.Name, err), x.drop())
		}
	}
	for _, v := range f.fn.Returns {
		t := x.at[f.fn.Base(v)].t
		if err := t.Retain(); err != nil {
			err = fmt.Errorf("whole: result %d of @%s: %w", len(results), f.fn.Name, err)
			for _, r := range results {
				err = errors.Join(err, r.Release())
			}
			return nil, errors.Join(err, x.drop())
		}
		results = append(results, t)
	}
	return results, x.drop()
}

// call is a run of a function's parts.
type call struct {
	f               *Graphed
	at              map[ir.Value]held
	weights, states []tree.Input
	meta            any
	keys            []int64
	prepared        []string // ops that are prepared for the step
}

// held is memory between parts.
type held struct {
	t    graphs.Tensor
	mine bool // the call has an owner of it
}

// drop releases what the call owns.
func (x *call) drop() error {
	var errs []error
	for base, h := range x.at {
		if h.mine {
			errs = append(errs, h.t.Release())
		}
		delete(x.at, base)
	}
	return errors.Join(errs...)
}

func (x *call) part(i int) error {
	p := &x.f.parts[i]
	if p.unit.Piece == nil {
		return x.op(p, i)
	}
	piece := p.unit.Piece
	var in []tree.Input
	owners := make([]int, len(piece.Params))
	for j, b := range piece.Params {
		h := x.at[b.Base]
		take := h.mine && x.f.last[b.Base] == i
		in = append(in, tree.Input{Tensor: h.t, Take: take})
		owners[j] = h.t.Storage().Owners()
	}
	for _, w := range piece.Weights {
		in = append(in, x.weights[slices.Index(x.f.weights, w)])
	}
	for _, s := range piece.States {
		in = append(in, x.states[slices.Index(x.f.states, s)])
	}
	var outs []graphs.Tensor
	var err error
	if p.fn != nil {
		outs, err = p.fn.Call(in, nil, x.keys...)
	} else {
		outs, err = x.eager(p, in)
	}
	if err != nil {
		for j, b := range piece.Params {
			if in[j].Take && in[j].Tensor.Storage().Owners() < owners[j] {
				delete(x.at, b.Base) // the part took it before it failed
			}
		}
		return err
	}
	for _, b := range piece.Params {
		if h := x.at[b.Base]; h.mine && x.f.last[b.Base] == i {
			delete(x.at, b.Base) // the part took it
		}
	}
	for j, b := range piece.Results {
		x.at[b.Base] = held{outs[j], true}
	}
	return nil
}

// eager runs a piece outside of graphs.
func (x *call) eager(p *part, in []tree.Input) ([]graphs.Tensor, error) {
	ts := make([]graphs.Tensor, len(in))
	for i := range in {
		ts[i] = in[i].Tensor
	}
	outs, err := x.f.b.s.Eager(x.f.b.m.Stream()).RunSymbols(p.prog, x.f.symbols(p, x.keys), x.f.operands(p, ts)...)
	for i := range in {
		if in[i].Take && err == nil {
			err = in[i].Tensor.Release()
		}
	}
	return outs, err
}

// op runs a call between graphs.
func (x *call) op(p *part, i int) error {
	f, n := x.f, x.f.fn.Nodes[p.unit.Call]
	r := f.b.s.Eager(f.b.m.Stream())
	var ts []graphs.Tensor
	for _, a := range n.Args {
		base := f.fn.Base(a)
		switch info := f.fn.Values[base]; info.Kind {
		case ir.WeightValue:
			ts = append(ts, x.weights[slices.Index(f.weights, int(info.Index))].Tensor)
		case ir.StateValue:
			ts = append(ts, x.states[slices.Index(f.states, int(info.Index))].Tensor)
		default:
			ts = append(ts, x.at[base].t)
		}
	}
	env := f.values(x.keys)
	for j, a := range n.Args {
		for k, d := range f.fn.Type(a).Shape {
			if names := d.Symbols(); len(names) == 1 && d.Equal(dim.Sym(names[0])) && j < len(ts) {
				env[names[0]] = ts[j].Shape()[k]
			}
		}
	}
	for _, b := range n.Results {
		typ := f.fn.Type(b)
		shape := make([]int64, len(typ.Shape))
		for k, d := range typ.Shape {
			v, err := d.Eval(func(s string) (int64, bool) { v, ok := env[s]; return v, ok })
			if err != nil {
				return fmt.Errorf("%s: the shape of a result: %w", p.loc, err)
			}
			shape[k] = v
		}
		t, err := r.Alloc(fmt.Sprintf("result of %s (%s)", n.Name(), p.loc), typ.DType, shape...)
		if err != nil {
			return err
		}
		x.at[b] = held{t, true}
		ts = append(ts, t)
	}
	if pre, ok := p.op.(device.Preparer); ok && len(ts) > 0 && !slices.Contains(x.prepared, n.Extern.Name) {
		rows := int64(0)
		if shape := ts[0].Shape(); len(shape) > 0 {
			rows = shape[0]
		}
		if err := pre.Prepare(r.Stream().Device(), x.meta, rows, rows); err != nil {
			return fmt.Errorf("%s: %w", p.loc, err)
		}
		x.prepared = append(x.prepared, n.Extern.Name)
	}
	if err := r.Call(p.op, x.meta, opattr.Of(n.Attrs), p.loc, ts...); err != nil {
		return err
	}
	for _, a := range n.Args {
		if base := f.fn.Base(a); f.last[base] == i && x.at[base].mine {
			if err := x.at[base].t.Release(); err != nil {
				return err
			}
			delete(x.at, base)
		}
	}
	return nil
}
