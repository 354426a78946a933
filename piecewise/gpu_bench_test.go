package piecewise_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pwc/attention"
	attncuda "pwc/attention/cuda"
	"pwc/compile/cuda"
	"pwc/frontend/hf"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/piecewise"
	gpu "pwc/runtime/cuda"
	"pwc/runtime/cuda/cublaslt"
	"pwc/runtime/cuda/nvrtc"
	"pwc/runtime/device"
)

// llama1B is the published shape of Llama-3.2-1B, its frequencies not scaled.
const llama1B = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 16, "vocab_size": 128256, "rms_norm_eps": 1e-05,
"rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": true}`

// llamaToy has 32 tiny layers, to measure the cost of a step without its computation.
const llamaToy = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 32, "vocab_size": 1024, "rms_norm_eps": 1e-05,
"rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": false}`

// BenchmarkDecodeOnGPU is one decode step (@forward and @logits of all rows, KV
// write included) in bf16 with generated weights, at a context of 512: steps are
// issued back to back and waited for together. issue-ns/op is the time that the
// goroutine spends in Run.
func BenchmarkDecodeOnGPU(b *testing.B) {
	for _, m := range []struct{ name, config string }{{"8B", llama8B}, {"1B", llama1B}, {"toy", llamaToy}} {
		b.Run(m.name, func(b *testing.B) { benchmarkDecode(b, m.config) })
	}
}

func benchmarkDecode(b *testing.B, config string) {
	const context512, most = 512, 256
	blocks := context512/blockSize + 1
	dev, err := gpu.Open(gpu.Options{})
	if err != nil {
		b.Skip(err)
	}
	defer func() {
		if err := dev.Close(); err != nil {
			b.Error(err)
		}
	}()
	lib, err := nvrtc.Open(nvrtc.Options{})
	if err != nil {
		b.Fatal(err)
	}
	products, err := cublaslt.Open(dev, cublaslt.Options{})
	if err != nil {
		b.Logf("without cuBLASLt for GEMMs of many rows: %v", err)
	} else {
		defer func() { b.Logf("cuBLASLt %d: %+v", products.Version(), products.Stats()) }()
	}
	target, compiler := dev.Info().Target, lib.Compiler("--std=c++17")
	backend, err := cuda.New(target, compiler)
	if err != nil {
		b.Fatal(err)
	}
	op, err := attncuda.New(dev, attncuda.Options{MaxRows: most, MaxBlocks: blocks, Code: attncuda.Compiled(compiler, target)})
	if err != nil {
		b.Fatal(err)
	}
	m, err := hf.Builtin().Import([]byte(config), hf.Options{DType: dtype.BF16, BlockSize: blockSize})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	sizes := []int64{1, 8, 32, 128, 256}
	start := time.Now()
	be, err := piecewise.New(ctx, m.Module, piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: backend}}, Ops: []device.Op{op},
		Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: sizes}, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": int64(most * blocks)}, Max: map[string]int64{"N": most, "M": most}}})
	if err != nil {
		b.Fatal(err)
	}
	compiled := time.Since(start)
	defer func() {
		if err := errors.Join(be.Close(), op.Close()); err != nil {
			b.Error(err)
		}
	}()
	if err := be.Load(ctx, hf.Dummy(m.Params), nil); err != nil {
		b.Fatal(err)
	}
	start = time.Now()
	if err := be.Capture(ctx); err != nil {
		b.Fatal(err)
	}
	b.Logf("compiled in %v, captured %d graphs in %v", compiled, be.Stats().GraphsCaptured, time.Since(start))
	fwd, logits := be.Func("forward"), be.Func("logits")
	for _, n := range sizes {
		for _, whole := range []bool{false, true} {
			b.Run(fmt.Sprintf("rows=%d/full=%v", n, whole), func(b *testing.B) {
				batch := attention.NewBatch(int(n), int(n), blocks)
				table := make([]int32, blocks)
				for r := range int(n) {
					for i := range table {
						table[i] = int32(r*blocks + i)
					}
					if err := batch.Add(context512-1, 1, table, blockSize); err != nil {
						b.Fatal(err)
					}
				}
				var last piecewise.Results
				var issue time.Duration
				step := func() {
					for {
						in, err := fwd.Inputs(n)
						if errors.Is(err, piecewise.ErrSlotBusy) {
							continue // the GPU is two steps behind
						}
						if err != nil {
							b.Fatal(err)
						}
						in.SetUniform(whole)
						ids, _ := in.Int32s("ids")
						pos, _ := in.Int32s("pos")
						for i := range ids {
							ids[i], pos[i] = int32(i), context512-1
						}
						begin := time.Now()
						h, err := fwd.Run(ctx, in, batch)
						issue += time.Since(begin)
						if err != nil {
							b.Fatal(err)
						}
						lin, err := logits.Inputs(n)
						for errors.Is(err, piecewise.ErrSlotBusy) {
							lin, err = logits.Inputs(n)
						}
						if err != nil {
							b.Fatal(err)
						}
						if err := lin.SetResult("h", h.At(0)); err != nil {
							b.Fatal(err)
						}
						lin.SetUniform(whole)
						rows, _ := lin.Int32s("rows")
						for i := range rows {
							rows[i] = int32(i)
						}
						begin = time.Now()
						last, err = logits.Run(ctx, lin, nil)
						issue += time.Since(begin)
						if err != nil {
							b.Fatal(err)
						}
						return
					}
				}
				step()
				if err := last.Wait(); err != nil {
					b.Fatal(err)
				}
				issue = 0
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N { // b.Loop would stop the clock before the last steps end
					step()
				}
				if err := last.Wait(); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(issue.Nanoseconds())/float64(b.N), "issue-ns/op")
			})
		}
	}
}
