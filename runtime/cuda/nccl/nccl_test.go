//go:build linux && (amd64 || arm64)

package nccl_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pwc/ir/dtype"
	"pwc/runtime/cuda/nccl"
)

// build compiles testdata/nccl.c, whose functions have the C declarations of nccl.h.
func build(t *testing.T, version string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "libnccl.so.2")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-DVERSION="+version, "-o", path, "testdata/nccl.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// TestArguments compares the arguments that C functions get with those of the Go calls.
func TestArguments(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	// The C library sees only the environment with which its process started: a child runs the test.
	if os.Getenv("PWC_TEST_NCCL_LOG") == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestArguments$")
		c.Env = append(os.Environ(), "PWC_TEST_NCCL_LOG="+log)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	log = os.Getenv("PWC_TEST_NCCL_LOG")
	l, err := nccl.Open(nccl.Options{Path: build(t, "22809")})
	if err != nil {
		t.Fatal(err)
	}
	if l.Version() != 22809 || nccl.FormatVersion(l.Version()) != "2.28.9" {
		t.Errorf("version %d", l.Version())
	}
	id, err := l.UniqueID()
	if err != nil {
		t.Fatal(err)
	}
	comm, err := l.Init(4, 3, id)
	if err != nil || comm != 0x77 {
		t.Fatalf("communicator %#x, %v", comm, err)
	}
	c := nccl.Call{Comm: comm, Src: 0x1000, Dst: 0x2000, Count: 5_000_000_000, DType: dtype.BF16, Root: 2, Stream: 0x88}
	for c.Op = range nccl.Broadcast + 1 {
		if err := l.Enqueue(c); err != nil {
			t.Error(err)
		}
	}
	if err := l.AsyncError(comm); err != nil {
		t.Errorf("a call under way: %v", err)
	}
	var status *nccl.StatusError
	if err := l.AsyncError(1); !errors.As(err, &status) || status.Status != 6 || !strings.Contains(err.Error(), "another rank") {
		t.Errorf("a lost rank: %v", err)
	}
	if err := l.Destroy(1); !errors.As(err, &status) || status.Status != 4 {
		t.Errorf("destroy of an invalid communicator: %v", err)
	}
	if err := errors.Join(l.Abort(comm), l.Destroy(comm)); err != nil {
		t.Error(err)
	}
	c.DType = dtype.I32
	if err := l.Enqueue(c); err == nil || !strings.Contains(err.Error(), "want f32") {
		t.Errorf("elements of %s: %v", c.DType, err)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"init 4 3 1 896 (nil)", "all_reduce 0x1000 0x2000 5000000000 9 0 0x77 0x88", "all_gather 0x1000 0x2000 5000000000 9 0x77 0x88",
		"reduce_scatter 0x1000 0x2000 5000000000 9 0 0x77 0x88", "broadcast 0x1000 0x2000 5000000000 9 2 0x77 0x88", "abort 0x77"}
	if got := strings.Split(strings.TrimSpace(string(text)), "\n"); !slices.Equal(got, want) {
		t.Errorf("%q\nwant\n%q", got, want)
	}
}

// TestVersion: a library that is too old is refused. The error has its version and the earliest that
// is used.
func TestVersion(t *testing.T) {
	_, err := nccl.Open(nccl.Options{Path: build(t, "22205")})
	if err == nil || !strings.Contains(err.Error(), "is version 2.22.5; 2.23.0 or later is needed") {
		t.Error(err)
	}
}

func TestNotFound(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.so")
	_, err := nccl.Open(nccl.Options{Path: none})
	var missing *nccl.NotFoundError
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), none) || !strings.Contains(err.Error(), "NCCL") {
		t.Error(err)
	}
}
