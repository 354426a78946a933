package openfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := Read(name, 5); err != nil || string(text) != "12345" {
		t.Errorf("5 bytes at a limit of 5: %q, %v", text, err)
	}
	var limit *LimitError
	if _, err := Read(name, 4); !errors.As(err, &limit) || *limit != (LimitError{name, 5, 4}) {
		t.Errorf("5 bytes at a limit of 4: %v, want a LimitError", err)
	}
	if err := os.Truncate(name, 1<<40); err != nil { // sparse: its size is compared before it is read
		t.Fatal(err)
	}
	if _, err := Read(name, 1<<20); !errors.As(err, &limit) || limit.Size != 1<<40 {
		t.Errorf("1 TiB at a limit of 1 MiB: %v, want a LimitError", err)
	}
	if _, err := Read(name+"x", 4); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v, want ErrNotExist", err)
	}
}

// TestDirWithoutAName: an empty name is no directory, in particular not the root of the file system.
func TestDirWithoutAName(t *testing.T) {
	if r, err := Dir(""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want ErrNotExist", err)
		if err == nil {
			r.Close()
		}
	}
}
