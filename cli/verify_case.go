package cli

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"pwc/ir"
	"pwc/ir/interp"
	"pwc/safetensors"
	"pwc/verify"
)

// The files of a case, in the directory of --dir.
const (
	caseModule = "case.ir"
	caseInputs = "case.safetensors" // the inputs, and the expected results by position: out0, out1, …
)

// bisect searches for the smallest cause and writes its case.
func (s *session) bisect(ctx context.Context, search *verify.Search, out *verifyReport, v *verifyFlags, path string) error {
	f, err := search.Bisect(ctx)
	if errors.Is(err, verify.ErrAgree) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--bisect: %w", err)
	}
	out.OK = false
	c := &verifyCause{Kind: f.Kind, Func: f.Func, Piece: f.Piece, Passes: f.Passes, Variant: f.Variant, Error: number(f.Error), Bound: number(f.Bound), What: f.Departed}
	if f.Value != nil {
		c.Value, c.Loc = f.Value.Msg, f.Value.Loc
	}
	for _, n := range f.Nodes {
		c.Nodes = append(c.Nodes, n.Msg)
	}
	out.Cause = c
	if f.Case == nil {
		return nil
	}
	c.Dir = filepath.ToSlash(v.dir)
	if err := s.writeCase(v.dir, f); err != nil {
		return err
	}
	c.Command = s.caseCommand(v, f)
	return nil
}

// writeCase writes the module, the tensors of its weights, the inputs and the expected results.
func (s *session) writeCase(dir string, f *verify.Finding) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var tensors []safetensors.Tensor
	seen := map[string]bool{}
	for _, w := range f.Case.Weights {
		for _, name := range leaves(w) {
			if seen[name] {
				continue
			}
			seen[name] = true
			t, err := s.weights.Tensor(name)
			if err != nil {
				return err
			}
			tensors = append(tensors, t)
		}
	}
	m := *f.Case
	if len(tensors) > 0 {
		m.WeightsFrom = "."
		err := safetensors.Guard(s.weights, func() error {
			return safetensors.Write(filepath.Join(dir, safetensors.SingleFile), tensors, nil)
		})
		if err != nil {
			return err
		}
	}
	if err := writeFile(filepath.Join(dir, caseModule), []byte(ir.Print(&m))); err != nil {
		return err
	}
	var io []safetensors.Tensor
	add := func(name string, t *interp.Tensor) {
		io = append(io, safetensors.Tensor{Name: name, DType: t.Type, Shape: t.Shape, Data: t.Bytes()})
	}
	for i, t := range f.Inputs {
		add(f.Case.Funcs[0].Values[f.Case.Funcs[0].Params[i]].Name, t)
	}
	for i, t := range f.Want {
		add(positional("out", i), t)
	}
	return safetensors.Write(filepath.Join(dir, caseInputs), io, nil)
}

// leaves returns the names of the checkpoint tensors in a weight's expression.
func leaves(w *ir.Weight) []string {
	if w.Expr == nil {
		return []string{w.Name}
	}
	var out []string
	var visit func(*ir.WeightExpr)
	visit = func(e *ir.WeightExpr) {
		if e.Op == ir.WeightTensor {
			out = append(out, e.Name)
		}
		for _, a := range e.Args {
			visit(a)
		}
	}
	visit(w.Expr)
	return out
}

// caseCommand returns the pwc run command that shows the departure of a case. It compiles as the search
// did, and allows the bound of the result that departs.
func (s *session) caseCommand(v *verifyFlags, f *verify.Finding) string {
	file := func(name string) string {
		path := filepath.ToSlash(filepath.Join(v.dir, name))
		if strings.HasPrefix(path, "-") {
			path = "./" + path // no flag
		}
		return path
	}
	// --tol must be above 0, also if the result must be exact.
	tol := strconv.FormatFloat(max(f.Bound, math.SmallestNonzeroFloat64), 'g', -1, 64)
	b := s.build.declaredIn(f.Case)
	// The call binds plain symbols, see withoutBound.
	maps.DeleteFunc(b.symbols, func(name string, _ int64) bool { return f.Case.Symbol(name).Kind == ir.Plain })
	args := []string{"pwc", "run", file(caseModule), "--in", file(caseInputs), "--against", positional("out", f.Result), "--tol", tol,
		"--target", b.target, "--mode", s.mode.String()}
	list := func(flag string, values []string) {
		if values != nil { // an empty list is not the default
			args = append(args, flag, commaSeparated(values))
		}
	}
	text := func(flag, value string) {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	list("--disable-pass", b.disable)
	list("--split-on", b.splitOn)
	list("--padded-slots", b.paddedSlots)
	text("--compile-sizes", b.compileSizes.String())
	text("--ranges", b.ranges.String())
	text("--max", b.max.String())
	text("--symbol", b.symbols.String())
	text("--matmul-precision", b.matmul.String())
	if b.captureSizes != "default" {
		args = append(args, "--capture-sizes", b.captureSizes)
	}
	for i, a := range args {
		args[i] = shellQuoted(a)
	}
	return strings.Join(args, " ")
}

// commaSeparated returns a value of a list flag, which pflag reads as a line of CSV.
func commaSeparated(values []string) string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	if err := w.Write(values); err != nil {
		panic(err) // a Builder takes everything
	}
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// shellQuoted returns an argument as a POSIX shell reads it. Bytes that a terminal does not show are
// escaped in $'…' (POSIX.1-2024).
func shellQuoted(arg string) string {
	const safe = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-"
	hidden := func(r rune, size int) bool { return r == utf8.RuneError && size <= 1 || !unicode.IsPrint(r) }
	plain := true
	var b strings.Builder
	for i := 0; i < len(arg); {
		r, size := utf8.DecodeRuneInString(arg[i:])
		switch {
		case hidden(r, size):
			plain = false
			for _, c := range []byte(arg[i : i+size]) {
				fmt.Fprintf(&b, `\%03o`, c)
			}
		case r == '\'' || r == '\\':
			b.WriteByte('\\')
			fallthrough
		default:
			b.WriteString(arg[i : i+size])
		}
		i += size
	}
	switch {
	case !plain:
		return "$'" + b.String() + "'"
	case arg == "" || strings.Trim(arg, safe) != "":
		return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	return arg
}

// printCause prints the cause that --bisect found.
func (a *app) printCause(c *verifyCause) {
	if c == nil {
		return
	}
	says := map[verify.Kind]string{
		verify.InModel:    "the model: the interpreter departs from the trace, so the import, the weights or the module are wrong",
		verify.InPass:     "compiler passes: with --disable-pass " + strings.Join(c.Passes, ",") + " the values are right",
		verify.InVariant:  "kernel variant " + c.Variant + ": with another variant the values are right",
		verify.InKernel:   "code generation: the kernels of these nodes are wrong, no matter which passes are disabled",
		verify.InOp:       "the extern op",
		verify.InSchedule: "capture, memory between pieces, or padding: each piece alone is right, together they are not",
	}
	fmt.Fprintf(a.out, "\ncause: %s\n  first in @%s", says[c.Kind], c.Func)
	if c.Piece != "" {
		fmt.Fprintf(a.out, ", piece %s", c.Piece)
	}
	fmt.Fprintf(a.out, ": %s\n", c.Value)
	if c.Loc != "" {
		fmt.Fprintf(a.out, "  at %s\n", c.Loc)
	}
	fmt.Fprintf(a.out, "  %s\n", c.What)
	if len(c.Nodes) > 0 {
		fmt.Fprintf(a.out, "\n%s:\n  %s\n", plural(int64(len(c.Nodes)), "node"), strings.Join(slices.Clone(c.Nodes), "\n  "))
	}
	if c.Command != "" {
		fmt.Fprintf(a.out, "\nwrote %s; reproduce it with:\n  %s\n", c.Dir, c.Command)
	}
}
