package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pwc/cache"
	"pwc/compile"
	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runner"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// buildFlags are the flags of the commands that compile.
type buildFlags struct {
	splitOn      []string
	paddedSlots  []string
	compileSizes sizeList
	ranges       sizeList
	captureSizes string
	target       string
	jobs         int
	disable      []string
	matmul       precisionFlag
	dump         string
	max          assignments
	symbols      assignments
	frozen       bool
	uncached     bool // do not use artifacts of the user's cache
	unrecorded   bool // keep artifacts in the cache, but no record of the module
	local        bool // search the directories of the cache only, not PWC_CACHE_REMOTE

	copyWeights bool // copy weights out of mapped files
	threads     int  // threads that compute on the host; 0: GOMAXPROCS

	traceOut string // file for a trace of the run; "": no trace

	process processFlags

	partOf *pieces.Result // the build of a module that contains this one; nil: there is no such build
}

func (f *buildFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringSliceVar(&f.splitOn, "split-on", nil, "`OP`s to cut at (default: the ops that the module declares as split)")
	addPaddedSlots(cmd, &f.paddedSlots)
	fl.Var(&f.compileSizes, "compile-sizes", "`SIZE`s to compile each piece for exactly, in addition to the ranges")
	fl.Var(&f.ranges, "ranges", "`END`s of the ranges of sizes; each piece is compiled once for each range")
	fl.StringVar(&f.captureSizes, "capture-sizes", "default", "`SIZE`s to capture graphs for, or default, or none; an empty list means none")
	fl.StringVar(&f.target, "target", host.Target, "`TARGET` to compile for: host, cuda for this machine's GPU, or cuda:sm_90 for GPUs of other machines; a later GPU runs that code too")
	fl.Var(&wholeNumber[int]{&f.jobs, 0, maxNumber}, "jobs", "compile up to `N` pieces in parallel (default: GOMAXPROCS)")
	fromEnv(cmd, "target", "PWC_TARGET")
	fromEnv(cmd, "jobs", "PWC_JOBS")
	fl.StringSliceVar(&f.disable, "disable-pass", nil, "compiler `PASS`es to disable")
	fl.Var(&f.matmul, "matmul-precision", "`PRECISION` of f32 GEMMs: ordered, whose sums do not depend on the number of rows; f32; or tf32, which rounds the operands of tensor cores to 10 bits (default: ordered, in training f32)")
	fl.StringVar(&f.dump, "dump-passes", "", "write every piece after each pass to `DIR`, and compile cached pieces again")
}

// addRunning adds the flags of commands that load weights and run a model.
func (f *buildFlags) addRunning(cmd *cobra.Command) {
	f.addThreads(cmd)
	cmd.Flags().BoolVar(&f.copyWeights, "copy-weights", false, "copy all weights, so that files of the checkpoint may change during the run (default: the host maps the files)")
}

// addThreads adds --threads, for commands that run a model.
func (f *buildFlags) addThreads(cmd *cobra.Command) {
	cmd.Flags().Var(&wholeNumber[int]{&f.threads, 0, maxNumber}, "threads", "`N` threads that compute on the host (default: GOMAXPROCS, which is one for each processor that the process may use, and bounds the threads that run in parallel)")
	fromEnv(cmd, "threads", "PWC_THREADS")
}

// options returns the options of the compiler's pipeline that the flags set.
func (f *buildFlags) options() compile.Options {
	return compile.Options{Disable: f.disable, MatMul: f.matmul.Precision}
}

// trains sets the precision f32, unless --matmul-precision is given. The order of sums may then
// depend on the number of rows, which is constant in a training run.
func (f *buildFlags) trains(cmd *cobra.Command) {
	if !cmd.Flags().Changed("matmul-precision") {
		f.matmul.Precision = loop.F32
	}
}

// precisionFlag is the value of --matmul-precision.
type precisionFlag struct{ loop.Precision }

// String returns "" for the default, so that pflag prints no default: the usage names it.
func (p *precisionFlag) String() string {
	if p.Precision == loop.Ordered {
		return ""
	}
	return p.Precision.String()
}

// Set sets the precision.
func (p *precisionFlag) Set(text string) (err error) {
	p.Precision, err = loop.ParsePrecision(text)
	return err
}

// Type names the kind of value in the help.
func (p *precisionFlag) Type() string { return "precision" }

// addFrozen adds --frozen, for commands that can run from a complete cache.
func (f *buildFlags) addFrozen(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.frozen, "frozen", false, "fail instead of compiling, skipping a graph, or running a GEMM without a tuning record")
}

// addSymbols adds the flags of the commands that do not choose the sizes of steps and caches themselves.
func (f *buildFlags) addSymbols(cmd *cobra.Command) {
	cmd.Flags().Var(&f.max, "max", "the largest value of a batch or plain symbol: `SYMBOL=VALUE`")
	cmd.Flags().Var(&f.symbols, "symbol", "the value of a load symbol, such as the blocks of the KV cache, or of a plain symbol that no input determines: `SYMBOL=VALUE`")
}

// checkSymbols returns a usage error for a value of --max or --symbol if the module does not have the
// symbol, if the flag does not set symbols of its kind, or if the value is outside its range.
func (f *buildFlags) checkSymbols(m *ir.Module) error {
	for _, name := range slices.Sorted(maps.Keys(f.max)) {
		switch s := m.Symbol(name); {
		case s == nil || s.Kind == ir.Load:
			return usagef("--max %s=%d: %s", name, f.max[name], symbolsOfKind(m, "batch or plain", ir.Batch, ir.Plain))
		case f.max[name] < s.Lo || f.max[name] > s.Hi:
			return usagef("--max %s=%d: the module has %s in [%d, %d]", name, f.max[name], name, s.Lo, s.Hi)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.symbols)) {
		switch s := m.Symbol(name); {
		case s == nil || s.Kind == ir.Batch:
			return usagef("--symbol %s=%d: %s", name, f.symbols[name], symbolsOfKind(m, "load or plain", ir.Load, ir.Plain))
		case f.symbols[name] < s.Lo || f.symbols[name] > s.Hi:
			return usagef("--symbol %s=%d: the module has %s in [%d, %d]", name, f.symbols[name], name, s.Lo, s.Hi)
		}
	}
	return nil
}

// declaredIn returns the flags without values of --max and --symbol for symbols that the module, a part
// of the model, does not declare.
func (f *buildFlags) declaredIn(m *ir.Module) *buildFlags {
	out := *f
	out.max, out.symbols = maps.Clone(f.max), maps.Clone(f.symbols)
	unknown := func(name string, _ int64) bool { return m.Symbol(name) == nil }
	maps.DeleteFunc(out.max, unknown)
	maps.DeleteFunc(out.symbols, unknown)
	return &out
}

// symbolsOfKind lists the module's symbols of some kinds, for an error of a flag that sets them.
func symbolsOfKind(m *ir.Module, what string, kinds ...ir.SymbolKind) string {
	var names []string
	for _, s := range m.Symbols {
		if slices.Contains(kinds, s.Kind) {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return "the module has no " + what + " symbol"
	}
	return "the module's " + what + " symbols are " + strings.Join(names, ", ")
}

// largest returns the largest size that the flags name, or 0: limits that a command
// chooses itself leave room for it.
func (f *buildFlags) largest() int64 {
	sizes, _ := f.sizes() // backendOptions reports the error
	return slices.Max(slices.Concat([]int64{0}, sizes, f.compileSizes, f.ranges))
}

// sizes returns the sizes of --capture-sizes. nil stands for the default list, an empty list for no sizes.
func (f *buildFlags) sizes() ([]int64, error) {
	switch f.captureSizes {
	case "default":
		return nil, nil
	case "none":
		return []int64{}, nil
	}
	out := sizeList{}
	if err := out.Set(f.captureSizes); err != nil {
		return nil, usagef("--capture-sizes %s: %w; give sizes separated by commas, default, or none", f.captureSizes, err)
	}
	return out, nil
}

// canDisable returns a usage error that lists the passes that can be disabled, unless name is one
// of them.
func canDisable(name string) error {
	var names []string
	for _, p := range compile.Passes() {
		if !p.Required && p.Name != "user" {
			names = append(names, p.Name)
		}
	}
	if !slices.Contains(names, name) {
		return usagef("--disable-pass %s: no pass of that name can be disabled; these can: %s", name, strings.Join(names, ", "))
	}
	return nil
}

// dumper compiles pieces and writes the output of each pass.
type dumper struct {
	pieces.Pipeline
	dir string
}

// For returns a dumper for one artifact. Its directory is named by the function, number and hash
// of the piece, as pwc split prints them.
func (d *dumper) For(a *pieces.Artifact) pieces.Compiler {
	name := fmt.Sprintf("%s-%03d-%x", url.PathEscape(a.Func), a.Item, a.Key.Piece[:6])
	return &dumper{d.Pipeline, filepath.Join(d.dir, name)}
}

// Compile compiles a piece. It adds the shape to the directory's name, and writes numbered files with the piece and
// the output of each pass, and times.txt with the times of the passes.
func (d *dumper) Compile(ctx context.Context, piece *ir.Module, ranges map[string]dim.Interval) (*program.Program, error) {
	dir := d.dir
	for _, s := range slices.Sorted(maps.Keys(ranges)) {
		dir += fmt.Sprintf("-%s-%d-%d", s, ranges[s].Lo, ranges[s].Hi)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	n := 0
	var errs []error
	write := func(pass, text string) {
		errs = append(errs, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d-%s.txt", n, url.PathEscape(pass))), []byte(text), 0o644))
		n++
	}
	times := table{head: []string{"pass", ">ms"}}
	write("piece", ir.Print(piece))
	traced := d.Pipeline
	traced.Options.Dump = write
	traced.Options.Time = func(pass string, took time.Duration) {
		times.add(pass, fmt.Sprintf("%.3f", took.Seconds()*1e3))
	}
	p, err := traced.Compile(ctx, piece, ranges)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	errs = append(errs, times.write(&text, ""), os.WriteFile(filepath.Join(dir, "times.txt"), []byte(text.String()), 0o644))
	return p, errors.Join(errs...)
}

// unread is a store whose Get finds nothing, so that every piece goes through the passes that
// --dump-passes writes. Compiled pieces are kept as in the store itself.
type unread struct{ *cache.Store }

// Get finds nothing.
func (unread) Get(context.Context, cache.Key) ([]byte, bool, error) { return nil, false, nil }

// newBackend splits and compiles a model with the flags. limits has the maximums of batch and plain symbols,
// which --max overrides; symbols has the values of load symbols, which --symbol overrides.
func (a *app) newBackend(ctx context.Context, m *ir.Module, t *target, f *buildFlags, mode piecewise.Mode, limits, symbols map[string]int64) (*piecewise.Backend, error) {
	b, err := a.newBackends(ctx, m, t, &world{}, f, mode, limits, symbols)
	if err != nil {
		return nil, err
	}
	return b.first(), nil
}

// explainOptions adds the flags that set the options that an error names, and makes it a usage error, unless the error
// is about too little memory: the options may be right. An error that names none of the options stays as it is.
func explainOptions(err error) error {
	if err == nil {
		return nil
	}
	var flags []string
	for _, x := range []struct{ flag, option, text string }{
		{"--max", "Options.Memory.Max", "Options.Memory.Max names"}, {"--max", "Options.Memory.Max", "Options.Memory.Max["},
		{"--symbol", "Options.Memory.Symbols", "Options.Memory.Symbols"}, {"--padded-slots", "Options.Capture.PaddedSlots", "Options.Capture.PaddedSlots"}, {"--split-on", "Options.Compile.SplitOn", "Options.Compile.SplitOn"}, {"--split-on", "the ops to split at", "cannot split at"},
		{"--max-sequences", "MaxSequences", "MaxSequences"}, {"--max-tokens", "MaxTokens", "MaxTokens"}, {"--max-length", "MaxLength", "MaxLength"}, {"--max-length", "MaxLength", "the cache is given"}, {"--blocks", "Blocks", " Blocks "}, {"--blocks", "Blocks", "the cache is given"},
		{"--memory", "MemoryBytes", "MemoryBytes"}, {"--memory-fraction", "MemoryFraction", "MemoryFraction"},
	} {
		if text := x.flag + " gives " + x.option; strings.Contains(err.Error(), x.text) && !slices.Contains(flags, text) {
			flags = append(flags, text)
		}
	}
	if len(flags) == 0 {
		return err
	}
	err = fmt.Errorf("%w\nOn the command line: %s", err, strings.Join(flags, ", "))
	if errors.As(err, new(*runner.MemoryError)) || errors.As(err, new(*device.MemoryError)) {
		return err
	}
	return &usageError{err}
}

// planBackend is newBackend without a device: the module is compiled and not run.
func (a *app) planBackend(ctx context.Context, m *ir.Module, t *target, f *buildFlags, symbols map[string]int64) (*piecewise.Backend, error) {
	planned := *t
	planned.dev = nil
	return a.newBackend(ctx, m, &planned, f, piecewise.Piecewise, nil, symbols)
}

// bounds returns the limits of steps with one request. Rows is the largest value of a batch symbol, which limits
// or else the symbol's range gives; Blocks is the largest value of a load symbol in symbols.
func bounds(m *ir.Module, limits, symbols map[string]int64) Site {
	s := Site{Rows: 1, Requests: 1, Blocks: 1}
	for _, x := range m.Symbols {
		switch x.Kind {
		case ir.Batch:
			n, ok := limits[x.Name]
			if !ok {
				n = x.Hi
			}
			s.Rows = max(s.Rows, int(n))
		case ir.Load: // a rank symbol usually has no value here, and its value would be small
			s.Blocks = max(s.Blocks, int(symbols[x.Name]))
		}
	}
	return s
}

// backendOptions returns the options of a backend that the flags set, without the values of
// symbols. The caller calls done when the backend is compiled.
func (a *app) backendOptions(m *ir.Module, t *target, f *buildFlags, mode piecewise.Mode, steps Site) (o piecewise.Options, done func(), err error) {
	ops, err := a.openOps(m, t, steps)
	if err != nil {
		return o, nil, err
	}
	sizes, err := f.sizes()
	if err != nil {
		return o, nil, err
	}
	extras, err := a.extras(m, t)
	if err != nil {
		return o, nil, err
	}
	o = piecewise.Options{
		Device: t.dev, Compile: piecewise.CompileOptions{Compiler: t.compiler, SplitOn: f.splitOn, Sizes: f.compileSizes, Endpoints: f.ranges, Jobs: f.jobs, Extras: extras, Unrecorded: f.unrecorded, PartOf: f.partOf}, Ops: ops, Capture: piecewise.CaptureOptions{PaddedSlots: f.paddedSlots, Mode: mode,
			Sizes: sizes}, Memory: piecewise.MemoryOptions{CopyWeights: f.copyWeights}, Frozen: f.frozen, Observe: piecewise.ObserveOptions{Logger: a.logger()},
	}
	var store *cache.Store
	closeRemote := func() {}
	if !f.uncached {
		if store, err = a.openStore(); err != nil {
			return o, nil, err
		}
		switch {
		case store == nil:
		case f.local:
			o.Compile.Store = store
		case f.dump != "":
			o.Compile.Store = unread{store}
		default:
			if o.Compile.Store, closeRemote, err = a.overRemote(store, t, f.frozen); err != nil {
				return o, nil, err
			}
		}
	}
	if t.records != nil {
		records := store
		if f.uncached { // tuning records of the user's cache apply all the same
			if records, err = a.openStore(); err != nil {
				return o, nil, err
			}
		}
		t.records(records)
	}
	t.bar = &progress{w: a.screen, what: "compiling"}
	o.Observe.Progress = func(e pieces.Event) {
		if t.events != nil {
			t.events(e)
		}
		if e.Kind == pieces.Finished && f.partOf == nil { // artifacts of partOf are ready: no progress to show
			t.bar.set(e.Done, e.Total, e.Artifact.Origin)
		}
	}
	o.Observe.Observer = t.traced(t.bar)
	return o, func() {
		t.bar.end()
		closeRemote()
		if store != nil {
			c := store.Stats()
			o.Observe.Logger.Info("cache", "loaded", c.Loaded, "loaded_bytes", c.LoadedBytes, "load_seconds", c.LoadTime.Seconds(),
				"saved", c.Stored, "saved_bytes", c.StoredBytes, "save_seconds", c.StoreTime.Seconds(), "damaged", c.Damaged, "not_cached", c.NotCached)
		}
	}, nil
}

// overlay returns the entries of base and top. Where both have a key, the value is top's.
func overlay(base, top map[string]int64) map[string]int64 {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]int64{}
	}
	maps.Copy(out, top)
	return out
}
