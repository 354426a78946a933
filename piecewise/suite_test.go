package piecewise_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pwc/compile/host"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
)

// maker opens a device and returns options with it, with a compiler for it, and with an
// implementation of silly::attention. The end of the test closes the device. The functions of
// this file that take a maker test any device, in each mode of Options.Debug.Canary;
// plannedBytes only with CanaryOff.
type maker func(t testing.TB) piecewise.Options

func onHost(t testing.TB) piecewise.Options {
	return piecewise.Options{Device: openHost(t), Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Ops: []device.Op{&sum3{}}}
}

// pool opens a device with a pool. The maker that it returns is for that device.
func (open maker) pool(t testing.TB) (*piecewise.Pool, maker) {
	t.Helper()
	base := open(t)
	pool, err := piecewise.NewPool(base.Device, 0)
	if err != nil {
		t.Fatal(err)
	}
	return pool, func(testing.TB) piecewise.Options { return base }
}

// with sets the device, the compiler, the ops and the debug mode of o, and a store if o lacks one.
func (open maker) with(t testing.TB, o piecewise.Options) piecewise.Options {
	t.Helper()
	base := open(t)
	o.Device = base.Device
	o.Compile.Compiler, o.Ops, o.Debug.Canary, o.Debug.Poison = base.Compile.Compiler, base.Ops, base.Debug.Canary, base.Debug.Poison
	if o.Compile.Store == nil {
		o.Compile.Store = base.Compile.Store
	}
	return o
}

// TestDemonstration runs the model of vLLM's test_simple.py (under tests/compile). The first five counters,
// and the results of two zeros, are those that vLLM's test expects.
func TestDemonstration(t *testing.T) { demonstration(t, onHost) }

func demonstration(t *testing.T, open maker) {
	t.Helper()
	b := start(t, nineteen, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 2}}}))
	f := b.Func("forward")
	x := make([]float32, 100)
	for i, v := range run(t, f, x) {
		if v != 19 {
			t.Fatalf("uncaptured row %d = %v, want 19", i, v)
		}
	}
	before := b.Stats().OpCalls["silly::attention"]
	wantF32(t, run(t, f, []float32{0, 0}), []float32{19, 19})
	if n := b.Stats().OpCalls["silly::attention"] - before; n != 2 {
		t.Errorf("the replay called the splitting op %d times, want 2", n)
	}
	wantF32(t, run(t, f, []float32{1, 2}), []float32{28, 37})
	wantF32(t, run(t, f, []float32{3}), []float32{46})

	s := b.Stats()
	got := []int64{s.GraphsSeen, s.PiecewiseGraphsSeen, s.CapturableGraphsSeen, s.BackendCompilations, s.GraphsCaptured, s.Replays, s.EagerRuns, s.OpCalls["silly::attention"]}
	want := []int64{1, 5, 3, 3, 6, 3, 1, 8}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("graphs, pieces, capturable, compilations, captured, replays, eager, calls = %v, want %v", got, want)
		}
	}
}

// C5: steps are bound to as many arena bytes as the plan has for their size. After Load, Capture
// and a run the pool holds the plan's total without its constants.
func TestPlannedBytesAreTaken(t *testing.T) { plannedBytes(t, onHost) }

func plannedBytes(t *testing.T, open maker) {
	t.Helper()
	for _, n := range []int64{1, 3, 64, 512} {
		pool, open := open.pool(t)
		b := create(t, nineteen, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{n}}, Pool: pool, Memory: piecewise.MemoryOptions{Max: map[string]int64{"N": n}}}))
		plan := b.Plan()
		if got := pool.Stats().RequestedBytes.Now; got != 0 {
			t.Fatalf("New took %d bytes", got)
		}
		if err := b.Load(context.Background(), nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := b.Capture(context.Background()); err != nil {
			t.Fatal(err)
		}
		run(t, b.Func("forward"), make([]float32, n))
		if got := b.Stats().ArenaBytesTaken; got != plan.ArenaBytes[n] {
			t.Errorf("size %d: planned %d arena bytes, took %d", n, plan.ArenaBytes[n], got)
		}
		if got := pool.Stats().RequestedBytes.Now; got != plan.Total()-plan.ConstBytes {
			t.Errorf("size %d: planned %d bytes, the pool holds %d", n, plan.Total()-plan.ConstBytes, got)
		}
		// Two tensors of n floats are alive between pieces: the op's output and one more. Sizes are rounded to the alignment.
		want := 2 * ((4*n + 255) / 256 * 256)
		if got := (plan.ArenaBytes[n] + 255) / 256 * 256; got != want {
			t.Errorf("size %d: arena of %d bytes, two buffers of %d floats take %d", n, got, n, want)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if err := pool.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// C6: a run overwrites the results of the run before. A later read of those is a StaleError.
func TestStaleResult(t *testing.T) { staleResult(t, onHost) }

func staleResult(t *testing.T, open maker) {
	t.Helper()
	b := start(t, nineteen, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}}))
	f := b.Func("forward")
	first, err := issue(t, f, []float32{1, 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	second, err := issue(t, f, []float32{3, 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var stale *piecewise.StaleError
	if err := first.At(0).CopyTo(make([]byte, 8)); !errors.As(err, &stale) || !errors.Is(err, piecewise.ErrStale) {
		t.Fatalf("read of an overwritten result: %v, want a StaleError", err)
	}
	if stale.Run+1 != stale.Latest || stale.Func != "forward" {
		t.Errorf("the error names @%s runs %d and %d, want two successive runs of @forward", stale.Func, stale.Run, stale.Latest)
	}
	wantF32(t, read(t, second.At(0)), []float32{46, 55})
	second.Release()
	if err := second.Wait(); !errors.Is(err, piecewise.ErrReleased) {
		t.Errorf("wait for a released result: %v, want ErrReleased", err)
	}
}

// C7: graphs hold addresses. A replay fails if a state was set to other memory, or to another
// part of the same memory, than at the capture, and succeeds if the state is set back.
func TestMovedStateIsRefused(t *testing.T) { movedState(t, onHost) }

func movedState(t *testing.T, open maker) {
	t.Helper()
	text := strings.Replace(stateful, "%x: f32[N]", "%x: f32[N], %i: i32[N]", 1)
	pool, open := open.pool(t)
	t.Cleanup(func() { _ = pool.Close() })
	b := create(t, text, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}, Pool: pool, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": 4}}}))
	ctx := context.Background()
	if err := b.Load(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Capture(ctx); err != nil {
		t.Fatal(err)
	}
	f := b.Func("forward")
	once := func() (piecewise.Results, error) {
		in, err := f.Inputs(2)
		if err != nil {
			t.Fatal(err)
		}
		x, _ := in.Float32s("x")
		i, _ := in.Int32s("i")
		copy(x, []float32{1, 2})
		copy(i, []int32{0, 3})
		return f.Run(ctx, in, nil)
	}
	r, err := once()
	if err != nil {
		t.Fatal(err)
	}
	wantF32(t, read(t, r.At(0)), []float32{1, 2})
	old, err := b.State("s")
	if err != nil {
		t.Fatal(err)
	}
	m, err := openOther(t, pool, old.Size)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.SetState("s", m); err != nil {
		t.Fatal(err)
	}
	var moved *piecewise.AddressError
	if _, err := once(); !errors.As(err, &moved) || moved.Name != "state @s" || moved.Size != 2 {
		t.Fatalf("replay after the state moved: %v, want an AddressError for state @s at size 2", err)
	}
	if err := b.SetState("s", old); err != nil {
		t.Fatal(err)
	}
	if _, err := once(); err != nil {
		t.Errorf("replay after the state moved back: %v", err)
	}
	// Within the same memory, too.
	two, err := openOther(t, pool, 2*old.Size)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.SetState("s", two.Slice(0, old.Size)); err != nil {
		t.Fatal(err)
	}
	if err := b.Capture(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.SetState("s", two.Slice(old.Size, old.Size)); err != nil {
		t.Fatal(err)
	}
	if _, err := once(); !errors.As(err, &moved) {
		t.Errorf("replay after the state moved within its memory: %v, want an AddressError", err)
	}
}

// C8: Stats.Skipped counts the runs without a graph, by reason.
func TestSkipsAreCounted(t *testing.T) { skips(t, onHost) }

func skips(t *testing.T, open maker) {
	t.Helper()
	store := pieces.NewMemoryStore()
	b := start(t, nineteen, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 4}}, Compile: piecewise.CompileOptions{Store: store}}))
	f := b.Func("forward")
	run(t, f, make([]float32, 5))
	run(t, f, make([]float32, 3))
	s := b.Stats()
	if s.Skipped["above the largest captured size"] != 1 || len(s.Skipped) != 1 || s.PaddedRows != 1 || s.EagerRuns != 1 || s.Replays != 1 {
		t.Errorf("skipped %v, padded %d, eager %d, replays %d; want one above the largest, 1, 1, 1", s.Skipped, s.PaddedRows, s.EagerRuns, s.Replays)
	}
	frozen := start(t, nineteen, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 4}}, Frozen: true, Compile: piecewise.CompileOptions{Store: store}}))
	run(t, frozen.Func("forward"), make([]float32, 4))
	if _, err := issue(t, frozen.Func("forward"), make([]float32, 5), nil); !errors.Is(err, piecewise.ErrFrozen) || !strings.Contains(err.Error(), "largest captured size is 4") {
		t.Errorf("a frozen backend that would run above its largest size: %v, want ErrFrozen", err)
	}
	none := start(t, nineteen, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.None}}))
	run(t, none.Func("forward"), make([]float32, 2))
	if s := none.Stats(); s.Skipped["mode none"] != 1 || s.GraphsCaptured != 0 {
		t.Errorf("mode none: skipped %v, captured %d", s.Skipped, s.GraphsCaptured)
	}
}

// C11: an op that mixes rows forbids padding, with an error at its position. A run of a capture
// size is replayed, any other run is eager, and a frozen backend refuses it.
func TestMixingForbidsPadding(t *testing.T) { mixingRows(t, onHost) }

func mixingRows(t *testing.T, open maker) {
	t.Helper()
	b := start(t, mixing, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2, 4}}}))
	f := b.Func("forward")
	if err := f.Padding(); err == nil || !strings.Contains(err.Error(), "test.ir:5:") {
		t.Errorf("why padding is forbidden: %v, want the position of sum (line 5)", err)
	}
	wantF32(t, run(t, f, []float32{1, 2, 3}), []float32{7, 8, 9})
	wantF32(t, run(t, f, []float32{1, 2, 3, 4}), []float32{11, 12, 13, 14})
	if s := b.Stats(); s.Skipped["rows must not be padded"] != 1 || s.Replays != 1 || s.PaddedRows != 0 {
		t.Errorf("skipped %v, replays %d, padded %d; want one mixing, 1, 0", s.Skipped, s.Replays, s.PaddedRows)
	}
	store := pieces.NewMemoryStore()
	start(t, mixing, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.None}, Compile: piecewise.CompileOptions{Store: store}}))
	frozen := start(t, mixing, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2, 4}}, Frozen: true, Compile: piecewise.CompileOptions{Store: store}}))
	if _, err := issue(t, frozen.Func("forward"), []float32{1, 2, 3}, nil); !errors.Is(err, piecewise.ErrFrozen) {
		t.Errorf("a frozen backend that would skip a graph: %v, want ErrFrozen", err)
	}
}

// An op that gets an index out of range from a padded row forbids padding: the step would
// report an index that no real row has (C11, C12).
func TestIndicesForbidPadding(t *testing.T) { indicesForbidPadding(t, onHost) }

func indicesForbidPadding(t *testing.T, open maker) {
	t.Helper()
	b := start(t, `pwc 1
module "shifted" {
  sym N in [1, 8] batch
  func @forward(%ids: i32[N]) -> (f32[N, 2]) {
    %t = iota(shape=[4, 2], dtype=f32)
    %p = sub(%ids, 1)
    %y = embedding(%t, %p) loc("model.embed")
    return %y
  }
}
`, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 4}}}))
	f := b.Func("forward")
	if err := f.Padding(); err == nil || !strings.Contains(err.Error(), "test.ir:7:") || !strings.Contains(err.Error(), "-1, extent 4") {
		t.Errorf("why padding is forbidden: %v, want the position of embedding (line 7)", err)
	}
	for _, ids := range [][]int32{{1, 2, 3}, {4, 3, 2, 1}} {
		in, err := f.Inputs(int64(len(ids)))
		if err != nil {
			t.Fatal(err)
		}
		v, err := in.Int32s("ids")
		if err != nil {
			t.Fatal(err)
		}
		copy(v, ids)
		r, err := f.Run(context.Background(), in, nil)
		if err != nil {
			t.Fatal(err)
		}
		var want []float32
		for _, id := range ids {
			want = append(want, float32(id-1), float32(id-1))
		}
		wantF32(t, read(t, r.At(0)), want)
	}
	if s := b.Stats(); s.Skipped["rows must not be padded"] != 1 || s.Replays != 1 || s.PaddedRows != 0 {
		t.Errorf("skipped %v, replays %d, padded %d; want one, 1, 0", s.Skipped, s.Replays, s.PaddedRows)
	}
}

// C12: an index out of range reads zero and is reported with the op's loc, replayed or
// not. %h of @logits is linked to @forward's result.
func TestIndicesOutOfRange(t *testing.T) { indicesOutOfRange(t, onHost) }

// Values that an earlier step left in the arena and in padded rows do not reach the
// results of a step.
func TestPoisonedArena(t *testing.T) { poisonedArena(t, onHost) }

func poisonedArena(t *testing.T, open maker) {
	t.Helper()
	b := start(t, nineteen, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{8}}}))
	f := b.Func("forward")
	nan := float32(math.NaN())
	run(t, f, []float32{nan, nan, nan, nan, nan, nan, nan, nan})
	for n := 1; n <= 8; n++ {
		x := make([]float32, n)
		for i, v := range run(t, f, x) {
			if v != 19 {
				t.Fatalf("row %d of %d = %v after NaNs, want 19", i, n, v)
			}
		}
	}
}

func indicesOutOfRange(t *testing.T, open maker) {
	t.Helper()
	text := strings.Replace(lookup, "    %h = mul", "    %k = const(values=[1.0, 10.0], dtype=f32) : f32[2]\n    %h = mul", 1)
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
		b := start(t, text, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{1, 2, 4}}}))
		f, g := b.Func("forward"), b.Func("logits")
		// A run of more rows comes first: index 3 must not read the row that it left.
		if _, err := issue(t, f, []float32{9, 9, 9, 9}, nil); err != nil {
			t.Fatal(err)
		}
		r, err := issue(t, f, []float32{1, 2}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(rows ...int32) ([]float32, error) {
			in, err := g.Inputs(int64(len(rows)))
			if err != nil {
				t.Fatal(err)
			}
			if err := in.SetResult("h", r.At(0)); err != nil {
				t.Fatal(err)
			}
			v, err := in.Int32s("rows")
			if err != nil {
				t.Fatal(err)
			}
			copy(v, rows)
			out, err := g.Run(context.Background(), in, nil)
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 8*len(rows))
			err = out.At(0).CopyTo(buf)
			vals := make([]float32, 2*len(rows))
			for i := range vals {
				vals[i] = f32(buf, int64(i))
			}
			return vals, err
		}
		got, err := ask(1, 0)
		if err != nil {
			t.Fatalf("mode %s: %v", mode, err)
		}
		wantF32(t, got, []float32{3, 21, 2, 11})
		got, err = ask(0, 3)
		if !slices.Equal(indexOps(err), []string{"gather (model.sampled)"}) {
			t.Fatalf("mode %s: index 3 of 2 rows: %v, want an IndexError at model.sampled", mode, err)
		}
		wantF32(t, got, []float32{2, 11, 1, 1})
		if got, err = ask(1); err != nil {
			t.Fatalf("mode %s: one run's fault was reported twice: %v", mode, err)
		}
		wantF32(t, got, []float32{3, 21})
	}
}

// indexOps returns the ops of the index errors that are joined in err.
func indexOps(err error) []string {
	var ops []string
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range list.Unwrap() {
			var at *device.IndexError
			if errors.As(err, &at) {
				ops = append(ops, at.Op)
			}
		}
	}
	return ops
}

// A snapshot separates faults of runs that were issued before it from those of later runs.
func TestFaultSnapshots(t *testing.T) { faultSnapshots(t, onHost) }

func faultSnapshots(t *testing.T, open maker) {
	t.Helper()
	const text = `pwc 1
module "tables" {
  sym N in [1, 8] batch
  func @forward(%x: f32[4], %ids: i32[N]) -> (f32[N]) {
    %y = gather(%x, %ids) : f32[N] loc("model.first")
    return %y
  }
  func @other(%x: f32[4], %ids: i32[N]) -> (f32[N]) {
    %z = gather(%x, %ids) : f32[N] loc("model.second")
    %y = mul(%z, 2.0) : f32[N]
    return %y
  }
}
`
	const first, second = "gather (model.first)", "gather (model.second)"
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise} {
		b := start(t, text, open.with(t, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{2}}, Memory: piecewise.MemoryOptions{StagingSlots: 16}}))
		look := func(list ...int32) { // ids of @forward and @other in turn
			for i, id := range list {
				f := b.Func([]string{"forward", "other"}[i%2])
				in, err := f.Inputs(1)
				if err != nil {
					t.Fatal(err)
				}
				x, err := in.Float32s("x")
				if err != nil {
					t.Fatal(err)
				}
				clear(x)
				ids, err := in.Int32s("ids")
				if err != nil {
					t.Fatal(err)
				}
				ids[0] = id
				if _, err := f.Run(context.Background(), in, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		snap, err := b.NewFaultSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		says := func(err error, ops []string) bool {
			if len(ops) == 0 {
				return err == nil
			}
			return errors.Is(err, device.ErrIndex) && slices.Equal(indexOps(err), ops)
		}
		for _, c := range []struct {
			before, after         []int32
			wantBefore, wantAfter []string
		}{
			{[]int32{0, 3}, []int32{3, 0}, nil, nil},
			{[]int32{4, 3}, []int32{3, 0}, []string{first}, nil},
			{[]int32{0, 3}, []int32{0, -1}, nil, []string{second}},
			{[]int32{9, 9}, []int32{9, 0}, []string{first, second}, []string{first}},
			{[]int32{0, 0}, []int32{0, 0}, nil, nil},
		} {
			look(c.before...)
			if err := snap.Take(); err != nil {
				t.Fatal(err)
			}
			look(c.after...)
			if err := b.Stream().Synchronize(); err != nil {
				t.Fatal(err)
			}
			if err := snap.Err(); !says(err, c.wantBefore) {
				t.Errorf("mode %s, %+v: the snapshot says %v", mode, c, err)
			}
			for range 2 { // asking clears nothing
				if err := b.Faults(); !says(err, c.wantAfter) {
					t.Errorf("mode %s, %+v: the backend says %v", mode, c, err)
				}
			}
			if err := errors.Join(snap.Take(), b.Stream().Synchronize(), b.Faults()); err != nil {
				t.Errorf("mode %s, %+v: after another snapshot: %v", mode, c, err)
			}
		}
		if n := testing.AllocsPerRun(10, func() {
			if b.Faults() != nil {
				t.Error("there is a fault")
			}
		}); n != 0 {
			t.Errorf("mode %s: asking for faults makes %v allocations", mode, n)
		}
		if err := errors.Join(snap.Close(), b.Close()); err != nil {
			t.Error(err)
		}
		if err := snap.Take(); !errors.Is(err, piecewise.ErrClosed) || b.Faults() != nil {
			t.Errorf("mode %s: a snapshot of a closed backend: %v; faults %v", mode, err, b.Faults())
		}
		if _, err := b.NewFaultSnapshot(); !errors.Is(err, piecewise.ErrClosed) {
			t.Errorf("mode %s: a new snapshot of a closed backend: %v", mode, err)
		}
	}
}

func openOther(t *testing.T, p *piecewise.Pool, n int64) (device.Buffer, error) {
	m, err := p.Stream().Device().Alloc(n)
	if err == nil {
		t.Cleanup(func() { _ = m.Free() })
	}
	return device.Buffer{Memory: m, Size: n}, err
}
