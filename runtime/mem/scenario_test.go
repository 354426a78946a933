package mem

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"pwc/runtime/device"
)

// The tests of PyTorch's test_cuda.py that need an allocator but no device, with PyTorch's
// numbers. The comment of such a test names its original.

// rig is an allocator with streams.
type rig struct {
	t       testing.TB
	dev     *fakeDevice
	a       *Allocator
	streams []device.Stream
}

func newRig(t testing.TB, streams int) *rig {
	r := &rig{t: t, dev: &fakeDevice{}}
	r.a = New(r.dev, Options{})
	for i := range streams {
		r.streams = append(r.streams, &fakeStream{name: fmt.Sprint(i)})
	}
	return r
}

func (r *rig) alloc(bytes int64) Block {
	r.t.Helper()
	return must[Block](r.t)(r.a.Alloc(r.streams[0], bytes))
}

func (r *rig) free(blocks ...Block) {
	r.t.Helper()
	for _, b := range blocks {
		check(r.t, r.a.Free(b))
	}
}

// capture runs f while stream 0 captures into the pool.
func (r *rig) capture(id PoolID, f func()) *Scope {
	r.t.Helper()
	c := must[*Scope](r.t)(r.a.BeginCapture(id, r.streams[0]))
	f()
	check(r.t, c.End())
	return c
}

func (r *rig) at(b Block) Address {
	r.t.Helper()
	return AddressOf(must[device.Buffer](r.t)(b.Buffer()))
}

func (r *rig) at2(blocks []Block) (at []Address) {
	r.t.Helper()
	for _, b := range blocks {
		at = append(at, r.at(b))
	}
	return at
}

func (r *rig) live(p *Pool, want int) {
	r.t.Helper()
	if got := p.LiveBlocks(); len(got) != want {
		r.t.Fatalf("%d live blocks, want %d: %v", len(got), want, got)
	}
}

// blocks returns a pool's blocks as "2560 f, 512 L": bytes, and f for free, L for live, p
// for pending. "; " is between segments.
func blocks(p *Pool) string {
	var segs []string
	for _, seg := range p.Snapshot() {
		var s []string
		for _, b := range seg.Blocks {
			state := map[string]string{BlockFree: "f", BlockActive: "L", BlockPending: "p"}[b.State]
			s = append(s, fmt.Sprint(b.Bytes, " ", state))
		}
		segs = append(segs, strings.Join(s, ", "))
	}
	return strings.Join(segs, "; ")
}

// roundTrip is the check of PyTorch's TestBlockStateAbsorption: after a restore to a
// checkpoint that was just taken, every segment is as before. It restores once with
// handles that stay valid, and once with handles that are passed as stale. At the end it
// frees the blocks.
func (r *rig) roundTrip(p *Pool, owned []Block) {
	r.t.Helper()
	for _, stale := range [][]Block{nil, owned} {
		before := p.Snapshot()
		st := must[*State](r.t)(p.Checkpoint())
		res := must[Restored](r.t)(p.Restore(st, stale, nil))
		after := p.Snapshot()
		for i := range after {
			for j := range after[i].Blocks {
				// Owners are not part of a block's state.
				b, a := &before[i].Blocks[j], &after[i].Blocks[j]
				if a.Owned != (b.Owned && stale == nil) {
					r.t.Errorf("segment %d block %d: owned %v, was %v", i, j, a.Owned, b.Owned)
				}
				a.Owned, b.Owned = false, false
			}
		}
		if !reflect.DeepEqual(before, after) {
			r.t.Errorf("restored\n got %+v\nwant %+v", after, before)
		}
		if n := len(p.LiveBlocks()); len(res.Freed) != n || !slices.Equal(res.Freed, res.Created) {
			r.t.Errorf("%d freed, %d created, %d live", len(res.Freed), len(res.Created), n)
		}
		for _, b := range owned {
			if _, err := b.Buffer(); (err == nil) != (stale == nil) {
				r.t.Errorf("handle after restore: %v", err)
			}
		}
	}
	for _, b := range p.LiveBlocks() {
		check(r.t, p.FreeUnowned(b.Address))
	}
}

// TestGraphTwoSuccessive is test_graph_two_successive: two graphs that share a pool
// reserve 2 MiB less.
func TestGraphTwoSuccessive(t *testing.T) {
	reserved := map[string]int64{}
	for _, share := range []string{"unshared", "pool", "handle"} {
		r := newRig(t, 1)
		step := func(b Block) Block { // (t+v)+(t+v)
			x, y := r.alloc(4000), r.alloc(4000)
			z := r.alloc(4000)
			r.free(x, y, b)
			return z
		}
		var id PoolID
		if share == "handle" {
			id = r.a.NewHandle()
		}
		var b Block
		five := func() {
			for range 5 {
				b = step(b)
			}
		}
		g0 := r.capture(id, func() { b = r.alloc(4000); five() })
		if share == "pool" {
			id = g0.Pool().ID()
		}
		g1 := r.capture(id, func() {
			first := b // belongs to g0
			x, y := r.alloc(4000), r.alloc(4000)
			b = r.alloc(4000)
			r.free(x, y)
			for range 4 {
				b = step(b)
			}
			r.free(first)
		})
		reserved[share] = r.a.Stats().ReservedBytes.Now
		r.free(b)
		check(t, g0.Release())
		check(t, g1.Release())
		if n := must[int64](t)(r.a.Empty()); n != reserved[share] {
			t.Errorf("%s: %d bytes emptied, %d reserved", share, n, reserved[share])
		}
	}
	for _, share := range []string{"pool", "handle"} {
		if d := reserved["unshared"] - reserved[share]; d != 2097152 {
			t.Errorf("%s saves %d bytes, want 2097152", share, d)
		}
	}
}

// TestGraphThreeSuccessive is test_graph_three_successive. The replays are computed from
// the addresses of the blocks. If graphs of a shared pool are replayed in another order than
// captured, they may overwrite each other's results; package graphs refuses such a replay.
func TestGraphThreeSuccessive(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}} {
			r := newRig(t, 1)
			memory := map[Address]int64{} // value of 1000 equal elements
			var graphs [3][]func()
			add := func(g int, from Address, n int64) Block {
				b := r.alloc(4000)
				to := r.at(b)
				graphs[g] = append(graphs[g], func() { memory[to] = memory[from] + n })
				return b
			}
			var pools [3]PoolID
			if shared {
				h := r.a.NewHandle()
				pools = [3]PoolID{h, h, h}
			}
			input := Address{Offset: -1}
			memory[input] = 1
			var b, c, d, e, f Block
			scopes := []*Scope{
				r.capture(pools[0], func() {
					b = add(0, input, 0)
					c, d = add(0, r.at(b), 1), add(0, r.at(b), 2)
				}),
				r.capture(pools[1], func() { e = add(1, r.at(c), 3) }),
			}
			r.free(c)
			scopes = append(scopes, r.capture(pools[2], func() { f = add(2, r.at(d), 4) }))
			for _, g := range order {
				for _, op := range graphs[g] {
					op()
				}
			}
			wantE := int64(5000)
			if shared && order[1] == 2 {
				wantE = 10000
			}
			if got := 1000 * memory[r.at(e)]; got != wantE {
				t.Errorf("shared %v, order %v: e sums to %d, want %d", shared, order, got, wantE)
			}
			if got := 1000 * memory[r.at(f)]; got != 7000 {
				t.Errorf("shared %v, order %v: f sums to %d, want 7000", shared, order, got)
			}
			r.free(b, d, e, f)
			for _, c := range scopes {
				check(t, c.Release())
			}
			check(t, r.a.Close())
		}
	}
}

// TestGraphMemoryStatsAndUseResultAfterDestroyGraph is
// test_graph_memory_stats_and_use_result_after_destroy_graph, without the blocks of
// PyTorch's random number generator.
func TestGraphMemoryStatsAndUseResultAfterDestroyGraph(t *testing.T) {
	for _, row := range []struct {
		bytes                     int64
		pool                      string
		segments, reserved, after int64
	}{
		{512, "small_pool", 1, 2 * mib, 2 * mib},
		{mib, "small_pool", 2, 4 * mib, 2 * mib},
		{mib + 512, "large_pool", 1, 20 * mib, 20 * mib},
		{10*mib - 512, "large_pool", 2, 40 * mib, 20 * mib},
		{10*mib + 512, "large_pool", 3, 36 * mib, 12 * mib},
	} {
		r := newRig(t, 1)
		a := r.alloc(row.bytes)
		for i := range 2 {
			before, stats := r.stats(), r.a.Stats()
			var b Block
			g := r.capture(PoolID{}, func() {
				b = r.alloc(row.bytes)
				for range 5 {
					clone := r.alloc(row.bytes)
					sum := r.alloc(row.bytes)
					r.free(clone, b)
					b = sum
				}
			})
			if n := r.a.Stats().SegmentAllocs - stats.SegmentAllocs; n != row.segments {
				t.Errorf("%d bytes: %d segments, want %d", row.bytes, n, row.segments)
			}
			r.delta(row.bytes, before, map[string]int64{
				"segment." + row.pool: row.segments, "reserved_bytes." + row.pool: row.reserved, "active." + row.pool: 1, "active_bytes." + row.pool: row.bytes,
			})
			check(t, g.Release())
			must[int64](t)(r.a.Empty())
			r.delta(row.bytes, before, map[string]int64{
				"segment." + row.pool: 1, "reserved_bytes." + row.pool: row.after, "active." + row.pool: 1, "active_bytes." + row.pool: row.bytes,
			})
			if buf, err := b.Buffer(); err != nil || buf.Size != row.bytes {
				t.Errorf("%d bytes, round %d: the result after its graph: %v, %v", row.bytes, i, buf, err)
			}
			r.free(b)
			must[int64](t)(r.a.Empty())
			r.delta(row.bytes, before, nil)
		}
		r.free(a)
		check(t, r.a.Close())
	}
}

func (r *rig) stats() map[string]int64 {
	st := r.a.Stats()
	return st.Map()
}

// delta compares the changes of some gauges since before with want; gauges that are not in
// want must not have changed.
func (r *rig) delta(bytes int64, before map[string]int64, want map[string]int64) {
	r.t.Helper()
	now := r.stats()
	for _, pool := range []string{"small_pool", "large_pool"} {
		for _, family := range []string{"segment.", "reserved_bytes.", "active.", "active_bytes."} {
			name := family + pool
			if d := now[name+".current"] - before[name+".current"]; d != want[name] {
				r.t.Errorf("%d bytes: %s changed by %d, want %d", bytes, name, d, want[name])
			}
		}
	}
}

// TestCUDAGraphAllocatorPropagatesStream is
// test_cuda_graph_allocator_propagates_stream.
func TestCUDAGraphAllocatorPropagatesStream(t *testing.T) {
	r := newRig(t, 2)
	g := must[*Scope](t)(r.a.BeginCapture(PoolID{}, r.streams[0]))
	r.alloc(100)
	check(t, g.Order(r.streams[0], r.streams[1]))
	must[Block](t)(r.a.Alloc(r.streams[1], 100))
	check(t, g.Order(r.streams[1], r.streams[0]))
	check(t, g.End())
	segs := r.a.Snapshot()
	if len(segs) != 2 || segs[0].PoolID != (PoolID{1, 0}) || segs[1].PoolID != (PoolID{1, 0}) || segs[0].StreamID == segs[1].StreamID {
		t.Errorf("segments %+v", segs)
	}
}

// TestBlockStateSimple is TestBlockStateAbsorption.test_simple.
func TestBlockStateSimple(t *testing.T) {
	r := newRig(t, 1)
	var x, y, z Block
	g := r.capture(PoolID{}, func() {
		zeros := r.alloc(8 * mib)
		x = r.alloc(8 * mib)
		r.free(zeros)
		chain := r.alloc(mib)
		for range 3 {
			other := r.alloc(mib)
			sum := r.alloc(mib)
			r.free(other, chain)
			chain = sum
		}
		y, z = chain, r.alloc(mib)
	})
	r.live(g.Pool(), 3)
	r.roundTrip(g.Pool(), []Block{x, y, z})
	check(t, g.Release())
	check(t, r.a.Close())
}

// TestBlockStateMiddleAllocations is test_multiple_middle_allocations and
// test_middle_allocations_contiguous: of ten blocks of 512 bytes two stay.
func TestBlockStateMiddleAllocations(t *testing.T) {
	for _, x := range []struct {
		name string
		keep [2]int
		want string
	}{
		{"multiple_middle_allocations", [2]int{5, 8}, "2560 f, 512 L, 1024 f, 512 L, 2092544 f"},
		{"middle_allocations_contiguous", [2]int{5, 6}, "2560 f, 512 L, 512 L, 2093568 f"},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := newRig(t, 1)
			var kept []Block
			g := r.capture(PoolID{}, func() {
				var all []Block
				for range 10 {
					all = append(all, r.alloc(512))
				}
				for i, b := range all {
					if slices.Contains(x.keep[:], i) {
						kept = append(kept, b)
					} else {
						r.free(b)
					}
				}
			})
			if got := blocks(g.Pool()); got != x.want {
				t.Errorf("blocks %s, want %s", got, x.want)
			}
			r.roundTrip(g.Pool(), kept)
			check(t, g.Release())
			check(t, r.a.Close())
		})
	}
}

// TestTensorDiesAfterCheckpoint is test_tensor_dies_after_checkpoint.
func TestTensorDiesAfterCheckpoint(t *testing.T) {
	r := newRig(t, 1)
	var out []Block
	g := r.capture(PoolID{}, func() { out = []Block{r.alloc(mib), r.alloc(mib)} })
	p := g.Pool()
	st := must[*State](t)(p.Checkpoint())
	at := r.at2(out)
	r.free(out...)
	r.live(p, 0)
	must[Restored](t)(p.Restore(st, nil, nil))
	r.live(p, 2)
	check(t, p.FreeUnowned(at[0]))
	r.live(p, 1)
	check(t, p.FreeUnowned(at[1]))
	r.live(p, 0)
	if err := p.FreeUnowned(at[1]); !errors.Is(err, ErrNoBlock) {
		t.Errorf("a second free by address: %v", err)
	}
}

// TestAssigningBackDeleterFnsToTensor is
// test_assigning_back_deleter_fns_to_tensor.
func TestAssigningBackDeleterFnsToTensor(t *testing.T) {
	r := newRig(t, 1)
	var out []Block
	g := r.capture(PoolID{}, func() { out = []Block{r.alloc(2 * mib), r.alloc(2 * mib), r.alloc(20 * mib)} })
	p := g.Pool()
	r.live(p, 3)
	st := must[*State](t)(p.Checkpoint())
	at := r.at2(out)
	r.free(out...)
	r.live(p, 0)
	res := must[Restored](t)(p.Restore(st, nil, at[:2]))
	r.live(p, 3)
	if !slices.Equal(r.at2(res.Live), at[:2]) {
		t.Errorf("owners of %v, want %v", r.at2(res.Live), at[:2])
	}
	for _, b := range out {
		if err := r.a.Free(b); !errors.Is(err, ErrDoubleFree) {
			t.Errorf("a handle from before the restore frees: %v", err)
		}
	}
	r.free(res.Live[0])
	r.live(p, 2)
	r.free(res.Live[1])
	r.live(p, 1)
	check(t, p.CheckLive(at[2:]))
	check(t, p.FreeUnowned(at[2]))
	r.live(p, 0)
}

// TestAllocateInThreadToPool is test_allocate_in_thread_to_pool, with a goroutine and an
// Owner for each thread.
func TestAllocateInThreadToPool(t *testing.T) {
	r := newRig(t, 1)
	var out Block
	g := r.capture(PoolID{}, func() { out = r.alloc(20 * mib) })
	p := g.Pool()
	if n := len(p.Snapshot()); n != 1 {
		t.Fatalf("%d segments of the pool", n)
	}
	var wg sync.WaitGroup
	allocate := func(o *Owner) {
		var blocks []Block
		for range 3 {
			b, err := o.Alloc(r.streams[0], 20*mib)
			if err != nil {
				t.Error(err)
				return
			}
			blocks = append(blocks, b)
		}
		for _, b := range blocks {
			if err := r.a.Free(b); err != nil {
				t.Error(err)
			}
		}
	}
	begun, done := make(chan struct{}), make(chan struct{})
	wg.Go(func() {
		o := r.a.NewOwner("inside")
		c, err := p.Begin(Route{Owner: o})
		close(begun)
		if err != nil {
			t.Error(err)
			return
		}
		for range 10 {
			allocate(o)
		}
		if err := errors.Join(c.End(), c.Release()); err != nil {
			t.Error(err)
		}
		<-done
		allocate(o) // outside again
	})
	wg.Go(func() {
		<-begun
		allocate(r.a.NewOwner("outside"))
		close(done)
	})
	wg.Wait()
	if n := len(p.Snapshot()); n != 4 {
		t.Errorf("%d segments of the pool, want 4", n)
	}
	if n := len(r.a.Default().Snapshot()); n != 3 {
		t.Errorf("%d segments of the default pool, want 3", n)
	}
	r.free(out)
	check(t, g.Release())
	must[int64](t)(r.a.Empty())
	if segs := r.a.Snapshot(); len(segs) != 0 {
		t.Errorf("segments %+v", segs)
	}
}

// TestCheckpointGrowth is test_expandable_segment_checkpoint_growth with segments of a
// fixed size: after a checkpoint the pool grows by whole segments.
func TestCheckpointGrowth(t *testing.T) {
	r := newRig(t, 1)
	h := r.a.NewHandle()
	g0 := r.capture(h, func() {})
	p := g0.Pool()
	s0 := must[*State](t)(p.Checkpoint())
	var a, b Block
	g1 := r.capture(h, func() { a = r.alloc(2 * mib) })
	at := r.at(a)
	s1 := must[*State](t)(p.Checkpoint())
	if got := blocks(p); got != "2097152 L, 18874368 f" {
		t.Errorf("after g1: %s", got)
	}
	must[Restored](t)(p.Restore(s0, []Block{a}, nil))
	if got := blocks(p); got != "20971520 f" {
		t.Errorf("restored to the checkpoint without blocks: %s", got)
	}
	g2 := r.capture(h, func() { b = r.alloc(32 * mib) })
	if got := blocks(p); got != "20971520 f; 33554432 L" {
		t.Errorf("after g2: %s", got)
	}
	must[Restored](t)(p.Restore(s0, []Block{b}, nil))
	res := must[Restored](t)(p.Restore(s1, nil, []Address{at}))
	if got := blocks(p); got != "2097152 L, 18874368 f; 33554432 f" {
		t.Errorf("restored to g1: %s", got)
	}
	if now := must[*State](t)(p.Checkpoint()); !now.Equal(s1) || now.Equal(s0) {
		t.Error("the state is not the one restored")
	}
	r.free(res.Live[0])
	for _, g := range []*Scope{g0, g1, g2} {
		check(t, g.Release())
	}
	check(t, r.a.Close())
}

// TestMempoolID is test_mempool_id and test_mempool_multithread.
func TestMempoolID(t *testing.T) {
	r := newRig(t, 1)
	h1, p := r.a.NewHandle(), r.a.NewPool("user")
	if h1[0] != 0 || p.ID()[0] != 0 || p.ID()[1] <= h1[1] {
		t.Errorf("ids %v, %v", h1, p.ID())
	}
	g := r.capture(PoolID{}, func() {})
	if id := g.Pool().ID(); id[0] == 0 || id[1] != 0 {
		t.Errorf("id of a capture's pool %v", id)
	}
	if id := r.a.Default().ID(); id != (PoolID{}) {
		t.Errorf("id of the default pool %v", id)
	}
	var mu sync.Mutex
	ids := map[PoolID]bool{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			id := r.a.NewPool("").ID()
			mu.Lock()
			defer mu.Unlock()
			ids[id] = true
		})
	}
	wg.Wait()
	if len(ids) != 4 {
		t.Errorf("%d distinct ids of 4", len(ids))
	}
}

// TestMempoolWithAllocator is test_mempool_with_allocator.
func TestMempoolWithAllocator(t *testing.T) {
	r := newRig(t, 1)
	own := &fakeDevice{}
	p := r.a.NewPoolWith(PoolOptions{Name: "own memory", Backing: own})
	o := r.a.NewOwner("user")
	if n := p.Uses(); n != 1 {
		t.Errorf("%d uses", n)
	}
	c := must[*Scope](t)(p.Begin(Route{Owner: o}))
	if n := p.Uses(); n != 2 {
		t.Errorf("%d uses inside", n)
	}
	var all []Block
	for _, want := range []int{1, 1, 2} {
		all = append(all, must[Block](t)(o.Alloc(r.streams[0], mib)))
		if n := len(p.Snapshot()); n != want {
			t.Errorf("%d segments, want %d", n, want)
		}
	}
	check(t, c.End())
	check(t, c.Release())
	if n := p.Uses(); n != 1 {
		t.Errorf("%d uses after", n)
	}
	r.free(all...)
	if n := must[int64](t)(r.a.Empty()); n != 0 || own.used != 4*mib {
		t.Errorf("a live pool gave back %d bytes", n)
	}
	check(t, p.Release())
	must[int64](t)(r.a.Empty())
	if own.used != 0 || r.dev.next != 0 {
		t.Errorf("%d bytes are left of the pool's own memory; %d segments came from elsewhere", own.used, r.dev.next)
	}
}

// TestNestedMempool is test_nested_mempool: of nested scopes the innermost one serves.
func TestNestedMempool(t *testing.T) {
	r := newRig(t, 1)
	o := r.a.NewOwner("user")
	var pools [3]*Pool
	for i := range pools {
		pools[i] = r.a.NewPool(fmt.Sprint(i + 1))
	}
	within := func(p *Pool, f func()) {
		c := must[*Scope](t)(p.Begin(Route{Owner: o}))
		f()
		check(t, c.End())
		check(t, c.Release())
	}
	alloc := func() { must[Block](t)(o.Alloc(r.streams[0], 20*mib)) }
	within(pools[0], func() {
		alloc()
		within(pools[1], func() {
			alloc()
			within(pools[2], alloc)
			alloc()
		})
		alloc()
	})
	for i, want := range []int{2, 2, 1} {
		if n := len(pools[i].Snapshot()); n != want {
			t.Errorf("%d segments of pool %d, want %d", n, i+1, want)
		}
	}
}

// TestMempoolCtxMultithread is test_mempool_ctx_multithread.
func TestMempoolCtxMultithread(t *testing.T) {
	r := newRig(t, 1)
	r.alloc(mib)
	p, o := r.a.NewPool("user"), r.a.NewOwner("user")
	c := must[*Scope](t)(p.Begin(Route{Owner: o}))
	b := must[Block](t)(o.Alloc(r.streams[0], mib))
	other := make(chan error)
	go func() {
		_, err := r.a.Alloc(r.streams[0], mib)
		other <- err
	}()
	check(t, <-other)
	r.free(b)
	check(t, c.End())
	check(t, c.Release())
	segs := r.a.Snapshot()
	if len(segs) != 2 || segs[0].PoolID != (PoolID{}) || segs[0].Active != 2097152 || segs[1].PoolID != p.ID() || segs[1].Active != 0 {
		t.Errorf("segments %+v", segs)
	}
}

// TestMempoolNoSplit is test_mempool_no_split.
func TestMempoolNoSplit(t *testing.T) {
	r := newRig(t, 1)
	split, whole := r.a.NewPool("split"), r.a.NewPoolWith(PoolOptions{Name: "whole", NoSplit: true})
	for _, p := range []*Pool{split, whole} {
		for range 2 {
			must[Block](t)(p.Alloc(r.streams[0], 4*mib))
		}
	}
	if got, want := blocks(split), "4194304 L, 4194304 L, 12582912 f"; got != want {
		t.Errorf("split: %s, want %s", got, want)
	}
	if got, want := blocks(whole), "20971520 L; 20971520 L"; got != want {
		t.Errorf("whole: %s, want %s", got, want)
	}
}

// TestMempoolUseOnOOM is test_mempool_limited_memory_with_allocator and
// test_deleted_mempool_not_used_on_oom.
func TestMempoolUseOnOOM(t *testing.T) {
	r := newRig(t, 1)
	r.dev.capacity = 40 * mib
	s := r.streams[0]
	other := r.a.NewPool("other")
	spare := r.a.NewPoolWith(PoolOptions{Name: "spare", UseOnOOM: true})
	x := must[Block](t)(other.Alloc(s, 20*mib))
	y := must[Block](t)(spare.Alloc(s, 20*mib))
	at := r.at(y)
	r.free(x, y)
	z, err := r.a.Alloc(s, 20*mib)
	if check(t, err); r.at(z) != at {
		t.Errorf("at %v, want %v of the pool with UseOnOOM", r.at(z), at)
	}
	if _, err := r.a.Alloc(s, 20*mib); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("a pool without UseOnOOM serves: %v", err)
	}
	// The block counts in the statistics of the pool that has its segment. Only the pool that
	// handed it out can free it.
	if spare.Stats().ActiveBlocks.Now != 1 || r.a.Default().Stats().ActiveBlocks.Now != 0 {
		t.Error("the block does not count for the pool of its segment")
	}
	if err := spare.Free(z); !errors.Is(err, ErrForeignBlock) {
		t.Errorf("freed by the pool that did not give it: %v", err)
	}
	check(t, r.a.Default().Free(z))
	// During a capture no pool lends memory.
	g := must[*Scope](t)(r.a.BeginCapture(PoolID{}, s))
	if _, err := r.a.Alloc(s, 20*mib); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("served by another pool during a capture: %v", err)
	}
	check(t, g.Release())
	// A pool that a graph uses lends no memory: a replay overwrites its free blocks.
	h := must[*Scope](t)(spare.BeginCapture(s))
	check(t, h.End())
	if _, err := r.a.Alloc(s, 20*mib); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("served by a pool that a graph uses: %v", err)
	}
	check(t, h.Release())
	// The segments of a released pool go back to the device instead.
	check(t, spare.Release())
	z = must[Block](t)(r.a.Alloc(s, 20*mib))
	if at := r.at(z); at.Memory.(*fakeMemory).id != 2 {
		t.Errorf("from segment %d", at.Memory.(*fakeMemory).id)
	}
}

// TestReclaimFourStreams is test_graph_capture_reclaim_4_streams: memory that the capture's
// main stream and three forks used is reused only once all three are joined.
func TestReclaimFourStreams(t *testing.T) {
	r := newRig(t, 4)
	main := r.streams[0]
	g := must[*Scope](t)(r.a.BeginCapture(PoolID{}, main))
	b := r.alloc(8 * mib)
	at := r.at(b)
	for _, s := range r.streams[1:] {
		check(t, g.Order(main, s))
		check(t, r.a.RecordStream(b, s))
	}
	r.free(b)
	reused := func() bool {
		x := r.alloc(8 * mib)
		same := r.at(x) == at
		if !same {
			r.free(x)
		}
		return same
	}
	check(t, g.Order(r.streams[1], main))
	if reused() {
		t.Error("reused after one join of three")
	}
	check(t, g.Order(r.streams[2], main))
	if reused() {
		t.Error("reused after two joins of three")
	}
	check(t, g.Order(r.streams[3], r.streams[2])) // not joined yet
	if reused() {
		t.Error("reused while a join is missing")
	}
	check(t, g.Order(r.streams[2], main)) // with stream 3, indirectly
	if !reused() {
		t.Error("not reused after all joins")
	}
	check(t, g.End())
}

// TestReclaimSharedPool is test_graph_capture_reclaim_shared_pool.
func TestReclaimSharedPool(t *testing.T) {
	r := newRig(t, 2)
	main, side := r.streams[0], r.streams[1]
	h := r.a.NewHandle()
	var at Address
	g1 := r.capture(h, func() {
		g := r.scope(h)
		check(t, g.Order(main, side))
		b := r.alloc(8 * mib)
		at = r.at(b)
		check(t, r.a.RecordStream(b, side))
		check(t, g.Order(side, main))
		r.free(b)
	})
	g2 := r.capture(h, func() {
		if b := r.alloc(8 * mib); r.at(b) != at {
			t.Errorf("the second graph's memory is at %v, want %v", r.at(b), at)
		}
	})
	if g1.Pool() != g2.Pool() || g1.Pool().Uses() != 2 {
		t.Error("the pool is not shared")
	}
}

// scope returns the scope that redirects to a pool.
func (r *rig) scope(id PoolID) *Scope {
	return must[*Pool](r.t)(r.a.Pool(id)).scope
}

// TestRestoresKeepTheReservation restores a checkpoint 20 times, with different blocks live:
// neither the pool's reserved memory nor its count of segment allocations changes, and the
// live blocks are those that were asked for.
func TestRestoresKeepTheReservation(t *testing.T) {
	r := newRig(t, 1)
	h := r.a.NewHandle()
	var out []Block
	g := r.capture(h, func() {
		for i := range 8 {
			out = append(out, r.alloc(int64(i+1)*300*kib))
		}
	})
	p := g.Pool()
	st := must[*State](t)(p.Checkpoint())
	at := r.at2(out)
	r.free(out...)
	before := p.Stats()
	for round := range 20 {
		k := round % 9
		live, dead := at[:k], at[k:]
		frees := p.Stats().Frees
		res := must[Restored](t)(p.Restore(st, nil, live))
		for _, d := range dead {
			check(t, p.FreeUnowned(d))
		}
		check(t, p.CheckLive(live))
		r.live(p, k)
		if n := p.Stats().Frees - frees; n != int64(len(dead)) {
			t.Errorf("%d frees of %d dead blocks", n, len(dead))
		}
		r.free(res.Live...)
		after := p.Stats()
		if after.ReservedBytes != before.ReservedBytes || after.SegmentAllocs != before.SegmentAllocs || after.AllocatedBytes.Peak != before.AllocatedBytes.Peak {
			t.Errorf("round %d: %+v, want %+v", round, after, before)
		}
	}
	check(t, g.Release())
	check(t, r.a.Close())
}

// TestSnapshotJSON checks the JSON of a snapshot.
func TestSnapshotJSON(t *testing.T) {
	r := newRig(t, 2)
	b := must[Block](t)(r.a.Alloc(nil, 100))
	p := r.a.NewPool("user")
	must[Block](t)(p.Alloc(r.streams[1], 3*mib))
	check(t, r.a.RecordStream(b, &fakeStream{}))
	g := must[*Scope](t)(r.a.BeginCapture(PoolID{}, r.streams[0]))
	r.free(b)
	got, err := json.Marshal(r.a.Snapshot())
	check(t, err)
	want := `[{"segment_pool_id":[0,0],"pool":"default","address":2097152,"total_size":2097152,"allocated_size":0,"active_size":512,` +
		`"stream":0,"segment_type":"small","is_expandable":false,"blocks":[` +
		`{"offset":0,"size":512,"requested_size":100,"state":"active_pending_free","owned":false},` +
		`{"offset":512,"size":2096640,"requested_size":0,"state":"inactive","owned":false}]},` +
		`{"segment_pool_id":[0,1],"pool":"user","address":4194304,"total_size":20971520,"allocated_size":3145728,"active_size":3145728,` +
		`"stream":1,"segment_type":"large","is_expandable":false,"blocks":[` +
		`{"offset":0,"size":3145728,"requested_size":3145728,"state":"active_allocated","owned":true},` +
		`{"offset":3145728,"size":17825792,"requested_size":0,"state":"inactive","owned":false}]}]`
	if string(got) != want {
		t.Errorf("snapshot\n got %s\nwant %s", got, want)
	}
	check(t, g.Release())
}

// TestRestoreErrors checks that Restore refuses misuse and then changes no block, and the
// errors of Checkpoint, FreeUnowned and CheckLive.
func TestRestoreErrors(t *testing.T) {
	r := newRig(t, 1)
	p, q := r.a.NewPool("p"), r.a.NewPool("q")
	alloc := func() Block { return must[Block](t)(p.Alloc(r.streams[0], 512)) }
	a := alloc()
	st := must[*State](t)(p.Checkpoint())
	b, c := alloc(), must[Block](t)(q.Alloc(r.streams[0], 512))
	at, before := r.at(a), p.Snapshot()
	freed := must[Block](t)(q.Alloc(r.streams[0], 512))
	check(t, q.Free(freed))
	for _, x := range []struct {
		what  string
		st    *State
		stale []Block
		live  []Address
		want  error
		text  string
	}{
		{"a handle that is not passed as stale", st, nil, nil, ErrOwned, "the state has no block for " + r.at(b).String() + " (512 bytes), which have owners: free these, or pass them as stale"},
		{"a stale block of another pool", st, []Block{b, c}, nil, ErrForeignBlock, "pool p: a stale block"},
		{"the zero block", st, []Block{b, {}}, nil, ErrForeignBlock, ""},
		{"a freed block", st, []Block{b, freed}, nil, ErrUseAfterFree, ""},
		{"a live block that keeps its owner", st, []Block{b}, []Address{at}, ErrOwned, "given as live"},
		{"twice live", st, []Block{a, b}, []Address{at, at}, ErrOwned, "given as live twice"},
		{"live outside the state", st, []Block{b}, []Address{r.at(b)}, ErrNoBlock, "is not in the state"},
		{"live nowhere", st, []Block{b}, []Address{{}}, ErrNoBlock, ""},
		{"live in another pool", st, []Block{b}, []Address{r.at(c)}, ErrNoBlock, ""},
		{"no state", nil, nil, nil, ErrForeignState, ""},
		{"a state of another pool", must[*State](t)(q.Checkpoint()), nil, nil, ErrForeignState, ""},
	} {
		if _, err := p.Restore(x.st, x.stale, x.live); !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.text) {
			t.Errorf("%s: %v, want %v with %q", x.what, err, x.want, x.text)
		}
	}
	if after := p.Snapshot(); !reflect.DeepEqual(before, after) {
		t.Errorf("an error changed %+v to %+v", before, after)
	}
	g := must[*Scope](t)(p.BeginCapture(r.streams[0]))
	if _, err := p.Checkpoint(); !errors.Is(err, device.ErrCapturing) {
		t.Errorf("a checkpoint in a capture: %v", err)
	}
	check(t, g.Release())
	for _, at := range []Address{at, r.at(c), {}} {
		want := ErrNoBlock
		if at == r.at(a) {
			want = ErrOwned
		}
		if err := p.FreeUnowned(at); !errors.Is(err, want) {
			t.Errorf("free by address: %v, want %v", err, want)
		}
	}

	// Restore waits for the second stream of a block that it frees.
	log := &fakeDevice{}
	side := &fakeStream{name: "side", dev: log}
	check(t, r.a.RecordStream(b, side))
	fault := errors.New("fault")
	side.err = fault
	if _, err := p.Restore(st, []Block{b}, nil); !errors.Is(err, fault) || !slices.Equal(log.events, []string{"sync side"}) {
		t.Errorf("restore while the second stream fails: %v after %v", err, log.events)
	}
	h := must[*Scope](t)(r.a.BeginCapture(PoolID{}, r.streams[0]))
	if _, err := p.Restore(st, []Block{b}, nil); !errors.Is(err, ErrPending) {
		t.Errorf("restore of memory in use during a capture: %v", err)
	}
	check(t, h.Release())
	side.err = nil
	if after := p.Snapshot(); !reflect.DeepEqual(before, after) {
		t.Errorf("an error changed %+v to %+v", before, after)
	}

	// CheckLive reports both missing and extra blocks.
	var le *LiveError
	err := p.CheckLive([]Address{at, r.at(c), r.at(c)})
	if !errors.As(err, &le) || !slices.Equal(le.Missing, []Address{r.at(c)}) || len(le.Extra) != 1 || le.Extra[0] != (LiveBlock{r.at(b), 512, 512, true}) {
		t.Errorf("%v", err)
	}
	if want := fmt.Sprintf("mem: these storages are not allocated in pool p but should be: %v; these live blocks are in pool p but no storage accounts for them: %v (512 bytes)", r.at(c), r.at(b)); err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	must[Restored](t)(p.Restore(st, []Block{a, b}, nil))
	if err := p.CheckLive(nil); !strings.HasSuffix(err.Error(), "(512 bytes, no owner)") {
		t.Errorf("%v", err)
	}
	// A released pool has no checkpoints, but its live block stays.
	check(t, p.Release())
	_, err1 := p.Checkpoint()
	_, err2 := p.Restore(st, nil, nil)
	if !errors.Is(err1, ErrReleased) || !errors.Is(err2, ErrReleased) {
		t.Errorf("of a released pool: %v, %v", err1, err2)
	}
	r.live(p, 1)
}

// TestUseCounts checks the rules of PyTorch's PrivatePool.use_count: Begin adds a use, End
// leaves the count, Release takes the use back, and a released pool gets no use again.
func TestUseCounts(t *testing.T) {
	r := newRig(t, 2)
	s := r.streams[0]
	uses := func(p *Pool, want int) {
		t.Helper()
		if n := p.Uses(); n != want {
			t.Errorf("%d uses, want %d", n, want)
		}
	}
	fails := func(want error, text string) func(*Scope, error) {
		return func(c *Scope, err error) {
			t.Helper()
			if c != nil || !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
				t.Errorf("%v, want %v with %q", err, want, text)
			}
		}
	}
	o := r.a.NewOwner("who")
	if o.Name() != "who" {
		t.Errorf("owner %q", o.Name())
	}
	h := r.a.NewHandle()
	fails(ErrUnknownPool, "pool (0, 7)")(r.a.Begin(PoolID{0, 7}, Route{Owner: o}))
	fails(ErrUnknownPool, "pool (7, 0)")(r.a.BeginCapture(PoolID{7, 0}, s))
	fails(ErrUnknownPool, "pool (1, 1)")(r.a.BeginCapture(PoolID{1, 1}, s))
	fails(ErrDefaultPool, "")(r.a.Begin(PoolID{}, Route{Owner: o}))
	fails(ErrDefaultPool, "")(r.a.Default().BeginCapture(s))
	fails(ErrNoRoute, "pool (0, 1)")(r.a.Begin(h, Route{}))
	if _, err := r.a.Pool(h); !errors.Is(err, ErrUnknownPool) {
		t.Errorf("a handle without a pool: %v", err)
	}
	c := must[*Scope](t)(r.a.Begin(h, Route{Owner: o}))
	p := must[*Pool](t)(r.a.Pool(h))
	if p != c.Pool() || p.ID() != h || p.Name() != "(0, 1)" {
		t.Errorf("pool %q %v", p.Name(), p.ID())
	}
	uses(p, 1)
	fails(ErrRecording, "pool (0, 1)")(p.Begin(Route{Owner: o}))
	fails(ErrRecording, "pool (0, 1)")(r.a.BeginCapture(h, s))
	check(t, c.Add(r.streams[1]))
	b := must[Block](t)(r.a.Alloc(r.streams[1], 1))
	if err := p.Free(b); err != nil {
		t.Errorf("a stream added to the scope: %v", err)
	}
	check(t, c.End())
	uses(p, 1)
	for _, err := range []error{c.End(), c.Add(s), c.Order(s, r.streams[1])} {
		if !errors.Is(err, ErrNotRecording) {
			t.Errorf("after the end: %v", err)
		}
	}
	g := must[*Scope](t)(r.a.BeginCapture(h, s))
	uses(p, 2)
	_, err := r.a.BeginCapture(h, r.streams[1])
	if !errors.Is(err, ErrRecording) || !errors.Is(err, device.ErrCapturing) {
		t.Errorf("a second capture: %v", err)
	}
	check(t, c.Release())
	uses(p, 1)
	if err := c.Release(); !errors.Is(err, ErrReleased) || !errors.Is(err, device.ErrClosed) {
		t.Errorf("a second release: %v", err)
	}
	// Release of a capture that has not ended ends it, too.
	check(t, g.Release())
	uses(p, 0)
	if b := r.alloc(1); must[*Pool](t)(r.a.Pool(PoolID{})).Free(b) != nil {
		t.Error("a released scope redirects")
	}
	for _, gone := range []bool{false, true} {
		fails(ErrReleased, "pool (0, 1)")(r.a.Begin(h, Route{Owner: o}))
		fails(ErrReleased, "pool (0, 1)")(p.BeginCapture(s))
		if _, err := p.Alloc(s, 1); !errors.Is(err, ErrReleased) {
			t.Errorf("allocation: %v", err)
		}
		if err := p.Release(); !errors.Is(err, ErrReleased) {
			t.Errorf("release of a pool without a handle's use: %v", err)
		}
		if _, err := r.a.Pool(h); errors.Is(err, ErrReleased) != gone {
			t.Errorf("the pool, gone %v: %v", gone, err)
		}
		must[int64](t)(r.a.Empty())
	}
	if err := r.a.Default().Release(); !errors.Is(err, ErrDefaultPool) {
		t.Errorf("release of the default pool: %v", err)
	}
	check(t, r.a.Close())
}
