package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/padding"
	"pwc/piecewise"
)

// funcBench measures a function of a module that is not a language model.
type funcBench struct {
	benchRun
	flags  *benchFlags
	model  *model
	module *ir.Module // model.module with only the function to measure
	loaded *modelFlags
	report *funcReport
}

// funcReport is the JSON of bench for such a function.
type funcReport struct {
	Model    string      `json:"model"`
	Target   string      `json:"target"`
	Device   string      `json:"device"`
	Ranks    int         `json:"ranks"` // devices that run it together
	Function string      `json:"function"`
	Modes    []funcMode  `json:"modes"`
	Runs     []funcTimes `json:"runs"`
}

// funcMode has the times of preparing a mode, before the runs that are measured.
type funcMode struct {
	Mode    string         `json:"mode"`
	Compile float64        `json:"compile_seconds"`
	Load    float64        `json:"load_seconds"`
	Capture float64        `json:"capture_seconds"`
	Plan    piecewise.Plan `json:"plan"`
}

// funcTimes are runs of one size in one mode.
type funcTimes struct {
	Rows int64   `json:"rows"`
	Size int64   `json:"size"`            // with padding
	Mode string  `json:"mode"`            // of the run, as in benchStep
	Rate float64 `json:"rows_per_second"` // of runs in a row
	benchTimes
}

// checkFunc returns a usage error for flags that only apply to language models.
func (g *benchFlags) checkFunc(path string) error {
	var given []string
	for _, x := range []struct {
		name string
		set  bool
	}{{"prompt", len(g.prompts) > 0}, {"context", !g.anyContext}, {"profile", g.profile}} {
		if x.set {
			given = append(given, x.name)
		}
	}
	if len(given) > 0 {
		return usagef("only language models, with @forward(ids, positions) and @logits(hidden states, rows), take --%s; %s is not one", strings.Join(given, " and --"), path)
	}
	return nil
}

func (a *app) runBenchFunc(ctx context.Context, path string, m *model, f *modelFlags, bf *buildFlags, g *benchFlags) (err error) {
	if err := g.checkFunc(path); err != nil {
		return err
	}
	if g.fn == "" && len(m.module.Funcs) != 1 {
		return usagef("%s has %d functions and is not a language model: choose one with --func", path, len(m.module.Funcs))
	}
	funcs, err := chooseFuncs(m.module, g.fn)
	if err != nil {
		return err
	}
	only := *m.module
	only.Funcs = funcs[:1]
	if len(g.batches) == 0 {
		g.batches = sizesOf(&only)
	}
	shared, err := a.benchRun(bf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shared.close()) }()
	b := &funcBench{benchRun: shared, flags: g, model: m, module: &only, loaded: f,
		report: &funcReport{Model: only.Name, Target: shared.target.name, Device: shared.target.dev.Info().Name, Ranks: only.World(), Function: funcs[0].Name}}
	closeWorld, err := b.join(ctx, &only)
	if err != nil {
		return err
	}
	defer func() { err = closeWorld(err) }()
	g.repeats.agree = b.world.agreeRuns(ctx)
	for _, name := range g.modes {
		mode, err := piecewise.ParseMode(name)
		if err != nil {
			return usagef("--mode: %w", err)
		}
		if err := b.run(ctx, mode); err != nil {
			return err
		}
	}
	b.status.clear()
	switch {
	case bf.process.follows():
		return nil
	case a.json:
		return a.printJSON(b.report)
	}
	return b.print(path)
}

// sizesOf returns the default sizes, clamped to the range of the function's row symbol, without
// repetitions; one size if its parameters have fixed shapes.
func sizesOf(m *ir.Module) sizeList {
	f := m.Funcs[0]
	varies := func(d dim.Dim) bool { return len(d.Symbols()) > 0 }
	if !slices.ContainsFunc(f.Params, func(p ir.Value) bool { return slices.ContainsFunc(f.Values[p].Type.Shape, varies) }) {
		return sizeList{1}
	}
	sizes := slices.Clone(benchSizes)
	if name, ok := padding.SizeSymbol(m, f); ok {
		s := m.Symbol(name)
		for i, n := range sizes {
			sizes[i] = min(max(n, s.Lo), s.Hi)
		}
	}
	return slices.Compact(sizes)
}

// calls returns one call on made-up inputs for each size. The largest is first, because its limits
// have room for the others.
func (b *funcBench) calls() ([]*single, error) {
	var out []*single
	sizes := slices.Clone(b.flags.batches)
	slices.Sort(sizes)
	for _, n := range slices.Backward(sizes) {
		s, err := newSingle(b.module, nil, &runFlags{rows: n}, b.build)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// run compiles, loads and captures the function in a mode, and measures it at every size.
func (b *funcBench) run(ctx context.Context, mode piecewise.Mode) (err error) {
	calls, err := b.calls()
	if err != nil {
		return err
	}
	weights, closeWeights, err := b.model.source(b.loaded)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeWeights()) }()
	b.module.Weights, b.module.States = b.model.module.Weights, b.model.module.States // source has replaced them if values are made up
	r := funcMode{Mode: mode.String()}
	lap := func(d *float64, f func() error) error {
		start := time.Now()
		err := f()
		*d = time.Since(start).Seconds()
		return err
	}
	b.status.say("compiling, mode %s", mode)
	build := *calls[0].withoutBound(b.build)
	build.uncached = true
	var all *backends
	if err := lap(&r.Compile, func() (err error) {
		all, err = b.app.newBackends(ctx, b.module, b.target, b.world, &build, mode, calls[0].limits(), calls[0].symbols())
		return err
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	if err := b.world.agree(ctx, b.flags.settings(b.module)+", "+b.build.settings()); err != nil {
		return err
	}
	r.Plan = all.first().Plan()
	b.status.say("loading and capturing, mode %s", mode)
	if err := lap(&r.Load, func() error { return all.load(ctx, weights) }); err != nil {
		return err
	}
	if err := lap(&r.Capture, func() error { return all.capture(ctx) }); err != nil {
		return err
	}
	b.report.Modes = append(b.report.Modes, r)
	m, err := b.target.meter(all.first().Stream())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	for _, s := range slices.Backward(calls) {
		b.status.say("measuring runs of %s, mode %s", plural(s.total, "row"), mode)
		if err := b.measure(ctx, all, m, s); err != nil {
			return err
		}
	}
	return all.finish()
}

// measure times runs of one size.
func (b *funcBench) measure(ctx context.Context, all *backends, m meter, s *single) error {
	batch, err := s.step(0, s.total)
	if err != nil {
		return err
	}
	fn := b.module.Funcs[0]
	choice := all.first().Func(fn.Name).Choose(s.total, batch.Uniform() && batch.MaxQuery == 1)
	t := funcTimes{Rows: s.total, Size: choice.Size, Mode: choice.Mode.String()}
	c := all.caller(b.module)
	t.benchTimes, err = b.flags.repeats.times(m, func() error {
		_, err := c.call(ctx, fn, s.args, s.bound, batch)
		return err
	}, nil)
	t.Rate = 1e3 * float64(s.total) / t.InARow
	b.report.Runs = append(b.report.Runs, t)
	return err
}

func (b *funcBench) print(path string) error {
	a, r := b.app, b.report
	if b.flags.format == asText {
		fmt.Fprintf(a.out, "@%s of %s on %s\n\n", r.Function, path, devicesText(r.Ranks, r.Device))
		for _, m := range r.Modes {
			fmt.Fprintf(a.out, "%-10s  %.3f s to compile, %.3f to load, %.3f to capture; weights %s, arena %s\n", m.Mode, m.Compile, m.Load, m.Capture, byteCount(m.Plan.WeightBytes), byteCount(m.Plan.PeakArenaBytes))
		}
		fmt.Fprintln(a.out)
	}
	t := table{head: []string{">rows", "mode", ">ms", ">p90", ">p99", ">in a row", ">to issue", ">rows/s"}}
	for _, s := range r.Runs {
		row := append([]string{fmt.Sprint(s.Rows), modeAt(s.Mode, s.Size, s.Rows)}, s.cells()...)
		t.add(append(row, fmt.Sprintf("%.0f", s.Rate))...)
	}
	return t.print(a.out, b.flags.format, "  ")
}
