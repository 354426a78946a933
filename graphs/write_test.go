package graphs_test

import (
	"errors"
	"testing"

	"pwc/graphs"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
)

// TestEmptyShapes: a tensor with a dimension of 0 has 0 bytes, even if the product of the other dimensions
// overflows. A negative dimension is refused.
func TestEmptyShapes(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	for _, shape := range [][]int64{{1 << 62, 4, 0}, {0, 1 << 62, 4}} {
		x, err := e.s.Tensor("x", dtype.F32, shape...)
		if err != nil || x.Size() != 0 {
			t.Errorf("shape %v: %d bytes, %v, want 0", shape, x.Size(), err)
		}
		drop(t, x)
	}
	if _, err := e.s.Tensor("x", dtype.F32, 0, -1); err == nil {
		t.Error("a negative dimension is not refused")
	}
}

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
