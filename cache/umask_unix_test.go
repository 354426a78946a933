//go:build unix

package cache

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestMadeForNobodyElse: even with umask 0, others cannot write the files and directories that a
// store makes, so it trusts its own directory.
func TestMadeForNobodyElse(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	s, j := logged(filepath.Join(t.TempDir(), "cache"))
	fill(t, s, "toy", 2)
	if _, err := s.Pin(t.Context(), "toy"); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), gpuKey(), []byte("machine code"), testProvenance); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(s.Dir(), func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(name)
		if err == nil && info.Mode()&0o002 != 0 {
			t.Errorf("%s: %v", name, info.Mode())
		}
		if err == nil && strings.Contains(name, "/locks/") && info.Mode().Perm() != 0o660 {
			t.Errorf("%s: %v, want -rw-rw----: others could lock it", name, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := s.Get(t.Context(), gpuKey()); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	wantQuiet(t, j)
}

// TestReadersCannotLock pins the modes of lock files, because a process that can read one can lock
// it. A lock file with another mode, of an older version, is corrected.
func TestReadersCannotLock(t *testing.T) {
	for umask, want := range map[int]fs.FileMode{0o022: 0o600, 0o077: 0o600, 0o002: 0o660, 0o027: 0o600} {
		old := syscall.Umask(umask)
		s, _ := logged(filepath.Join(t.TempDir(), "cache"))
		unlock, err := s.Lock(t.Context(), testKey(0))
		syscall.Umask(old)
		if err != nil {
			t.Fatal(err)
		}
		locks := filepath.Join(s.Dir(), "v1", locksDir)
		write(t, filepath.Join(locks, gcLock), nil)
		if err := os.Chmod(filepath.Join(locks, gcLock), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := s.Put(t.Context(), testKey(1), testBlob(1), testProvenance); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{gcLock, testKey(0).id().String()} {
			if info, err := os.Stat(filepath.Join(locks, name)); err != nil || info.Mode().Perm() != want {
				t.Errorf("umask %03o: %s: %v, %v; want %v", umask, name, info.Mode(), err, want)
			}
		}
		unlock()
	}
}
