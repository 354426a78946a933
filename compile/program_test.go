package compile_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"pwc/compile"
	hostbackend "pwc/compile/host"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/program"
)

func shapeOf(name string, lo, hi int64) compile.Shape {
	return compile.Shape{Ranges: map[string]dim.Interval{name: {Lo: lo, Hi: hi}}}
}

// TestInterface pins the parameters, results and guards of a program.
func TestInterface(t *testing.T) {
	m := testkit.Parse(t, `pwc 1
module "test" {
  sym N in [1, 64] batch
  sym B in [1, 100] load
  weight @w : f32[4]
  weight @unused : f32[4]
  state @s : f32[B, 4]
  state @t : f32[B, 4]

  func @piece(%x: f32[N, 4], %o: mut f32[N, 4], %i: i32[N]) -> (f32[N, 4], f32[N, 4], f32[B, 4], f32[4*N], f32[N, 4], f32[N, 4], f32[N, 4], f32[N, 4], f32[4], f32[4]) {
    %y = mul(%x, @w) : f32[N, 4]
    copy(%o, %y)
    scatter(@s, %i, %x)
    %f = reshape(%y, shape=[4*N]) : f32[4*N]
    %z = mul(%x, @w) : f32[N, 4]
    %e = empty_like(%x) : f32[N, 4]
    %c = reshape(%x, shape=[N, 4]) : f32[N, 4]
    %v = mul(@w, 1.0) : f32[4]
    return %x, %o, @s, %f, %z, %e, %c, %e, @w, %v
  }
}
`)
	p := compileHost(t, m, shapeOf("N", 3, 9), compile.Options{})
	type param struct {
		kind program.ParamKind
		mut  bool
	}
	var params []param
	for _, a := range p.Params {
		params = append(params, param{a.Kind, a.Mut})
	}
	want := []param{{program.ParamValue, false}, {program.ParamValue, true}, {program.ParamValue, false},
		{program.ParamWeight, false}, {program.ParamWeight, false}, {program.ParamState, true}, {program.ParamState, false}}
	if !slices.Equal(params, want) {
		t.Errorf("parameters %v, want %v", params, want)
	}
	type result struct{ alias, same int32 }
	var results []result
	for _, r := range p.Results {
		results = append(results, result{r.Alias, r.Same})
	}
	// x, o, the state and the weight are parameters. Passes find that f is a reshape of z, c
	// equals x and v equals the weight, but the caller who binds the program does not know it:
	// each has a destination. e is the same value twice.
	own := result{-1, -1}
	if want := []result{{0, -1}, {1, -1}, {5, -1}, own, own, own, own, {-1, 5}, {3, -1}, own}; !slices.Equal(results, want) {
		t.Errorf("results %v, want %v", results, want)
	}
	if len(p.Guards) != 2 || p.Guards[0].Expr.String() != "N" || p.Guards[0].Lo != 3 || p.Guards[0].Hi != 9 || p.Guards[1].Hi != 100 {
		t.Errorf("guards %v", p.Guards)
	}
	if !slices.Equal(p.Symbols, []string{"N", "B"}) {
		t.Errorf("symbols %v", p.Symbols)
	}
}

// TestStaticShape: the buffers of a program for one size have constant extents.
func TestStaticShape(t *testing.T) {
	m := testkit.Parse(t, module(`
  func @piece(%x: f32[N, 64]) -> (f32[N, 64]) {
    %y = softmax(%x) : f32[N, 64]
    return %y
  }`))
	p := compileHost(t, m, shapeOf("N", 7, 7), compile.Options{})
	for _, b := range p.Buffers {
		for _, d := range b.Shape {
			if _, ok := d.Const(); !ok {
				t.Errorf("extent %s", d)
			}
		}
	}
	if g := p.Guards[0]; g.Lo != 7 || g.Hi != 7 {
		t.Errorf("guard %v", g)
	}
}

// TestScratch pins the number of scratch buffers.
func TestScratch(t *testing.T) {
	for _, c := range []struct {
		name    string
		scratch int
		off     string
		body    string
	}{
		{"a value that a later phase needs is in the output", 0, "", `
  func @piece(%x: f32[N, 64]) -> (f32[N, 64]) {
    %a = exp(%x) : f32[N, 64]
    %y = softmax(%a) : f32[N, 64]
    return %y
  }`},
		{"in place: the softmax takes the GEMM's memory", 1, "", `
  func @piece(%x: f32[N, 64], %z: f32[64, 32]) -> (f32[N, 32]) {
    %a = linear(%x, @l) : f32[N, 64]
    %b = softmax(%a) : f32[N, 64]
    %y = matmul(%b, %z) : f32[N, 32]
    return %y
  }`},
		{"in place switched off", 2, "inplace", `
  func @piece(%x: f32[N, 64], %z: f32[64, 32]) -> (f32[N, 32]) {
    %a = linear(%x, @l) : f32[N, 64]
    %b = softmax(%a) : f32[N, 64]
    %y = matmul(%b, %z) : f32[N, 32]
    return %y
  }`},
		{"a GEMM stores the transpose of its result", 1, "", `
  func @piece(%x: f32[64, 64]) -> (f32[64, 64]) {
    %a = linear(%x, @l) : f32[64, 64]
    %t = transpose(%a, perm=[1, 0]) : f32[64, 64]
    %b = add(%t, 1.0) : f32[64, 64]
    %y = linear(%b, @l) : f32[64, 64]
    return %y
  }`},
		{"not in place: the transpose reads other elements than it writes", 2, "", `
  func @piece(%x: f32[64, 64]) -> (f32[64, 64]) {
    %a = linear(%x, @l) : f32[64, 64]
    %t = transpose(%a, perm=[1, 0]) : f32[64, 64]
    %b = softmax(%t) : f32[64, 64]
    %y = linear(%b, @l) : f32[64, 64]
    return %y
  }`},
		{"not in place: the input is read again", 2, "", `
  func @piece(%x: f32[N, 64]) -> (f32[N, 64], f32[N, 64]) {
    %a = linear(%x, @l) : f32[N, 64]
    %m = softmax(%a) : f32[N, 64]
    %b = linear(%m, @l) : f32[N, 64]
    %c = add(%b, %a) : f32[N, 64]
    %y = linear(%c, @l) : f32[N, 64]
    return %y, %b
  }`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var o compile.Options
			if c.off != "" {
				o.Disable = []string{c.off}
			}
			p := compileHost(t, testkit.Parse(t, module(c.body)), compile.Shape{}, o)
			n := 0
			for _, b := range p.Buffers {
				if b.Kind == program.BufferScratch {
					n++
				}
			}
			if n != c.scratch {
				t.Errorf("%d scratch buffers, want %d\n%s", n, c.scratch, p)
			}
		})
	}
}

// TestOrigin pins which node of the piece a step names, through passes that
// renumber nodes.
func TestOrigin(t *testing.T) {
	p := compileHost(t, testkit.Parse(t, module(`
  func @piece(%x: f32[N, 64], %i: i32[N]) -> (f32[N, 64], f32[N, 64]) {
    %unused = exp(%x) : f32[N, 64]
    %y = softmax(%x) : f32[N, 64]
    %z = linear(%y, @l) : f32[N, 64]
    %c = cast(@e, dtype=f32) : f32[32, 64]
    %e = embedding(%c, %i) : f32[N, 64]
    %s = add(%z, %e) : f32[N, 64]
    return %s, %e
  }`)), compile.Shape{}, compile.Options{})
	var origins []int32
	for _, s := range p.Steps {
		origins = append(origins, s.Origin)
	}
	if want := []int32{1, 2, 5}; !slices.Equal(slices.Sorted(slices.Values(origins)), want) {
		t.Errorf("steps come from nodes %v, want %v\n%s", origins, want, p)
	}
}

// TestKernelsAreShared compiles equal layers to one set of kernels.
func TestKernelsAreShared(t *testing.T) {
	p := compileHost(t, decoder(70), compile.Shape{}, compile.Options{})
	if len(p.Steps) != 40 || len(p.Kernels) > 5 {
		t.Errorf("%d steps with %d kernels, want 40 with at most 5", len(p.Steps), len(p.Kernels))
	}
}

// TestElementsThatDoNotCompute: moves of elements on which no op computes give a valid program.
func TestElementsThatDoNotCompute(t *testing.T) {
	p := compileHost(t, testkit.Parse(t, module(`
  func @piece(%x: f8e4m3[N, 4]) -> (f8e4m3[4, N], f8e4m3[N, 8]) {
    %y = transpose(%x, perm=[1, 0]) : f8e4m3[4, N]
    %z = concat(%x, %x, axis=1) : f8e4m3[N, 8]
    return %y, %z
  }`)), compile.Shape{}, compile.Options{})
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
}

// TestTermsThatCannotBeCounted: an integer GEMM is lowered to a larger tensor, which the
// language may not allow. That is an error in the model, and no internal error.
func TestTermsThatCannotBeCounted(t *testing.T) {
	m := testkit.Parse(t, `pwc 1
module "m" {
  sym N in [1, 1099511627776] batch
  func @f(%x: i8[N, 4096], %w: i8[4096, 4096]) -> (i8[N, 4096]) {
    %y = neg(%x)
    %z = matmul(%y, %w)
    return %z
  }
}
`)
	_, err := compile.Compile(context.Background(), m, compile.Shape{}, hostbackend.New(), compile.Options{})
	var at *ir.Error
	if !errors.As(err, &at) || at.Pos.Line != 6 || !strings.Contains(at.Msg, "matmul: the sums have 16777216*N terms") {
		t.Errorf("got %v", err)
	}
	compileHost(t, m, shapeOf("N", 1, 1<<20), compile.Options{})
}
