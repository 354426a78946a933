package piecewise_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/host"
	"pwc/ir"
	"pwc/pieces"
	"pwc/piecewise"
)

// TestPassErrors: who makes a backend with a pass of their own reads its name and the
// place in the model where it fails.
func TestPassErrors(t *testing.T) {
	bad := compile.Pass{Name: "bad", Run: func(m *ir.Module, f *ir.Func) (*ir.Func, error) {
		return nil, m.ErrorAt(f, 0, "not this")
	}}
	m := parse(t, nineteen)
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
