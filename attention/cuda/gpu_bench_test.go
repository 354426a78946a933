package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pwc/attention"
	"pwc/internal/cuda/cudatest"
	"pwc/ir/dtype"
	"pwc/runtime/device"
)

// bench measures calls with heads of one shape. It allocates the memory of caches once.
type bench struct {
	*rig
	memory device.Buffer // caches of all layers
	reader *cudatest.Reader
	start  device.Event
	end    device.Event
}

func newBench(b *testing.B, heads, kvHeads, dim int64) *bench {
	r := newGPURig(b, shape{heads, kvHeads, dim, 1, 16, dtype.BF16, dtype.BF16})
	x := &bench{rig: r, memory: r.buffer(6 << 30)}
	r.check(r.stream.Fill(x.memory, 0))
	x.reader = cudatest.NewReader(b, r.dev, r.stream, cudatest.NVRTC(b).Compiler())
	var err error
	x.start, err = r.dev.NewTimedEvent()
	r.check(err)
	x.end, err = r.dev.NewTimedEvent()
	r.check(err)
	return x
}

// microseconds returns the median time in microseconds of n replays of a graph with the work of enqueue.
func (x *bench) microseconds(n int, enqueue func() error) float64 {
	x.Helper()
	graph := x.record(enqueue)
	defer func() { x.check(graph.Close()) }()
	return x.eager(n, func() error { return x.stream.LaunchGraph(graph) })
}

// eager returns the median time in microseconds of n runs of enqueue.
func (x *bench) eager(n int, enqueue func() error) float64 {
	x.Helper()
	var took []time.Duration
	for i := range n + 3 {
		x.check(errors.Join(x.stream.Record(x.start), enqueue(), x.stream.Record(x.end), x.end.Synchronize()))
		d, err := x.dev.Elapsed(x.start, x.end)
		x.check(err)
		if i >= 3 {
			took = append(took, d)
		}
	}
	slices.Sort(took)
	return float64(took[n/2].Nanoseconds()) / 1e3
}

// requests are n requests with rows new tokens each. Their sequences have context tokens, the new ones included.
type requests struct{ n, rows, context int }

// layers returns one call for each layer of a step. Each call has a cache of its own.
func (x *bench) layers(layers int, of ...requests) []*device.OpCall {
	x.Helper()
	s := x.shape
	x.newOp() // the previous op validates batches against the caches of its calls
	all, n, blocks, stride := 0, 0, 0, 0
	for _, r := range of {
		each := (r.context + 15) / 16
		all, n, blocks, stride = all+r.n, n+r.n*r.rows, blocks+r.n*each, max(stride, each)
	}
	size := int64(blocks) * 2 * 16 * s.kvHeads * s.dim * 2
	rng := rand.New(rand.NewPCG(6, 6))
	step, perm := attention.NewBatch(all, n, stride), rng.Perm(blocks)
	for _, r := range of {
		for range r.n {
			var table []int32
			for range (r.context + 15) / 16 {
				table, perm = append(table, int32(perm[0])), perm[1:]
			}
			x.check(step.Add(r.context-r.rows, r.rows, table, 16))
		}
	}
	x.cache = device.Tensor{Buffer: x.memory.Slice(0, size), DType: dtype.BF16, Shape: []int64{int64(blocks), 2, 16, s.kvHeads, s.dim}}
	c := x.call(int64(n))
	x.set(c, step, x.random(rng, int64(n)))
	calls := make([]*device.OpCall, layers)
	for i := range calls {
		d := *c
		d.Args = slices.Clone(c.Args)
		d.Args[attention.ArgKV].Buffer = x.memory.Slice(size*int64(i), size)
		calls[i] = &d
	}
	x.check(x.op.Launch(calls[0]))
	x.check(x.stream.Synchronize())
	return calls
}

func (x *bench) launch(calls []*device.OpCall, between func() error) func() error {
	return func() error {
		for _, c := range calls {
			if err := errors.Join(between(), x.op.Launch(c)); err != nil {
				return err
			}
		}
		return nil
	}
}

// BenchmarkDecode measures decode steps, with all layers in one graph. us/layer is the time of the graph divided
// by the number of layers, each of which has a KV cache of its own. us/cold is the time of a layer if all of L2 is
// evicted before it, as by the weights of a model. us/next is the time that a layer of the second half adds to that
// of the first half, without the constant cost of a graph. %share and %next compare the bytes of keys and values
// with the bandwidth of a kernel that only reads, which is measured in the same run and in the same two ways; GB/s is
// that of the first way.
func BenchmarkDecode(b *testing.B) {
	for _, dim := range []int64{128, 64} {
		x := newBench(b, 32, 8, dim)
		all, more := x.reader.Bandwidth(x.memory)
		for _, context := range []int{512, 2048, 8192} {
			for _, batch := range []int{1, 8, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 128, 256} {
				bytes := batch * context * 2 * 8 * int(dim) * 2
				if int64(bytes)*2 > x.memory.Size {
					continue
				}
				b.Run(fmt.Sprintf("dim=%d/context=%d/batch=%d", dim, context, batch), func(b *testing.B) {
					x.TB = b
					layers := int(min(32, x.memory.Size/int64(bytes)))
					calls := x.layers(layers, requests{batch, 1, context})
					evict := func() error { return x.reader.Read(x.memory.Slice(0, 128<<20)) }
					alone := func(calls []*device.OpCall) float64 {
						return x.microseconds(9, x.launch(calls, func() error { return nil }))
					}
					bare, half := alone(calls), layers/2
					next := (bare - alone(calls[:layers-half])) / float64(half)
					bare /= float64(layers)
					evictions := x.microseconds(9, func() error {
						for range layers {
							if err := evict(); err != nil {
								return err
							}
						}
						return nil
					})
					cold := (x.microseconds(9, x.launch(calls, evict)) - evictions) / float64(layers)
					b.ReportMetric(bare, "us/layer")
					b.ReportMetric(cold, "us/cold")
					b.ReportMetric(next, "us/next")
					b.ReportMetric(float64(bytes)/bare/1e3/all*100, "%share")
					b.ReportMetric(float64(bytes)/next/1e3/more*100, "%next")
					b.ReportMetric(all, "GB/s")
				})
			}
		}
	}
}

// BenchmarkPrefill measures causal prefills with the heads of Llama-3.1-8B and of Llama-3.2-1B, and chunks of 512 and of
// 128 tokens after longer contexts.
func BenchmarkPrefill(b *testing.B) {
	for _, dim := range []int64{128, 64} {
		x := newBench(b, 32, 8, dim)
		for _, c := range []requests{{1, 2048, 2048}, {4, 512, 512}, {1, 4096, 4096}, {1, 512, 8192}, {4, 128, 4096}} {
			b.Run(fmt.Sprintf("dim=%d/requests=%d/rows=%d/context=%d", dim, c.n, c.rows, c.context), func(b *testing.B) {
				x.TB = b
				calls := x.layers(4, c)
				us := x.eager(9, x.launch(calls, func() error { return nil })) / float64(len(calls))
				pairs := float64(c.n*c.rows) * (float64(c.context-c.rows) + float64(c.rows+1)/2)
				b.ReportMetric(us, "us/layer")
				b.ReportMetric(4*pairs*32*float64(dim)/us/1e6, "TFLOP/s")
			})
		}
	}
}

// BenchmarkMixed measures steps with a chunk of a prompt and 0 to 128 decodes: eagerly, and in a graph, which computes
// all of them with the kernel of decodes.
func BenchmarkMixed(b *testing.B) {
	for _, dim := range []int64{128, 64} {
		x := newBench(b, 32, 8, dim)
		for _, decodes := range []int{0, 8, 32, 128} {
			for _, chunk := range []requests{{1, 256, 256}, {1, 256, 4096}} {
				b.Run(fmt.Sprintf("dim=%d/decodes=%d/rows=%d/context=%d", dim, decodes, chunk.rows, chunk.context), func(b *testing.B) {
					x.TB = b
					calls := x.layers(16, requests{decodes, 1, 512}, chunk)
					all := x.launch(calls, func() error { return nil })
					b.ReportMetric(x.eager(9, all)/float64(len(calls)), "us/layer")
					b.ReportMetric(x.microseconds(9, all)/float64(len(calls)), "us/captured")
				})
			}
		}
	}
}
