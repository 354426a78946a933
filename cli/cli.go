// Package cli is the command line of pwc. A program that only calls [Main] is a complete pwc, so
// that a model runner can build one with its own extern ops.
//
// Exit codes: 0 is success; 1 is a failure, with a message on standard error, or with --json in the
// document on standard output; 2 is a wrong call, such as an unknown flag.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pwc/attention"
	"pwc/cache"
	"pwc/internal/termsafe"
	"pwc/ir/interp"
	"pwc/runtime/device"
)

// Op is an extern op that the command line knows. The ops of packages attention
// and silly are always known.
type Op struct {
	Name string // "ns::op"

	// Open returns the op's implementation on the site's device, or an error with the
	// reason why it has none. If the implementation has a method Close() error, it is
	// called before the device is closed.
	Open func(s *Site) (device.Op, error)

	// Kernels, if not nil, returns the kernels that calls with these operands, results
	// and attributes need on GPUs of a target such as "cuda:sm_90". Sizes are those for
	// the largest values of symbols. The kernels are compiled and cached with the model;
	// Open gets them by Site.Code.
	Kernels func(target string, calls []device.OpCall) ([]Kernel, error)

	// Reference returns the op for the reference interpreter; batch returns the
	// metadata of the current step. If Reference is nil, `run --check` and comparisons of
	// `verify` with the interpreter fail for modules that call the op.
	Reference func(batch func() *attention.Batch) interp.Extern
}

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// grace is the time for an orderly end after a signal. Main then exits even if a call without a
// context, such as a read of standard input, still blocks. writeFile, checkpoints and the cache write
// temporary files and rename them, so an exit leaves no incomplete file under its name.
const grace = 2 * time.Second

// Main runs the command line of the process and exits. ops are extern ops
// in addition to the built-in ones; an op with the name of a built-in one replaces it. An
// interrupt or SIGTERM ends the command in order. If it does not end within two seconds, Main
// abandons it. The time does not count during the steps of a training run with --out and the
// writing of its files, and while a server drains and sends its last spans. A second signal ends
// the process at once. In a conversation an interrupt during an answer only ends the answer.
func Main(ops ...Op) {
	ctx, held := withHold(context.Background())
	ctx, stop := withSignals(ctx)
	context.AfterFunc(ctx, func() {
		stop()
		time.AfterFunc(grace, func() {
			whenReleased(held, grace)
			fmt.Fprintf(os.Stderr, "pwc: %v; the command did not end within %v and is abandoned\n", context.Cause(ctx), grace)
			os.Exit(exitFailed)
		})
	})
	boundHeap()
	code := Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, ops...)
	stop()
	os.Exit(code)
}

// Run runs one command line and returns its exit code.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, ops ...Op) int {
	out := &printed{Writer: stdout}
	text, messages := &termsafe.Writer{To: out}, &termsafe.Writer{To: stderr}
	a := &app{in: stdin, out: text, err: messages, safe: [2]*termsafe.Writer{text, messages}, screen: stderr, ops: ops}
	a.showOnOneLine(argNames(args))
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(a.out)
	root.SetErr(a.err)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil && out.err == nil:
		return exitOK
	case err == nil:
		err = out.err
	case ctx.Err() != nil && !errors.Is(err, errReported):
		err = context.Cause(ctx) // the signal, and not the error that it led to
	}
	a.json = a.json || slices.Contains(args, "--json") // the parser stops at a wrong flag, and may not have reached --json
	return a.fail(cmd, err)
}

// printed is standard output. It keeps the first error of a write, so that commands need not check
// each line.
type printed struct {
	io.Writer
	err error
}

// Write implements io.Writer.
func (p *printed) Write(b []byte) (int, error) {
	n, err := p.Writer.Write(b)
	if p.err == nil {
		p.err = err
	}
	return n, err
}

// app is the state that the commands of one command line share.
type app struct {
	in      io.Reader
	out     io.Writer           // standard output; control sequences of terminals are escaped
	err     io.Writer           // standard error, escaped in the same way
	screen  io.Writer           // standard error without escaping, for progress that moves the cursor
	safe    [2]*termsafe.Writer // out and err
	names   []string            // names with line feeds, which out and err print on one line
	oneLine *strings.Replacer   // replaces names; nil: there are no such names
	ops     []Op
	json    bool
	lines   bool // with json: print each document on one line
	verbose bool

	trust     *cache.Trust // of the last store; nil: no store was opened
	saidNoDir bool         // the warning about a missing cache directory was logged
}

// linesAnnotation marks commands that print one JSON document on each line.
const linesAnnotation = "lines"

// argNames returns the parts of the arguments that messages may print: the arguments, the values
// after equals signs, and the elements of paths.
func argNames(args []string) []string {
	var out []string
	for _, a := range args {
		out = append(out, a, strings.TrimLeft(a, "-"))
		if _, value, ok := strings.Cut(a, "="); ok {
			out = append(out, value)
		}
		out = append(out, strings.Split(filepath.ToSlash(a), "/")...)
	}
	return out
}

// showOnOneLine replaces line feeds in these names in all further output, also in texts of other
// packages.
func (a *app) showOnOneLine(names []string) {
	before := len(a.names)
	for _, n := range names {
		if strings.Contains(n, "\n") {
			a.names = append(a.names, n)
		}
	}
	if len(a.names) > before {
		a.oneLine = termsafe.Lines(a.names)
		for _, w := range a.safe {
			w.Lines = a.oneLine
		}
	}
}

// message returns the text of an error as it is printed.
func (a *app) message(err error) string {
	text := err.Error()
	if a.oneLine != nil {
		text = a.oneLine.Replace(text)
	}
	return termsafe.Message(text)
}

// usageError is a wrong call: the exit code is 2, and a hint names the help.
type usageError struct{ err error }

// Error returns what is wrong with the call.
func (e *usageError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// errReported stands for an error that was printed already: it only sets the exit code. errWrongCall is the same for a
// wrong call.
var (
	errReported  = errors.New("reported")
	errWrongCall = &usageError{errReported}
)

// fail prints an error and returns the exit code. With --json it also prints an object with the
// error to standard output, so that there is always a document.
func (a *app) fail(cmd *cobra.Command, err error) int {
	if errors.Is(err, errReported) {
		if rest := unreported(err); rest != nil {
			fmt.Fprintln(a.err, "pwc: "+a.message(rest))
		}
		if errors.As(err, new(*usageError)) {
			return exitUsage
		}
		return exitFailed
	}
	var usage *usageError
	isUsage := errors.As(err, &usage)
	if a.json {
		_ = a.printJSON(map[string]any{"error": a.message(err)})
	}
	text := a.message(err)
	if !startsWithPosition(text) {
		text = "pwc: " + text
	}
	fmt.Fprintln(a.err, text)
	if isUsage {
		fmt.Fprintf(a.err, "See '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}

// unreported returns the parts of a joined error other than errReported and errWrongCall, such as the error of a
// Close, or nil.
func unreported(err error) error {
	if err == errReported || err == error(errWrongCall) {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || !errors.Is(err, errReported) {
		return err
	}
	var rest []error
	for _, e := range joined.Unwrap() {
		rest = append(rest, unreported(e))
	}
	return errors.Join(rest...)
}

// startsWithPosition reports whether a message begins with "file:line:col: ". Editors expect this
// at the start of a line, so such a message gets no prefix.
func startsWithPosition(s string) bool {
	line, _, _ := strings.Cut(s, "\n")
	parts := strings.SplitN(line, ":", 4)
	if len(parts) < 4 {
		return false
	}
	for _, p := range parts[1:3] {
		if p == "" || strings.Trim(p, "0123456789") != "" {
			return false
		}
	}
	return true
}

func (a *app) root() *cobra.Command {
	versions := false
	root := &cobra.Command{
		Use:   "pwc",
		Short: "a piecewise graph compiler for LLM inference",
		Long: `pwc compiles a model in pieces: it cuts the graph at ops that cannot be
captured (attention), compiles each distinct piece once, captures a graph of
each piece for each batch size, and replays the graphs.

A FILE is a module in the IR's text (model.ir), a checkpoint directory with a
config.json as transformers writes it, a config.json alone, or a program that
torch.export.save wrote (model.pt2).`,
		Example: `  pwc example -o toy.ir                        # write a small module to start from
  pwc split toy.ir                             # print its pieces
  pwc run toy.ir --in x.safetensors            # compile and run it
  pwc run DIR --in prompt.safetensors          # the same with a checkpoint directory
  pwc compile DIR --target cuda:sm_90          # fill the cache for GPUs; no GPU is needed
  pwc generate DIR --target cuda --ids 5,7     # run on this machine's GPU
  pwc bench config.json --target cuda          # measure its speed`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			cmd.SuggestionsMinimumDistance = 2
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return usagef("unknown command %q; did you mean %s?", args[0], strings.Join(near, " or "))
			}
			return usagef("unknown command %q", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if versions {
				return a.printVersions()
			}
			return cmd.Help()
		},
	}
	root.Flags().BoolVar(&versions, "version", false, "print the version, as pwc version does")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		_, a.lines = cmd.Annotations[linesAnnotation]
		if err := readEnv(cmd); err != nil {
			return err
		}
		return context.Cause(cmd.Context())
	}
	root.SetHelpCommand(helpCommand())
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON instead of text: one document; generate prints several, one on each line")
	root.PersistentFlags().BoolVarP(&a.verbose, "verbose", "v", false, "print counts, bytes and seconds of each stage on standard error")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{explainFlag(err)} })
	root.AddCommand(a.importCommand(), a.fmtCommand(), a.gradCommand(), a.trainCommand(), a.checkCommand(), a.splitCommand(), a.compileCommand(), a.runCommand(), a.verifyCommand(), a.inspectCommand(), a.tokenizeCommand(), a.cacheCommand(), a.doctorCommand(),
		a.versionCommand(), a.exampleCommand(), a.generateCommand(), a.serveCommand(), a.benchCommand(), a.benchServeCommand(), a.tuneCommand(), a.graphsCommand(), a.manCommand())
	a.completions(root)
	return root
}

func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "show the help of a command",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			if about, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				for _, c := range about.Commands() {
					if c.IsAvailableCommand() {
						names = append(names, cobra.CompletionWithDesc(c.Name(), c.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("unknown command %q", strings.Join(args, " "))
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// explainFlag rewrites an error about a flag's value without the names of Go's parsers.
func explainFlag(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	cause := invalid.Unwrap()
	switch invalid.GetFlag().Value.Type() { // pflag's types; pwc's own values have errors of their own
	case "float64", "uint64":
		cause = errors.New("not a number in the range of the flag")
	case "int64":
		cause = errors.New("not a whole number in the range of the flag")
	case "float64Slice":
		cause = errors.New("not a list of numbers")
	case "bool":
		cause = errors.New("not true or false")
	}
	return fmt.Errorf("--%s %s: %w", invalid.GetFlag().Name, invalid.GetValue(), cause)
}

// exactly is the cobra.PositionalArgs of a command that takes n arguments.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("takes %s, got %s", what, plural(int64(len(args)), "argument"))
		}
		return nil
	}
}

// atLeastOne is the cobra.PositionalArgs of a command that takes one or more arguments.
func atLeastOne(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("takes %s, got none", what)
		}
		return nil
	}
}
