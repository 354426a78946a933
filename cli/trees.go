package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pwc/attention"
	"pwc/graphs"
	"pwc/graphs/tree"
	"pwc/graphs/whole"
	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/piecewise"
	"pwc/runtime/device"
)

// modeTrees is the value of --mode for graph trees.
const modeTrees = "trees"

// treeRounds is the number of runs of run --mode trees: a warm-up, a recording and a replay. The
// results are those of the last run.
const treeRounds = 3

// treeReport has the counters of graph trees for run --mode trees.
type treeReport struct {
	Recorded    int            `json:"recorded"`
	Warmups     int            `json:"warmups"`
	Replays     int            `json:"replays"`
	Eager       int            `json:"eager"`
	Checkpoints int            `json:"checkpoints"`
	Rerecords   int            `json:"rerecords"`
	Skips       map[string]int `json:"skips"`
	Reserved    int64          `json:"reserved_bytes"` // of the trees' pool
}

// treeCaller runs functions of a module by graph trees. Results are valid until forget.
type treeCaller struct {
	m       *ir.Module
	s       *graphs.Session
	tree    *tree.Manager
	backend *whole.Backend
	funcs   map[string]*whole.Graphed
	symbols map[string]int64
	weights []graphs.Tensor
	states  []graphs.Tensor
	initial [][]byte        // of states, the contents at the start of a run; nil: zeros
	kept    []graphs.Tensor // inputs and results of the calls since forget
}

func (c *treeCaller) function(name string) *ir.Func { return c.m.Func(name) }

// treeValue is a result in memory of the trees.
type treeValue struct {
	c *treeCaller
	t graphs.Tensor
}

func (v treeValue) tensor() (*interp.Tensor, error) {
	data := make([]byte, v.t.Size())
	if err := v.c.s.Read(v.t, data); err != nil {
		return nil, err
	}
	return interp.FromBytes(v.t.DType(), v.t.Shape(), data)
}

func (c *treeCaller) call(ctx context.Context, f *ir.Func, args []value, symbols map[string]int64, batch *attention.Batch) ([]value, error) {
	bound, err := symbolsOf(f, args, symbols)
	if err != nil {
		return nil, err
	}
	fn := c.funcs[f.Name]
	if fn == nil {
		if fn, err = c.backend.Function(ctx, c.m, f.Name, whole.FunctionOptions{Symbols: c.symbols, Keys: slices.Sorted(maps.Keys(bound))}); err != nil {
			return nil, err
		}
		c.funcs[f.Name] = fn
	}
	var in []tree.Input
	for i := range f.Params {
		if d, ok := args[i].(treeValue); ok {
			in = append(in, tree.Input{Tensor: d.t})
			continue
		}
		t, err := args[i].tensor()
		if err != nil {
			return nil, err
		}
		x, err := c.s.TensorOf("%"+f.Values[f.Params[i]].Name, t.Bytes(), t.Type, t.Shape...)
		if err != nil {
			return nil, err
		}
		c.kept = append(c.kept, x)
		in = append(in, tree.Input{Tensor: x})
	}
	for _, w := range fn.Weights() {
		in = append(in, tree.Input{Tensor: c.weights[w]})
	}
	for _, s := range fn.States() {
		in = append(in, tree.Input{Tensor: c.states[s]})
	}
	var keys []int64 // each combination of sizes is a separate function
	for _, name := range slices.Sorted(maps.Keys(bound)) {
		keys = append(keys, bound[name])
	}
	var meta any
	if batch != nil {
		meta = batch
	}
	outs, err := fn.CallWith(in, meta, keys...)
	if err != nil {
		return nil, err
	}
	values := make([]value, len(outs))
	for i, t := range outs {
		c.kept = append(c.kept, t)
		values[i] = treeValue{c, t}
	}
	return values, nil
}

// forget releases the results and inputs of the calls so far.
func (c *treeCaller) forget() error {
	var errs []error
	for _, t := range c.kept {
		errs = append(errs, t.Release())
	}
	c.kept = nil
	return errors.Join(errs...)
}

// restart gives the states their initial contents, on the trees' stream.
func (c *treeCaller) restart() error {
	eager := c.s.Eager(c.tree.Stream())
	var errs []error
	for i, t := range c.states {
		if c.initial[i] == nil {
			errs = append(errs, eager.Fill(t, 0))
		} else {
			errs = append(errs, eager.Upload(t, c.initial[i]))
		}
	}
	return errors.Join(errs...)
}

// close closes the trees, weights and states.
func (c *treeCaller) close() error {
	errs := []error{c.forget()}
	for _, t := range append(c.weights, c.states...) {
		errs = append(errs, t.Release())
	}
	return errors.Join(append(errs, c.tree.Close(), c.backend.Close(), c.s.Close())...)
}

// runTrees is run with graph trees. A function is one graph, or is cut at ops that cannot be
// captured. The trees learn the order of functions from the runs.
func (s *session) runTrees(ctx context.Context, m *ir.Module, report *runReport) (out []output, err error) {
	var sec runSeconds
	lap := func(start time.Time, d *float64) { *d = time.Since(start).Seconds() }
	start := time.Now()
	if err := s.checkMax(); err != nil {
		return nil, err
	}
	limits, symbols := overlay(s.work.limits(), s.build.max), overlay(s.work.symbols(), s.build.symbols)
	o, done, err := s.app.backendOptions(m, s.target, s.build, piecewise.None, bounds(m, limits, symbols))
	if err != nil {
		return nil, err
	}
	defer done()
	c := &treeCaller{m: m, funcs: map[string]*whole.Graphed{}, symbols: symbols}
	if c.s, err = graphs.NewSession(s.target.dev, graphs.SessionOptions{}); err != nil {
		return nil, err
	}
	if c.tree, err = tree.New(c.s, tree.Options{Log: s.app.logger(), OrError: o.Frozen}); err != nil {
		return nil, errors.Join(err, c.s.Close())
	}
	c.backend = whole.New(c.tree, whole.BackendOptions{
		Options:   whole.Options{Compiler: o.Compile.Compiler, Store: o.Compile.Store, Ops: o.Ops, Extras: o.Compile.Extras, Frozen: o.Frozen},
		Partition: true, OrError: o.Frozen,
		Warn: func(k *whole.Skip) { fmt.Fprintln(s.app.err, termsafe.Line(k.Error(), termsafe.MaxLine)) },
	})
	defer func() { err = errors.Join(err, c.close()) }()
	ref, err := s.app.newValues(ctx, m, 0, s.weights, symbols)
	if err != nil {
		return nil, err
	}
	for _, w := range m.Weights {
		t, err := c.load("@"+w.Name, ref.Weights[w.Name])
		if err != nil {
			return nil, err
		}
		c.weights = append(c.weights, t)
	}
	for _, st := range m.States {
		t, err := c.load("@"+st.Name, ref.States[st.Name])
		if err != nil {
			return nil, err
		}
		var initial []byte
		if st.Initial() != nil {
			initial = ref.States[st.Name].Bytes()
		}
		c.states, c.initial = append(c.states, t), append(c.initial, initial)
	}
	lap(start, &sec.Load)
	for range treeRounds {
		if err := errors.Join(c.forget(), c.restart()); err != nil {
			return nil, err
		}
		c.tree.MarkStep()
		start = time.Now()
		if out, err = s.work.run(ctx, c); err != nil {
			return nil, err
		}
		if err := s.treeFaults(c); err != nil {
			return nil, err
		}
		lap(start, &sec.Run)
	}
	in, err := c.tree.Inspect()
	if err != nil {
		return nil, err
	}
	if report != nil {
		st := in.Stats
		skips := maps.Clone(st.Skips)
		for r, n := range c.backend.Skips() {
			skips[string(r)] += n
		}
		report.Seconds = sec
		report.Trees = &treeReport{Recorded: st.Recorded, Warmups: st.Warmups, Replays: st.Executed, Eager: st.Eager, Checkpoints: st.Checkpoints,
			Rerecords: st.Rerecords, Skips: skips, Reserved: c.tree.Pool().Use().Reserved}
	}
	return out, nil
}

// checkMax returns a usage error if a symbol of a single call is above --max, which graph trees do not check.
func (s *session) checkMax() error {
	one, ok := s.work.(*single)
	if !ok {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.build.max)) {
		if n := one.bound[name]; n > s.build.max[name] {
			return usagef("--max %s=%d: the inputs have %s = %d", name, s.build.max[name], name, n)
		}
	}
	return nil
}

// treeFaults returns an error if programs of the trees met indices out of range (C12). Reading a
// result of a tree does not check for them.
func (s *session) treeFaults(c *treeCaller) (err error) {
	if err := c.tree.Stream().Synchronize(); err != nil {
		return err
	}
	stream, err := s.target.dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	faults, err := s.target.dev.TakeFaults(stream)
	if err != nil || len(faults) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s of the model read zero or wrote nothing; --mode piecewise names them", device.ErrIndex, plural(int64(len(faults)), "op"))
}

func (c *treeCaller) load(name string, t *interp.Tensor) (graphs.Tensor, error) {
	return c.s.TensorOf(name, t.Bytes(), t.Type, t.Shape...)
}

// printTrees prints the counters of the trees.
func (a *app) printTrees(path string, t *target, r *runReport) {
	k := r.Trees
	fmt.Fprintf(a.out, "%s on %s, mode %s, run %d times\n", path, t.dev.Info().Name, r.Mode, treeRounds)
	fmt.Fprintf(a.out, "  %s, %s, %s, %d eager, %s; %s reserved\n", plural(int64(k.Warmups), "warm-up"), plural(int64(k.Recorded), "recording"),
		plural(int64(k.Replays), "replay"), k.Eager, plural(int64(k.Checkpoints), "checkpoint"), byteCount(k.Reserved))
	for _, reason := range slices.Sorted(maps.Keys(k.Skips)) {
		fmt.Fprintf(a.out, "  skipped: %d for %s\n", k.Skips[reason], reason)
	}
	fmt.Fprintf(a.out, "  %.3f s to load, %.3f to run the last time\n\n", r.Seconds.Load, r.Seconds.Run)
}
