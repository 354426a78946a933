package tree_test

import (
	"errors"
	"slices"
	"testing"

	"pwc/graphs"
	"pwc/graphs/tree"
	"pwc/internal/testkit"
	"pwc/runtime/device/failing"
)

// TestEveryCallFails makes the n-th call of the device fail, for every n of a small
// scenario with warm-up, recording, replay and a restore of the pool. A call returns the injected error or
// succeeds, no capture is left open, nothing leaks, and the manager works afterwards.
func TestEveryCallFails(t *testing.T) {
	everyCallFails(t, hostRig)
}

// TestEveryCallFailsWithCarriedInput makes the n-th call of the device fail, for every n of s = fee(s),
// where each call starts a generation and reads an output of the one before. No storage keeps an owner,
// and the session can be closed. A call returns the injected error or, for example if an event for a freed
// block is recorded later, succeeds.
func TestEveryCallFailsWithCarriedInput(t *testing.T) {
	for n := 1; ; n++ {
		g := hostRig()
		dev := failing.New(g.dev)
		e := openWrapped(t, g, dev, tree.Options{Check: true, Generations: tree.ByCall})
		fee := e.add("fee")
		x := e.tensor(0, 1, 2, 3)
		dev.FailCall(n)
		s := x
		var err error
		for i := 0; i < 5 && err == nil; i++ {
			var out []graphs.Tensor
			if out, err = fee.Call(tree.Borrow(s), nil); err == nil {
				s = out[0]
			}
		}
		reached := dev.Failed()
		dev.FailCall(0)
		if !s.Same(x) && s.Err() == nil {
			drop(t, s)
		}
		drop(t, x)
		testkit.Check(t, e.m.Close())
		if left := e.s.Live(); left.Storages > 0 {
			t.Errorf("%+v is left: %+v", left, e.s.Forgotten())
		}
		e.close()
		if t.Failed() {
			t.Fatalf("call %d", n)
		}
		if err != nil && !errors.Is(err, failing.ErrInjected) {
			t.Errorf("call %d: the error is %v", n, err)
		}
		if !reached {
			if n < 20 {
				t.Errorf("the scenario has only %d calls", n-1)
			}
			return
		}
	}
}

// everyCallFails makes each call fail in turn, with a new manager for each.
func everyCallFails(t *testing.T, open func() rig) {
	t.Helper()
	for n := 1; ; n++ {
		if !failNth(t, open(), n) {
			if n < 40 {
				t.Errorf("the scenario has only %d calls", n-1)
			}
			t.Logf("%d calls", n-1)
			return
		}
		if t.Failed() {
			t.Fatalf("call %d", n)
		}
	}
}

// failNth reports whether the n-th call was reached.
func failNth(t *testing.T, g rig, n int) bool {
	dev := failing.New(g.dev)
	e := openWrapped(t, g, dev, tree.Options{Check: true})
	defer e.close()
	foo, fee := e.add("foo"), e.add("fee")
	x := e.tensor(0, 1, 2, 3)
	// step runs foo, drops a if asked to, and runs fee on b. After an error it stops and drops its
	// tensors.
	step := func(dropA bool) {
		e.m.MarkStep()
		note := func(err error) {
			if !errors.Is(err, failing.ErrInjected) {
				t.Errorf("call %d: the error is %v", n, err)
			}
		}
		out, err := foo.Call(tree.Borrow(x), nil)
		if err != nil {
			note(err)
			return
		}
		a, b := out[0], out[1]
		if dropA {
			drop(t, a)
		}
		out, err = fee.Call([]tree.Input{{Tensor: b}}, nil)
		if err != nil {
			note(err)
		} else {
			drop(t, out[0])
		}
		drop(t, b)
		if !dropA {
			drop(t, a)
		}
	}
	dev.FailCall(n)
	for range 3 {
		step(true)
	}
	step(false)
	step(true)
	reached := dev.Failed()
	dev.FailCall(0)
	// The manager then works as if no call had failed.
	for range 3 {
		e.m.MarkStep()
		out := e.call(foo, x)
		c := e.call(fee, out[1])
		if got := e.read(c[0]); !slices.Equal(got, []float32{8, 12, 16, 20}) {
			t.Errorf("call %d: fee gives %v", n, got)
		}
		if got := e.read(out[0]); !slices.Equal(got, []float32{1, 2, 3, 4}) {
			t.Errorf("call %d: foo gives %v", n, got)
		}
		drop(t, out...)
		drop(t, c...)
	}
	if in := testkit.Must[tree.Inspection](t)(e.m.Inspect()); in.State != tree.Execution {
		t.Errorf("call %d: at the end the state is %s", n, in.State)
	}
	drop(t, x)
	return reached
}
