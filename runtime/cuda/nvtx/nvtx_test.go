package nvtx

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// TestNotFound: without the library, the error says where it was looked for, and Enter and Leave of
// nil do nothing.
func TestNotFound(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.so")
	l, err := Open(Options{Path: none})
	var missing *NotFoundError
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), none) {
		t.Fatalf("%v", err)
	}
	l.Enter("a")
	l.Leave()
}

// TestRanges calls the library and checks that a range allocates no Go memory. It does not check that a
// profiler sees the ranges.
func TestRanges(t *testing.T) {
	l, err := Open(Options{})
	if err != nil {
		t.Skip(err)
	}
	t.Log(l.Path())
	l.Enter("warm")
	l.Leave()
	if n := testing.AllocsPerRun(100, func() {
		l.Enter("outer")
		l.Enter("inner")
		l.Leave()
		l.Leave()
	}); n != 0 {
		t.Errorf("two ranges allocate %v times", n)
	}
}
