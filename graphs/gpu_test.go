package graphs_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"pwc/compile/cuda"
	"pwc/graphs"
	"pwc/graphs/whole"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/runtime/cuda/cublaslt"
	"pwc/runtime/device"
)

// gpuRig returns the machine's GPU, or an emulated one, for all sessions of a test.
func gpuRig(t testing.TB) (rig, *cudatest.Opened) {
	t.Helper()
	dev := cudatest.Open(t, fake.Options{})
	backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
	testkit.Check(t, err)
	return rig{dev: dev.Device, compiler: pieces.Pipeline{Backend: backend}, store: pieces.NewMemoryStore(), stays: true}, dev
}

// TestOnGPU runs tests of the host on the machine's GPU, or an emulated one.
func TestOnGPU(t *testing.T) {
	g, dev := gpuRig(t)
	open := func(t testing.TB, n int) *env { return openOn(t, g, n) }
	for _, c := range []struct {
		name string
		test func(*testing.T, opener)
		real bool // needs a real GPU: slow on an emulated one, or checks something that it lacks
	}{
		{"captureSimple", captureSimple, false},
		{"failedCapture", failedCapture, false},
		{"captureOOM", captureOOM, false},
		{"twoSuccessive", twoSuccessive, false},
		{"threeSuccessive", threeSuccessive, false},
		{"statsAndResultsAfterDestroy", statsAndResultsAfterDestroy, true},
		{"keepTemplate", keepTemplate, false},
		{"update", update, false},
		{"forkJoin", forkJoin, false},
		{"forkKeepsMemory", forkKeepsMemory, false},
		{"streams", streams, false},
		{"generator", generator, false},
		{"twoGenerators", twoGenerators, false},
		{"drawn", drawn, false},
		{"errorModes", errorModes, false},
		{"forkedAllocation", forkedAllocation, false},
		{"assigningOwners", assigningOwners, true},
		{"replayDoesNotAllocate", replayDoesNotAllocate, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.real && dev.Emulated {
				t.Skip("needs a real GPU")
			}
			c.test(t, open)
		})
	}
}

// TestWatchedOnGPU runs a few tests of the host on a real GPU. `.ci/gpu watched` runs it under
// compute-sanitizer, which checks every memory access.
func TestWatchedOnGPU(t *testing.T) {
	g, dev := gpuRig(t)
	if dev.Emulated {
		t.Skip("needs a real GPU: an emulated one checks every memory access in TestOnGPU")
	}
	open := func(t testing.TB, n int) *env { return openOn(t, g, n) }
	for name, test := range map[string]func(*testing.T, opener){
		"captureSimple": captureSimple, "threeSuccessive": threeSuccessive, "keepTemplate": keepTemplate, "update": update,
		"forkJoin": forkJoin, "streams": streams, "generator": generator,
	} {
		t.Run(name, func(t *testing.T) { test(t, open) })
	}
}

// TestBranchesOverlapOnGPU forks two branches of long kernels on few elements. Events inside
// the graphs measure them on the device: two branches take less than 1.5 times as long as
// one, so they run at the same time. No edge is between their kernels.
func TestBranchesOverlapOnGPU(t *testing.T) {
	g, dev := gpuRig(t)
	if dev.Emulated {
		t.Skip("an emulated GPU does not measure time")
	}
	e := openOn(t, g, 8)
	defer e.close()
	// One block computes for about 10 µs.
	var text strings.Builder
	text.WriteString("pwc 1\nmodule \"long\" {\n  func @long(%x0: f32[8]) -> (f32[8]) {\n")
	const ops = 128
	for i := range ops {
		fmt.Fprintf(&text, "    %%x%d = tanh(%%x%d) : f32[8]\n", i+1, i)
	}
	fmt.Fprintf(&text, "    return %%x%d\n  }\n}\n", ops)
	long := testkit.Must[*whole.Function](t)(whole.Compile(ctx, e.s, testkit.Must[*ir.Module](t)(ir.Parse("long.ir", []byte(text.String()))), "long", whole.Options{Compiler: e.compiler, Store: e.store}))
	defer func() { testkit.Check(t, long.Close()) }()
	side := testkit.Must[*graphs.Stream](t)(e.s.NewStream("side"))
	start, end := testkit.Must[device.Event](t)(dev.NewTimedEvent()), testkit.Must[device.Event](t)(dev.NewTimedEvent())
	x := e.tensor("x", 1)
	chain := func(r *graphs.Recorder) graphs.Tensor {
		y := testkit.Must[graphs.Tensor](t)(r.Clone("y", x))
		for range 20 {
			out := testkit.Must[[]graphs.Tensor](t)(long.Run(r, []graphs.Tensor{y}))
			drop(t, y)
			y = out[0]
		}
		return y
	}
	measure := func(branches int) (best time.Duration, dot string) {
		var a, b graphs.Tensor
		gr := e.capture(graphs.Options{Name: "g"}, func(r *graphs.Recorder) {
			testkit.Check(t, r.Stream().Device().Record(start))
			if branches == 2 {
				f := testkit.Must[*graphs.Recorder](t)(r.Fork(side))
				a = chain(r)
				b = chain(f)
				testkit.Check(t, r.Join(f))
			} else {
				a = chain(r)
			}
			testkit.Check(t, r.Stream().Device().Record(end))
		})
		best = math.MaxInt64
		for range 20 {
			e.replay(gr)
			testkit.Check(t, e.s.DefaultStream().Synchronize())
			best = min(best, testkit.Must[time.Duration](t)(dev.Elapsed(start, end)))
		}
		var text strings.Builder
		testkit.Check(t, gr.WriteDOT(&text))
		nodes := gr.Describe()
		if branches == 2 {
			for i, n := range nodes {
				for _, d := range n.Deps {
					from := nodes[d]
					if n.Stream != from.Stream && n.Kind == device.NodeKernel && from.Kind == device.NodeKernel {
						t.Errorf("node %d of stream %q waits for node %d of stream %q", i, n.Stream, d, from.Stream)
					}
				}
			}
			drop(t, b)
		}
		drop(t, a)
		e.reset(gr)
		return best, text.String()
	}
	one, _ := measure(1)
	two, dot := measure(2)
	t.Logf("one branch takes %v, two take %v", one, two)
	if 2*two >= 3*one {
		t.Errorf("two branches take %v, one takes %v: want less than 1.5 times as long\n%s", two, one, dot)
	}
	drop(t, x)
	testkit.Check(t, errors.Join(start.Close(), end.Close()))
}

// TestCaptureWithConcurrentWorkOnGPU captures and replays while other goroutines constantly allocate, free,
// load programs and run them on their own streams.
func TestCaptureWithConcurrentWorkOnGPU(t *testing.T) {
	g, dev := gpuRig(t)
	captures := 20
	if dev.Emulated {
		captures = 5
	}
	captureWithConcurrentWork(t, openOn(t, g, 8), captures)
}

// TestCaptureWithConcurrentWork is TestCaptureWithConcurrentWorkOnGPU on the host.
func TestCaptureWithConcurrentWork(t *testing.T) { captureWithConcurrentWork(t, open(t, 8), 20) }

// captureWithConcurrentWork closes e.
func captureWithConcurrentWork(t *testing.T, e *env, captures int) {
	t.Helper()
	prog := e.fn("add1").Compiled()
	done := make(chan struct{})
	ran := make(chan struct{}, 3)
	var others sync.WaitGroup
	for i := range 3 {
		st := testkit.Must[*graphs.Stream](t)(e.s.NewStream(fmt.Sprintf("other %d", i)))
		others.Go(func() {
			once := func() error {
				m, err := e.dev.Alloc(3 << 20)
				if err != nil {
					return err
				}
				if err := errors.Join(st.Device().Fill(device.Buffer{Memory: m, Size: 64}, 1), st.Synchronize(), m.Free()); err != nil {
					return err
				}
				p, err := e.s.Load(prog, "add1")
				if err != nil {
					return err
				}
				r := e.s.Eager(st)
				x, err := r.Alloc("x", dtype.F32, 8)
				if err != nil {
					return errors.Join(err, p.Close())
				}
				if err := r.Fill(x, 0); err != nil {
					return errors.Join(err, x.Release(), p.Close())
				}
				out, err := r.Run(p, graphs.TensorArg(x))
				if err != nil {
					return errors.Join(err, x.Release(), p.Close())
				}
				return errors.Join(st.Synchronize(), x.Release(), out[0].Release(), p.Close())
			}
			for n := 0; ; n++ {
				if n == 1 {
					ran <- struct{}{}
				}
				select {
				case <-done:
					return
				default:
				}
				if err := once(); err != nil {
					t.Errorf("while others capture: %v", err)
					ran <- struct{}{}
					return
				}
			}
		})
	}
	<-ran
	x := e.tensor("x", 1)
	for range captures {
		var y graphs.Tensor
		gr := e.capture(graphs.Options{Name: "g", Errors: device.CaptureThreadLocal}, func(r *graphs.Recorder) {
			y = e.run(r, "copy", x)
			for range 10 {
				y = e.next(r, "add1", y)
			}
		})
		e.replay(gr)
		if got := e.sum(y); got != 88 {
			t.Errorf("sum %v, want 88", got)
		}
		drop(t, y)
		e.reset(gr)
	}
	close(done)
	others.Wait()
	drop(t, x)
	e.close()
}

// TestLibraryMemoryOnGPU is test_repeat_graph_capture_cublas_workspace_memory: 100 captures
// of a GEMM that cuBLASLt computes take less than 5 MB of the device's memory.
func TestLibraryMemoryOnGPU(t *testing.T) {
	g, dev := gpuRig(t)
	if dev.Emulated {
		t.Skip("an emulated GPU has no cuBLASLt")
	}
	lib, err := cublaslt.Open(dev.Device, cublaslt.Options{})
	if err != nil {
		if os.Getenv("PWC_REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	e := openOn(t, g, 8)
	defer e.close()
	mod := testkit.Must[*ir.Module](t)(ir.Parse("product.ir", []byte(`pwc 1
module "product" {
  func @product(%x: bf16[512, 1024], %w: bf16[1024, 1024]) -> (bf16[512, 1024]) {
    %y = matmul(%x, %w) : bf16[512, 1024]
    return %y
  }
}
`)))
	product := testkit.Must[*whole.Function](t)(whole.Compile(ctx, e.s, mod, "product", whole.Options{Compiler: e.compiler, Store: e.store}))
	defer func() { testkit.Check(t, product.Close()) }()
	in := []graphs.Tensor{testkit.Must[graphs.Tensor](t)(e.s.Tensor("x", dtype.BF16, 512, 1024)), testkit.Must[graphs.Tensor](t)(e.s.Tensor("w", dtype.BF16, 1024, 1024))}
	r := e.s.Eager(e.s.DefaultStream())
	testkit.Check(t, errors.Join(r.Fill(in[0], 0), r.Fill(in[1], 0)))
	drop(t, testkit.Must[[]graphs.Tensor](t)(product.Run(r, in))...) // run once before the capture
	capture := func() {
		gr := e.capture(graphs.Options{Name: "product"}, func(r *graphs.Recorder) {
			drop(t, testkit.Must[[]graphs.Tensor](t)(product.Run(r, in))...)
		})
		e.replay(gr)
		testkit.Check(t, e.s.DefaultStream().Synchronize())
		e.reset(gr)
		testkit.Must[int64](t)(e.s.EmptyCache())
	}
	capture()
	before := testkit.Must[int64](t)(dev.FreeBytes())
	for range 100 {
		capture()
	}
	after := testkit.Must[int64](t)(dev.FreeBytes())
	t.Logf("100 captures take %d bytes, cuBLASLt planned %+v", before-after, lib.Stats())
	if before-after >= 5_000_000 {
		t.Errorf("100 captures take %d bytes of the device's memory, want less than 5 MB", before-after)
	}
	if s := lib.Stats(); s.Tuned+s.Untuned == 0 {
		t.Errorf("cuBLASLt computed nothing: %+v", s)
	}
	drop(t, in...)
}
