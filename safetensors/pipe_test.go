//go:build unix

package safetensors

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPipes: pipes without a writer in the places of files are refused without waiting.
func TestPipes(t *testing.T) {
	for _, name := range []string{SingleFile, IndexFile} {
		dir := t.TempDir()
		if err := unix.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Skip(err)
		}
		if _, err := OpenDir(dir); err == nil || !strings.Contains(err.Error(), name+": not a regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
