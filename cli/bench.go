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
	"github.com/spf13/pflag"

	"pwc/cache"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/padding"
	"pwc/optim"
	"pwc/piecewise"
	"pwc/runner"
)

// benchFlags are the flags of bench other than those of modelFlags, buildFlags and trainFlags.
type benchFlags struct {
	batches sizeList
	prompts sizeList
	modes   []string
	fn      string // the function to measure, of a model that is not a language model
	repeats repeats
	format  tableFormat
	profile bool
	train   bool

	context    int64 // tokens of each request in a decode step
	anyContext bool  // --context is not given
}

// benchContext is the default of --context.
const benchContext = 512

func (a *app) benchCommand() *cobra.Command {
	var f modelFlags
	var b buildFlags
	var g benchFlags
	t := trainFlags{scaler: optim.DefaultScaler()}
	cmd := &cobra.Command{
		Use:   "bench MODEL",
		Short: "measure steps of a language model, or runs of a function",
		Long: `Measure decode steps of a language model. A step runs @forward and @logits for one row of
each request, at the end of contexts of the same length, and writes keys and values.
--prompt measures prompts too, each as one step. Weights are made up, so that
a config.json is enough; --weights DIR takes real weights.

Of any other model, such as an exported program, bench measures one function. It runs on
made-up inputs of --batch rows in each --mode, also none. The rates count rows, not tokens.

ms is the median device time of a step that runs alone; p90 and p99 are percentiles of that time.
"in a row" is the time of a step if the next one is issued before it ends; "to issue" is the
host's time. A step must read the weights, of embedding tables a row for each request, and the
keys and values of the contexts. These bytes are compared with the bandwidth of a plain read of
memory, which is measured before the steps.

Compilation is measured with an empty cache, and again with the filled cache; of a function
only without a cache. All --capture-sizes are captured, whichever sizes run. --profile runs
steps whose kernels do not overlap, and prints the time of each kernel.

--train measures training steps instead: forward, backward and optimizer. The model is a
language model, on --batch-size rows of --length tokens, or a module that returns a loss.
Both train on --data or on made-up numbers. The FLOP/s of a step's GEMMs are compared with the
FLOP/s of a large GEMM of the same precision, which is measured first.`,
		Example: `  pwc bench config.json --target cuda --batch 1,8,32,128,256
  pwc bench config.json --target cuda --batch 1 --mode piecewise,full --profile
  pwc bench models/llama --batch 1,4 --context 64 --prompt 128,512 --json
  pwc bench model.pt2 --batch 1,8,64 --mode none,piecewise,full
  pwc bench models/llama --repeats 30 --format markdown
  pwc bench config.json --train --target cuda --precision bf16 --batch-size 8 --length 512 --mode full
  pwc bench bench/notes.ir --train --target cuda --optimizer sgd --mode none,full --profile
  pwc bench models/llama --tp 2 --batch 1 --rank 1 --rendezvous file:meet &
  pwc bench models/llama --tp 2 --batch 1 --rank 0 --rendezvous file:meet`,
		Args: exactly(1, "one checkpoint, config.json or module"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b.fix(cmd)
			for _, name := range []string{"batch", "mode"} {
				if cmd.Flags().Changed(name) && (name == "batch" && len(g.batches) == 0 || name == "mode" && len(g.modes) == 0) {
					return usagef("--%s names nothing to measure", name)
				}
			}
			if err := refuse(cmd, noEffect{a.json, "format", " with --json"}); err != nil {
				return err
			}
			b.process.divides = "--tp"
			if g.train {
				b.process.divides = "--dp"
				b.trains(cmd)
				if err := g.checkTrain(cmd, &f, &t); err != nil {
					return err
				}
				return a.runBenchTrain(cmd.Context(), args[0], &f, &b, &t, &g)
			}
			if given := changedOf(cmd.Flags(), trainOnly); len(given) > 0 {
				return usagef("--%s needs --train", strings.Join(given, " and --"))
			}
			if g.anyContext = f.context == 0; g.anyContext {
				f.context = benchContext
			}
			// A prompt may be longer than --context: the model needs a context for both.
			g.context, f.context = f.context, max(f.context, g.longestPrompt())
			return a.runBench(cmd.Context(), args[0], &f, &b, &g)
		},
	}
	f.addImport(cmd, "auto")
	cmd.Flags().Lookup("dtype").Usage += "; with --train the default is f32"
	f.addMax(cmd)
	f.addWeights(cmd)
	b.add(cmd)
	b.addRunning(cmd)
	b.process.add(cmd, "--tp or --dp")
	b.addTraceOut(cmd)
	fl := cmd.Flags()
	f.common = []string{"context"}
	fl.Lookup("context").Value = &wholeNumber[int64]{&f.context, 1, 1 << 20}
	fl.Lookup("context").Usage = "context of each request in `TOKENS`, including the decoded token (default 512, or the number of the model's positions if that is smaller)"
	fl.Lookup("weights").Usage = "`DIR` with the checkpoint's tensors (default: dummy weights)"
	f.weights = "dummy"
	fl.Var(&g.batches, "batch", "`SIZE`s of steps to measure, in requests of a language model or rows of a function (default 1,8,32; of a function, these within its range)")
	fl.StringSliceVar(&g.modes, "mode", []string{"piecewise"}, "`MODE`s to run: piecewise, full, or both, of a function and with --train also none; with --train the default is full")
	fl.Lookup("mode").DefValue = "piecewise"
	fl.Var(&g.prompts, "prompt", "lengths of the prompts to measure, in `TOKENS`; each prompt is one step (default: no prompts)")
	fl.StringVar(&g.fn, "func", "", "`FUNCTION` to measure, if the model is not a language model")
	fl.Var(&wholeNumber[int]{&g.repeats.runs, 1, 1 << 20}, "repeats", "measure everything `N` times (default: 5 to 50 times, for about two seconds)")
	fl.Var(&wholeNumber[int]{&g.repeats.warmup, 0, 1 << 20}, "warmup", "run everything `N` times before it is measured (default 5)")
	g.repeats.warmup = warmups
	g.format = asText
	fl.Var(&g.format, "format", "`FORMAT` of the tables: text, csv or markdown")
	fl.BoolVar(&g.profile, "profile", false, "print the time of each kernel")
	fl.BoolVar(&g.train, "train", false, "measure training steps")
	t.add(cmd, trainOnly...)
	fl.Lookup("length").Usage = "`TOKENS` in a row of a language model (default: 128)"
	return cmd
}

// trainOnly are the flags of train that bench accepts with --train.
var trainOnly = []string{"batch-size", "length", "data", "optimizer", "precision", "micro-batches", "clip-norm", "dp", "bucket"}

// changedOf returns the names whose flags were given.
func changedOf(flags *pflag.FlagSet, names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !flags.Changed(name) })
}

// checkTrain returns a usage error for flags that have no effect with --train, and sets the defaults of --train.
func (g *benchFlags) checkTrain(cmd *cobra.Command, f *modelFlags, t *trainFlags) error {
	if err := refuse(cmd, noEffect{true, "batch context prompt func repeats warmup format", " with --train"}, t.oneDevice()); err != nil {
		return err
	}
	if !cmd.Flags().Changed("mode") {
		g.modes = []string{"full"}
	}
	if !cmd.Flags().Changed("dtype") {
		f.dtype = "f32"
	}
	t.steps = 1
	return nil
}

// longestPrompt returns the number of tokens of the longest prompt, 0 without prompts.
func (g *benchFlags) longestPrompt() int64 { return slices.Max(append(sizeList{0}, g.prompts...)) }

// mode returns the mode whose captures serve all modes of --mode.
func (g *benchFlags) mode() (piecewise.Mode, error) {
	pieces, full := slices.Contains(g.modes, "piecewise"), slices.Contains(g.modes, "full")
	for _, m := range g.modes {
		if m != "piecewise" && m != "full" {
			return 0, usagef("--mode %s is not piecewise or full", m)
		}
	}
	switch {
	case pieces && full:
		return piecewise.FullAndPiecewise, nil
	case full:
		return piecewise.Full, nil
	}
	return piecewise.Piecewise, nil
}

// benchReport is the JSON of bench.
type benchReport struct {
	Model     string         `json:"model"`
	Target    string         `json:"target"`
	Device    string         `json:"device"`
	DType     string         `json:"dtype"` // of the hidden states
	Context   int64          `json:"context"`
	Bandwidth float64        `json:"read_bytes_per_second"`
	Compile   benchCompile   `json:"compile"`
	Load      float64        `json:"load_seconds"`
	Plan      piecewise.Plan `json:"plan"`
	Library   benchLibrary   `json:"library"`
	Captures  []benchCapture `json:"captures"`
	Steps     []benchStep    `json:"steps"`
	Prefill   []benchPrefill `json:"prefill,omitempty"`
	Profiles  []benchProfile `json:"profiles,omitempty"`
}

// benchCompile has the times of reading, splitting, compiling and planning together.
type benchCompile struct {
	Artifacts int64            `json:"artifacts"`
	AtLoad    map[string]int64 `json:"compiled_at_load"` // artifacts that the driver compiles, by kind
	Cold      float64          `json:"cold_seconds"`     // with an empty cache
	Warm      float64          `json:"warm_seconds"`     // with the cache that the cold compilation filled
}

// benchLibrary counts the calls of library routines at captured sizes.
type benchLibrary struct {
	Calls   int64 `json:"calls"`
	Untuned int64 `json:"untuned"` // calls with an algorithm that was never measured
	Missing int64 `json:"missing"` // GEMMs without a routine on this device: pwc's kernels compute them
}

// benchCapture has the costs of capturing the sizes of --capture-sizes in one mode.
type benchCapture struct {
	Mode    string  `json:"mode"`
	Sizes   int     `json:"sizes"`
	Graphs  int     `json:"graphs"`
	Seconds float64 `json:"seconds"`
	Bytes   *int64  `json:"bytes,omitempty"` // device memory that the graphs took; nil: not known
}

// benchStep is a decode step of one size in one mode.
type benchStep struct {
	Batch int64  `json:"batch"`
	Size  int64  `json:"size"` // with padding
	Mode  string `json:"mode"` // of the run: piecewise, full, or eager if no graph serves the size
	benchTimes
	ReadBytes int64   `json:"read_bytes"`
	Share     float64 `json:"share_of_bandwidth"`
}

// benchPrefill is a step of one prompt.
type benchPrefill struct {
	Prompt int64   `json:"prompt"`
	Size   int64   `json:"size"`
	Mode   string  `json:"mode"`
	Rate   float64 `json:"tokens_per_second"` // of steps in a row
	benchTimes
}

// benchProfile has the times of the kernels of an eager step.
type benchProfile struct {
	Batch   int64         `json:"batch,omitempty"`
	MS      float64       `json:"ms"`
	Kernels []benchKernel `json:"kernels"` // the slowest first
}

// benchKernel sums the launches of one kernel in a step.
type benchKernel struct {
	Name        string  `json:"name"`
	Launches    int     `json:"launches"`
	US          float64 `json:"us"` // microseconds of all launches
	WeightBytes int64   `json:"weight_bytes,omitempty"`
}

// benchSizes are the sizes of steps that are measured without --batch.
var benchSizes = sizeList{1, 8, 32}

func (a *app) runBench(ctx context.Context, path string, f *modelFlags, bf *buildFlags, g *benchFlags) (err error) {
	what, err := a.open(path, f)
	switch {
	case err != nil:
		return err
	case !isLanguageModel(what.module):
		return a.runBenchFunc(ctx, path, what, f, bf, g)
	case g.fn != "":
		return usagef("--func is for models that are not language models; %s is a language model", path)
	}
	if len(g.batches) == 0 {
		g.batches = benchSizes
	}
	mode, err := g.mode()
	if err != nil {
		return err
	}
	shared, err := a.benchRun(bf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shared.close()) }()
	b := &bench{benchRun: shared, flags: g, mode: mode}
	closeWorld, err := b.join(ctx, what.module)
	if err != nil {
		return err
	}
	defer func() { err = closeWorld(err) }()
	g.repeats.agree = b.world.agreeRuns(ctx)
	r := &benchReport{Target: b.target.name, Device: b.target.dev.Info().Name}
	m, err := b.compile(ctx, path, f, r)
	if err != nil {
		return err
	}
	r.Model, r.DType = m.module.Name, hiddenType(m.module).String()
	if err := b.run(ctx, m, f, r); err != nil {
		return err
	}
	b.status.clear()
	switch {
	case bf.process.follows():
		return nil
	case a.json:
		return a.printJSON(r)
	}
	return a.printBench(path, r, g.format)
}

// settings describes the flags and the module, which must be equal in all processes.
func (g *benchFlags) settings(m *ir.Module) string {
	return fmt.Sprintf("module %x, --mode %v, --batch %v, --prompt %v, --context %d, --repeats %d, --warmup %d, --profile=%v", m.Hash(), g.modes, g.batches, g.prompts, g.context, g.repeats.runs, g.repeats.warmup, g.profile)
}

// hiddenType returns the element type of the first result of @forward.
func hiddenType(m *ir.Module) dtype.DType { return m.Func("forward").ResultTypes[0].DType }

// compile measures compilation, first cold, then warm. b.backend is then the warm one.
func (b *bench) compile(ctx context.Context, path string, f *modelFlags, r *benchReport) (*model, error) {
	var m *model
	for _, seconds := range []*float64{&r.Compile.Cold, &r.Compile.Warm} {
		b.status.say("compiling")
		if b.backend != nil {
			if err := b.closeBackends(); err != nil {
				return nil, err
			}
		}
		start := time.Now()
		var err error
		if m, err = b.app.open(path, f); err != nil {
			return nil, err
		}
		if err := b.make(ctx, m.module, b.flags.context); err != nil {
			return nil, err
		}
		*seconds = time.Since(start).Seconds()
		if s := b.backend.Stats(); seconds == &r.Compile.Cold {
			r.Compile.Artifacts, r.Compile.AtLoad = s.Compiled, s.CompiledAtLoad
		}
	}
	r.Plan, r.Context = b.backend.Plan(), b.context
	return m, nil
}

// make makes a backend whose artifacts are in the benchmark's temporary cache.
func (b *bench) make(ctx context.Context, m *ir.Module, length int64) error {
	if n := runner.BoundsOf(m).Positions; n > 0 && length > n {
		if !b.flags.anyContext {
			return usagef("--context %d: the model is for %d positions", length, n)
		}
		length = n
	}
	block := cacheBlock(m)
	blocks := (length + block - 1) / block
	most, prompt := slices.Max(b.flags.batches), b.flags.longestPrompt()
	longest := max(blocks, (prompt+block-1)/block)
	if n := runner.BoundsOf(m).Positions; n > 0 && prompt > n {
		return usagef("--prompt %d: the model is for %d positions", prompt, n)
	}
	limits, symbols := map[string]int64{}, map[string]int64{}
	rows, _ := padding.SizeSymbol(m, m.Func("forward"))
	for _, s := range m.Symbols {
		switch s.Kind {
		case ir.Batch:
			limits[s.Name] = min(s.Hi, max(most, prompt, 512, b.build.largest())) // 512 is the largest default size
			switch {
			case most > s.Hi:
				return usagef("--batch %d is more than the %d rows that the model takes in a step", most, s.Hi)
			case s.Name == rows && prompt > s.Hi: // @logits runs only the last row of a prompt
				return usagef("--prompt %d is more than the %d rows that the model takes in a step", prompt, s.Hi)
			}
		case ir.Load:
			if m.IsRank(s.Name) {
				continue
			}
			symbols[s.Name] = max(most*blocks, longest)
			switch {
			case most*blocks > s.Hi:
				return usagef("--batch %d at a context of %d needs %d blocks of the KV cache, the model takes %d", most, length, most*blocks, s.Hi)
			case longest > s.Hi:
				return usagef("--prompt %d needs %d blocks of the KV cache, the model takes %d", prompt, longest, s.Hi)
			}
		}
	}
	steps := bounds(m, limits, nil)
	steps.Requests, steps.Blocks = int(most), int(longest)
	o, done, err := b.app.backendOptions(m, b.target, b.uncached(), b.mode, steps)
	if err != nil {
		return err
	}
	defer done()
	b.ops = nil
	for i, op := range o.Ops {
		traced := &tracedOp{wrapped: wrapped{op}}
		b.ops, o.Ops[i] = append(b.ops, traced), traced
	}
	b.captures = newCaptureTimes()
	o.Compile.Store, o.Memory.Max, o.Memory.Symbols, o.Observe.Observer = cache.New(cache.Options{Dir: b.cache}), limits, symbols, b.target.traced(b.captures)
	b.blocks, b.block, b.context = blocks, block, length
	o.Rank = b.world.rank()
	if b.backend, err = piecewise.New(ctx, m, o); err != nil {
		return explainOptions(b.target.explain(err))
	}
	if err := b.makePeers(ctx, m, o, steps); err != nil {
		return errors.Join(err, b.closeBackends())
	}
	return nil
}

// uncached returns the flags of a backend that does not use the user's cache.
func (b *bench) uncached() *buildFlags {
	f := *b.build
	f.uncached = true
	return &f
}

func (a *app) printBench(path string, r *benchReport, f tableFormat) error {
	if f == asText {
		a.printBenchHead(path, r)
	}
	t := table{head: []string{">batch", "mode", ">ms", ">p90", ">p99", ">in a row", ">to issue", ">GB read", ">GB/s", ">of bandwidth", ">tokens/s"}}
	for _, s := range r.Steps {
		row := append([]string{fmt.Sprint(s.Batch), modeAt(s.Mode, s.Size, s.Batch)}, s.cells()...)
		t.add(append(row, gigabytes(float64(s.ReadBytes)), gigabytes(float64(s.ReadBytes)/s.MS*1e3), fmt.Sprintf("%.0f %%", 100*s.Share),
			fmt.Sprintf("%.0f", 1e3*float64(s.Batch)/s.InARow))...)
	}
	if err := t.print(a.out, f, "  "); err != nil {
		return err
	}
	if len(r.Prefill) > 0 {
		fmt.Fprintln(a.out)
		t := table{head: []string{">prompt", "mode", ">ms", ">p90", ">p99", ">in a row", ">to issue", ">tokens/s"}}
		for _, s := range r.Prefill {
			row := append([]string{fmt.Sprint(s.Prompt), modeAt(s.Mode, s.Size, s.Prompt)}, s.cells()...)
			t.add(append(row, fmt.Sprintf("%.0f", s.Rate))...)
		}
		if err := t.print(a.out, f, "  "); err != nil {
			return err
		}
	}
	for i := range r.Profiles {
		if err := a.printProfile(&r.Profiles[i], r.Bandwidth, f); err != nil {
			return err
		}
	}
	if len(r.Profiles) > 0 && f == asText {
		fmt.Fprintln(a.out, "\nin a replay on a GPU kernels may overlap, so a step may take less than the sum")
	}
	return nil
}

// printBenchHead prints the measurements other than the steps.
func (a *app) printBenchHead(path string, r *benchReport) {
	fmt.Fprintf(a.out, "%s in %s on %s, contexts of %d tokens\n\n", path, r.DType, r.Device, r.Context)
	fmt.Fprintf(a.out, "read bandwidth  %.0f GB/s\n", r.Bandwidth/1e9)
	fmt.Fprintf(a.out, "compile         %.3f s cold, %.3f s warm, %s\n", r.Compile.Cold, r.Compile.Warm, plural(r.Compile.Artifacts, "artifact"))
	for _, what := range slices.Sorted(maps.Keys(r.Compile.AtLoad)) {
		fmt.Fprintf(a.out, "at load         the driver compiles %s: %s\n", plural(r.Compile.AtLoad[what], "artifact"), what)
	}
	fmt.Fprintf(a.out, "load            %.3f s; weights %s, KV cache %s, arena %s\n", r.Load, byteCount(r.Plan.WeightBytes), byteCount(r.Plan.StateBytes), byteCount(r.Plan.PeakArenaBytes))
	for _, c := range r.Captures {
		memory := ""
		if c.Bytes != nil {
			memory = fmt.Sprintf(", %.3f GiB", float64(*c.Bytes)/(1<<30))
		}
		fmt.Fprintf(a.out, "capture         %s: %s, %s: %.3f s%s\n", c.Mode, plural(int64(c.Sizes), "size"), plural(int64(c.Graphs), "graph"), c.Seconds, memory)
	}
	if l := r.Library; l.Calls+l.Missing > 0 {
		fmt.Fprintf(a.out, "library         %s, %d untuned; %d GEMMs computed by pwc's kernels, because the library is missing\n", plural(l.Calls, "call"), l.Untuned, l.Missing)
	}
	fmt.Fprintln(a.out)
}

// cells are the columns of times: ms, p90, p99, in a row, to issue.
func (t *benchTimes) cells() []string {
	var out []string
	for _, v := range []float64{t.MS, t.P90, t.P99, t.InARow, t.Issue} {
		out = append(out, fmt.Sprintf("%.3f", v))
	}
	return out
}

// modeAt returns the mode, and the size if the rows were padded to a larger one.
func modeAt(mode string, size, rows int64) string {
	if size == rows {
		return mode
	}
	return fmt.Sprintf("%s at %d", mode, size)
}

// gigabytes formats bytes per second in GB/s, or bytes in GB.
func gigabytes(v float64) string {
	if v < 10e9 {
		return fmt.Sprintf("%.2f", v/1e9)
	}
	return fmt.Sprintf("%.0f", v/1e9)
}

// printProfile prints the kernels of a step. It prints no rate for a kernel whose weights divided by
// its time exceed 1.1 times the bandwidth of memory, because such a kernel does not read all of its weights, nor
// for any kernel if bandwidth is 0: it was not measured.
func (a *app) printProfile(p *benchProfile, bandwidth float64, f tableFormat) error {
	batch := ""
	if p.Batch > 0 {
		batch = fmt.Sprintf("batch %d, ", p.Batch)
	}
	fmt.Fprintln(a.out)
	if f == asText {
		fmt.Fprintf(a.out, "%skernel after kernel: %.3f ms\n", batch, p.MS)
	}
	t := table{head: []string{"kernel", ">launches", ">µs", ">µs each", ">of step", ">weights", ">GB/s", ">of bandwidth"}}
	for _, k := range p.Kernels {
		row := []string{k.Name, fmt.Sprint(k.Launches), fmt.Sprintf("%.1f", k.US), fmt.Sprintf("%.2f", k.US/float64(k.Launches)), fmt.Sprintf("%.1f %%", k.US/p.MS/10), "", "", ""}
		if rate := float64(k.WeightBytes) / k.US * 1e6; k.WeightBytes > 0 && rate < 1.1*bandwidth {
			row[5], row[6], row[7] = byteCount(k.WeightBytes), gigabytes(rate), fmt.Sprintf("%.0f %%", 100*rate/bandwidth)
		}
		t.add(row...)
	}
	return t.print(a.out, f, "  ")
}
