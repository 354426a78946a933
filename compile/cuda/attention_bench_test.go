package cuda_test

import (
	"testing"

	"pwc/ir"
)

// trainingAttention is the attention of a decoder with 12 heads of 64, for 8 sequences of 512
// tokens: forward, and backward with the computation of delta.
const trainingAttention = `pwc 1
module "attention" {
  func @forward(%qkv: bf16[8, 512, 2304]) -> (bf16[8, 512, 12, 64], f32[8, 512, 12]) {
    %q0, %k0, %v0 = split(%qkv, axis=2, sizes=[768, 768, 768])
    %q = reshape(%q0, shape=[8, 512, 12, 64])
    %k = reshape(%k0, shape=[8, 512, 12, 64])
    %v = reshape(%v0, shape=[8, 512, 12, 64])
    %o, %lse = attention(%q, %k, %v, scale=0.125, causal=true)
    return %o, %lse
  }
  func @backward(%qkv: bf16[8, 512, 2304], %o: bf16[8, 512, 12, 64], %lse: f32[8, 512, 12], %grad: bf16[8, 512, 12, 64]) -> (bf16[8, 512, 12, 64], bf16[8, 512, 12, 64], bf16[8, 512, 12, 64]) {
    %q0, %k0, %v0 = split(%qkv, axis=2, sizes=[768, 768, 768])
    %q = reshape(%q0, shape=[8, 512, 12, 64])
    %k = reshape(%k0, shape=[8, 512, 12, 64])
    %v = reshape(%v0, shape=[8, 512, 12, 64])
    %a = cast(%o, dtype=f32)
    %b = cast(%grad, dtype=f32)
    %c = mul(%a, %b)
    %delta = sum(%c, axes=[3])
    %dq, %dk, %dv = attention_grad(%q, %k, %v, %grad, %lse, %delta, scale=0.125, causal=true)
    return %dq, %dk, %dv
  }
}
`

// BenchmarkTrainingAttentionOnGPU measures attention for training, with many calls in one graph.
// bench/attention_train.py measures PyTorch's attention at the same shape.
func BenchmarkTrainingAttentionOnGPU(b *testing.B) {
	g := openGPU(b)
	m, err := ir.Parse("attention.ir", []byte(trainingAttention))
	if err != nil {
		b.Fatal(err)
	}
	memory := g.arena(b, 256<<20)
	for _, f := range m.Funcs {
		b.Run(f.Name, func(b *testing.B) {
			one := *m
			one.Funcs = []*ir.Func{f}
			p := g.compile(b, &one)
			const count = 20
			exe, launches, err := g.bindAll(b, p, nil, &arena{mem: memory.mem, hot: &arena{mem: memory.mem}}, count)
			if err != nil {
				b.Fatal(err)
			}
			defer exe.Close()
			took, err := g.measure(launches)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took.Nanoseconds())/1e3/count, "µs")
		})
	}
}
