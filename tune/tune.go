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

// Options configure a measurement. Device and Library are required.
type Options struct {
	Device  *cuda.Device
	Library *cublaslt.Library
	Store   *cache.Store // gets the records; nil: records are not stored

	// Candidates is the largest number of algorithms to measure for a GEMM; 0: DefaultCandidates.
	Candidates int

	// Memory is the device memory, in bytes, for parameters, results and scratch of measured launches,
	// which use it in turn. It must exceed the GPU's caches, or launches find operands there. 0:
	// DefaultMemory.
	Memory int64

	// Progress, if not nil, is called before each GEMM is measured. done is the number of GEMMs measured so
	// far, of is the number of all, and gemm describes the next one as [cublaslt.Key] does.
	Progress func(done, of int, gemm string)

	// Logger, if not nil, gets one message from each call of [Warmup]'s function that measured all GEMMs and
	// could not store some of the records.
	Logger *slog.Logger
}

// Defaults of Options.
const (
	DefaultCandidates = 8
	DefaultMemory     = 3 << 30
)

// Result is the measurement of a GEMM. Each time is that of its launches together with the launch before
// and the launch after them in the program, because pwc's own kernels overlap with the launch before and
// the library's do not.
type Result struct {
	cublaslt.Key
	Kernel    string // the program's own kernel
	Own       time.Duration
	Heuristic time.Duration // of the algorithm that the library prefers; 0: it has none, or that one cannot run
	Best      time.Duration // of the library's algorithm that is preferred (margin); 0: none could run
	Tried     int           // measured algorithms
	Choice    cublaslt.Choice
}

// Thresholds above the noise of measurements, as fractions. An algorithm is preferred to those measured
// before it if it is faster by margin than the preferred one of them, and the library to the program's own
// kernels if it is faster by ownMargin.
const (
	margin    = 0.01
	ownMargin = 0.03
)

// Records adapts the records of a store to runtime/cuda/cublaslt. A nil store has no records.
func Records(s *cache.Store) cublaslt.Records { return records{s} }

type records struct{ store *cache.Store }

func keyOf(k cublaslt.Key) cache.TuningKey {
	return cache.TuningKey{Device: k.GPU, Library: fmt.Sprintf("cublaslt %d", k.Version), Problem: k.GEMM}
}

// Lookup reads a record. It ignores a record whose choice it cannot decode.
func (r records) Lookup(k cublaslt.Key) (cublaslt.Choice, bool) {
	if r.store == nil {
		return cublaslt.Choice{}, false
	}
	t, ok := r.store.Tuning(keyOf(k))
	var c cublaslt.Choice
	if !ok || json.Unmarshal([]byte(t.Choice), &c) != nil {
		return cublaslt.Choice{}, false
	}
	return c, true
}

// gemm is a GEMM that the library can compute, with its step and variants.
type gemm struct {
	job     piecewise.Sized
	step    int
	variant int // the variant that calls the library for this GEMM
	own     int // the variant without library calls
	key     cublaslt.Key
	call    *device.ResolvedStep
}

// Run measures every distinct GEMM that both the library and kernels of the program can compute, chooses an
// algorithm of the library or the program's own kernel, stores the choice, and makes the library use it for
// later plans. If a record cannot be stored, Run measures the rest and returns the error at the end.
func Run(ctx context.Context, programs []piecewise.Sized, o Options) ([]Result, error) {
	out, kept, err := o.run(ctx, programs, func(cublaslt.Key) bool { return true })
	if err = errors.Join(err, kept); err != nil {
		return out, fmt.Errorf("tune: %w", err)
	}
	return out, nil
}

// Warmup makes the library use the records of the store, and returns a function for
// piecewise.Options.Compile.Tune, for processes that measure when they start. The function measures
// GEMMs without a record, makes the library use the choices, and stores them for the next start. If a
// record cannot be stored, it tells Options.Logger, and the library uses the choice in this process only. Backends
// may share the function: it measures each GEMM once.
func Warmup(o Options) func(ctx context.Context, programs []piecewise.Sized) error {
	var mu sync.Mutex // guards measured, and serializes measurements
	measured := map[cublaslt.Key]bool{}
	recorded := func(cublaslt.Key) bool { return false }
	if o.Store != nil && o.Library != nil { // the function refuses options without a library
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

// check returns an error that lists all options that no measurement can run with.
func (o *Options) check() error {
	var errs []error
	if o.Device == nil {
		errs = append(errs, errors.New("Options.Device is nil: set it to the device of cuda.Open"))
	}
	if o.Library == nil {
		errs = append(errs, errors.New("Options.Library is nil: set it to the library of cublaslt.Open; without cuBLASLt there is nothing to measure"))
	}
	if o.Candidates < 0 {
		errs = append(errs, fmt.Errorf("Options.Candidates is %d; it is at least 1, or 0 for %d", o.Candidates, DefaultCandidates))
	}
	if o.Memory < 0 {
		errs = append(errs, fmt.Errorf("Options.Memory is %d bytes; it is at least 1, or 0 for %d", o.Memory, int64(DefaultMemory)))
	}
	return errors.Join(errs...)
}

// run measures the distinct GEMMs that want accepts. kept is the error of storing records.
func (o Options) run(ctx context.Context, programs []piecewise.Sized, want func(cublaslt.Key) bool) (out []Result, kept, err error) {
	if err := o.check(); err != nil {
		return nil, nil, err
	}
	if o.Candidates == 0 {
		o.Candidates = DefaultCandidates
	}
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	list, err := gemms(programs, &o)
	if err != nil {
		return nil, nil, err
	}
	list = slices.DeleteFunc(list, func(p gemm) bool { return !want(p.key) })
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

// gemms returns the distinct GEMMs, in the order of the programs.
func gemms(programs []piecewise.Sized, o *Options) ([]gemm, error) {
	var out []gemm
	seen := map[string]bool{}
	for i, j := range programs {
		if j.Program == nil {
			return nil, fmt.Errorf("program %d is nil", i)
		}
		env, err := device.Env(j.Program, j.Symbols, o.Device.Info().Properties)
		if err != nil {
			return nil, err
		}
		for i := range j.Program.Steps {
			found, err := gemmsOf(j, i, env, o)
			if err != nil {
				return nil, fmt.Errorf("step %d: %w", i, err)
			}
			for _, p := range found {
				if !seen[p.key.GEMM] {
					seen[p.key.GEMM] = true
					out = append(out, p)
				}
			}
		}
	}
	return out, nil
}

// gemmsOf returns the GEMMs of a step that the library can compute for these sizes: those for which a
// variant calls the library once, for this GEMM only. The list is empty if each variant for these sizes
// calls the library, because there are no other kernels to choose.
func gemmsOf(j piecewise.Sized, step int, env program.Env, o *Options) ([]gemm, error) {
	var out []gemm
	own := -1
	for v := range j.Program.Steps[step].Variants {
		variant := &j.Program.Steps[step].Variants[v]
		if ok, err := device.Holds(variant, env); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		var calls []*program.Step
		for n := range variant.Steps {
			if s := &variant.Steps[n]; s.Kind == program.StepLibrary {
				calls = append(calls, s)
			}
		}
		if len(calls) == 0 {
			own = v
			break // later variants are never taken for these sizes
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
		if !slices.ContainsFunc(out, func(p gemm) bool { return p.key == key }) {
			out = append(out, gemm{job: j, step: step, variant: v, key: key, call: call})
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
func (o *Options) measure(ctx context.Context, m *meter, list []gemm) (out []Result, kept, err error) {
	for i, p := range list {
		if ctx.Err() != nil {
			return out, kept, context.Cause(ctx)
		}
		if o.Progress != nil {
			o.Progress(i, len(list), p.key.GEMM)
		}
		r, err := o.one(m, &p)
		if err != nil {
			return out, kept, fmt.Errorf("%s: %w", p.key.GEMM, err)
		}
		out = append(out, *r)
		kept = errors.Join(kept, o.keep(ctx, r))
	}
	return out, kept, nil
}

// one measures a GEMM, and makes the library use the fastest choice.
func (o *Options) one(m *meter, p *gemm) (*Result, error) {
	r := &Result{Key: p.key}
	variants := p.job.Program.Steps[p.step].Variants
	if steps := variants[p.own].Steps; len(steps) > 0 && steps[len(steps)-1].Kind == program.StepKernel {
		r.Kernel = p.job.Program.Kernels[steps[len(steps)-1].Kernel].Name
	}
	before, after, err := o.neighbours(p)
	if err != nil {
		return nil, err
	}
	variant := func(v int) *program.Program {
		return alone(p.job.Program, slices.Concat(before, variants[v].Steps, after))
	}
	own, with := variant(p.own), variant(p.variant)
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

// neighbours returns the steps before and after a GEMM's step, if the program has them. It leaves out calls of extern
// ops, which have no kernel here, and steps that wait for other ranks, because other ranks do not measure at the same
// time.
func (o *Options) neighbours(p *gemm) (before, after []program.Step, err error) {
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
