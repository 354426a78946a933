package graphs_test

import (
	"errors"
	"testing"

	"pwc/graphs"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
)

// TestEagerInPool: a replay that would overwrite an eager tensor of the graph's pool is refused, also if
// the tensor's recorder is scoped.
func TestEagerInPool(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	x := e.tensor("x", 1)
	pool := e.s.NewPool("shared")
	for _, scoped := range []bool{false, true} {
		g := e.capture(graphs.Options{Name: "g", Pool: pool}, func(r *graphs.Recorder) { drop(t, e.run(r, "add1", x)) })
		st := testkit.Must[*graphs.Stream](t)(e.s.CaptureStream(0)) // blocks of a pool belong to a stream
		r := e.s.EagerIn(pool, st)
		if scoped {
			r = r.Scoped()
		}
		testkit.Check(t, st.Wait(e.s.DefaultStream()))
		y := testkit.Must[graphs.Tensor](t)(r.Clone("y", x)) // in the memory of the result of add1
		if err := g.Replay(st); !errors.Is(err, graphs.ErrHeld) {
			t.Errorf("scoped %v: %v, want ErrHeld", scoped, err)
		}
		drop(t, y)
		e.reset(g)
	}
	testkit.Check(t, pool.Release())
	drop(t, x)
}

// TestReleaseMadeEmpty: ReleaseMade releases a tensor without elements.
func TestReleaseMadeEmpty(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	r := e.s.Eager(e.s.DefaultStream()).Scoped()
	testkit.Must[graphs.Tensor](t)(r.Alloc("empty", dtype.F32, 0))
	testkit.Check(t, r.ReleaseMade(nil))
}
