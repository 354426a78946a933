package graphs_test

import (
	"slices"
	"testing"

	"pwc/graphs"
	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/runtime/cuda"
)

// TestSecondStreamKeepsMemory holds that memory is not reused while a second stream still reads it, in
// an enqueued copy or in a replay, although its tensor was released. The test's driver executes work
// only when it is waited for.
func TestSecondStreamKeepsMemory(t *testing.T) {
	drv := fake.New(fake.Options{Schedule: fake.Lazy})
	dev := testkit.Must[*cuda.Device](t)(cuda.Open(cuda.Options{Driver: drv}))
	s := testkit.Must[*graphs.Session](t)(graphs.NewSession(dev, graphs.SessionOptions{}))
	side := testkit.Must[*graphs.Stream](t)(s.NewStream("side"))
	old, other := slices.Repeat([]byte{1}, 64), slices.Repeat([]byte{2}, 64)
	got := make([]byte, 64)
	for _, replayed := range []bool{false, true} {
		x := testkit.Must[graphs.Tensor](t)(s.TensorOf("x", old, dtype.U8, 64))
		at := x.Range()
		testkit.Check(t, side.Wait(s.DefaultStream()))
		y := testkit.Must[graphs.Tensor](t)(s.Eager(side).Alloc("y", dtype.U8, 64))
		var g *graphs.Graph
		if replayed {
			g = testkit.Must[*graphs.Graph](t)(graphs.Capture(ctx, s, graphs.Options{Name: "g"}, func(r *graphs.Recorder) error { return r.Copy(y, x) }))
			testkit.Check(t, side.Wait(s.DefaultStream()))
			testkit.Check(t, g.Replay(side))
		} else {
			testkit.Check(t, s.Eager(side).Copy(y, x))
		}
		drop(t, x)
		z := testkit.Must[graphs.Tensor](t)(s.TensorOf("z", other, dtype.U8, 64))
		if z.Range() == at {
			t.Errorf("replayed %v: reused while it is read", replayed)
		}
		testkit.Check(t, s.Read(y, got)) // after the copy
		if !slices.Equal(got, old) {
			t.Errorf("replayed %v: read %v, want %v", replayed, got, old)
		}
		w := testkit.Must[graphs.Tensor](t)(s.TensorOf("w", other, dtype.U8, 64))
		if w.Range() != at {
			t.Errorf("replayed %v: at %v after the read, want %v", replayed, w.Range(), at)
		}
		drop(t, y, z, w)
		if g != nil {
			testkit.Check(t, g.Reset())
		}
		testkit.Must[int64](t)(s.EmptyCache())
	}
	testkit.Check(t, s.Close())
	testkit.Check(t, dev.Close())
	if l, m := drv.Leaks(), drv.Misuse(); len(l) > 0 || len(m) > 0 {
		t.Errorf("left behind %q, misuse %q", l, m)
	}
}
