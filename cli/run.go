package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/piecewise"
	"pwc/safetensors"
)

// runFlags are the flags of run other than those of modelFlags and buildFlags.
type runFlags struct {
	in, out string
	rows    int64
	mode    string
	against string
	tol     float64
	check   bool
	fn      string
	ranks   bool // accept a module for several devices
}

// maxRows bounds --rows.
const maxRows = 1 << 24

func (a *app) runCommand() *cobra.Command {
	var f modelFlags
	var b buildFlags
	var r runFlags
	cmd := &cobra.Command{
		Use:   "run FILE",
		Short: "compile, capture and run a model",
		Long: `Compile a model, capture it, and run it on tensors of a safetensors file. Each
parameter takes the tensor of its name, or all take in0, in1, … by position; other
tensors are ignored. --rows makes up inputs instead.

A language model (@forward of ids and positions, and @logits) takes input_ids,
one sequence, and returns logits for every row. It uses a paged KV cache;
a sequence longer than --max N runs in chunks of N tokens.

A checkpoint that --tp divides, or a module for a group of devices, runs on all its devices
with the same inputs. Results are those of rank 0.

--against compares a result with a tensor of the input file. --check compares all
results with the reference interpreter, and on one device names the first value that
differs. Both compare by ‖a−b‖/‖b‖.`,
		Example: `  pwc run model.ir --in x.safetensors --out y.safetensors
  pwc run models/llama --in prompt.safetensors --against logits
  pwc run models/llama --weights dummy --rows 64 --mode full --json
  pwc run model.ir --rows 5 --capture-sizes 8 --check
  pwc run model.ir --rows 5 --mode trees
  pwc run models/llama --tp 2 --rows 64 --check
  pwc run models/llama --tp 2 --rows 64 --rank 1 --rendezvous file:meet &
  pwc run models/llama --tp 2 --rows 64 --rank 0 --rendezvous file:meet`,
		Args: exactly(1, "one module or checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b.fix(cmd)
			switch {
			case r.in == "" && r.rows == 0:
				return usagef("give the inputs with --in x.safetensors, or make them up with --rows N")
			case r.in != "" && r.rows != 0:
				return usagef("--in and --rows exclude each other")
			case !(r.tol > 0):
				return usagef("--tol %g: want a number above 0", r.tol)
			case r.against != "" && r.in == "":
				return usagef("--against compares with a tensor of the file that --in gives")
			}
			switch {
			case !cmd.Flags().Changed("tol"):
				r.tol = 0
			case r.against == "" && !r.check:
				return usagef("--tol needs --against or --check")
			}
			if err := refuse(cmd, noEffect{r.mode == modeTrees, "capture-sizes compile-sizes ranges split-on padded-slots jobs copy-weights", " with --mode trees: graph trees copy the weights, and compile, cut and capture a function when it first runs"},
				noEffect{r.mode == modeTrees, "trace-out", " with --mode trees, whose runs are not traced"}); err != nil {
				return err
			}
			return a.runRun(cmd.Context(), args[0], &f, &b, &r)
		},
	}
	f.addImport(cmd, "f32")
	f.addWeights(cmd)
	b.add(cmd)
	b.addRunning(cmd)
	b.process.add(cmd, "--tp")
	b.addFrozen(cmd)
	b.addSymbols(cmd)
	b.addTraceOut(cmd)
	fl := cmd.Flags()
	fl.StringVar(&r.in, "in", "", "safetensors `FILE` with the inputs")
	fl.StringVar(&r.out, "out", "", "safetensors `FILE` for the results")
	fl.Var(&wholeNumber[int64]{&r.rows, 1, maxRows}, "rows", "make up inputs of `N` rows: floats in [-1, 1], 0 for other dtypes, consecutive ids for a language model")
	addMode(cmd, &r.mode)
	fl.Lookup("mode").Usage += "; or trees: graph trees, which record the order of functions, in " + fmt.Sprint(treeRounds) + " runs"
	fl.StringVar(&r.against, "against", "", "compare a result with this `TENSOR` of the input file")
	fl.BoolVar(&r.check, "check", false, "compare with the reference interpreter (slow)")
	fl.Float64Var(&r.tol, "tol", 1e-4, "the largest relative `ERROR` that --against and --check allow; for f16 values 5e-3, for bf16 2e-2")
	fl.StringVar(&r.fn, "func", "", "run only this `FUNCTION`")
	return cmd
}

// runReport is the JSON of run: the backend's counters and the results.
type runReport struct {
	piecewise.Stats
	Mode    string      `json:"mode"`
	Rows    int64       `json:"rows_given"` // of the input
	Ranks   int         `json:"ranks"`      // devices that ran the model together
	Seconds runSeconds  `json:"seconds"`
	Outputs []runOutput `json:"outputs"`
	Against *comparison `json:"against,omitempty"`
	Check   *comparison `json:"check,omitempty"`

	Collectives *collectiveCounts `json:"collectives,omitempty"` // of the first of several devices, if the device counts them

	Trees *treeReport `json:"trees,omitempty"` // of mode trees

	Unused     []piecewise.Unused     `json:"unused,omitempty"`
	Uncaptured []piecewise.Uncaptured `json:"uncaptured,omitempty"`
}

type runSeconds struct {
	Compile float64 `json:"compile"`
	Load    float64 `json:"load"`
	Capture float64 `json:"capture"` // with the warm-up
	Run     float64 `json:"run"`
}

type runOutput struct {
	Name   string   `json:"name"`
	DType  string   `json:"dtype"`
	Shape  []int64  `json:"shape"`
	Values []number `json:"values"` // the first ones
}

// comparison is the result of --against or --check.
type comparison struct {
	Name      string  `json:"name"` // of the result; of --check the first one that is not OK, else the one with the largest error
	OK        bool    `json:"ok"`
	Error     number  `json:"relative_error"`
	Tolerance float64 `json:"tolerance"`
	Worst     string  `json:"worst,omitempty"` // description of the difference, if not OK
	First     string  `json:"first_difference,omitempty"`
	Loc       string  `json:"loc,omitempty"` // of the first value that differs
}

func (a *app) runRun(ctx context.Context, path string, f *modelFlags, bf *buildFlags, rf *runFlags) (err error) {
	trees := rf.mode == modeTrees
	mode := piecewise.None
	if !trees {
		if mode, err = parseMode(rf.mode); err != nil {
			return err
		}
	}
	if rf.out != "" && !bf.process.follows() {
		if err := canWrite(rf.out); err != nil {
			return err
		}
	}
	rf.ranks = !trees
	s, err := a.openSession(ctx, path, f, rf, bf, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.world.fail(0, err)
		}
		err = errors.Join(err, s.close())
	}()
	w := s.work
	report := runReport{Mode: mode.String(), Rows: w.rows(), Ranks: w.module().World()}
	run := s.run
	if trees {
		report.Mode, run = modeTrees, s.runTrees
	}
	outputs, err := run(ctx, w.module(), &report)
	if err == nil {
		err = s.world.leave() // comparisons may take long, and need no other process
	}
	if err != nil || bf.process.follows() {
		return err
	}
	if report.Ranks > 1 && s.target.collectives != nil {
		report.Collectives = s.target.collectives()
	}
	for _, o := range outputs {
		report.Outputs = append(report.Outputs, summarize(o))
	}
	if rf.out != "" {
		if err := writeOutputs(rf.out, outputs); err != nil {
			return err
		}
	}
	if rf.against != "" {
		if report.Against, err = against(s.file, outputs, rf, tolerance(rf.tol, w.module())); err != nil {
			return err
		}
	}
	if rf.check {
		if report.Check, err = s.check(ctx, outputs, tolerance(rf.tol, w.module())); err != nil {
			return err
		}
	}
	if a.json {
		err = a.printJSON(report)
	} else {
		err = a.printRun(s.path, s.target, rf, &report)
	}
	if err == nil && (report.Against != nil && !report.Against.OK || report.Check != nil && !report.Check.OK) {
		return errReported
	}
	return err
}

// output is a result of a run with its name.
type output struct {
	name   string
	tensor *interp.Tensor
}

const shownValues = 6

func summarize(o output) runOutput {
	r := runOutput{Name: o.name, DType: o.tensor.Type.String(), Shape: append([]int64{}, o.tensor.Shape...), Values: []number{}}
	for i := range min(shownValues, o.tensor.Len()) {
		r.Values = append(r.Values, number(o.tensor.At(i)))
	}
	return r
}

func writeOutputs(path string, outputs []output) error {
	tensors := make([]safetensors.Tensor, len(outputs))
	for i, o := range outputs {
		tensors[i] = safetensors.Tensor{Name: o.name, DType: o.tensor.Type, Shape: o.tensor.Shape, Data: o.tensor.Bytes()}
	}
	return safetensors.Write(path, tensors, nil)
}

// against compares tensor --against of the input file with the result of the same name, else with
// result i if the tensor is named outi, else with the only result.
func against(file *safetensors.File, outputs []output, rf *runFlags, tol float64) (*comparison, error) {
	t, err := file.Tensor(rf.against)
	if err != nil {
		return nil, err
	}
	want, err := copyTensor(file, t)
	if err != nil {
		return nil, err
	}
	chosen := -1
	var names []string
	for i, o := range outputs {
		names = append(names, o.name)
		if o.name == rf.against || len(outputs) == 1 || chosen < 0 && rf.against == positional("out", i) {
			chosen = i
		}
	}
	if chosen < 0 {
		return nil, usagef("--against %s: the results are %s", rf.against, strings.Join(names, ", "))
	}
	o := outputs[chosen]
	d := interp.Compare(o.tensor, want)
	if d.Shape != "" {
		return nil, fmt.Errorf("result %s is %s%v, %s of %s is %s%v", o.name, o.tensor.Type, o.tensor.Shape, rf.against, rf.in, want.Type, want.Shape)
	}
	return compared(o.name, d, tol), nil
}

func compared(name string, d interp.Diff, tol float64) *comparison {
	c := &comparison{Name: name, OK: d.Within(tol), Error: number(d.RelL2), Tolerance: tol}
	if !c.OK {
		c.Worst = d.String()
	}
	return c
}

// tolerance returns tol, the value of --tol, if it is above 0, else the tolerance for the coarsest
// dtype in the module's functions.
func tolerance(tol float64, m *ir.Module) float64 {
	if tol > 0 {
		return tol
	}
	tol = 1e-4
	for _, f := range m.Funcs {
		for _, v := range f.Values {
			switch v.Type.DType {
			case dtype.BF16:
				return 2e-2
			case dtype.F16:
				tol = 5e-3
			}
		}
	}
	return tol
}

// printCaptured prints the backend's counters and the times of the run.
func (a *app) printCaptured(path string, t *target, r *runReport) {
	fmt.Fprintf(a.out, "%s on %s, mode %s\n", path, devicesText(r.Ranks, t.dev.Info().Name), r.Mode)
	fmt.Fprintf(a.out, "  %s, %d capturable; %s compiled, %d loaded, %d deduplicated; %s\n", plural(r.PiecewiseGraphsSeen, "piece"), r.CapturableGraphsSeen,
		plural(r.Compiled, "artifact"), r.Loaded, r.Deduplicated, plural(r.GraphsCaptured, "graph")+" captured")
	fmt.Fprintf(a.out, "  %s: %s, %d eager", plural(r.Rows, "row"), plural(r.Replays+r.FullReplays, "replay"), r.EagerRuns)
	if r.PaddedRows > 0 {
		fmt.Fprintf(a.out, ", %s of padding", plural(r.PaddedRows, "row"))
	}
	fmt.Fprintf(a.out, "\n  %.3f s to compile, %.3f to load, %.3f to capture, %.3f to run\n\n", r.Seconds.Compile, r.Seconds.Load, r.Seconds.Capture, r.Seconds.Run)
	if a.printUnused(r.Unused, r.Uncaptured) {
		fmt.Fprintln(a.out)
	}
}

func (a *app) printRun(path string, t *target, rf *runFlags, r *runReport) error {
	if r.Trees != nil {
		a.printTrees(path, t, r)
	} else {
		a.printCaptured(path, t, r)
	}
	tab := table{head: []string{"result", "type", "values"}}
	for _, o := range r.Outputs {
		n := int64(1)
		for _, d := range o.Shape {
			n *= d
		}
		var values []string
		for _, v := range o.Values {
			values = append(values, fmt.Sprintf("%.6g", float64(v)))
		}
		if int64(len(values)) < n {
			values = append(values, "…")
		}
		tab.add(o.Name, o.DType+strings.ReplaceAll(fmt.Sprint(o.Shape), " ", ", "), strings.Join(values, " "))
	}
	if err := tab.write(a.out, "  "); err != nil {
		return err
	}
	if rf.out != "" {
		fmt.Fprintf(a.out, "\nwrote %s\n", rf.out)
	}
	a.printComparison("against "+rf.against+" of "+rf.in, r.Against)
	a.printComparison("against the interpreter", r.Check)
	return nil
}

func (a *app) printComparison(what string, c *comparison) {
	if c == nil {
		return
	}
	if c.OK {
		fmt.Fprintf(a.out, "\nok: %s %s: relative error %.3g, at most %g\n", c.Name, what, float64(c.Error), c.Tolerance)
		return
	}
	fmt.Fprintf(a.out, "\nDIFFERS: %s %s: %s; at most %g was allowed\n", c.Name, what, c.Worst, c.Tolerance)
	if c.First != "" {
		fmt.Fprintf(a.out, "the first value that differs is %s\n", c.First)
	}
}

// session runs one workload on a target, any number of times.
type session struct {
	app     *app
	target  *target
	world   *world
	build   *buildFlags
	mode    piecewise.Mode
	weights safetensors.Source
	work    workload

	path    string            // of the model
	file    *safetensors.File // of --in; nil without --in
	closers []func() error
	observe func(caller) caller // if not nil, wraps the caller that runs the functions
}

// openSession opens the model, the file of --in and the target. The caller closes the session.
func (a *app) openSession(ctx context.Context, path string, f *modelFlags, rf *runFlags, bf *buildFlags, mode piecewise.Mode) (_ *session, err error) {
	s := &session{app: a, mode: mode, world: &world{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if rf.in != "" {
		if s.file, err = safetensors.Open(rf.in); err != nil {
			return nil, err
		}
		s.closers = append(s.closers, s.file.Close)
		a.showOnOneLine(s.file.Names())
	}
	if rf.against != "" {
		if _, err := s.file.Info(rf.against); err != nil {
			return nil, usagef("--against: %w; %s holds %s", err, rf.in, termsafe.Names(s.file.Names()))
		}
	}
	m, err := a.open(path, f)
	if err != nil {
		return nil, err
	}
	if !rf.ranks {
		if err := onOneDevice(m.module); err != nil {
			return nil, err
		}
	}
	if err := bf.checkSymbols(m.module); err != nil {
		return nil, err
	}
	s.path = m.path
	var closeWeights func() error
	if s.weights, closeWeights, err = m.source(f); err != nil {
		return nil, err
	}
	s.closers = append(s.closers, closeWeights)
	if s.work, err = newWorkload(m.module, s.file, rf, bf); err != nil {
		return nil, err
	}
	if one, ok := s.work.(*single); ok {
		bf = one.withoutBound(bf)
	}
	s.build = bf
	var closeWorld func() error
	if s.target, s.world, closeWorld, err = openWorld(ctx, m.module, bf, true); err != nil {
		return nil, err
	}
	s.closers = append(s.closers, closeWorld)
	return s, nil
}

// close closes everything that the session opened, in reverse order.
func (s *session) close() error {
	var err error
	for _, c := range slices.Backward(s.closers) {
		err = errors.Join(err, c())
	}
	return err
}

// run compiles, loads, captures and runs a module. It stores counters and times in report, unless
// report is nil.
func (s *session) run(ctx context.Context, m *ir.Module, report *runReport) (out []output, err error) {
	var sec runSeconds
	lap := func(start time.Time, d *float64) { *d = time.Since(start).Seconds() }
	start := time.Now()
	all, err := s.app.newBackends(ctx, m, s.target, s.world, s.build, s.mode, s.work.limits(), s.work.symbols())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, all.close()) }()
	if err := s.world.agree(ctx, fmt.Sprintf("module %x, --mode %v, inputs of %d rows %s, %s", m.Hash(), s.mode, s.work.rows(), s.work.fingerprint(), s.build.settings())); err != nil {
		return nil, err
	}
	b := all.first()
	lap(start, &sec.Compile)
	start = time.Now()
	if err := all.load(ctx, s.weights); err != nil {
		return nil, err
	}
	s.target.trace.memory(b.Plan())
	lap(start, &sec.Load)
	start = time.Now()
	s.target.bar.capturing(b.Plan().Graphs)
	err = all.capture(ctx)
	s.target.bar.end()
	if err != nil {
		return nil, err
	}
	lap(start, &sec.Capture)
	start = time.Now()
	c := all.caller(m)
	if s.observe != nil {
		c = s.observe(c)
	}
	if out, err = s.work.run(ctx, c); err != nil {
		return nil, err
	}
	// Reading a result checks for index errors, but a function may have no results.
	if err := all.finish(); err != nil {
		return nil, err
	}
	lap(start, &sec.Run)
	s.app.logger().Info("ran", "rows", s.work.rows(), "seconds", sec.Run)
	if report != nil {
		report.Stats, report.Seconds = b.Stats(), sec
		report.Unused, report.Uncaptured = b.Plan().Unused, b.Plan().Uncaptured
	}
	return out, nil
}
