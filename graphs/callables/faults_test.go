package callables_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"pwc/graphs"
	"pwc/graphs/callables"
	"pwc/internal/testkit"
	"pwc/runtime/device/failing"
)

// TestEveryCallFails makes the n-th call of the device fail, for every n while a set is made and runs
// its forwards. The calls return the injected error or succeed. If New returns it, nothing leaks and the
// generator keeps its state. The set, or a new one, then trains with the results of a run without
// errors.
func TestEveryCallFails(t *testing.T) {
	clean := open(t, hostRig(), network)
	want := newTrainer(clean, callables.Options{})
	x, y := clean.batch(rand.New(rand.NewPCG(4, 4)))
	first := want.step(x, y)
	n := 1
	for ; failNth(t, n, first); n++ {
		if t.Failed() {
			t.Fatalf("call %d", n)
		}
	}
	if n < 60 {
		t.Errorf("the scenario has only %d calls", n)
	}
	clean.close()
}

// failNth reports whether the n-th call was reached.
func failNth(t *testing.T, n int, want map[string][]float32) bool {
	t.Helper()
	g := hostRig()
	dev := failing.New(g.dev)
	inner := g.dev
	g.dev = dev
	e := open(t, g, network)
	defer func() { e.stays = true; e.close(); testkit.Check(t, inner.Close()) }()
	tr := newFunctions(e)
	x, y := e.batch(rand.New(rand.NewPCG(4, 4)))
	live := e.s.Live()
	dev.FailCall(n)
	set, err := callables.New(ctx, e.s, tr.fns, callables.Options{})
	if err == nil {
		tr.set = set
		e.end = append(e.end, set.Close)
		err = tr.tryForward(x, y)
	} else {
		if now := e.s.Live(); now != live {
			t.Errorf("call %d: %+v is live, before %+v", n, now, live)
		}
		if s := testkit.Must[graphs.GeneratorState](t)(tr.gen.State()); s.Offset != 0 {
			t.Errorf("call %d: the generator is at %+v", n, s)
		}
	}
	if err != nil && !errors.Is(err, failing.ErrInjected) {
		t.Errorf("call %d: the error is %v", n, err)
	}
	reached := dev.Failed()
	dev.FailCall(0)
	testkit.Check(t, tr.gen.SetState(graphs.GeneratorState{Seed: 5}))
	if tr.set == nil {
		tr.set = testkit.Must[*callables.Set](t)(callables.New(ctx, e.s, tr.fns, callables.Options{}))
		e.end = append(e.end, tr.set.Close)
	}
	same(t, "afterwards", tr.step(x, y), want)
	return reached
}

// tryForward runs the forwards and then discards their backwards, also after an error.
func (t *trainer) tryForward(x, y graphs.Tensor) error {
	in := []graphs.Tensor{x}
	var first *callables.Call
	for i, s := range sections {
		if s.name == "loss" {
			in = append(in, y)
		}
		c, err := t.set.At(i).Forward(t.s.DefaultStream(), args(in, s.grad...)...)
		if err != nil {
			if first != nil {
				err = errors.Join(err, first.Discard())
			}
			return err
		}
		if first == nil {
			first = c
		}
		in = append([]graphs.Tensor(nil), c.Outputs()...)
	}
	return first.Discard()
}

// TestFailedForwardKeepsResults makes each call of the device in a forward fail. The outputs and the gradient
// of the step before stay readable, and are stale only after the forward that succeeds.
func TestFailedForwardKeepsResults(t *testing.T) {
	g := hostRig()
	dev, inner := failing.New(g.dev), g.dev
	g.dev, g.stays = dev, true
	e := open(t, g, cubic)
	defer func() { e.close(); testkit.Check(t, inner.Close()) }()
	set := testkit.Must[*callables.Set](t)(callables.New(ctx, e.s, []callables.Function{polynomial(e, "f")}, callables.Options{}))
	e.end = append(e.end, set.Close)
	c, st := set.At(0), e.s.DefaultStream()
	x := args([]graphs.Tensor{e.tensor("x", slices.Repeat([]float32{2}, 64), 64)}, 0)
	call := testkit.Must[*callables.Call](t)(c.Forward(st, x...))
	y := call.Outputs()[0]
	d := testkit.Must[[]graphs.Tensor](t)(call.Backward(st, e.tensor("one", slices.Repeat([]float32{1}, 64), 64)))[0]
	for n := 1; ; n++ {
		dev.FailCall(n)
		next, err := c.Forward(st, x...)
		failed := dev.Failed()
		dev.FailCall(0)
		if !failed {
			testkit.Check(t, err)
			if n < 3 || !errors.Is(y.Err(), graphs.ErrStale) || !errors.Is(d.Err(), graphs.ErrStale) {
				t.Errorf("after %d failures: %v, %v, want stale results", n-1, y.Err(), d.Err())
			}
			testkit.Check(t, next.Discard())
			return
		}
		if !errors.Is(err, failing.ErrInjected) {
			t.Fatalf("call %d: %v", n, err)
		}
		if a, b := e.read(y)[0], e.read(d)[0]; a != 12 || b != 16 {
			t.Errorf("call %d failed: y is %g, its gradient %g; want 12, 16", n, a, b)
		}
	}
}
