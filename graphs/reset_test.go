package graphs_test

import (
	"errors"
	"strings"
	"testing"

	"pwc/graphs"
)

// TestReadAfterReset: after the reset of its graph, a result without owners cannot be read, neither by a
// weak handle nor by a replay of another graph. The error says that the graph was reset. A result with an
// owner can be read.
func TestReadAfterReset(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	x := e.tensor("x", 1)
	var y, z graphs.Tensor
	g := e.capture(graphs.Options{Name: "g"}, func(r *graphs.Recorder) { y = e.run(r, "add1", x) })
	h := e.capture(graphs.Options{Name: "h"}, func(r *graphs.Recorder) { z = e.run(r, "add1", y) })
	drop(t, y)
	e.replay(g)
	e.replay(h)
	if got := e.sum(z); got != 24 {
		t.Errorf("z sums to %v, want 24", got)
	}
	e.reset(g)
	for what, err := range map[string]error{"a weak handle": y.Weak().Err(), "a replay": h.Replay(e.s.DefaultStream())} {
		if !errors.Is(err, graphs.ErrStale) || !strings.Contains(err.Error(), "result 0 of @add1 of generation 0 may be reused, because its graph was reset") {
			t.Errorf("%s after the reset: %v", what, err)
		}
	}
	e.reset(h)
	if got := e.sum(z); got != 24 {
		t.Errorf("after the reset, with an owner, z sums to %v, want 24", got)
	}
	drop(t, x, z)
}
