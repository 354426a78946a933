package cli_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// onTerminal runs a command on a terminal with so many columns, 0 for unknown, and returns its output.
func onTerminal(t *testing.T, columns uint16, env string, args ...string) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer master.Close()
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns})
	}
	if err != nil {
		t.Skip(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.Command("pwc", args...)
	cmd.Env = append(cmd.Environ(), "PWC_CACHE=off", env)
	cmd.Stdout, cmd.Stderr = slave, slave
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	out, _ := io.ReadAll(master) // ends with an error when the other side is closed
	if err := cmd.Wait(); err != nil {
		t.Errorf("pwc %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// On a terminal bars and a status line show the current work; the line is removed before an answer.
func TestTerminal(t *testing.T) {
	requests := filepath.Join(t.TempDir(), "requests.jsonl")
	if err := os.WriteFile(requests, []byte("{\"ids\": [5], \"max_new\": 250}\n{\"ids\": [6], \"max_new\": 250}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const model = "../testdata/hf/llama"
	many := []string{"generate", model, "--ids-file", requests, "--mode", "piecewise", "--target", "host"}
	const drawn = `\r\x1b\[K[0-9.]+ tokens/s  [0-9]+ running, [0-9]+ waiting  piecewise [0-9]+ \([0-9]+ rows, [0-9]+% padding so far\)  KV [0-9]+ of [0-9]+ blocks`
	wide := onTerminal(t, 200, "TERM=xterm", many...)
	for _, want := range []string{`compiling.*[0-9]+/[0-9]+`, `capturing.*[0-9]+/[0-9]+`, drawn, `\r\x1b\[K0: [0-9]+ `} {
		if !regexp.MustCompile(want).MatchString(wide) {
			t.Errorf("the terminal does not show %s:\n%q", want, wide)
		}
	}
	if s := regexp.MustCompile(`\x1b\[[0-9;]*m`).FindString(wide); s != "" {
		t.Errorf("colours: %q", s)
	}
	for columns, most := range map[uint16]int{40: 39, 0: 79} {
		for _, line := range regexp.MustCompile(`\x1b\[K([0-9.]+ tokens/s[^\r\n]*)`).FindAllStringSubmatch(onTerminal(t, columns, "TERM=xterm", many...), -1) {
			if len(line[1]) != most {
				t.Errorf("%d columns: a line of %d bytes, want it cut at %d: %q", columns, len(line[1]), most, line[1])
			}
		}
	}
	if out := onTerminal(t, 80, "TERM=dumb", many...); strings.ContainsAny(out, "\x1b") || strings.Contains(out, "running") {
		t.Errorf("drawn on a terminal that cannot: %q", out)
	}
	// A status line would overwrite streamed tokens.
	if out := onTerminal(t, 80, "TERM=xterm", "generate", model, "--ids", "5", "--max-new", "250"); strings.Contains(out, "running") {
		t.Errorf("a line among the tokens: %q", out)
	}
	// A word that is longer than its column is a line of its own, no matter how narrow the column is.
	if out := onTerminal(t, 20, "TMPDIR="+t.TempDir(), "doctor"); !strings.Contains(out, "replays") || strings.Contains(out, "panic") {
		t.Errorf("doctor on 20 columns:\n%s", out)
	}
	for line := range strings.SplitSeq(onTerminal(t, 70, "TERM=xterm", "split", model, "--func", "forward"), "\r\n") {
		if n := len([]rune(line)); n > 70 {
			t.Errorf("a table's line of %d columns: %q", n, line)
		}
	}
}
