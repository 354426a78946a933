package tree_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
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
	"pwc/runtime/device"
	"pwc/runtime/host"
)

const modules = `pwc 1
module "m" {
  func @foo(%x: f32[4]) -> (f32[4], f32[4]) {
    %a = add(%x, 1.0) : f32[4]
    %b = add(%x, 2.0) : f32[4]
    return %a, %b
  }
  func @fee(%y: f32[4]) -> (f32[4]) {
    %c = mul(%y, 4.0) : f32[4]
    return %c
  }
  func @sum(%x: f32[4], %y: f32[4]) -> (f32[4]) {
    %c = add(%x, %y) : f32[4]
    return %c
  }
  func @bump(%x: mut f32[4]) -> (f32[4]) {
    %y = add(%x, 1.0) : f32[4]
    copy(%x, %y)
    %z = mul(%y, 2.0) : f32[4]
    return %z
  }
}
`

// rig is a device with a compiler for it.
type rig struct {
	dev      device.Device
	compiler pieces.Compiler
	store    pieces.Store // nil: each test compiles its programs
	stays    bool         // several managers share the device: close leaves it open
}

// hostRig returns a host device of the test's own.
func hostRig() rig {
	return rig{dev: host.Open(host.Options{Workers: 1}), compiler: pieces.Pipeline{Backend: comphost.New()}}
}

// env is a manager on a device with functions of modules.
type env struct {
	rig
	t   testing.TB
	s   *graphs.Session
	m   *tree.Manager
	mod *ir.Module
	fns map[string]*whole.Function
}

func open(t testing.TB, o tree.Options) *env {
	t.Helper()
	return openOn(t, hostRig(), o)
}

// openOn is open on another device.
func openOn(t testing.TB, g rig, o tree.Options) *env {
	t.Helper()
	return openWrapped(t, g, g.dev, o)
}

// openWrapped is openOn with a device that wraps the rig's.
func openWrapped(t testing.TB, g rig, dev device.Device, o tree.Options) *env {
	t.Helper()
	e := &env{rig: g, t: t, fns: map[string]*whole.Function{}}
	e.s = testkit.Must[*graphs.Session](t)(graphs.NewSession(dev, graphs.SessionOptions{}))
	e.m = testkit.Must[*tree.Manager](t)(tree.New(e.s, o))
	e.mod = testkit.Must[*ir.Module](t)(ir.Parse("m.ir", []byte(modules)))
	return e
}

// close closes the manager and the session. Memory that is left is an error.
func (e *env) close() {
	e.t.Helper()
	testkit.Check(e.t, e.m.Close())
	for _, f := range e.fns {
		testkit.Check(e.t, f.Close())
	}
	testkit.Must[int64](e.t)(e.s.EmptyCache())
	if u := e.m.Pool().Use(); u.Blocks != 0 || u.Segments != 0 {
		e.t.Errorf("at the end the pool has %+v", u)
	}
	testkit.Check(e.t, e.s.Close())
	if !e.stays {
		testkit.Check(e.t, e.dev.Close())
	}
}

func (e *env) fn(name string) *whole.Function {
	e.t.Helper()
	if e.fns[name] == nil {
		e.fns[name] = testkit.Must[*whole.Function](e.t)(whole.Compile(context.Background(), e.s, e.mod, name, whole.Options{Compiler: e.compiler, Store: e.store}))
	}
	return e.fns[name]
}

// add registers a function of the module.
func (e *env) add(name string, static ...int) *tree.Func {
	e.t.Helper()
	f := e.fn(name)
	return testkit.Must[*tree.Func](e.t)(e.m.Add(tree.Function{Name: name, Static: static, Mutated: f.Mutates(), Outputs: f.Locs(),
		Body: func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) { return f.Run(r, in.All()) }}))
}

func bytesOf(vs ...float32) []byte {
	var b []byte
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func (e *env) tensor(vs ...float32) graphs.Tensor {
	e.t.Helper()
	return testkit.Must[graphs.Tensor](e.t)(e.s.TensorOf("x", bytesOf(vs...), dtype.F32, int64(len(vs))))
}

func (e *env) read(t graphs.Tensor) []float32 {
	e.t.Helper()
	b := make([]byte, t.Size())
	testkit.Check(e.t, e.s.Read(t, b))
	vs := make([]float32, len(b)/4)
	for i := range vs {
		vs[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return vs
}

func (e *env) call(f *tree.Func, ts ...graphs.Tensor) []graphs.Tensor {
	e.t.Helper()
	return testkit.Must[[]graphs.Tensor](e.t)(f.Call(tree.Borrow(ts...), nil))
}

func drop(t testing.TB, ts ...graphs.Tensor) {
	t.Helper()
	for _, x := range ts {
		testkit.Check(t, x.Release())
	}
}

// TestFastPathDoesNotAllocate: a step that marks, copies an input and replays foo and fee allocates
// nothing in Go.
func TestFastPathDoesNotAllocate(t *testing.T) {
	e := open(t, tree.Options{})
	defer e.close()
	foo, fee := e.add("foo"), e.add("fee")
	x := e.tensor(0, 1, 2, 3)
	in1, in2 := make([]tree.Input, 1), make([]tree.Input, 1)
	out := make([]graphs.Tensor, 0, 4)
	step := func() {
		e.m.MarkStep()
		in1[0] = tree.Input{Tensor: x}
		o, err := foo.Call(in1, out[:0])
		testkit.Check(t, err)
		a, b := o[0], o[1]
		testkit.Check(t, a.Release())
		in2[0] = tree.Input{Tensor: b, Take: true}
		o, err = fee.Call(in2, out[:0])
		testkit.Check(t, err)
		testkit.Check(t, o[0].Release())
	}
	for range 4 {
		step()
	}
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations in a step of two replays", n)
	}
	if in := testkit.Must[tree.Inspection](t)(e.m.Inspect()); in.Stats.Recorded != 2 || in.State != tree.Execution {
		t.Errorf("the manager is at %+v, want 2 recordings and state execution", in)
	}
	drop(t, x)
}

// TestMisuse makes calls that are refused, and checks that later calls give the right values.
func TestMisuse(t *testing.T) {
	e := open(t, tree.Options{SkipWarmup: true, Check: true})
	defer e.close()
	foo := e.add("foo")
	x := e.tensor(0, 1, 2, 3)
	if _, err := e.m.Add(tree.Function{Name: "none"}); !errors.Is(err, graphs.ErrArguments) {
		t.Errorf("a function without a body: %v", err)
	}
	if _, err := foo.Call(nil, nil); !errors.Is(err, graphs.ErrArguments) {
		t.Errorf("no inputs: %v", err)
	}
	if _, err := foo.Call(tree.Borrow(graphs.Tensor{}), nil); !errors.Is(err, graphs.ErrNoStorage) {
		t.Errorf("the zero tensor: %v", err)
	}
	out := e.call(foo, x)
	drop(t, out...)
	for _, o := range out {
		if err := o.Release(); !errors.Is(err, graphs.ErrReleased) {
			t.Errorf("a second release: %v", err)
		}
		if _, err := foo.Call(tree.Borrow(o), nil); !errors.Is(err, graphs.ErrReleased) {
			t.Errorf("a released input: %v", err)
		}
	}
	boom := errors.New("boom")
	var keep graphs.Tensor
	bad := testkit.Must[*tree.Func](t)(e.m.Add(tree.Function{Name: "bad", Body: func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
		a, err := r.Alloc("a", dtype.F32, 4)
		if err != nil {
			return nil, err
		}
		keep = a
		if _, err := foo.Call(tree.Borrow(x), nil); !errors.Is(err, graphs.ErrBusy) {
			t.Errorf("a call within a body: %v", err)
		}
		if err := in.Release(0); err != nil {
			return nil, err
		}
		if err := in.Release(0); !errors.Is(err, graphs.ErrReleased) {
			t.Errorf("a second release of an input: %v", err)
		}
		if err := in.Release(7); !errors.Is(err, graphs.ErrArguments) {
			t.Errorf("release of no input: %v", err)
		}
		return nil, boom
	}}))
	for range 2 {
		if _, err := bad.Call(tree.Borrow(x), nil); !errors.Is(err, boom) {
			t.Errorf("a body that fails: %v", err)
		}
	}
	if err := keep.Alive(); err == nil {
		t.Error("a tensor of a failed recording has an owner")
	}
	out = e.call(foo, x)
	if got := e.read(out[1]); !slices.Equal(got, []float32{2, 3, 4, 5}) {
		t.Errorf("after errors: %v", got)
	}
	drop(t, out...)
	e.m.Seal(tree.Refuse)
	fee := e.add("fee")
	if _, err := fee.Call(tree.Borrow(x), nil); !errors.Is(err, tree.ErrSealed) {
		t.Errorf("sealed: %v", err)
	}
	e.m.Seal(tree.Eager)
	out = e.call(fee, x)
	if got := e.read(out[0]); !slices.Equal(got, []float32{0, 4, 8, 12}) {
		t.Errorf("sealed, eagerly: %v", got)
	}
	drop(t, out...)
	// The first three outputs get an owner, the last one cannot. close finds memory that is left.
	wrong := testkit.Must[*tree.Func](t)(e.m.Add(tree.Function{Name: "wrong", Body: func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
		a := testkit.Must[graphs.Tensor](t)(r.Alloc("a", dtype.F32, 4))
		return []graphs.Tensor{a, a, in.At(0), keep}, nil
	}}))
	if _, err := wrong.Call(tree.Borrow(x), nil); err == nil {
		t.Error("a body that returns a released output is not refused")
	}
	drop(t, x)
}

// TestWeakInput replays with a weak input that has no owners. A released input after it is refused.
func TestWeakInput(t *testing.T) {
	e := open(t, tree.Options{})
	defer e.close()
	foo, fee := e.fn("foo"), e.fn("fee")
	second := testkit.Must[*tree.Func](t)(e.m.Add(tree.Function{Name: "second", Body: func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
		return foo.Run(r, in.All()[1:])
	}}))
	x := e.tensor(1, 2, 3, 4)
	var y graphs.Tensor
	g := testkit.Must[*graphs.Graph](t)(graphs.Capture(context.Background(), e.s, graphs.Options{}, func(r *graphs.Recorder) error {
		out, err := fee.Run(r, []graphs.Tensor{x})
		if err == nil {
			y = out[0]
		}
		return err
	}))
	testkit.Check(t, g.Replay(e.s.DefaultStream()))
	for range 2 {
		drop(t, e.call(second, y, x)...)
	}
	drop(t, y)
	out := e.call(second, y.Weak(), x)
	if got := e.read(out[0]); !slices.Equal(got, []float32{2, 3, 4, 5}) {
		t.Errorf("with a weak input: %v", got)
	}
	drop(t, out...)
	drop(t, x)
	if _, err := second.Call(tree.Borrow(y.Weak(), x), nil); !errors.Is(err, graphs.ErrReleased) || !strings.Contains(err.Error(), "input 1 of second") {
		t.Errorf("a released input after a weak one: %v", err)
	}
	testkit.Check(t, g.Reset())
}

// TestShutdown refuses calls after Close.
func TestShutdown(t *testing.T) {
	e := open(t, tree.Options{})
	foo := e.add("foo")
	x := e.tensor(0, 1, 2, 3)
	out := e.call(foo, x)
	testkit.Check(t, e.m.Close())
	testkit.Check(t, e.m.Close())
	if _, err := foo.Call(tree.Borrow(x), nil); !errors.Is(err, tree.ErrShutdown) {
		t.Errorf("after Close: %v", err)
	}
	// Outputs with owners outlive the manager.
	if got := e.read(out[0]); !slices.Equal(got, []float32{1, 2, 3, 4}) {
		t.Errorf("after Close the output is %v", got)
	}
	drop(t, out...)
	drop(t, x)
	e.close()
}

// pattern is one step of a random program: calls whose operands are indices of earlier values.
type pattern []move

type move struct {
	f    int // index in the functions of TestRandom; -1: drop
	args []int
	take []bool
	drop int
}

// randomPattern draws a step of n moves.
func randomPattern(r *rand.Rand, arity, results []int, n int) pattern {
	var p pattern
	live := []int{0, 1} // the inputs of each step, which no move drops or gives away
	taken := map[int]bool{0: true, 1: true}
	values := 2
	for range n {
		if k := r.IntN(len(live)); r.IntN(3) == 0 && !taken[live[k]] {
			p = append(p, move{f: -1, drop: live[k]})
			live = slices.Delete(live, k, k+1)
			continue
		}
		m := move{f: r.IntN(len(arity))}
		for range arity[m.f] {
			v := live[r.IntN(len(live))]
			m.args = append(m.args, v)
			m.take = append(m.take, false)
		}
		for i, v := range m.args {
			if v > 1 && r.IntN(3) == 0 && !slices.Contains(m.args[:i], v) && !slices.Contains(m.args[i+1:], v) {
				m.take[i] = true
				live = slices.DeleteFunc(live, func(x int) bool { return x == v })
			}
		}
		for range results[m.f] {
			live = append(live, values)
			values++
		}
		p = append(p, m)
	}
	return p
}

// TestRandom drives the tree with random programs. Every value is bit-equal to that of the same
// program in Go, Options.Check holds after each call, and in the last third of the rounds the pool's
// memory and the number of recordings are constant.
func TestRandom(t *testing.T) {
	programs, rounds := 320, 60
	if testing.Short() {
		programs = 10
	}
	steps := 0
	for seed := range programs {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		steps += randomProgram(t, hostRig(), r, rounds)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d calls", steps)
	if steps < 100_000 && !testing.Short() {
		t.Errorf("only %d calls, want 100,000", steps)
	}
}

type value struct {
	t    graphs.Tensor
	want []float32
	gone bool
}

func randomProgram(t *testing.T, g rig, r *rand.Rand, rounds int) (calls int) {
	e := openOn(t, g, tree.Options{SkipWarmup: r.IntN(2) == 0, Check: true})
	defer e.close()
	foo, fee, sum := e.fn("foo"), e.fn("fee"), e.fn("sum")
	type function struct {
		f    *tree.Func
		eval func(in [][]float32) [][]float32
	}
	body := func(name string, static []int, b func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error)) *tree.Func {
		return testkit.Must[*tree.Func](t)(e.m.Add(tree.Function{Name: name, Static: static, Body: b}))
	}
	mapped := func(f func(float32) float32, v []float32) []float32 {
		out := make([]float32, len(v))
		for i := range v {
			out[i] = f(v[i])
		}
		return out
	}
	added := func(n float32) func(float32) float32 { return func(x float32) float32 { return x + n } }
	fs := []function{
		{body("foo", nil, func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) { return foo.Run(r, in.All()) }),
			func(in [][]float32) [][]float32 {
				return [][]float32{mapped(added(1), in[0]), mapped(added(2), in[0])}
			}},
		{body("fee and its input", nil, func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
			out, err := fee.Run(r, in.All())
			return append(out, in.At(0)), err
		}), func(in [][]float32) [][]float32 {
			return [][]float32{mapped(func(x float32) float32 { return 4 * x }, in[0]), in[0]}
		}},
		{body("sum, which releases", nil, func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
			out, err := sum.Run(r, in.All())
			if err != nil {
				return nil, err
			}
			if err := errors.Join(in.Release(0), in.Release(1)); err != nil {
				return nil, err
			}
			more, err := fee.Run(r, out)
			return append(more, out[0], more[0]), err
		}), func(in [][]float32) [][]float32 {
			s := make([]float32, len(in[0]))
			for i := range s {
				s[i] = in[0][i] + in[1][i]
			}
			f := mapped(func(x float32) float32 { return 4 * x }, s)
			return [][]float32{f, s, f}
		}},
	}
	arity, results := []int{1, 1, 2}, []int{2, 2, 3}
	patterns := make([]pattern, 1+r.IntN(3))
	for i := range patterns {
		patterns[i] = randomPattern(r, arity, results, 3+r.IntN(9))
	}
	statics := [2]value{{want: []float32{1, 2, 3, 4}}, {want: []float32{-1, 5, 0.5, 2}}}
	for i := range statics {
		statics[i].t = e.tensor(statics[i].want...)
	}
	var held []value // from generations before
	var reserved int64
	var recorded int
	for round := range rounds {
		p := patterns[r.IntN(len(patterns))]
		if round < 8*len(patterns) {
			p = patterns[round%len(patterns)] // each pattern often enough to be recorded
		}
		e.m.MarkStep()
		values := []value{statics[0], statics[1]}
		for _, m := range p {
			if m.f < 0 {
				drop(t, values[m.drop].t)
				values[m.drop].gone = true
				continue
			}
			f := fs[m.f]
			in := make([]tree.Input, len(m.args))
			var vs [][]float32
			for i, a := range m.args {
				in[i] = tree.Input{Tensor: values[a].t, Take: m.take[i]}
				vs = append(vs, values[a].want)
			}
			out, err := f.f.Call(in, nil)
			if errors.Is(err, tree.ErrBorrowed) {
				// Another pattern gave the input away here. Pass a copy that the call may release.
				for i, a := range m.args {
					if a > 1 && !m.take[i] {
						in[i] = tree.Input{Tensor: testkit.Must[graphs.Tensor](t)(e.s.Clone("a copy", values[a].t)), Take: true}
					}
				}
				out, err = f.f.Call(in, nil)
			}
			testkit.Check(t, err)
			calls++
			for i, a := range m.args {
				if m.take[i] {
					values[a].gone = true
				}
			}
			for i, w := range f.eval(vs) {
				values = append(values, value{t: out[i], want: w})
			}
			for i := range values {
				if !values[i].gone && !slices.Equal(e.read(values[i].t), values[i].want) {
					t.Fatalf("round %d: value %d is %v, want %v", round, i, e.read(values[i].t), values[i].want)
				}
			}
			for _, h := range held { // either the old value, or an error
				if err := h.t.Err(); err == nil && !slices.Equal(e.read(h.t), h.want) {
					t.Fatalf("round %d: a value of an earlier generation is %v, want %v", round, e.read(h.t), h.want)
				} else if err != nil && !errors.Is(err, graphs.ErrStale) {
					t.Fatalf("round %d: a value of an earlier generation: %v", round, err)
				}
			}
		}
		for _, h := range held {
			if h.t.Err() == nil {
				drop(t, h.t)
			}
		}
		held = nil
		for _, v := range values[2:] {
			switch {
			case v.gone:
			case r.IntN(4) == 0:
				held = append(held, v)
			default:
				drop(t, v.t)
			}
		}
		use, in := e.m.Pool().Use(), testkit.Must[tree.Inspection](t)(e.m.Inspect())
		if round == 2*rounds/3 {
			reserved, recorded = use.Reserved, in.Stats.Recorded
		}
		if round > 2*rounds/3 && (use.Reserved != reserved || in.Stats.Recorded != recorded) {
			t.Fatalf("round %d: %d bytes and %d recordings, were %d and %d when every path was recorded", round, use.Reserved, in.Stats.Recorded, reserved, recorded)
		}
	}
	for _, h := range held {
		if h.t.Err() == nil {
			drop(t, h.t)
		}
	}
	drop(t, statics[0].t, statics[1].t)
	return calls
}

// BenchmarkPair measures two replays, a copy and a mark on the host device.
func BenchmarkPair(b *testing.B) {
	for _, statics := range []int{0, 400} {
		b.Run(fmt.Sprintf("statics=%d", statics), func(b *testing.B) {
			e := open(b, tree.Options{})
			defer e.close()
			step, done := e.pair(statics)
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
			done()
		})
	}
}

// pair returns one step of the pair foo, fee, which is recorded already: a mark, foo with a copied
// input and some static ones, and fee. done drops the step's inputs.
func (e *env) pair(statics int) (step, done func()) {
	e.t.Helper()
	fooFn, feeFn := e.fn("foo"), e.fn("fee")
	var list []int
	var ws []graphs.Tensor
	for i := range statics {
		list = append(list, i+1)
		ws = append(ws, e.tensor(1, 2, 3, 4))
	}
	foo := testkit.Must[*tree.Func](e.t)(e.m.Add(tree.Function{Name: "foo", Static: list, Body: func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
		return fooFn.Run(r, in.All()[:1])
	}}))
	fee := testkit.Must[*tree.Func](e.t)(e.m.Add(tree.Function{Name: "fee", Body: func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
		return feeFn.Run(r, in.All())
	}}))
	x := e.tensor(0, 1, 2, 3)
	in1, in2 := tree.Borrow(append([]graphs.Tensor{x}, ws...)...), make([]tree.Input, 1)
	out := make([]graphs.Tensor, 0, 4)
	step = func() {
		e.m.MarkStep()
		o, err := foo.Call(in1, out[:0])
		testkit.Check(e.t, err)
		testkit.Check(e.t, o[0].Release())
		in2[0] = tree.Input{Tensor: o[1], Take: true}
		o, err = fee.Call(in2, out[:0])
		testkit.Check(e.t, err)
		testkit.Check(e.t, o[0].Release())
	}
	for range 4 {
		step()
	}
	return step, func() { drop(e.t, append(ws, x)...) }
}

// TestManagerPerDevice is test_manager_per_device: managers of two devices are independent. Explain
// refuses a function of another manager.
func TestManagerPerDevice(t *testing.T) {
	e, o := open(t, tree.Options{}), open(t, tree.Options{})
	foo := o.add("foo")
	x := o.tensor(0, 1, 2, 3)
	for range 3 {
		o.m.MarkStep()
		drop(t, o.call(foo, x)...)
	}
	if a, b := testkit.Must[tree.Inspection](t)(e.m.Inspect()), testkit.Must[tree.Inspection](t)(o.m.Inspect()); a.Stats.Warmups != 0 || b.Stats.Recorded != 1 || b.Stats.Executed != 1 {
		t.Errorf("the managers are at %+v and %+v; want runs of the second only", a, b)
	}
	if _, err := e.m.Explain(foo, tree.Borrow(x)); !errors.Is(err, graphs.ErrArguments) {
		t.Errorf("explaining a function of another manager: %v", err)
	}
	drop(t, x)
	o.close()
	e.close()
}

// TestExplain: before each call, Explain has the expected text, and the calls then run as it said.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		name string
		o    tree.Options
		want []string // before each call; outputs are held until the next call returned
		ran  tree.Stats
	}{
		{"by mark", tree.Options{}, []string{"foo warms up: it has not warmed up", "foo warms up after node -1", "foo warms up after node -2"}, tree.Stats{Warmups: 3}},
		{"without warm-ups", tree.Options{SkipWarmup: true}, []string{"foo is recorded as a root", "foo is recorded after node 0", "foo is recorded after node 1"}, tree.Stats{Recorded: 3}},
		{"by call", tree.Options{Generations: tree.ByCall}, []string{"foo warms up: it has not warmed up", "foo is recorded as a root", "node 0 at the root serves", "the path of node 0 ends\nnode 0 at the root serves"}, tree.Stats{Warmups: 1, Recorded: 1, Executed: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := open(t, c.o)
			defer e.close()
			foo := e.add("foo")
			x := e.tensor(0, 1, 2, 3)
			explained := func(want string, keys ...int64) {
				t.Helper()
				if got := testkit.Must[string](t)(e.m.Explain(foo, tree.Borrow(x), keys...)); !strings.Contains(got, want) {
					t.Errorf("explained by\n%swant %q", got, want)
				}
			}
			var held []graphs.Tensor
			for _, want := range c.want {
				explained(want)
				out := e.call(foo, x)
				for _, h := range held {
					if h.Err() == nil {
						drop(t, h)
					}
				}
				held = out
			}
			got := testkit.Must[tree.Inspection](t)(e.m.Inspect()).Stats
			if got.Skips = nil; fmt.Sprint(got) != fmt.Sprint(c.ran) {
				t.Errorf("ran %+v, want %+v", got, c.ran)
			}
			e.m.Seal(tree.Refuse)
			explained("foo is refused (sealed)", 7)
			if _, err := foo.Call(tree.Borrow(x), nil, 7); !errors.Is(err, tree.ErrSealed) {
				t.Errorf("sealed: %v", err)
			}
			e.m.Seal(tree.Eager)
			explained("foo runs eagerly (sealed)", 7)
			for _, h := range held {
				if h.Err() == nil {
					drop(t, h)
				}
			}
			drop(t, x)
		})
	}
}

// TestSingleStream is test_single_stream_use: all segments of the pool belong to one stream.
func TestSingleStream(t *testing.T) {
	e := open(t, tree.Options{})
	defer e.close()
	foo, fee := e.add("foo"), e.add("fee")
	x := e.tensor(0, 1, 2, 3)
	for range 4 {
		e.m.MarkStep()
		out := e.call(foo, x)
		c := e.call(fee, out[0])
		drop(t, out...)
		drop(t, c...)
	}
	streams := map[device.Stream]bool{}
	for _, s := range e.m.Pool().Mem().Snapshot() {
		streams[s.Stream] = true
	}
	if len(streams) != 1 {
		t.Errorf("the pool has segments of %d streams, want 1", len(streams))
	}
	drop(t, x)
}

// TestRandomNumbers is test_rng_trees: three calls after a seed and three more calls after the same seed
// give pairwise equal numbers, in warm-ups, recordings and replays.
func TestRandomNumbers(t *testing.T) {
	e := open(t, tree.Options{Check: true})
	defer e.close()
	e.mod = testkit.Must[*ir.Module](t)(ir.Parse("rng.ir", []byte(`pwc 1
module "rng" {
  func @rand(%g: i64[2]) -> (f32[20]) {
    %u = uniform(%g, shape=[20], dtype=f32)
    return %u
  }
}
`)))
	gen := e.s.NewGenerator(11)
	fn := e.fn("rand")
	rand := testkit.Must[*tree.Func](t)(e.m.Add(tree.Function{Name: "rand", Generators: []*graphs.Generator{gen},
		Body: func(r *graphs.Recorder, in *tree.Inputs) ([]graphs.Tensor, error) {
			return fn.RunArgs(r, []graphs.Arg{gen})
		}}))
	draw := func() (all [][]float32) {
		testkit.Check(t, gen.Seed(11))
		for range 3 {
			e.m.MarkStep()
			out := e.call(rand)
			all = append(all, e.read(out[0]))
			drop(t, out...)
		}
		return all
	}
	first, second := draw(), draw()
	for i := range first {
		if !slices.Equal(first[i], second[i]) {
			t.Errorf("call %d: %v, then %v", i, first[i], second[i])
		}
		if i > 0 && slices.Equal(first[i], first[i-1]) {
			t.Errorf("calls %d and %d draw the same", i-1, i)
		}
	}
	if in := testkit.Must[tree.Inspection](t)(e.m.Inspect()); in.Stats.Recorded != 1 || in.Stats.Executed != 4 {
		t.Errorf("the counts are %+v, want 1 recording and 4 replays", in.Stats)
	}
}
