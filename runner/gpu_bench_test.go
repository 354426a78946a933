package runner

import (
	"context"
	"fmt"
	"slices"
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

// BenchmarkServeOnGPU measures steady decode steps of the 8B shape in bf16 with generated weights, at
// contexts from 512 tokens on, for each sampler variant without min-p:
//
//	step-µs   a step of the runner
//	alone-µs  @forward and @logits of the same requests on the same backend, without the runner
//	added-%   the difference, relative to alone-µs
//	host-µs   the time that the host works in a step of the runner
//
// An operation is some steps with the runner and some without, alternating, so that both see the same
// clocks. Each number is the median of all operations, except host-µs: the median of steps of the runner
// before the operations. Other processes can slow the host down for a while, so the steps for host-µs
// are measured in groups: fastest-host-µs and slowest-host-µs are the medians of the fastest and the
// slowest group.
func BenchmarkServeOnGPU(b *testing.B) {
	const length, tokens = 4096, 512
	m, err := hf.Builtin().Import([]byte(llama8B), hf.Options{DType: dtype.BF16, BlockSize: 16})
	if err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	r := onGPU(b, m, hf.Dummy(m.Params), nil, Options{MaxSequences: 256, MaxTokens: 2048, MaxLength: length,
		Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{1, 8, 32, 128, 256}}}})
	plan := r.Plan()
	b.Logf("ready in %v\n%s", time.Since(start), plan.String())
	for _, n := range []int{1, 8, 32, 128, 256} {
		serve(b, r, n, tokens, length)
	}
}

// llamaThin has the vocabulary of Llama-3.1-8B and one small layer.
const llamaThin = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 128,
"num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1, "vocab_size": 128256, "rms_norm_eps": 1e-05,
"rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": true}`

// BenchmarkSampleOnGPU is BenchmarkServeOnGPU for a model whose layers take almost no time. The logits
// and the runner's part of a step remain.
func BenchmarkSampleOnGPU(b *testing.B) {
	const length, tokens = 4096, 8
	m, err := hf.Builtin().Import([]byte(llamaThin), hf.Options{DType: dtype.BF16, BlockSize: 16})
	if err != nil {
		b.Fatal(err)
	}
	r := onGPU(b, m, hf.Dummy(m.Params), nil, Options{MaxSequences: 256, MaxTokens: 2048, MaxLength: length, Blocks: 16384,
		Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{1, 8, 32, 128, 256}}}})
	for _, n := range []int{1, 8, 32, 128, 256} {
		serve(b, r, n, tokens, length)
	}
}

// serve measures decode steps of requests whose prompts have the given number of tokens, for each
// sampler variant without min-p.
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
	other := newBare(b, r)
	for _, kind := range []struct {
		name string
		Sampling
	}{{name: "greedy"}, {"random", Sampling{Temperature: 1}}, {"nucleus", Sampling{Temperature: 1, TopP: 0.9}}, {"top-k", Sampling{Temperature: 1, TopK: 50, TopP: 0.9}}} {
		for i, q := range r.running {
			kind.Seed = uint64(i)
			q.sample(kind.Sampling)
		}
		r.changes++
		b.Run(fmt.Sprintf("rows=%d/%s", requests, kind.name), func(b *testing.B) {
			const warm, counted, stretches, stretch = 2, 8, 12, 8
			var step, alone, added figures
			var host figures
			var stretched []float64
			for range warm {
				advance(b, r)
			}
			for range stretches {
				var works figures
				for range stretch {
					before := r.count
					advance(b, r)
					works.add((r.count.took - r.count.waited - before.took + before.waited).Seconds() * 1e6)
				}
				for _, v := range works.list[:works.n] {
					host.add(v)
				}
				stretched = append(stretched, works.middle())
			}
			b.ReportAllocs()
			for b.Loop() {
				for range warm {
					advance(b, r)
				}
				start := time.Now()
				for range counted { // a step is in flight before and after each call
					advance(b, r)
				}
				inRunner := time.Since(start)
				step.add(inRunner.Seconds() * 1e6 / counted)
				check(b, r.pool.Stream().Synchronize())
				other.take(b)
				for range warm {
					other.advance(b)
				}
				start = time.Now()
				for range counted {
					other.advance(b)
				}
				outside := time.Since(start)
				alone.add(outside.Seconds() * 1e6 / counted)
				added.add(100 * (inRunner.Seconds()/outside.Seconds() - 1))
				check(b, r.pool.Stream().Synchronize())
				r.rows, r.changes = 0, r.changes+1 // other overwrote the ids that the runner chose last
			}
			if len(r.running) != requests {
				b.Fatalf("%d requests are left of %d", len(r.running), requests)
			}
			b.ReportMetric(step.middle(), "step-µs")
			b.ReportMetric(alone.middle(), "alone-µs")
			b.ReportMetric(host.middle(), "host-µs")
			b.ReportMetric(slices.Min(stretched), "fastest-host-µs")
			b.ReportMetric(slices.Max(stretched), "slowest-host-µs")
			b.ReportMetric(added.middle(), "added-%")
			b.ReportMetric(float64(requests)*1e6/step.middle(), "tokens/s")
			b.ReportMetric(0, "ns/op")
		})
	}
	advance(b, r) // so that the last step that the runner reads is its own
	cancel()
	drain(b, r)
}

// figures keeps the last 1024 measured values.
type figures struct {
	list [1024]float64
	n    int
}

func (t *figures) add(v float64) {
	t.list[t.n%len(t.list)] = v
	t.n++
}

// middle returns the median.
func (t *figures) middle() float64 {
	list := t.list[:min(t.n, len(t.list))]
	slices.Sort(list)
	return list[len(list)/2]
}

func advance(b *testing.B, r *Runner) {
	_, err := r.Step(context.Background())
	check(b, err)
}

func check(b *testing.B, err error) {
	if err != nil {
		b.Fatal(err)
	}
}

// bare issues @forward and @logits as a runner does, without the runner.
type bare struct {
	r     *Runner
	batch *attention.Batch
	ids   []int32
	pos   []int32
	rows  []int32
	done  [2]device.Event
	next  int
}

func newBare(b *testing.B, r *Runner) *bare {
	n := r.opts.MaxSequences
	a := &bare{r: r, batch: attention.NewBatch(n, n, r.blocksFor(r.plan.MaxLength))}
	for i := range a.done {
		ev, err := r.device.NewEvent()
		check(b, err)
		b.Cleanup(func() { ev.Close() })
		a.done[i] = ev
	}
	return a
}

// take copies the requests of the runner's last step, which advance then issues.
func (a *bare) take(b *testing.B) {
	a.batch.Reset()
	a.ids, a.pos, a.rows = a.ids[:0], a.pos[:0], a.rows[:0]
	a.batch.Stride = 0
	for _, q := range a.r.running {
		a.batch.Stride = max(a.batch.Stride, a.r.blocksFor(q.computed))
	}
	for i, q := range a.r.running {
		check(b, a.batch.Add(q.computed-1, 1, q.blocks, int(a.r.lm.blockSize)))
		// The tokens are the runner's, because a GPU takes less power for equal rows.
		a.ids, a.pos = append(a.ids, q.ids[len(q.ids)-1]), append(a.pos, int32(q.computed-1))
		a.rows = append(a.rows, int32(i))
	}
	for _, ev := range a.done {
		check(b, a.r.pool.Stream().Record(ev))
	}
}

// advance issues a step and waits for the previous one.
func (a *bare) advance(b *testing.B) {
	r, ctx := a.r, context.Background()
	in, err := r.forward.Inputs(int64(len(a.ids)))
	check(b, err)
	in.SetUniform(true)
	ids, err := in.Int32s(r.lm.params[0])
	check(b, err)
	pos, err := in.Int32s(r.lm.params[1])
	check(b, err)
	copy(ids, a.ids)
	copy(pos, a.pos)
	hidden, err := r.forward.Run(ctx, in, a.batch)
	check(b, err)
	in, err = r.logits.Inputs(int64(len(a.ids)))
	check(b, err)
	in.SetUniform(true)
	check(b, in.SetResult(r.lm.params[2], hidden.At(0)))
	rows, err := in.Int32s(r.lm.params[3])
	check(b, err)
	copy(rows, a.rows)
	_, err = r.logits.Run(ctx, in, nil)
	check(b, err)
	check(b, r.pool.Stream().Record(a.done[a.next]))
	a.next = 1 - a.next
	check(b, a.done[a.next].Synchronize())
}
