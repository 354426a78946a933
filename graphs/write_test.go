package graphs_test

import (
	"errors"
	"testing"

	"pwc/graphs"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
)

// TestWriteAfterRelease: Write refuses a tensor without owners, whose memory another tensor may have.
func TestWriteAfterRelease(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	x := testkit.Must[graphs.Tensor](t)(e.s.Tensor("x", dtype.F32, 8))
	testkit.Check(t, x.Release())
	y := e.tensor("y", 1)
	if err := e.s.Write(x, make([]byte, 32)); !errors.Is(err, graphs.ErrReleased) {
		t.Errorf("Write to a released tensor: %v, want ErrReleased", err)
	}
	if got := e.read(y); got[0] != 1 {
		t.Errorf("y is %v after a write to a released tensor", got)
	}
	drop(t, y)
}
