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
	products     productsFlag
	dump         string
	max          assignments
	symbols      assignments
	frozen       bool
	uncached     bool // nothing is taken from the cache, nor kept there
	unrecorded   bool // artifacts are kept, as part of what else is compiled
	local        bool // what is not in the directories is not looked for elsewhere

	copyWeights bool // none stays in a mapped file
	threads     int  // of the host; 0: GOMAXPROCS

	traceOut string // file for a trace of the run; "": none

	process processFlags

	partOf *pieces.Result // of a module that this one is a part of
}

func (f *buildFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringSliceVar(&f.splitOn, "split-on", nil, "`OP`s to cut at (default: the ops that the module declares split)")
	addPaddedSlots(cmd, &f.paddedSlots)
	fl.Var(&f.compileSizes, "compile-sizes", "`SIZE`s to compile each piece for exactly, besides the ranges")
	fl.Var(&f.ranges, "ranges", "`END`s of the ranges of sizes; each piece is compiled once for each range")
	fl.StringVar(&f.captureSizes, "capture-sizes", "default", "`SIZE`s to capture graphs for; or default, or none, which an empty list also means")
	fl.StringVar(&f.target, "target", host.Target, "`TARGET` to compile for: host, cuda for this machine's GPU, or cuda:sm_90 for GPUs elsewhere; a later GPU runs it too")
	fl.Var(&wholeNumber[int]{&f.jobs, 0, maxNumber}, "jobs", "compile up to `N` pieces in parallel (default: one for each processor)")
	fromEnv(cmd, "target", "PWC_TARGET")
	fromEnv(cmd, "jobs", "PWC_JOBS")
	fl.StringSliceVar(&f.disable, "disable-pass", nil, "compiler `PASS`es to disable")
	fl.Var(&f.products, "matmul-precision", "`PRECISION` of f32 matrix products: ordered, whose sums do not depend on the number of rows, f32, or tf32, which rounds the operands of tensor cores to 10 bits (default: ordered, in training f32)")
	fl.StringVar(&f.dump, "dump-passes", "", "write every piece after each pass to `DIR`; cached pieces are compiled again")
}

// addRunning adds the flags of commands that load weights and run a model.
func (f *buildFlags) addRunning(cmd *cobra.Command) {
	f.addThreads(cmd)
	cmd.Flags().BoolVar(&f.copyWeights, "copy-weights", false, "copy all weights, so that files of the checkpoint may change while this runs (default: the host maps the files)")
}

// addThreads adds the flag of commands that run something.
func (f *buildFlags) addThreads(cmd *cobra.Command) {
	cmd.Flags().Var(&wholeNumber[int]{&f.threads, 0, maxNumber}, "threads", "`N` threads that compute on the host (default: GOMAXPROCS, which is one for each processor that the process may use, and the most that compute at a time)")
	fromEnv(cmd, "threads", "PWC_THREADS")
}

// options returns what the flags say of the pipeline.
func (f *buildFlags) options() compile.Options {
	return compile.Options{Disable: f.disable, MatMul: f.products.Precision}
}

// trains lets products of f32 add up in any order, unless a flag says otherwise: a training step
// has one number of rows.
func (f *buildFlags) trains(cmd *cobra.Command) {
	if !cmd.Flags().Changed("matmul-precision") {
		f.products.Precision = loop.F32
	}
}

// productsFlag is a precision as a flag, whose default the usage says.
type productsFlag struct{ loop.Precision }

// String returns nothing for the default.
func (p *productsFlag) String() string {
	if p.Precision == loop.Ordered {
		return ""
	}
	return p.Precision.String()
}

// Set sets the precision.
func (p *productsFlag) Set(text string) (err error) {
	p.Precision, err = loop.ParsePrecision(text)
	return err
}

// Type names what the flag takes.
func (p *productsFlag) Type() string { return "precision" }

// addFrozen adds the flag of the commands that can go without compiling.
func (f *buildFlags) addFrozen(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.frozen, "frozen", false, "fail instead of compiling, skipping a graph, or running a GEMM without a tuning record")
}

// addSymbols adds the flags of the commands that do not choose the sizes of steps and caches themselves.
func (f *buildFlags) addSymbols(cmd *cobra.Command) {
	cmd.Flags().Var(&f.max, "max", "the largest value of a batch or plain symbol: `SYMBOL=VALUE`")
	cmd.Flags().Var(&f.symbols, "symbol", "the value of a load symbol, such as the blocks of the KV cache: `SYMBOL=VALUE`")
}

// checkSymbols refuses values for symbols that the module does not have, or not of the kind.
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

// symbolsOfKind names the symbols that a flag could have meant.
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
	sizes, _ := f.sizes() // whoever compiles reports the error
	return slices.Max(slices.Concat([]int64{0}, sizes, f.compileSizes, f.ranges))
}

// sizes returns what --capture-sizes says: nil is the default list.
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

// canDisable returns an error that lists the passes unless one of that name may
// be left out.
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

// dumper compiles pieces and writes what each pass made of them.
type dumper struct {
	pieces.Pipeline
	dir string
}

// For returns a dumper whose files go below a directory of the artifact's own, named by
// the function, number and hash of its piece, as pwc split prints them.
func (d *dumper) For(a *pieces.Artifact) pieces.Compiler {
	name := fmt.Sprintf("%s-%03d-%x", url.PathEscape(a.Func), a.Item, a.Key.Piece[:6])
	return &dumper{d.Pipeline, filepath.Join(d.dir, name)}
}

// Compile compiles a piece; its passes go to files named by their order, below a
// directory named by the shape, and their times to the file times.txt there.
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

// unread is a cache in which nothing is found, so that every piece goes through the
// passes that are to be seen; what is compiled is kept as ever.
type unread struct{ *cache.Store }

// Get finds nothing.
func (unread) Get(context.Context, cache.Key) ([]byte, bool, error) { return nil, false, nil }

// newBackend splits and compiles a model with the flags. The maximum of a batch
// symbol and the values of load symbols are those of the flags, else of the
// arguments.
func (a *app) newBackend(ctx context.Context, m *ir.Module, t *target, f *buildFlags, mode piecewise.Mode, limits, symbols map[string]int64) (*piecewise.Backend, error) {
	b, err := a.newBackends(ctx, m, t, &world{}, f, mode, limits, symbols)
	if err != nil {
		return nil, err
	}
	return b.first(), nil
}

// explainOptions adds the flags that set the options which an error names: the call was wrong. That memory is not enough
// for options that are right is none of the call's doing.
func explainOptions(err error) error {
	if err == nil {
		return nil
	}
	var flags []string
	for _, x := range []struct{ flag, option, text string }{
		{"--max", "Options.Memory.Max", "Options.Memory.Max names"}, {"--max", "Options.Memory.Max", "Options.Memory.Max["},
		{"--symbol", "Options.Memory.Symbols", "Options.Memory.Symbols"}, {"--padded-slots", "Options.Capture.PaddedSlots", "Options.Capture.PaddedSlots"}, {"--split-on", "Options.Compile.SplitOn", "Options.Compile.SplitOn"}, {"--split-on", "the ops to split at", "cannot split at"},
		{"--max-sequences", "MaxSequences", "MaxSequences"}, {"--max-tokens", "MaxTokens", "MaxTokens"}, {"--max-length", "MaxLength", "MaxLength"}, {"--blocks", "Blocks", " Blocks "},
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

// planBackend is newBackend for a module that is compiled and not run.
func (a *app) planBackend(ctx context.Context, m *ir.Module, t *target, f *buildFlags, symbols map[string]int64) (*piecewise.Backend, error) {
	planned := *t
	planned.dev = nil
	return a.newBackend(ctx, m, &planned, f, piecewise.Piecewise, nil, symbols)
}

// bounds returns the largest steps of one sequence, given values of symbols.
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
		case ir.Load: // a rank is smaller than any number of blocks that matters
			s.Blocks = max(s.Blocks, int(symbols[x.Name]))
		}
	}
	return s
}

// backendOptions returns what the flags say of a backend, all but the values of
// symbols. done is called once the backend is compiled.
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
			if o.Compile.Store, closeRemote, err = a.overRemote(store, t.name, f.frozen); err != nil {
				return o, nil, err
			}
		}
	}
	if t.records != nil {
		records := store
		if f.uncached { // what runs elsewhere follows them too
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
		if e.Kind == pieces.Finished && f.partOf == nil { // what is taken from elsewhere takes no time
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

// overlay returns the entries of both, those of top before those of base.
func overlay(base, top map[string]int64) map[string]int64 {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]int64{}
	}
	maps.Copy(out, top)
	return out
}
