package tree_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pwc/compile/cuda"
	"pwc/graphs/tree"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/pieces"
	"pwc/runtime/device"
)

// gpuRig returns the machine's GPU, or an emulated one, for all managers of a test.
func gpuRig(t testing.TB) (g rig, emulated bool) {
	t.Helper()
	dev := cudatest.Open(t, fake.Options{})
	backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
	testkit.Check(t, err)
	return rig{dev: dev.Device, compiler: pieces.Pipeline{Backend: backend}, store: pieces.NewMemoryStore(), stays: true}, dev.Emulated
}

// TestRandomOnGPU is TestRandom on a GPU, with fewer programs.
func TestRandomOnGPU(t *testing.T) {
	g, emulated := gpuRig(t)
	programs, rounds := 50, 60
	if emulated || testing.Short() {
		programs = 10
	}
	calls := 0
	for seed := range programs {
		calls += randomProgram(t, g, rand.New(rand.NewPCG(uint64(seed), 7)), rounds)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d calls", calls)
}

// TestEveryCallFailsOnGPU is TestEveryCallFails on a GPU.
func TestEveryCallFailsOnGPU(t *testing.T) {
	g, _ := gpuRig(t)
	everyCallFails(t, func() rig { return g })
}

// TestFastPathDoesNotAllocateOnGPU: a step that replays foo and fee, without and with static inputs,
// allocates nothing in Go.
func TestFastPathDoesNotAllocateOnGPU(t *testing.T) {
	g, emulated := gpuRig(t)
	if emulated {
		t.Skip("an emulated GPU allocates when it executes")
	}
	for _, statics := range []int{0, 400} {
		e := openOn(t, g, tree.Options{})
		step, done := e.pair(statics)
		if n := testing.AllocsPerRun(100, step); n != 0 {
			t.Errorf("%d static inputs: %v allocations in a step of two replays", statics, n)
		}
		done()
		e.close()
	}
}

// BenchmarkPairGPU is BenchmarkPair on a GPU. It reports the host's time for a step (ns/step), the time
// for the same copy and replays of the same two graphs without a tree (driver-ns/step), and the
// difference (tree-ns/step).
func BenchmarkPairGPU(b *testing.B) {
	for _, statics := range []int{0, 400} {
		b.Run(fmt.Sprintf("statics=%d", statics), func(b *testing.B) {
			g, _ := gpuRig(b)
			e := openOn(b, g, tree.Options{})
			defer e.close()
			step, done := e.pair(statics)
			bare, wait, free := e.bare()
			// The device's queue accepts a batch of this size without blocking.
			const steps = 64
			var trees, driver time.Duration
			batches := 0
			timed := func(sum *time.Duration, f func()) {
				start := time.Now()
				for range steps {
					f()
				}
				*sum += time.Since(start)
				testkit.Check(b, errors.Join(e.s.DefaultStream().Synchronize(), wait()))
			}
			timed(new(time.Duration), bare)
			for b.Loop() {
				timed(&trees, step)
				timed(&driver, bare)
				batches++
			}
			each := float64(batches * steps)
			b.ReportMetric(0, "ns/op") // an operation is a batch of both
			b.ReportMetric(float64(trees.Nanoseconds())/each, "ns/step")
			b.ReportMetric(float64(driver.Nanoseconds())/each, "driver-ns/step")
			b.ReportMetric(float64((trees-driver).Nanoseconds())/each, "tree-ns/step")
			free()
			done()
		})
	}
}

// bare returns a step of the pair without a tree: a copy, and replays of graphs of foo and fee. wait
// waits for their stream.
func (e *env) bare() (step func(), wait func() error, free func()) {
	e.t.Helper()
	st := testkit.Must[device.Stream](e.t)(e.dev.NewStream())
	var frees []func() error
	alloc := func() device.Buffer {
		m := testkit.Must[device.Memory](e.t)(e.dev.Alloc(512))
		frees = append(frees, m.Free)
		return device.Buffer{Memory: m, Size: 16}
	}
	graph := func(name string, in device.Buffer, results int) device.Graph {
		x := testkit.Must[device.Executable](e.t)(e.dev.Load(e.fn(name).Compiled(), nil))
		args := device.Args{Params: []device.Buffer{in}}
		for range results {
			args.Results = append(args.Results, alloc())
		}
		l := testkit.Must[device.BoundLaunch](e.t)(x.Bind(nil, args))
		testkit.Check(e.t, st.BeginCapture(device.CaptureThreadLocal))
		testkit.Check(e.t, st.Launch(l))
		gr := testkit.Must[device.Graph](e.t)(st.EndCapture())
		frees = append(frees, gr.Close, x.Close)
		return gr
	}
	from, to := alloc(), alloc()
	testkit.Check(e.t, errors.Join(st.Fill(from, 0), st.Fill(to, 0), st.Synchronize()))
	foo, fee := graph("foo", to, 2), graph("fee", to, 1)
	step = func() {
		if err := errors.Join(st.Copy(to, from), st.LaunchGraph(foo), st.LaunchGraph(fee)); err != nil {
			e.t.Fatal(err)
		}
	}
	return step, st.Synchronize, func() {
		testkit.Check(e.t, st.Synchronize())
		for _, f := range frees {
			testkit.Check(e.t, f())
		}
		testkit.Check(e.t, st.Close())
	}
}
