package piecewise_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	attncuda "pwc/attention/cuda"
	"pwc/compile/cuda"
	"pwc/frontend/hf"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	gpu "pwc/runtime/cuda"
	"pwc/runtime/cuda/cublaslt"
	"pwc/runtime/device"
	sillycuda "pwc/silly/cuda"
)

// onGPU returns options for the GPU of this machine. Without a GPU the test is skipped, or fails with
// PWC_REQUIRE_GPU=1.
func onGPU(t testing.TB) piecewise.Options {
	t.Helper()
	return new(compiled).on(t, cudatest.GPU(t), small)
}

// compiled keeps compiled programs for tests that open a GPU many times.
type compiled struct {
	own       bool // without cuBLASLt
	store     pieces.Store
	mu        sync.Mutex // ranks compile at the same time
	attention map[attncuda.Variant]*program.Program
}

// on returns options for a device, with an attention op for steps within limits.
func (c *compiled) on(t testing.TB, dev *cudatest.Opened, limits attncuda.Options) piecewise.Options {
	t.Helper()
	if c.store == nil {
		c.store, c.attention = pieces.NewMemoryStore(), map[attncuda.Variant]*program.Program{}
	}
	if !c.own && !dev.Emulated {
		if _, err := cublaslt.Open(dev.Device, cublaslt.Options{}); err != nil && os.Getenv("PWC_REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
	}
	target := dev.Info().Target
	compiler := dev.Compiler(t)
	backend, err := cuda.New(target, compiler)
	if err != nil {
		t.Fatal(err)
	}
	code := attncuda.Compiled(compiler, target)
	limits.Code = func(ctx context.Context, v attncuda.Variant) (*program.Program, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.attention[v] == nil {
			image, err := code(ctx, v)
			if err != nil {
				return nil, err
			}
			c.attention[v] = image
		}
		return c.attention[v], nil
	}
	op, err := attncuda.New(dev.Device, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(op.Close(), dev.Close()); err != nil && !errors.Is(err, device.ErrDeviceLost) {
			t.Errorf("close of the GPU: %v", err)
		}
	})
	return piecewise.Options{Device: dev.Device, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: backend}, Store: c.store}, Ops: []device.Op{op}}
}

// small has the sizes for the checkpoints in testdata.
var small = attncuda.Options{MaxRows: 64, MaxBlocks: kvBlocks}

var guards = map[string]piecewise.Canary{"shared": piecewise.CanaryOff, "canaries": piecewise.CanaryBytes, "exact": piecewise.CanaryExact}

// TestTransformersLogitsOnGPU compares the logits of three checkpoints with those of transformers,
// in f32 and bf16: in modes none, piecewise, full and full-and-piecewise with CanaryOff, and in
// none and full-and-piecewise with the other modes of Canary. On an emulated GPU it tests only llama, in piecewise and
// full. Poison is on, except with CanaryExact, where a tool may look for reads of memory that was never
// written.
func TestTransformersLogitsOnGPU(t *testing.T) {
	var c compiled
	for _, name := range []string{"llama", "qwen2", "qwen3"} {
		for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
			g := openGoldenIn(t, name, dt)
			for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full, piecewise.FullAndPiecewise} {
				for kind, guard := range guards {
					if guard != piecewise.CanaryOff && mode != piecewise.None && mode != piecewise.FullAndPiecewise {
						continue // the last has the graphs of the others
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%s", name, dt, mode, kind), func(t *testing.T) {
						dev := cudatest.Open(t, fake.Options{})
						if dev.Emulated && (name != "llama" || guard != piecewise.CanaryOff || mode != piecewise.Piecewise && mode != piecewise.Full) {
							t.Skip("too much for an emulated GPU")
						}
						o := c.on(t, dev, small)
						o.Capture.Mode, o.Capture.Sizes, o.Debug.Canary, o.Debug.Poison = mode, []int64{1, 2, 4, 8, 16, 24}, guard, guard != piecewise.CanaryExact
						b := g.backend(t, o)
						g.holdLogits(t, b)
						if err := b.CheckCanaries(); err != nil {
							t.Error(err)
						}
					})
				}
			}
		}
	}
}

// TestWatchedOnGPU is for a slow tool that checks every access: three runs of a small model, at exact
// and padded sizes, in modes none and full-and-piecewise, without and with cuBLASLt.
func TestWatchedOnGPU(t *testing.T) {
	for kernels, c := range map[string]*compiled{"own": {own: true}, "library": {}} {
		for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
			watched(t, kernels, c, dt)
		}
	}
}

func watched(t *testing.T, kernels string, c *compiled, dt dtype.DType) {
	t.Helper()
	g := openGoldenIn(t, "qwen3", dt)
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.FullAndPiecewise} {
		t.Run(fmt.Sprintf("%s/%s/%s", kernels, dt, mode), func(t *testing.T) {
			o := c.on(t, cudatest.GPU(t), small)
			o.Capture.Mode, o.Capture.Sizes, o.Debug.Canary = mode, []int64{1, 4, 24}, piecewise.CanaryExact
			b := g.backend(t, o)
			for _, n := range []int{23, 3, 1} {
				if e := relative(g.forward(t, b, 0, n), g.logits[:n*g.vocab]); !(e <= g.bound) {
					t.Errorf("first %d rows: relative error %.3g, want at most %.3g", n, e, g.bound)
				}
			}
		})
	}
}

// At least 10,000 runs on a GPU for each dtype (3,000 with -short), in random order of sizes and
// of inputs, issued back to back, with Poison. In each of the modes piecewise, full and
// full-and-piecewise, the same size and inputs give the same bits, in two backends with pools of
// their own too: sums depend neither on scheduling nor on addresses.
func TestRandomOrderOfSizesOnGPU(t *testing.T) {
	const most, rows = 90, 96 // so many that some GEMMs in bf16 are the library's
	runs, variants := 10000, 5
	if testing.Short() {
		runs = 500
	}
	var c compiled
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
		g := openGoldenWith(t, "llama", hf.Options{DType: dt, BlockSize: blockSize, Context: rows})
		g.table = []int32{5, 2, 7, 0, 3, 6}
		tokens := make([][]int32, variants)
		rng := rand.New(rand.NewSource(1))
		for i := range tokens {
			for range most {
				tokens[i] = append(tokens[i], int32(rng.Intn(g.vocab)))
			}
		}
		type key struct {
			mode       piecewise.Mode
			n, variant int
		}
		want := map[key][]byte{}
		for _, mode := range []piecewise.Mode{piecewise.Piecewise, piecewise.Full, piecewise.FullAndPiecewise} {
			for pool := range 2 {
				t.Run(fmt.Sprintf("%s/%s/%d", dt, mode, pool), func(t *testing.T) {
					o := c.on(t, cudatest.GPU(t), attncuda.Options{MaxRows: rows, MaxBlocks: kvBlocks})
					o.Capture.Mode, o.Capture.Sizes, o.Memory.StagingSlots, o.Debug.Poison = mode, []int64{1, 2, 4, 8, 16, 24, 48, 64, rows}, 8, true
					o.Memory.Max = map[string]int64{"N": rows, "M": rows}
					b := g.backend(t, o)
					const batch = 500 // runs whose results are in host memory together
					row := 4 * g.vocab
					host, err := o.Device.AllocHost(int64(batch * most * row))
					if err != nil {
						t.Fatal(err)
					}
					defer host.Free()
					for done := 0; done < runs/6; done += batch {
						var keys []key
						at := 0
						var last piecewise.Results
						for range batch {
							k := key{mode, 1 + rng.Intn(most), rng.Intn(variants)}
							last = g.issue(t, b, tokens[k.variant], 0, k.n)
							if err := last.At(0).StartCopy(host.Bytes()[at:][:k.n*row]); err != nil {
								t.Fatal(err)
							}
							at += k.n * row
							keys = append(keys, k)
						}
						if err := last.Wait(); err != nil {
							t.Fatal(err)
						}
						at = 0
						for i, k := range keys {
							got := host.Bytes()[at:][:k.n*row]
							at += len(got)
							if want[k] == nil {
								want[k] = bytes.Clone(got)
							} else if !bytes.Equal(got, want[k]) {
								t.Fatalf("run %d: %d rows gave other bits than before", done+i, k.n)
							}
							if math.IsNaN(float64(f32(got, 0))) {
								t.Fatalf("run %d: not a number", done+i)
							}
						}
					}
					if s := b.Stats(); dt == dtype.BF16 && s.LibraryCalls == 0 && s.LibraryMissing == 0 {
						t.Error("no GEMM was the library's")
					}
				})
			}
		}
	}
}

// A model is captured and replayed while other goroutines make, load, run and close
// backends of their own on the same GPU.
func TestCaptureDuringOtherRunsOnGPU(t *testing.T) {
	g := openGolden(t, "llama")
	o := onGPU(t)
	other := piecewise.Options{Device: o.Device, Compile: piecewise.CompileOptions{Compiler: o.Compile.Compiler, Store: o.Compile.Store}, Capture: piecewise.CaptureOptions{Mode: piecewise.None}}
	ctx := context.Background()
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer func() {
		close(done)
		wg.Wait()
	}()
	for range 3 {
		wg.Go(func() {
			for runs := 0; ; runs++ {
				select {
				case <-done:
					if runs == 0 {
						t.Error("no other backend ran during the captures")
					}
					return
				default:
				}
				b, err := piecewise.New(ctx, testkit.Parse(t, plain), other)
				if err != nil {
					t.Error(err)
					return
				}
				if err := b.Load(ctx, nil, nil); err != nil {
					t.Error(err)
				} else if r, err := issue(t, b.Func("forward"), []float32{1, 2, 3}, nil); err != nil {
					t.Error(err)
				} else {
					wantF32(t, read(t, r.At(0)), []float32{2, 3, 4})
				}
				if err := b.Close(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	pool, err := piecewise.NewPool(o.Device, 0) // an attention op serves one stream
	if err != nil {
		t.Fatal(err)
	}
	o.Pool, o.Capture.Mode, o.Capture.Sizes = pool, piecewise.FullAndPiecewise, []int64{1, 2, 4, 8, 16, 24}
	for range 5 {
		b := g.backend(t, o)
		g.holdLogits(t, b)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

// TestSuiteOnGPU runs the tests of suite_test.go on a GPU or an emulated one, in each mode of Canary;
// planned bytes only with CanaryOff.
func TestSuiteOnGPU(t *testing.T) {
	var c compiled
	for kind, guard := range guards {
		open := func(t testing.TB) piecewise.Options {
			t.Helper()
			dev := cudatest.Open(t, fake.Options{})
			o, compiler := c.on(t, dev, small), dev.Compiler(t)
			op := sillycuda.New(dev.Device, func(ctx context.Context) (*program.Program, error) {
				target := dev.Info().Target
				cubin, ptx, err := compiler.Compile(ctx, sillycuda.Source(), "silly.cu", strings.TrimPrefix(target, "cuda:"))
				if err != nil {
					return nil, err
				}
				k, err := program.CUDAKernel("silly", cubin, ptx)
				return program.Alone(target, k), err
			})
			t.Cleanup(func() {
				if err := op.Close(); err != nil {
					t.Error(err)
				}
			})
			o.Ops, o.Debug.Canary, o.Debug.Poison = []device.Op{op}, guard, guard == piecewise.CanaryBytes
			return o
		}
		for name, hold := range map[string]func(*testing.T, maker){
			"demonstration": demonstration, "stale result": staleResult, "moved state": movedState, "skips": skips,
			"mixing rows": mixingRows, "indices forbid padding": indicesForbidPadding, "poisoned arena": poisonedArena, "indices out of range": indicesOutOfRange, "fault snapshots": faultSnapshots,
		} {
			t.Run(kind+"/"+name, func(t *testing.T) { hold(t, open) })
		}
		if guard == piecewise.CanaryOff {
			t.Run(kind+"/planned bytes", func(t *testing.T) { plannedBytes(t, open) })
		}
	}
}

// wildOp is "test::count", but writes to an address that is not allocated.
type wildOp struct {
	count
	call *gpu.KernelCall
}

func (o *wildOp) Launch(c *device.OpCall) error { return c.Stream.(*gpu.Stream).LaunchKernel(o.call) }

// C13 on a GPU, in a process of its own: a kernel that faults ends the backend
// with an error that says to restart, later calls fail at once, and Close returns.
func TestLostOnGPU(t *testing.T) {
	const child = "PWC_TEST_LOSE_GPU"
	if os.Getenv(child) != "1" {
		onGPU(t)
		cmd := exec.Command(os.Args[0], "-test.run=^TestLostOnGPU$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestLostOnGPU")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	o := onGPU(t)
	image, err := os.ReadFile("../runtime/cuda/testdata/kernels.ptx")
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := program.CUDAKernel("wild", nil, image)
	if err != nil {
		t.Fatal(err)
	}
	m, err := o.Device.(*gpu.Device).LoadModule(program.Alone(gpu.Target(8, 0), kernel))
	if err != nil {
		t.Fatal(err)
	}
	f, err := m.Function("wild")
	if err != nil {
		t.Fatal(err)
	}
	op := &wildOp{}
	if op.call, err = f.NewCall(2, gpu.LaunchOptions{}); err != nil {
		t.Fatal(err)
	}
	op.call.Grid, op.call.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
	op.call.SetArg(0, 1<<46) // not a reserved address
	op.call.SetArg(1, 1)
	ctx := context.Background()
	b, err := piecewise.New(ctx, testkit.Parse(t, counting), piecewise.Options{Device: o.Device, Compile: piecewise.CompileOptions{Compiler: o.Compile.Compiler}, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}, Ops: []device.Op{op}, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": 4}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Load(ctx, nil, nil), b.Capture(ctx)); err != nil {
		t.Fatal(err)
	}
	r, err := issue(t, b.Func("forward"), []float32{1, 2}, nil)
	if err == nil {
		err = r.Wait()
	}
	if !errors.Is(err, device.ErrDeviceLost) || !strings.Contains(err.Error(), "process must restart") {
		t.Errorf("a run whose kernel faults: %v, want ErrDeviceLost that says to restart", err)
	}
	in, err := b.Func("forward").Inputs(1)
	if err == nil {
		_, err = b.Func("forward").Run(ctx, in, nil)
	}
	if !errors.Is(err, device.ErrDeviceLost) {
		t.Errorf("the next run: %v, want ErrDeviceLost", err)
	}
	if err := b.Seal(); !errors.Is(err, device.ErrDeviceLost) {
		t.Errorf("seal: %v, want ErrDeviceLost", err)
	}
	_ = b.Close() // it returns, perhaps with errors of memory that it could not free
}

// A KV cache of more than 4 GiB gets its memory after the capture. Graphs give the same logits for
// blocks at its start and beyond 4 GiB.
func TestFarBlocksOnGPU(t *testing.T) {
	for _, mode := range []piecewise.Mode{piecewise.Piecewise, piecewise.Full} {
		g := openGoldenWith(t, "llama", hf.Options{DType: dtype.F32, BlockSize: 32, Context: 64})
		o := onGPU(t)
		o.Capture.Mode, o.Capture.Sizes = mode, []int64{1, 8, 24}
		state := g.model.Module.States[0].Type
		perBlock, err := state.Elements().Eval(func(string) (int64, bool) { return 1, true })
		if err != nil {
			t.Fatal(err)
		}
		blocks := 5<<30/state.DType.Bytes(perBlock) + 1
		o.Memory.Symbols = map[string]int64{"B": blocks}
		b := g.backend(t, o)
		s, err := b.State(g.model.Module.States[0].Name)
		if err != nil {
			t.Fatal(err)
		}
		if st, ok := s.Memory.(device.State); !ok || s.Size < 5<<30 || st.Mapped() != st.Size() {
			t.Fatalf("%T of %d bytes is not a mapped state of more than 4 GiB", s.Memory, s.Size)
		}
		near := g.forward(t, b, 0, len(g.ids))
		g.table = []int32{int32(blocks - 1), 0, 1, 2} // the tokens fit the first block
		far := g.forward(t, b, 0, len(g.ids))
		if !slices.Equal(near, far) {
			t.Errorf("mode %s: other logits from far blocks", mode)
		}
		g.holdLogits(t, b)
	}
}

// C5 on a GPU: Load and Capture decrease the driver's free memory by the planned bytes, and by at
// most 64 MiB more.
func TestPlannedBytesOnGPU(t *testing.T) {
	o := onGPU(t)
	dev := o.Device.(*gpu.Device)
	g := openGolden(t, "llama")
	o.Capture.Mode, o.Memory.Symbols = piecewise.Piecewise, map[string]int64{"B": 1 << 20}
	o.Memory.Max = map[string]int64{"N": 64, "M": 64}
	ctx := context.Background()
	b, err := piecewise.New(ctx, g.model.Module, o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	free := func() int64 {
		n, err := dev.FreeBytes()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := free()
	if err := b.Load(ctx, g.source, nil); err != nil {
		t.Fatal(err)
	}
	loaded := free()
	if err := b.Capture(ctx); err != nil {
		t.Fatal(err)
	}
	captured := free()
	p := b.Plan()
	const slack = 64 << 20 // modules, graphs and the segments of a pool
	if took := before - loaded; took > p.Total()-p.StateBytes+slack {
		t.Errorf("Load took %d bytes, %d are planned without states", took, p.Total()-p.StateBytes)
	}
	if took := before - captured; took < p.Total() || took > p.Total()+slack {
		t.Errorf("Load and Capture took %d bytes, %d are planned", took, p.Total())
	}
}
