//go:build linux && (amd64 || arm64)

package dl

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

// libc opens the C library. A machine without libc.so.6 skips the test.
func libc(t *testing.T) *Library {
	t.Helper()
	l, err := Open("the C library", "", []string{"libc.so.nothing", "libc.so.6"})
	if err != nil {
		t.Skip(err)
	}
	return l
}

func TestCalls(t *testing.T) {
	l := libc(t)
	if l.Path != "libc.so.6" {
		t.Errorf("opened %q", l.Path)
	}
	strlen, err := l.Symbol("strlen")
	if err != nil {
		t.Fatal(err)
	}
	memcmp, err := l.Symbol("memcmp")
	if err != nil {
		t.Fatal(err)
	}
	text, other := []byte("hello\x00"), []byte("hellp\x00")
	if n := Call(strlen, uintptr(unsafe.Pointer(&text[0]))); n != 5 {
		t.Errorf("strlen is %d", n)
	}
	var c Caller
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for n := range uintptr(6) {
				r := int32(c.Call(memcmp, uintptr(unsafe.Pointer(&text[0])), uintptr(unsafe.Pointer(&other[0])), n, 0))
				if (r != 0) != (n == 5) {
					t.Errorf("memcmp of %d bytes is %d", n, r)
				}
			}
		})
	}
	wg.Wait()
	if n := testing.AllocsPerRun(100, func() { c.Call(strlen, uintptr(unsafe.Pointer(&text[0])), 0, 0, 0) }); n != 0 {
		t.Errorf("a call allocates %v times", n)
	}
	args := []uintptr{uintptr(unsafe.Pointer(&text[0])), uintptr(unsafe.Pointer(&other[0])), 5}
	if r := int32(CallWith(memcmp, args)); r == 0 {
		t.Error("memcmp of other bytes is 0")
	}
	if n := testing.AllocsPerRun(100, func() { CallWith(memcmp, args) }); n != 0 {
		t.Errorf("CallWith allocates %v times", n)
	}
	_, err = l.Symbol("no_such_function")
	var missing *SymbolError
	if !errors.As(err, &missing) || missing.Symbol != "no_such_function" || !strings.Contains(err.Error(), "libc.so.6") {
		t.Errorf("%v", err)
	}
}

func TestNotFound(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.so")
	if err := os.WriteFile(text, []byte("no library"), 0o666); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(dir, "none.so")
	_, err := Open("the library of tests", "install it", []string{none, text})
	var missing *NotFoundError
	if !errors.As(err, &missing) || len(missing.Attempts) != 2 {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"the library of tests was not found", none, "No such file", text, "install it"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

// TestNotFoundText: the error lists names and folders without the file once each, and every other
// attempt with its reason.
func TestNotFoundText(t *testing.T) {
	e := &NotFoundError{Library: "the library", Advice: "install it", Attempts: []Attempt{
		{"lib.so.2", missing}, {"lib.so.1", "lib.so.1: " + missing}, {"/a/lib.so.2", missing}, {"/a/lib.so.1", "file too short"},
		{"/b/lib.so.2", missing}, {"/b/lib.so.1", missing}, {"/c/other.so", missing}}}
	want := "the library was not found; looked for lib.so.2, lib.so.1 by the loader's own rules; in /a, /b; /a/lib.so.1 (file too short); /c/other.so (" + missing + "); install it"
	if got := e.Error(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestToolkitPaths(t *testing.T) {
	for _, c := range []struct {
		in   Toolkit
		want []string
	}{
		{Toolkit{Path: "/x/lib.so", Names: []string{"a"}, Dirs: []string{"/d"}}, []string{"/x/lib.so"}},
		{Toolkit{Names: []string{"b.so.2", "b.so.1"}, Dirs: []string{"/d", "/e"}},
			[]string{"b.so.2", "b.so.1", "/d/b.so.2", "/d/b.so.1", "/e/b.so.2", "/e/b.so.1"}},
		{Toolkit{Names: []string{"b"}, Dirs: []string{}}, []string{"b"}},
	} {
		if got := c.in.Paths(); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.in, got, c.want)
		}
	}
	t.Setenv("CUDA_HOME", "/home/cuda")
	if got := (Toolkit{Names: []string{"b"}}).Paths(); !slices.Contains(got, "/home/cuda/lib64/b") || !slices.Contains(got, "/usr/local/cuda/lib64/b") {
		t.Errorf("%q, want folders of $CUDA_HOME and of NVIDIA's installer among them", got)
	}
}
