package piecewise

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/pieces"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/split"
)

// compile compiles every artifact that the store does not have.
func (pl *plan) compile(ctx context.Context) error {
	plans := make([]*split.Plan, len(pl.funcs))
	for i, fn := range pl.funcs {
		plans[i] = fn.split
	}
	shapes := map[string]pieces.Shapes{}
	for _, fn := range pl.funcs {
		if fn.size != "" {
			shapes[fn.size] = pl.shapes(fn)
		}
	}
	start := time.Now()
	var calls sync.WaitGroup
	defer calls.Wait()
	compiler := initializing{pl.opts.Compile.Compiler, sync.OnceFunc(func() { initializeLibraries(pl.opts.Device, &calls) })}
	r, err := pieces.Build(ctx, plans, pieces.Options{Compiler: compiler, Store: pl.opts.Compile.Store, Shapes: shapes,
		Jobs: pl.opts.Compile.Jobs, Frozen: pl.opts.Frozen, Extras: pl.opts.Compile.Extras, Unrecorded: pl.opts.Compile.Unrecorded, PartOf: pl.opts.Compile.PartOf, Observer: pl.opts.Observe.Progress})
	if err != nil {
		return err
	}
	pl.built = r
	if n := len(r.Warnings); n > 0 {
		pl.opts.Observe.Logger.Warn("the store failed; artifacts that it did not give were compiled", "times", n, "first", r.Warnings[0])
	}
	for _, s := range r.ByShape {
		pl.opts.Observe.Logger.Info("built", "shape", s.Shape, "compiled", s.Compiled, "loaded", s.Loaded, "bytes", s.Bytes, "seconds", s.Duration.Seconds())
	}
	c := r.Counters
	pl.opts.Observe.Logger.Info("built all", "compiled", c.Compiled, "loaded", c.Loaded, "deduplicated", c.Deduplicated, "bytes", c.Bytes, "seconds", time.Since(start).Seconds())
	return pl.countCompiledAtLoad()
}

// initializing is a compiler that starts to initialize the device's library routines when it first
// compiles, because planning calls them and would wait. If nothing is compiled, there is no
// work to overlap, and planning may not need the routines.
type initializing struct {
	pieces.Compiler
	initialize func()
}

// For implements [pieces.ArtifactCompiler].
func (w initializing) For(a *pieces.Artifact) pieces.Compiler {
	if known, ok := w.Compiler.(pieces.ArtifactCompiler); ok {
		w.Compiler = known.For(a)
	}
	return w
}

// Compile implements [pieces.Compiler].
func (w initializing) Compile(ctx context.Context, piece *ir.Module, ranges map[string]dim.Interval) (*program.Program, error) {
	w.initialize()
	return w.Compiler.Compile(ctx, piece, ranges)
}

// initializeLibraries initializes the routines of a device's libraries in goroutines
// of started.
func initializeLibraries(d device.Device, started *sync.WaitGroup) {
	l, ok := d.(device.LibraryProvider)
	if !ok {
		return
	}
	for _, routine := range l.Libraries() {
		if r, ok := routine.(device.Initializer); ok {
			started.Go(r.Initialize)
		}
	}
}

// countCompiledAtLoad counts the programs, Extras among them, that the device will compile
// when it loads them; a frozen backend refuses them.
func (pl *plan) countCompiledAtLoad() error {
	d, ok := pl.opts.Device.(device.LoadCompiler)
	if !ok {
		return nil
	}
	for _, a := range slices.Concat(pl.built.Artifacts, pl.built.Extras) {
		if why := d.CompilesAtLoad(a.Program); why != "" {
			pl.atLoad[why]++
		}
	}
	var reasons []string
	for _, why := range slices.Sorted(maps.Keys(pl.atLoad)) {
		n := pl.atLoad[why]
		reasons = append(reasons, fmt.Sprintf("%d with %s", n, why))
		if !pl.opts.Frozen {
			pl.opts.Observe.Logger.Warn("the device compiles programs when it loads them", "programs", n, "what", why)
		}
	}
	if pl.opts.Frozen && len(reasons) > 0 {
		return &FrozenError{Reason: "the device would compile programs when it loads them: " + strings.Join(reasons, ", ")}
	}
	return nil
}

// shapes returns the ranges and exact sizes that a function's pieces are
// compiled for: those of the options that lie in the symbol's range. The general
// artifacts cover the declared range whatever Options.Memory.Max is, so that backends
// with other limits find them in the store.
func (pl *plan) shapes(fn *function) pieces.Shapes {
	sym := pl.module.Symbol(fn.size)
	var s pieces.Shapes
	for _, n := range pl.opts.Compile.Sizes {
		if n >= sym.Lo && n <= sym.Hi {
			s.Sizes = append(s.Sizes, n)
		}
	}
	for _, e := range pl.opts.Compile.Endpoints {
		if e >= sym.Lo && e < sym.Hi {
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	return s
}

// program returns the artifact that serves a piece at a size.
func (pl *plan) program(p *split.Piece, n int64) (*program.Program, error) {
	return pl.built.Program(p, n)
}

// Build returns what New compiled and loaded.
func (b *Backend) Build() *pieces.Result { return b.plan.built }

// buildStats fills the counters of compilation.
func (b *Backend) buildStats(s *Stats) {
	c := b.plan.built.Counters
	s.GraphsSeen, s.PiecewiseGraphsSeen, s.CapturableGraphsSeen = int64(c.GraphsSeen), int64(c.PiecewiseGraphsSeen), int64(c.PiecewiseCapturableGraphsSeen)
	for _, fn := range b.funcs {
		if fn.noGraph != nil {
			s.CapturableGraphsSeen -= int64(fn.split.Counts().Capturable)
		}
	}
	s.BackendCompilations, s.Compiled, s.Deduplicated, s.Loaded = int64(c.BackendCompilations), int64(c.Compiled), int64(c.Deduplicated), int64(c.Loaded)
}

// programScratch returns the bytes of scratch memory of a launch of a program:
// its own, followed by the largest scratch of its ops.
func (pl *plan) programScratch(p *program.Program, values []int64) (int64, error) {
	r, err := pl.resolve(p, values)
	if err != nil {
		return 0, err
	}
	return r.Scratch, nil
}

// resolve selects a program's variants for values of its symbols. Without a device
// it assumes a device that has no library routines but the collectives.
func (pl *plan) resolve(p *program.Program, values []int64) (*device.Resolved, error) {
	var properties map[string]int64
	var libraries device.OpSet
	if d := pl.opts.Device; d != nil {
		properties = d.Info().Properties
		if l, ok := d.(device.LibraryProvider); ok {
			libraries = l.Libraries()
		}
	} else {
		libraries = elsewhere(p)
	}
	env, err := device.Env(p, values, properties)
	if err != nil {
		return nil, err
	}
	return device.Resolve(p, env, pl.ops, libraries)
}

// elsewhere returns placeholders for the collectives of a program that is planned without a device.
// Their scratch memory, which only the device knows, is not in the plan; [Plan.Unplanned] lists them.
func elsewhere(p *program.Program) device.OpSet {
	out := device.OpSet{}
	for name := range p.Routines() {
		if strings.HasPrefix(name, program.CollectivePrefix) {
			out[name] = unplanned(name)
		}
	}
	return out
}

// unplanned is a placeholder for a routine of a device.
type unplanned string

var _ device.Op = unplanned("")

// Signature implements [device.Op].
func (u unplanned) Signature() device.Signature {
	return device.Signature{Name: string(u), Mut: []bool{true, false}, Capture: true}
}

// ScratchBytes implements [device.Op].
func (unplanned) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

// Launch implements [device.Op].
func (u unplanned) Launch(*device.OpCall) error {
	return fmt.Errorf("%w: to call %s", ErrNoDevice, string(u))
}

func evalShape(dims []dim.Dim, lookup func(string) (int64, bool)) ([]int64, error) {
	out := make([]int64, len(dims))
	for i, d := range dims {
		var err error
		if out[i], err = d.Eval(lookup); err != nil {
			return nil, err
		}
	}
	return out, nil
}
