package pieces_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"pwc/ir"
	"slices"
	"strings"
	"sync"
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

// TestPipeline builds with the passes of package compile: a program has as many parameters and
// results as its piece, the piece's symbol, and the guard of its range.
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

// TestToolsOfAPipeline: Pipeline.Tools takes precedence over the version that the backend reports.
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

// TestPassErrors: an error in a user's pass names the pass, and the line of the text that
// the piece's node comes from.
func TestPassErrors(t *testing.T) {
	p := plan(t, chain, "silly::attention")
	bad := compile.Pass{Name: "bad", Run: func(m *ir.Module, f *ir.Func) (*ir.Func, error) {
		for i, n := range f.Nodes {
			if n.Name() == "sub" && n.Pos.Line == 10 {
				return nil, m.ErrorAt(f, i+1, "no %s here", n.Name())
			}
		}
		return f, nil
	}}
	o := pieces.Options{Compiler: pieces.Pipeline{Backend: stub{}, Options: compile.Options{Passes: []compile.Pass{bad}}}}
	_, err := pieces.Build(context.Background(), []*split.Plan{p}, o)
	var pass *compile.PassError
	var at *ir.Error
	if !errors.As(err, &pass) || !errors.As(err, &at) {
		t.Fatal(err)
	}
	if pass.Pass != "bad" || at.Func != "f" || p.Func.Nodes[at.Node].Pos != at.Pos || at.Pos.Line != 11 {
		t.Errorf("pass %s, node %d of @%s at %s", pass.Pass, at.Node, at.Func, at.At())
	}
	if text := err.Error(); !strings.Contains(text, ":11:10: pass bad: no sub here") || strings.Count(text, "pass bad") != 1 {
		t.Error(text)
	}
}

// following is an ArtifactCompiler that passes each artifact to told.
type following struct {
	pieces.Pipeline
	told func(a *pieces.Artifact)
}

func (f following) For(a *pieces.Artifact) pieces.Compiler {
	f.told(a)
	return f.Pipeline
}

// TestArtifactCompiler: an ArtifactCompiler receives the function, item and hash of each piece
// that it compiles; items are numbered as in the plan's summary.
func TestArtifactCompiler(t *testing.T) {
	p := plan(t, chain, "silly::attention")
	var mu sync.Mutex
	got := map[int]string{}
	mustBuild(t, pieces.Options{Compiler: following{pieces.Pipeline{Backend: stub{}}, func(a *pieces.Artifact) {
		mu.Lock()
		defer mu.Unlock()
		got[a.Item] = fmt.Sprintf("%s %x", a.Func, a.Key.Piece[:6])
	}}}, p)
	want := map[int]string{}
	for _, s := range p.Summary() {
		if !s.Splitting {
			want[s.ID] = "f " + s.Hashes[0]
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
}
