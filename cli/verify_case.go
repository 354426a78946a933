package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pwc/compile/loop"
	"pwc/ir"
	"pwc/ir/interp"
	"pwc/safetensors"
	"pwc/verify"
)

// The files of a case, in the directory of --dir.
const (
	caseModule = "case.ir"
	caseInputs = "case.safetensors" // the inputs, and the expected results as out0, out1, …
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
	c.Command = s.caseCommand(v)
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
		add(fmt.Sprintf("out%d", i), t)
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

// caseCommand returns the command line that reproduces a case.
func (s *session) caseCommand(v *verifyFlags) string {
	args := []string{"pwc", "run", filepath.ToSlash(filepath.Join(v.dir, caseModule)), "--in", filepath.ToSlash(filepath.Join(v.dir, caseInputs)), "--against", "out0"}
	if s.build.target != "host" {
		args = append(args, "--target", s.build.target)
	}
	args = append(args, "--mode", s.mode.String())
	if len(s.build.disable) > 0 {
		args = append(args, "--disable-pass", strings.Join(s.build.disable, ","))
	}
	if s.build.matmul.Precision != loop.Ordered {
		args = append(args, "--matmul-precision", s.build.matmul.Precision.String())
	}
	if s.build.captureSizes != "default" {
		args = append(args, "--capture-sizes", s.build.captureSizes)
	}
	for i, a := range args {
		if strings.ContainsFunc(a, func(r rune) bool { return r == ' ' || r == '\'' || r == '"' || r == '$' || r == '`' || r == '\\' }) {
			args[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(args, " ")
}

// printCause prints the cause that --bisect found.
func (a *app) printCause(c *verifyCause) {
	if c == nil {
		return
	}
	says := map[verify.Kind]string{
		verify.InModel:    "the model: the interpreter departs from the trace too, so the import, the weights or the module are wrong",
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
