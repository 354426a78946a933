package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"pwc/cache"
	"pwc/compile/host"
	"pwc/ir"
	"pwc/pieces"
	"pwc/piecewise"
)

// hostile is a name that ends a script, in HTML and in JavaScript.
const hostile = `</script><script>document.title='owned'</script>'"&<!--`

// layers has two equal layers, each before an op that cuts, and after them a piece that differs.
const layers = `pwc 1
module "m" {
  sym N in [1, 64] batch
  op "toy::mix"(tensor, mut tensor) split
  weight @w : f32[8, 8] = "w"

  func @forward(%x: f32[N, 8]) -> (f32[N, 8]) {
    %a = linear(%x, @w) : f32[N, 8] loc("layers.0.LOC")
    %b = silu(%a) : f32[N, 8] loc("layers.0.act")
    %o = empty_like(%b) : f32[N, 8]
    call "toy::mix"(%b, %o) loc("layers.0.mix")
    %c = linear(%o, @w) : f32[N, 8] loc("layers.1.up")
    %d = silu(%c) : f32[N, 8] loc("layers.1.act")
    %p = empty_like(%d) : f32[N, 8]
    call "toy::mix"(%d, %p) loc("layers.1.mix")
    %e = exp(%p) : f32[N, 8] loc("last")
    return %e
  }
}
`

// report compiles layers for the host and collects.
func report(t *testing.T) *Report {
	t.Helper()
	text, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	var name string
	if err := json.Unmarshal(text, &name); err != nil {
		t.Fatal(err)
	}
	m, err := ir.Parse("m.ir", []byte(strings.Replace(layers, "LOC", strings.ReplaceAll(name, `"`, `\"`), 1)))
	if err != nil {
		t.Fatal(err)
	}
	return collect(t, m, hostile, 1, 16)
}

// collect compiles a module for the host and collects numbers of the given sizes.
func collect(t *testing.T, m *ir.Module, name string, sizes ...int64) *Report {
	t.Helper()
	recorder := NewRecorder(pieces.Pipeline{Backend: host.New()})
	b, err := piecewise.New(context.Background(), m, piecewise.Options{
		Compile: piecewise.CompileOptions{Compiler: recorder},
		Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4, 16}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	r, err := Collect(Options{Module: m, Name: name, Version: "test", Mode: piecewise.Piecewise, Backend: b, Sizes: sizes, Recorder: recorder,
		Graph: func(string, bool) string { return "own" }, Cached: func(cache.Key) bool { return false }})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCollect(t *testing.T) {
	r := report(t)
	if len(r.Functions) != 1 || len(r.Functions[0].Units) != 5 {
		t.Fatalf("%d functions, want one of 5 units", len(r.Functions))
	}
	f := r.Functions[0]
	var kinds []int
	for _, u := range f.Units {
		kinds = append(kinds, u.Piece)
	}
	// The first two pieces are equal, although only the second has the result of a unit as its input.
	if want := []int{0, -1, 0, -1, 1}; !equal(kinds, want) {
		t.Errorf("units are pieces %v, want %v", kinds, want)
	}
	if got := f.Units[4].Loc; got != "last" {
		t.Errorf("the last piece is at %q", got)
	}
	if want := []Capture{{4, 1}, {16, 5}}; !equal(f.Captures, want) {
		t.Errorf("captures %v, want %v", f.Captures, want)
	}
	p := r.Pieces[0]
	if p.Uses != 2 || len(p.Shapes) != 1 || len(p.Shapes[0].Kernels) == 0 {
		t.Fatalf("piece 0: %d uses, %d shapes", p.Uses, len(p.Shapes))
	}
	// 2·M·N·K of the GEMM and M·N of the activation.
	if want := []int64{2*8*8 + 8, 16 * (2*8*8 + 8)}; !equal(p.Ops, want) {
		t.Errorf("operations %v, want %v", p.Ops, want)
	}
	fused := false
	for _, pass := range p.Shapes[0].Passes {
		fused = fused || pass.Name == "fuse" && pass.Changed && len(pass.Lines) > 0
	}
	if !fused {
		t.Errorf("the passes %v do not show what fusion made", p.Shapes[0].Passes)
	}
	if k := p.Shapes[0].Kernels[0]; k.Source == "" || k.Language != "vector program" || len(k.Bytes) != 2 || k.Bytes[0] == 0 {
		t.Errorf("kernel %+v", k)
	}
}

// A size of a function whose rows mix serves only runs of as many rows; the first size of another serves runs from
// the lower bound on.
func TestCapturedRows(t *testing.T) {
	m, err := ir.Parse("m.ir", []byte(`pwc 1
module "m" {
  sym N in [2, 64] batch

  func @mixes(%x: f32[N, 8]) -> (f32[N, 8]) {
    %r = cumsum(%x, axis=0) : f32[N, 8]
    return %r
  }

  func @pads(%x: f32[N, 8]) -> (f32[N, 8]) {
    %r = exp(%x) : f32[N, 8]
    return %r
  }
}
`))
	if err != nil {
		t.Fatal(err)
	}
	r := collect(t, m, "m", 2)
	for i, want := range [][]Capture{{{4, 4}, {16, 16}}, {{4, 2}, {16, 5}}} {
		if got := r.Functions[i].Captures; !equal(got, want) {
			t.Errorf("@%s: captures %v, want %v", r.Functions[i].Name, got, want)
		}
	}
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Storages of the arena that live at the same time do not overlap, and end within the arena.
func TestMemoryOfAStep(t *testing.T) {
	f := report(t).Functions[0]
	var arena []Storage
	for _, s := range f.Memory {
		if s.Where == "arena" {
			arena = append(arena, s)
		}
	}
	if len(arena) < 4 {
		t.Fatalf("%d storages in the arena, want at least 4", len(arena))
	}
	for i, a := range arena {
		for size := range a.Bytes {
			if end := a.Offset[size] + a.Bytes[size]; end > f.Arena[size] {
				t.Errorf("%s ends at %d of %d bytes", a.Name, end, f.Arena[size])
			}
			for _, b := range arena[:i] {
				together := a.First <= b.Last && b.First <= a.Last
				apart := a.Offset[size]+a.Bytes[size] <= b.Offset[size] || b.Offset[size]+b.Bytes[size] <= a.Offset[size]
				if together && !apart && a.Bytes[size] > 0 && b.Bytes[size] > 0 {
					t.Errorf("%s and %s live at the same time and overlap", a.Name, b.Name)
				}
			}
		}
	}
}

// A hostile name does not end the element with the data, which is the report as JSON.
func TestHostileNames(t *testing.T) {
	r := report(t)
	var b bytes.Buffer
	if err := WriteHTML(&b, r); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "</script>"); n != 2 {
		t.Errorf("%d ends of scripts in the page, want those of its data and its script", n)
	}
	if strings.Contains(b.String(), "<script>document.title") {
		t.Error("a name became markup")
	}
	if !strings.Contains(b.String(), "default-src &#39;none&#39;") {
		t.Error("the page has no policy")
	}
	_, data, _ := strings.Cut(b.String(), `id="report">`)
	data, _, _ = strings.Cut(data, "</script>")
	var back Report
	if err := json.Unmarshal([]byte(data), &back); err != nil {
		t.Fatal(err)
	}
	if back.Model != hostile || !strings.Contains(back.Functions[0].Units[0].Loc, "layers.0") {
		t.Errorf("the data has model %q", back.Model)
	}
}

// Lists of a report are [] and not null in JSON, for a function without units and for a piece without kernels.
// The page would not draw a report with a null.
func TestListsAreNotNull(t *testing.T) {
	for _, body := range []string{
		"  func @f(%x: f32[N, 8]) -> (f32[N, 8]) {\n    return %x\n  }",
		"  op \"toy::mix\"(tensor, mut tensor) split\n  func @f(%x: f32[N, 8]) -> (f32[N, 8]) {\n    %o = empty_like(%x)\n    call \"toy::mix\"(%x, %o)\n    return %o\n  }",
	} {
		m, err := ir.Parse("m.ir", []byte("pwc 1\nmodule \"m\" {\n  sym N in [1, 64] batch\n"+body+"\n}\n"))
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(collect(t, m, "m", 1))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "null") {
			t.Errorf("%s", text)
		}
	}
}
