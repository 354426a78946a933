package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"pwc/cli"
)

// A signal ends a generation: the line of the answer is marked as incomplete, and the last line of
// standard error names the signal.
func TestSignal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no signals to send")
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd := exec.Command("pwc", "generate", "../testdata/hf/llama", "--ids", "5", "--max-new", "200000", "--context", "200001", "--ignore-eos")
		cmd.Env = append(cmd.Environ(), "PWC_CACHE=off")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(out)
		if err != nil || !strings.HasSuffix(string(rest), " (incomplete: canceled)\n") {
			t.Errorf("%v: want (incomplete: canceled) at the end of the answer: %v, %q", sig, err, rest[max(0, len(rest)-20):])
		}
		err = cmd.Wait()
		if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 1 {
			t.Errorf("%v: %v, want exit code 1", sig, err)
		}
		if !strings.HasSuffix(stderr.String(), "\npwc: "+sig.String()+" signal received\n") || strings.Contains(stderr.String(), "canceled") {
			t.Errorf("%v: standard error is\n%s", sig, &stderr)
		}
	}
}

// Prometheus can scrape the counters of a running command.
func TestMetricsAreServed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, "pwc", "generate", "-v", "../testdata/hf/llama", "--ids", "5", "--max-new", "200000", "--context", "200001", "--ignore-eos", "--metrics", "127.0.0.1:0")
	cmd.Env = append(cmd.Environ(), "PWC_CACHE=off")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cancel()
	url := ""
	lines := bufio.NewScanner(stderr)
	for url == "" && lines.Scan() {
		_, url, _ = strings.Cut(lines.Text(), "msg=metrics url=")
	}
	go io.Copy(io.Discard, stderr)
	if _, err := io.ReadFull(out, make([]byte, 4096)); err != nil { // some hundred tokens
		t.Fatal(err)
	}
	go io.Copy(io.Discard, out)
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(res.Status, err)
	}
	for _, want := range []string{`pwc_requests_running 1`, `pwc_runs_total{function="forward",mode="full",size="1"} [1-9][0-9]{2}`, `pwc_tokens_sampled_total [1-9]`, `pwc_kv_blocks_used [1-9]`} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// After an interrupt before the command begins, only the cause is printed.
func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("why it was"))
	var stdout, stderr bytes.Buffer
	t.Setenv("PWC_CACHE", "off")
	code := cli.Run(ctx, []string{"generate", "../testdata/hf/llama", "--ids", "5", "--json"}, strings.NewReader(""), &stdout, &stderr)
	if code != 1 || stdout.String() != "{\"error\":\"why it was\"}\n" || stderr.String() != "pwc: why it was\n" {
		t.Errorf("%d\n%s%s", code, &stdout, &stderr)
	}
}

// A canceled context ends every top-level command except help before it prints anything, with the cause
// as the error.
func TestEveryCommandEnds(t *testing.T) {
	t.Setenv("PWC_CACHE", "off")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("why it was"))
	var help bytes.Buffer
	if code := cli.Run(t.Context(), []string{"--help"}, strings.NewReader(""), &help, io.Discard); code != 0 {
		t.Fatal(code)
	}
	_, list, _ := strings.Cut(help.String(), "Available Commands:\n")
	calls := map[string]string{
		"bench": "bench ../testdata/hf/llama", "bench-serve": "bench-serve ../testdata/hf/llama", "cache": "cache ls", "check": "check ../testdata/nineteen.ir", "compile": "compile ../testdata/nineteen.ir",
		"doctor": "doctor", "example": "example", "graphs": "graphs run none.txtar", "fmt": "fmt ../testdata/nineteen.ir", "generate": "generate ../testdata/hf/llama --ids 5", "help": "",
		"import": "import ../testdata/hf/llama", "run": "run ../testdata/nineteen.ir --rows 2", "split": "split ../testdata/nineteen.ir",
		"train": "train ../testdata/train/mlp.ir --data ../testdata/train/mlp/data.safetensors --steps 1",
		"grad":  "grad ../testdata/train/ops/mul.ir", "tune": "tune ../testdata/hf/llama --target cuda", "serve": "serve ../testdata/hf/llama --tokenizer ../testdata/tokenizers/bytes", "tokenize": "tokenize ../testdata/tokenizers/bytes --text a", "inspect": "inspect ../testdata/nineteen.ir -o none.html", "verify": "verify ../testdata/nineteen.ir --rows 2", "version": "version",
		"completion": "completion bash", "man": "man none",
	}
	commands := 0
	for line := range strings.Lines(list) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" {
			break
		}
		commands++
		args, ok := calls[name]
		if !ok {
			t.Errorf("no call of command %s", name)
		}
		if args == "" {
			continue // help only prints data in memory
		}
		var stdout, stderr bytes.Buffer
		if code := cli.Run(ctx, strings.Fields(args), strings.NewReader(""), &stdout, &stderr); code != 1 || stdout.String() != "" || stderr.String() != "pwc: why it was\n" {
			t.Errorf("pwc %s: %d\n%s%s", args, code, &stdout, &stderr)
		}
	}
	if commands < 10 {
		t.Errorf("found %d commands in\n%s", commands, &help)
	}
}

// One signal ends the process during a call that takes no context: a read of standard input that waits.
func TestSignalWhileReading(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no signals to send")
	}
	cmd := exec.Command("pwc", "generate", "../testdata/hf/llama", "--ids-file", "-")
	cmd.Env = append(cmd.Environ(), "PWC_CACHE=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// More than the buffer of a pipe, so that the end of the write shows that the command reads.
	if _, err := in.Write(bytes.Repeat([]byte("\n"), 1<<18)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 1 || !strings.HasPrefix(stderr.String(), "pwc: terminated signal received; ") {
		t.Errorf("%v, want exit code 1; standard error is\n%s", err, &stderr)
	}
}

// One signal ends work that would never end.
func TestSignalEndsWork(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no signals to send")
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd := exec.Command("pwc", "run", "-v", "../testdata/hostile/endless.ir", "--rows", "64", "--mode", "none")
		cmd.Env = append(cmd.Environ(), "PWC_CACHE=off")
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(stderr)
		for lines.Scan() && !strings.Contains(lines.Text(), "msg=loaded") {
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		last := ""
		for lines.Scan() {
			last = lines.Text()
		}
		err = cmd.Wait()
		if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 1 || last != "pwc: "+sig.String()+" signal received" {
			t.Errorf("%v, want exit code 1; the last line is %q", err, last)
		}
	}
}

// interrupted is an output that interrupts at the first token.
type interrupted struct {
	bytes.Buffer
	cancel func()
}

func (w *interrupted) Write(b []byte) (int, error) {
	w.cancel()
	return w.Buffer.Write(b)
}

// An interrupt ends the requests at the next step, and their tokens so far are printed.
func TestInterruptEndsRequests(t *testing.T) {
	t.Setenv("PWC_CACHE", "off")
	ctx, cancel := context.WithCancel(t.Context())
	out := &interrupted{cancel: cancel}
	var stderr bytes.Buffer
	args := []string{"generate", "../testdata/hf/llama", "--ids", "38,117,208", "--max-new", "200"}
	code := cli.Run(ctx, args, strings.NewReader(""), out, &stderr)
	if tokens := len(strings.Fields(out.String())); code != 1 || tokens < 1 || tokens > 3 || !strings.HasSuffix(out.String(), "\n") {
		t.Errorf("exit code %d, answer %q; %s", code, out, &stderr)
	}
	if !strings.HasSuffix(stderr.String(), "pwc: context canceled\n") || strings.Contains(stderr.String(), "a step failed") {
		t.Errorf("standard error is\n%s", &stderr)
	}
}

// full is a writer like a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no room") }

// A command fails if its output cannot be written.
func TestOutputFails(t *testing.T) {
	t.Setenv("PWC_CACHE", "")
	t.Setenv("PWC_CACHE_DIR", t.TempDir())
	for _, args := range []string{
		"--help", "help run", "version", "version --json", "check ../testdata/nineteen.ir", "split ../testdata/nineteen.ir", "fmt ../testdata/nineteen.ir",
		"compile ../testdata/nineteen.ir", "run ../testdata/nineteen.ir --rows 2", "cache ls", "cache explain ../testdata/nineteen.ir", "cache verify",
		"example", "import ../testdata/hf/llama", "generate ../testdata/hf/llama --ids 5 --max-new 2",
	} {
		var stderr bytes.Buffer
		if code := cli.Run(t.Context(), strings.Fields(args), strings.NewReader(""), full{}, &stderr); code != 1 || !strings.HasSuffix(stderr.String(), "pwc: no room\n") {
			t.Errorf("pwc %s: exit code %d, standard error\n%s", args, code, &stderr)
		}
	}
}
