//go:build unix

package openfile

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestNotRegular opens pipes without a writer, directories, devices and sockets in place of
// files. Without O_NONBLOCK this test would block forever.
func TestNotRegular(t *testing.T) {
	dir := t.TempDir()
	fifo, socket := filepath.Join(dir, "fifo"), filepath.Join(dir, "socket")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Skip(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Symlink("fifo", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	root, err := Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for name, kind := range map[string]string{fifo: "(a named pipe)", filepath.Join(dir, "link"): "(a named pipe)", dir: "(a directory)", "/dev/null": "(a device)", socket: ""} {
		if f, _, err := Regular(name); err == nil {
			f.Close()
			t.Errorf("%s was opened", name)
		} else if name != socket && !errors.Is(err, ErrNotRegular) || !strings.Contains(err.Error(), kind) {
			t.Errorf("%s: %v, want ErrNotRegular and %q", name, err, kind)
		}
		if _, err := Read(name, 10); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	for _, name := range []string{"fifo", "link", ".", "socket"} {
		if f, _, err := RegularIn(root, name); err == nil {
			f.Close()
			t.Errorf("%s was opened in a root", name)
		}
	}
	for _, name := range []string{"fifo", "link", "socket", "none"} {
		if r, err := DirIn(root, name); err == nil {
			r.Close()
			t.Errorf("%s was opened as a directory in a root", name)
		}
	}
	for _, name := range []string{"/dev/zero", dir} {
		if f, _, err := Stream(name); err == nil {
			f.Close()
			t.Errorf("%s was opened as a stream", name)
		}
	}
	for _, name := range []string{fifo, filepath.Join(dir, "link"), "/dev/null", filepath.Join(dir, "none")} {
		if r, err := Dir(name); err == nil {
			r.Close()
			t.Errorf("%s was opened as a directory", name)
		}
	}
	if _, err := Dir(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// TestStream reads a pipe with a writer, and one without.
func TestStream(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Skip(err)
	}
	f, info, err := Stream(fifo)
	if err != nil || info.Mode().IsRegular() {
		t.Fatal(info, err)
	}
	if text, err := ReadAll(f, 10); err != nil || len(text) != 0 {
		t.Errorf("without a writer: %q, %v", text, err)
	}
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "some text"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if text, err := ReadAll(f, 10); err != nil || string(text) != "some text" {
		t.Errorf("with a writer: %q, %v", text, err)
	}
	f.Close()
}
