package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	attncuda "pwc/attention/cuda"
	"pwc/compile/cuda"
	"pwc/frontend/hf"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/cuda/cublaslt"
	"pwc/runtime/device"
	"pwc/safetensors"
)

// onGPU makes and loads a runner on the GPU of this machine. Without a driver it skips the test, or fails
// it if PWC_REQUIRE_GPU=1.
func onGPU(t testing.TB, m *hf.Model, src safetensors.Source, store pieces.Store, o Options) *Runner {
	t.Helper()
	return on(t, cudatest.GPU(t), m, src, store, o)
}

// on makes and loads a runner on a device.
func on(t testing.TB, dev *cudatest.Opened, m *hf.Model, src safetensors.Source, store pieces.Store, o Options) *Runner {
	t.Helper()
	if !dev.Emulated {
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
	lm, err := inspect(m.Module)
	if err != nil {
		t.Fatal(err)
	}
	op, err := attncuda.New(dev.Device, attncuda.Options{MaxRows: o.MaxTokens, MaxRequests: o.MaxSequences, MaxBlocks: (o.MaxLength + int(lm.blockSize) - 1) / int(lm.blockSize), Code: attncuda.Compiled(compiler, target)})
	if err != nil {
		t.Fatal(err)
	}
	o.Backend.Device, o.Backend.Compile.Compiler, o.Backend.Ops, o.Backend.Compile.Store = dev.Device, pieces.Pipeline{Backend: backend}, []device.Op{op}, store
	r, err := New(context.Background(), m.Module, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.Close(), op.Close(), dev.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := r.Load(context.Background(), src); err != nil {
		t.Fatal(err)
	}
	return r
}

// Greedy tokens on a GPU are those of transformers, with at most four requests in a step, with canaries
// around buffers, and with NaN in memory that is not written yet.
func TestTransformersGreedyOnGPU(t *testing.T) {
	dirs, err := os.ReadDir(checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	store := pieces.NewMemoryStore()
	for _, d := range dirs {
		if !d.IsDir() {
			continue
		}
		modes := []piecewise.Mode{piecewise.FullAndPiecewise}
		if d.Name() == "llama" {
			modes = append(modes, piecewise.None, piecewise.Piecewise, piecewise.Full, piecewise.FullDecodeOnly)
		}
		for _, mode := range modes {
			t.Run(fmt.Sprintf("%s/%s", d.Name(), mode), func(t *testing.T) {
				dev, most := cudatest.Open(t, fake.Options{}), 24
				if dev.Emulated {
					if most = 8; d.Name() != "llama" && d.Name() != "mixtral" || mode != piecewise.FullAndPiecewise {
						t.Skip("too much for an emulated GPU")
					}
				}
				m, src := checkpoint(t, d.Name())
				want := expected(t, d.Name())
				r := on(t, dev, m, src, store, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{1, 2, 4, 16}}, Debug: piecewise.DebugOptions{Canary: piecewise.CanaryBytes, Poison: true}}, MaxSequences: 4, MaxTokens: 16, Blocks: 40, MaxLength: min(64, int(m.MaxPositions))})
				var seqs []*Sequence
				for i := range 6 {
					seqs = append(seqs, submit(t, r, Request{Prompt: want[:9], MaxNew: most - i}))
				}
				drain(t, r)
				for i, s := range seqs {
					if !slices.Equal(s.IDs(), want[:9+most-i]) {
						t.Errorf("request %d decoded %v (%v), want %v", i, s.IDs(), s.Err(), want[:9+most-i])
					}
				}
			})
		}
	}
}

// A GPU uses the same random numbers as the host. In f32 nearly all answers are equal to the host's, and
// a repeated request gets the same answer.
func TestSampleOnGPU(t *testing.T) {
	list := mixture(1, 32, 20)
	m, src := checkpoint(t, "llama")
	o := Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{1, 8, 16, 32, 96}}}, MaxSequences: 32, MaxTokens: 96, Blocks: 32 * 12, MaxLength: 48}
	r := onGPU(t, m, src, nil, o)
	run := func() (out [][]int32) {
		var seqs []*Sequence
		for _, q := range list {
			seqs = append(seqs, submit(t, r, q))
		}
		drain(t, r)
		for _, s := range seqs {
			if s.Err() != nil {
				t.Fatal(s.Err())
			}
			out = append(out, s.IDs())
		}
		return out
	}
	first, second := run(), run()
	want := alone(t, llama(t, o), list)
	same := 0
	for i := range list {
		if !slices.Equal(first[i], second[i]) {
			t.Errorf("request %d: %v, then %v", i, first[i], second[i])
		}
		if slices.Equal(first[i], want[i]) {
			same++
		}
	}
	if same < 28 {
		t.Errorf("%d of 32 requests get the host's tokens", same)
	}
	t.Logf("%d of 32 requests get the host's tokens", same)
}

// gpuMaker returns a maker whose runners share a store of compiled programs.
func gpuMaker() maker {
	store := pieces.NewMemoryStore()
	return func(t testing.TB, m *hf.Model, src safetensors.Source, o Options) *Runner {
		return onGPU(t, m, src, store, o)
	}
}

func TestTransformersLogitsOnGPU(t *testing.T)     { teacherForced(t, gpuMaker(), dtype.F32) }
func TestTransformersLogitsBF16OnGPU(t *testing.T) { teacherForced(t, gpuMaker(), dtype.BF16) }

func TestMarginsOnGPU(t *testing.T) { margins(t, gpuMaker()) }

// On a GPU, 64 requests together get exactly the tokens that each gets without others, greedy or not,
// with preemptions.
func TestTogetherAsAloneOnGPU(t *testing.T) {
	m, src := checkpoint(t, "llama")
	r := onGPU(t, m, src, nil, Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{1, 8, 64, 96}}}, MaxSequences: 64, MaxTokens: 96, Blocks: 60, MaxLength: 48})
	got, want := together(t, r, mixture(1, 64, 20))
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("request %d: %v, alone %v", i, got[i], want[i])
		}
	}
	if s := r.Stats(); s.Preempted == 0 || s.UsedBlocks != 0 {
		t.Errorf("%+v", s)
	}
}

func TestSoakOnGPU(t *testing.T) { soak(t, gpuMaker()) }

// A steady step on a GPU allocates nothing.
func TestStepAllocatesNothingOnGPU(t *testing.T) { allocatesNothing(t, gpuMaker()) }

// TestSampleOnDevice on a GPU, for vocabularies that one block or several blocks reduce.
func TestSampleFunctionsOnGPU(t *testing.T) {
	for _, vocabulary := range []int{600, 40000} {
		sampleFunctions(t, cudatest.GPU(t), piecewise.CanaryOff, 24, vocabulary, 3)
	}
}

// TestSampleFunctionsOnGPU with little work, for compute-sanitizer and for an emulated GPU. One block
// reduces a row of the first vocabulary, and a cluster a row of the second, whose columns do not
// divide evenly among the threads.
func TestSampleFunctionsWatchedOnGPU(t *testing.T) {
	for _, vocabulary := range []int{600, 16404} {
		sampleFunctions(t, cudatest.Open(t, fake.Options{}), piecewise.CanaryExact, 2, vocabulary, 1)
	}
}

func sampleFunctions(t *testing.T, dev *cudatest.Opened, guard piecewise.Canary, rows, vocabulary, rounds int) {
	t.Helper()
	backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
	if err != nil {
		t.Fatal(err)
	}
	sampleOnDevice(t, dev.Device, pieces.Pipeline{Backend: backend}, guard, rows, vocabulary, rounds)
}
