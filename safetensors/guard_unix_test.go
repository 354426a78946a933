//go:build unix

package safetensors

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"pwc/ir/dtype"
)

// A read of a file that was truncated while it is mapped is an error of Guard, also after Close if
// the file is retained. Guard does not catch other panics.
func TestTruncatedWhileMapped(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, SingleFile)
	const size = 1 << 20
	if err := Write(path, []Tensor{{Name: "w", DType: dtype.U8, Shape: []int64{size}, Data: make([]byte, size)}}, nil); err != nil {
		t.Fatal(err)
	}
	set, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	w, err := set.Tensor("w")
	if err != nil {
		t.Fatal(err)
	}
	if err := Guard(set, func() error { Touch(w.Data); return nil }); err != nil {
		t.Fatalf("before: %v", err)
	}
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func(){
		"touch": func() { Touch(w.Data) },
		"copy":  func() { copy(make([]byte, size), w.Data) },
		"equal": func() { bytes.Equal(make([]byte, size), w.Data) },
	} {
		var fault *FaultError
		if err := Guard(set, func() error { read(); return nil }); !errors.As(err, &fault) || fault.File != path {
			t.Errorf("%s: %v", name, err)
		}
	}

	// Guard handles only faults of its source: a fault of another source reaches the outer
	// Guard, which knows the file.
	var fault *FaultError
	err = Guard(set, func() error { return Guard(source{}, func() error { Touch(w.Data); return nil }) })
	if !errors.As(err, &fault) {
		t.Errorf("a guard of another source: %v", err)
	}
	for name, wrong := range map[string]func(){
		"a panic":       func() { panic("mine") },
		"a nil pointer": func() { var p *int; *p = 1 },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was swallowed", name)
				}
			}()
			_ = Guard(set, func() error { wrong(); return nil })
		}()
	}
	release, err := set.Retain()
	if err != nil {
		t.Fatal(err)
	}
	if err := set.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Guard(set, func() error { Touch(w.Data); return nil }); !errors.As(err, &fault) || fault.File != path {
		t.Errorf("closed, but retained: %v", err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	mine := errors.New("mine")
	if err := Guard(set, func() error { return mine }); err != mine {
		t.Errorf("the error of read: %v", err)
	}
}

// source maps no file.
type source struct{ Source }
