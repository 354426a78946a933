package graphs_test

import (
	"errors"
	"testing"

	"pwc/graphs"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/runtime/device"
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

// TestOtherSession: a tensor of another session is refused, eagerly, in a capture and in an update. So are a
// replay on a stream of another session and a wait for it.
func TestOtherSession(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	other := testkit.Must[*graphs.Session](t)(graphs.NewSession(e.dev, graphs.SessionOptions{}))
	var st *graphs.Stream
	for range 3 {
		st = testkit.Must[*graphs.Stream](t)(other.NewStream("far"))
	}
	r := other.Eager(st)
	x := testkit.Must[graphs.Tensor](t)(r.Alloc("x", dtype.F32, 8))
	testkit.Check(t, r.Fill(x, 0))
	y := e.tensor("y", 1)
	_, cloned := e.s.Clone("c", x)
	g := e.capture(graphs.Options{Name: "g", KeepTemplate: true}, func(r *graphs.Recorder) { drop(t, e.run(r, "add1", y)) })
	for what, err := range map[string]error{
		"Copy":  e.s.Eager(e.s.DefaultStream()).Copy(y, x),
		"Fill":  e.s.Eager(e.s.DefaultStream()).Fill(x, 0),
		"Read":  e.s.Read(x, make([]byte, 32)),
		"Write": e.s.Write(x, make([]byte, 32)),
		"Clone": cloned,
		"a capture": func() error {
			_, err := graphs.Capture(ctx, e.s, graphs.Options{}, func(r *graphs.Recorder) error { return r.Copy(y, x) })
			return err
		}(),
		"an update": g.Update(graphs.Move{From: y, To: x}),
	} {
		if !errors.Is(err, device.ErrForeignBuffer) {
			t.Errorf("%s: %v, want ErrForeignBuffer", what, err)
		}
	}
	for what, err := range map[string]error{"Replay": g.Replay(st), "Wait": e.s.DefaultStream().Wait(st)} {
		if !errors.Is(err, graphs.ErrArguments) {
			t.Errorf("%s: %v, want ErrArguments", what, err)
		}
	}
	e.reset(g)
	drop(t, x, y)
	testkit.Check(t, other.Close())
}
