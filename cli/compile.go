package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pwc/cache"
	"pwc/ir"
	"pwc/ir/padding"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runner"
)

func (a *app) compileCommand() *cobra.Command {
	var f modelFlags
	var b buildFlags
	var fn, mode string
	cmd := &cobra.Command{
		Use:   "compile FILE",
		Short: "compile a model and print its memory plan",
		Long: `Split a model, compile each distinct piece once for each range of sizes, and print the
artifacts and the device memory of a run. No weights are read, and nothing runs.

--target cuda:sm_90 compiles for GPUs of that architecture on any machine that
has NVRTC, without a GPU or driver. --target cuda compiles for this machine's GPU.

The general artifact of a piece serves all sizes up to the maximum of the batch
symbol. --ranges cuts that range, --compile-sizes adds artifacts for single
sizes. Capture sizes use the artifacts that serve them, and never add a compilation.
--mode determines the number of graphs and which sizes are used.`,
		Example: `  pwc compile model.ir
  pwc compile models/llama --target cuda:sm_90 --dtype bf16
  pwc compile models/llama --compile-sizes 1,2 --ranges 64,512 --max N=2048 --symbol B=4096
  pwc compile model.ir --disable-pass fuse --dump-passes /tmp/passes --json`,
		Args: exactly(1, "one module or checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b.fix(cmd)
			return a.runCompile(cmd.Context(), args[0], fn, mode, &f, &b)
		},
	}
	f.addImport(cmd, "auto")
	b.add(cmd)
	b.addFrozen(cmd)
	b.addSymbols(cmd)
	cmd.Flags().StringVar(&fn, "func", "", "restrict to this `FUNCTION`")
	addMode(cmd, &mode)
	return cmd
}

// fix sets splitOn to nil if --split-on is not given, and to an empty list, which cuts nowhere, if
// its value is empty.
func (f *buildFlags) fix(cmd *cobra.Command) {
	switch {
	case !cmd.Flags().Changed("split-on"):
		f.splitOn = nil
	case f.splitOn == nil:
		f.splitOn = []string{}
	}
}

type compileReport struct {
	Target               string           `json:"target"`
	Devices              int              `json:"devices"` // that run the model together
	DType                string           `json:"dtype"`   // of the hidden states
	GraphsSeen           int64            `json:"graphs_seen"`
	PiecewiseGraphsSeen  int64            `json:"piecewise_graphs_seen"`
	CapturableGraphsSeen int64            `json:"capturable_graphs_seen"`
	BackendCompilations  int64            `json:"backend_compilations"`
	Compiled             int64            `json:"compiled"`
	Deduplicated         int64            `json:"deduplicated"`
	Loaded               int64            `json:"loaded"`
	Bytes                int64            `json:"bytes"`
	Seconds              float64          `json:"seconds"` // of all compilation, also of sampling
	Shapes               []compileShape   `json:"shapes"`
	Sampling             *compileSampling `json:"sampling,omitempty"` // of a language model, if there is a cache
	Symbols              map[string]int64 `json:"symbols,omitempty"`  // values of load symbols, and of plain symbols that --symbol sets
	Largest              map[string]int64 `json:"largest,omitempty"`  // largest values of batch and plain symbols in the plan
	Plan                 piecewise.Plan   `json:"plan"`
	NotKept              []string         `json:"not_kept,omitempty"` // errors of artifacts that the cache could not write
}

// compileShape sums the artifacts of one range of sizes.
type compileShape struct {
	Shape    string  `json:"shape"`
	Compiled int     `json:"compiled"`
	Loaded   int     `json:"loaded"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"` // summed over jobs
}

// compileSampling counts the sampling functions, which generate adds to the model.
type compileSampling struct {
	Functions int     `json:"functions"`
	Compiled  int     `json:"compiled"`
	Loaded    int     `json:"loaded"`
	Bytes     int64   `json:"bytes"`
	Seconds   float64 `json:"seconds"` // summed over jobs
}

func (a *app) runCompile(ctx context.Context, path, name, modeName string, f *modelFlags, bf *buildFlags) (err error) {
	mode, err := parseMode(modeName)
	if err != nil {
		return err
	}
	m, funcs, err := a.openFuncs(path, name, f)
	if err != nil {
		return err
	}
	module := *m.module
	module.Funcs = funcs
	t, closeAll, err := openTargetFor(ctx, m.module, bf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	symbols := loadSymbols(&module)
	served, err := a.serves(&module)
	if err != nil {
		return err
	}
	start := time.Now()
	var whole *piecewise.Backend
	if served != nil {
		if whole, err = a.compileServed(ctx, served, t, bf); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, whole.Close()) }()
		bf.unrecorded, bf.partOf = true, whole.Build()
	}
	b, err := a.newBackend(ctx, &module, t, bf, mode, nil, symbols)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	s := b.Stats()
	r := compileReport{
		Target: t.name, DType: modelDType(&module), GraphsSeen: s.GraphsSeen, PiecewiseGraphsSeen: s.PiecewiseGraphsSeen,
		CapturableGraphsSeen: s.CapturableGraphsSeen, BackendCompilations: s.BackendCompilations, Compiled: s.Compiled,
		Deduplicated: s.Deduplicated, Loaded: s.Loaded, Bytes: b.Build().Counters.Bytes, Seconds: time.Since(start).Seconds(),
		Devices: module.World(), Symbols: overlay(symbols, bf.symbols), Largest: overlay(batchSymbols(&module), bf.max), Plan: b.Plan(),
	}
	for _, x := range b.Build().ByShape {
		r.Shapes = append(r.Shapes, compileShape{x.Shape, x.Compiled, x.Loaded, x.Bytes, x.Duration.Seconds()})
	}
	if whole != nil {
		r.Sampling = sampling(served, whole, b)
	}
	r.NotKept = notKept(whole, b)
	if a.json {
		err = a.printJSON(r)
	} else {
		err = a.printCompile(m.path, &r)
	}
	if err == nil && len(r.NotKept) > 0 { // each artifact was logged with its error
		fmt.Fprintf(a.err, "pwc: compiled, but %s could not be written to the cache: set PWC_CACHE_DIR to a writable directory with room for them\n", plural(int64(len(r.NotKept)), "artifact"))
		return errReported
	}
	return err
}

// notKept returns the errors of compiled artifacts that the store could not write. Backends may be
// nil.
func notKept(backends ...*piecewise.Backend) (out []string) {
	for _, b := range backends {
		if b == nil {
			continue
		}
		for _, w := range b.Build().Warnings {
			if lost := (*cache.NotCachedError)(nil); errors.As(w, &lost) {
				out = append(out, w.Error())
			}
		}
	}
	return out
}

// serves returns the language model with the sampling functions, as generate compiles it. It
// returns nil if there is no cache to keep it in, or no runner can serve the module.
func (a *app) serves(m *ir.Module) (*ir.Module, error) {
	store, err := a.openStore()
	if err != nil || store == nil || !isLanguageModel(m) {
		return nil, err
	}
	if out, err := runner.WithSampling(m); err == nil {
		return out, nil
	}
	return nil, nil // package runner does not support the model
}

// compileServed compiles a model of serves. The cache then keeps the model's functions and the
// sampling functions as one model.
func (a *app) compileServed(ctx context.Context, m *ir.Module, t *target, bf *buildFlags) (*piecewise.Backend, error) {
	whole := *bf
	whole.captureSizes = "none"
	return a.planBackend(ctx, m, t, &whole, loadSymbols(m))
}

// sampling counts the artifacts of the sampling functions of m. They are those of the backend whole that the backend
// model does not have.
func sampling(m *ir.Module, whole, model *piecewise.Backend) *compileSampling {
	known := map[cache.Key]bool{}
	for _, x := range model.Build().Artifacts {
		known[x.Key] = true
	}
	s := &compileSampling{Functions: len(m.Funcs) - 2}
	for _, x := range whole.Build().Artifacts {
		switch {
		case known[x.Key]:
			continue
		case x.Source == pieces.Compiled:
			s.Compiled++
		default:
			s.Loaded++
		}
		s.Bytes += int64(x.Bytes)
		s.Seconds += x.Duration.Seconds()
	}
	return s
}

// loadSymbols returns the smallest value of every load symbol that is not a rank, for a plan without a runner, which
// would choose the values.
func loadSymbols(m *ir.Module) map[string]int64 {
	out := map[string]int64{}
	for _, s := range m.Symbols {
		if s.Kind == ir.Load && !m.IsRank(s.Name) {
			out[s.Name] = s.Lo
		}
	}
	return out
}

func (a *app) printCompile(path string, r *compileReport) error {
	fmt.Fprintf(a.out, "%s in %s for %s: %s, %s, %d capturable\n\n", path, r.DType, r.Target, plural(r.GraphsSeen, "function"), plural(r.PiecewiseGraphsSeen, "piece"), r.CapturableGraphsSeen)
	t := table{head: []string{"shape", ">compiled", ">loaded", ">bytes", ">seconds"}}
	for _, s := range r.Shapes {
		t.add(s.Shape, fmt.Sprint(s.Compiled), fmt.Sprint(s.Loaded), byteCount(s.Bytes), fmt.Sprintf("%.3f", s.Seconds))
	}
	t.add("all", fmt.Sprint(r.Compiled), fmt.Sprint(r.Loaded), byteCount(r.Bytes), fmt.Sprintf("%.3f", r.Seconds))
	if err := t.write(a.out, "  "); err != nil {
		return err
	}
	fmt.Fprintf(a.out, "\n%s needed, %d of them shared with identical pieces\n", plural(r.Compiled+r.Loaded+r.Deduplicated, "artifact"), r.Deduplicated)
	if s := r.Sampling; s != nil {
		fmt.Fprintf(a.out, "sampling for pwc generate, %s: %d compiled, %d loaded, %s, %.3f s\n", plural(int64(s.Functions), "function"), s.Compiled, s.Loaded, byteCount(s.Bytes), s.Seconds)
	}

	p := &r.Plan
	each := ""
	if r.Devices > 1 {
		each = fmt.Sprintf(" on each of %d devices", r.Devices)
	}
	fmt.Fprintf(a.out, "\ndevice memory of a run%s%s\n", each, largestText(r.Largest))
	t = table{head: []string{"memory", ">bytes", ""}}
	t.add("weights", byteCount(p.WeightBytes), "")
	t.add("states", byteCount(p.StateBytes), symbolText(r.Symbols))
	t.add("inputs", byteCount(p.InputBytes), "")
	t.add("results", byteCount(p.ResultBytes), "")
	t.add("constants", byteCount(p.ConstBytes), "")
	t.add("arena", byteCount(p.PeakArenaBytes), "the largest size; all sizes share it")
	if p.WorkspaceBytes > 0 {
		t.add("workspaces", byteCount(p.WorkspaceBytes), "of library routines")
	}
	t.add("total", byteCount(p.Total()), "")
	if err := t.write(a.out, "  "); err != nil {
		return err
	}
	if len(p.Unplanned) > 0 {
		fmt.Fprintf(a.out, "\nwithout the scratch memory of %s, which depends on the GPU: --target cuda includes it on a machine with the GPU\n", strings.Join(p.Unplanned, ", "))
	}
	if len(p.Unused)+len(p.Uncaptured) > 0 {
		fmt.Fprintln(a.out)
		a.printUnused(p.Unused, p.Uncaptured)
	}
	if len(p.ArenaBytes) == 0 {
		return nil
	}
	fmt.Fprintf(a.out, "\narena by captured size (%s)\n", plural(p.Graphs, "graph"))
	return a.printGrid(p.ArenaBytes)
}

// printUnused prints the sizes of the flags that have no effect, and the functions without graphs.
// It reports whether it printed anything.
func (a *app) printUnused(sizes []piecewise.Unused, funcs []piecewise.Uncaptured) bool {
	for _, u := range sizes {
		fmt.Fprintf(a.out, "unused: %s\n", u)
	}
	for _, u := range funcs {
		fmt.Fprintf(a.out, "not captured: %s\n", u.Why)
	}
	return len(sizes)+len(funcs) > 0
}

// batchSymbols returns the largest value of every batch symbol that counts a function's rows, and
// of every plain symbol.
func batchSymbols(m *ir.Module) map[string]int64 {
	out := map[string]int64{}
	for _, f := range m.Funcs {
		if name, ok := padding.SizeSymbol(m, f); ok {
			out[name] = m.Symbol(name).Hi
		}
	}
	for _, s := range m.Symbols {
		if s.Kind == ir.Plain {
			out[s.Name] = s.Hi
		}
	}
	return out
}

// largestText describes the largest steps that a plan has room for.
func largestText(values map[string]int64) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		out = append(out, fmt.Sprintf("%s = %d", name, values[name]))
	}
	if len(out) == 0 {
		return ""
	}
	return ", for sizes up to " + strings.Join(out, ", ") + " (--max)"
}

func symbolText(values map[string]int64) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		out = append(out, fmt.Sprintf("%s = %d", name, values[name]))
	}
	if len(out) > 0 {
		out = append(out, "--symbol gives another value")
	}
	return strings.Join(out, ", ")
}

// printGrid prints sizes with their bytes, in several columns.
func (a *app) printGrid(bytes map[int64]int64) error {
	const columns = 5
	sizes := slices.Sorted(maps.Keys(bytes))
	head := make([]string, 0, 2*columns)
	for range min(columns, len(sizes)) {
		head = append(head, ">size", ">bytes")
	}
	t := table{head: head}
	lines := (len(sizes) + columns - 1) / columns
	for i := range lines {
		row := make([]string, len(head))
		for j := range len(head) / 2 {
			if k := j*lines + i; k < len(sizes) {
				row[2*j], row[2*j+1] = fmt.Sprint(sizes[k]), byteCount(bytes[sizes[k]])
			}
		}
		t.add(row...)
	}
	return t.write(a.out, "  ")
}
