package cuda_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pwc/attention"
	attn "pwc/attention/cuda"
	"pwc/attention/reference"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// shape has the sizes and dtypes of a test's calls.
type shape struct {
	heads, kvHeads, dim, blocks, block int64
	dtype, kv                          dtype.DType
}

// rig runs the op on the machine's GPU or an emulated one, with a cache that lives across steps.
type rig struct {
	testing.TB
	shape  shape
	attrs  []program.Attr
	dev    *cuda.Device
	slow   bool // emulated
	stream device.Stream
	op     *attn.Op
	code   attn.Code
	cache  device.Tensor
}

const maxRows, maxRequests, maxBlocks = 4096, 512, 512

// compiled has the kernels of earlier tests: compiling a kernel takes longer than testing it.
var compiled = map[compiledFor]*program.Program{}

// compiledFor is the key of a kernel for a GPU, or for an emulated one, whose code has another format.
type compiledFor struct {
	attn.Variant
	emulated bool
}

// newRig opens the GPU, or an emulated one if there is no GPU (see cudatest.Open).
func newRig(t testing.TB, s shape, attrs ...program.Attr) *rig {
	t.Helper()
	return newRigOn(t, cudatest.Open(t, fake.Options{}), s, attrs...)
}

// newGPURig is newRig for tests that take too long on an emulated GPU. Without a GPU it
// skips or fails the test (see cudatest.GPU).
func newGPURig(t testing.TB, s shape, attrs ...program.Attr) *rig {
	t.Helper()
	return newRigOn(t, cudatest.GPU(t), s, attrs...)
}

func newRigOn(t testing.TB, dev *cudatest.Opened, s shape, attrs ...program.Attr) *rig {
	t.Helper()
	r := looseRig(t, dev, s, attrs...)
	t.Cleanup(func() { r.check(errors.Join(r.stream.Synchronize(), r.op.Close())) })
	return r
}

// looseRig is newRigOn for tests after which the device may be lost: it does not close the op at the end.
func looseRig(t testing.TB, dev *cudatest.Opened, s shape, attrs ...program.Attr) *rig {
	t.Helper()
	r := &rig{TB: t, shape: s, attrs: attrs, dev: dev.Device, slow: dev.Emulated}
	var err error
	r.stream, err = dev.NewStream()
	r.check(err)
	target := dev.Info().Target
	compile := attn.Compiled(dev.Compiler(t), target)
	r.code = func(ctx context.Context, v attn.Variant) (*program.Program, error) {
		key := compiledFor{v, dev.Emulated}
		if compiled[key] == nil {
			p, err := compile(ctx, v)
			if err != nil {
				return nil, err
			}
			compiled[key] = p
		}
		return compiled[key], nil
	}
	r.newOp()
	r.cache = r.tensor(s.kv, s.blocks, 2, s.block, s.kvHeads, s.dim)
	return r
}

// newOp replaces the op.
func (r *rig) newOp() {
	r.Helper()
	r.newOpFor(maxRows, maxRequests, maxBlocks)
}

// newOpFor replaces the op by one with the given limits.
func (r *rig) newOpFor(rows, requests, blocks int) {
	r.Helper()
	if r.op != nil {
		r.check(errors.Join(r.stream.Synchronize(), r.op.Close()))
	}
	var err error
	r.op, err = attn.New(r.dev, attn.Options{MaxRows: rows, MaxRequests: requests, MaxBlocks: blocks, Code: r.code})
	r.check(err)
}

func (r *rig) check(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) buffer(n int64) device.Buffer {
	r.Helper()
	if n == 0 {
		return device.Buffer{}
	}
	m, err := r.dev.Alloc(n)
	r.check(err)
	return device.Buffer{Memory: m, Size: n}
}

func (r *rig) tensor(dt dtype.DType, dims ...int64) device.Tensor {
	r.Helper()
	n := int64(1)
	for _, d := range dims {
		n *= d
	}
	b := r.buffer(dt.Bytes(n))
	r.check(r.stream.Fill(b, 0))
	return device.Tensor{Buffer: b, DType: dt, Shape: dims}
}

// call prepares a call for size rows. Operands, except the cache, and scratch are filled with bytes that are NaN in
// every dtype.
func (r *rig) call(size int64) *device.OpCall {
	r.Helper()
	s := r.shape
	args := []device.Tensor{r.tensor(s.dtype, size, s.heads, s.dim), r.tensor(s.dtype, size, s.kvHeads, s.dim),
		r.tensor(s.dtype, size, s.kvHeads, s.dim), r.cache, r.tensor(s.dtype, size, s.heads, s.dim)}
	n, err := r.op.ScratchBytes(args, r.attrs)
	r.check(err)
	c := &device.OpCall{Stream: r.stream, Args: args, Attrs: r.attrs, Scratch: r.buffer(n), Size: size, Rows: size, Loc: "test"}
	r.poison(c)
	return c
}

func (r *rig) poison(c *device.OpCall) {
	for i, a := range c.Args {
		if i != attention.ArgKV {
			r.check(r.stream.Fill(a.Buffer, 0xff))
		}
	}
	r.check(r.stream.Fill(c.Scratch, 0xff))
}

func (r *rig) read(t device.Tensor) []byte {
	r.Helper()
	out := make([]byte, t.Buffer.Size)
	r.check(r.stream.CopyToHost(out, t.Buffer))
	r.check(r.stream.Synchronize())
	return out
}

func (r *rig) set(c *device.OpCall, b *attention.Batch, qkv [3][]byte) {
	r.Helper()
	r.poison(c)
	for i, data := range qkv {
		r.check(r.stream.CopyToDevice(c.Args[i].Buffer.Slice(0, int64(len(data))), data))
	}
	c.Rows, c.Meta = int64(b.Rows()), b
	r.check(r.op.Prepare(r.stream, b, c.Size, c.Rows))
}

// step runs rows of q, k and v, padded to size, and returns all of o.
func (r *rig) step(b *attention.Batch, size int64, qkv [3][]byte) []byte {
	r.Helper()
	c := r.call(size)
	r.set(c, b, qkv)
	r.check(r.op.Launch(c))
	return r.read(c.Args[attention.ArgO])
}

// random returns the bytes of n normally distributed values (mean 0, deviation 1) of a dtype.
func random(rng *rand.Rand, dt dtype.DType, n int64) []byte {
	v := make([]float64, n)
	for i := range v {
		v[i] = rng.NormFloat64()
	}
	t, err := interp.FromFloat64s(dt, []int64{n}, v)
	if err != nil {
		panic(err)
	}
	return t.Bytes()
}

func (r *rig) random(rng *rand.Rand, rows int64) [3][]byte {
	s := r.shape
	return [3][]byte{random(rng, s.dtype, rows*s.heads*s.dim), random(rng, s.dtype, rows*s.kvHeads*s.dim), random(rng, s.dtype, rows*s.kvHeads*s.dim)}
}

// want computes a step with the reference, on the current contents of the cache.
func (r *rig) want(b *attention.Batch, qkv [3][]byte) (o, cache *interp.Tensor) {
	r.Helper()
	s, rows := r.shape, int64(b.Rows())
	tensor := func(dt dtype.DType, data []byte, dims ...int64) *interp.Tensor {
		x, err := interp.FromBytes(dt, dims, data)
		r.check(err)
		return x
	}
	c := &interp.Call{Name: attention.Name, Attrs: irAttrs(r.attrs)}
	out, err := interp.Zeros(s.dtype, []int64{rows, s.heads, s.dim})
	r.check(err)
	cache = tensor(s.kv, r.read(r.cache), r.cache.Shape...)
	c.Args = []*interp.Tensor{tensor(s.dtype, qkv[0], rows, s.heads, s.dim), tensor(s.dtype, qkv[1], rows, s.kvHeads, s.dim), tensor(s.dtype, qkv[2], rows, s.kvHeads, s.dim), cache, out}
	r.check(reference.Extern(func() *attention.Batch { return b })(c))
	return out, cache
}

// hold compares the result and the cache after a step with the reference's.
func (r *rig) hold(what string, got []byte, o, cache *interp.Tensor) {
	r.Helper()
	have, err := interp.FromBytes(r.shape.dtype, o.Shape, got[:len(o.Bytes())])
	r.check(err)
	tolerance := map[dtype.DType]float64{dtype.F32: 2e-5, dtype.F16: 2e-3, dtype.BF16: 2e-2}[r.shape.dtype]
	if d := interp.Compare(have, o); !d.Within(tolerance) {
		r.Fatal(what, ": ", d)
	}
	if len(bytes.Trim(got[len(o.Bytes()):], "\x00")) != 0 {
		r.Fatal(what, ": padded rows are not zero")
	}
	if !bytes.Equal(r.read(r.cache), cache.Bytes()) {
		r.Fatal(what, ": the cache differs")
	}
}

func float(name string, v float64) program.Attr {
	return program.Attr{Name: name, Kind: program.AttrFloat, Float: v}
}

func integer(name string, v int64) program.Attr {
	return program.Attr{Name: name, Kind: program.AttrDim, Dim: dim.Const(v)}
}

var bidirectional = program.Attr{Name: "causal", Kind: program.AttrBool}

// cases are calls for which the kernel has different code: dtypes, sizes of heads and groups, and attributes.
var cases = []struct {
	name  string
	shape shape
	attrs []program.Attr
}{
	{"bf16", shape{8, 2, 64, 96, 16, dtype.BF16, dtype.BF16}, nil},
	{"f16", shape{6, 2, 80, 96, 16, dtype.F16, dtype.F16}, []program.Attr{float("softcap", 3), float("scale", 0.2)}},
	{"bf16 window", shape{4, 4, 128, 96, 16, dtype.BF16, dtype.BF16}, []program.Attr{integer("window", 37)}},
	{"bf16 both sides", shape{9, 1, 16, 96, 8, dtype.BF16, dtype.BF16}, []program.Attr{integer("window", 50), bidirectional}},
	{"f16 negative", shape{4, 2, 128, 96, 16, dtype.F16, dtype.F16}, []program.Attr{float("scale", -0.3)}},
	{"bf16 negative and capped", shape{2, 1, 48, 96, 16, dtype.BF16, dtype.BF16}, []program.Attr{float("scale", -0.3), float("softcap", 2), integer("window", 30)}},
	{"bf16 scale of 0", shape{2, 1, 16, 96, 16, dtype.BF16, dtype.BF16}, []program.Attr{float("scale", 0)}},
	{"bf16 wide group", shape{71, 1, 64, 96, 16, dtype.BF16, dtype.BF16}, nil},
	{"bf16 large heads", shape{2, 1, 256, 96, 16, dtype.BF16, dtype.BF16}, nil},
	{"f32", shape{6, 2, 64, 96, 16, dtype.F32, dtype.F32}, nil},
	{"f32 odd", shape{3, 1, 19, 96, 7, dtype.F32, dtype.F32}, []program.Attr{integer("window", 20), float("softcap", 2)}},
	{"f32 all in the window", shape{2, 1, 8, 96, 3, dtype.F32, dtype.F32}, []program.Attr{integer("window", 1<<31-1), bidirectional}},
	{"f32 over bf16", shape{17, 1, 160, 96, 16, dtype.F32, dtype.BF16}, []program.Attr{bidirectional}},
	{"bf16 over f16", shape{4, 2, 72, 96, 5, dtype.BF16, dtype.F16}, nil},
}

// ragged builds batches of prefills, chunks and decodes in scattered blocks.
type ragged struct {
	rng      *rand.Rand
	requests [][]int32
	done     []int
	block    int
	most     int // the largest number of rows of a request
}

func newRagged(s shape, seed uint64) *ragged {
	g := &ragged{rng: rand.New(rand.NewPCG(2, seed)), block: int(s.block), most: 89}
	g.requests = make([][]int32, 6)
	for i, b := range g.rng.Perm(int(s.blocks)) {
		g.requests[i%6] = append(g.requests[i%6], int32(b))
	}
	g.done = make([]int, 6)
	return g
}

// batch returns the next batch. With decode it has at most one row for each request. Some rows are padding.
func (g *ragged) batch(t testing.TB, decode bool) *attention.Batch {
	b := attention.NewBatch(len(g.requests), 0, len(g.requests[0]))
	for i, blocks := range g.requests {
		n := 1
		if !decode && g.rng.IntN(3) > 0 {
			n = g.rng.IntN(g.most + 1)
		}
		n = min(n, len(blocks)*g.block-g.done[i])
		if n == 0 {
			continue
		}
		if err := b.Add(g.done[i], n, blocks, g.block); err != nil {
			t.Fatal(err)
		}
		g.done[i] += n
	}
	for i := range b.Slots {
		if g.rng.IntN(20) == 0 {
			b.Slots[i] = attention.PaddedSlot
		}
	}
	return b
}

// TestAgainstReference compares consecutive random ragged batches, some of them padded, with the reference.
func TestAgainstReference(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			newRig(t, c.shape, c.attrs...).ragged(1)
		})
	}
}

// ragged compares steps of chunks and decodes, and then steps of decodes, with the reference.
func (r *rig) ragged(seed uint64) {
	r.Helper()
	g, steps := newRagged(r.shape, seed), 6
	if r.slow {
		g.most, steps = 24, 3
	}
	for i := range steps {
		b := g.batch(r, i >= steps*2/3)
		qkv := r.random(g.rng, int64(b.Rows()))
		o, cache := r.want(b, qkv)
		r.hold(fmt.Sprint("step ", i), r.step(b, int64(b.Rows()+i%3), qkv), o, cache)
	}
}

// TestOverlappingLaunches runs a step of chunks and decodes in two layers; the queries of the second are the results of
// the first. Chunks and decodes are two launches that may overlap. Contexts of chunks are split, on a GPU with more
// multiprocessors than the emulated one also those of decodes, and there are padded rows.
func TestOverlappingLaunches(t *testing.T) {
	for _, dim := range []int64{64, 128} {
		r := newRig(t, shape{4, 1, dim, 160, 16, dtype.BF16, dtype.BF16})
		rng := rand.New(rand.NewPCG(3, uint64(dim)))
		b := attention.NewBatch(5, 0, 64)
		perm := rng.Perm(160)
		for _, c := range []struct{ computed, tokens int }{{200, 1}, {640, 9}, {0, 33}, {70, 4}, {300, 1}} {
			var blocks []int32
			for range (c.computed + c.tokens + 15) / 16 {
				blocks, perm = append(blocks, int32(perm[0])), perm[1:]
			}
			r.check(b.Add(c.computed, c.tokens, blocks, 16))
		}
		cache := random(rng, dtype.BF16, r.cache.Buffer.Size/2)
		r.check(r.stream.CopyToDevice(r.cache.Buffer, cache))
		rows := int64(b.Rows())
		qkv := r.random(rng, rows)
		first := r.call(rows + 3)
		second := *first
		second.Args = slices.Clone(first.Args)
		second.Args[attention.ArgQ], second.Args[attention.ArgO] = first.Args[attention.ArgO], r.tensor(dtype.BF16, first.Args[attention.ArgO].Shape...)
		wantFirst, after := r.want(b, qkv)
		r.set(first, b, qkv)
		second.Rows, second.Meta = first.Rows, first.Meta
		r.check(errors.Join(r.op.Launch(first), r.op.Launch(&second)))
		got := r.read(first.Args[attention.ArgO])
		r.hold("the first layer", got, wantFirst, after)
		qkv[0] = got[:len(qkv[0])]
		want, after := r.want(b, qkv)
		r.hold("the second", r.read(second.Args[attention.ArgO]), want, after)
	}
}

// olderCompiler does not support arch-specific code.
type olderCompiler struct{ cudatest.Compiler }

func (olderCompiler) Supports(arch string) bool { return !strings.HasSuffix(arch, "a") }

// TestWithoutWarpgroups runs kernels that are not arch-specific, for head sizes that also have wgmma kernels.
func TestWithoutWarpgroups(t *testing.T) {
	for _, dim := range []int64{128, 64} {
		dev := cudatest.Open(t, fake.Options{})
		if dev.Emulated && dim == 64 {
			break // it takes too long
		}
		r := newRigOn(t, dev, shape{4, 1, dim, 96, 16, dtype.BF16, dtype.BF16})
		compile, own := attn.Compiled(olderCompiler{dev.Compiler(t)}, dev.Info().Target), false
		r.code = func(ctx context.Context, v attn.Variant) (*program.Program, error) {
			own = own || v.ArchSpecific() != ""
			return compile(ctx, v)
		}
		r.newOp()
		r.ragged(2)
		if dev.Emulated && !own {
			t.Errorf("heads of %d: no kernel has arch-specific code, so nothing was tested", dim)
		}
	}
}

// record captures the work of enqueue.
func (r *rig) record(enqueue func() error) device.Graph {
	r.Helper()
	r.check(r.stream.BeginCapture(device.CaptureThreadLocal))
	err := enqueue()
	graph, endErr := r.stream.EndCapture()
	r.check(errors.Join(err, endErr))
	return graph
}

// TestReplays captures one call and replays it with batches of chunks and of decodes: the graph does not depend on the
// step.
func TestReplays(t *testing.T) {
	const size = 256
	for _, c := range cases[:1] {
		r := newRig(t, c.shape, c.attrs...)
		g := newRagged(c.shape, 2)
		call := r.call(size)
		r.check(r.stream.Synchronize())
		graph := r.record(func() error { return r.op.Launch(call) })
		if n := graph.Nodes(); n != 1 {
			t.Errorf("%d nodes, want one launch", n)
		}
		for i := range 8 {
			b := g.batch(t, i%2 == 1)
			if b.Rows() > size {
				continue
			}
			qkv := r.random(g.rng, int64(b.Rows()))
			o, cache := r.want(b, qkv)
			r.set(call, b, qkv)
			r.check(r.stream.LaunchGraph(graph))
			r.hold(fmt.Sprint("replay ", i), r.read(call.Args[attention.ArgO]), o, cache)
		}
		r.check(graph.Close())
	}
}

// TestLongChunks runs a step of decodes and of chunks of prompts after long contexts, which are split over blocks.
func TestLongChunks(t *testing.T) {
	for _, dim := range []int64{64, 128, 256} {
		r := newRig(t, shape{8, 2, dim, 512, 16, dtype.BF16, dtype.BF16})
		if r.slow && dim > 64 {
			break
		}
		rng := rand.New(rand.NewPCG(9, uint64(dim)))
		r.check(r.stream.CopyToDevice(r.cache.Buffer, random(rng, r.shape.kv, r.cache.Size/2)))
		g := newRagged(r.shape, 9)
		b := attention.NewBatch(6, 64, len(g.requests[0]))
		for i, tokens := range []int{40, 1, 17, 2, 1} {
			r.check(b.Add(900-150*i, tokens, g.requests[i], g.block))
		}
		qkv := r.random(rng, int64(b.Rows()))
		o, cache := r.want(b, qkv)
		r.hold(fmt.Sprint("heads of ", dim), r.step(b, 64, qkv), o, cache)
	}
}

// TestNaN has a query that is NaN, and a split context whose first part has only keys that are NaN: the rows that see
// them become NaN, and no others.
func TestNaN(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
		r := newRig(t, shape{4, 1, 16, 3 * 38, 16, dt, dt})
		rng := rand.New(rand.NewPCG(13, 16))
		data := random(rng, dt, r.cache.Buffer.Size/dt.Bytes(1))
		block, row := len(data)/(3*38), int(dt.Bytes(4*16))
		b := attention.NewBatch(3, 3, 38)
		for i := range int32(3) {
			var blocks []int32
			for j := range int32(38) {
				blocks = append(blocks, 38*i+j)
			}
			r.check(b.Add(600, 1, blocks, 16))
		}
		qkv := r.random(rng, 3)
		for i := range row {
			qkv[0][row+i] = 0xff // the second request's
		}
		for i := range 20 * block {
			data[2*38*block+i] = 0xff // the third request's
		}
		r.check(r.stream.CopyToDevice(r.cache.Buffer, data))
		o, cache := r.want(b, qkv)
		if x, y, z := o.At(0), o.At(4*16), o.At(2*4*16); x != x || y == y || z == z {
			t.Fatal("the reference gives ", x, y, z)
		}
		r.hold(dt.String(), r.step(b, 3, qkv), o, cache)
	}
}

// TestSizes runs decodes in steps of few rows and in larger ones, which have other kernels. For each size the decodes
// have the same bits in a step of decodes, in a step with a chunk, and in a graph.
func TestSizes(t *testing.T) {
	for _, dim := range []int64{64, 128} {
		t.Run(fmt.Sprint("heads of ", dim), func(t *testing.T) { holdSizes(t, dim) })
	}
}

// sizes returns the number of rows of a small step, and those of larger steps, whose kernels are others.
func (r *rig) sizes(small int64) []int64 {
	out := []int64{small}
	for resident := range int64(4) {
		out = append(out, (resident+2)*r.dev.Info().Properties["device.sms"]/r.shape.kvHeads+1)
	}
	return out
}

func holdSizes(t *testing.T, dim int64) {
	r := newRig(t, shape{4, 1, dim, 200, 16, dtype.BF16, dtype.BF16})
	rng := rand.New(rand.NewPCG(9, 64))
	r.check(r.stream.CopyToDevice(r.cache.Buffer, random(rng, r.shape.kv, r.cache.Size/2)))
	perm := rng.Perm(int(r.shape.blocks))
	lengths := []int{350, 0, 127, 30}
	const most = 8 // rows
	qkv := r.random(rng, most)
	for _, size := range r.sizes(most) {
		var alone []byte
		for _, chunk := range []int{1, 5} { // rows of the last request
			b, next := attention.NewBatch(len(lengths), len(lengths)+chunk, 24), 0
			for i, n := range lengths {
				rows := 1
				if i == len(lengths)-1 {
					rows = chunk
				}
				var table []int32
				for range (n + rows + 15) / 16 {
					table, next = append(table, int32(perm[next])), next+1
				}
				r.check(b.Add(n, rows, table, 16))
			}
			var rows [3][]byte
			for i := range qkv {
				rows[i] = qkv[i][:len(qkv[i])/most*b.Rows()]
			}
			o, cache := r.want(b, rows)
			got := r.step(b, size, rows)
			name := fmt.Sprintf("size %d, chunk of %d", size, chunk)
			r.hold(name, got, o, cache)
			decoded := int64(len(lengths)-1) * r.shape.heads * r.shape.dim * 2
			if alone == nil {
				alone = got[:decoded]
			} else if !bytes.Equal(got[:decoded], alone) {
				t.Errorf("%s: other bits than without a chunk", name)
			}
			call := r.call(size)
			r.check(r.stream.Synchronize())
			graph := r.record(func() error { return r.op.Launch(call) })
			r.set(call, b, rows)
			r.check(r.stream.LaunchGraph(graph))
			replayed := r.read(call.Args[attention.ArgO])
			r.hold(name+", recorded", replayed, o, cache)
			if !bytes.Equal(replayed[:decoded], alone) {
				t.Errorf("%s, recorded: other bits than without a chunk", name)
			}
			r.check(graph.Close())
		}
	}
}

// TestBlockSizes runs cache blocks whose size divides the keys of a stage, is a multiple of them, or neither, with
// kernels whose warps load their own keys (heads of 64) and with others. Tables end at the end of the room for them,
// so that a read after the int32s that kernels may load behind them is outside of the op's memory.
func TestBlockSizes(t *testing.T) {
	for _, c := range []struct {
		dim    int64
		blocks []int
		attrs  []program.Attr
	}{{64, []int{128}, nil}, {64, []int{16}, []program.Attr{integer("window", 75)}}, {128, []int{1, 48, 32}, nil}} {
		for _, block := range c.blocks {
			t.Run(fmt.Sprintf("%d in heads of %d", block, c.dim), func(t *testing.T) {
				// On sm_90 small tiles of heads of 128 fill stages again with the longer last context, and not with the
				// shorter one. With this room for rows, and blocks of one token, the op's memory has a multiple of 512 bytes:
				// padding of the allocation does not hide a read after its end.
				for _, last := range []struct{ tokens, room int }{{195, 15}, {128, 27}} {
					lengths := []int{64, 120, 0, last.tokens}
					stride := (last.tokens + 6 + block - 1) / block
					r := newRig(t, shape{8, 2, c.dim, int64(len(lengths) * stride), int64(block), dtype.BF16, dtype.BF16}, c.attrs...)
					r.newOpFor(last.room, len(lengths), stride)
					rng := rand.New(rand.NewPCG(13, uint64(block)))
					r.check(r.stream.CopyToDevice(r.cache.Buffer, random(rng, r.shape.kv, r.cache.Size/2)))
					perm := rng.Perm(int(r.shape.blocks))
					for _, rows := range []int{1, 6} { // of the last request: 24 pairs are a large tile
						b := attention.NewBatch(len(lengths), 12, stride)
						for i, n := range lengths {
							var table []int32
							for _, p := range perm[i*stride:][:stride] {
								table = append(table, int32(p))
							}
							tokens := 1
							if i == len(lengths)-1 {
								tokens = rows
							}
							r.check(b.Add(n, tokens, table, block))
						}
						qkv := r.random(rng, int64(b.Rows()))
						o, cache := r.want(b, qkv)
						r.hold(fmt.Sprintf("%d rows after %d", rows, last.tokens), r.step(b, int64(b.Rows()), qkv), o, cache)
					}
				}
			})
		}
	}
}

// TestPartsInBlocks splits a context into parts of 9 units of 64 keys, which may begin in the middle of a cache block of
// 128 tokens. With 32 query heads per key-value head, decodes have large tiles of eight warps, whose stages of 128 keys
// extend over two cache blocks in such a part, and in blocks of 192 tokens.
func TestPartsInBlocks(t *testing.T) {
	for _, block := range []int{128, 192} {
		dev := cudatest.Open(t, fake.Options{})
		rows := int(2 * dev.Info().Properties["device.sms"]) // contexts have up to four parts
		stride := (2201 + block - 1) / block
		r := newRigOn(t, dev, shape{32, 1, 64, int64(rows - 1 + stride), int64(block), dtype.BF16, dtype.BF16})
		r.newOpFor(rows, rows, stride)
		rng := rand.New(rand.NewPCG(14, uint64(block)))
		r.check(r.stream.CopyToDevice(r.cache.Buffer, random(rng, r.shape.kv, r.cache.Size/2)))
		b := attention.NewBatch(rows, rows, stride)
		for i := range rows { // the first request has the last blocks, so that a read after a block may be outside of the cache
			table, n := []int32{int32(i - 1)}, 3
			if i == 0 {
				table, n = nil, 2200
				for block := range stride {
					table = append(table, int32(rows-1+block))
				}
			}
			r.check(b.Add(n, 1, table, block))
		}
		qkv := r.random(rng, int64(rows))
		o, cache := r.want(b, qkv)
		r.hold(fmt.Sprintf("blocks of %d", block), r.step(b, int64(rows), qkv), o, cache)
	}
}

// TestWideBlocks runs steps with two blocks on each multiprocessor, of which the second has one stage less. Contexts
// end at the end of a stage of 128 keys and near it, before and after the ring of stages wraps around.
func TestWideBlocks(t *testing.T) {
	dev := cudatest.Open(t, fake.Options{})
	sms := dev.Info().Properties["device.sms"]
	kvHeads := max(1, sms/16)
	requests := int(2 * sms / kvHeads)
	lengths := []int{0, 600, 384, 383, 511, 254, 256, 130}
	r := newRigOn(t, dev, shape{4 * kvHeads, kvHeads, 64, int64(requests) * 38, 16, dtype.BF16, dtype.BF16})
	rng := rand.New(rand.NewPCG(11, 64))
	r.check(r.stream.CopyToDevice(r.cache.Buffer, random(rng, r.shape.kv, r.cache.Size/2)))
	perm := rng.Perm(int(r.shape.blocks))
	for _, rows := range []int{1, 4} { // of the first request
		b := attention.NewBatch(requests, requests, 38)
		for i := range requests - rows + 1 {
			var table []int32
			for _, block := range perm[i*38:][:38] {
				table = append(table, int32(block))
			}
			n, tokens := lengths[(i+i/len(lengths))%len(lengths)], 1
			if i == 0 && rows > 1 {
				n, tokens = 298, rows
			}
			r.check(b.Add(n, tokens, table, 16))
		}
		if rows > 1 {
			b.Slots[1] = attention.PaddedSlot // the cache already has the key of this position
		}
		qkv := r.random(rng, int64(b.Rows()))
		o, cache := r.want(b, qkv)
		r.hold(fmt.Sprint("at most ", rows, " rows each"), r.step(b, int64(requests), qkv), o, cache)
	}
}

// TestAhead checks which keys blocks load before the previous launch has ended: the first three stages of 128 keys, or
// the first two if the block is the second on its multiprocessor. The previous launch writes its result over the
// cache block of a key. The emulated device reports a race if the block is read before the dependency wait.
func TestAhead(t *testing.T) {
	const requests = 8 // and blocks, of which the first four have a multiprocessor each
	for _, c := range []struct {
		request, key int
		early        bool
	}{{0, 256, true}, {3, 368, true}, {3, 384, false}, {4, 112, true}, {4, 240, true}, {4, 256, false}, {7, 256, false}} {
		dev, driver := cudatest.Emulated(t, fake.Options{})
		r := looseRig(t, dev, shape{4, 1, 64, requests * 38, 16, dtype.BF16, dtype.BF16})
		b := attention.NewBatch(requests, requests, 38)
		for i := range int32(requests) {
			var table []int32
			for j := range int32(38) {
				table = append(table, i*38+j)
			}
			r.check(b.Add(600, 1, table, 16))
		}
		before, after := r.call(requests), r.call(requests)
		before.Args[attention.ArgKV] = r.tensor(r.shape.kv, r.cache.Shape...)
		result := &before.Args[attention.ArgO].Buffer // as large as a block of the cache
		*result = r.cache.Buffer.Slice(int64(c.request*38+c.key/16)*result.Size, result.Size)
		r.set(before, b, r.random(rand.New(rand.NewPCG(12, 64)), requests))
		after.Meta = b
		r.check(errors.Join(r.op.Launch(before), r.op.Launch(after)))
		err := r.stream.Synchronize()
		faults := fmt.Sprint(driver.Faults())
		if early := strings.Contains(faults, fmt.Sprintf("block [0 %d 0]", c.request)) && strings.Contains(faults, "are read before griddepcontrol.wait"); early != c.early || (err != nil) != c.early {
			t.Errorf("request %d, key %d: requested early %v, want %v; %s (%v)", c.request, c.key, early, c.early, faults, err)
		}
		if err == nil {
			r.check(errors.Join(r.op.Close(), dev.Close()))
		}
	}
}

// TestSameBits: a decode with long contexts, split over many blocks, has the same bits each time.
func TestSameBits(t *testing.T) {
	s := shape{8, 2, 128, 1024, 16, dtype.BF16, dtype.BF16}
	r := newGPURig(t, s)
	rng := rand.New(rand.NewPCG(3, 3))
	data := random(rng, s.kv, r.cache.Size/2)
	r.check(r.stream.CopyToDevice(r.cache.Buffer, data))
	b := attention.NewBatch(2, 2, 512)
	for i := range 2 {
		var blocks []int32
		for j := range 512 {
			blocks = append(blocks, int32(2*j+i))
		}
		if err := b.Add(8000-3000*i, 1, blocks, 16); err != nil {
			t.Fatal(err)
		}
	}
	qkv := r.random(rng, 2)
	o, cache := r.want(b, qkv)
	c := r.call(2)
	var first []byte
	for i := range 300 {
		r.set(c, b, qkv)
		r.check(r.op.Launch(c))
		got := r.read(c.Args[attention.ArgO])
		if i == 0 {
			r.hold("first", got, o, cache)
			first = got
		} else if !bytes.Equal(got, first) {
			t.Fatalf("run %d differs from the first", i)
		}
	}
}

// TestDecodeEqualsPrefill: a sequence has the same results, within rounding, in one step and token by token.
func TestDecodeEqualsPrefill(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} {
		s := shape{8, 2, 64, 40, 16, dt, dt}
		r := newRig(t, s)
		n := 290
		if r.slow {
			n = 40
		}
		rng := rand.New(rand.NewPCG(4, 4))
		qkv := r.random(rng, int64(n))
		var low, high []int32
		for i := range int32(20) {
			low, high = append(low, i), append(high, 39-i)
		}
		b := attention.NewBatch(1, n, 20)
		r.check(b.Add(0, n, low, 16))
		all, err := interp.FromBytes(dt, []int64{int64(n), s.heads * s.dim}, r.step(b, int64(n), qkv))
		r.check(err)
		var tokens []byte
		for i := range n {
			b.Reset()
			r.check(b.Add(i, 1, high, 16))
			var one [3][]byte
			for j := range one {
				w := len(qkv[j]) / n
				one[j] = qkv[j][i*w:][:w]
			}
			tokens = append(tokens, r.step(b, 1, one)...)
		}
		single, err := interp.FromBytes(dt, all.Shape, tokens)
		r.check(err)
		if d := interp.Compare(single, all); !d.Within(map[dtype.DType]float64{dtype.F32: 1e-5, dtype.BF16: 2e-2}[dt]) {
			t.Error(dt, d)
		}
	}
}

// TestFarBlocks: with cache blocks beyond 4 GiB results have the same bits as with the first blocks.
func TestFarBlocks(t *testing.T) {
	s := shape{32, 8, 128, 72000, 16, dtype.BF16, dtype.BF16} // 64 KiB a block
	r := newGPURig(t, s)
	rng := rand.New(rand.NewPCG(5, 5))
	var results [2][]byte
	prefill, decode := r.random(rng, 100), r.random(rng, 1)
	for i, first := range []int32{0, 71000} {
		var blocks []int32
		for j := range int32(8) {
			blocks = append(blocks, first+7*j)
		}
		b := attention.NewBatch(1, 100, 8)
		r.check(b.Add(0, 100, blocks, 16))
		results[i] = r.step(b, 100, prefill)
		b.Reset()
		r.check(b.Add(100, 1, blocks, 16))
		results[i] = append(results[i], r.step(b, 1, decode)...)
	}
	if !bytes.Equal(results[0], results[1]) {
		t.Error("far blocks give other results")
	}
	if bytes.Equal(results[0], make([]byte, len(results[0]))) {
		t.Error("all results are zero")
	}
}
