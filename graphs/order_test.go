package graphs_test

import (
	"errors"
	"testing"

	"pwc/graphs"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
)

// TestReadersOnStreams: two streams read one tensor. A write that is ordered after only one of the reads
// is refused, eagerly and in a replay.
func TestReadersOnStreams(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	main := e.s.DefaultStream()
	one, two := testkit.Must[*graphs.Stream](t)(e.s.NewStream("one")), testkit.Must[*graphs.Stream](t)(e.s.NewStream("two"))
	x := e.tensor("x", 1)
	var y graphs.Tensor
	bump := e.capture(graphs.Options{Name: "bump"}, func(r *graphs.Recorder) { e.run(r, "bump", x) })
	add := e.capture(graphs.Options{Name: "add"}, func(r *graphs.Recorder) { y = e.run(r, "add1", x) })
	e.replay(add)
	for _, c := range []struct {
		what  string
		read  graphs.Tensor
		write func(st *graphs.Stream) error
	}{
		{"an eager write", x, func(st *graphs.Stream) error { return e.s.Eager(st).Fill(x, 0) }},
		{"a replay that writes an input", x, bump.Replay},
		{"a replay that writes a result", y, add.Replay},
	} {
		var copies []graphs.Tensor
		for _, st := range []*graphs.Stream{one, two} {
			testkit.Check(t, st.Wait(main))
			r := e.s.Eager(st)
			z := testkit.Must[graphs.Tensor](t)(r.Alloc("z", dtype.F32, 8))
			testkit.Check(t, r.Copy(z, c.read))
			copies = append(copies, z)
		}
		testkit.Check(t, main.Wait(two))
		var un *graphs.UnorderedError
		if err := c.write(main); !errors.As(err, &un) || un.Other != "one" {
			t.Errorf("%s is not ordered after stream one: %v", c.what, err)
		}
		testkit.Check(t, main.Wait(one))
		testkit.Check(t, c.write(main))
		drop(t, copies...)
	}
	e.reset(bump, add)
	drop(t, x, y)
}
