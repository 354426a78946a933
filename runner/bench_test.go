package runner

import (
	"context"
	"fmt"
	"testing"

	attnhost "pwc/attention/host"
	"pwc/compile/host"
	"pwc/frontend/hf"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// llama100M is a Llama of 110 million parameters.
const llama100M = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 768, "intermediate_size": 2048,
"num_attention_heads": 12, "num_key_value_heads": 12, "num_hidden_layers": 12, "vocab_size": 32000, "rms_norm_eps": 1e-05,
"rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": true}`

// BenchmarkDecode measures steady decode steps of 1, 8 and 32 requests, for a model of 110M parameters
// with generated weights: tokens/s, and the runner's part of a step.
func BenchmarkDecode(b *testing.B) {
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
		for _, sampling := range []Sampling{{}, {Temperature: 1, TopP: 0.9}} {
			for _, n := range []int{1, 8, 32} {
				kind := "greedy"
				if sampling.Temperature > 0 {
					kind = "sampled"
				}
				b.Run(fmt.Sprintf("%s/%s/%d", dt, kind, n), func(b *testing.B) { decode(b, dt, sampling, n) })
			}
		}
	}
}

func decode(b *testing.B, dt dtype.DType, sampling Sampling, requests int) {
	m, err := hf.Builtin().Import([]byte(llama100M), hf.Options{DType: dt, BlockSize: 16})
	if err != nil {
		b.Fatal(err)
	}
	dev := hostdev.Open(hostdev.Options{})
	defer dev.Close()
	const length = 1024
	r, err := New(context.Background(), m.Module, Options{MaxSequences: requests, MaxTokens: 64, MaxLength: length, Blocks: requests * length / 16,
		Backend: piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Ops: []device.Op{attnhost.New(dev)}, Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise,
			Sizes: []int64{int64(requests), 64}}}})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	if err := r.Load(context.Background(), hf.Dummy(m.Params)); err != nil {
		b.Fatal(err)
	}
	steady(b, r, requests, length, sampling, func() {})
}

// steady measures steps in which requests decode. It calls prepare before each step; "host-µs" does not
// include that call.
func steady(b *testing.B, r *Runner, requests, length int, sampling Sampling, prepare func()) {
	ctx := context.Background()
	step := func() {
		if _, err := r.Step(ctx); err != nil {
			b.Fatal(err)
		}
	}
	start := func() {
		for i := range requests {
			s := sampling
			s.Seed = uint64(i)
			if _, err := r.Submit(ctx, Request{Prompt: []int32{1, 2, 3, 4}, MaxNew: length - 4, Sampling: s}); err != nil {
				b.Fatal(err)
			}
		}
		for range 4 {
			step()
		}
	}
	start()
	from := r.Stats()
	var works figures
	b.ReportAllocs()
	for b.Loop() {
		prepare()
		count := r.count
		step()
		works.add((r.count.took - r.count.waited - count.took + count.waited).Seconds() * 1e6)
		if len(r.running) == 0 { // all requests have reached their length
			b.StopTimer()
			start()
			b.StartTimer()
		}
	}
	b.StopTimer()
	after := r.Stats()
	b.ReportMetric(works.middle(), "host-µs")
	b.ReportMetric(float64(after.Generated-from.Generated)/b.Elapsed().Seconds(), "tokens/s")
	own := (after.Took - after.Backend) - (from.Took - from.Backend)
	b.ReportMetric(float64(own.Nanoseconds())/float64(b.N), "own-ns/op")
}

// BenchmarkStepOverhead measures steady steps of 256 requests. The model is so small that issuing takes
// most of the time. own-ns/op is the runner's part.
func BenchmarkStepOverhead(b *testing.B) {
	m, src := checkpoint(b, "llama")
	const requests, length = 256, 512
	r := loaded(b, m, src, Options{MaxSequences: requests, MaxTokens: requests, MaxLength: length, Blocks: requests * length / blockSize,
		Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{requests}}}})
	steady(b, r, requests, length, Sampling{}, func() {})
}
