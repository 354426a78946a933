package runner

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pwc/attention"
	"pwc/frontend/hf"
	"pwc/ir/dtype"
	"pwc/piecewise"
	"pwc/runtime/device"
)

// llama8B is the published shape of Llama-3.1-8B.
const llama8B = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "rms_norm_eps": 1e-05,
"rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": false}`

// BenchmarkServeOnGPU is a steady decode step of the 8B shape in bf16 with
// made-up weights, at contexts around 512: in the runner, by kind of sampling, and
// of the same backend without it, which is @forward and @logits of as many rows
// issued as far ahead. Contexts are the same for both.
func BenchmarkServeOnGPU(b *testing.B) {
	const length, tokens = 4096, 512
	m, err := hf.Builtin().Import([]byte(llama8B), hf.Options{DType: dtype.BF16, BlockSize: 16})
	if err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	r := onGPU(b, m, hf.Dummy(m.Params), nil, Options{MaxSequences: 256, MaxTokens: 2048, MaxLength: length,
		Backend: piecewise.Options{Mode: piecewise.FullAndPiecewise, CaptureSizes: []int64{1, 8, 32, 128, 256}}})
	plan := r.Plan()
	b.Logf("ready in %v\n%s", time.Since(start), plan.String())
	for _, n := range []int{1, 8, 32, 128, 256} {
		serve(b, r, n, tokens, length)
	}
}

// llamaThin has nothing but the vocabulary of Llama-3.1-8B.
const llamaThin = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 128,
"num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 128256, "rms_norm_eps": 1e-05,
"rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": true}`

// BenchmarkSampleOnGPU is BenchmarkServeOnGPU for a model that costs next to
// nothing: what is left is what the runner does at every step.
func BenchmarkSampleOnGPU(b *testing.B) {
	const length, tokens = 4096, 8
	m, err := hf.Builtin().Import([]byte(llamaThin), hf.Options{DType: dtype.BF16, BlockSize: 16})
	if err != nil {
		b.Fatal(err)
	}
	r := onGPU(b, m, hf.Dummy(m.Params), nil, Options{MaxSequences: 256, MaxTokens: 2048, MaxLength: length, Blocks: 4096,
		Backend: piecewise.Options{Mode: piecewise.FullAndPiecewise, CaptureSizes: []int64{1, 8, 32, 128, 256}}})
	for _, n := range []int{1, 8, 32, 128, 256} {
		serve(b, r, n, tokens, length)
	}
}

// serve measures steps of so many requests from a context of so many tokens on,
// by kind of sampling.
func serve(b *testing.B, r *Runner, requests, tokens, length int) {
	ctx, cancel := context.WithCancel(context.Background())
	prompt := make([]int32, tokens)
	for range requests {
		if _, err := r.Submit(ctx, Request{Prompt: prompt, MaxNew: length - tokens}); err != nil {
			b.Fatal(err)
		}
	}
	for len(r.running) < requests || r.running[requests-1].computed < tokens+4 {
		advance(b, r)
	}
	kinds := []struct {
		name   string
		middle int // of the contexts that were measured
		Sampling
	}{{name: "greedy"}, {name: "random", Sampling: Sampling{Temperature: 1}}, {name: "nucleus", Sampling: Sampling{Temperature: 1, TopP: 0.9}}, {name: "limited", Sampling: Sampling{Temperature: 1, TopK: 50, TopP: 0.9}}}
	for k, kind := range kinds {
		for i, q := range r.running {
			q.req.Sampling = kind.Sampling
			q.req.Sampling.Seed = uint64(i)
		}
		first := r.running[0].computed
		b.Run(fmt.Sprintf("rows=%d/%s", requests, kind.name), func(b *testing.B) {
			for range 2 { // a step is under way when the first is counted, as after each
				advance(b, r)
			}
			before := r.count
			b.ReportAllocs()
			for b.Loop() {
				advance(b, r)
			}
			after := r.count
			b.ReportMetric(float64(after.generated-before.generated)/b.Elapsed().Seconds(), "tokens/s")
			b.ReportMetric(float64((after.took-after.waited-before.took+before.waited).Nanoseconds())/float64(b.N), "host-ns/op")
		})
		kinds[k].middle = (first + r.running[0].computed) / 2
	}
	cancel()
	drain(b, r)
	for _, kind := range kinds {
		b.Run(fmt.Sprintf("rows=%d/%s/backend", requests, kind.name), func(b *testing.B) { bare(b, r, requests, kind.middle) })
	}
}

func advance(b *testing.B, r *Runner) {
	if _, err := r.Step(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// bare measures the steps that a runner issues, without it: so many requests
// decode, each at a context of so many tokens.
func bare(b *testing.B, r *Runner, requests, tokens int) {
	ctx := context.Background()
	per := r.blocksFor(tokens)
	batch := attention.NewBatch(requests, requests, per)
	table := make([]int32, per)
	for i := range requests {
		for j := range table {
			table[j] = int32(i*per + j)
		}
		if err := batch.Add(tokens-1, 1, table, int(r.lm.blockSize)); err != nil {
			b.Fatal(err)
		}
	}
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	issue := func() {
		in, err := r.forward.Inputs(int64(requests))
		check(err)
		in.SetUniform(true)
		ids, err := in.Int32s(r.lm.params[0])
		check(err)
		pos, err := in.Int32s(r.lm.params[1])
		check(err)
		for i := range ids {
			ids[i], pos[i] = int32(i), int32(tokens-1)
		}
		hidden, err := r.forward.Run(ctx, in, batch)
		check(err)
		in, err = r.logits.Inputs(int64(requests))
		check(err)
		in.SetUniform(true)
		check(in.SetResult(r.lm.params[2], hidden.At(0)))
		rows, err := in.Int32s(r.lm.params[3])
		check(err)
		for i := range rows {
			rows[i] = int32(i)
		}
		_, err = r.logits.Run(ctx, in, nil)
		check(err)
	}
	check(r.pool.Stream().Synchronize()) // no slot is copied from any more
	// As in the runner, the host is one step ahead.
	var done [2]device.Event
	for i := range done {
		ev, err := r.device.NewEvent()
		check(err)
		defer ev.Close()
		done[i] = ev
	}
	issue()
	check(r.pool.Stream().Record(done[0]))
	n := 1
	b.ReportAllocs()
	for b.Loop() {
		issue()
		check(r.pool.Stream().Record(done[n%2]))
		n++
		check(done[n%2].Synchronize())
	}
	check(r.pool.Stream().Synchronize())
}
