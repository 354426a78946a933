package piecewise_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	attnhost "pwc/attention/host"
	"pwc/compile/host"
	"pwc/frontend/hf"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
)

// layers is a module of n splitting ops between pieces of one small kernel, to measure
// the cost of a step without its kernels.
func layers(n int) string {
	var b strings.Builder
	b.WriteString("pwc 1\nmodule \"layers\" {\n  sym N in [1, 64] batch\n  op \"silly::attention\"(tensor, tensor, tensor, mut tensor) split\n")
	b.WriteString("  func @forward(%x: f32[N]) -> (f32[N]) {\n    %h0 = add(%x, 1.0) : f32[N]\n")
	for i := range n {
		fmt.Fprintf(&b, "    %%o%d = empty_like(%%h%d) : f32[N]\n    call \"silly::attention\"(%%h%d, %%h%d, %%h%d, %%o%d)\n    %%h%d = add(%%o%d, 1.0) : f32[N]\n", i, i, i, i, i, i, i+1, i)
	}
	fmt.Fprintf(&b, "    return %%h%d\n  }\n}\n", n)
	return b.String()
}

// BenchmarkReplay is one replayed step of 32 layers with one row: 33 graphs of one
// kernel of one element, and 32 calls that do nothing.
func BenchmarkReplay(b *testing.B) {
	be := start(b, layers(32), piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1}}, Ops: []device.Op{&silent{}}})
	f := be.Func("forward")
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		in, err := f.Inputs(1)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := in.Float32s("x"); err != nil {
			b.Fatal(err)
		}
		if _, err := f.Run(ctx, in, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEager is the same step, bound and launched without graphs.
func BenchmarkEager(b *testing.B) {
	be := start(b, layers(32), piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.None}, Ops: []device.Op{&silent{}}})
	f := be.Func("forward")
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		in, err := f.Inputs(1)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := in.Float32s("x"); err != nil {
			b.Fatal(err)
		}
		if _, err := f.Run(ctx, in, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// llama8B is the published shape of Llama-3.1-8B.
const llama8B = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "rms_norm_eps": 1e-05,
"rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": false}`

// BenchmarkCompileLlama imports, splits and compiles the 8B shape with an empty
// store: 32 layers, 4 distinct pieces.
func BenchmarkCompileLlama(b *testing.B) {
	dev := openHost(b)
	for b.Loop() {
		m, err := hf.Builtin().Import([]byte(llama8B), hf.Options{BlockSize: 16})
		if err != nil {
			b.Fatal(err)
		}
		be, err := piecewise.New(context.Background(), m.Module, piecewise.Options{Device: dev, Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}},
			Ops: []device.Op{attnhost.New(dev)}, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise}, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": 64}, Max: map[string]int64{"N": 512, "M": 512}}})
		if err != nil {
			b.Fatal(err)
		}
		if err := be.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
