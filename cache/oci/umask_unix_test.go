//go:build unix

package oci

import (
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"
)

// TestExportUmask checks that exported files have no permission that the umask removes.
func TestExportUmask(t *testing.T) {
	from, dir := filled(t, 1), t.TempDir()
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	mustExport(t, from, filepath.Join(dir, "layout.tar"), Options{})
	mustExport(t, from, filepath.Join(dir, "layout"), Options{})
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %s", name, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
