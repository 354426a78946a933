package callables_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"pwc/graphs"
	"pwc/graphs/callables"
	"pwc/graphs/whole"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
)

// cubic has the operations of y = x^3 + x^2 and of its derivative.
const cubic = `pwc 1
module "cubic" {
  func @mul(%x: f32[64], %y: f32[64]) -> (f32[64]) {
    %a = mul(%x, %y) : f32[64]
    return %a
  }
  func @add(%x: f32[64], %y: f32[64]) -> (f32[64]) {
    %a = add(%x, %y) : f32[64]
    return %a
  }
}
`

// polynomial returns a callable whose body makes temporary memory and saves x^2 and x.
func polynomial(e *env, name string) callables.Function {
	e.Helper()
	mul, add := e.compile("mul"), e.compile("add")
	call := func(f *whole.Function, r *graphs.Recorder, a, b graphs.Tensor) graphs.Tensor {
		e.Helper()
		return testkit.Must[[]graphs.Tensor](e)(f.Run(r, []graphs.Tensor{a, b}))[0]
	}
	return callables.Function{
		Name: name, Outputs: 1, Args: args([]graphs.Tensor{e.tensor("sample", slices.Repeat([]float32{1}, 64), 64)}, 0),
		Forward: func(r *graphs.Recorder, in []graphs.Tensor) ([]graphs.Tensor, error) {
			saved := testkit.Must[graphs.Tensor](e)(r.Clone("x", in[0]))
			square := call(mul, r, in[0], in[0])
			cube := call(mul, r, square, in[0])
			y := call(add, r, cube, square)
			return []graphs.Tensor{y, square, saved}, cube.Release()
		},
		Backward: func(r *graphs.Recorder, in, results, grads []graphs.Tensor) ([]graphs.Tensor, error) {
			square, x := results[1], results[2]
			d := call(add, r, square, square)
			d = call(add, r, d, square)
			d = call(add, r, d, x)
			d = call(add, r, d, x)
			return []graphs.Tensor{call(mul, r, d, grads[0])}, nil
		},
	}
}

// result is an output or a gradient that the test holds.
type result struct {
	t        graphs.Tensor
	of       int // callable
	gradient bool
	want     float32
	stale    bool
	retained bool
}

// TestRandomOrder calls four callables of one pool in random orders. A wrong order, and a forward
// that would overwrite a retained result, are refused. All other calls compute the right values, and
// results are readable for as long as the package comment says.
func TestRandomOrder(t *testing.T) {
	for seed := range uint64(20) {
		randomOrder(t, hostRig(), seed, 400)
	}
}

// pending is a forward that ran.
type pending struct {
	call *callables.Call
	of   int
	x    float32
}

// orderRun is callables of one pool, with the calls and results that the test expects.
type orderRun struct {
	*env
	r           *rand.Rand
	set         *callables.Set
	stack, done []pending
	results     []*result
	counts      map[string]int
}

func randomOrder(t *testing.T, g rig, seed uint64, steps int) {
	t.Helper()
	e := open(t, g, cubic)
	defer e.close()
	o := &orderRun{env: e, r: rand.New(rand.NewPCG(seed, 1)), counts: map[string]int{}}
	var fns []callables.Function
	for i := range 4 {
		fns = append(fns, polynomial(e, fmt.Sprint("f", i)))
	}
	o.set = testkit.Must[*callables.Set](t)(callables.New(ctx, e.s, fns, callables.Options{}))
	for range steps {
		switch k := o.r.IntN(10); {
		case k < 4:
			o.forward()
		case k < 7 && len(o.stack) > 0:
			o.backward()
		case k == 7 && len(o.done) > 0:
			if _, err := o.done[o.r.IntN(len(o.done))].call.Backward(e.s.DefaultStream(), graphs.Tensor{}); !errors.Is(err, callables.ErrBackwardDone) {
				t.Fatalf("seed %d: a second backward: %v", seed, err)
			}
		case k == 8 && len(o.stack) > 0 && o.r.IntN(3) == 0:
			i := o.r.IntN(len(o.stack))
			testkit.Check(t, o.stack[i].call.Discard())
			o.stack, o.done = o.stack[:i], append(o.done, o.stack[i:]...)
		case k == 9 && len(o.results) > 0:
			o.changeOwner()
		}
		o.checkResults()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	testkit.Check(t, o.set.Close())
	for _, x := range o.results { // retained results are valid after Close
		if x.retained {
			testkit.Check(t, x.t.Release())
		}
	}
	for _, what := range []string{"forward", "backward", "order", "held"} {
		if o.counts[what] == 0 {
			t.Errorf("seed %d: no %s happened: %v", seed, what, o.counts)
		}
	}
}

// small returns a tensor of one small integer, so that all computed values are exact.
func (o *orderRun) small() (float32, graphs.Tensor) {
	o.Helper()
	v := float32(o.r.IntN(9) - 4)
	return v, testkit.Must[graphs.Tensor](o)(o.s.TensorOf("x", bytes(slices.Repeat([]float32{v}, 64)), dtype.F32, 64))
}

// forward runs a random forward. It must be refused if the same or a later callable is pending, or
// if it would overwrite a retained result.
func (o *orderRun) forward() {
	o.Helper()
	i := o.r.IntN(o.set.Len())
	held := slices.ContainsFunc(o.results, func(x *result) bool { return x.retained && (x.gradient || x.of >= i) })
	v, x := o.small()
	call, err := o.set.At(i).Forward(o.s.DefaultStream(), callables.Arg{Tensor: x, RequiresGrad: true})
	testkit.Check(o, x.Release())
	if n := len(o.stack); n > 0 && o.stack[n-1].of >= i {
		var wrong *callables.OrderError
		if !errors.As(err, &wrong) || wrong.Pending != fmt.Sprint("f", o.stack[n-1].of) {
			o.Errorf("forward of f%d with f%d pending: %v", i, o.stack[n-1].of, err)
		}
		o.counts["order"]++
		return
	}
	if held {
		if !errors.Is(err, graphs.ErrHeld) {
			o.Errorf("forward of f%d over a retained result: %v", i, err)
		}
		o.counts["held"]++
		return
	}
	testkit.Check(o, err)
	for _, x := range o.results {
		x.stale = x.stale || x.gradient || x.of >= i
	}
	o.stack = append(o.stack, pending{call, i, v})
	o.results = append(o.results, &result{t: call.Outputs()[0], of: i, want: v*v*v + v*v})
	o.counts["forward"]++
}

// backward runs the backward of the last forward, or tries the one of the forward before it, which
// must be refused.
func (o *orderRun) backward() {
	o.Helper()
	i := len(o.stack) - 1 - o.r.IntN(min(2, len(o.stack)))
	p := o.stack[i]
	v, c := o.small()
	out, err := p.call.Backward(o.s.DefaultStream(), c)
	testkit.Check(o, c.Release())
	if i < len(o.stack)-1 {
		if !errors.Is(err, callables.ErrOrder) {
			o.Errorf("backward of f%d before f%d: %v", p.of, o.stack[len(o.stack)-1].of, err)
		}
		return
	}
	testkit.Check(o, err)
	o.stack, o.done = o.stack[:i], append(o.done, p)
	o.results = append(o.results, &result{t: out[0], of: p.of, gradient: true, want: v * (3*p.x*p.x + 2*p.x)})
	o.counts["backward"]++
}

// changeOwner retains a result, or releases one that is retained.
func (o *orderRun) changeOwner() {
	o.Helper()
	x := o.results[o.r.IntN(len(o.results))]
	switch {
	case x.retained:
		testkit.Check(o, x.t.Release())
		x.retained = false
	case !x.stale:
		testkit.Check(o, x.t.Retain())
		x.retained = true
	}
}

// checkResults holds that exactly the valid results are readable.
func (o *orderRun) checkResults() {
	o.Helper()
	for _, x := range o.results {
		if err := x.t.Err(); x.stale != errors.Is(err, graphs.ErrStale) || !x.stale && err != nil {
			o.Errorf("a result of f%d, gradient %t, stale %t: %v", x.of, x.gradient, x.stale, err)
		}
		if x.stale {
			continue
		}
		if got := o.read(x.t); got[0] != x.want || got[63] != x.want {
			o.Errorf("a result of f%d, gradient %t: %v, want %v", x.of, x.gradient, got[0], x.want)
		}
	}
	o.results = slices.DeleteFunc(o.results, func(x *result) bool { return x.stale && o.r.IntN(4) == 0 })
}

// TestSharedPoolReusesMemory: after the captures, the pool of four callables has blocks for their
// outputs and gradients only.
func TestSharedPoolReusesMemory(t *testing.T) {
	e := open(t, hostRig(), cubic)
	defer e.close()
	var fns []callables.Function
	for i := range 4 {
		fns = append(fns, polynomial(e, fmt.Sprint("f", i)))
	}
	pool := e.s.NewPool("shared")
	set := testkit.Must[*callables.Set](t)(callables.New(ctx, e.s, fns, callables.Options{Pool: pool}))
	// Four outputs and four gradients have owners. Saved values have no owner: backwards that
	// were captured later reuse their memory.
	if u := pool.Use(); u.Blocks != 8 || u.Uses != 9 {
		t.Errorf("the pool has %d blocks and %d uses, want 8 blocks and 9 uses", u.Blocks, u.Uses)
	}
	testkit.Check(t, set.Close())
	if u := pool.Use(); u.Blocks != 0 || u.Uses != 1 {
		t.Errorf("after Close the pool has %d blocks and %d uses", u.Blocks, u.Uses)
	}
	testkit.Check(t, pool.Release())
}

// TestSetsShareAPool: two sets of one pool use the same memory for saved values, and results of the second set
// are in memory of the first one's temporaries. Replays that would read or overwrite the wrong values are refused.
func TestSetsShareAPool(t *testing.T) {
	e := open(t, hostRig(), cubic)
	defer e.close()
	pool := e.s.NewPool("shared")
	capture := func(name string) *callables.Set {
		fns := []callables.Function{polynomial(e, name)}
		return testkit.Must[*callables.Set](t)(callables.New(ctx, e.s, fns, callables.Options{Pool: pool}))
	}
	first, second := capture("f"), capture("g")
	st := e.s.DefaultStream()
	x := func(v float32) graphs.Tensor { return e.tensor("x", slices.Repeat([]float32{v}, 64), 64) }
	forward := func(set *callables.Set, v float32) *callables.Call {
		return testkit.Must[*callables.Call](t)(set.At(0).Forward(st, callables.Arg{Tensor: x(v), RequiresGrad: true}))
	}
	g := forward(second, 2)
	f := forward(first, 3)
	if got := e.read(g.Outputs()[0]); got[0] != 12 { // x^3 + x^2
		t.Errorf("the output of g is %v, want 12", got[0])
	}
	if _, err := g.Backward(st, x(1)); !errors.Is(err, graphs.ErrStale) {
		t.Errorf("a backward of g, whose saved values the forward of f overwrote: %v, want a StaleError", err)
	}
	var held *graphs.HeldError
	if _, err := f.Backward(st, x(1)); !errors.As(err, &held) || held.Graph != "backward of f" {
		t.Errorf("a backward of f, which would overwrite the output of g: %v, want a HeldError", err)
	}
	testkit.Check(t, second.Close())
	if grads := testkit.Must[[]graphs.Tensor](t)(f.Backward(st, x(1))); e.read(grads[0])[0] != 33 { // 3x^2 + 2x
		t.Errorf("the gradient of f after Close of the second set is %v, want 33", e.read(grads[0])[0])
	}
	testkit.Check(t, errors.Join(first.Close(), pool.Release()))
}

// TestConcurrent runs two callables at the same time, on streams of their own.
func TestConcurrent(t *testing.T) { concurrent(t, hostRig()) }

func concurrent(t *testing.T, g rig) {
	t.Helper()
	e := open(t, g, cubic)
	defer e.close()
	fns := []callables.Function{polynomial(e, "f"), polynomial(e, "g")}
	set := testkit.Must[*callables.Set](t)(callables.New(ctx, e.s, fns, callables.Options{AnyOrder: true}))
	e.end = append(e.end, set.Close)
	var wg sync.WaitGroup
	errs := make([]error, 2)
	var grads [2]graphs.Tensor
	for i := range 2 {
		st := testkit.Must[*graphs.Stream](t)(e.s.NewStream(fmt.Sprint("stream ", i)))
		x := e.tensor("x", slices.Repeat([]float32{float32(i + 1)}, 64), 64)
		testkit.Check(t, st.Wait(e.s.DefaultStream()))
		wg.Go(func() {
			for range 50 {
				call, err := set.At(i).Forward(st, callables.Arg{Tensor: x, RequiresGrad: true})
				if err != nil {
					errs[i] = err
					return
				}
				out, err := call.Backward(st, x)
				if err != nil {
					errs[i] = err
					return
				}
				grads[i] = out[0]
			}
			errs[i] = st.Synchronize()
		})
	}
	wg.Wait()
	testkit.Check(t, errors.Join(errs...))
	for i, want := range []float32{5, 32} { // x * (3x^2 + 2x)
		if got := e.read(grads[i]); got[0] != want {
			t.Errorf("gradient %d is %v, want %v", i, got[0], want)
		}
	}
}

// TestStreams: a backward on a stream that is not ordered after its forward is refused, and can
// be repeated.
func TestStreams(t *testing.T) {
	e := open(t, hostRig(), cubic)
	defer e.close()
	set := testkit.Must[*callables.Set](t)(callables.New(ctx, e.s, []callables.Function{polynomial(e, "f")}, callables.Options{}))
	e.end = append(e.end, set.Close)
	side := testkit.Must[*graphs.Stream](t)(e.s.NewStream("side"))
	x := e.tensor("x", slices.Repeat([]float32{2}, 64), 64)
	call := testkit.Must[*callables.Call](t)(set.At(0).Forward(e.s.DefaultStream(), callables.Arg{Tensor: x, RequiresGrad: true}))
	if _, err := call.Backward(side, graphs.Tensor{}); !errors.Is(err, graphs.ErrUnordered) {
		t.Errorf("a backward on another stream: %v", err)
	}
	testkit.Check(t, side.Wait(e.s.DefaultStream()))
	out := testkit.Must[[]graphs.Tensor](t)(call.Backward(side, graphs.Tensor{}))
	if got := e.read(out[0]); got[0] != 0 {
		t.Errorf("the zero Tensor as cotangent gives the gradient %v, want zeros", got[0])
	}
}

// TestStaticInputs: an argument that is the static input itself is read without a copy.
func TestStaticInputs(t *testing.T) {
	e := open(t, hostRig(), cubic)
	defer e.close()
	set := testkit.Must[*callables.Set](t)(callables.New(ctx, e.s, []callables.Function{polynomial(e, "f")}, callables.Options{}))
	e.end = append(e.end, set.Close)
	in := set.At(0).Inputs()
	testkit.Check(t, e.s.Write(in[0], bytes(slices.Repeat([]float32{3}, 64))))
	call := testkit.Must[*callables.Call](t)(set.At(0).Forward(e.s.DefaultStream(), callables.Arg{Tensor: in[0], RequiresGrad: true}))
	out := testkit.Must[[]graphs.Tensor](t)(call.Backward(e.s.DefaultStream(), in[0]))
	if y, g := e.read(call.Outputs()[0])[0], e.read(out[0])[0]; y != 36 || g != 3*33 {
		t.Errorf("the output is %v, the gradient %v; want 36 and 99", y, g)
	}
}

// TestBusy: while a call runs, Close and a second call of its pool are refused. A call of another pool
// is not, also after the refused Close.
func TestBusy(t *testing.T) {
	e := open(t, hostRig(), cubic)
	defer e.close()
	fns := []callables.Function{polynomial(e, "f"), polynomial(e, "g")}
	var inside func()
	fns[1].Eval = func(r *graphs.Recorder, in []graphs.Tensor) ([]graphs.Tensor, error) {
		inside()
		return []graphs.Tensor{in[0]}, nil
	}
	for _, o := range []callables.Options{{}, {AnyOrder: true}} {
		set := testkit.Must[*callables.Set](t)(callables.New(ctx, e.s, fns, o))
		set.At(1).Train(false)
		var closed, same, other error
		inside = func() {
			closed = set.Close()
			_, same = set.At(1).Forward(e.s.DefaultStream(), fns[1].Args...)
			_, other = set.At(0).Forward(e.s.DefaultStream(), fns[0].Args...)
		}
		testkit.Must[*callables.Call](t)(set.At(1).Forward(e.s.DefaultStream(), fns[1].Args...))
		if !errors.Is(closed, graphs.ErrBusy) || !errors.Is(same, graphs.ErrBusy) {
			t.Errorf("AnyOrder %t: Close returns %v, a call of the same pool %v; want ErrBusy", o.AnyOrder, closed, same)
		}
		if o.AnyOrder && other != nil || !o.AnyOrder && !errors.Is(other, graphs.ErrBusy) {
			t.Errorf("AnyOrder %t: a call of the other callable returns %v", o.AnyOrder, other)
		}
		testkit.Check(t, set.Close())
	}
}

// TestArguments: arguments that do not fit the samples are refused, all of them in one error, and
// calls that fit work afterwards. Calls of a closed set, and a backward in evaluation mode, are refused.
func TestArguments(t *testing.T) {
	e := open(t, hostRig(), network)
	defer e.close()
	tr := newTrainer(e, callables.Options{})
	st := e.s.DefaultStream()
	loss := tr.set.At(3)
	p, y := e.tensor("p", make([]float32, 12), 4, 3), e.tensor("y", make([]float32, 12), 4, 3)
	flat := e.tensor("flat", make([]float32, 12), 12)
	ints := testkit.Must[graphs.Tensor](t)(e.s.TensorOf("ints", make([]byte, 48), dtype.I32, 4, 3))
	e.end = append(e.end, ints.Release)
	for _, c := range []struct {
		in   []callables.Arg
		want []string
	}{
		{args([]graphs.Tensor{p}, 0), []string{"loss takes 2 arguments, 1 were given"}},
		{args([]graphs.Tensor{flat, ints}, 0), []string{"argument 0 of loss is f32[12], its sample is f32[4 3]", "argument 1 of loss is i32[4 3], its sample is f32[4 3]"}},
		{args([]graphs.Tensor{p, y}), []string{"argument 0 of loss has RequiresGrad false, its sample true"}},
		{args([]graphs.Tensor{p, y}, 0, 1), []string{"argument 1 of loss has RequiresGrad true, its sample false"}},
	} {
		_, err := loss.Forward(st, c.in...)
		if !errors.Is(err, graphs.ErrArguments) {
			t.Errorf("%v: %v", c.want, err)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: want %q", err, w)
			}
		}
	}
	if _, err := loss.Forward(st, callables.Arg{RequiresGrad: true}, callables.Arg{Tensor: y}); !errors.Is(err, graphs.ErrNoStorage) {
		t.Errorf("the zero tensor: %v", err)
	}
	call := testkit.Must[*callables.Call](t)(loss.Forward(st, args([]graphs.Tensor{p, y}, 0)...))
	for _, grads := range [][]graphs.Tensor{nil, {p}, {p, p}} {
		if _, err := call.Backward(st, grads...); !errors.Is(err, graphs.ErrArguments) {
			t.Errorf("%d cotangents: %v", len(grads), err)
		}
	}
	testkit.Must[[]graphs.Tensor](t)(call.Backward(st, tr.one))
	tr.set.Train(false)
	call = testkit.Must[*callables.Call](t)(loss.Forward(st, args([]graphs.Tensor{p, y}, 0)...))
	if _, err := call.Backward(st, tr.one); !errors.Is(err, callables.ErrNoBackward) {
		t.Errorf("backward of an evaluation: %v", err)
	}
	tr.set.Train(true)
	testkit.Check(t, tr.set.Close())
	testkit.Check(t, tr.set.Close())
	if _, err := loss.Forward(st, args([]graphs.Tensor{p, y}, 0)...); !errors.Is(err, callables.ErrClosed) {
		t.Errorf("a closed set: %v", err)
	}
	if in := loss.Inputs(); in != nil {
		t.Errorf("the inputs of a closed set are %v", in)
	}
}

// TestUnused: an input that requires a gradient and reaches no output is refused, unless that is
// allowed: then its gradient is the zero Tensor.
func TestUnused(t *testing.T) {
	e := open(t, hostRig(), `pwc 1
module "unused" {
  weight @w : f32[2]
  func @f(%x: f32[2], %y: f32[2], %i: i32[2]) -> (f32[2], i32[2]) {
    %a = mul(%x, 2.0) : f32[2]
    %b = floor(%y) : f32[2]
    %c = add(%a, %b) : f32[2]
    return %c, %i
  }
}
`)
	defer e.close()
	x := e.tensor("x", []float32{1, 2}, 2)
	i := testkit.Must[graphs.Tensor](t)(e.s.TensorOf("i", []byte{1, 0, 0, 0, 2, 0, 0, 0}, dtype.I32, 2))
	e.end = append(e.end, i.Release)
	c := e.callable("f", whole.CallableOptions{WRT: []string{"x", "y", "@w"}})
	f := testkit.Must[callables.Function](t)(c.Function("f", []graphs.Tensor{x, x, i}, whole.Operands{Tensors: map[string]graphs.Tensor{"w": x}}))
	if _, err := callables.New(ctx, e.s, []callables.Function{f}, callables.Options{}); !errors.Is(err, callables.ErrUnused) {
		t.Errorf("an unused input: %v", err)
	}
	set := testkit.Must[*callables.Set](t)(callables.New(ctx, e.s, []callables.Function{f}, callables.Options{AllowUnused: true}))
	call := testkit.Must[*callables.Call](t)(set.At(0).Forward(e.s.DefaultStream(), args([]graphs.Tensor{x, x, i}, 0, 1)...))
	out := testkit.Must[[]graphs.Tensor](t)(call.Backward(e.s.DefaultStream(), x))
	if len(out) != 3 || out[1].Storage() != nil || out[2].Storage() != nil || !slices.Equal(e.read(out[0]), []float32{2, 4}) {
		t.Errorf("the gradients are %v", out)
	}
	if got := e.read(call.Outputs()[0]); !slices.Equal(got, []float32{3, 6}) {
		t.Errorf("the output is %v", got)
	}
	testkit.Check(t, set.Close())
	f.Args[2].RequiresGrad = true
	if _, err := callables.New(ctx, e.s, []callables.Function{f}, callables.Options{AllowUnused: true}); !errors.Is(err, graphs.ErrArguments) {
		t.Errorf("a gradient of integers: %v", err)
	}
}
