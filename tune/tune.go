// Package tune measures the variants by which a program can compute its GEMMs on this machine's
// GPU: algorithms of cuBLASLt, and the program's own kernels. The fastest becomes a record (see
// package cache), which runtime/cuda/cublaslt looks up.
package tune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"pwc/cache"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/cublaslt"
	"pwc/runtime/device"
)

// Options configure a measurement.
type Options struct {
	Device  *cuda.Device
	Library *cublaslt.Library
	Store   *cache.Store // gets the records; nil: records are not stored

	// Candidates is the largest number of algorithms to measure for a GEMM; 0: DefaultCandidates.
	Candidates int

	// Memory is the device memory for weights in bytes. It must exceed the caches. 0:
	// DefaultMemory.
	Memory int64

	// Progress, if not nil, is called before each GEMM.
	Progress func(done, of int, product string)

	// Logger, if not nil, gets a message from [Warmup] for each record that could not be stored.
	Logger *slog.Logger
}

// Defaults of Options.
const (
	DefaultCandidates = 8
	DefaultMemory     = 3 << 30
)

// Result is the measurement of a GEMM. Times are of its launches with the launch before and the
// launch after it in the program, because pwc's own kernels overlap with the launch before and
// the library's do not.
type Result struct {
	cublaslt.Key
	Kernel    string // the program's own kernel
	Own       time.Duration
	Heuristic time.Duration // of the library's choice without a record; 0: the library has no algorithm
	Best      time.Duration // of the library's algorithms; 0: the library has none
	Tried     int           // measured algorithms
	Choice    cublaslt.Choice
}

// Thresholds above the noise of measurements. An algorithm must be faster than the heuristic's
// first one by margin, and the library faster than the program's own kernels by ownMargin, to be
// preferred.
const (
	margin    = 0.01
	ownMargin = 0.03
)

// Records adapts the records of a store to runtime/cuda/cublaslt.
func Records(s *cache.Store) cublaslt.Records { return records{s} }

type records struct{ store *cache.Store }

func keyOf(k cublaslt.Key) cache.TuningKey {
	return cache.TuningKey{Device: k.GPU, Library: fmt.Sprintf("cublaslt %d", k.Version), Problem: k.Product}
}

// Lookup reads a record. It ignores a record with an unknown choice.
func (r records) Lookup(k cublaslt.Key) (cublaslt.Choice, bool) {
	t, ok := r.store.Tuning(keyOf(k))
	var c cublaslt.Choice
	if !ok || json.Unmarshal([]byte(t.Choice), &c) != nil {
		return cublaslt.Choice{}, false
	}
	return c, true
}

// product is a GEMM that the library can compute, with its step and variants.
type product struct {
	job     piecewise.Sized
	step    int
	variant int // the variant that calls the library for this GEMM
	own     int // the variant without library calls
	key     cublaslt.Key
	call    *device.ResolvedStep
}

// Run measures every distinct GEMM that the library can compute, chooses an algorithm of the library or
// the program's own kernel, stores the choice, and makes the library use it for later plans. If a record
// cannot be stored, Run measures the rest and returns the error at the end.
func Run(ctx context.Context, programs []piecewise.Sized, o Options) ([]Result, error) {
	out, kept, err := o.run(ctx, programs, func(cublaslt.Key) bool { return true })
	if err = errors.Join(err, kept); err != nil {
		return out, fmt.Errorf("tune: %w", err)
	}
	return out, nil
}

// Warmup returns a function for piecewise.Options.Compile.Tune, for processes that measure when they start.
// It makes the library use the records of the store, and measures GEMMs without a record. The
// next start finds the new records. If a record cannot be stored, Warmup logs that and uses it.
// Backends may share the function: it measures each GEMM once.
func Warmup(o Options) func(ctx context.Context, programs []piecewise.Sized) error {
	var mu sync.Mutex // guards measured, and serializes measurements
	measured := map[cublaslt.Key]bool{}
	recorded := func(cublaslt.Key) bool { return false }
	if o.Store != nil {
		have := Records(o.Store)
		o.Library.UseRecords(have)
		recorded = func(k cublaslt.Key) bool { _, ok := have.Lookup(k); return ok }
	}
	return func(ctx context.Context, programs []piecewise.Sized) error {
		mu.Lock()
		defer mu.Unlock()
		found, kept, err := o.run(ctx, programs, func(k cublaslt.Key) bool { return !measured[k] && !recorded(k) })
		for _, r := range found {
			measured[r.Key] = true
		}
		if err != nil {
			return fmt.Errorf("tune: %w", err)
		}
		if kept != nil && o.Logger != nil {
			o.Logger.Warn("records of measurements are not kept", "error", kept)
		}
		return nil
	}
}

// run measures the distinct GEMMs that want accepts. kept is the error of storing records.
func (o Options) run(ctx context.Context, programs []piecewise.Sized, want func(cublaslt.Key) bool) (out []Result, kept, err error) {
	if o.Candidates == 0 {
		o.Candidates = DefaultCandidates
	}
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	list, err := products(programs, &o)
	if err != nil {
		return nil, nil, err
	}
	list = slices.DeleteFunc(list, func(p product) bool { return !want(p.key) })
	if len(list) == 0 {
		return nil, nil, nil
	}
	m, err := newMeter(o.Device, o.Memory)
	if err != nil {
		return nil, nil, err
	}
	out, kept, err = o.measure(ctx, m, list)
	return out, kept, errors.Join(err, m.close())
}

// products returns the distinct GEMMs, in the order of the programs.
func products(programs []piecewise.Sized, o *Options) ([]product, error) {
	var out []product
	seen := map[string]bool{}
	for _, j := range programs {
		env, err := device.Env(j.Program, j.Symbols, o.Device.Info().Properties)
		if err != nil {
			return nil, err
		}
		for i := range j.Program.Steps {
			found, err := productsOf(j, i, env, o)
			if err != nil {
				return nil, fmt.Errorf("step %d: %w", i, err)
			}
			for _, p := range found {
				if !seen[p.key.Product] {
					seen[p.key.Product] = true
					out = append(out, p)
				}
			}
		}
	}
	return out, nil
}

// productsOf returns the GEMMs of a step that the library can compute for these sizes: those for which a
// variant calls the library once, for this GEMM only.
func productsOf(j piecewise.Sized, step int, env program.Env, o *Options) ([]product, error) {
	var out []product
	own := -1
	for v := range j.Program.Steps[step].Variants {
		way := &j.Program.Steps[step].Variants[v]
		if ok, err := device.Holds(way, env); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		var calls []*program.Step
		for n := range way.Steps {
			if s := &way.Steps[n]; s.Kind == program.StepLibrary {
				calls = append(calls, s)
			}
		}
		if len(calls) == 0 {
			own = v
			break // later variants are for other sizes
		}
		if len(calls) > 1 || calls[0].Extern != cublaslt.MatmulName {
			continue
		}
		call, err := device.Call(j.Program, step, calls[0], env)
		if err != nil {
			return nil, err
		}
		key, err := o.Library.KeyOf(call.Tensors, call.Values)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(out, func(p product) bool { return p.key == key }) {
			out = append(out, product{job: j, step: step, variant: v, key: key, call: call})
		}
	}
	if own < 0 {
		return nil, nil
	}
	for i := range out {
		out[i].own = own
	}
	return out, nil
}

// measure measures the GEMMs one by one.
func (o *Options) measure(ctx context.Context, m *meter, list []product) (out []Result, kept, err error) {
	for i, p := range list {
		if ctx.Err() != nil {
			return out, kept, context.Cause(ctx)
		}
		if o.Progress != nil {
			o.Progress(i, len(list), p.key.Product)
		}
		r, err := o.one(m, &p)
		if err != nil {
			return out, kept, fmt.Errorf("%s: %w", p.key.Product, err)
		}
		out = append(out, *r)
		kept = errors.Join(kept, o.keep(ctx, r))
	}
	return out, kept, nil
}

// one measures a GEMM, and makes the library use the fastest choice.
func (o *Options) one(m *meter, p *product) (*Result, error) {
	r := &Result{Key: p.key}
	ways := p.job.Program.Steps[p.step].Variants
	if steps := ways[p.own].Steps; len(steps) > 0 && steps[len(steps)-1].Kind == program.StepKernel {
		r.Kernel = p.job.Program.Kernels[steps[len(steps)-1].Kernel].Name
	}
	before, after, err := o.beside(p)
	if err != nil {
		return nil, err
	}
	way := func(v int) *program.Program {
		return alone(p.job.Program, slices.Concat(before, ways[v].Steps, after))
	}
	own, with := way(p.own), way(p.variant)
	if r.Own, err = m.time(own, p.job.Symbols); err != nil {
		return nil, err
	}
	found, err := o.Library.Candidates(p.call.Tensors, p.call.Values, o.Candidates)
	if err != nil {
		return nil, err
	}
	for i, c := range found {
		if err := o.Library.Choose(p.call.Tensors, p.call.Values, c); err != nil {
			continue // the heuristic may return an algorithm that cannot run
		}
		d, err := m.time(with, p.job.Symbols)
		if err != nil {
			return nil, err
		}
		r.Tried++
		if i == 0 {
			r.Heuristic = d
		}
		if r.Best == 0 || float64(d) < float64(r.Best)*(1-margin) {
			r.Best, r.Choice = d, c
		}
	}
	if r.Best == 0 || float64(r.Best) > float64(r.Own)*(1-ownMargin) {
		r.Choice = cublaslt.Choice{Own: true}
	}
	return r, o.Library.Choose(p.call.Tensors, p.call.Values, r.Choice)
}

// beside returns the steps before and after a GEMM's step, if the program has them. It leaves out steps that wait for
// other ranks, because other ranks do not measure at the same time.
func (o *Options) beside(p *product) (before, after []program.Step, err error) {
	env, err := device.Env(p.job.Program, p.job.Symbols, o.Device.Info().Properties)
	if err != nil {
		return nil, nil, err
	}
	r, err := device.Resolve(p.job.Program, env, nil, o.Device.Libraries())
	if err != nil {
		return nil, nil, err
	}
	for i := range r.Steps {
		switch s := &r.Steps[i]; {
		case s.Kind == program.StepExtern, meetsRanks(s.Step):
		case s.Index == p.step-1:
			before = []program.Step{*s.Step}
		case s.Index == p.step+1 && after == nil:
			after = []program.Step{*s.Step}
		}
	}
	return before, after, nil
}

// meetsRanks reports whether a step waits for the other ranks of a group.
func meetsRanks(s *program.Step) bool {
	return strings.HasPrefix(s.Extern, program.CollectivePrefix) ||
		slices.ContainsFunc(s.Launch.Attrs, func(a program.Attr) bool { return a.Name == program.LaunchPeers })
}

// keep stores the record of a result.
func (o *Options) keep(ctx context.Context, r *Result) error {
	if o.Store == nil {
		return nil
	}
	text, err := json.Marshal(r.Choice)
	if err != nil {
		return err
	}
	t := cache.Tuning{TuningKey: keyOf(r.Key), Choice: string(text), Time: r.Best, Before: r.Heuristic}
	if r.Choice.Own {
		t.Time = r.Own
	}
	return o.Store.PutTuning(ctx, t)
}
