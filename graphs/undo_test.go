package graphs_test

import (
	"errors"
	"slices"
	"testing"

	"pwc/graphs"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
)

// TestUndo undoes a trial run: memory that the run wrote and did not make has its old contents again,
// and the generator its old state.
func TestUndo(t *testing.T) {
	e := open(t, 4)
	defer e.close()
	gen := e.s.NewGenerator(3)
	x, y := e.tensor("x", 1), e.tensor("y", 2)
	r := e.s.Eager(e.s.DefaultStream()).Undoable()
	own := testkit.Must[graphs.Tensor](t)(r.Clone("own", x))
	e.run(r, "bump", x)
	e.run(r, "bump2", x)
	testkit.Check(t, r.Fill(own, 0))
	testkit.Check(t, r.Copy(y, x))
	state := testkit.Must[graphs.Tensor](t)(r.Draw(gen, 8))
	if got := e.read(y); got[0] != 4 {
		t.Errorf("the trial left %v", got)
	}
	testkit.Check(t, r.ReleaseMade(nil))
	testkit.Check(t, r.Undo())
	testkit.Check(t, r.Undo())
	if a, b := e.read(x), e.read(y); a[3] != 1 || b[3] != 2 {
		t.Errorf("after Undo x is %v, y %v", a, b)
	}
	if s := testkit.Must[graphs.GeneratorState](t)(gen.State()); s != (graphs.GeneratorState{Seed: 3}) {
		t.Errorf("the generator is at %+v", s)
	}
	if !errors.Is(state.Err(), graphs.ErrReleased) {
		t.Errorf("the state is %v", state.Err())
	}
	// Memory that was overwritten has no contents to restore.
	pool := e.s.NewPool("shared")
	var a graphs.Tensor
	g0 := e.capture(graphs.Options{Name: "g0", Pool: pool}, func(r *graphs.Recorder) { a = e.run(r, "copy", x) })
	e.replay(g0)
	weak := a.Weak()
	drop(t, a)
	g1 := e.capture(graphs.Options{Name: "g1", Pool: pool}, func(r *graphs.Recorder) { testkit.Check(t, e.run(r, "add1", x).Release()) })
	e.replay(g1)
	if !errors.Is(weak.Err(), graphs.ErrStale) {
		t.Fatalf("a is %v", weak.Err())
	}
	r = e.s.Eager(e.s.DefaultStream()).Undoable()
	testkit.Check(t, r.Fill(weak, 0))
	testkit.Check(t, r.Undo())
	e.reset(g0, g1)
	testkit.Check(t, pool.Release())
	drop(t, x, y)
}

// TestDraw calls Draw in a capture: each replay writes the generator's next states to the tensors that
// Draw returned.
func TestDraw(t *testing.T) { drawn(t, open) }

func drawn(t *testing.T, open opener) {
	t.Helper()
	e := open(t, 4)
	defer e.close()
	gen, other := e.s.NewGenerator(3), e.s.NewGenerator(4)
	var a, b graphs.Tensor
	g := e.capture(graphs.Options{Name: "g", Generators: []*graphs.Generator{gen}}, func(r *graphs.Recorder) {
		a, b = testkit.Must[graphs.Tensor](t)(r.Draw(gen, 8)), testkit.Must[graphs.Tensor](t)(r.Draw(gen, 4))
		if _, err := r.Draw(other, 4); !errors.Is(err, graphs.ErrGenerator) {
			t.Errorf("a generator that is not listed: %v", err)
		}
	})
	at := func(x graphs.Tensor) []byte {
		out := make([]byte, 16)
		testkit.Check(t, e.s.Read(x, out))
		return out
	}
	for i := range byte(3) {
		e.replay(g)
		if got, want := at(a), []byte{3, 0, 0, 0, 0, 0, 0, 0, 12 * i, 0, 0, 0, 0, 0, 0, 0}; !slices.Equal(got, want) {
			t.Errorf("replay %d: the first draw is at %v, want %v", i, got, want)
		}
		if got := at(b); got[8] != 12*i+8 {
			t.Errorf("replay %d: the second draw is at %v", i, got)
		}
	}
	if _, err := e.s.Eager(e.s.DefaultStream()).Draw(gen, 5); !errors.Is(err, graphs.ErrGenerator) {
		t.Errorf("an offset that is not a multiple of 4: %v", err)
	}
	now := testkit.Must[graphs.Tensor](t)(e.s.Eager(e.s.DefaultStream()).Draw(gen, 4))
	if got := at(now); got[8] != 36 || now.DType() != dtype.I64 {
		t.Errorf("an eager draw is at %v", got)
	}
	s := testkit.Must[*graphs.Session](t)(graphs.NewSession(e.dev, graphs.SessionOptions{}))
	if _, err := s.Eager(s.DefaultStream()).Draw(gen, 4); !errors.Is(err, graphs.ErrGenerator) {
		t.Errorf("a generator of another session: %v", err)
	}
	testkit.Check(t, s.Close())
	e.reset(g)
	drop(t, a, b, now)
}
