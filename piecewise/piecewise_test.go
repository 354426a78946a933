package piecewise_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand"
	"runtime"
	"strings"
	"testing"

	"pwc/build"
	"pwc/compile/host"
	"pwc/ir"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// nineteen is x → +1 → +2 → S → −2 → −1 → S → +1 with S(h, h, h) = 3h, so
// f(x) = 3*(3*(x+3) - 3) + 1 = 9x + 19.
const nineteen = `pwc 1
module "nineteen" {
  sym N in [1, 512] batch
  op "silly::attention"(tensor, tensor, tensor, mut tensor) split
  func @forward(%x: f32[N]) -> (f32[N]) {
    %a = add(%x, 1.0) : f32[N]
    %b = add(%a, 2.0) : f32[N]
    %o = empty_like(%b) : f32[N]
    call "silly::attention"(%b, %b, %b, %o) loc("first")
    %c = sub(%o, 2.0) : f32[N]
    %d = sub(%c, 1.0) : f32[N]
    %p = empty_like(%d) : f32[N]
    call "silly::attention"(%d, %d, %d, %p) loc("second")
    %e = add(%p, 1.0) : f32[N]
    return %e
  }
}
`

// sum3 is an implementation of silly::attention over host memory with hooks for
// tests: what it was called with is what the contracts are about.
type sum3 struct {
	capture bool
	skip    int64 // so many rows at the end are left as they were
	calls   int
	rows    []int64 // of each call, with Size: rows, size
	metas   []any
	onCall  func(c *device.OpCall)
	fail    error // of every call from here on
}

func (s *sum3) Signature() device.Signature {
	return device.Signature{Name: "silly::attention", Mut: []bool{false, false, false, true}, Capture: s.capture}
}

func (s *sum3) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (s *sum3) Launch(c *device.OpCall) error {
	work := func() error {
		if s.fail != nil {
			return s.fail
		}
		s.calls++
		s.rows = append(s.rows, c.Rows, c.Size)
		s.metas = append(s.metas, c.Meta)
		if s.onCall != nil {
			s.onCall(c)
		}
		out := hostBytes(c, c.Args[3].Buffer)
		clear(out[:int64(len(out))-4*s.skip])
		for i := range c.Rows - s.skip {
			var sum float32
			for _, a := range c.Args[:3] {
				sum += f32(hostBytes(c, a.Buffer), i)
			}
			putf32(out, i, sum)
		}
		return nil
	}
	return c.Stream.(*hostdev.Stream).Call(work)
}

// hostBytes returns the memory of an operand.
func hostBytes(c *device.OpCall, b device.Buffer) []byte {
	data, err := c.Stream.Device().(*hostdev.Device).Bytes(b)
	if err != nil {
		panic(err)
	}
	return data
}

func f32(b []byte, i int64) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])) }
func putf32(b []byte, i int64, v float32) {
	binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
}

func parse(t testing.TB, text string) *ir.Module {
	t.Helper()
	m, err := ir.Parse("test.ir", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func openHost(t testing.TB) *hostdev.Device {
	t.Helper()
	dev := hostdev.Open(hostdev.Options{Workers: 2})
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close of the device: %v", err)
		}
	})
	return dev
}

// start makes, loads and captures a backend.
func start(t testing.TB, text string, o piecewise.Options) *piecewise.Backend {
	t.Helper()
	b := create(t, text, o)
	ctx := context.Background()
	if err := b.Load(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Capture(ctx); err != nil {
		t.Fatal(err)
	}
	return b
}

func create(t testing.TB, text string, o piecewise.Options) *piecewise.Backend {
	t.Helper()
	if o.Device == nil && o.Pool == nil {
		o.Device = openHost(t)
	}
	if o.Target == nil {
		o.Target = build.Pipeline{Backend: host.New()}
	}
	b, err := piecewise.New(context.Background(), parse(t, text), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close of the backend: %v", err)
		}
	})
	return b
}

// issue fills the one input %x and runs.
func issue(t testing.TB, f *piecewise.Func, x []float32, meta any) (piecewise.Results, error) {
	t.Helper()
	in, err := f.Inputs(int64(len(x)))
	if err != nil {
		t.Fatal(err)
	}
	v, err := in.Float32s("x")
	if err != nil {
		t.Fatal(err)
	}
	copy(v, x)
	return f.Run(context.Background(), in, meta)
}

func read(t testing.TB, r piecewise.Result) []float32 {
	t.Helper()
	n, err := r.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	if err := r.CopyTo(b); err != nil {
		t.Fatal(err)
	}
	out := make([]float32, n/4)
	for i := range out {
		out[i] = f32(b, int64(i))
	}
	return out
}

func run(t testing.TB, f *piecewise.Func, x []float32) []float32 {
	t.Helper()
	r, err := issue(t, f, x, nil)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, r.At(0))
}

func wantF32(t testing.TB, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

// The demonstration of vLLM's piecewise tests
// (tests/compile/piecewise/test_simple.py): its counters and its numbers.
func TestDemonstration(t *testing.T) {
	op := &sum3{}
	b := start(t, nineteen, piecewise.Options{Mode: piecewise.Piecewise, CaptureSizes: []int64{1, 2}, Ops: []device.Op{op}})
	f := b.Func("forward")
	x := make([]float32, 100)
	for i, v := range run(t, f, x) {
		if v != 19 {
			t.Fatalf("uncaptured row %d = %v, want 19", i, v)
		}
	}
	before := op.calls
	wantF32(t, run(t, f, []float32{0, 0}), []float32{19, 19})
	if op.calls != before+2 {
		t.Errorf("the replay called the splitting op %d times, want 2", op.calls-before)
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

// C5: what steps are bound to is what was planned, size by size, and what Load
// takes is the plan's total.
func TestPlannedBytesAreTaken(t *testing.T) {
	for _, n := range []int64{1, 3, 64, 512} {
		pool, err := piecewise.NewPool(openHost(t), 0)
		if err != nil {
			t.Fatal(err)
		}
		b := create(t, nineteen, piecewise.Options{Mode: piecewise.Piecewise, Pool: pool, CaptureSizes: []int64{n}, Max: map[string]int64{"N": n}, Ops: []device.Op{&sum3{}}})
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
		// One tensor of n floats is alive between pieces beside the op's output: two, rounded to the alignment.
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

// C6: results are weak.
func TestStaleResult(t *testing.T) {
	b := start(t, nineteen, piecewise.Options{Mode: piecewise.Piecewise, CaptureSizes: []int64{2}, Ops: []device.Op{&sum3{}}})
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

// C6: two runs of one pool do not overlap.
func TestBusyPool(t *testing.T) {
	op := &sum3{}
	b := start(t, nineteen, piecewise.Options{Mode: piecewise.Piecewise, CaptureSizes: []int64{2}, Ops: []device.Op{op}})
	f := b.Func("forward")
	var inner error
	op.onCall = func(*device.OpCall) {
		op.onCall = nil
		in, err := f.Inputs(1)
		if err != nil {
			t.Error(err)
			return
		}
		if v, err := in.Float32s("x"); err != nil {
			t.Error(err)
		} else {
			v[0] = 0
		}
		_, inner = f.Run(context.Background(), in, nil)
	}
	wantF32(t, run(t, f, []float32{1, 2}), []float32{28, 37})
	if !errors.Is(inner, piecewise.ErrBusy) {
		t.Errorf("a run inside a run: %v, want ErrBusy", inner)
	}
}

const stateful = `pwc 1
module "stateful" {
  sym N in [1, 64] batch
  sym B in [1, 16] load
  state @s : f32[B]
  func @forward(%x: f32[N]) -> (f32[N]) {
    %h = gather(@s, %i) : f32[N]
    %y = add(%x, %h) : f32[N]
    return %y
  }
}
`

// C7: graphs hold addresses; memory that moved is refused, at every replay.
func TestMovedStateIsRefused(t *testing.T) {
	text := strings.Replace(stateful, "%x: f32[N]", "%x: f32[N], %i: i32[N]", 1)
	pool, err := piecewise.NewPool(openHost(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	b := create(t, text, piecewise.Options{Mode: piecewise.Piecewise, Pool: pool, CaptureSizes: []int64{2}, Symbols: map[string]int64{"B": 4}})
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
}

func openOther(t *testing.T, p *piecewise.Pool, n int64) (device.Buffer, error) {
	m, err := p.Stream().Device().Alloc(n)
	if err == nil {
		t.Cleanup(func() { _ = m.Free() })
	}
	return device.Buffer{Memory: m, Size: n}, err
}

// C8: what is not replayed is counted with its reason.
func TestSkipsAreCounted(t *testing.T) {
	b := start(t, nineteen, piecewise.Options{Mode: piecewise.Piecewise, CaptureSizes: []int64{1, 4}, Ops: []device.Op{&sum3{}}})
	f := b.Func("forward")
	run(t, f, make([]float32, 5))
	run(t, f, make([]float32, 3))
	s := b.Stats()
	if s.Skipped["above the largest captured size"] != 1 || len(s.Skipped) != 1 || s.PaddedRows != 1 || s.EagerRuns != 1 || s.Replays != 1 {
		t.Errorf("skipped %v, padded %d, eager %d, replays %d; want one above the largest, 1, 1, 1", s.Skipped, s.PaddedRows, s.EagerRuns, s.Replays)
	}
	none := start(t, nineteen, piecewise.Options{Mode: piecewise.None, Ops: []device.Op{&sum3{}}})
	run(t, none.Func("forward"), make([]float32, 2))
	if s := none.Stats(); s.Skipped["mode none"] != 1 || s.GraphsCaptured != 0 {
		t.Errorf("mode none: skipped %v, captured %d", s.Skipped, s.GraphsCaptured)
	}
}

const mixing = `pwc 1
module "mixing" {
  sym N in [1, 64] batch
  func @forward(%x: f32[N]) -> (f32[N]) {
    %s = sum(%x, axes=[0], keepdims=true) : f32[1] loc("model.total")
    %y = add(%x, %s) : f32[N]
    return %y
  }
}
`

// C11: an op that mixes rows forbids padding, with its position; exact sizes replay.
func TestMixingForbidsPadding(t *testing.T) {
	b := start(t, mixing, piecewise.Options{Mode: piecewise.Piecewise, CaptureSizes: []int64{2, 4}})
	f := b.Func("forward")
	if err := f.Padding(); err == nil || !strings.Contains(err.Error(), "test.ir:5:") {
		t.Errorf("why padding is forbidden: %v, want the position of sum (line 5)", err)
	}
	wantF32(t, run(t, f, []float32{1, 2, 3}), []float32{7, 8, 9})
	wantF32(t, run(t, f, []float32{1, 2, 3, 4}), []float32{11, 12, 13, 14})
	if s := b.Stats(); s.Skipped["padding would mix rows"] != 1 || s.Replays != 1 || s.PaddedRows != 0 {
		t.Errorf("skipped %v, replays %d, padded %d; want one mixing, 1, 0", s.Skipped, s.Replays, s.PaddedRows)
	}
	store := build.NewMemoryStore()
	start(t, mixing, piecewise.Options{Mode: piecewise.None, Store: store})
	frozen := start(t, mixing, piecewise.Options{Mode: piecewise.Piecewise, CaptureSizes: []int64{2, 4}, Frozen: true, Store: store})
	if _, err := issue(t, frozen.Func("forward"), []float32{1, 2, 3}, nil); !errors.Is(err, piecewise.ErrFrozen) {
		t.Errorf("a frozen backend that would skip a graph: %v, want ErrFrozen", err)
	}
}

// C11: padded rows hold zero when a replay starts, whatever an earlier run left there.
func TestPaddedRowsAreReset(t *testing.T) {
	op := &sum3{}
	b := start(t, nineteen, piecewise.Options{Mode: piecewise.Piecewise, CaptureSizes: []int64{4}, Ops: []device.Op{op}})
	f := b.Func("forward")
	nan := float32(math.NaN())
	run(t, f, []float32{nan, nan, nan, nan})
	var seen []float32
	op.onCall = func(c *device.OpCall) {
		op.onCall = nil
		for i := range c.Size {
			seen = append(seen, f32(hostBytes(c, c.Args[0].Buffer), i))
		}
	}
	op.rows = nil
	meta := &struct{ seq int }{7}
	op.metas = nil
	r, err := issue(t, f, []float32{1, 2}, meta)
	if err != nil {
		t.Fatal(err)
	}
	wantF32(t, read(t, r.At(0)), []float32{28, 37})
	wantF32(t, seen, []float32{4, 5, 3, 3}) // the padded rows came from zeros
	if op.rows[0] != 2 || op.rows[1] != 4 {
		t.Errorf("the op saw rows %d of %d, want 2 of 4", op.rows[0], op.rows[1])
	}
	if op.metas[0] != any(meta) {
		t.Errorf("the op saw metadata %v, want the run's own", op.metas[0])
	}
}

const lookup = `pwc 1
module "lookup" {
  sym N in [1, 64] batch
  sym M in [1, 64] batch
  func @forward(%x: f32[N]) -> (f32[N, 2]) {
    %r = reshape(%x, shape=[N, 1]) : f32[N, 1]
    %h = mul(%r, %k) : f32[N, 2]
    return %h
  }
  func @logits(%h: f32[N, 2], %rows: i32[M]) -> (f32[M, 2]) {
    %g = gather(%h, %rows) : f32[M, 2] loc("model.sampled")
    %y = add(%g, 1.0) : f32[M, 2]
    return %y
  }
}
`

// C12: a position out of range reads zero and is reported with the op's place,
// replayed or not; @logits reads @forward's result where it lies.
func TestPositionsOutOfRange(t *testing.T) {
	holdPositions(t, func(testing.TB) piecewise.Options { return piecewise.Options{} })
}

func holdPositions(t *testing.T, options func(testing.TB) piecewise.Options) {
	t.Helper()
	text := strings.Replace(lookup, "    %h = mul", "    %k = const(values=[1.0, 10.0], dtype=f32) : f32[2]\n    %h = mul", 1)
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise, piecewise.Full} {
		o := options(t)
		o.Mode, o.CaptureSizes = mode, []int64{1, 2, 4}
		b := start(t, text, o)
		f, g := b.Func("forward"), b.Func("logits")
		// A longer run first: what it leaves behind must not be readable.
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
		var pos *piecewise.PositionError
		if !errors.As(err, &pos) || !strings.Contains(err.Error(), "gather (model.sampled)") {
			t.Fatalf("mode %s: position 3 of 2 rows: %v, want a PositionError at model.sampled", mode, err)
		}
		wantF32(t, got, []float32{2, 11, 1, 1})
		if got, err = ask(1); err != nil {
			t.Fatalf("mode %s: the report came twice: %v", mode, err)
		}
		wantF32(t, got, []float32{3, 21})
	}
}

func TestModeFull(t *testing.T) {
	_, err := piecewise.New(context.Background(), parse(t, nineteen), piecewise.Options{Device: openHost(t), Target: build.Pipeline{Backend: host.New()}, Mode: piecewise.Full, Ops: []device.Op{&sum3{}}})
	if !errors.Is(err, piecewise.ErrOp) || !strings.Contains(err.Error(), "first") {
		t.Fatalf("mode full with an op that cannot be captured: %v, want ErrOp that names it", err)
	}
	op := &sum3{capture: true}
	b := start(t, nineteen, piecewise.Options{Mode: piecewise.FullAndPiecewise, CaptureSizes: []int64{2, 4}, Ops: []device.Op{op}})
	if s := b.Stats(); s.GraphsCaptured != 2*(3+1) {
		t.Errorf("captured %d graphs, want 3 pieces and 1 whole for each of 2 sizes", s.GraphsCaptured)
	}
	if op.calls != 0 {
		t.Fatalf("capture executed the op %d times; it only records", op.calls)
	}
	f := b.Func("forward")
	for _, uniform := range []bool{false, true} {
		in, err := f.Inputs(3)
		if err != nil {
			t.Fatal(err)
		}
		in.SetUniform(uniform)
		v, _ := in.Float32s("x")
		copy(v, []float32{0, 1, 2})
		r, err := f.Run(context.Background(), in, nil)
		if err != nil {
			t.Fatal(err)
		}
		wantF32(t, read(t, r.At(0)), []float32{19, 28, 37})
	}
	if s := b.Stats(); s.Replays != 1 || s.FullReplays != 1 {
		t.Errorf("replays %d, full %d; want 1 and 1", s.Replays, s.FullReplays)
	}
	decode := start(t, nineteen, piecewise.Options{Mode: piecewise.FullDecodeOnly, CaptureSizes: []int64{2}, Ops: []device.Op{&sum3{capture: true}}})
	wantF32(t, run(t, decode.Func("forward"), []float32{1, 2}), []float32{28, 37})
	if s := decode.Stats(); s.EagerRuns != 1 || s.FullReplays != 0 {
		t.Errorf("full-decode-only and a mixed batch: eager %d, full %d; want 1 and 0", s.EagerRuns, s.FullReplays)
	}
}

func TestOrder(t *testing.T) {
	b := create(t, nineteen, piecewise.Options{Mode: piecewise.Piecewise, CaptureSizes: []int64{2}, Ops: []device.Op{&sum3{}}})
	ctx := context.Background()
	if _, err := b.Func("forward").Inputs(1); !errors.Is(err, piecewise.ErrOrder) {
		t.Errorf("inputs before Load: %v, want ErrOrder", err)
	}
	if err := b.Capture(ctx); !errors.Is(err, piecewise.ErrOrder) {
		t.Errorf("capture before Load: %v, want ErrOrder", err)
	}
	if err := b.Load(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Load(ctx, nil, nil); !errors.Is(err, piecewise.ErrOrder) {
		t.Errorf("load twice: %v, want ErrOrder", err)
	}
	if err := b.Capture(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.Seal(); err != nil {
		t.Fatal(err)
	}
	if err := b.Capture(ctx); !errors.Is(err, piecewise.ErrOrder) {
		t.Errorf("capture after Seal: %v, want ErrOrder", err)
	}
	in, err := b.Func("forward").Inputs(2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Func("forward").Run(ctx, in, nil); err == nil || !strings.Contains(err.Error(), "%x") {
		t.Errorf("run without its input: %v, want an error that names %%x", err)
	}
	v, _ := in.Float32s("x")
	clear(v)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := b.Func("forward").Run(cancelled, in, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("run with a cancelled context: %v", err)
	}
	if _, err := b.Func("forward").Run(ctx, in, nil); err != nil {
		t.Errorf("the inputs are spent after a run that was not issued: %v", err)
	}
	if _, err := b.Func("forward").Run(ctx, in, nil); !errors.Is(err, piecewise.ErrSlotUsed) {
		t.Errorf("inputs run twice: %v, want ErrSlotUsed", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if err := b.Load(ctx, nil, nil); !errors.Is(err, piecewise.ErrClosed) {
		t.Errorf("load after Close: %v, want ErrClosed", err)
	}
}

// Any order of sizes, back to back, gives bit-equal results per size.
func TestRandomOrderOfSizes(t *testing.T) {
	for _, mode := range []piecewise.Mode{piecewise.Piecewise, piecewise.Full} {
		sizes := []int64{1, 2, 4, 8, 16, 64}
		b := start(t, nineteen, piecewise.Options{Mode: mode, CaptureSizes: sizes, Ops: []device.Op{&sum3{capture: true}}})
		f := b.Func("forward")
		rng := rand.New(rand.NewSource(1))
		want := map[int][]byte{}
		x := make([]float32, 64)
		for i := range x {
			x[i] = rng.Float32()
		}
		for range 500 {
			n := 1 + rng.Intn(64)
			r, err := issue(t, f, x[:n], nil)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 4*n)
			if err := r.At(0).CopyTo(got); err != nil {
				t.Fatal(err)
			}
			if want[n] == nil {
				want[n] = got
			} else if !bytes.Equal(got, want[n]) {
				t.Fatalf("mode %s: %d rows gave other bits than before", mode, n)
			}
			for i := range n {
				// 9x+19 in the graph's own order of roundings.
				h := ((x[i] + 1) + 2)
				h = ((h + h) + h) - 2 - 1
				if w := ((h + h) + h) + 1; f32(got, int64(i)) != w {
					t.Fatalf("mode %s: row %d of %d = %v, want %v", mode, i, n, f32(got, int64(i)), w)
				}
			}
		}
	}
}

// A replay allocates nothing, with one worker or several.
func TestReplayAllocatesNothing(t *testing.T) {
	for _, workers := range []int{1, runtime.GOMAXPROCS(0) + 1} {
		dev := hostdev.Open(hostdev.Options{Workers: workers})
		op := &silent{}
		text := strings.Replace(nineteen, "N in [1, 512]", "N in [1, 65536]", 1)
		b := create(t, text, piecewise.Options{Device: dev, Mode: piecewise.Piecewise, CaptureSizes: []int64{65536}, Ops: []device.Op{op}})
		ctx := context.Background()
		if err := b.Load(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := b.Capture(ctx); err != nil {
			t.Fatal(err)
		}
		f := b.Func("forward")
		step := func() {
			in, err := f.Inputs(65000)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := in.Float32s("x"); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Run(ctx, in, nil); err != nil {
				t.Fatal(err)
			}
		}
		step()
		if n := testing.AllocsPerRun(20, step); n != 0 {
			t.Errorf("%d workers: a replay makes %v allocations", workers, n)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}

// silent is the splitting op without anything that allocates.
type silent struct{ sum3 }

func (s *silent) Launch(c *device.OpCall) error { return nil }
