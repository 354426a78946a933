package whole_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	comphost "pwc/compile/host"
	"pwc/graphs"
	"pwc/graphs/tree"
	"pwc/graphs/whole"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/device/failing"
	"pwc/runtime/host"
)

var ctx = context.Background()

// module has, among others, functions with an extern op that cannot be captured, in the middle and first,
// and one that touches the host.
const module = `pwc 1
module "m" {
  op "my::double"(tensor, mut tensor)
  op "my::log"(tensor, mut tensor) host
  op "my::safe"(tensor, mut tensor) capture
  weight @w : f32[4]
  func @plain(%x: f32[4]) -> (f32[4]) {
    %a = add(%x, @w) : f32[4]
    return %a
  }
  func @middle(%x: f32[4]) -> (f32[4], f32[4]) {
    %a = add(%x, 1.0) : f32[4]
    %o = empty_like(%a) : f32[4]
    call "my::double"(%a, %o) loc("layer.0.double")
    %b = add(%o, %a) : f32[4]
    return %b, %a
  }
  func @side(%x: f32[4]) -> (f32[4], f32[4]) {
    %a = add(%x, 1.0) : f32[4]
    %b = mul(%a, 3.0) : f32[4]
    %o = empty(shape=[4], dtype=f32) : f32[4]
    call "my::double"(%x, %o)
    %c = add(%b, 1.0) : f32[4]
    %d = add(%o, 1.0) : f32[4]
    return %c, %d
  }
  func @host(%x: f32[4]) -> (f32[4]) {
    %o = empty_like(%x) : f32[4]
    call "my::log"(%x, %o)
    return %o
  }
  func @safe(%x: f32[4]) -> (f32[4]) {
    %a = add(%x, 1.0) : f32[4]
    %o = empty_like(%a) : f32[4]
    call "my::safe"(%a, %o)
    return %o
  }
  func @bump(%x: mut f32[4]) -> (f32[4]) {
    %y = add(%x, 2.0) : f32[4]
    copy(%x, %y)
    %z = mul(%y, 1.0) : f32[4]
    return %z
  }
  func @grad(%g: f32[4], %s: f32[4]) -> (f32[4]) {
    %y = mul(%g, %s) : f32[4]
    return %y
  }
  func @both(%x: f32[4], %y: f32[4]) -> (f32[4], f32[4], f32[4]) {
    %a = add(%x, 1.0) : f32[4]
    return %a, %a, %y
  }
  func @weight(%x: f32[4]) -> (f32[4], f32[4]) {
    %a = add(%x, @w) : f32[4]
    return %a, @w
  }
  state @kv : f32[4]
  func @state(%x: f32[4]) -> (f32[4], f32[4]) {
    copy(@kv, %x)
    %a = add(@kv, 1.0) : f32[4]
    return %a, @kv
  }
  func @copies() -> (f32[4]) {
    %c = reshape(@w, shape=[4]) : f32[4]
    return %c
  }
}
`

// double is an extern op: its result is twice its operand.
type double struct {
	name    string
	capture bool
	dev     *host.Device
	calls   *int
}

func (d double) Signature() device.Signature {
	return device.Signature{Name: d.name, Mut: []bool{false, true}, Capture: d.capture}
}

func (double) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (d double) Launch(c *device.OpCall) error {
	src, err := d.dev.Bytes(c.Args[0].Buffer)
	if err != nil {
		return err
	}
	dst, err := d.dev.Bytes(c.Args[1].Buffer)
	if err != nil {
		return err
	}
	s, ok := c.Stream.(*host.Stream)
	if !ok {
		return errors.New("not a stream of the host")
	}
	return s.Call(func() error {
		*d.calls++
		for i := 0; i < len(src); i += 4 {
			v := math.Float32frombits(binary.LittleEndian.Uint32(src[i:]))
			binary.LittleEndian.PutUint32(dst[i:], math.Float32bits(2*v))
		}
		return nil
	})
}

type env struct {
	testing.TB
	dev   device.Device
	s     *graphs.Session
	m     *tree.Manager
	b     *whole.Backend
	mod   *ir.Module
	calls int
	said  []*whole.Skip
}

func open(t testing.TB, o whole.BackendOptions, to tree.Options) *env {
	t.Helper()
	e, h := &env{TB: t}, host.Open(host.Options{Workers: 1})
	o.Compiler = pieces.Pipeline{Backend: comphost.New()}
	o.Ops = []device.Op{double{"my::double", false, h, &e.calls}, double{"my::log", false, h, &e.calls}, double{"my::safe", true, h, &e.calls}}
	return e.open(h, o, to)
}

// open makes the backend on a device.
func (e *env) open(dev device.Device, o whole.BackendOptions, to tree.Options) *env {
	e.Helper()
	e.dev = dev
	e.s = testkit.Must[*graphs.Session](e)(graphs.NewSession(dev, graphs.SessionOptions{}))
	to.Check = true
	e.m = testkit.Must[*tree.Manager](e)(tree.New(e.s, to))
	e.mod = testkit.Must[*ir.Module](e)(ir.Parse("m.ir", []byte(module)))
	o.Warn = func(s *whole.Skip) { e.said = append(e.said, s) }
	e.b = whole.New(e.m, o)
	return e
}

func (e *env) close() {
	e.Helper()
	testkit.Check(e, e.m.Close())
	testkit.Check(e, e.b.Close())
	testkit.Check(e, e.s.Close())
	testkit.Check(e, e.dev.Close())
}

func (e *env) fn(name string, o whole.FunctionOptions) *whole.Graphed {
	e.Helper()
	return testkit.Must[*whole.Graphed](e)(e.b.Function(ctx, e.mod, name, o))
}

func (e *env) tensor(vs ...float32) graphs.Tensor {
	e.Helper()
	var b []byte
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return testkit.Must[graphs.Tensor](e)(e.s.TensorOf("x", b, dtype.F32, int64(len(vs))))
}

func (e *env) want(what string, t graphs.Tensor, want ...float32) {
	e.Helper()
	b := make([]byte, t.Size())
	testkit.Check(e, e.s.Read(t, b))
	got := make([]float32, len(b)/4)
	for i := range got {
		got[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	if !slices.Equal(got, want) {
		e.Errorf("%s: %v, want %v", what, got, want)
	}
}

func drop(t testing.TB, ts ...graphs.Tensor) {
	t.Helper()
	for _, x := range ts {
		testkit.Check(t, x.Release())
	}
}

func (e *env) stats() tree.Stats { return testkit.Must[tree.Inspection](e)(e.m.Inspect()).Stats }

// TestUncut graphs a function with a weight, and one with an op that can be captured.
func TestUncut(t *testing.T) {
	e := open(t, whole.BackendOptions{}, tree.Options{})
	defer e.close()
	x, w := e.tensor(1, 2, 3, 4), e.tensor(10, 20, 30, 40)
	plain, safe := e.fn("plain", whole.FunctionOptions{}), e.fn("safe", whole.FunctionOptions{})
	for range 4 {
		e.m.MarkStep()
		y := testkit.Must[[]graphs.Tensor](t)(plain.Call(tree.Borrow(x, w)))
		e.want("plain", y[0], 11, 22, 33, 44)
		z := testkit.Must[[]graphs.Tensor](t)(safe.Call([]tree.Input{{Tensor: y[0], Take: true}}))
		e.want("safe", z[0], 24, 46, 68, 90)
		drop(t, z...)
	}
	if s := e.stats(); s.Recorded != 2 || s.Executed != 4 || s.Eager != 0 || len(e.said) != 0 {
		t.Errorf("the counts are %+v, want 2 recordings, 4 replays and no eager run; warnings: %v", s, e.said)
	}
	if e.calls != 4 {
		t.Errorf("the op ran %d times in 4 steps", e.calls)
	}
	if _, err := plain.Call(tree.Borrow(x)); !errors.Is(err, graphs.ErrArguments) {
		t.Errorf("a missing weight: %v", err)
	}
	drop(t, x, w)
}

// TestSkips: a function that cannot be graphed runs eagerly, and one warning has the reason and the
// position.
func TestSkips(t *testing.T) {
	for _, c := range []struct {
		fn     string
		reason whole.Reason
		text   string
		want   []float32
	}{
		{"middle", whole.IncompatibleOp, "skipping cudagraphs due to incompatible op (my::double). Found from: m.ir:14:5 layer.0.double", []float32{6, 9, 12, 15}},
		{"host", whole.HostDevice, "skipping cudagraphs due to cpu device (my::log). Found from: m.ir:29:5", []float32{2, 4, 6, 8}},
	} {
		e := open(t, whole.BackendOptions{}, tree.Options{})
		f := e.fn(c.fn, whole.FunctionOptions{})
		x := e.tensor(1, 2, 3, 4)
		for range 3 {
			out := testkit.Must[[]graphs.Tensor](t)(f.Call(tree.Borrow(x)))
			e.want(c.fn, out[0], c.want...)
			drop(t, out...)
		}
		if len(e.said) != 1 || e.said[0].Reason != c.reason || !strings.Contains(e.said[0].Error(), c.text) || e.b.Skips()[c.reason] != 1 {
			t.Errorf("@%s: said %v, counted %v", c.fn, e.said, e.b.Skips())
		}
		if s := e.stats(); s.Recorded != 0 || s.Warmups != 0 {
			t.Errorf("@%s: %+v", c.fn, s)
		}
		drop(t, x)
		e.close()

		e = open(t, whole.BackendOptions{OrError: true}, tree.Options{})
		if _, err := e.b.Function(ctx, e.mod, c.fn, whole.FunctionOptions{}); !errors.Is(err, tree.ErrSkipped) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("@%s, or error: %v", c.fn, err)
		}
		e.close()
	}
}

// TestMutation is test_mutate_input: each call writes the input once. The function is graphed if the
// input is static.
func TestMutation(t *testing.T) {
	for _, static := range []bool{false, true} {
		e := open(t, whole.BackendOptions{NoMutation: true}, tree.Options{})
		o := whole.FunctionOptions{}
		if static {
			o.Static = []int{0}
		}
		f := e.fn("bump", o)
		x := e.tensor(0, 0, 0, 0)
		for i := range 5 {
			e.m.MarkStep()
			out := testkit.Must[[]graphs.Tensor](t)(f.Call(tree.Borrow(x)))
			v := float32(2 * (i + 1))
			e.want("the result", out[0], v, v, v, v)
			e.want("the input", x, v, v, v, v)
			drop(t, out...)
		}
		if s := e.stats(); static != (s.Recorded == 1) || static != (len(e.said) == 0) {
			t.Errorf("static %t: %+v, said %v", static, s, e.said)
		}
		if !static && !strings.Contains(e.said[0].Error(), "mutated inputs (1 instances): %x. Found from: m.ir:40:5") {
			t.Errorf("said %v", e.said[0])
		}
		drop(t, x)
		e.close()
	}
}

// TestPartition cuts functions at ops that cannot be captured. The parts are functions of one tree, and
// ops that depend on nothing graphed come first.
func TestPartition(t *testing.T) {
	for _, c := range []struct {
		fn      string
		graphed int
		all     int
		want    [][]float32
	}{
		{"middle", 2, 3, [][]float32{{6, 9, 12, 15}, {2, 3, 4, 5}}},
		{"side", 1, 3, [][]float32{{7, 10, 13, 16}, {3, 5, 7, 9}}},
	} {
		e := open(t, whole.BackendOptions{Partition: true}, tree.Options{})
		f := e.fn(c.fn, whole.FunctionOptions{})
		if g, all := f.Parts(); g != c.graphed || all != c.all {
			t.Errorf("@%s: %d of %d parts are graphed, want %d of %d", c.fn, g, all, c.graphed, c.all)
		}
		x := e.tensor(1, 2, 3, 4)
		for range 5 {
			e.m.MarkStep()
			out := testkit.Must[[]graphs.Tensor](t)(f.Call(tree.Borrow(x)))
			for i, w := range c.want {
				e.want(c.fn, out[i], w...)
			}
			drop(t, out...)
		}
		if s := e.stats(); s.Recorded != c.graphed || len(e.said) != 0 || e.calls != 5 {
			t.Errorf("@%s: %+v, %d calls, said %v", c.fn, s, e.calls, e.said)
		}
		drop(t, x)
		e.close()
	}
	// A function without a part that can be graphed is a skip, with a warning and a count.
	e := open(t, whole.BackendOptions{Partition: true}, tree.Options{})
	f := e.fn("host", whole.FunctionOptions{})
	x := e.tensor(1, 2, 3, 4)
	out := testkit.Must[[]graphs.Tensor](t)(f.Call(tree.Borrow(x)))
	e.want("host", out[0], 2, 4, 6, 8)
	if f.Skipped() == nil || len(e.said) != 1 || e.b.Skips()[whole.HostDevice] != 1 {
		t.Errorf("skipped %v, said %v", f.Skipped(), e.said)
	}
	drop(t, append(out, x)...)
	e.close()
}

// TestSkippedForward: the backward of a skipped forward runs eagerly without a warning, and the
// backward is no longer pending after it.
func TestSkippedForward(t *testing.T) {
	e := open(t, whole.BackendOptions{}, tree.Options{Generations: tree.ByCall})
	defer e.close()
	fwd := e.fn("middle", whole.FunctionOptions{Mode: tree.Forward})
	bwd := e.fn("grad", whole.FunctionOptions{Mode: tree.Backward, Forward: fwd})
	other := e.fn("plain", whole.FunctionOptions{Mode: tree.Forward})
	if len(e.said) != 1 {
		t.Errorf("said %v", e.said)
	}
	x, w := e.tensor(1, 2, 3, 4), e.tensor(1, 1, 1, 1)
	for range 3 {
		y := testkit.Must[[]graphs.Tensor](t)(fwd.Call(tree.Borrow(x)))
		z := testkit.Must[[]graphs.Tensor](t)(other.Call(tree.Borrow(x, w)))
		if in := testkit.Must[tree.Inspection](t)(e.m.Inspect()); !in.Pending {
			t.Error("no backward is pending")
		}
		g := testkit.Must[[]graphs.Tensor](t)(bwd.Call(tree.Borrow(x, y[0])))
		e.want("grad", g[0], 6, 18, 36, 60)
		if in := testkit.Must[tree.Inspection](t)(e.m.Inspect()); in.Pending {
			t.Error("a backward is still pending")
		}
		drop(t, y...)
		drop(t, z...)
		drop(t, g...)
	}
	if s := e.stats(); s.Recorded != 1 || s.Executed != 1 {
		t.Errorf("the counts are %+v, want 1 recording and 1 replay", s)
	}
	drop(t, x, w)
}

// TestPlain runs a Plain with each combination of copied inputs and outputs.
func TestPlain(t *testing.T) {
	for _, o := range []whole.PlainOptions{{}, {CopyInputs: true}, {CopyOutputs: true}, {CopyInputs: true, CopyOutputs: true}} {
		e := open(t, whole.BackendOptions{}, tree.Options{})
		fn := testkit.Must[*whole.Function](t)(whole.Compile(ctx, e.s, e.mod, "grad", whole.Options{Compiler: pieces.Pipeline{Backend: comphost.New()}}))
		a, b, c := e.tensor(1, 2, 3, 4), e.tensor(2, 2, 2, 2), e.tensor(5, 5, 5, 5)
		p := testkit.Must[*whole.Plain](t)(whole.NewPlain(ctx, e.s, fn.Run, []graphs.Tensor{a, b}, o))
		first := testkit.Must[[]graphs.Tensor](t)(p.Run([]graphs.Tensor{a, b}))
		e.want("first", first[0], 2, 4, 6, 8)
		second := testkit.Must[[]graphs.Tensor](t)(p.Run([]graphs.Tensor{a, c}))
		if o.CopyInputs {
			e.want("second", second[0], 5, 10, 15, 20)
		} else {
			e.want("second, the inputs of the capture", second[0], 2, 4, 6, 8)
		}
		switch {
		case o.CopyOutputs:
			e.want("first, a copy", first[0], 2, 4, 6, 8)
		case o.CopyInputs:
			e.want("first, the graph's own", first[0], 5, 10, 15, 20)
		}
		if _, err := p.Run([]graphs.Tensor{a}); !errors.Is(err, graphs.ErrArguments) {
			t.Errorf("%+v: one input: %v", o, err)
		}
		drop(t, append(first, second...)...)
		testkit.Check(t, p.Reset())
		testkit.Check(t, p.Reset())
		drop(t, a, b, c)
		testkit.Check(t, fn.Close())
		e.close()
	}
}

// TestPlainReturnsInput: a Plain may return an input, and a result twice.
func TestPlainReturnsInput(t *testing.T) {
	for _, o := range []whole.PlainOptions{{}, {CopyInputs: true, CopyOutputs: true}} {
		e := open(t, whole.BackendOptions{}, tree.Options{})
		fn := testkit.Must[*whole.Function](t)(whole.Compile(ctx, e.s, e.mod, "both", whole.Options{Compiler: pieces.Pipeline{Backend: comphost.New()}}))
		x, y := e.tensor(1, 2, 3, 4), e.tensor(5, 6, 7, 8)
		p := testkit.Must[*whole.Plain](t)(whole.NewPlain(ctx, e.s, fn.Run, []graphs.Tensor{x, y}, o))
		out := testkit.Must[[]graphs.Tensor](t)(p.Run([]graphs.Tensor{x, y}))
		e.want("result 0", out[0], 2, 3, 4, 5)
		e.want("result 1", out[1], 2, 3, 4, 5)
		e.want("the input", out[2], 5, 6, 7, 8)
		drop(t, out...)
		testkit.Check(t, p.Reset())
		drop(t, x, y)
		testkit.Check(t, fn.Close())
		e.close()
	}
}

// TestPlainFails makes the n-th call of the device fail, for every n of NewPlain. It returns the injected
// error or succeeds, and nothing leaks.
func TestPlainFails(t *testing.T) {
	n := 1
	for ; plainFails(t, n); n++ {
		if t.Failed() {
			t.Fatalf("call %d", n)
		}
	}
	if n < 6 {
		t.Errorf("NewPlain makes only %d calls", n-1)
	}
}

// plainFails reports whether NewPlain makes an n-th call.
func plainFails(t *testing.T, n int) bool {
	t.Helper()
	dev := failing.New(host.Open(host.Options{Workers: 1}))
	e := (&env{TB: t}).open(dev, whole.BackendOptions{}, tree.Options{})
	defer e.close()
	fn := testkit.Must[*whole.Function](t)(whole.Compile(ctx, e.s, e.mod, "both", whole.Options{Compiler: pieces.Pipeline{Backend: comphost.New()}}))
	x, y := e.tensor(1, 2, 3, 4), e.tensor(5, 6, 7, 8)
	live := e.s.Live()
	dev.FailCall(n)
	p, err := whole.NewPlain(ctx, e.s, fn.Run, []graphs.Tensor{x, y}, whole.PlainOptions{CopyInputs: true})
	reached := dev.Failed()
	dev.FailCall(0)
	if err == nil {
		testkit.Check(t, p.Reset())
	} else if !errors.Is(err, failing.ErrInjected) {
		t.Errorf("the error is %v", err)
	}
	if now := e.s.Live(); now != live {
		t.Errorf("%+v is live, before %+v", now, live)
	}
	drop(t, x, y)
	testkit.Check(t, fn.Close())
	return reached
}

// TestUnavailableResult: a call that cannot return its last result releases the earlier ones. close
// finds memory that is left.
func TestUnavailableResult(t *testing.T) {
	e := open(t, whole.BackendOptions{}, tree.Options{})
	defer e.close()
	x := e.tensor(1, 2, 3, 4)
	both := e.fn("both", whole.FunctionOptions{})
	if _, err := both.Call([]tree.Input{{Tensor: x, Take: true}, {Tensor: x}}); !errors.Is(err, graphs.ErrReleased) {
		t.Errorf("a returned input that the call released: %v", err)
	}
}

// TestReturnedWeights: a function that returns a weight or a state is refused when it is compiled, with the position of
// its return statement. A copy of a weight can be returned.
func TestReturnedWeights(t *testing.T) {
	e := open(t, whole.BackendOptions{}, tree.Options{})
	defer e.close()
	o := whole.Options{Compiler: pieces.Pipeline{Backend: comphost.New()}}
	for name, want := range map[string]string{"weight": "weight @w", "state": "state @kv"} {
		_, compiled := whole.Compile(ctx, e.s, e.mod, name, o)
		_, graphed := e.b.Function(ctx, e.mod, name, whole.FunctionOptions{})
		_, callable := whole.CompileCallable(ctx, e.s, e.mod, name, whole.CallableOptions{Options: o})
		for who, err := range map[string]error{"Compile": compiled, "Function": graphed, "CompileCallable": callable} {
			var at *ir.Error
			if !errors.As(err, &at) || !at.Pos.IsValid() || !strings.Contains(err.Error(), "result 1 of @"+name+" is "+want) || !strings.Contains(err.Error(), "m.ir:") {
				t.Errorf("%s of @%s: %v", who, name, err)
			}
		}
	}
	fn := testkit.Must[*whole.Function](t)(whole.Compile(ctx, e.s, e.mod, "copies", o))
	w := e.tensor(1, 2, 3, 4)
	out := testkit.Must[[]graphs.Tensor](t)(fn.Run(e.s.Eager(e.s.DefaultStream()), []graphs.Tensor{w}))
	if e.want("a copy of the weight", out[0], 1, 2, 3, 4); out[0].Same(w) {
		t.Error("the copy is the weight")
	}
	drop(t, w, out[0])
	testkit.Check(t, fn.Close())
}

// TestFailedCallReleasesOnce makes the n-th call of the device fail, for every n of a first call that
// takes an input. The call releases the taken owner once: the caller's other owner stays.
func TestFailedCallReleasesOnce(t *testing.T) {
	for n, reached := 1, true; reached; n++ {
		dev := failing.New(host.Open(host.Options{Workers: 1}))
		e := (&env{TB: t}).open(dev, whole.BackendOptions{Options: whole.Options{Compiler: pieces.Pipeline{Backend: comphost.New()}}}, tree.Options{})
		f := e.fn("plain", whole.FunctionOptions{})
		x, w := e.tensor(1, 2, 3, 4), e.tensor(1, 1, 1, 1)
		testkit.Check(t, x.Retain())
		dev.FailCall(n)
		out, err := f.Call([]tree.Input{{Tensor: x, Take: true}, {Tensor: w}})
		reached = dev.Failed()
		dev.FailCall(0)
		if err != nil && !errors.Is(err, failing.ErrInjected) {
			t.Errorf("call %d: the error is %v", n, err)
		}
		if got := x.Storage().Owners(); got != 1 {
			t.Fatalf("call %d: the input has %d owners, want 1", n, got)
		}
		drop(t, append(out, x, w)...)
		e.close()
	}
}

// counting counts the streams that a device makes.
type counting struct {
	device.Device
	streams int
}

func (d *counting) NewStream() (device.Stream, error) {
	d.streams++
	return d.Device.NewStream()
}

// TestStreamsAreReused: plain graphs and managers that follow each other, also plain graphs that fail, use the same
// streams.
func TestStreamsAreReused(t *testing.T) {
	dev := &counting{Device: host.Open(host.Options{Workers: 1})}
	e := (&env{TB: t}).open(dev, whole.BackendOptions{}, tree.Options{})
	defer e.close()
	fn := testkit.Must[*whole.Function](t)(whole.Compile(ctx, e.s, e.mod, "grad", whole.Options{Compiler: pieces.Pipeline{Backend: comphost.New()}}))
	x := e.tensor(1, 2, 3, 4)
	made := 0
	for i := range 4 {
		p := testkit.Must[*whole.Plain](t)(whole.NewPlain(ctx, e.s, fn.Run, []graphs.Tensor{x, x}, whole.PlainOptions{}))
		testkit.Check(t, p.Reset())
		if _, err := whole.NewPlain(ctx, e.s, fn.Run, []graphs.Tensor{x}, whole.PlainOptions{}); !errors.Is(err, graphs.ErrArguments) {
			t.Errorf("a plain graph of one operand: %v", err)
		}
		m := testkit.Must[*tree.Manager](t)(tree.New(e.s, tree.Options{Check: true}))
		f := testkit.Must[*tree.Func](t)(m.Add(tree.Function{Name: "grad", Body: func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) { return fn.Run(r, in.All()) }}))
		var kept []graphs.Tensor
		for range 3 {
			m.MarkStep()
			kept = testkit.Must[[]graphs.Tensor](t)(f.Call(tree.Borrow(x, x), nil))
		}
		testkit.Check(t, m.Close())
		e.want("an output of a manager that is closed", kept[0], 1, 4, 9, 16)
		drop(t, kept...)
		if i == 0 {
			made = dev.streams
		}
	}
	if dev.streams != made {
		t.Errorf("%d streams were made, %d of them by the first plain graph and manager", dev.streams, made)
	}
	drop(t, x)
	testkit.Check(t, fn.Close())
}

// TestOtherSession: an input of another session is refused, and counted as a skip.
func TestOtherSession(t *testing.T) {
	e, o := open(t, whole.BackendOptions{}, tree.Options{}), open(t, whole.BackendOptions{}, tree.Options{})
	f := e.fn("grad", whole.FunctionOptions{})
	x, y := e.tensor(1, 2, 3, 4), o.tensor(1, 2, 3, 4)
	if _, err := f.Call(tree.Borrow(x, y)); !errors.Is(err, device.ErrForeignBuffer) || len(e.said) != 1 || e.said[0].Reason != whole.MultipleDevices {
		t.Errorf("an input of another session: %v, warnings: %v", err, e.said)
	}
	drop(t, x, y)
	e.close()
	o.close()
}
