package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pwc/graphs/whole"
	"pwc/internal/termsafe"
	"pwc/ir"
	"pwc/piecewise"
)

func (a *app) checkCommand() *cobra.Command {
	var f modelFlags
	var mode string
	var uncut bool
	var slots []string
	cmd := &cobra.Command{
		Use:   "check FILE…",
		Short: "parse and verify models, and print how their functions can be captured",
		Long: `Parse and verify modules or checkpoints. All errors of a file are printed, each
with its position, line and a caret. For each function check prints the symbol that
counts its rows, and whether runs can be padded to a captured size; if not, each reason with its
position, such as an op that mixes rows. It also prints the symbols that each run binds and
no graph can vary, and the number of pieces that graphs can hold.

check refuses a --mode for the same reasons as compile and run.

--whole prints for each function whether one graph can hold all of it, or every reason
why not, with its position.`,
		Example: `  pwc check model.ir
  pwc check models/llama --mode full
  pwc check model.ir --whole
  pwc check models/*.ir --json`,
		Args: atLeastOne("modules or checkpoints"),
		RunE: func(_ *cobra.Command, args []string) error { return a.runCheck(args, &f, mode, slots, uncut) },
	}
	f.addImport(cmd, "auto")
	f.addMax(cmd)
	addMode(cmd, &mode)
	addPaddedSlots(cmd, &slots)
	cmd.Flags().BoolVar(&uncut, "whole", false, "list what prevents each function from being one graph")
	return cmd
}

type checkReport struct {
	Files []checkFile `json:"files"`
}

type checkFile struct {
	File      string      `json:"file"`
	OK        bool        `json:"ok"`
	Module    string      `json:"module,omitempty"`
	Weights   int         `json:"weights"`
	States    int         `json:"states"`
	Functions []checkFunc `json:"functions,omitempty"`
	Errors    []fault     `json:"errors,omitempty"`
}

type checkFunc struct {
	Name    string  `json:"name"`
	Nodes   int     `json:"nodes"`
	Size    string  `json:"size,omitempty"` // symbol that counts rows
	Padding bool    `json:"padding"`        // runs may be padded along the symbol
	Mixing  []fault `json:"mixing,omitempty"`

	Bound      []string `json:"bound,omitempty"` // symbols that each run binds and no graph can vary
	Pieces     int      `json:"pieces"`
	Capturable int      `json:"capturable"`           // pieces that graphs hold in the mode
	Uncaptured string   `json:"uncaptured,omitempty"` // why graphs hold none of them

	Whole *wholeCheck `json:"whole,omitempty"` // of --whole
}

// wholeCheck is the result of --whole for a function: OK if one graph can hold all of it.
type wholeCheck struct {
	OK    bool        `json:"ok"`
	Skips []wholeSkip `json:"skips,omitempty"`
}

// wholeSkip is one reason why a function cannot be one graph.
type wholeSkip struct {
	Reason string `json:"reason"`
	Op     string `json:"op,omitempty"`
	fault
}

// fault is one error of a module.
type fault struct {
	Line    int32  `json:"line,omitempty"`
	Col     int32  `json:"col,omitempty"`
	Func    string `json:"func,omitempty"`
	Loc     string `json:"loc,omitempty"`
	Message string `json:"message"`
}

func faultOf(e *ir.Error) fault {
	return fault{Line: e.Pos.Line, Col: e.Pos.Col, Func: e.Func, Loc: e.Loc, Message: e.Msg}
}

// faults returns the errors of package ir in the tree of err, one by one. Without such an error it
// returns err as one fault.
func faults(err error) []fault {
	var out []fault
	var visit func(error)
	visit = func(err error) {
		switch e := err.(type) {
		case *ir.Error:
			out = append(out, faultOf(e))
		case ir.ErrorList:
			for _, x := range e {
				out = append(out, faultOf(x))
			}
		case interface{ Unwrap() error }:
			visit(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, x := range e.Unwrap() {
				visit(x)
			}
		}
	}
	if visit(err); len(out) == 0 {
		return []fault{{Message: err.Error()}}
	}
	return out
}

func (a *app) runCheck(files []string, f *modelFlags, modeName string, slots []string, uncut bool) error {
	if _, err := f.options(); err != nil {
		return err
	}
	mode, err := parseMode(modeName)
	if err != nil {
		return err
	}
	var r checkReport
	var failed error
	for _, name := range files {
		m, err := a.open(name, f)
		var c checkFile
		if err == nil {
			c, err = a.describe(m.path, m.module, mode, slots)
		}
		if err == nil && uncut {
			for i, fn := range m.module.Funcs {
				c.Functions[i].Whole = checkWhole(m.module, fn)
			}
		}
		if err != nil {
			switch {
			case errors.As(err, new(*usageError)):
				failed = errWrongCall
			case failed == nil:
				failed = errReported
			}
			r.Files = append(r.Files, checkFile{File: name, Errors: faults(err)})
			if !a.json {
				a.complain(err)
			}
			continue
		}
		r.Files = append(r.Files, c)
		if !a.json {
			a.printCheck(c, m.module)
		}
	}
	return a.finish(r, failed)
}

// checkWhole returns the reasons why the whole-graph backend would skip a function. Declarations stand for
// extern ops, since no implementation is opened.
func checkWhole(m *ir.Module, fn *ir.Func) *wholeCheck {
	skips := whole.Check(m, fn, whole.CheckOptions{})
	w := &wholeCheck{OK: len(skips) == 0}
	for _, s := range skips {
		at := faultOf(s.At)
		at.Message = s.Error()
		w.Skips = append(w.Skips, wholeSkip{string(s.Reason), s.Op, at})
	}
	return w
}

// describe returns the reports of piecewise.Check on the functions of a module in a mode.
func (a *app) describe(name string, m *ir.Module, mode piecewise.Mode, slots []string) (checkFile, error) {
	c := checkFile{File: name, OK: true, Module: m.Name, Weights: len(m.Weights), States: len(m.States)}
	reports, err := a.checkModule(m, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, PaddedSlots: slots}})
	if err != nil {
		return c, explainOptions(err)
	}
	for i, r := range reports {
		d := checkFunc{Name: r.Name, Nodes: len(m.Funcs[i].Nodes), Size: r.Size, Bound: r.Plain, Pieces: r.Plan.Counts().Piecewise, Capturable: r.Capturable}
		d.Padding = r.Size != "" && r.Padding == nil
		for _, mix := range r.Mixing {
			d.Mixing = append(d.Mixing, faultOf(mix.Err))
		}
		if r.Capture != nil {
			d.Uncaptured = r.Capture.Error()
		}
		c.Functions = append(c.Functions, d)
	}
	return c, nil
}

func (a *app) printCheck(c checkFile, m *ir.Module) {
	fmt.Fprintf(a.out, "%s: ok: module %q, %s, %s, %s\n", c.File, c.Module,
		plural(int64(len(c.Functions)), "function"), plural(int64(c.Weights), "weight"), plural(int64(c.States), "state"))
	for _, d := range c.Functions {
		fmt.Fprintf(a.out, "  @%s: %s, %s, %d capturable", d.Name, plural(int64(d.Nodes), "node"), plural(int64(d.Pieces), "piece"), d.Capturable)
		switch {
		case d.Size == "":
			fmt.Fprintln(a.out, "; no batch symbol counts its rows, so runs are not padded")
		case d.Padding:
			s := m.Symbol(d.Size)
			fmt.Fprintf(a.out, "; rows %s in [%d, %d], may be padded to captured sizes\n", d.Size, s.Lo, s.Hi)
		default:
			fmt.Fprintf(a.out, "; rows %s, must not be padded:\n", d.Size)
			for _, x := range d.Mixing {
				where := fmt.Sprintf("%s:%d:%d", c.File, x.Line, x.Col)
				if x.Line == 0 {
					where = strings.TrimSpace("@" + x.Func + " " + x.Loc)
				}
				fmt.Fprintf(a.out, "    %s: %s\n", where, x.Message)
			}
		}
		if len(d.Bound) > 0 {
			fmt.Fprintf(a.out, "    bound at each run: %s\n", strings.Join(d.Bound, ", "))
		}
		if d.Uncaptured != "" {
			fmt.Fprintf(a.out, "    not captured: %s\n", d.Uncaptured)
		}
		switch {
		case d.Whole == nil:
		case d.Whole.OK:
			fmt.Fprintln(a.out, "    whole: one graph can hold it")
		default:
			for _, s := range d.Whole.Skips {
				fmt.Fprintf(a.out, "    whole: %s\n", termsafe.Line(s.Message, termsafe.MaxLine))
			}
		}
	}
}
