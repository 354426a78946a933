package graphs_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	comphost "pwc/compile/host"
	"pwc/graphs"
	"pwc/graphs/whole"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/device/failing"
	"pwc/runtime/host"
	"pwc/runtime/mem"
)

var ctx = context.Background()

// functions is a module of small functions over n elements.
func functions(n int) string {
	return strings.ReplaceAll(`pwc 1
module "m" {
  state @rng : i64[2]
  func @add1(%x: f32[n]) -> (f32[n]) {
    %a = add(%x, 1.0) : f32[n]
    return %a
  }
  func @add2(%x: f32[n]) -> (f32[n]) {
    %a = add(%x, 2.0) : f32[n]
    return %a
  }
  func @add3(%x: f32[n]) -> (f32[n]) {
    %a = add(%x, 3.0) : f32[n]
    return %a
  }
  func @add4(%x: f32[n]) -> (f32[n]) {
    %a = add(%x, 4.0) : f32[n]
    return %a
  }
  func @add(%x: f32[n], %y: f32[n]) -> (f32[n]) {
    %a = add(%x, %y) : f32[n]
    return %a
  }
  func @copy(%x: f32[n]) -> (f32[n]) {
    %a = mul(%x, 1.0) : f32[n]
    return %a
  }
  func @bump(%x: mut f32[n]) -> () {
    %y = add(%x, 1.0) : f32[n]
    copy(%x, %y)
    return
  }
  func @bump2(%x: mut f32[n]) -> () {
    %y = add(%x, 2.0) : f32[n]
    copy(%x, %y)
    return
  }
  func @draw() -> (f32[n], f32[n]) {
    %u = uniform(@rng, shape=[n], dtype=f32)
    %v = uniform(@rng, shape=[n], dtype=f32)
    return %u, %v
  }
}
`, "[n]", fmt.Sprintf("[%d]", n))
}

// rig is a device with a compiler for it.
type rig struct {
	dev      device.Device
	compiler pieces.Compiler
	store    pieces.Store // nil: each test compiles its programs
	stays    bool         // several sessions share the device: close leaves it open
}

// env is a session on a device with functions over n elements.
type env struct {
	rig
	testing.TB
	n   int
	s   *graphs.Session
	mod *ir.Module
	fns map[string]*whole.Function
}

// opener opens a session on the device that a test runs on.
type opener func(t testing.TB, n int) *env

// open opens a session on a host device of its own.
func open(t testing.TB, n int) *env {
	t.Helper()
	return openOn(t, rig{dev: host.Open(host.Options{Workers: 1}), compiler: pieces.Pipeline{Backend: comphost.New()}}, n)
}

func openOn(t testing.TB, g rig, n int) *env {
	t.Helper()
	e := &env{rig: g, TB: t, n: n, fns: map[string]*whole.Function{}}
	e.s = testkit.Must[*graphs.Session](t)(graphs.NewSession(e.dev, graphs.SessionOptions{}))
	e.mod = testkit.Must[*ir.Module](t)(ir.Parse("m.ir", []byte(functions(n))))
	for _, f := range e.mod.Funcs { // nothing is loaded during a capture
		e.fn(f.Name)
	}
	return e
}

// close closes the session. Graphs and storages that are left are errors.
func (e *env) close() {
	e.Helper()
	for _, f := range e.fns {
		testkit.Check(e, f.Close())
	}
	testkit.Check(e, e.s.Close())
	if !e.stays {
		testkit.Check(e, e.dev.Close())
	}
}

func (e *env) fn(name string) *whole.Function {
	e.Helper()
	if e.fns[name] == nil {
		e.fns[name] = testkit.Must[*whole.Function](e)(whole.Compile(ctx, e.s, e.mod, name, whole.Options{Compiler: e.compiler, Store: e.store}))
	}
	return e.fns[name]
}

// run calls a function and returns its first result, if it has one.
func (e *env) run(r *graphs.Recorder, name string, ts ...graphs.Tensor) graphs.Tensor {
	e.Helper()
	out := testkit.Must[[]graphs.Tensor](e)(e.fn(name).Run(r, ts))
	if len(out) == 0 {
		return graphs.Tensor{}
	}
	return out[0]
}

// next calls a function on x and releases x.
func (e *env) next(r *graphs.Recorder, name string, x graphs.Tensor, more ...graphs.Tensor) graphs.Tensor {
	e.Helper()
	y := e.run(r, name, append([]graphs.Tensor{x}, more...)...)
	testkit.Check(e, x.Release())
	return y
}

func (e *env) tensor(name string, fill float32) graphs.Tensor {
	e.Helper()
	return testkit.Must[graphs.Tensor](e)(e.s.TensorOf(name, filled(fill, e.n), dtype.F32, int64(e.n)))
}

func filled(v float32, n int) []byte {
	var b []byte
	for range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func (e *env) read(t graphs.Tensor) []float32 {
	e.Helper()
	b := make([]byte, t.Size())
	testkit.Check(e, e.s.Read(t, b))
	vs := make([]float32, len(b)/4)
	for i := range vs {
		vs[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return vs
}

func (e *env) sum(t graphs.Tensor) (s float64) {
	e.Helper()
	for _, v := range e.read(t) {
		s += float64(v)
	}
	return s
}

func (e *env) capture(o graphs.Options, f func(*graphs.Recorder)) *graphs.Graph {
	e.Helper()
	return testkit.Must[*graphs.Graph](e)(graphs.Capture(ctx, e.s, o, func(r *graphs.Recorder) error { f(r); return nil }))
}

func (e *env) replay(gs ...*graphs.Graph) {
	e.Helper()
	for _, g := range gs {
		testkit.Check(e, g.Replay(e.s.DefaultStream()))
	}
}

func (e *env) reset(gs ...*graphs.Graph) {
	e.Helper()
	for _, g := range gs {
		testkit.Check(e, g.Reset())
	}
}

func drop(t testing.TB, ts ...graphs.Tensor) {
	t.Helper()
	for _, x := range ts {
		testkit.Check(t, x.Release())
	}
}

// TestCaptureSimple is test_graph_capture_simple and test_graph_capture_reset_recapture. Here and
// below, tests named test_… are those of PyTorch's test/test_cuda.py, whose checks are repeated.
func TestCaptureSimple(t *testing.T) { captureSimple(t, open) }

func captureSimple(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 1000)
	defer e.close()
	a := e.tensor("a", 1)
	g := e.s.NewGraph(graphs.Options{Name: "g"})
	for _, c := range []struct {
		f    string
		want float64
	}{{"add1", 11000}, {"add2", 21000}} {
		var b graphs.Tensor
		testkit.Check(t, g.Capture(ctx, func(r *graphs.Recorder) error {
			b = e.run(r, "copy", a)
			for range 10 {
				b = e.next(r, c.f, b)
			}
			return nil
		}))
		e.replay(g)
		if got := e.sum(b); got != c.want {
			t.Errorf("%s: sum %v, want %v", c.f, got, c.want)
		}
		if err := g.Capture(ctx, func(*graphs.Recorder) error { return nil }); !errors.Is(err, graphs.ErrCaptured) {
			t.Errorf("a capture into a captured graph: %v", err)
		}
		e.reset(g)
		// A result outlives its graph.
		if got := e.sum(b); got != c.want {
			t.Errorf("%s after reset: sum %v", c.f, got)
		}
		drop(t, b)
	}
	drop(t, a)
}

// TestMisuse makes calls that are refused, before, in and after a capture, and checks their errors.
func TestMisuse(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	g := e.s.NewGraph(graphs.Options{Name: "g"})
	for _, c := range []struct {
		what string
		err  error
		want error
	}{
		{"replay", g.Replay(e.s.DefaultStream()), graphs.ErrNotCaptured},
		{"instantiate", g.Instantiate(), graphs.ErrNotCaptured},
		{"update", g.Update(), graphs.ErrNotCaptured},
		{"end", g.End(), device.ErrNotCapturing},
		{"dot", g.WriteDOT(&strings.Builder{}), graphs.ErrNotCaptured},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s before a capture: %v", c.what, c.err)
		}
	}
	if _, err := g.Pool(); !errors.Is(err, graphs.ErrNotCaptured) {
		t.Errorf("pool before a capture: %v", err)
	}
	if g.Nodes() != 0 || g.Describe() != nil {
		t.Error("a graph has nodes before a capture")
	}
	if _, err := graphs.Capture(ctx, e.s, graphs.Options{Stream: e.s.DefaultStream()}, func(*graphs.Recorder) error { return nil }); !errors.Is(err, graphs.ErrDefaultStream) {
		t.Errorf("capture on the default stream: %v", err)
	}
	foreign := testkit.Must[*graphs.Session](t)(graphs.NewSession(e.dev, graphs.SessionOptions{}))
	pool := foreign.NewPool("foreign")
	for _, o := range []graphs.Options{{Pool: e.s.DefaultPool()}, {Pool: pool}, {Stream: testkit.Must[*graphs.Stream](t)(foreign.NewStream("foreign"))}} {
		if _, err := graphs.Capture(ctx, e.s, o, func(*graphs.Recorder) error { return nil }); !errors.Is(err, graphs.ErrArguments) {
			t.Errorf("a capture in the default pool, or with a pool or stream of another session: %v", err)
		}
	}
	testkit.Check(t, errors.Join(pool.Release(), foreign.Close()))
	testkit.Check(t, g.Capture(ctx, func(r *graphs.Recorder) error {
		x := testkit.Must[graphs.Tensor](t)(r.Alloc("x", dtype.F32, 8))
		if err := r.Upload(x, filled(1, 8)); !errors.Is(err, graphs.ErrHostWork) {
			t.Errorf("upload: %v", err)
		}
		if _, err := r.Alloc("bad", dtype.F32, -1); err == nil {
			t.Error("an allocation of a negative size was not refused")
		}
		if err := r.Copy(x, x); !errors.Is(err, device.ErrOverlap) {
			t.Errorf("copy onto itself: %v", err)
		}
		if _, err := r.Fork(nil); !errors.Is(err, graphs.ErrArguments) {
			t.Errorf("fork to nothing: %v", err)
		}
		if err := r.Join(r); !errors.Is(err, graphs.ErrArguments) {
			t.Errorf("join of itself: %v", err)
		}
		if err := r.Stream().Device().Synchronize(); !errors.Is(err, device.ErrCapturing) {
			t.Errorf("synchronize: %v", err)
		}
		if err := r.Fill(x, 0); err != nil {
			return err
		}
		return x.Release()
	}))
	if err := g.Instantiate(); !errors.Is(err, graphs.ErrTemplate) {
		t.Errorf("instantiate without a template: %v", err)
	}
	if err := g.Update(); !errors.Is(err, graphs.ErrTemplate) {
		t.Errorf("update without a template: %v", err)
	}
	e.reset(g)
	e.reset(g)
}

// TestFailedCapture: after a failed capture, its storages have no owners, the pool has no additional
// use and no blocks, and the generator can be used. The graph captures again, also after a panic.
func TestFailedCapture(t *testing.T) { failedCapture(t, open) }

func failedCapture(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 8)
	defer e.close()
	pool := e.s.NewPool("shared")
	gen := e.s.NewGenerator(5)
	g := e.s.NewGraph(graphs.Options{Name: "g", Pool: pool, Generators: []*graphs.Generator{gen}})
	boom := errors.New("boom")
	var x graphs.Tensor
	err := g.Capture(ctx, func(r *graphs.Recorder) error {
		x = testkit.Must[graphs.Tensor](t)(r.Alloc("x", dtype.F32, 8))
		testkit.Check(t, r.Fill(x, 0))
		if _, err := gen.State(); !errors.Is(err, graphs.ErrGenerator) {
			t.Errorf("state during a capture: %v", err)
		}
		if err := gen.SetState(graphs.GeneratorState{}); !errors.Is(err, graphs.ErrGenerator) {
			t.Errorf("set state during a capture: %v", err)
		}
		if err := gen.Seed(5); err != nil {
			t.Errorf("the same seed during a capture: %v", err)
		}
		if err := gen.Seed(6); !errors.Is(err, graphs.ErrGenerator) {
			t.Errorf("another seed during a capture: %v", err)
		}
		return boom
	})
	var c *graphs.CaptureError
	if !errors.Is(err, boom) || !errors.As(err, &c) || c.Graph != "g" || c.Stream != "capture" {
		t.Errorf("the error is %v", err)
	}
	if err := x.Alive(); err == nil {
		t.Error("a tensor of the failed capture is alive")
	}
	if err := x.Err(); !errors.Is(err, graphs.ErrStale) || !strings.Contains(err.Error(), "the memory of x of generation 0 may be reused, because its capture failed or was reset; capture again") {
		t.Errorf("read of a tensor of the failed capture: %v", err)
	}
	if u := pool.Use(); u.Uses != 1 || u.Blocks != 0 {
		t.Errorf("the pool has %+v", u)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a panic was swallowed")
			}
		}()
		g.Capture(ctx, func(*graphs.Recorder) error { panic("in a capture") })
	}()
	// The generator draws, and a new capture on the same stream succeeds.
	eager := testkit.Must[[]graphs.Tensor](t)(e.fn("draw").RunArgs(e.s.Eager(e.s.DefaultStream()), []graphs.Arg{gen}))
	drop(t, eager...)
	testkit.Check(t, g.Capture(ctx, func(r *graphs.Recorder) error {
		x = testkit.Must[graphs.Tensor](t)(r.Alloc("x", dtype.F32, 8))
		return r.Fill(x, 0)
	}))
	e.replay(g)
	if e.sum(x) != 0 {
		t.Error("the replay did not fill")
	}
	drop(t, x)
	e.reset(g)
	testkit.Check(t, pool.Release())
	if err := pool.Release(); !errors.Is(err, mem.ErrReleased) {
		t.Errorf("a second release: %v", err)
	}
}

// TestCaptureOOM is test_graph_capture_oom: a capture that allocates 2^40 floats fails.
func TestCaptureOOM(t *testing.T) { captureOOM(t, open) }

func captureOOM(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 8)
	defer e.close()
	_, err := graphs.Capture(ctx, e.s, graphs.Options{}, func(r *graphs.Recorder) error {
		_, err := r.Alloc("huge", dtype.F32, 1<<40)
		return err
	})
	if !errors.Is(err, device.ErrOutOfMemory) || !strings.Contains(err.Error(), "out of") {
		t.Errorf("a capture that allocates 2^40 floats: %v", err)
	}
}

// TestTwoSuccessive is test_graph_two_successive: graphs that share a pool reserve 2 MiB
// less, and give the same sums.
func TestTwoSuccessive(t *testing.T) { twoSuccessive(t, open) }

func twoSuccessive(t *testing.T, open opener) {
	t.Helper()
	reserved := map[string]int64{}
	for _, share := range []string{"unshared", "pool", "handle"} {
		e := open(t, 1000)
		one, three := e.tensor("one", 1), e.tensor("three", 3)
		a, c0 := e.tensor("a", 1), e.tensor("c", 1)
		// temps computes (x+v) + (x+v).
		temps := func(r *graphs.Recorder, x, v graphs.Tensor) graphs.Tensor {
			p, q := e.run(r, "add", x, v), e.run(r, "add", x, v)
			s := e.run(r, "add", p, q)
			drop(t, p, q)
			return s
		}
		o0, o1 := graphs.Options{Name: "g0"}, graphs.Options{Name: "g1"}
		var handle *graphs.Pool
		if share == "handle" {
			handle = e.s.NewPool("shared")
			o0.Pool, o1.Pool = handle, handle
		}
		before := e.s.Allocator().Stats().ReservedBytes.Now
		var b graphs.Tensor
		chain := func(r *graphs.Recorder, n int) {
			for range n {
				x := temps(r, b, one)
				drop(t, b)
				b = x
			}
		}
		g0 := e.capture(o0, func(r *graphs.Recorder) { b = e.run(r, "copy", a); chain(r, 5) })
		if share == "pool" {
			o1.Pool = testkit.Must[*graphs.Pool](t)(g0.Pool())
		}
		g1 := e.capture(o1, func(r *graphs.Recorder) { chain(r, 5) })
		reserved[share] = e.s.Allocator().Stats().ReservedBytes.Now - before
		c := c0
		r := e.s.Eager(e.s.DefaultStream())
		eager := func(n int) {
			for range n {
				x := temps(r, c, three)
				drop(t, c)
				c = x
			}
		}
		eager(1)
		e.replay(g0)
		eager(2)
		e.replay(g1)
		eager(3)
		// 2(x+v) ten times from 1 with v = 1, and six times from 1 with v = 3.
		if got := e.sum(b); got != 3_070_000 {
			t.Errorf("%s: b sums to %v", share, got)
		}
		if got := e.sum(c); got != 442_000 {
			t.Errorf("%s: c sums to %v", share, got)
		}
		drop(t, a, b, c, one, three)
		e.reset(g1, g0)
		if handle != nil {
			testkit.Check(t, handle.Release())
		}
		e.close()
	}
	for _, share := range []string{"pool", "handle"} {
		if d := reserved["unshared"] - reserved[share]; d != 2<<20 {
			t.Errorf("sharing by %s saves %d bytes, want 2 MiB", share, d)
		}
	}
}

// TestThreeSuccessive is test_graph_three_successive. If the graphs share a pool and the third is
// replayed before the second, the second would read memory that the third overwrote. PyTorch then
// computes 10000; here the replay is refused before the launch.
func TestThreeSuccessive(t *testing.T) { threeSuccessive(t, open) }

func threeSuccessive(t *testing.T, open opener) {
	t.Helper()
	for _, shared := range []bool{false, true} {
		for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}} {
			e := open(t, 1000)
			a := e.tensor("a", 1)
			o := graphs.Options{}
			if shared {
				o.Pool = e.s.NewPool("shared")
			}
			named := func(n string) graphs.Options { o.Name = n; return o }
			var b, c, d, ee, f graphs.Tensor
			gs := []*graphs.Graph{
				e.capture(named("g0"), func(r *graphs.Recorder) {
					b = e.run(r, "copy", a)
					c, d = e.run(r, "add1", b), e.run(r, "add2", b)
				}),
				e.capture(named("g1"), func(r *graphs.Recorder) {
					ee = e.run(r, "add3", c)
					drop(t, c)
				}),
				e.capture(named("g2"), func(r *graphs.Recorder) { f = e.run(r, "add4", d) }),
			}
			var stale *graphs.StaleError
			for _, i := range order {
				err := gs[i].Replay(e.s.DefaultStream())
				switch {
				case shared && order[1] == 2 && i == 1:
					if !errors.As(err, &stale) || !strings.Contains(err.Error(), "replay of g2") {
						t.Errorf("shared, order %v: %v", order, err)
					}
				case err != nil:
					t.Errorf("shared %t, order %v: %v", shared, order, err)
				}
			}
			if stale == nil {
				if got := e.sum(ee); got != 5000 {
					t.Errorf("shared %t, order %v: e sums to %v", shared, order, got)
				}
			}
			if got := e.sum(f); got != 7000 {
				t.Errorf("shared %t, order %v: f sums to %v", shared, order, got)
			}
			if shared && order[1] == 2 {
				// A replay of g0 writes c again, after which g1 may run. But f has the memory of
				// c, so the replay would overwrite f.
				if err := gs[0].Replay(e.s.DefaultStream()); !errors.Is(err, graphs.ErrHeld) {
					t.Errorf("g0 overwrites f, which is held: %v", err)
				}
				drop(t, f)
				e.replay(gs[0], gs[1])
				if got := e.sum(ee); got != 5000 {
					t.Errorf("after g0 again: e sums to %v", got)
				}
			} else {
				drop(t, f)
			}
			drop(t, a, b, d, ee)
			e.reset(gs...)
			if o.Pool != nil {
				testkit.Check(t, o.Pool.Release())
			}
			e.close()
		}
	}
}

// TestStatsAndResultsAfterDestroy is
// test_graph_memory_stats_and_use_result_after_destroy_graph: every number of its table,
// without PyTorch's blocks for seed and offset.
func TestStatsAndResultsAfterDestroy(t *testing.T) { statsAndResultsAfterDestroy(t, open) }

func statsAndResultsAfterDestroy(t *testing.T, open opener) {
	t.Helper()
	const mib = 1 << 20
	for _, c := range []struct {
		bytes    int64
		small    bool
		segments int64
		reserved int64
		after    int64 // reserved after the graph's reset
	}{
		{512, true, 1, 2 * mib, 2 * mib},
		{mib, true, 2, 4 * mib, 2 * mib},
		{mib + 512, false, 1, 20 * mib, 20 * mib},
		{10*mib - 512, false, 2, 40 * mib, 20 * mib},
		{10*mib + 512, false, 3, 36 * mib, 12 * mib},
	} {
		n := int(c.bytes / 4)
		e := open(t, n)
		a := e.tensor("a", 1)
		counts := func() mem.Counts {
			if c.small {
				return e.s.Allocator().Stats().Small
			}
			return e.s.Allocator().Stats().Large
		}
		for range 2 {
			before := counts()
			var b graphs.Tensor
			g := e.capture(graphs.Options{Name: "g"}, func(r *graphs.Recorder) {
				b = e.run(r, "copy", a)
				for range 5 {
					// Three buffers are live at once, as in b = b.clone() + 1.
					x := e.run(r, "copy", b)
					y := e.run(r, "add1", x)
					drop(t, b, x)
					b = y
				}
			})
			after := counts()
			got := [4]int64{after.Segments.Now - before.Segments.Now, after.ReservedBytes.Now - before.ReservedBytes.Now,
				after.ActiveBlocks.Now - before.ActiveBlocks.Now, after.ActiveBytes.Now - before.ActiveBytes.Now}
			if want := [4]int64{c.segments, c.reserved, 1, c.bytes}; got != want {
				t.Errorf("%d bytes: segments, reserved, blocks, bytes are %v, want %v", c.bytes, got, want)
			}
			e.replay(g)
			if got := e.sum(b); got != float64(6*n) {
				t.Errorf("%d bytes: b sums to %v", c.bytes, got)
			}
			e.reset(g)
			testkit.Must[int64](t)(e.s.EmptyCache())
			after = counts()
			got = [4]int64{after.Segments.Now - before.Segments.Now, after.ReservedBytes.Now - before.ReservedBytes.Now,
				after.ActiveBlocks.Now - before.ActiveBlocks.Now, after.ActiveBytes.Now - before.ActiveBytes.Now}
			if want := [4]int64{1, c.after, 1, c.bytes}; got != want {
				t.Errorf("%d bytes, graph gone: %v, want %v", c.bytes, got, want)
			}
			if got := e.sum(b); got != float64(6*n) {
				t.Errorf("%d bytes, graph gone: b sums to %v", c.bytes, got)
			}
			drop(t, b)
			testkit.Must[int64](t)(e.s.EmptyCache())
			if after = counts(); after.ReservedBytes.Now != before.ReservedBytes.Now {
				t.Errorf("%d bytes: %d reserved at the end, %d before", c.bytes, after.ReservedBytes.Now, before.ReservedBytes.Now)
			}
		}
		drop(t, a)
		e.close()
	}
}

// TestKeepTemplate has the checks of raw_graph_reset_and_recapture. A graph that adds 1 is replayed,
// and instantiated again before each of two more replays. After a reset the same is done with a graph
// that adds 2.
func TestKeepTemplate(t *testing.T) { keepTemplate(t, open) }

func keepTemplate(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 8)
	defer e.close()
	g := e.s.NewGraph(graphs.Options{Name: "g", KeepTemplate: true})
	for _, f := range []string{"bump", "bump2"} {
		step := float64(map[string]int{"bump": 1, "bump2": 2}[f])
		x := e.tensor("x", 0)
		testkit.Check(t, g.Capture(ctx, func(r *graphs.Recorder) error { e.run(r, f, x); return nil }))
		for i := range 3 {
			if i > 0 {
				testkit.Check(t, g.Instantiate())
			}
			e.replay(g)
			if got, want := e.sum(x), 8*step*float64(i+1); got != want {
				t.Errorf("%s: %v, want %v", f, got, want)
			}
		}
		e.reset(g)
		drop(t, x)
	}
}

// TestUpdate moves an input without a capture or a copy. Refused updates leave the graph as it is.
func TestUpdate(t *testing.T) { update(t, open) }

func update(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 8)
	defer e.close()
	x, y := e.tensor("x", 1), e.tensor("y", 5)
	var b graphs.Tensor
	g := e.capture(graphs.Options{Name: "g", KeepTemplate: true}, func(r *graphs.Recorder) { b = e.run(r, "add1", x) })
	e.replay(g)
	if got := e.sum(b); got != 16 {
		t.Errorf("before: %v", got)
	}
	testkit.Check(t, g.Update(graphs.Move{From: x, To: y}))
	e.replay(g)
	if got := e.sum(b); got != 48 {
		t.Errorf("moved: %v", got)
	}
	drop(t, x) // nothing reads it any more
	e.replay(g)
	short := testkit.Must[graphs.Tensor](t)(e.s.Tensor("short", dtype.F32, 4))
	for _, m := range []graphs.Move{{From: y, To: short}, {From: b, To: y}, {From: short, To: short}} {
		if err := g.Update(m); !errors.Is(err, graphs.ErrArguments) {
			t.Errorf("a move that does not fit: %v", err)
		}
	}
	if err := g.Update(graphs.Move{From: y, To: x}); !errors.Is(err, graphs.ErrReleased) {
		t.Errorf("a move to released memory: %v", err)
	}
	e.replay(g)
	if got := e.sum(b); got != 48 {
		t.Errorf("after refused updates: %v", got)
	}
	drop(t, short)
	drop(t, b)
	drop(t, y)
	if err := g.Replay(e.s.DefaultStream()); !errors.Is(err, graphs.ErrReleased) {
		t.Errorf("a replay that reads released memory: %v", err)
	}
	e.reset(g)
}

// TestUpdateOfResults: after a move, a graph needs owners of memory that no graph writes, and what it wrote of the
// previous memory, here only a part, is no victim any more.
func TestUpdateOfResults(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	x, y := e.tensor("x", 1), e.tensor("y", 5)
	var b, c graphs.Tensor
	pool := e.s.NewPool("pool")
	h := e.capture(graphs.Options{Name: "h", Pool: pool}, func(r *graphs.Recorder) { b = e.run(r, "add1", x) })
	g := e.capture(graphs.Options{Name: "g", Pool: pool, KeepTemplate: true}, func(r *graphs.Recorder) {
		c = e.run(r, "add1", b)
		testkit.Check(t, r.Fill(testkit.Must[graphs.Tensor](t)(b.View(0, dtype.F32, 4)), 0))
	})
	e.replay(h)
	e.replay(g)
	testkit.Check(t, g.Update(graphs.Move{From: b, To: y}))
	e.replay(h) // b has contents again, which g no longer overwrites
	e.replay(g)
	if got := e.sum(c); got != 48 {
		t.Errorf("moved: %v", got)
	}
	drop(t, y)
	if err := g.Replay(e.s.DefaultStream()); !errors.Is(err, graphs.ErrReleased) {
		t.Errorf("a replay that reads released memory: %v", err)
	}
	testkit.Check(t, g.Instantiate())
	e.replay(h)
	e.replay(g)
	if got := e.sum(c); got != 24 {
		t.Errorf("moved back: %v", got)
	}
	drop(t, x, b, c)
	e.reset(g)
	e.reset(h)
	testkit.Check(t, pool.Release())
}

// TestUpdateOfBoth: two inputs that moves gave the same memory move together.
func TestUpdateOfBoth(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	x, y, z := e.tensor("x", 1), e.tensor("y", 5), e.tensor("z", 7)
	var b graphs.Tensor
	g := e.capture(graphs.Options{Name: "g", KeepTemplate: true}, func(r *graphs.Recorder) { b = e.run(r, "add", x, y) })
	testkit.Check(t, errors.Join(g.Update(graphs.Move{From: x, To: y}), g.Update(graphs.Move{From: y, To: z})))
	drop(t, x, y)
	e.replay(g)
	if got := e.sum(b); got != 8*14 {
		t.Errorf("sum %v", got)
	}
	drop(t, z, b)
	e.reset(g)
}

// TestForkJoin records branches on two streams. No edge is between them, and a read of the other
// branch, work on a joined fork and a fork without a join are refused.
func TestForkJoin(t *testing.T) { forkJoin(t, open) }

func forkJoin(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 8)
	defer e.close()
	side := testkit.Must[*graphs.Stream](t)(e.s.NewStream("side"))
	x := e.tensor("x", 1)
	var a, b, c graphs.Tensor
	g := e.capture(graphs.Options{Name: "g"}, func(r *graphs.Recorder) {
		f := testkit.Must[*graphs.Recorder](t)(r.Fork(side))
		a = e.run(f, "add1", x)
		b = e.run(r, "add2", x)
		if _, err := e.fn("add").Run(r, []graphs.Tensor{a, b}); !errors.Is(err, graphs.ErrUnordered) {
			t.Errorf("a branch reads what the other makes: %v", err)
		}
		testkit.Check(t, r.Join(f))
		if err := r.Join(f); err == nil {
			t.Error("a fork was joined twice")
		}
		if _, err := e.fn("add1").Run(f, []graphs.Tensor{x}); err == nil {
			t.Error("a fork that has joined accepts work")
		}
		c = e.run(r, "add", a, b)
	})
	nodes := g.Describe()
	if len(nodes) != 3 || len(nodes[0].Deps) != 0 || len(nodes[1].Deps) != 0 || !slices.Equal(nodes[2].Deps, []int32{0, 1}) {
		t.Errorf("nodes are %+v", nodes)
	}
	var dot strings.Builder
	testkit.Check(t, g.WriteDOT(&dot))
	for _, want := range []string{"digraph", "n0 -> n2", "n1 -> n2", "side"} {
		if !strings.Contains(dot.String(), want) {
			t.Errorf("the DOT lacks %q:\n%s", want, dot.String())
		}
	}
	if strings.Contains(dot.String(), "n0 -> n1") {
		t.Error("the DOT has an edge between the branches")
	}
	e.replay(g)
	if got := e.sum(c); got != 8*5 {
		t.Errorf("sum %v", got)
	}
	drop(t, a, b, c)
	e.reset(g)
	// A fork without a join is an error that names the stream. The stream stays usable.
	_, err := graphs.Capture(ctx, e.s, graphs.Options{Name: "unjoined"}, func(r *graphs.Recorder) error {
		f, err := r.Fork(side)
		if err != nil {
			return err
		}
		a := e.run(f, "add1", x)
		return a.Release()
	})
	if !errors.Is(err, device.ErrUnjoined) || !strings.Contains(err.Error(), `"side"`) {
		t.Errorf("unjoined: %v", err)
	}
	a = e.run(e.s.Eager(side), "add1", x)
	testkit.Check(t, side.Synchronize())
	if got := e.sum(a); got != 16 {
		t.Errorf("after it: %v", got)
	}
	drop(t, a, x)
}

// TestForkKeepsMemory holds that memory that a fork reads is not reused before the fork is joined,
// although its tensor was released.
func TestForkKeepsMemory(t *testing.T) { forkKeepsMemory(t, open) }

func forkKeepsMemory(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 8)
	defer e.close()
	side := testkit.Must[*graphs.Stream](t)(e.s.NewStream("side"))
	x := e.tensor("x", 1)
	var b graphs.Tensor
	g := e.capture(graphs.Options{Name: "g"}, func(r *graphs.Recorder) {
		a := e.run(r, "add1", x)
		at := a.Range()
		f := testkit.Must[*graphs.Recorder](t)(r.Fork(side))
		b = e.run(f, "add1", a)
		drop(t, a)
		c := e.run(r, "add2", x)
		if c.Range() == at {
			t.Error("c has the memory of a, which a fork reads")
		}
		testkit.Check(t, r.Join(f))
		d := e.run(r, "add2", x)
		if d.Range() != at {
			t.Errorf("at %v after the join, want %v", d.Range(), at)
		}
		drop(t, c, d)
	})
	e.replay(g)
	if got := e.sum(b); got != 8*3 {
		t.Errorf("sum %v", got)
	}
	drop(t, b, x)
	e.reset(g)
}

// TestStreams: replays on two streams that overlap in memory are refused unless they are ordered.
func TestStreams(t *testing.T) { streams(t, open) }

func streams(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 8)
	defer e.close()
	side := testkit.Must[*graphs.Stream](t)(e.s.NewStream("side"))
	x := e.tensor("x", 1)
	pool := e.s.NewPool("shared")
	weak := func(name string) (*graphs.Graph, graphs.Tensor) {
		var y graphs.Tensor
		g := e.capture(graphs.Options{Name: name, Pool: pool}, func(r *graphs.Recorder) { y = e.run(r, "add1", x) })
		drop(t, y)
		return g, y.Weak()
	}
	g, y := weak("g")
	h, z := weak("h")
	testkit.Check(t, side.Wait(e.s.DefaultStream()))
	testkit.Check(t, g.Replay(side))
	var un *graphs.UnorderedError
	if err := h.Replay(e.s.DefaultStream()); !errors.As(err, &un) || un.Stream != "default" || un.Other != "side" {
		t.Errorf("unordered: %v", err)
	}
	testkit.Check(t, e.s.DefaultStream().Wait(side))
	testkit.Check(t, h.Replay(e.s.DefaultStream()))
	if got := e.sum(z); got != 16 {
		t.Errorf("z sums to %v", got)
	}
	if err := e.s.Read(y, make([]byte, 32)); !errors.Is(err, graphs.ErrStale) {
		t.Errorf("y was overwritten by h: %v", err)
	}
	testkit.Check(t, e.s.DefaultStream().Synchronize()) // orders streams, too
	testkit.Check(t, g.Replay(side))
	if got := e.sum(y); got != 16 { // Read waits for the writer
		t.Errorf("y sums to %v", got)
	}
	if err := z.Retain(); err == nil {
		t.Error("a weak handle got an owner")
	}
	e.reset(g, h)
	if err := e.s.Read(y, make([]byte, 32)); err == nil {
		t.Error("a weak handle outlives its graph")
	}
	testkit.Check(t, pool.Release())
	drop(t, x)
}

// TestWeak reads by weak handles after the last release: only a result of a graph is readable, because
// its graph keeps the memory.
func TestWeak(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	released := func(what string, weak graphs.Tensor) {
		t.Helper()
		if err := weak.Err(); !errors.Is(err, graphs.ErrReleased) {
			t.Errorf("%s: Err is %v", what, err)
		}
		if err := e.s.Read(weak, make([]byte, 32)); !errors.Is(err, graphs.ErrReleased) {
			t.Errorf("%s: Read: %v", what, err)
		}
	}
	pool := e.s.NewPool("private")
	x := e.tensor("x", 1)
	own := testkit.Must[graphs.Tensor](t)(e.s.EagerIn(pool, e.s.DefaultStream()).Clone("own", x))
	if err := own.Weak().Err(); err != nil {
		t.Errorf("a weak handle of a tensor with an owner: %v", err)
	}
	drop(t, own)
	released("an eager tensor of a private pool", own.Weak())
	var y, inside graphs.Tensor
	g := e.capture(graphs.Options{Name: "g", Pool: pool}, func(r *graphs.Recorder) {
		inside = e.run(r, "add2", x)
		drop(t, inside)
		if _, err := r.Clone("c", inside.Weak()); !errors.Is(err, graphs.ErrReleased) {
			t.Errorf("a temporary of a capture: %v", err)
		}
		y = e.run(r, "add1", x)
	})
	drop(t, y)
	e.replay(g)
	if got := e.sum(y.Weak()); got != 16 {
		t.Errorf("the result of a graph sums to %v", got)
	}
	var z graphs.Tensor
	h := e.capture(graphs.Options{Name: "h", Pool: pool}, func(r *graphs.Recorder) { z = e.run(r, "add1", x) })
	e.replay(h)
	e.reset(g, h)
	drop(t, z)
	released("a result that outlived its graph", z.Weak())
	drop(t, x)
	released("a tensor of the default pool", x.Weak())
	testkit.Check(t, pool.Release())
}

// TestGenerator mixes eager and replayed draws. The numbers are equal to those of eager draws only.
func TestGenerator(t *testing.T) { generator(t, open) }

func generator(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 20)
	defer e.close()
	gen := e.s.NewGenerator(5)
	r := e.s.Eager(e.s.DefaultStream())
	eager := func() []float32 {
		out := testkit.Must[[]graphs.Tensor](t)(e.fn("draw").RunArgs(r, []graphs.Arg{gen}))
		vs := append(e.read(out[0]), e.read(out[1])...)
		drop(t, out...)
		return vs
	}
	if _, err := graphs.Capture(ctx, e.s, graphs.Options{Name: "g"}, func(r *graphs.Recorder) error {
		_, err := e.fn("draw").RunArgs(r, []graphs.Arg{gen})
		return err
	}); !errors.Is(err, graphs.ErrGenerator) {
		t.Errorf("a generator that is not registered: %v", err)
	}
	var a, b []graphs.Tensor
	o := graphs.Options{Name: "g", Generators: []*graphs.Generator{gen}}
	g := e.capture(o, func(r *graphs.Recorder) {
		a = testkit.Must[[]graphs.Tensor](t)(e.fn("draw").RunArgs(r, []graphs.Arg{gen}))
		b = testkit.Must[[]graphs.Tensor](t)(e.fn("draw").RunArgs(r, []graphs.Arg{gen}))
	})
	h := e.capture(o, func(r *graphs.Recorder) {
		drop(t, testkit.Must[[]graphs.Tensor](t)(e.fn("draw").RunArgs(r, []graphs.Arg{gen}))...)
	})
	replay := func() []float32 {
		e.replay(g)
		return slices.Concat(e.read(a[0]), e.read(a[1]), e.read(b[0]), e.read(b[1]))
	}
	if s := testkit.Must[graphs.GeneratorState](t)(gen.State()); s != (graphs.GeneratorState{Seed: 5}) {
		t.Errorf("a capture moved the generator to %+v", s)
	}
	for _, seed := range []uint64{5, 6, 128, 9999} {
		testkit.Check(t, gen.Seed(seed))
		var want []float32
		for range 7 {
			want = append(want, eager()...)
		}
		end := testkit.Must[graphs.GeneratorState](t)(gen.State())
		testkit.Check(t, gen.Seed(seed))
		got := slices.Concat(replay(), eager(), replay(), eager())
		e.replay(h)
		if s := testkit.Must[graphs.GeneratorState](t)(gen.State()); s != end || end.Offset != 7*8 {
			t.Errorf("seed %d: the generator is at %+v, eager runs end at %+v", seed, s, end)
		}
		if !slices.Equal(got, want[:len(got)]) {
			t.Errorf("seed %d: replays and eager runs differ from eager runs", seed)
		}
		// The state can be set between replays.
		testkit.Check(t, gen.SetState(graphs.GeneratorState{Seed: seed, Offset: 8}))
		if got := replay(); !slices.Equal(got, want[40:120]) {
			t.Errorf("seed %d: a replay after SetState draws other numbers", seed)
		}
	}
	if err := gen.SetState(graphs.GeneratorState{Offset: 3}); !errors.Is(err, graphs.ErrGenerator) {
		t.Errorf("an offset of 3: %v", err)
	}
	drop(t, append(a, b...)...)
	e.reset(g, h)
}

// TestNotCapturable: the error of an op that cannot be recorded has the op's name and position.
func TestNotCapturable(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	x := e.tensor("x", 1)
	_, err := graphs.Capture(ctx, e.s, graphs.Options{}, func(r *graphs.Recorder) error {
		return r.Call(eagerOp{}, nil, nil, "model.ir:3:4", x)
	})
	var oe *graphs.OpError
	if !errors.As(err, &oe) || !errors.Is(err, device.ErrNotCapturable) || oe.Op != "my::op" || !strings.Contains(err.Error(), "model.ir:3:4") {
		t.Errorf("an op that cannot be captured: %v", err)
	}
	testkit.Check(t, e.s.Eager(e.s.DefaultStream()).Call(eagerOp{}, nil, nil, "", x))
	drop(t, x)
}

// eagerOp is an extern op that is not declared capturable.
type eagerOp struct{}

func (eagerOp) Signature() device.Signature {
	return device.Signature{Name: "my::op", Mut: []bool{true}}
}

func (eagerOp) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (eagerOp) Launch(*device.OpCall) error { return nil }

// TestLeaks: a session that cannot be closed reports count, bytes and maker of the storages that were
// not released.
func TestLeaks(t *testing.T) {
	e := open(t, 8)
	x := e.tensor("a forgotten input", 1)
	g := e.capture(graphs.Options{Name: "g"}, func(r *graphs.Recorder) { drop(t, e.run(r, "add1", x)) })
	err := e.s.Close()
	var leak *graphs.LeakError
	if !errors.As(err, &leak) || leak.Graphs != 1 || len(leak.Forgotten) != 1 || leak.Forgotten[0].Storages != 1 || leak.Forgotten[0].Bytes != 32 || !strings.Contains(err.Error(), "a forgotten input") {
		t.Errorf("closing a session with a graph and a tensor: %v", err)
	}
	e.reset(g)
	drop(t, x)
	if err := x.Release(); !errors.Is(err, graphs.ErrReleased) {
		t.Errorf("a second release: %v", err)
	}
	if err := e.s.Read(x, make([]byte, 32)); !errors.Is(err, graphs.ErrReleased) {
		t.Errorf("a read after release: %v", err)
	}
	e.close()
}

// TestReplayDoesNotAllocate: a replay of a graph that computes and draws random numbers allocates
// nothing in Go.
func TestReplayDoesNotAllocate(t *testing.T) { replayDoesNotAllocate(t, open) }

func replayDoesNotAllocate(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 8)
	defer e.close()
	x := e.tensor("x", 1)
	gen := e.s.NewGenerator(1)
	g := e.capture(graphs.Options{Name: "g", Generators: []*graphs.Generator{gen}}, func(r *graphs.Recorder) {
		drop(t, e.run(r, "add1", x))
		drop(t, testkit.Must[[]graphs.Tensor](t)(e.fn("draw").RunArgs(r, []graphs.Arg{gen}))...)
	})
	e.replay(g)
	if n := testing.AllocsPerRun(100, func() { e.replay(g) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	e.reset(g)
	drop(t, x)
}

// TestEmptyGraph is test_graph_warn_if_has_zero_nodes.
func TestEmptyGraph(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	var log strings.Builder
	g := e.capture(graphs.Options{Name: "g", Log: slog.New(slog.NewTextHandler(&log, nil))}, func(*graphs.Recorder) {})
	if !strings.Contains(log.String(), "The CUDA Graph is empty") || g.Nodes() != 0 {
		t.Errorf("%d nodes, said %q", g.Nodes(), log.String())
	}
	e.replay(g)
	e.reset(g)
}

// TestErrorModes is test_cuda_graph_error_options. During a capture, another goroutine allocates memory
// and captures, and the capturing goroutine runs uncaptured work on a second stream. Mode global refuses
// all three; the other modes allow them.
func TestErrorModes(t *testing.T) { errorModes(t, open) }

func errorModes(t *testing.T, open opener) {
	t.Helper()
	for _, mode := range []device.CaptureMode{device.CaptureGlobal, device.CaptureThreadLocal, device.CaptureRelaxed} {
		e := open(t, 8)
		x := e.tensor("x", 1)
		other, side := testkit.Must[*graphs.Stream](t)(e.s.NewStream("other")), testkit.Must[*graphs.Stream](t)(e.s.NewStream("side"))
		var y, z graphs.Tensor
		g := e.capture(graphs.Options{Name: "g", Errors: mode}, func(r *graphs.Recorder) {
			done := make(chan error)
			go func() {
				m, err := e.dev.Alloc(2 << 20)
				if err == nil {
					err = m.Free()
				}
				h, cerr := graphs.Capture(ctx, e.s, graphs.Options{Name: "second", Stream: other, Errors: device.CaptureThreadLocal}, func(r *graphs.Recorder) error { return nil })
				if (cerr != nil) != (mode == device.CaptureGlobal) || cerr != nil && !errors.Is(cerr, device.ErrCapturing) {
					t.Errorf("mode %s: a second capture: %v", mode, cerr)
				}
				if cerr == nil {
					cerr = h.Reset()
				} else {
					cerr = nil
				}
				done <- errors.Join(err, cerr)
			}()
			if err := <-done; (err != nil) != (mode == device.CaptureGlobal) || err != nil && !errors.Is(err, device.ErrCapturing) {
				t.Errorf("mode %s: memory on another goroutine: %v", mode, err)
			}
			out, err := e.fn("add1").Run(e.s.Eager(side), []graphs.Tensor{x})
			if (err != nil) != (mode == device.CaptureGlobal) || err != nil && !errors.Is(err, device.ErrCapturing) {
				t.Errorf("mode %s: uncaptured work: %v", mode, err)
			}
			if err == nil {
				z = out[0]
			}
			y = e.run(r, "add1", x)
		})
		if z.Storage() != nil {
			drop(t, z)
		}
		testkit.Check(t, side.Synchronize())
		e.replay(g)
		if e.sum(y) != 16 {
			t.Errorf("mode %s: the replay gives %v", mode, e.sum(y))
		}
		drop(t, x, y)
		e.reset(g)
		e.close()
	}
}

// TestForkedAllocation is test_cuda_graph_allocator_propagates_stream: an allocation on a forked
// stream comes from the capture's pool, in a second segment.
func TestForkedAllocation(t *testing.T) { forkedAllocation(t, open) }

func forkedAllocation(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 8)
	defer e.close()
	side := testkit.Must[*graphs.Stream](t)(e.s.NewStream("side"))
	before := len(e.s.Allocator().Snapshot())
	var a, b graphs.Tensor
	g := e.capture(graphs.Options{Name: "g"}, func(r *graphs.Recorder) {
		a = testkit.Must[graphs.Tensor](t)(r.Alloc("a", dtype.F32, 8))
		f := testkit.Must[*graphs.Recorder](t)(r.Fork(side))
		b = testkit.Must[graphs.Tensor](t)(f.Alloc("b", dtype.F32, 8))
		testkit.Check(t, r.Fill(a, 0))
		testkit.Check(t, f.Fill(b, 0))
		testkit.Check(t, r.Join(f))
	})
	all := e.s.Allocator().Snapshot()
	pools := map[string]int{}
	for _, s := range all[before:] {
		pools[s.Pool]++
	}
	if len(all)-before != 2 || len(pools) != 1 {
		t.Errorf("%d new segments in pools %v, want 2 in one", len(all)-before, pools)
	}
	drop(t, a, b)
	e.reset(g)
}

// TestTwoGenerators is test_graphsafe_set_get_rng_state: three replays with two registered generators
// give the values and the offsets of eager runs.
func TestTwoGenerators(t *testing.T) { twoGenerators(t, open) }

func twoGenerators(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 20)
	defer e.close()
	gens := []*graphs.Generator{e.s.NewGenerator(3), e.s.NewGenerator(4)}
	var out [2][]graphs.Tensor
	g := e.capture(graphs.Options{Name: "g", Generators: gens}, func(r *graphs.Recorder) {
		for i, gen := range gens {
			out[i] = testkit.Must[[]graphs.Tensor](t)(e.fn("draw").RunArgs(r, []graphs.Arg{gen}))
		}
	})
	var got, want []float32
	for range 3 {
		e.replay(g)
		for i := range gens {
			got = append(got, e.read(out[i][0])...)
		}
	}
	r := e.s.Eager(e.s.DefaultStream())
	again := []*graphs.Generator{e.s.NewGenerator(3), e.s.NewGenerator(4)}
	for range 3 {
		for _, gen := range again {
			vs := testkit.Must[[]graphs.Tensor](t)(e.fn("draw").RunArgs(r, []graphs.Arg{gen}))
			want = append(want, e.read(vs[0])...)
			drop(t, vs...)
		}
	}
	if !slices.Equal(got, want) {
		t.Error("replays and eager runs differ")
	}
	for i := range gens {
		if a, b := testkit.Must[graphs.GeneratorState](t)(gens[i].State()), testkit.Must[graphs.GeneratorState](t)(again[i].State()); a != b || a.Offset != 24 {
			t.Errorf("generator %d is at %+v, eagerly at %+v", i, a, b)
		}
	}
	for _, ts := range out {
		drop(t, ts...)
	}
	e.reset(g)
}

// TestMemoryOfGenerators is test_memory_stats_of_multiple_generators_and_graphs with the
// numbers of this runtime: each graph that draws has one block of 64 KiB, for any number of
// generators, and frees it at its reset.
func TestMemoryOfGenerators(t *testing.T) {
	for _, c := range [][2]int{{1, 1}, {3, 2}, {10, 20}} {
		e := open(t, 20)
		var gens []*graphs.Generator
		for i := range c[1] {
			gens = append(gens, e.s.NewGenerator(uint64(i)))
		}
		before := e.s.Allocator().Default().Stats()
		var gs []*graphs.Graph
		for range c[0] {
			gs = append(gs, e.capture(graphs.Options{Generators: gens}, func(r *graphs.Recorder) {
				for _, gen := range gens {
					drop(t, testkit.Must[[]graphs.Tensor](t)(e.fn("draw").RunArgs(r, []graphs.Arg{gen}))...)
				}
			}))
		}
		after := e.s.Allocator().Default().Stats()
		if blocks, bytes := after.ActiveBlocks.Now-before.ActiveBlocks.Now, after.ActiveBytes.Now-before.ActiveBytes.Now; blocks != int64(c[0]) || bytes != int64(c[0])*65536 {
			t.Errorf("%d graphs with %d generators: %d blocks, %d bytes", c[0], c[1], blocks, bytes)
		}
		e.reset(gs...)
		if after = e.s.Allocator().Default().Stats(); after.ActiveBlocks.Now != before.ActiveBlocks.Now {
			t.Errorf("%d blocks are left", after.ActiveBlocks.Now-before.ActiveBlocks.Now)
		}
		e.close()
	}
}

// TestAssigningOwners is test_assigning_back_deleter_fns_to_tensor: the pool is restored to a
// checkpoint, and storages whose memory was live then own their blocks again.
func TestAssigningOwners(t *testing.T) { assigningOwners(t, open) }

func assigningOwners(t *testing.T, open opener) {
	t.Helper()
	const n = 5 << 20 / 4 * 4 // 20 MiB of f32
	e := open(t, n)
	defer e.close()
	pool := e.s.NewManagedPool("managed")
	st := testkit.Must[*graphs.Stream](t)(e.s.NewStream("capture here"))
	x := e.tensor("x", 1)
	var outs []graphs.Tensor
	g := e.capture(graphs.Options{Name: "g", Pool: pool, Stream: st}, func(r *graphs.Recorder) {
		one := e.run(r, "add1", x)
		for range 2 {
			c := testkit.Must[graphs.Tensor](t)(r.Alloc("small", dtype.F32, 2))
			testkit.Check(t, r.Copy(c, testkit.Must[graphs.Tensor](t)(one.View(0, dtype.F32, 2))))
			outs = append(outs, c)
		}
		outs = append(outs, one)
	})
	live := func(want int) {
		t.Helper()
		if got := pool.Use().Blocks; got != want {
			t.Errorf("%d live blocks, want %d", got, want)
		}
	}
	cp := testkit.Must[*mem.State](t)(pool.Checkpoint())
	testkit.Check(t, g.Launch(e.s.DefaultStream()))
	for i, o := range outs {
		if got := e.read(o); got[0] != 2 || got[len(got)-1] != 2 {
			t.Errorf("output %d is %v…", i, got[0])
		}
	}
	live(3)
	addresses := make([]device.Buffer, len(outs))
	for i, o := range outs {
		addresses[i] = o.Storage().Buffer()
	}
	drop(t, outs...)
	live(0)
	// The outputs are written again at their addresses and own no blocks.
	again := make([]graphs.Tensor, len(outs))
	testkit.Check(t, g.Launch(e.s.DefaultStream()))
	for i := range outs {
		again[i] = testkit.Must[graphs.Tensor](t)(g.Output(outs[i]))
	}
	live(0)
	testkit.Check(t, pool.Restore(cp, []*graphs.Storage{again[0].Storage(), again[1].Storage()}, nil))
	live(3) // the third is live and has no owner
	drop(t, again[0])
	live(2)
	drop(t, again[1])
	live(1)
	if err := pool.Mem().FreeUnowned(mem.AddressOf(addresses[2])); err != nil {
		t.Error(err)
	}
	live(0)
	drop(t, again[2])
	live(0)
	drop(t, x)
	e.reset(g)
	testkit.Check(t, pool.Release())
}

// TestColdLibrary: a capture refuses a library routine that never ran for the shape, because the
// library would initialise itself during the capture.
func TestColdLibrary(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	f := choosing(e)
	x := e.tensor("x", 1)
	record := func() error {
		g, err := graphs.Capture(ctx, e.s, graphs.Options{}, func(r *graphs.Recorder) error {
			out, err := r.Run(f, graphs.TensorArg(x))
			if err != nil {
				return err
			}
			return out[0].Release()
		})
		return errors.Join(err, g.Reset())
	}
	if err := record(); !errors.Is(err, graphs.ErrCold) || !strings.Contains(err.Error(), "@chosen") {
		t.Errorf("cold: %v", err)
	}
	out := testkit.Must[[]graphs.Tensor](t)(e.s.Eager(e.s.DefaultStream()).Run(f, graphs.TensorArg(x)))
	drop(t, out...)
	if err := record(); err != nil {
		t.Errorf("after it ran: %v", err)
	}
	drop(t, x)
	testkit.Check(t, f.Close())
}

// choosing loads a program that chooses between a library routine, which the host lacks, and the
// steps of add1.
func choosing(e *env) *graphs.Program {
	e.Helper()
	p := *e.fn("add1").Compiled()
	p.Steps = []program.Step{{Kind: program.StepChoice, Variants: []program.Variant{
		{Steps: []program.Step{{Kind: program.StepLibrary, Extern: "lib::none", Args: p.Steps[0].Args}}},
		{Steps: p.Steps},
	}}}
	return testkit.Must[*graphs.Program](e)(e.s.Load(&p, "chosen"))
}

// TestWorkspaces: graphs whose library routines were captured on one stream share its workspace,
// so their replays must be ordered. Those of two streams may run at the same time.
func TestWorkspaces(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	f := choosing(e)
	side := testkit.Must[*graphs.Stream](t)(e.s.NewStream("side"))
	var gs []*graphs.Graph
	var keep []graphs.Tensor
	for _, i := range []int{0, 1, 1} {
		x := e.tensor("x", 1)
		out := testkit.Must[[]graphs.Tensor](t)(e.s.Eager(e.s.DefaultStream()).Run(f, graphs.TensorArg(x)))
		drop(t, out...)
		st := testkit.Must[*graphs.Stream](t)(e.s.CaptureStream(i))
		if again := testkit.Must[*graphs.Stream](t)(e.s.CaptureStream(i)); again != st {
			t.Errorf("capture stream %d is %q, then %q", i, st.Name(), again.Name())
		}
		gs = append(gs, e.capture(graphs.Options{Stream: st}, func(r *graphs.Recorder) {
			out := testkit.Must[[]graphs.Tensor](t)(r.Run(f, graphs.TensorArg(x)))
			keep = append(keep, x, out[0])
		}))
	}
	if _, err := e.s.CaptureStream(-1); !errors.Is(err, graphs.ErrArguments) {
		t.Errorf("capture stream -1: %v", err)
	}
	testkit.Check(t, side.Wait(e.s.DefaultStream()))
	testkit.Check(t, gs[0].Replay(e.s.DefaultStream()))
	testkit.Check(t, gs[1].Replay(side))
	if err := gs[2].Replay(e.s.DefaultStream()); !errors.Is(err, graphs.ErrUnordered) {
		t.Errorf("a graph that shares a workspace: %v", err)
	}
	e.reset(gs...)
	drop(t, keep...)
	testkit.Check(t, f.Close())
}

// TestRefusedRunKeepsNothing: a refused run keeps no memory and does not advance its generator.
func TestRefusedRunKeepsNothing(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	r := e.s.Eager(e.s.DefaultStream())
	before := e.s.Live()
	gen := e.s.NewGenerator(1)
	p := testkit.Must[*graphs.Program](t)(e.s.Load(e.fn("draw").Compiled(), "draw"))
	if _, err := r.RunSymbols(p, map[string]int64{"nothing": 1}, gen); !errors.Is(err, graphs.ErrArguments) {
		t.Errorf("a run with an unknown symbol: %v", err)
	}
	if after := e.s.Live(); after != before {
		t.Errorf("%+v is held, before %+v", after, before)
	}
	if s := testkit.Must[graphs.GeneratorState](t)(gen.State()); s.Offset != 0 {
		t.Errorf("a run that was refused moved the generator to %d", s.Offset)
	}
	if _, err := r.Run(p, (*graphs.Generator)(nil)); !errors.Is(err, graphs.ErrNoStorage) {
		t.Errorf("no generator: %v", err)
	}
	testkit.Check(t, p.Close())
}

// TestFailedRunsDrawNothing makes the n-th call of the device fail, for every n of a replay, of an eager run and of a
// run whose numbers Recorder.Draw took. The generator's offset advances only if the run succeeds.
func TestFailedRunsDrawNothing(t *testing.T) {
	const advance = 8 // of @draw
	dev := failing.New(host.Open(host.Options{Workers: 1}))
	e := openOn(t, rig{dev: dev, compiler: pieces.Pipeline{Backend: comphost.New()}}, 4)
	defer e.close()
	gen, other := e.s.NewGenerator(1), e.s.NewGenerator(2)
	draw := e.fn("draw")
	g := e.capture(graphs.Options{Name: "g", Generators: []*graphs.Generator{gen}}, func(r *graphs.Recorder) {
		drop(t, testkit.Must[[]graphs.Tensor](t)(draw.RunArgs(r, []graphs.Arg{gen}))...)
	})
	for name, run := range map[string]func() error{
		"replay": func() error { return g.Replay(e.s.DefaultStream()) },
		"eager": func() error {
			out, err := draw.RunArgs(e.s.Eager(e.s.DefaultStream()), []graphs.Arg{gen})
			drop(t, out...)
			return err
		},
		"drawn before": func() error {
			r := e.s.Eager(e.s.DefaultStream()).Scoped()
			state, err := r.Draw(gen, advance)
			if err == nil {
				_, err = r.Draw(other, advance)
			}
			if err == nil {
				_, err = draw.RunArgs(r, graphs.Args(state))
			}
			return errors.Join(err, r.ReleaseMade(nil))
		},
	} {
		for n, reached := 1, true; reached; n++ {
			before := testkit.Must[graphs.GeneratorState](t)(gen.State())
			dev.FailCall(n)
			err := run()
			reached = dev.Failed()
			dev.FailCall(0)
			if errors.Is(err, failing.ErrInjected) != reached {
				t.Errorf("%s, call %d: %v", name, n, err)
			}
			if err == nil {
				before.Offset += advance
			}
			if now := testkit.Must[graphs.GeneratorState](t)(gen.State()); now != before {
				t.Errorf("%s, call %d, %v: the generator is at %+v, want %+v", name, n, err, now, before)
			}
			if !reached && n < 3 {
				t.Errorf("%s makes only %d calls", name, n-1)
			}
		}
	}
	if s := testkit.Must[graphs.GeneratorState](t)(other.State()); s.Offset != advance {
		t.Errorf("the second generator is at %+v", s)
	}
	// A generator that another run advanced meanwhile stays as it is.
	p := testkit.Must[*graphs.Program](t)(e.s.Load(draw.Compiled(), "draw"))
	for _, replays := range []uint64{0, 1} {
		r := e.s.Eager(e.s.DefaultStream())
		before := testkit.Must[graphs.GeneratorState](t)(gen.State())
		state := testkit.Must[graphs.Tensor](t)(r.Draw(gen, advance))
		for range replays {
			e.replay(g)
		}
		if _, err := r.RunSymbols(p, map[string]int64{"nothing": 1}, graphs.TensorArg(state)); !errors.Is(err, graphs.ErrArguments) {
			t.Errorf("a run with an unknown symbol: %v", err)
		}
		if now := testkit.Must[graphs.GeneratorState](t)(gen.State()); now.Offset != before.Offset+replays*2*advance {
			t.Errorf("after %d replays the generator is at %+v, before at %+v", replays, now, before)
		}
		drop(t, state)
	}
	testkit.Check(t, p.Close())
	e.reset(g)
}
