package host_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"pwc/attention"
	attn "pwc/attention/host"
	"pwc/attention/reference"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// shape has the sizes and dtypes of a test's calls.
type shape struct {
	heads, kvHeads, dim, blocks, block int64
	dtype, kv                          dtype.DType
}

// rig runs the op on a device of its own, with a cache that lives across steps.
type rig struct {
	t      tb
	shape  shape
	attrs  []program.Attr
	dev    *host.Device
	stream device.Stream
	op     *attn.Op
	cache  device.Tensor
}

// tb has the methods that tests, benchmarks and property tests (rapid.T) share.
type tb interface {
	Helper()
	Cleanup(func())
	Error(args ...any)
	Fatal(args ...any)
}

func newRig(t tb, s shape, workers int, attrs ...program.Attr) *rig {
	t.Helper()
	r := &rig{t: t, shape: s, attrs: attrs, dev: host.Open(host.Options{Workers: workers})}
	var err error
	if r.stream, err = r.dev.NewStream(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(r.stream.Close(), r.dev.Close()); err != nil {
			t.Error(err)
		}
	})
	r.op = attn.New(r.dev)
	r.cache = r.tensor(s.kv, s.blocks, 2, s.block, s.kvHeads, s.dim)
	return r
}

func (r *rig) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) tensor(dt dtype.DType, dims ...int64) device.Tensor {
	r.t.Helper()
	n := int64(1)
	for _, d := range dims {
		n *= d
	}
	b := r.buffer(dt.Bytes(n))
	r.check(r.stream.Fill(b, 0))
	return device.Tensor{Buffer: b, DType: dt, Shape: dims}
}

func (r *rig) buffer(n int64) device.Buffer {
	r.t.Helper()
	m, err := r.dev.Alloc(n)
	r.check(err)
	return device.Buffer{Memory: m, Size: n}
}

// call prepares a call for size rows. Its result is filled with a pattern that no kernel writes.
func (r *rig) call(size int64) *device.OpCall {
	r.t.Helper()
	s := r.shape
	args := []device.Tensor{r.tensor(s.dtype, size, s.heads, s.dim), r.tensor(s.dtype, size, s.kvHeads, s.dim),
		r.tensor(s.dtype, size, s.kvHeads, s.dim), r.cache, r.tensor(s.dtype, size, s.heads, s.dim)}
	r.check(r.stream.Fill(args[attention.ArgO].Buffer, 0x5a))
	n, err := r.op.ScratchBytes(args, r.attrs)
	r.check(err)
	return &device.OpCall{Stream: r.stream, Args: args, Attrs: r.attrs, Scratch: r.buffer(n), Size: size, Rows: size, Loc: "test"}
}

func (r *rig) write(t device.Tensor, data []byte) {
	r.t.Helper()
	r.check(r.stream.CopyToDevice(t.Buffer.Slice(0, int64(len(data))), data))
}

func (r *rig) read(t device.Tensor) []byte {
	r.t.Helper()
	out := make([]byte, t.Buffer.Size)
	r.check(r.stream.CopyToHost(out, t.Buffer))
	return out
}

// step runs rows of q, k and v, padded to size, and returns all of o.
func (r *rig) step(b *attention.Batch, size int64, q, k, v []byte) []byte {
	r.t.Helper()
	c := r.call(size)
	for i, data := range [][]byte{q, k, v} {
		r.write(c.Args[i], data)
	}
	c.Rows, c.Meta = int64(b.Rows()), b
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

// want computes a step with the reference, on the current contents of the cache.
func (r *rig) want(b *attention.Batch, q, k, v []byte) (o, cache *interp.Tensor) {
	r.t.Helper()
	s, rows := r.shape, int64(b.Rows())
	make := func(dt dtype.DType, data []byte, dims ...int64) *interp.Tensor {
		x, err := interp.FromBytes(dt, dims, data)
		r.check(err)
		return x
	}
	c := &interp.Call{Name: attention.Name}
	for _, a := range r.attrs {
		switch a.Kind {
		case program.AttrFloat:
			c.Attrs = append(c.Attrs, ir.FloatAttr(a.Name, a.Float))
		case program.AttrBool:
			c.Attrs = append(c.Attrs, ir.BoolAttr(a.Name, a.Bool))
		default:
			c.Attrs = append(c.Attrs, ir.DimAttr(a.Name, a.Dim))
		}
	}
	out, err := interp.Zeros(s.dtype, []int64{rows, s.heads, s.dim})
	r.check(err)
	cache = make(s.kv, r.read(r.cache), r.cache.Shape...)
	c.Args = []*interp.Tensor{make(s.dtype, q, rows, s.heads, s.dim), make(s.dtype, k, rows, s.kvHeads, s.dim), make(s.dtype, v, rows, s.kvHeads, s.dim), cache, out}
	r.check(reference.Extern(func() *attention.Batch { return b })(c))
	return out, cache
}

// TestAgainstReference compares random ragged batches with the reference: prefills, chunks and decodes of several
// requests over caches in scattered blocks, several steps one after the other, some padded.
func TestAgainstReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kvHeads := rapid.Int64Range(1, 3).Draw(t, "kv heads")
		floats := rapid.SampledFrom([]dtype.DType{dtype.F32, dtype.F32, dtype.BF16, dtype.F16})
		s := shape{kvHeads: kvHeads, heads: kvHeads * rapid.Int64Range(1, 4).Draw(t, "group"), dim: rapid.Int64Range(1, 19).Draw(t, "dim"),
			blocks: 24, block: rapid.Int64Range(1, 16).Draw(t, "block"), dtype: floats.Draw(t, "dtype"), kv: floats.Draw(t, "kv dtype")}
		var attrs []program.Attr
		if rapid.Bool().Draw(t, "scaled") {
			attrs = append(attrs, program.Attr{Name: "scale", Kind: program.AttrFloat, Float: 0.7})
		}
		if rapid.Bool().Draw(t, "windowed") {
			attrs = append(attrs, program.Attr{Name: "window", Kind: program.AttrFloat, Float: float64(rapid.IntRange(1, 20).Draw(t, "window"))})
		}
		if rapid.Bool().Draw(t, "capped") {
			attrs = append(attrs, program.Attr{Name: "softcap", Kind: program.AttrFloat, Float: 2})
		}
		if rapid.Bool().Draw(t, "bidirectional") {
			attrs = append(attrs, program.Attr{Name: "causal", Kind: program.AttrBool})
		}
		r := newRig(t, s, rapid.IntRange(1, 3).Draw(t, "workers"), attrs...)
		rng := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "seed")))
		free := rng.Perm(int(s.blocks))
		requests := make([][]int32, rapid.IntRange(1, 4).Draw(t, "requests"))
		for i := range requests {
			for _, b := range free[i*6:][:6] {
				requests[i] = append(requests[i], int32(b))
			}
		}
		done := make([]int, len(requests))
		for range 3 {
			b := attention.NewBatch(len(requests), 0, 6)
			for i, blocks := range requests {
				n := min(rng.IntN(int(2*s.block)+2), 6*int(s.block)-done[i])
				if n == 0 {
					continue
				}
				if err := b.Add(done[i], n, blocks, int(s.block)); err != nil {
					t.Fatal(err)
				}
				done[i] += n
			}
			rows := int64(b.Rows())
			q, k, v := random(rng, s.dtype, rows*s.heads*s.dim), random(rng, s.dtype, rows*s.kvHeads*s.dim), random(rng, s.dtype, rows*s.kvHeads*s.dim)
			for i := range b.Slots {
				if rng.IntN(20) == 0 {
					b.Slots[i] = attention.PaddedSlot
				}
			}
			want, cache := r.want(b, q, k, v)
			got := r.step(b, rows+int64(rng.IntN(3)), q, k, v)
			real, padded := got[:len(want.Bytes())], got[len(want.Bytes()):]
			o, err := interp.FromBytes(s.dtype, want.Shape, real)
			r.check(err)
			tolerance := map[dtype.DType]float64{dtype.F32: 1e-5, dtype.F16: 1e-3, dtype.BF16: 1e-2}[s.dtype]
			if d := interp.Compare(o, want); !d.Within(tolerance) {
				t.Fatal(d)
			}
			if len(bytes.Trim(padded, "\x00")) != 0 {
				t.Fatal("padded rows are not zero")
			}
			if !bytes.Equal(r.read(r.cache), cache.Bytes()) {
				t.Fatal("the cache differs from that of the reference")
			}
		}
	})
}

var llama = shape{heads: 8, kvHeads: 2, dim: 32, blocks: 12, block: 16, dtype: dtype.F32, kv: dtype.F32}

// sequence is q, k and v of n tokens.
type sequence struct {
	s       shape
	q, k, v []byte
}

func newSequence(seed uint64, s shape, n int64) sequence {
	rng := rand.New(rand.NewPCG(7, seed))
	return sequence{s, random(rng, s.dtype, n*s.heads*s.dim), random(rng, s.dtype, n*s.kvHeads*s.dim), random(rng, s.dtype, n*s.kvHeads*s.dim)}
}

// rows returns q, k and v of tokens [from, to).
func (x sequence) rows(from, to int64) (q, k, v []byte) {
	bytes := x.s.dtype.Bytes(x.s.dim)
	cut := func(data []byte, heads int64) []byte { return data[from*heads*bytes : to*heads*bytes] }
	return cut(x.q, x.s.heads), cut(x.k, x.s.kvHeads), cut(x.v, x.s.kvHeads)
}

// TestDecodeEqualsPrefill: results have the same bits for several ways to cut a sequence into steps, token by token
// among them, with one worker and with three.
func TestDecodeEqualsPrefill(t *testing.T) {
	const n = 41
	blocks := []int32{4, 0, 9}
	x := newSequence(1, llama, n)
	var whole []byte
	for _, steps := range [][]int64{{n}, {16, 25}, {7, 1, 1, 20, 12}, nil} {
		if steps == nil {
			for range n {
				steps = append(steps, 1)
			}
		}
		for _, workers := range []int{1, 3} {
			r := newRig(t, llama, workers)
			var got []byte
			at := int64(0)
			for _, step := range steps {
				b := attention.NewBatch(1, 0, 3)
				r.check(b.Add(int(at), int(step), blocks, 16))
				q, k, v := x.rows(at, at+step)
				got = append(got, r.step(b, step, q, k, v)...)
				at += step
			}
			if whole == nil {
				whole = got
			}
			if !bytes.Equal(got, whole) {
				t.Errorf("steps %v on %d workers differ from one prefill", steps, workers)
			}
		}
	}
}

// TestAloneOrTogether: a prefill has the same bits alone and with another request in a padded step.
func TestAloneOrTogether(t *testing.T) {
	x, other := newSequence(1, llama, 20), newSequence(2, llama, 30)
	alone := newRig(t, llama, 2)
	b := attention.NewBatch(1, 0, 2)
	alone.check(b.Add(0, 20, []int32{1, 2}, 16))
	want := alone.step(b, 20, x.q, x.k, x.v)

	both := newRig(t, llama, 2)
	b = attention.NewBatch(2, 0, 2)
	both.check(b.Add(0, 30, []int32{5, 3}, 16))
	both.check(b.Add(0, 20, []int32{1, 2}, 16))
	join := func(a, b []byte) []byte { return append(append([]byte(nil), a...), b...) }
	got := both.step(b, 56, join(other.q, x.q), join(other.k, x.k), join(other.v, x.v))
	row := int(llama.dtype.Bytes(llama.heads * llama.dim))
	if !bytes.Equal(got[30*row:50*row], want) {
		t.Error("a request has other results in a step with another request")
	}
}

// TestNonFinite: a NaN or +Inf in the key or the value of one position changes only the rows that see it.
func TestNonFinite(t *testing.T) {
	s := shape{heads: 1, kvHeads: 1, dim: 1, blocks: 1, block: 4, dtype: dtype.F32, kv: dtype.F32}
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		r := newRig(t, s, 1)
		b := attention.NewBatch(1, 0, 1)
		r.check(b.Add(0, 3, []int32{0}, 4))
		three := func(v ...float64) []byte {
			x, err := interp.FromFloat64s(dtype.F32, []int64{3}, v)
			r.check(err)
			return x.Bytes()
		}
		out, err := interp.FromBytes(dtype.F32, []int64{3}, r.step(b, 3, three(1, 1, 1), three(1, bad, 1), three(5, 6, 7)))
		r.check(err)
		if got := out.Float64s(); got[0] != 5 || !math.IsNaN(got[1]) || !math.IsNaN(got[2]) {
			t.Errorf("a key %v gives %v, want 5, NaN, NaN", bad, got)
		}
		out, err = interp.FromBytes(dtype.F32, []int64{3}, r.step(b, 3, three(1, 1, 1), three(1, 1, 1), three(5, bad, 7)))
		r.check(err)
		if got := out.Float64s(); got[0] != 5 || !math.IsNaN(got[1]) && !math.IsInf(got[1], 1) {
			t.Errorf("a value %v gives %v, want 5, then NaN or +Inf", bad, got)
		}
	}
}

// TestSegments: results of contexts with several segments agree with the reference, and have the same
// bits for three ways to cut them into steps: in one tile and in several, shared by workers and not, with
// windows that begin inside a segment.
func TestSegments(t *testing.T) {
	for _, window := range []float64{0, 1, 150} {
		s := shape{heads: 6, kvHeads: 2, dim: 16, blocks: 20, block: 16, dtype: dtype.F32, kv: dtype.BF16}
		attrs := []program.Attr{{Name: "window", Kind: program.AttrFloat, Float: window}}
		const n = 280
		blocks := make([]int32, 18)
		for i := range blocks {
			blocks[i] = int32(19 - i)
		}
		x := newSequence(3, s, n)
		var whole []byte
		for _, steps := range [][]int64{{n}, {130, 150}, {256, 1, 1, 2, 20}} {
			for _, workers := range []int{1, 3} {
				r := newRig(t, s, workers, attrs...)
				var got []byte
				at := int64(0)
				for _, step := range steps {
					b := attention.NewBatch(1, 0, 18)
					r.check(b.Add(int(at), int(step), blocks, 16))
					q, k, v := x.rows(at, at+step)
					if whole == nil {
						want, _ := r.want(b, q, k, v)
						out, err := interp.FromBytes(s.dtype, want.Shape, r.step(b, step, q, k, v))
						r.check(err)
						if d := interp.Compare(out, want); !d.Within(1e-5) {
							t.Fatal(d)
						}
					}
					got = append(got, r.step(b, step, q, k, v)...)
					at += step
				}
				if whole == nil {
					whole = got
				}
				if !bytes.Equal(got, whole[:len(got)]) {
					t.Errorf("window %g: steps %v on %d workers differ from one prefill", window, steps, workers)
				}
			}
		}
	}
}

// TestMinusInfinity: keys with score -Inf have weight 0 if a row sees other keys, in blocks of 1, 2 and 4 tokens.
func TestMinusInfinity(t *testing.T) {
	inf := math.Inf(-1)
	for _, block := range []int64{1, 2, 4} {
		r := newRig(t, shape{heads: 1, kvHeads: 1, dim: 1, blocks: 4, block: block, dtype: dtype.F32, kv: dtype.F32}, 1)
		b := attention.NewBatch(1, 0, 4)
		r.check(b.Add(0, 4, []int32{0, 1, 2, 3}, int(block)))
		four := func(v ...float64) []byte {
			x, err := interp.FromFloat64s(dtype.F32, []int64{4}, v)
			r.check(err)
			return x.Bytes()
		}
		out, err := interp.FromBytes(dtype.F32, []int64{4}, r.step(b, 4, four(1, 1, 1, 1), four(inf, inf, 1, 1), four(5, 6, 7, 9)))
		r.check(err)
		if got := out.Float64s(); !math.IsNaN(got[0]) || !math.IsNaN(got[1]) || got[2] != 7 || got[3] != 8 {
			t.Errorf("in blocks of %d: %v, want NaN, NaN, 7, (7+9)/2", block, got)
		}
	}
}

// TestByHand has numbers that a person can check: scores 0 and ln 3 give weights 1/4 and 3/4.
func TestByHand(t *testing.T) {
	s := shape{heads: 1, kvHeads: 1, dim: 1, blocks: 2, block: 1, dtype: dtype.F32, kv: dtype.F32}
	r := newRig(t, s, 1, program.Attr{Name: "scale", Kind: program.AttrFloat, Float: math.Log(3)})
	b := attention.NewBatch(1, 0, 2)
	r.check(b.Add(0, 2, []int32{1, 0}, 1))
	pair := func(x, y float64) []byte {
		v, err := interp.FromFloat64s(dtype.F32, []int64{2}, []float64{x, y})
		r.check(err)
		return v.Bytes()
	}
	out, err := interp.FromBytes(dtype.F32, []int64{2}, r.step(b, 2, pair(1, 1), pair(0, 1), pair(8, 16)))
	r.check(err)
	if got := out.Float64s(); got[0] != 8 || math.Abs(got[1]-14) > 1e-5 {
		t.Errorf("%v, want 8 and 8/4 + 16·3/4 = 14", got)
	}
	if got, want := r.read(r.cache), append(append([]byte(nil), pair(1, 16)...), pair(0, 8)...); !bytes.Equal(got, want) {
		t.Errorf("cache %x, want %x", got, want)
	}
}

// TestReplay: a capture does not run the op, and a replay reads the metadata that the call has at that time.
func TestReplay(t *testing.T) {
	r := newRig(t, llama, 2)
	x := newSequence(3, llama, 4)
	c := r.call(4)
	for i, data := range [][]byte{x.q, x.k, x.v} {
		r.write(c.Args[i], data)
	}
	before := r.read(c.Args[attention.ArgO])
	r.check(r.stream.BeginCapture(device.CaptureThreadLocal))
	c.Capturing = true
	r.check(r.op.Launch(c))
	g, err := r.stream.EndCapture()
	r.check(err)
	defer g.Close()
	if !bytes.Equal(r.read(c.Args[attention.ArgO]), before) {
		t.Fatal("the op ran while it was captured")
	}
	for _, rows := range []int64{4, 2, 3} {
		b := attention.NewBatch(1, 0, 1)
		r.check(b.Add(0, int(rows), []int32{int32(rows)}, 16))
		c.Meta, c.Rows = b, rows
		r.check(r.stream.LaunchGraph(g))
		q, k, v := x.rows(0, rows)
		if got, want := r.read(c.Args[attention.ArgO]), r.step(b, 4, q, k, v); !bytes.Equal(got, want) {
			t.Errorf("a replay of %d rows differs from an eager call", rows)
		}
	}
	c.Meta = nil
	if err := r.stream.LaunchGraph(g); err == nil || !strings.Contains(err.Error(), "metadata is <nil>") {
		t.Errorf("a replay without metadata: %v", err)
	}
}

func TestLaunchErrors(t *testing.T) {
	r := newRig(t, llama, 1)
	other := newRig(t, llama, 1)
	b := attention.NewBatch(1, 0, 1)
	r.check(b.Add(0, 4, []int32{1}, 16))
	for want, change := range map[string]func(c *device.OpCall){
		"it takes 5":         func(c *device.OpCall) { c.Args = c.Args[:4] },
		"unknown attribute":  func(c *device.OpCall) { c.Attrs = []program.Attr{{Name: "sinks"}} },
		"metadata is string": func(c *device.OpCall) { c.Meta = "4 rows" },
		"the step has 5 rows, its operands have 4": func(c *device.OpCall) { c.Rows = 5 },
		"describes 4 rows, the step has":           func(c *device.OpCall) { c.Rows = 3 },
		"operand 0: host: bytes":                   func(c *device.OpCall) { c.Args[0].Buffer = other.call(4).Args[0].Buffer },
		"operand 4: memory of 8 bytes":             func(c *device.OpCall) { c.Args[4].Buffer.Size = 8 },
		"not aligned":                              func(c *device.OpCall) { c.Args[1].Buffer.Offset, c.Args[1].Buffer.Size = 1, c.Args[1].Buffer.Size-1 },
		"scratch of 0 bytes":                       func(c *device.OpCall) { c.Scratch = device.Buffer{} },
	} {
		c := r.call(4)
		c.Meta = b
		change(c)
		if want == "not aligned" {
			c.Args[1].Buffer = r.buffer(c.Args[1].Buffer.Size+8).Slice(1, c.Args[1].Buffer.Size+1)
		}
		err := r.op.Launch(c)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "test: ") {
			t.Errorf("%v, want %q in it, after the call's Loc", err, want)
		}
	}
}

// TestConcurrentUse calls one op from several goroutines, each with its own stream and memory.
func TestConcurrentUse(t *testing.T) {
	r := newRig(t, llama, 3)
	x := newSequence(4, llama, 20)
	b := attention.NewBatch(1, 0, 2)
	r.check(b.Add(0, 20, []int32{1, 2}, 16))
	want := r.step(b, 20, x.q, x.k, x.v)
	var g errgroup.Group
	for range 4 {
		own := *r
		var err error
		if own.stream, err = r.dev.NewStream(); err != nil {
			t.Fatal(err)
		}
		own.cache = own.tensor(llama.kv, r.cache.Shape...)
		c := own.call(20)
		for i, data := range [][]byte{x.q, x.k, x.v} {
			own.write(c.Args[i], data)
		}
		c.Meta = b
		g.Go(func() error {
			for range 20 {
				if err := r.op.Launch(c); err != nil {
					return err
				}
			}
			got := make([]byte, len(want))
			if err := c.Stream.CopyToHost(got, c.Args[attention.ArgO].Buffer); err != nil {
				return err
			}
			if !bytes.Equal(got, want) {
				return errors.New("a call has other results while others run")
			}
			return c.Stream.Close()
		})
	}
	r.check(g.Wait())
}

// TestAllocations: a launch like an earlier one does not allocate, with one worker and with several.
func TestAllocations(t *testing.T) {
	for _, workers := range []int{1, 4} {
		r := newRig(t, llama, workers)
		c := r.call(24)
		b := attention.NewBatch(3, 24, 4)
		for i := range 3 {
			r.check(b.Add(10*i, 8, []int32{int32(3 * i), int32(3*i + 1), int32(3*i + 2)}, 16))
		}
		c.Meta = b
		if n := testing.AllocsPerRun(20, func() { r.check(r.op.Launch(c)) }); n != 0 {
			t.Errorf("%d workers: %v allocations a launch", workers, n)
		}
	}
}

// benchmark measures a step of requests with tokens new tokens after computed ones, each with its own
// blocks. GFLOP/s counts the multiplications and additions of q·k and weights·v, GB/s the bytes of keys
// and values, each once.
func benchmark(b *testing.B, s shape, requests, computed, tokens int) {
	each := int64(computed+tokens+15) / 16
	s.blocks, s.block = each*int64(requests), 16
	r := newRig(b, s, 0)
	c := r.call(int64(requests * tokens))
	batch := attention.NewBatch(requests, requests*tokens, int(each))
	for i := range requests {
		blocks := make([]int32, each)
		for j := range blocks {
			blocks[j] = int32(int(each)*i + j)
		}
		r.check(batch.Add(computed, tokens, blocks, 16))
	}
	c.Meta = batch
	b.ReportAllocs()
	for b.Loop() {
		r.check(r.op.Launch(c))
	}
	seconds := b.Elapsed().Seconds() / float64(b.N)
	seen := tokens*computed + tokens*(tokens+1)/2
	b.ReportMetric(float64(requests*seen)*float64(4*s.heads*s.dim)/seconds/1e9, "GFLOP/s")
	b.ReportMetric(float64(requests*(computed+tokens))*float64(s.kv.Bytes(2*s.kvHeads*s.dim))/seconds/1e9, "GB/s")
}

func BenchmarkAttention(b *testing.B) {
	for _, kv := range []dtype.DType{dtype.F32, dtype.BF16} {
		for _, c := range []struct {
			name                       string
			requests, computed, tokens int
		}{{"decode1", 1, 511, 1}, {"decode8", 8, 2047, 1}, {"prefill", 1, 0, 512}, {"chunk", 1, 1536, 128}, {"long8", 8, 16383, 1}} {
			b.Run(c.name+"/"+kv.String(), func(b *testing.B) {
				benchmark(b, shape{heads: 9, kvHeads: 3, dim: 64, dtype: kv, kv: kv}, c.requests, c.computed, c.tokens)
			})
		}
	}
}
