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

// compile has every artifact made, or taken from the store.
func (b *Backend) compile(ctx context.Context, plans []*split.Plan) error {
	shapes := map[string]pieces.Shapes{}
	for _, fn := range b.funcs {
		if fn.size != "" {
			shapes[fn.size] = b.shapes(fn)
		}
	}
	start := time.Now()
	var initializing sync.WaitGroup
	defer initializing.Wait()
	compiler := waking{b.opts.Compile.Compiler, sync.OnceFunc(func() { initializeLibraries(b.opts.Device, &initializing) })}
	r, err := pieces.Build(ctx, plans, pieces.Options{Compiler: compiler, Store: b.opts.Compile.Store, Shapes: shapes,
		Jobs: b.opts.Compile.Jobs, Frozen: b.opts.Frozen, Extras: b.opts.Compile.Extras, Unrecorded: b.opts.Compile.Unrecorded, PartOf: b.opts.Compile.PartOf, Observer: b.opts.Observe.Progress})
	if err != nil {
		return err
	}
	b.built = r
	if n := len(r.Warnings); n > 0 {
		b.opts.Observe.Logger.Warn("the store failed; what it lacks was compiled", "times", n, "first", r.Warnings[0])
	}
	for _, s := range r.ByShape {
		b.opts.Observe.Logger.Info("built", "shape", s.Shape, "compiled", s.Compiled, "loaded", s.Loaded, "bytes", s.Bytes, "seconds", s.Duration.Seconds())
	}
	c := r.Counters
	b.opts.Observe.Logger.Info("built all", "compiled", c.Compiled, "loaded", c.Loaded, "deduplicated", c.Deduplicated, "bytes", c.Bytes, "seconds", time.Since(start).Seconds())
	return b.countCompiledAtLoad()
}

// waking is a compiler beside whose first compilation the device's library routines wake up:
// planning asks them, and would wait for that. Where nothing is compiled it does no good, and
// they may not have to be asked.
type waking struct {
	pieces.Compiler
	wake func()
}

// For implements [pieces.ArtifactCompiler].
func (w waking) For(a *pieces.Artifact) pieces.Compiler {
	if known, ok := w.Compiler.(pieces.ArtifactCompiler); ok {
		w.Compiler = known.For(a)
	}
	return w
}

// Compile implements [pieces.Compiler].
func (w waking) Compile(ctx context.Context, piece *ir.Module, ranges map[string]dim.Interval) (*program.Program, error) {
	w.wake()
	return w.Compiler.Compile(ctx, piece, ranges)
}

// initializeLibraries has the routines of a device's libraries initialize in goroutines
// that started counts.
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

// countCompiledAtLoad counts what the device will compile when it loads programs and
// kernels of ops; frozen it is refused.
func (b *Backend) countCompiledAtLoad() error {
	d, ok := b.opts.Device.(device.LoadCompiler)
	if !ok {
		return nil
	}
	for _, a := range slices.Concat(b.built.Artifacts, b.built.Extras) {
		if why := d.CompilesAtLoad(a.Program); why != "" {
			b.stats.atLoad[why]++
		}
	}
	var reasons []string
	for _, why := range slices.Sorted(maps.Keys(b.stats.atLoad)) {
		n := b.stats.atLoad[why]
		reasons = append(reasons, fmt.Sprintf("%d with %s", n, why))
		if !b.opts.Frozen {
			b.opts.Observe.Logger.Warn("the device compiles programs when it loads them", "programs", n, "what", why)
		}
	}
	if b.opts.Frozen && len(reasons) > 0 {
		return &FrozenError{Reason: "the device would compile programs when it loads them: " + strings.Join(reasons, ", ")}
	}
	return nil
}

// shapes returns the ranges and exact sizes that a function's pieces are
// compiled for: those of the options that lie in the symbol's range. The general
// artifacts cover the declared range whatever Options.Memory.Max is, so that backends
// with other limits find them in the store.
func (b *Backend) shapes(fn *function) pieces.Shapes {
	sym := b.module.Symbol(fn.size)
	var s pieces.Shapes
	for _, n := range b.opts.Compile.Sizes {
		if n >= sym.Lo && n <= sym.Hi {
			s.Sizes = append(s.Sizes, n)
		}
	}
	for _, e := range b.opts.Compile.Endpoints {
		if e >= sym.Lo && e < sym.Hi {
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	return s
}

// program returns the artifact that serves a piece at a size.
func (b *Backend) program(p *split.Piece, n int64) (*program.Program, error) {
	return b.built.Program(p, n)
}

// Build returns what New compiled and loaded.
func (b *Backend) Build() *pieces.Result { return b.built }

// buildStats fills the counters of compilation.
func (b *Backend) buildStats(s *Stats) {
	c := b.built.Counters
	s.GraphsSeen, s.PiecewiseGraphsSeen, s.CapturableGraphsSeen = int64(c.GraphsSeen), int64(c.PiecewiseGraphsSeen), int64(c.PiecewiseCapturableGraphsSeen)
	for _, fn := range b.funcs {
		if fn.noGraph != nil {
			s.CapturableGraphsSeen -= int64(fn.plan.Counts().Capturable)
		}
	}
	s.BackendCompilations, s.Compiled, s.Deduplicated, s.Loaded = int64(c.BackendCompilations), int64(c.Compiled), int64(c.Deduplicated), int64(c.Loaded)
}

// programScratch returns the scratch memory that a launch of a program takes:
// its own, and after it the largest of what its ops ask for.
func (b *Backend) programScratch(p *program.Program, values []int64) (int64, error) {
	r, err := b.resolve(p, values)
	if err != nil {
		return 0, err
	}
	return r.Scratch, nil
}

// resolve makes a program's choices for values of its symbols. Without a device
// they are those of one without library routines.
func (b *Backend) resolve(p *program.Program, values []int64) (*device.Resolved, error) {
	var properties map[string]int64
	var libraries device.OpSet
	if d := b.opts.Device; d != nil {
		properties = d.Info().Properties
		if l, ok := d.(device.LibraryProvider); ok {
			libraries = l.Libraries()
		}
	}
	env, err := device.Env(p, values, properties)
	if err != nil {
		return nil, err
	}
	return device.Resolve(p, env, b.ops, libraries)
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
