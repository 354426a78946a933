package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	attncuda "pwc/attention/cuda"
	"pwc/build"
	"pwc/compile/cuda"
	"pwc/frontend/hf"
	"pwc/ir/dtype"
	"pwc/piecewise"
	gpu "pwc/runtime/cuda"
	"pwc/runtime/cuda/nvrtc"
	"pwc/runtime/device"
	"pwc/safetensors"
)

// onGPU makes and loads a runner on the GPU of this machine. Without a driver
// the test is skipped, unless PWC_REQUIRE_GPU=1 says that there must be one.
func onGPU(t testing.TB, m *hf.Model, src safetensors.Source, store build.Store, o Options) *Runner {
	t.Helper()
	dev, err := gpu.Open(gpu.Options{})
	if err != nil {
		if os.Getenv("PWC_REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	lib, err := nvrtc.Open(nvrtc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	target := dev.Info().Target
	compiler := lib.Compiler("--std=c++17")
	backend, err := cuda.New(target, compiler)
	if err != nil {
		t.Fatal(err)
	}
	lm, err := inspect(m.Module)
	if err != nil {
		t.Fatal(err)
	}
	op, err := attncuda.New(dev, attncuda.Options{MaxRows: o.MaxTokens, MaxRequests: o.MaxSequences, MaxBlocks: (o.MaxLength + int(lm.blockSize) - 1) / int(lm.blockSize), Code: attncuda.Compiled(compiler, target)})
	if err != nil {
		t.Fatal(err)
	}
	o.Backend.Device, o.Backend.Target, o.Backend.Ops, o.Backend.Store = dev, build.Pipeline{Backend: backend}, []device.Op{op}, store
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

// What transformers decodes greedily, on a GPU, four requests at a time.
func TestTransformersGreedyOnGPU(t *testing.T) {
	dirs, err := os.ReadDir(checkpoints)
	if err != nil {
		t.Fatal(err)
	}
	store := build.NewMemoryStore()
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
				m, src := checkpoint(t, d.Name())
				want := expected(t, d.Name())
				r := onGPU(t, m, src, store, Options{Backend: piecewise.Options{Mode: mode, CaptureSizes: []int64{1, 2, 4, 16}}, MaxSequences: 4, MaxTokens: 16, Blocks: 40, MaxLength: 64})
				var seqs []*Sequence
				for i := range 6 {
					seqs = append(seqs, submit(t, r, Request{Prompt: want[:9], MaxNew: 24 - i}))
				}
				drain(t, r)
				for i, s := range seqs {
					if !slices.Equal(s.IDs(), want[:33-i]) {
						t.Errorf("request %d decoded %v (%v), want %v", i, s.IDs(), s.Err(), want[:33-i])
					}
				}
			})
		}
	}
}

// Sampling on a GPU has the host's random numbers: in f32 nearly all tokens are
// the host's, and the same request twice gets the same.
func TestSampleOnGPU(t *testing.T) {
	list := mixture(1, 32, 20)
	m, src := checkpoint(t, "llama")
	o := Options{Backend: piecewise.Options{Mode: piecewise.FullAndPiecewise, CaptureSizes: []int64{1, 8, 16, 32, 96}}, MaxSequences: 32, MaxTokens: 96, Blocks: 32 * 12, MaxLength: 48}
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

// llama8B is the published shape of Llama-3.1-8B.
const llama8B = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "rms_norm_eps": 1e-05,
"rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": false}`

// BenchmarkServeOnGPU is a steady decode step of the 8B shape in bf16 with
// made-up weights, at contexts from 512 on.
func BenchmarkServeOnGPU(b *testing.B) {
	const length = 4096
	m, err := hf.Builtin().Import([]byte(llama8B), hf.Options{DType: dtype.BF16, BlockSize: 16})
	if err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	r := onGPU(b, m, hf.Dummy(m.Params), nil, Options{MaxSequences: 256, MaxTokens: 2048, MaxLength: length,
		Backend: piecewise.Options{Mode: piecewise.FullAndPiecewise, CaptureSizes: []int64{1, 8, 32, 128, 256}}})
	plan := r.Plan()
	b.Logf("ready in %v\n%s", time.Since(start), plan.String())
	for _, sampling := range []Sampling{{}, {Temperature: 1}, {Temperature: 1, TopP: 0.9}} {
		for _, n := range []int{1, 8, 32, 128, 256} {
			b.Run(fmt.Sprintf("%v/%d", sampling.chooser(), n), func(b *testing.B) { served(b, r, n, length, sampling) })
		}
	}
}

// served measures steps of so many requests, and ends them.
func served(b *testing.B, r *Runner, requests, length int, sampling Sampling) {
	ctx, cancel := context.WithCancel(context.Background())
	prompt := make([]int32, 512)
	for i := range requests {
		s := sampling
		s.Seed = uint64(i)
		if _, err := r.Submit(ctx, Request{Prompt: prompt, MaxNew: length - len(prompt), Sampling: s}); err != nil {
			b.Fatal(err)
		}
	}
	step := func() {
		if _, err := r.Step(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	for len(r.running) < requests || r.running[requests-1].computed < len(prompt) {
		step()
	}
	for range 4 {
		step()
	}
	before := r.count
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		step()
	}
	b.StopTimer()
	after := r.count
	b.ReportMetric(float64(after.generated-before.generated)/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(float64((after.took-after.backend-before.took+before.backend).Nanoseconds())/float64(b.N), "own-ns/op")
	cancel()
	drain(b, r)
}
