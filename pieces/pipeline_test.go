package pieces_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/pieces"
	"pwc/program"
	"pwc/split"
)

// stub lowers every kernel to code that nothing runs.
type stub struct{}

func (stub) Target() string { return "stub" }

func (stub) Lower(k *loop.Kernel) (compile.Code, error) {
	one := dim.Const(1)
	return compile.One(program.Kernel{Name: k.Name, Format: program.KernelCUDA, Code: []byte(k.Name)},
		program.Launch{Grid: [3]dim.Dim{one, one, one}, Block: [3]int32{32, 1, 1}}), nil
}

// TestPipeline builds with the passes of package compile: a program has its
// piece's parameters and symbols and the guard of its range.
func TestPipeline(t *testing.T) {
	p := plan(t, chain, "silly::attention")
	o := pieces.Options{Compiler: pieces.Pipeline{Backend: stub{}, Tools: "stub 1"}, Store: pieces.NewMemoryStore(),
		Shapes: map[string]pieces.Shapes{"N": {Max: 512, Sizes: []int64{8}}}}
	r := mustBuild(t, o, p)
	if r.Counters.Compiled != 6 || r.Counters.BackendCompilations != 6 {
		t.Errorf("%+v", r.Counters)
	}
	for _, u := range p.Units {
		if u.Piece == nil {
			continue
		}
		prog, err := r.Program(u.Piece, 100)
		if err != nil {
			t.Fatal(err)
		}
		if len(prog.Params) != len(u.Piece.Params) || len(prog.Results) != len(u.Piece.Results) || !slices.Equal(prog.Symbols, []string{"s0"}) || prog.Target != "stub" {
			t.Errorf("unit %d:\n%s", u.Seq, prog)
		}
		if !slices.ContainsFunc(prog.Guards, func(g program.Guard) bool { return g.Expr.Equal(dim.Sym("s0")) && g.Lo == 1 && g.Hi == 512 }) {
			t.Errorf("unit %d has guards %v", u.Seq, prog.Guards)
		}
	}
	if again := mustBuild(t, o, p); again.Counters.Loaded != 6 {
		t.Errorf("again: %+v", again.Counters)
	}
	other := o
	other.Compiler, other.Frozen = pieces.Pipeline{Backend: stub{}, Options: compile.Options{Disable: []string{"cse"}}}, true
	if _, err := pieces.Build(context.Background(), []*split.Plan{p}, other); err == nil || !strings.Contains(err.Error(), "a frozen build compiles nothing") {
		t.Errorf("without a pass: %v", err)
	}
}

// versioned is a backend that knows its tools.
type versioned struct{ stub }

func (versioned) Version() string { return "tools 2" }

// TestToolsOfAPipeline: what the caller says of the tools stands before what the
// backend says.
func TestToolsOfAPipeline(t *testing.T) {
	for want, p := range map[string]pieces.Pipeline{
		"":        {Backend: stub{}},
		"mine":    {Backend: stub{}, Tools: "mine"},
		"tools 2": {Backend: versioned{}},
		"my own":  {Backend: versioned{}, Tools: "my own"},
	} {
		if got := p.Version(); got != want {
			t.Errorf("version %q, want %q", got, want)
		}
	}
}
