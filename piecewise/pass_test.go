package piecewise_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/host"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/pieces"
	"pwc/piecewise"
)

// TestPassErrors: the error of a user's pass has the name of the pass and the location in the
// model at which it fails.
func TestPassErrors(t *testing.T) {
	bad := compile.Pass{Name: "bad", Run: func(m *ir.Module, f *ir.Func) (*ir.Func, error) {
		return nil, m.ErrorAt(f, 0, "not this")
	}}
	m := testkit.Parse(t, nineteen)
	m.Source, m.Funcs[0].Nodes[0].Origin = nil, ir.Origin{Loc: "layers.0"} // as of a checkpoint
	_, err := piecewise.New(context.Background(), m, piecewise.Options{
		Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New(), Options: compile.Options{Passes: []compile.Pass{bad}}}}})
	var pass *compile.PassError
	if !errors.As(err, &pass) || pass.Pass != "bad" || !pass.User {
		t.Fatal(err)
	}
	if want := "@forward node 0 (layers.0): pass bad: not this"; !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// TestUserPassIsNamed: if a user's pass fails or returns no function, the error of New names the
// pass and the piece.
func TestUserPassIsNamed(t *testing.T) {
	cause := errors.New("it would not")
	for want, run := range map[string]func(*ir.Module, *ir.Func) (*ir.Func, error){
		"it would not":         func(*ir.Module, *ir.Func) (*ir.Func, error) { return nil, cause },
		"returned no function": func(*ir.Module, *ir.Func) (*ir.Func, error) { return nil, nil },
	} {
		o := compile.Options{Passes: []compile.Pass{{Name: "mine", Version: "1", Run: run}}}
		m := testkit.Parse(t, "pwc 1\nmodule \"m\" {\n  sym N in [1, 8] batch\n  func @f(%x: f32[N]) -> (f32[N]) {\n    %y = neg(%x)\n    return %y\n  }\n}\n")
		_, err := piecewise.New(context.Background(), m, piecewise.Options{Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New(), Options: o}}})
		if err == nil || !strings.Contains(err.Error(), "pass mine") || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "@f item 0") {
			t.Errorf("got %v, want %q of pass mine in @f item 0", err, want)
		}
		if want == cause.Error() && !errors.Is(err, cause) {
			t.Errorf("the pass's error is lost: %v", err)
		}
	}
}
