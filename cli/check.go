package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pwc/ir"
	"pwc/ir/padding"
)

func (a *app) checkCommand() *cobra.Command {
	var f modelFlags
	cmd := &cobra.Command{
		Use:   "check FILE…",
		Short: "parse and verify models, and say how their functions can be run",
		Long: `Parse and verify modules or checkpoints. All errors of a file are printed, each
with its position, line and a caret. For each function the symbol that counts
its rows is named, and whether runs may be padded over it to a captured size;
where an op mixes rows, its position tells why not.`,
		Example: `  pwc check model.ir
  pwc check models/*.ir --json`,
		Args: atLeastOne("modules or checkpoints"),
		RunE: func(_ *cobra.Command, args []string) error { return a.runCheck(args, &f) },
	}
	f.addImport(cmd, "auto")
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
	Padding bool    `json:"padding"`        // runs may be padded over it
	Mixing  []fault `json:"mixing,omitempty"`
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

// faults returns the errors of a module one by one.
func faults(err error) []fault {
	var list ir.ErrorList
	if !errors.As(err, &list) {
		return []fault{{Message: err.Error()}}
	}
	out := make([]fault, len(list))
	for i, e := range list {
		out[i] = faultOf(e)
	}
	return out
}

func (a *app) runCheck(files []string, f *modelFlags) error {
	if _, err := f.options(); err != nil {
		return err
	}
	var r checkReport
	failed := false
	for _, name := range files {
		m, err := a.open(name, f)
		if err != nil {
			failed = true
			r.Files = append(r.Files, checkFile{File: name, Errors: faults(err)})
			if !a.json {
				a.complain(err)
			}
			continue
		}
		c := describe(name, m.module)
		r.Files = append(r.Files, c)
		if !a.json {
			a.printCheck(c, m.module)
		}
	}
	if a.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
	}
	if failed {
		return errReported
	}
	return nil
}

func describe(name string, m *ir.Module) checkFile {
	c := checkFile{File: name, OK: true, Module: m.Name, Weights: len(m.Weights), States: len(m.States)}
	for _, fn := range m.Funcs {
		d := checkFunc{Name: fn.Name, Nodes: len(fn.Nodes)}
		if size, ok := padding.SizeSymbol(m, fn); ok {
			d.Size = size
			for _, mix := range padding.Check(m, fn, size) {
				d.Mixing = append(d.Mixing, faultOf(mix.Err))
			}
			d.Padding = len(d.Mixing) == 0
		}
		c.Functions = append(c.Functions, d)
	}
	return c
}

func (a *app) printCheck(c checkFile, m *ir.Module) {
	fmt.Fprintf(a.out, "%s: ok: module %q, %s, %s, %s\n", c.File, c.Module,
		plural(int64(len(c.Functions)), "function"), plural(int64(c.Weights), "weight"), plural(int64(c.States), "state"))
	for _, d := range c.Functions {
		fmt.Fprintf(a.out, "  @%s: %s", d.Name, plural(int64(d.Nodes), "node"))
		switch {
		case d.Size == "":
			fmt.Fprintln(a.out, "; no batch symbol counts its rows, so it is run as it is")
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
	}
}
