// Package cli is the command line of pwc. [Main] is all of it: a program of one
// line, so that a model runner builds a pwc that knows its own extern ops.
//
// Exit codes: 0, it was done; 1, it was tried and something is wrong, which is
// said on standard error; 2, the call itself was wrong.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

// Op is an extern op that the command line knows. Those of package attention
// and silly are always known.
type Op struct {
	Name string // "ns::op"

	// Open returns the op's implementation on the device of a site, or an error
	// that says why there is none. If it has a method Close() error, that is called
	// before the device is closed.
	Open func(s *Site) (device.Op, error)

	// Kernels, if not nil, returns the kernels that calls with these operands, results
	// and attributes need on GPUs of a target such as "cuda:sm_90". They are compiled
	// with the model, kept in the cache as part of it, and given to Open by Site.Code.
	Kernels func(target string, calls []device.OpCall) ([]Kernel, error)

	// Reference returns the op for the reference interpreter; batch gives the
	// metadata of the step that is being run. nil: `run --check` cannot be used
	// with modules that call the op.
	Reference func(batch func() *attention.Batch) interp.Extern
}

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// grace is how long a command has to end in order after a signal. What cannot look at a
// context, such as a read of standard input, is left then; files and cache entries are
// written aside and renamed, so none is left half.
const grace = 2 * time.Second

// Main runs the command line of the process and exits. ops are the extern ops
// that it knows in addition to the built-in ones; one of the same name replaces it. An
// interrupt or SIGTERM ends what is being done in order, within two seconds; a second
// one at once. In a conversation an interrupt ends the answer first.
func Main(ops ...Op) {
	ctx, held := withHold(context.Background())
	ctx, stop := withSignals(ctx)
	context.AfterFunc(ctx, func() {
		stop()
		time.AfterFunc(grace, func() {
			held.Lock()
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
		err = context.Cause(ctx) // whatever it kept from being done
	}
	a.json = a.json || slices.Contains(args, "--json") // behind a flag that is wrong it was not read
	return a.fail(cmd, err)
}

// printed is standard output. It keeps the first error, so that no command has to
// look whether each line could be written.
type printed struct {
	io.Writer
	err error
}

// Write is that of the output.
func (p *printed) Write(b []byte) (int, error) {
	n, err := p.Writer.Write(b)
	if p.err == nil {
		p.err = err
	}
	return n, err
}

// app is what the commands of one command line share.
type app struct {
	in      io.Reader
	out     io.Writer           // of text: what a terminal would obey is escaped
	err     io.Writer           // the same
	screen  io.Writer           // standard error, for what moves the cursor itself
	safe    [2]*termsafe.Writer // out and err
	names   []string            // that out and err show on one line
	oneLine *strings.Replacer   // of names; nil: there are none
	ops     []Op
	json    bool
	lines   bool // with json: a document is one line
	verbose bool

	trust     *cache.Trust // of the last store; nil: none was opened
	saidNoDir bool         // that there is no directory for a cache
}

// linesAnnotation marks commands whose JSON is a document on each line.
const linesAnnotation = "lines"

// argNames returns what messages name of the arguments: those, the values behind their equals
// signs, and the elements of paths.
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

// showOnOneLine has names that hold line feeds shown without them in all that is printed from
// now on, whichever package puts them into a text.
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

// message is the text of an error for people.
func (a *app) message(err error) string {
	text := err.Error()
	if a.oneLine != nil {
		text = a.oneLine.Replace(text)
	}
	return termsafe.Message(text)
}

// usageError is a wrong call: exit code 2 and a hint at the help.
type usageError struct{ err error }

// Error returns what is wrong with the call.
func (e *usageError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// errReported is a finding that was printed already: it only sets the exit code.
var errReported = errors.New("reported")

// fail prints an error and returns the exit code. With --json the error is an
// object on standard output as well, so that there is always one.
func (a *app) fail(cmd *cobra.Command, err error) int {
	if errors.Is(err, errReported) {
		if rest := unreported(err); rest != nil {
			fmt.Fprintln(a.err, "pwc: "+a.message(rest))
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

// unreported returns the parts of an error other than errReported, such as that of a Close that is
// joined with it; nil if there are none.
func unreported(err error) error {
	if err == errReported {
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

// startsWithPosition reports whether a message begins with "file:line:col: ",
// which editors look for at the start of a line.
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
		Long: `pwc compiles a model in pieces: it cuts the graph at the ops that cannot be
captured (attention), compiles each distinct piece once, captures every piece
into one graph per batch size, and replays the graphs.

A FILE is a module in the IR's text (model.ir), a checkpoint directory with a
config.json as transformers writes it, or a config.json alone.`,
		Example: `  pwc example -o toy.ir                        # write a small module to start from
  pwc split toy.ir                             # see its pieces
  pwc run toy.ir --in x.safetensors            # compile and run it
  pwc run DIR --in prompt.safetensors          # the same with a checkpoint directory
  pwc compile DIR --target cuda:sm_90          # fill the cache for GPUs; no GPU is needed
  pwc generate DIR --target cuda --ids 5,7     # run on this machine's GPU
  pwc bench config.json --target cuda          # how fast it is, and where the time goes`,
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
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print one JSON document instead of text")
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

// explainFlag says what is wrong with the value of a flag without saying how it was
// read.
func explainFlag(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	cause := invalid.Unwrap()
	if errors.Is(cause, strconv.ErrSyntax) || errors.Is(cause, strconv.ErrRange) {
		what := strings.TrimRight(invalid.GetFlag().Value.Type(), "0123456789")
		if what == "float" || what == "uint" {
			what = "number that it can have"
		}
		cause = fmt.Errorf("that is no %s", what)
	}
	return fmt.Errorf("--%s %s: %w", invalid.GetFlag().Name, invalid.GetValue(), cause)
}

// exactly is the check of a command that takes n arguments.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("takes %s, got %s", what, plural(int64(len(args)), "argument"))
		}
		return nil
	}
}

// atLeastOne is the check of a command that takes any number of files.
func atLeastOne(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("takes %s, got none", what)
		}
		return nil
	}
}
