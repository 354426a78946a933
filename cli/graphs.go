package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pwc/graphs"
	"pwc/graphs/scenario"
	"pwc/graphs/whole"
	"pwc/internal/openfile"
	"pwc/runtime/device"
)

func (a *app) graphsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "graphs",
		Short: "run scenarios of graph trees",
		Long: `A graph tree records which captured graphs follow each other. A
scenario is a file that drives a graph tree: a module, small functions over a recorder, and
steps with expected values. docs/graphs.md describes the language.`,
		Example: `  pwc graphs run scenario.txtar
  pwc graphs run scenario.txtar --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q of pwc graphs; its only command is run", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.graphsRunCommand())
	return cmd
}

func (a *app) graphsRunCommand() *cobra.Command {
	var f buildFlags
	cmd := &cobra.Command{
		Use:   "run FILE",
		Short: "run a scenario and check its expectations",
		Long: `Run a scenario of a graph tree (a txtar archive with the sections module.ir,
functions, options and steps). The log has one line for each transition of the tree; the
table has the expected and the actual values of each step. The exit code is 1 if they differ.`,
		Example: `  pwc graphs run graphs/scenario/testdata/foo_fee.txtar
  pwc graphs run graphs/scenario/testdata/foo_fee.txtar --json
  pwc graphs run graphs/scenario/testdata/foo_fee.txtar --target cuda`,
		Args: exactly(1, "a scenario"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runScenario(cmd.Context(), args[0], &f) },
	}
	cmd.Flags().StringVar(&f.target, "target", "host", "`TARGET` that runs it: host or cuda; the option device of the scenario takes precedence")
	return cmd
}

func (a *app) runScenario(ctx context.Context, name string, f *buildFlags) error {
	text, err := openfile.Read(name, scenario.MaxBytes)
	if err != nil {
		return err
	}
	file, err := scenario.Parse(name, text)
	if err != nil {
		return err
	}
	var log io.Writer
	if !a.json {
		log = a.out
	}
	var t *target
	conf := scenario.Config{
		Open: func(dev string) (device.Device, error) {
			flags := *f
			switch dev {
			case "":
			case "fake":
				return nil, fmt.Errorf("device=fake is for tests of pwc: this program has no emulated GPU; use device=host or device=cuda")
			default:
				flags.target = dev
			}
			var err error
			if t, err = openTarget(&flags, true); err != nil {
				return nil, err
			}
			return t.dev, nil
		},
		Compile: func(ctx context.Context, s *graphs.Session, f *scenario.File, name string) (scenario.Compiled, error) {
			return whole.Compile(ctx, s, f.Module, name, whole.Options{Compiler: t.compiler})
		},
		Log: log,
	}
	res, err := file.Run(ctx, conf)
	if res == nil {
		return err
	}
	if a.json {
		if jerr := a.printJSON(res); jerr != nil {
			return jerr
		}
		if err != nil {
			fmt.Fprintln(a.err, err)
			return errReported
		}
	} else if perr := a.printScenario(res); perr != nil {
		return perr
	}
	if err != nil {
		return err
	}
	if !res.OK() {
		return errReported
	}
	return nil
}

// printScenario prints a row for each expected value.
func (a *app) printScenario(res *scenario.Result) error {
	t := table{head: []string{">line", "ok", "what", "want", "got"}}
	failed := 0
	for _, e := range res.Expects {
		ok := "ok"
		if !e.OK {
			failed++
			ok = "FAIL"
		}
		for _, k := range slices.Sorted(maps.Keys(e.Want)) {
			t.add(strconv.Itoa(e.Line), ok, k, oneLine(string(e.Want[k])), oneLine(string(e.Got[k])))
		}
	}
	if len(res.Expects) > 0 {
		if err := t.write(a.out, ""); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.out, "%s, %s, %d failed\n", plural(int64(len(res.Steps)), "step"), plural(int64(len(res.Expects)), "expectation"), failed)
	return nil
}

// oneLine replaces line feeds in a cell of a table.
func oneLine(s string) string { return strings.ReplaceAll(s, "\n", "; ") }
