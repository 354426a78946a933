package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pwc/attention"
	attn "pwc/attention/cuda"
	"pwc/internal/cuda/fake"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// seen has the arguments of a launch, and the metadata in device memory when it executed.
type seen struct {
	rows, requests, stride int32
	starts, lengths        []int32
	slots, table           []int32
	grid                   [3]uint32
	threads, shared        uint32
	least, most            int // the fewest and the most pairs of the requests that it computes
	parts, more, capacity  int // parts of a context, parts of a long context, parts for which scratch has room
	order                  int
	counters               int64 // address
	multiprocessors        int
}

// fakeRig runs the op on the fake driver, whose kernel records the metadata in seen.
type fakeRig struct {
	testing.TB
	dev    *cuda.Device
	stream device.Stream
	op     *attn.Op
	seen   []seen
	blind  bool // launches are not recorded in seen
	asked  int  // how often the op called Code
	args   []device.Tensor
}

const fakeRows, fakeRequests, fakeBlocks = 28, 8, 4

func newFakeRig(t testing.TB, s fake.Schedule) *fakeRig {
	r := &fakeRig{TB: t}
	drv := fake.New(fake.Options{Schedule: s, Kernels: []fake.Kernel{{Name: "paged", Params: 21, Run: func(c *fake.Call) {
		if r.blind {
			return
		}
		requests, rows := int(c.Int(8)), int(c.Int(9))
		m := c.I32(5, int64(4+2*requests+1+rows+requests*fakeBlocks))
		take := func(n, used int) []int32 {
			part := slices.Clone(m[:used])
			m = m[n:]
			return part
		}
		x := seen{rows: m[0], requests: m[1], stride: m[2], grid: c.Grid, threads: c.Block[0], shared: c.Shared,
			least: int(c.Int(11)), most: int(c.Int(12)), parts: int(c.Int(13)), more: int(c.Int(14)), capacity: int(c.Int(15)), order: int(c.Int(16)), counters: c.Int(7),
			multiprocessors: int(c.Int(20))}
		take(4, 4)
		n := int(x.requests)
		x.starts, x.lengths = take(requests+1, n+1), take(requests, n)
		x.slots = take(rows, int(x.rows))
		x.table = take(0, n*int(x.stride))
		r.seen = append(r.seen, x)
	}}}})
	t.Cleanup(func() {
		if l, m := drv.Leaks(), drv.Misuse(); len(l) > 0 || len(m) > 0 {
			t.Errorf("left behind %q, misuse %q", l, m)
		}
	})
	var err error
	if r.dev, err = cuda.Open(cuda.Options{Driver: drv}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.must(r.dev.Close()) })
	r.stream, err = r.dev.NewStream()
	r.must(err)
	code := func(context.Context, attn.Variant) (*program.Program, error) {
		r.asked++
		return image, nil
	}
	r.op, err = attn.New(r.dev, attn.Options{MaxRows: fakeRows, MaxRequests: fakeRequests, MaxBlocks: fakeBlocks, Code: code})
	r.must(err)
	t.Cleanup(func() { r.must(errors.Join(r.stream.Synchronize(), r.op.Close(), r.op.Close())) })
	tensor := func(dims ...int64) device.Tensor { return r.tensor(dtype.F32, dims...) }
	r.args = []device.Tensor{tensor(8, 4, 8), tensor(8, 2, 8), tensor(8, 2, 8), tensor(9, 2, 4, 2, 8), tensor(8, 4, 8)}
	return r
}

// tensor returns a tensor with memory of its own.
func (r *fakeRig) tensor(dt dtype.DType, dims ...int64) device.Tensor {
	r.Helper()
	n := int64(dt.Bits() / 8)
	for _, d := range dims {
		n *= d
	}
	m, err := r.dev.Alloc(n)
	r.must(err)
	return device.Tensor{Buffer: device.Buffer{Memory: m, Size: n}, DType: dt, Shape: dims}
}

func (r *fakeRig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *fakeRig) refuses(what string, err error) {
	r.Helper()
	if err == nil || !strings.Contains(err.Error(), what) {
		r.Errorf("%v, want %q in it", err, what)
	}
}

func (r *fakeRig) call(b *attention.Batch) *device.OpCall {
	r.Helper()
	n, err := r.op.ScratchBytes(r.args, nil)
	r.must(err)
	m, err := r.dev.Alloc(n)
	r.must(err)
	return &device.OpCall{Stream: r.stream, Args: r.args, Scratch: device.Buffer{Memory: m, Size: n}, Size: 8, Rows: int64(b.Rows()), Meta: b}
}

// batch returns a batch of a request with two rows after length tokens, and of a decode.
func batch(t testing.TB, length int) *attention.Batch {
	b := attention.NewBatch(2, 3, 3)
	if err := errors.Join(b.Add(length, 2, []int32{7, 0, 3}, 4), b.Add(5, 1, []int32{2, 8}, 4)); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestMetadata: every launch reads the metadata of its own step, in several orders in which the work may execute, while
// the host is ahead of the device and changes the batch in place.
func TestMetadata(t *testing.T) {
	for name, s := range map[string]fake.Schedule{"lazy": fake.Lazy, "eager": fake.Eager, "random": fake.Random(1)} {
		t.Run(name, func(t *testing.T) {
			r := newFakeRig(t, s)
			b := batch(t, 0)
			c := r.call(b)
			for i := range 11 {
				*b = *batch(t, i%10)
				r.must(r.op.Prepare(r.stream, b, 8, 3))
				r.must(r.op.Launch(c))
				r.must(r.op.Launch(c)) // the next layer
			}
			r.must(r.stream.Synchronize())
			if len(r.seen) != 22 || r.asked != 1 {
				t.Fatalf("%d launches, code asked for %d times", len(r.seen), r.asked)
			}
			for i, got := range r.seen {
				want := batch(t, i/2%10)
				if got.rows != 3 || got.requests != 2 || got.stride != 3 || !slices.Equal(got.starts, want.QueryStart) || !slices.Equal(got.lengths, want.SeqLens) ||
					!slices.Equal(got.slots, want.Slots) || !slices.Equal(got.table, want.BlockTable) {
					t.Fatalf("launch %d found %+v, its step is %+v", i, got, want)
				}
				if got.grid != [3]uint32{2, 2, 1} {
					t.Fatalf("grid %v, want 2 key-value heads, a tile for each of 2 requests, and one part of 64 keys", got.grid)
				}
			}
		})
	}
}

// TestUnprepared: Launch prepares a step for which Prepare was not called, if it has another batch.
func TestUnprepared(t *testing.T) {
	r := newFakeRig(t, fake.Eager)
	for i := range 3 {
		r.must(r.op.Launch(r.call(batch(t, i))))
	}
	r.must(r.stream.Synchronize())
	for i, got := range r.seen {
		if got.lengths[0] != int32(i+2) {
			t.Errorf("launch %d found lengths %v", i, got.lengths)
		}
	}
}

// TestEmptyRequests: requests without rows are not in the kernel's metadata.
func TestEmptyRequests(t *testing.T) {
	r := newFakeRig(t, fake.Eager)
	b := attention.NewBatch(4, 3, 3)
	r.must(errors.Join(b.Add(0, 0, nil, 4), b.Add(4, 2, []int32{7, 1}, 4), b.Add(9, 0, []int32{4, 5, 6}, 4), b.Add(5, 1, []int32{2, 8}, 4)))
	r.must(r.op.Launch(r.call(b)))
	r.must(r.stream.Synchronize())
	got := r.seen[0]
	if got.requests != 2 || !slices.Equal(got.starts, []int32{0, 2, 3}) || !slices.Equal(got.lengths, []int32{6, 6}) || !slices.Equal(got.table, []int32{7, 1, 0, 2, 8, 0}) {
		t.Errorf("the kernel found %+v", got)
	}
}

// TestInvalidSteps: Launch refuses a step that Prepare has refused, and a step that is not valid
// for the cache of the call.
func TestInvalidSteps(t *testing.T) {
	r := newFakeRig(t, fake.Eager)
	b := batch(t, 0)
	c := r.call(b)
	r.must(r.op.Prepare(r.stream, b, 8, 3)) // the op knows no cache yet
	small := *c
	small.Args = slices.Clone(c.Args)
	small.Args[attention.ArgKV].Shape = append([]int64{8}, c.Args[attention.ArgKV].Shape[1:]...)
	r.refuses("block 1 of its sequence is 8, the cache has 8", r.op.Launch(&small))
	r.must(r.op.Launch(c))
	b.SeqLens[0] = 99
	if err := r.op.Prepare(r.stream, b, 8, 3); err == nil {
		t.Fatal("a sequence beyond its table was prepared")
	}
	if err := r.op.Launch(c); err == nil {
		t.Error("a step that was refused was launched")
	}
	r.must(r.stream.Synchronize())
	if len(r.seen) != 1 {
		t.Errorf("%d launches, one was valid", len(r.seen))
	}
}

// TestInvalidFirstSteps: before the first launch, Prepare refuses a batch whose lists do not fit together or the step.
func TestInvalidFirstSteps(t *testing.T) {
	r := newFakeRig(t, fake.Eager)
	for want, change := range map[string]func(b *attention.Batch){
		"1 entries in QueryStart for 2 requests": func(b *attention.Batch) { b.QueryStart = b.QueryStart[:1] },
		"describes 5 rows, the step has 3":       func(b *attention.Batch) { b.QueryStart[2] = 5 },
		"request 0: rows 0 to 5":                 func(b *attention.Batch) { b.QueryStart[1] = 5 },
		"request 0: rows 0 to -1":                func(b *attention.Batch) { b.QueryStart[1] = -1 },
		"0 entries in Slots":                     func(b *attention.Batch) { b.Slots = nil },
		"5 entries in BlockTable":                func(b *attention.Batch) { b.BlockTable = b.BlockTable[:5] },
		"with stride -1":                         func(b *attention.Batch) { b.Stride = -1 },
	} {
		b := batch(t, 0)
		change(b)
		r.refuses(want, r.op.Prepare(r.stream, b, 8, 3))
	}
	r.must(r.op.Prepare(r.stream, batch(t, 0), 8, 3))
}

// TestTooManyRows: Launch refuses more rows than the op's memory has room for, and more tiles than a grid.
func TestTooManyRows(t *testing.T) {
	r := newFakeRig(t, fake.Eager)
	const rows = 1 << 16 // a tile each, if each is a request
	code := func(context.Context, attn.Variant) (*program.Program, error) { return image, nil }
	op, err := attn.New(r.dev, attn.Options{MaxRows: rows, MaxBlocks: 1, Code: code})
	r.must(err)
	tensor := func(dims ...int64) device.Tensor { return r.tensor(dtype.F32, dims...) }
	r.args = []device.Tensor{tensor(rows, 1, 8), tensor(rows, 1, 8), tensor(rows, 1, 8), tensor(1, 2, 4, 1, 8), tensor(rows, 1, 8)}
	c := r.call(attention.NewBatch(0, 0, 0))
	r.refuses("65536 rows, the op was made for 28", r.op.Launch(c))
	r.must(r.stream.BeginCapture(device.CaptureThreadLocal))
	r.refuses("65536 rows are 69632 tiles, a grid has room for 65535", op.Launch(c))
	g, err := r.stream.EndCapture()
	r.must(errors.Join(err, g.Close(), op.Close()))
}

// TestGrids: the grid of an eager step has the tiles of the step and the parts of its contexts, at most one
// for each 64 keys, or for each 512 in large tiles. The grid of a captured step has all small tiles that a step
// of its size may have, one for each row. The GPU has four multiprocessors, with at least two blocks each.
func TestGrids(t *testing.T) {
	r := newFakeRig(t, fake.Eager)
	tensor := func(dims ...int64) device.Tensor { return r.tensor(dtype.BF16, dims...) }
	cache := tensor(9, 2, 512, 1, 16)
	operands := func(rows int64) { // 4 heads a row share keys
		r.args = []device.Tensor{tensor(rows, 4, 16), tensor(rows, 1, 16), tensor(rows, 1, 16), cache, tensor(rows, 4, 16)}
	}
	step := func(computed, tokens int) *attention.Batch {
		b := attention.NewBatch(1, 16, 4)
		r.must(b.Add(computed, tokens, []int32{1, 2, 3, 4}, 512))
		return b
	}
	for _, c := range []struct {
		operands         int64
		computed, tokens int
		want             [3]uint32
	}{
		{2, 0, 1, [3]uint32{1, 1, 1}},     // nothing to split
		{2, 64, 1, [3]uint32{1, 1, 2}},    // a part for each 64 keys
		{2, 1000, 2, [3]uint32{1, 1, 4}},  // as many as fill the GPU with 2 rows
		{16, 1000, 1, [3]uint32{1, 1, 1}}, // 16 rows fill it
		{16, 300, 16, [3]uint32{1, 1, 1}}, // 64 pairs fit in one large tile
		{16, 1000, 16, [3]uint32{1, 1, 2}},
	} {
		operands(c.operands)
		b := step(c.computed, c.tokens)
		r.must(r.op.Prepare(r.stream, b, c.operands, int64(b.Rows())))
		r.must(r.op.Launch(r.call(b)))
		r.must(r.stream.Synchronize())
		if got := r.seen[len(r.seen)-1]; got.grid != c.want || got.multiprocessors != 4 {
			t.Errorf("%d tokens after %d, of %d: grid %v for %d multiprocessors, want %v for 4", c.tokens, c.computed, c.operands, got.grid, got.multiprocessors, c.want)
		}
	}
	if last := r.seen[len(r.seen)-1]; last.parts < 2 || last.least != 1 || last.most != math.MaxInt32 {
		t.Errorf("requests of %d to %d pairs in %d parts, want all of them, split", last.least, last.most, last.parts)
	}
	call := r.call(step(1000, 16))
	r.must(r.stream.BeginCapture(device.CaptureThreadLocal))
	r.must(r.op.Launch(call))
	g, err := r.stream.EndCapture()
	r.must(err)
	r.must(errors.Join(r.stream.LaunchGraph(g), r.stream.Synchronize(), g.Close()))
	if got := r.seen[len(r.seen)-1]; got.grid != [3]uint32{1, 16, 1} || got.least != 1 || got.most != math.MaxInt32 {
		t.Errorf("recorded: grid %v for requests of %d to %d pairs", got.grid, got.least, got.most)
	}
	for i := range call.Args {
		odd := *call
		odd.Args = slices.Clone(call.Args)
		odd.Args[i].Buffer.Offset, odd.Args[i].Buffer.Size = 8, 0
		r.refuses("not a multiple of 16", r.op.Launch(&odd))
	}
}

// TestKinds: with short heads a small step has blocks of eight warps; larger steps have blocks of four warps, some dense
// ones of two, with more of them on a multiprocessor. Eager steps compute requests of more than 16 pairs
// in a launch of their own. That of the other requests follows, and may overlap with it. A captured call is one launch.
func TestKinds(t *testing.T) {
	r := newFakeRig(t, fake.Eager)
	tensor := func(dims ...int64) device.Tensor { return r.tensor(dtype.BF16, dims...) }
	cache := tensor(9, 2, 16, 1, 64)
	launch := func(operands int64, captured bool, tokens ...int) []seen { // of each request; 4 heads a row share keys
		r.args = []device.Tensor{tensor(operands, 4, 64), tensor(operands, 1, 64), tensor(operands, 1, 64), cache, tensor(operands, 4, 64)}
		b := attention.NewBatch(len(tokens), 16, 4)
		for i, n := range tokens {
			r.must(b.Add(5, n, []int32{int32(1 + i), 4, 5, 6}, 16))
		}
		c := r.call(b)
		r.must(r.op.Prepare(r.stream, b, operands, int64(b.Rows())))
		before := len(r.seen)
		if captured {
			r.must(r.stream.BeginCapture(device.CaptureThreadLocal))
		}
		r.must(r.op.Launch(c))
		if captured {
			g, err := r.stream.EndCapture()
			r.must(err)
			if n := g.Nodes(); n != 1 {
				t.Errorf("recorded as %d nodes", n)
			}
			r.must(errors.Join(r.stream.LaunchGraph(g), r.stream.Synchronize(), g.Close()))
		}
		r.must(r.stream.Synchronize())
		return r.seen[before:]
	}
	all := func(what string, got []seen, threads uint32, most int) seen { // most pairs of a request
		t.Helper()
		if len(got) != 1 || got[0].threads != threads || got[0].least != 1 || got[0].most != most || got[0].order != 0 {
			t.Fatalf("%s: %+v, want one launch of blocks of %d threads for requests of up to %d pairs", what, got, threads, most)
		}
		return got[0]
	}
	const small, every = 16, math.MaxInt32
	all("a size without large tiles", launch(4, false, 1), 256, small)
	if r.asked != 1 {
		t.Errorf("code was asked for %d times while sizes are small", r.asked)
	}
	all("a small size", launch(8, false, 1), 256, small)
	if r.asked != 2 {
		t.Errorf("code was asked for %d times in sizes with large tiles", r.asked)
	}
	many := all("a larger size", launch(16, false, 4, 1), 128, small)
	large := all("a chunk", launch(8, false, 8), 128, every)
	if large.shared <= many.shared {
		t.Errorf("blocks of %d bytes for large tiles, of %d for small ones", large.shared, many.shared)
	}
	if again := all("a chunk in a larger size", launch(16, false, 8, 5), 128, every); again.shared != large.shared {
		t.Errorf("large tiles in blocks of %d and %d bytes", large.shared, again.shared)
	}
	for operands, threads := range map[int64]uint32{8: 256, 16: 128} {
		got := launch(operands, false, 5, 1, 2)
		if len(got) != 2 || got[0].least != small+1 || got[0].most != every || got[0].shared != large.shared || got[0].grid[1] != 3 || got[0].order != 1 ||
			got[1].least != 1 || got[1].most != small || got[1].threads != threads || got[1].grid[1] != 3 || got[1].order != 2 {
			t.Errorf("a chunk and decodes, of %d: %+v", operands, got)
		}
		// Both launches may run at the same time: scratch has the same layout, and the counters of the first, 129 for
		// each of 4 blocks on 4 multiprocessors, do not overlap those of the second.
		if got[0].capacity != got[1].capacity || got[1].counters-got[0].counters < 4*129*4*4 {
			t.Errorf("the two launches overlap in memory: %+v", got)
		}
	}
	if g := all("a graph", launch(16, true, 8), many.threads, every); g.shared != many.shared {
		t.Errorf("a graph has blocks of %d bytes", g.shared)
	}
	if r.asked != 5 {
		t.Errorf("code was asked for %d times", r.asked)
	}
	// Dense steps, in which more blocks run at once, have blocks of four warps or two. 28 rows are too many for them.
	for rows, want := range map[int64]uint32{20: 128, 24: 64, 28: 128} {
		all(fmt.Sprint("a size of ", rows), launch(rows, false, 1), want, small)
	}
}

// TestEven: shared memory limits a multiprocessor to the number of blocks that spreads a step evenly.
func TestEven(t *testing.T) {
	const all, own = 228 << 10, 1 << 10 // bytes of a multiprocessor, and those that CUDA reserves for each block
	for _, c := range []struct {
		dim, rows int64
		want      uint32 // blocks; there are 4 multiprocessors
	}{
		{128, 1, 2}, {128, 8, 2}, {128, 9, 3}, {128, 12, 3}, {128, 13, 4}, {128, 16, 4}, {128, 17, 3}, {128, 25, 2},
		{64, 8, 2}, {64, 9, 3}, {64, 12, 3}, {64, 13, 4}, {64, 16, 4}, {64, 17, 5}, {64, 20, 5}, {64, 21, 6}, {64, 24, 6}, {64, 25, 4},
		{32, 24, 6}, {256, 9, 1},
	} {
		r := newFakeRig(t, fake.Eager)
		tensor := func(dims ...int64) device.Tensor { return r.tensor(dtype.BF16, dims...) }
		r.args = []device.Tensor{tensor(c.rows, 4, c.dim), tensor(c.rows, 1, c.dim), tensor(c.rows, 1, c.dim), tensor(9, 2, 16, 1, c.dim), tensor(c.rows, 4, c.dim)}
		b := attention.NewBatch(1, 16, 4)
		r.must(b.Add(5, 1, []int32{1, 2, 3, 4}, 16))
		r.must(r.op.Prepare(r.stream, b, c.rows, 1))
		r.must(errors.Join(r.op.Launch(r.call(b)), r.stream.Synchronize()))
		if block := r.seen[len(r.seen)-1].shared + own; all/block != c.want {
			t.Errorf("heads of %d, %d rows: %d blocks of %d bytes on a multiprocessor, want %d", c.dim, c.rows, all/block, block, c.want)
		}
	}
}

// TestCaptured: a replay reads the metadata that was prepared before it.
func TestCaptured(t *testing.T) {
	r := newFakeRig(t, fake.Eager)
	b := batch(t, 0)
	c := r.call(b)
	c.Meta = nil
	r.must(r.stream.BeginCapture(device.CaptureThreadLocal))
	r.must(r.op.Launch(c))
	g, err := r.stream.EndCapture()
	r.must(err)
	defer func() { r.must(errors.Join(r.stream.Synchronize(), g.Close())) }()
	for i := range 3 {
		r.must(r.op.Prepare(r.stream, batch(t, i), 8, 3))
		r.must(r.stream.LaunchGraph(g))
	}
	r.must(r.stream.Synchronize())
	for i, got := range r.seen {
		if got.lengths[0] != int32(i+2) {
			t.Errorf("replay %d found lengths %v", i, got.lengths)
		}
	}
	// Prepare validates against the cache of the captured call.
	far := batch(t, 0)
	far.BlockTable[3] = 9
	far.Slots[2] = 9*4 + 1
	r.refuses("the cache has 9", r.op.Prepare(r.stream, far, 8, 3))
}

// TestNewCache: a launch with a cache of a new shape does not use metadata that was copied before the op
// knew this cache and that has a block outside of it.
func TestNewCache(t *testing.T) {
	far := func() *attention.Batch { // it has block 9, after the 9 blocks of the cache
		b := batch(t, 0)
		b.BlockTable[4] = 9
		b.Slots[2] = 9*4 + 1
		return b
	}
	t.Run("changed after Prepare", func(t *testing.T) {
		r := newFakeRig(t, fake.Eager)
		b := far()
		r.must(r.op.Prepare(r.stream, b, 8, 3))
		*b = *batch(t, 0)
		r.must(errors.Join(r.op.Launch(r.call(b)), r.stream.Synchronize()))
		if got := r.seen[len(r.seen)-1]; slices.Max(got.table) >= 9 || slices.Max(got.slots) >= 9*4 {
			t.Errorf("the kernel got the block table %v and the slots %v", got.table, got.slots)
		}
	})
	for _, known := range []bool{false, true} { // whether the op knows a larger cache
		t.Run(fmt.Sprintf("captured after Prepare, larger cache %v", known), func(t *testing.T) {
			r := newFakeRig(t, fake.Eager)
			b := far()
			c := r.call(b)
			if known {
				large := *c
				large.Args = slices.Clone(c.Args)
				shape := slices.Clone(c.Args[attention.ArgKV].Shape)
				shape[0] = 10
				large.Args[attention.ArgKV] = r.tensor(c.Args[attention.ArgKV].DType, shape...)
				r.must(r.op.Launch(&large))
			}
			r.must(r.op.Prepare(r.stream, b, 8, 3))
			r.must(r.stream.BeginCapture(device.CaptureThreadLocal))
			r.must(r.op.Launch(c))
			g, err := r.stream.EndCapture()
			r.must(err)
			r.refuses("the cache has 9", r.op.Launch(c))
			r.must(errors.Join(r.stream.Synchronize(), g.Close()))
		})
	}
}

func TestRefuses(t *testing.T) {
	r := newFakeRig(t, fake.Eager)
	c := r.call(batch(t, 0))
	r.must(r.op.Launch(c))
	r.refuses("must be a *attention.Batch", r.op.Prepare(r.stream, 3, 8, 3))
	r.refuses("describes 3 rows, the step has 2", r.op.Prepare(r.stream, batch(t, 0), 8, 2))
	r.refuses("not within Options.MaxRows 28, MaxRequests 8 and MaxBlocks 4", r.op.Prepare(r.stream, attention.NewBatch(1, 1, 5), 8, 0))
	r.refuses("not within Options.MaxRows 28, MaxRequests 8 and MaxBlocks 4", r.op.Prepare(r.stream, batch(t, 0), 8, 29))
	many := attention.NewBatch(9, 9, 1)
	for range 9 {
		r.must(many.Add(0, 0, nil, 4))
	}
	r.refuses("a batch of 0 rows, 9 requests and stride 1, not within Options.MaxRows 28, MaxRequests 8 and MaxBlocks 4", r.op.Prepare(r.stream, many, 8, 0))
	shared := attention.NewBatch(2, 8, 3)
	r.must(errors.Join(shared.Add(4, 2, []int32{7, 1}, 4), shared.Add(6, 1, []int32{7, 1}, 4)))
	r.refuses("request 0 reads block 1, which request 1 appends to in this step", r.op.Prepare(r.stream, shared, 8, 3))
	read := attention.NewBatch(2, 8, 3)
	r.must(errors.Join(read.Add(4, 2, []int32{7, 1}, 4), read.Add(8, 1, []int32{1, 3, 2}, 4)))
	r.refuses("request 1 reads block 1, which request 0 appends to in this step", r.op.Prepare(r.stream, read, 8, 3))
	twice := attention.NewBatch(2, 8, 3) // the same request has a block twice
	r.must(errors.Join(twice.Add(4, 2, []int32{1, 1}, 4), twice.Add(4, 1, []int32{7, 2}, 4)))
	r.must(r.op.Prepare(r.stream, twice, 8, 3))
	padded := attention.NewBatch(2, 8, 3) // the request of a padded row reads a block and does not append to it
	r.must(errors.Join(padded.Add(5, 1, []int32{7, 1}, 4), padded.Add(6, 1, []int32{3, 1}, 4)))
	padded.Slots[1] = attention.PaddedSlot
	r.refuses("request 1 reads block 1, which request 0 appends to in this step", r.op.Prepare(r.stream, padded, 8, 2))
	prefix := attention.NewBatch(2, 8, 3)
	r.must(errors.Join(prefix.Add(4, 2, []int32{7, 1}, 4), prefix.Add(4, 1, []int32{7, 2}, 4)))
	r.must(r.op.Prepare(r.stream, prefix, 8, 3))
	other, err := r.dev.NewStream()
	r.must(err)
	defer func() { r.must(other.Close()) }()
	r.refuses("used on two streams", r.op.Prepare(other, batch(t, 0), 8, 3))
	few := *c // with few rows, so that contexts are split
	few.Args = slices.Clone(c.Args)
	for i := range few.Args {
		if i != attention.ArgKV {
			few.Args[i].Shape = append([]int64{2}, c.Args[i].Shape[1:]...)
		}
	}
	pair := attention.NewBatch(2, 2, 3)
	r.must(pair.Add(4, 2, []int32{7, 1}, 4))
	few.Size, few.Rows, few.Meta, few.Scratch.Size = 2, 2, pair, 1
	r.refuses("are needed", r.op.Launch(&few))
	c.Rows = 9
	r.refuses("the step has 9 rows, its operands have 8", r.op.Launch(c))
	for _, o := range []attn.Options{{}, {MaxRows: 1, MaxBlocks: 1}, {MaxRows: 1, MaxBlocks: 0}} {
		_, err := attn.New(r.dev, o)
		r.refuses("must be positive", err)
	}
	r.must(r.stream.Synchronize())
	r.must(r.op.Close())
	c.Rows = 3
	if err := r.op.Launch(c); !errors.Is(err, device.ErrClosed) {
		t.Errorf("a launch after Close: %v", err)
	}
	if err := r.op.Prepare(r.stream, batch(t, 0), 8, 3); !errors.Is(err, device.ErrClosed) {
		t.Errorf("a step after Close: %v", err)
	}
}

// TestSharedBlocks: Prepare refuses a step exactly if a request with rows has a block that another request
// appends to. Requests may share other blocks.
func TestSharedBlocks(t *testing.T) {
	r := newFakeRig(t, fake.Eager)
	r.must(r.op.Launch(r.call(batch(t, 0)))) // the op knows the cache
	refused := 0
	rapid.Check(t, func(t *rapid.T) {
		b := attention.NewBatch(4, 16, 4)
		for range rapid.IntRange(1, 4).Draw(t, "requests") {
			rows := rapid.IntRange(0, 3).Draw(t, "rows")
			computed := rapid.IntRange(0, 13-rows).Draw(t, "computed")
			blocks := rapid.SliceOfN(rapid.Int32Range(0, 7), 4, 4).Draw(t, "blocks")
			if err := b.Add(computed, rows, blocks, 4); err != nil {
				t.Fatal(err)
			}
		}
		for i := range b.Slots {
			if rapid.IntRange(0, 7).Draw(t, "padded") == 0 {
				b.Slots[i] = attention.PaddedSlot
			}
		}
		shares := false
		for a := range b.Requests() {
			for _, s := range b.Slots[b.QueryStart[a]:b.QueryStart[a+1]] {
				for q := range b.Requests() {
					reads := b.QueryStart[q] < b.QueryStart[q+1] && slices.Contains(b.BlockTable[q*b.Stride:][:(b.SeqLens[q]+3)/4], s/4)
					shares = shares || s != attention.PaddedSlot && q != a && reads
				}
			}
		}
		err := r.op.Prepare(r.stream, b, 16, int64(b.Rows()))
		if (err != nil) != shares {
			t.Fatalf("%+v: %v, shared: %v", b, err, shares)
		}
		if shares {
			refused++
		}
	})
	if refused == 0 {
		t.Error("nothing was refused")
	}
}

// TestAllocations: a step in steady state allocates no more than the fake driver does.
func TestAllocations(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} { // without tensor cores, and with
		t.Run(dt.String(), func(t *testing.T) { holdAllocations(t, dt) })
	}
}

func holdAllocations(t *testing.T, dt dtype.DType) {
	r := newFakeRig(t, fake.Eager)
	r.blind = true
	for i, a := range r.args {
		dims := slices.Clone(a.Shape)
		dims[len(dims)-1] = 64
		r.args[i] = r.tensor(dt, dims...)
	}
	b := batch(t, 0)
	c := r.call(b)
	m, err := r.dev.LoadModule(image)
	r.must(err)
	defer func() { r.must(errors.Join(r.stream.Synchronize(), m.Close())) }()
	f, err := m.Function("paged")
	r.must(err)
	bare, err := f.NewCall(21, cuda.LaunchOptions{})
	r.must(err)
	for i := range r.args {
		r.must(bare.SetBuffer(i, r.args[i].Buffer))
	}
	r.must(bare.SetBuffer(5, c.Scratch))
	bare.Grid, bare.Block = [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}
	event, err := r.dev.NewEvent()
	r.must(err)
	host, err := r.dev.AllocHost(c.Scratch.Size)
	r.must(err)
	fakes := testing.AllocsPerRun(20, func() {
		r.must(errors.Join(event.Synchronize(), r.stream.CopyToDevice(c.Scratch, host.Bytes()), r.stream.Record(event), r.stream.(*cuda.Stream).LaunchKernel(bare)))
	})
	// Consecutive steps append to different blocks.
	next, steps := 0, []*attention.Batch{b, batch(t, 4)}
	ours := testing.AllocsPerRun(20, func() {
		next = 1 - next
		c.Meta = steps[next]
		r.must(r.op.Prepare(r.stream, steps[next], 8, 3))
		r.must(r.op.Launch(c))
	})
	if ours > fakes {
		t.Errorf("%v allocations, %v of them the fake driver's", ours, fakes)
	}
}

// TestScratchBoundsSmallerSizes: ScratchBytes never falls with more rows, although contexts of fewer rows are split into
// more parts.
func TestScratchBoundsSmallerSizes(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.F32, dtype.BF16} { // without tensor cores, and with
		t.Run(dt.String(), func(t *testing.T) { holdScratch(t, dt) })
	}
}

func holdScratch(t *testing.T, dt dtype.DType) {
	r := newFakeRig(t, fake.Eager)
	least, grown := int64(0), false
	for rows := int64(1); rows <= 2048; rows++ {
		args := slices.Clone(r.args)
		for i := range args {
			args[i].DType, args[i].Shape = dt, slices.Clone(args[i].Shape)
			if args[i].Shape[len(args[i].Shape)-1] = 64; i != attention.ArgKV {
				args[i].Shape[0] = rows
			}
		}
		n, err := r.op.ScratchBytes(args, nil)
		r.must(err)
		if n < least {
			t.Fatalf("%d rows need %d bytes, fewer rows need %d", rows, n, least)
		}
		least, grown = n, grown || n > 0
	}
	if !grown {
		t.Error("nothing was split")
	}
}
