package callables_test

import (
	"math/rand/v2"
	"testing"

	"pwc/compile"
	"pwc/compile/cuda"
	"pwc/compile/loop"
	"pwc/graphs"
	"pwc/graphs/callables"
	"pwc/graphs/whole"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/pieces"
	"pwc/runtime/cuda/cublaslt"
)

// notes is the network of PyTorch's notes on CUDA graphs: 640 rows of 4096 features, through 2048
// to 1024, dropout of 0.2 and 0.1, the mean squared error.
const notes = `pwc 1
module "notes" {
  sym N in [1, 4096]
  sym M in [1, 4096]
  weight @w1 : f32[2048, 4096]
  weight @b1 : f32[2048]
  weight @w2 : f32[1024, 2048]
  weight @b2 : f32[1024]
  state @rng : i64[2]
  func @section1(%x: f32[640, 4096]) -> (f32[640, 2048]) {
    %h = linear(%x, @w1, @b1) : f32[640, 2048]
    %y = dropout(%h, @rng, p=0.2) : f32[640, 2048]
    return %y
  }
  func @section2(%x: f32[640, 2048]) -> (f32[640, 1024]) {
    %h = linear(%x, @w2, @b2) : f32[640, 1024]
    %y = dropout(%h, @rng, p=0.1) : f32[640, 1024]
    return %y
  }
  func @loss(%p: f32[640, 1024], %y: f32[640, 1024]) -> (f32[]) {
    %d = sub(%p, %y) : f32[640, 1024]
    %s = mul(%d, %d) : f32[640, 1024]
    %l = mean(%s, axes=[0, 1]) : f32[]
    return %l
  }
  func @sgd2(%w: mut f32[N, M], %g: f32[N, M]) -> () {
    %d = mul(%g, 0.1) : f32[N, M]
    %n = sub(%w, %d) : f32[N, M]
    copy(%w, %n)
    return
  }
  func @sgd1(%w: mut f32[N], %g: f32[N]) -> () {
    %d = mul(%g, 0.1) : f32[N]
    %n = sub(%w, %d) : f32[N]
    copy(%w, %n)
    return
  }
}
`

// BenchmarkNotesOnGPU measures a step of the notes' network: three callables, and the optimizer
// outside of the graphs. bench/callables.py measures PyTorch's make_graphed_callables on the same
// network.
func BenchmarkNotesOnGPU(b *testing.B) {
	for _, p := range []loop.Precision{loop.F32, loop.TF32} {
		b.Run(p.String(), func(b *testing.B) { stepNotes(b, p) })
	}
}

// stepNotes measures steps whose GEMMs compute in a precision.
func stepNotes(b *testing.B, precision loop.Precision) {
	dev := cudatest.Open(b, fake.Options{})
	if dev.Emulated {
		b.Skip("needs a real GPU")
	}
	_, err := cublaslt.Open(dev.Device, cublaslt.Options{})
	testkit.Check(b, err)
	backend, err := cuda.New(dev.Info().Target, dev.Compiler(b))
	testkit.Check(b, err)
	e := open(b, rig{dev: dev.Device, compiler: pieces.Pipeline{Backend: backend, Options: compile.Options{MatMul: precision}}, store: pieces.NewMemoryStore(), stays: true}, notes)
	defer e.close()
	r := rand.New(rand.NewPCG(1, 1))
	tensor := func(name string, scale float64, shape ...int64) graphs.Tensor {
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		return e.tensor(name, draw(r, int(n), scale), shape...)
	}
	weights := map[string]graphs.Tensor{"w1": tensor("w1", 0.01, 2048, 4096), "b1": tensor("b1", 0.01, 2048), "w2": tensor("w2", 0.01, 1024, 2048), "b2": tensor("b2", 0.01, 1024)}
	sgd := map[int]*whole.Function{1: e.compile("sgd1"), 2: e.compile("sgd2")}
	x, h, p, y, one := tensor("x", 1, 640, 4096), tensor("h", 1, 640, 2048), tensor("p", 1, 640, 1024), tensor("y", 1, 640, 1024), e.tensor("one", []float32{1})
	operands := whole.Operands{Tensors: weights, Generators: map[string]*graphs.Generator{"rng": e.s.NewGenerator(1)}}
	var fns []callables.Function
	for _, f := range []struct {
		name    string
		wrt     []string
		samples []graphs.Tensor
	}{
		{"section1", []string{"@w1", "@b1"}, []graphs.Tensor{x}},
		{"section2", []string{"%x", "@w2", "@b2"}, []graphs.Tensor{h}},
		{"loss", []string{"%p"}, []graphs.Tensor{p, y}},
	} {
		c := e.callable(f.name, whole.CallableOptions{WRT: f.wrt})
		fns = append(fns, testkit.Must[callables.Function](b)(c.Function(f.name, f.samples, operands)))
	}
	set := testkit.Must[*callables.Set](b)(callables.New(ctx, e.s, fns, callables.Options{}))
	e.end = append(e.end, set.Close)
	st := e.s.DefaultStream()
	// PyTorch uses the samples as static inputs, so both benchmarks keep the batch there.
	batch, target := set.At(0).Inputs()[0], set.At(2).Inputs()[1]
	step := func() {
		first := testkit.Must[*callables.Call](b)(set.At(0).Forward(st, args([]graphs.Tensor{batch})...))
		second := testkit.Must[*callables.Call](b)(set.At(1).Forward(st, args(first.Outputs(), 0)...))
		loss := testkit.Must[*callables.Call](b)(set.At(2).Forward(st, args([]graphs.Tensor{second.Outputs()[0], target}, 0)...))
		g := testkit.Must[[]graphs.Tensor](b)(loss.Backward(st, one))
		g2 := testkit.Must[[]graphs.Tensor](b)(second.Backward(st, g[0]))
		g1 := testkit.Must[[]graphs.Tensor](b)(first.Backward(st, g2[0]))
		run := e.s.Eager(st)
		for name, g := range map[string]graphs.Tensor{"w1": g1[0], "b1": g1[1], "w2": g2[1], "b2": g2[2]} {
			testkit.Must[[]graphs.Tensor](b)(sgd[len(g.Shape())].Run(run, []graphs.Tensor{weights[name], g}))
		}
	}
	for range 20 {
		step()
	}
	testkit.Check(b, st.Synchronize())
	for b.Loop() {
		for range 50 {
			step()
		}
		testkit.Check(b, st.Synchronize())
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/50e6, "ms/step")
}
