package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"pwc/ir"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/safetensors"
	"pwc/verify"
)

// verifyFlags are the flags of verify other than those of modelFlags and buildFlags.
type verifyFlags struct {
	run           runFlags
	trace         string
	versus        string
	bisect        bool
	dir           string
	allowUnmapped bool
	script        bool
}

func (a *app) verifyCommand() *cobra.Command {
	var f modelFlags
	var b buildFlags
	var v verifyFlags
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "compare values inside a model with a trace, and find the cause of a departure",
		Long: `Run a model and compare values inside it, layer by layer.

--trace compares with a file of module outputs, as forward hooks of PyTorch record them:
tensors named by module path (model.layers.3.mlp), and inputs named by parameter
(input_ids for a language model). --write-script prints a Python script that records a trace.
Without a trace the expected values come from the reference interpreter, or from another
target (--versus host) or another mode (--versus mode=none).

A value departs if its relative error ‖a−b‖/‖b‖ exceeds a bound for rounding, which depends
on the dtypes and sums that lead to the value (docs/verify.md).

--bisect searches for the smallest cause: the piece that departs on correct inputs; the pass
or the kernel variant without which the piece is correct; and few of its nodes. It writes the
nodes to --dir as a module with its inputs, and prints the command that reproduces the departure.

Functions are compiled with the compared values as further results. The cache keeps the pieces
that this changes, which --frozen refuses to compile: run the same command without it first.
--bisect compiles without the cache, and excludes --frozen.

The exit code is 1 if a value departs; if --bisect finds a cause; if nothing was compared; or if
the model has no value for a name of the trace, unless --allow-unmapped is given. A value of
another shape departs, and one with a NaN or an infinity if all expected values are finite.`,
		Example: `  pwc verify models/llama --trace trace.safetensors
  pwc verify models/llama --trace trace.safetensors --target cuda --mode full --json
  pwc verify models/llama --trace trace.safetensors --bisect --dir case
  pwc verify model.ir --rows 5 --versus mode=none
  pwc verify --write-script > record.py`,
		Args: func(cmd *cobra.Command, args []string) error {
			if v.script {
				return none(cmd, args)
			}
			return exactly(1, "one module or checkpoint")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := refuse(cmd, noEffect{v.script, givenExcept(cmd, "write-script"), " with --write-script, which only prints a script"},
				noEffect{!v.bisect, "dir", " without --bisect, which writes the smallest cause to it"},
				noEffect{v.trace == "", "allow-unmapped", " without --trace, whose names it is about"}); err != nil {
				return err
			}
			if v.script {
				_, err := fmt.Fprint(a.out, verify.Script)
				return err
			}
			b.fix(cmd)
			if err := v.check(&b); err != nil {
				return err
			}
			return explainMiss(a.runVerify(cmd.Context(), args[0], &f, &b, &v))
		},
	}
	f.addImport(cmd, "f32")
	hideDivision(cmd)
	f.addWeights(cmd)
	b.add(cmd)
	b.addFrozen(cmd)
	b.addSymbols(cmd)
	fl := cmd.Flags()
	fl.StringVar(&v.trace, "trace", "", "safetensors `FILE` with the outputs of modules and the inputs")
	fl.StringVar(&v.versus, "versus", "", "compare with `WHAT` instead of the interpreter: a target, such as host, or mode=MODE")
	fl.StringVar(&v.run.in, "in", "", "safetensors `FILE` with the inputs, if there is no trace")
	fl.Var(&wholeNumber[int64]{&v.run.rows, 1, maxRows}, "rows", "make up inputs of `N` rows, if there is no trace")
	fl.StringVar(&v.run.fn, "func", "", "run only this `FUNCTION`")
	addMode(cmd, &v.run.mode)
	fl.BoolVar(&v.bisect, "bisect", false, "find the smallest cause of a departure")
	fl.StringVar(&v.dir, "dir", "pwc-case", "`DIR` for the module and inputs that --bisect finds")
	fl.BoolVar(&v.allowUnmapped, "allow-unmapped", false, "list and count names of the trace without a value in the model, without failing")
	fl.BoolVar(&v.script, "write-script", false, "print a Python script that records a trace")
	return cmd
}

func (v *verifyFlags) check(bf *buildFlags) error {
	given := 0
	for _, on := range []bool{v.trace != "", v.run.in != "", v.run.rows != 0} {
		if on {
			given++
		}
	}
	switch {
	case given == 0:
		return usagef("give a trace with --trace FILE, or inputs with --in FILE or --rows N; --write-script prints how to record a trace")
	case given > 1:
		return usagef("--trace, --in and --rows exclude each other: a trace has the inputs")
	case v.trace != "" && v.versus != "":
		return usagef("--trace and --versus exclude each other: each gives the expected values")
	case v.bisect && bf.frozen:
		return usagef("--bisect and --frozen exclude each other: the search compiles, which --frozen refuses")
	}
	return nil
}

// explainMiss adds what fills the cache to the error of a frozen run that missed it.
func explainMiss(err error) error {
	if !errors.As(err, new(*pieces.MissError)) {
		return err
	}
	return fmt.Errorf("%w\npwc verify compiles functions with the compared values as further results: the same command without --frozen fills the cache", err)
}

// verifyReport is the JSON of verify.
type verifyReport struct {
	OK       bool          `json:"ok"`
	First    *string       `json:"first_departure"`
	Layers   []verifyLayer `json:"layers"`
	Unmapped []string      `json:"unmapped"`
	Cause    *verifyCause  `json:"cause,omitempty"` // of --bisect
}

type verifyLayer struct {
	Name    string `json:"name"`
	Error   number `json:"relative_error"`
	Growth  number `json:"growth"` // the error divided by that of the layer before; 0 also for the first layer, or if that error is 0 or infinite
	Bound   number `json:"bound"`
	OK      bool   `json:"ok"`
	Problem string `json:"problem,omitempty"`
	Node    string `json:"node,omitempty"` // the node of the value
}

// verifyCause is the result of --bisect.
type verifyCause struct {
	Kind    verify.Kind `json:"kind"`
	Func    string      `json:"func"`
	Piece   string      `json:"piece,omitempty"`
	Passes  []string    `json:"passes,omitempty"`
	Variant string      `json:"variant,omitempty"`
	Value   string      `json:"value"`
	Loc     string      `json:"loc,omitempty"`
	Nodes   []string    `json:"nodes,omitempty"`
	Error   number      `json:"relative_error"`
	Bound   number      `json:"bound,omitempty"`
	What    string      `json:"departed"`
	Dir     string      `json:"dir,omitempty"`
	Command string      `json:"command,omitempty"`
}

func (a *app) runVerify(ctx context.Context, path string, f *modelFlags, bf *buildFlags, v *verifyFlags) (err error) {
	mode, err := parseMode(v.run.mode)
	if err != nil {
		return err
	}
	if v.trace != "" {
		v.run.in = v.trace
	}
	bf.uncached = v.bisect // in the search, an entry of the cache could differ from what a trial compiles
	s, err := a.openSession(ctx, path, f, &v.run, bf, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	w := s.work
	reference, closeReference, err := s.versus(v.versus)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeReference()) }()
	search := s.search(reference)
	var report *verify.Report
	if v.trace != "" {
		if search.Wanted, err = a.wanted(s.file, w.module()); err != nil {
			return err
		}
		report, err = verify.Compare(ctx, w.module(), search.Wanted, verifyTarget{s}, verify.Config{})
	} else {
		report, err = search.Layers(ctx)
	}
	if err != nil {
		return err
	}
	out := reportOf(report, v.allowUnmapped)
	if v.bisect {
		if err := s.bisect(ctx, search, out, v, path); err != nil {
			return err
		}
	}
	if a.json {
		err = a.printJSON(out)
	} else {
		err = a.printVerify(path, s.target, out, v)
	}
	if err == nil && !out.OK {
		return errReported
	}
	return err
}

// versus returns the target of --versus, and a function that closes it.
func (s *session) versus(what string) (verify.Target, func() error, error) {
	none := func() error { return nil }
	name, value, ok := strings.Cut(what, "=")
	switch {
	case what == "":
		return verifyReference{s}, none, nil
	case ok && name == "mode":
		mode, err := piecewise.ParseMode(value)
		if err != nil {
			return nil, nil, usagef("--versus: %w", err)
		}
		return verifyTarget{s.inMode(mode)}, none, nil
	case ok:
		return nil, nil, usagef("--versus %s: want a target such as host, or mode=MODE", what)
	}
	build := *s.build
	build.target = what
	t, err := openTarget(&build, true)
	if err != nil {
		return nil, nil, fmt.Errorf("--versus %s: %w", what, err)
	}
	other := *s
	other.build, other.target, other.mode = &build, t, piecewise.None
	return verifyTarget{&other}, t.close, nil
}

// wanted returns the tensors of a trace that are not inputs of the model.
func (a *app) wanted(file *safetensors.File, m *ir.Module) ([]verify.Wanted, error) {
	inputs := map[string]bool{"input_ids": true}
	for _, f := range m.Funcs {
		for _, name := range paramNames(f) {
			inputs[name] = true
		}
	}
	var out []verify.Wanted
	for _, name := range file.Names() {
		if inputs[name] {
			continue
		}
		t, err := readTensor(file, name)
		if err != nil {
			return nil, err
		}
		out = append(out, verify.Wanted{Name: name, Tensor: t})
	}
	return out, nil
}

func reportOf(r *verify.Report, allowUnmapped bool) *verifyReport {
	out := &verifyReport{OK: r.OK(allowUnmapped), Layers: []verifyLayer{}, Unmapped: append([]string{}, r.Unmapped...)}
	if l := r.First(); l != nil {
		out.First = &l.Name
	}
	for _, l := range r.Layers {
		row := verifyLayer{Name: l.Name, Error: number(l.Error), Growth: number(l.Growth), Bound: number(l.Bound), OK: l.OK, Problem: l.Problem}
		if l.Where != nil {
			row.Node = l.Where.Msg
		}
		out.Layers = append(out.Layers, row)
	}
	return out
}

func (a *app) printVerify(path string, t *target, r *verifyReport, v *verifyFlags) error {
	with := "the interpreter"
	switch {
	case v.trace != "":
		with = v.trace
	case v.versus != "":
		with = v.versus
	}
	fmt.Fprintf(a.out, "%s on %s, mode %s, compared with %s\n\n", path, t.dev.Info().Name, v.run.mode, with)
	tab := table{head: []string{"value", ">error", ">growth", ">bound", "verdict"}}
	for _, l := range r.Layers {
		growth, verdict := "", "ok"
		if l.Growth > 0 && !math.IsInf(float64(l.Growth), 0) {
			growth = fmt.Sprintf("%.2f", float64(l.Growth))
		}
		if !l.OK {
			verdict = "DEPARTS"
		}
		tab.add(l.Name, fmt.Sprintf("%.2e", float64(l.Error)), growth, fmt.Sprintf("%.1e", float64(l.Bound)), verdict)
	}
	if err := tab.write(a.out, "  "); err != nil {
		return err
	}
	if n := len(r.Unmapped); n > 0 {
		fmt.Fprintf(a.out, "\n%s of the trace without a value in the model:\n", plural(int64(n), "name"))
		for _, name := range r.Unmapped {
			fmt.Fprintf(a.out, "  %s\n", name)
		}
	}
	switch {
	case r.First != nil:
		for _, l := range r.Layers {
			if l.Name == *r.First {
				fmt.Fprintf(a.out, "\nDEPARTS first: %s: %s\n  %s\n", l.Name, l.Problem, l.Node)
				break
			}
		}
	case len(r.Layers) == 0:
		fmt.Fprintln(a.out, "\nnothing was compared")
	case r.Cause != nil:
		fmt.Fprintln(a.out, "\nall compared values are ok, but the search found a departure")
	case !r.OK:
		fmt.Fprintln(a.out, "\nall compared values are ok; --allow-unmapped accepts the names above")
	default:
		fmt.Fprintf(a.out, "\nok: %s\n", plural(int64(len(r.Layers)), "value"))
	}
	a.printCause(r.Cause)
	return nil
}
