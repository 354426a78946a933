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

	"pwc/compile/host"
	"pwc/internal/testkit"
	"pwc/pieces"
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

// sum3 is an implementation of silly::attention over host memory, with hooks that record
// its calls for tests of the contracts.
type sum3 struct {
	capture bool
	skip    int64 // number of rows at the end that a call does not write
	calls   int
	rows    []int64 // Rows and Size of each call in turn
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
	if o.Compile.Compiler == nil {
		o.Compile.Compiler = pieces.Pipeline{Backend: host.New()}
	}
	b, err := piecewise.New(context.Background(), testkit.Parse(t, text), o)
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

// C6: two runs of one pool do not overlap.
func TestBusyPool(t *testing.T) {
	op := &sum3{}
	b := start(t, nineteen, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}, Ops: []device.Op{op}})
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

// stateful lacks the parameter %i: i32[N], which the tests that use it add.
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

// C11: padded rows hold zero when a replay starts, whatever an earlier run left there.
func TestPaddedRowsAreReset(t *testing.T) {
	op := &sum3{}
	b := start(t, nineteen, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4}}, Ops: []device.Op{op}, Memory: piecewise.MemoryOptions{StagingSlots: 1}})
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

// lookup lacks the constant %k: f32[2], which the test that uses it adds.
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

func TestModeFull(t *testing.T) {
	_, err := piecewise.New(context.Background(), testkit.Parse(t, nineteen), piecewise.Options{Device: openHost(t), Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}}, Capture: piecewise.CaptureOptions{Mode: piecewise.Full}, Ops: []device.Op{&sum3{}}})
	if !errors.Is(err, piecewise.ErrOp) || !strings.Contains(err.Error(), "first") {
		t.Fatalf("mode full with an op that cannot be captured: %v, want ErrOp that names it", err)
	}
	op := &sum3{capture: true}
	b := start(t, nineteen, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullAndPiecewise, Sizes: []int64{2, 4}}, Ops: []device.Op{op}})
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
	decode := start(t, nineteen, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.FullDecodeOnly, Sizes: []int64{2}}, Ops: []device.Op{&sum3{capture: true}}})
	wantF32(t, run(t, decode.Func("forward"), []float32{1, 2}), []float32{28, 37})
	if s := decode.Stats(); s.EagerRuns != 1 || s.FullReplays != 0 {
		t.Errorf("full-decode-only and a mixed batch: eager %d, full %d; want 1 and 0", s.EagerRuns, s.FullReplays)
	}
}

func TestOrder(t *testing.T) {
	b := create(t, nineteen, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}, Ops: []device.Op{&sum3{}}})
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
	if in, err = b.Func("forward").Inputs(2); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	_, bytesErr := in.Bytes("x") // their memory is given back
	_, keepErr := in.Keep("x")
	_, runErr := b.Func("forward").Run(ctx, in, nil)
	for _, err := range []error{bytesErr, keepErr, runErr, in.Set("x", device.Tensor{})} {
		if !errors.Is(err, piecewise.ErrClosed) {
			t.Errorf("inputs from before Close: %v, want ErrClosed", err)
		}
	}
	if err := b.Load(ctx, nil, nil); !errors.Is(err, piecewise.ErrClosed) {
		t.Errorf("load after Close: %v, want ErrClosed", err)
	}
	if _, err := b.Func("forward").Inputs(1); !errors.Is(err, piecewise.ErrClosed) {
		t.Errorf("inputs after Close: %v, want ErrClosed", err)
	}
}

// Close frees the memory of results, and another backend of the pool may get it: results
// cannot be read any more.
func TestResultsEndWithTheirBackend(t *testing.T) {
	pool, err := piecewise.NewPool(openHost(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, plain, piecewise.Options{Pool: pool, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}})
	r, err := issue(t, b.Func("forward"), []float32{1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	var dst [4]byte
	if err := r.At(0).CopyTo(dst[:]); !errors.Is(err, piecewise.ErrClosed) {
		t.Errorf("read after Close: %v, want ErrClosed", err)
	}
	if err := r.Wait(); !errors.Is(err, piecewise.ErrClosed) {
		t.Errorf("wait after Close: %v, want ErrClosed", err)
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

// A linked input that is set to other data overwrites the result that it is linked to, which is
// then stale.
func TestLinkedInputsOverwriteResults(t *testing.T) {
	dev := openHost(t)
	for _, staged := range []bool{true, false} {
		b := start(t, "pwc 1\nmodule \"linked\" {\n  sym N in [1, 8] batch\n"+`
  func @forward(%x: f32[N]) -> (f32[N]) {
    %h = mul(%x, 2.0) : f32[N]
    return %h
  }
  func @logits(%h: f32[N]) -> (f32[N]) {
    %y = add(%h, 1.0) : f32[N]
    return %y
  }
}
`, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}})
		r, err := issue(t, b.Func("forward"), []float32{1, 2}, nil)
		if err != nil {
			t.Fatal(err)
		}
		in, err := b.Func("logits").Inputs(2)
		if err != nil {
			t.Fatal(err)
		}
		if staged {
			h, err := in.Float32s("h")
			if err != nil {
				t.Fatal(err)
			}
			copy(h, []float32{7, 8})
		} else {
			onDevice(t, dev, in, "h", []float32{7, 8})
		}
		y, err := b.Func("logits").Run(context.Background(), in, nil)
		if err != nil {
			t.Fatal(err)
		}
		wantF32(t, read(t, y.At(0)), []float32{8, 9})
		if err := r.At(0).CopyTo(make([]byte, 8)); !errors.Is(err, piecewise.ErrStale) {
			t.Errorf("staged %v: a result that was overwritten from outside: %v, want ErrStale", staged, err)
		}
	}
}

// Methods of a result that its run does not have, and Wait of the zero Results, return ErrOrder; DType
// returns 0.
func TestNoSuchResult(t *testing.T) {
	f := start(t, plain, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}}).Func("forward")
	got, err := issue(t, f, []float32{1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, r := range map[string]piecewise.Result{"zero": piecewise.Results{}.At(0), "beyond": got.At(1), "before": got.At(-1)} {
		_, shape := r.Shape()
		_, size := r.Size()
		_, tensor := r.Tensor()
		in, err := f.Inputs(1)
		if err != nil {
			t.Fatal(err)
		}
		for i, err := range []error{shape, size, tensor, r.CopyTo(make([]byte, 4)), r.StartCopy(make([]byte, 4)), in.SetResult("x", r)} {
			if !errors.Is(err, piecewise.ErrOrder) {
				t.Errorf("%s, call %d: %v, want ErrOrder", what, i, err)
			}
		}
		if dt := r.DType(); dt != 0 {
			t.Errorf("%s: dtype %s", what, dt)
		}
	}
	if err := (piecewise.Results{}).Wait(); !errors.Is(err, piecewise.ErrOrder) {
		t.Errorf("a wait for nothing: %v", err)
	}
}

// A step may have 0 rows if the symbol's range begins at 0.
func TestNoRows(t *testing.T) {
	text := strings.Replace(plain, "[1, 64]", "[0, 64]", 1)
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.Piecewise} {
		f := start(t, text, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{2}}}).Func("forward")
		wantF32(t, run(t, f, nil), nil)
		wantF32(t, run(t, f, []float32{1}), []float32{2})
	}
}

// 500 runs in random order of sizes give the same bits for each size.
func TestRandomOrderOfSizes(t *testing.T) {
	for _, mode := range []piecewise.Mode{piecewise.Piecewise, piecewise.Full} {
		sizes := []int64{1, 2, 4, 8, 16, 64}
		b := start(t, nineteen, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: sizes}, Ops: []device.Op{&sum3{capture: true}}})
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

// A replay makes no Go allocations, with one worker or several.
func TestReplayAllocatesNothing(t *testing.T) {
	for _, workers := range []int{1, runtime.GOMAXPROCS(0) + 1} {
		dev := hostdev.Open(hostdev.Options{Workers: workers})
		op := &silent{}
		text := strings.Replace(nineteen, "N in [1, 512]", "N in [1, 65536]", 1)
		b := create(t, text, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{65536}}, Ops: []device.Op{op}})
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

// silent is an implementation of silly::attention whose calls do nothing.
type silent struct{ sum3 }

func (s *silent) Launch(c *device.OpCall) error { return nil }
