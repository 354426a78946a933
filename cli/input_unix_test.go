//go:build unix

package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pwc/cli"
)

// TestInputsAreNotWaitedFor gives commands pipes without a writer, and devices, as inputs. Each call
// fails; a plain open of a pipe would block.
func TestInputsAreNotWaitedFor(t *testing.T) {
	t.Setenv("PWC_CACHE", "off")
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	checkpoint := filepath.Join(dir, "checkpoint")
	if err := os.Mkdir(checkpoint, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pipe, pipe + ".json", filepath.Join(checkpoint, "config.json")} {
		if err := syscall.Mkfifo(name, 0o600); err != nil {
			t.Skip(err)
		}
	}
	for _, args := range []string{
		"check " + pipe, "check /dev/zero", "fmt " + pipe, "import " + pipe + ".json", "import " + checkpoint,
		"run ../testdata/nineteen.ir --in " + pipe, "run ../testdata/hf/llama --weights " + checkpoint,
		"generate ../testdata/hf/llama --ids-file " + pipe, "generate ../testdata/hf/llama --ids-file /dev/zero",
		"cache import " + pipe,
	} {
		if strings.HasPrefix(args, "cache") {
			t.Setenv("PWC_CACHE", "on")
			t.Setenv("PWC_CACHE_DIR", filepath.Join(dir, "cache"))
		}
		var stderr bytes.Buffer
		if code := cli.Run(t.Context(), strings.Fields(args), strings.NewReader(""), &bytes.Buffer{}, &stderr); code == 0 {
			t.Errorf("pwc %s: exit code 0, standard error\n%s", args, &stderr)
		}
	}
}

// TestModuleFromPipe reads a module from a pipe whose writer has written it and closed the pipe, as in a shell's
// process substitution.
func TestModuleFromPipe(t *testing.T) {
	text, err := os.ReadFile("../testdata/nineteen.ir")
	if err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	w, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	hold, err := os.OpenFile(pipe, os.O_RDONLY, 0) // keeps the written bytes when w is closed
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	w.Close()
	var stdout, stderr bytes.Buffer
	if code := cli.Run(t.Context(), []string{"split", pipe}, strings.NewReader(""), &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "5 pieces") {
		t.Errorf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
}
