package cuda_test

import (
	"fmt"
	"slices"
	"testing"

	"pwc/internal/cuda/cudatest"
	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/program"
	"pwc/runtime/device"
)

// products8B are the GEMMs of Llama-3.1-8B with their epilogues, except for the RoPE after qkv, and the
// two GEMMs of the MLP together.
var products8B = []struct{ name, text string }{
	{"gate-up", `
  weight @w : bf16[28672, 4096]
  func @piece(%x: bf16[N, 4096]) -> (bf16[N, 14336]) {
    %y = linear(%x, @w) : bf16[N, 28672]
    %gate, %up = split(%y, axis=1, sizes=[14336, 14336]) : bf16[N, 14336], bf16[N, 14336]
    %open = silu(%gate) : bf16[N, 14336]
    %h = mul(%open, %up) : bf16[N, 14336]
    return %h
  }`},
	{"down", `
  weight @w : bf16[4096, 14336]
  func @piece(%x: bf16[N, 14336], %r: bf16[N, 4096]) -> (bf16[N, 4096]) {
    %d = linear(%x, @w) : bf16[N, 4096]
    %s = add(%r, %d) : bf16[N, 4096]
    return %s
  }`},
	{"gate-up,down", `
  weight @w : bf16[28672, 4096]
  weight @down : bf16[4096, 14336]
  func @piece(%x: bf16[N, 4096], %r: bf16[N, 4096]) -> (bf16[N, 4096]) {
    %y = linear(%x, @w) : bf16[N, 28672]
    %gate, %up = split(%y, axis=1, sizes=[14336, 14336]) : bf16[N, 14336], bf16[N, 14336]
    %open = silu(%gate) : bf16[N, 14336]
    %h = mul(%open, %up) : bf16[N, 14336]
    %d = linear(%h, @down) : bf16[N, 4096]
    %s = add(%r, %d) : bf16[N, 4096]
    return %s
  }`},
	{"qkv", `
  weight @w : bf16[6144, 4096]
  func @piece(%x: bf16[N, 4096]) -> (bf16[N, 6144]) {
    %y = linear(%x, @w) : bf16[N, 6144]
    return %y
  }`},
	{"o", `
  weight @w : bf16[4096, 4096]
  func @piece(%x: bf16[N, 4096], %r: bf16[N, 4096]) -> (bf16[N, 4096]) {
    %d = linear(%x, @w) : bf16[N, 4096]
    %s = add(%r, %d) : bf16[N, 4096]
    return %s
  }`},
	{"logits", `
  weight @w : bf16[128256, 4096]
  func @piece(%x: bf16[N, 4096]) -> (f32[N, 128256]) {
    %y = linear(%x, @w) : bf16[N, 128256]
    %z = cast(%y, dtype=f32) : f32[N, 128256]
    return %z
  }`},
}

// BenchmarkGEMMsOnGPU measures GEMMs of the Llama-3.1-8B shape, and a layer without its attention. A
// graph has many launches, each with other weights, which are in no cache. us is the time of the graph
// divided by the number of launches. us/next is the time that a launch of the second half adds,
// without the constant cost of a graph. % and %next compare the bytes of weights with the bandwidth of
// a kernel that only reads.
func BenchmarkGEMMsOnGPU(b *testing.B) {
	g := openGPU(b)
	g.useLibrary(b)
	a := g.arena(b, 12<<30)
	read, more := cudatest.NewReader(b, g.dev, g.stream, cudatest.NVRTC(b).Compiler()).Bandwidth(device.Buffer{Memory: a.mem, Size: a.mem.Size()})
	b.Run("read", func(b *testing.B) {
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(read, "GB/s")
	})
	modules := make(map[string]*ir.Module)
	var names []string
	for _, c := range products8B {
		m, err := ir.Parse(c.name, []byte("pwc 1\nmodule \"product\" {\n  sym N in [1, 8192] batch"+c.text+"\n}\n"))
		if err != nil {
			b.Fatal(err)
		}
		modules[c.name], names = m, append(names, c.name)
	}
	modules["layer"], names = pieces(b, shape8B)[1], append(names, "layer")
	for _, name := range names {
		p := g.compile(b, modules[name])
		bytes := int64(0)
		for _, x := range p.Params {
			if x.Kind != program.ParamWeight {
				continue
			}
			shape, err := oracle.Extents(x.Shape, nil)
			if err != nil {
				b.Fatal(err)
			}
			bytes += bytesOf(x.DType, shape)
		}
		for _, rows := range []int64{1, 2, 4, 8, 16, 32, 64, 96} {
			b.Run(fmt.Sprintf("%s/rows=%d", name, rows), func(b *testing.B) {
				const count = 31
				symbols := make(map[string]int64)
				for _, s := range p.Symbols {
					symbols[s] = rows
				}
				shape, err := oracle.Extents(p.Results[0].Shape, symbols)
				if err != nil {
					b.Fatal(err)
				}
				if bytesOf(p.Results[0].DType, shape) > hotBytes {
					b.Skip("the result does not fit into the memory that stays in the cache")
				}
				exe, launches, err := g.bindAll(b, p, symbols, a, count)
				if err != nil {
					b.Fatal(err)
				}
				defer exe.Close()
				const half = count / 2
				var took, next []float64
				for b.Loop() {
					all, err := g.measure(launches)
					if err != nil {
						b.Fatal(err)
					}
					first, err := g.measure(launches[:count-half])
					if err != nil {
						b.Fatal(err)
					}
					took = append(took, float64(all.Nanoseconds())/count)
					next = append(next, float64((all-first).Nanoseconds())/half)
				}
				slices.Sort(took)
				slices.Sort(next)
				ns := took[len(took)/2]
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(ns/1e3, "us")
				b.ReportMetric(next[len(next)/2]/1e3, "us/next")
				b.ReportMetric(100*float64(bytes)/ns/read, "%")
				b.ReportMetric(100*float64(bytes)/next[len(next)/2]/more, "%next")
				b.ReportMetric(float64(bytes)/ns, "GB/s")
			})
		}
	}
}
