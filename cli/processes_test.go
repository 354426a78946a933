package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// rankCommand is pwc generate as a process of rank R, with the file where ranks meet.
func rankCommand(t *testing.T, rank, file string, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	return rankOf(t, "generate", rank, "file:"+file, "secret", append([]string{"../testdata/hf/llama", "--tp", "2"}, args...)...)
}

// rankOf is a command of pwc as a process of rank R, with the address where ranks meet and their token.
func rankOf(t *testing.T, command, rank, address, token string, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a rank that hangs is killed, and the test fails
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, "pwc", append([]string{command, "--rank", rank, "--rendezvous", address}, args...)...)
	cmd.Env = append(cmd.Environ(), "PWC_CACHE=off", "PWC_RENDEZVOUS_TOKEN="+token)
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

// Two processes give the same answers as one process with both ranks. Only rank 0 prints them.
func TestRanksInProcesses(t *testing.T) {
	requests := filepath.Join(t.TempDir(), "requests.jsonl")
	if err := os.WriteFile(requests, []byte(`{"ids": [5, 7], "max_new": 20}
{"ids": [9], "temperature": 0.9, "seed": 4, "max_new": 30}
{"ids": [1, 2, 3, 4, 5, 6], "temperature": 1.2, "top_k": 9, "max_new": 11, "stop": [12, 13, 14]}
{"ids": [8], "repetition_penalty": 1.4, "logit_bias": {"7": 1}, "max_new": 25}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--ids-file", requests, "--json", "--ignore-eos", "--max-sequences", "3"}
	whole := exec.Command("pwc", append([]string{"generate", "../testdata/hf/llama", "--tp", "2"}, args...)...)
	whole.Env = append(whole.Environ(), "PWC_CACHE=off")
	want, err := whole.Output()
	if err != nil || bytes.Count(want, []byte("\n")) != 4 {
		t.Fatalf("one process: %v, %s", err, want)
	}
	meet := filepath.Join(t.TempDir(), "meet")
	follower, said, complaint := rankCommand(t, "1", meet, args...)
	if err := follower.Start(); err != nil {
		t.Fatal(err)
	}
	leader, got, stderr := rankCommand(t, "0", meet, args...)
	if err := leader.Run(); err != nil {
		t.Errorf("rank 0: %v, %s", err, stderr)
	}
	if err := follower.Wait(); err != nil || said.Len()+complaint.Len() > 0 {
		t.Errorf("rank 1: %v, %q, %q; want no error and no output", err, said, complaint)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("two processes answer\n%s\none process answers\n%s", got, want)
	}
}

// inProcesses runs a command as two processes, and returns what rank 0 prints. Rank 1 prints nothing.
func inProcesses(t *testing.T, command string, args ...string) string {
	t.Helper()
	meet := "file:" + filepath.Join(t.TempDir(), "meet")
	follower, said, complaint := rankOf(t, command, "1", meet, "", args...)
	if err := follower.Start(); err != nil {
		t.Fatal(err)
	}
	leader, out, stderr := rankOf(t, command, "0", meet, "", args...)
	if err := leader.Run(); err != nil {
		t.Errorf("rank 0: %v, %s", err, stderr)
	}
	if err := follower.Wait(); err != nil || said.Len()+complaint.Len() > 0 {
		t.Errorf("rank 1: %v, %q, %q; want no error and no output", err, said, complaint)
	}
	return out.String()
}

// Two processes compute the same logits as one process with both ranks. Rank 0 compares and writes them.
func TestRunRanksInProcesses(t *testing.T) {
	dir := t.TempDir()
	args := []string{"../testdata/hf/llama", "--tp", "2", "--in", "../testdata/hf/llama/expected.safetensors", "--against", "logits", "--check", "--out"}
	whole := exec.Command("pwc", append(append([]string{"run"}, args...), filepath.Join(dir, "one"))...)
	whole.Env = append(whole.Environ(), "PWC_CACHE=off")
	if out, err := whole.CombinedOutput(); err != nil {
		t.Fatalf("one process: %v, %s", err, out)
	}
	if out := inProcesses(t, "run", append(args, filepath.Join(dir, "two"))...); strings.Count(out, "\nok: logits against ") != 2 {
		t.Errorf("rank 0 prints\n%s", out)
	}
	one, err1 := os.ReadFile(filepath.Join(dir, "one"))
	two, err2 := os.ReadFile(filepath.Join(dir, "two"))
	if err1 != nil || err2 != nil || !bytes.Equal(one, two) {
		t.Errorf("the results differ: %v, %v", err1, err2)
	}
}

// Two processes measure together: steps of a language model, runs of a function and training steps. Rank 0 decides the
// number of runs, and prints.
func TestBenchRanksInProcesses(t *testing.T) {
	const model = "../testdata/hf/llama"
	function := filepath.Join(t.TempDir(), "sum.ir")
	if err := os.WriteFile(function, []byte(`pwc 1
module "sum" {
  sym N in [1, 8] batch
  sym r in [0, 1] load
  group tp in 2 rank r
  weight @w : f32[4, 2] = shard("w", axis=1, group=tp)
  func @f(%x: f32[N, 2]) -> (f32[N, 4]) {
    %p = linear(%x, @w)
    %s = all_reduce(%p, group=tp)
    return %s
  }
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{model, "--tp", "2", "--batch", "1,2", "--context", "16", "--prompt", "8", "--repeats", "3", "--mode", "piecewise,full"}, `"batch": 2,`},
		{[]string{function, "--weights", "dummy", "--batch", "3", "--repeats", "30", "--mode", "none,full"}, `"ranks": 2,`},
		{[]string{model + "/config.json", "--train", "--dp", "2", "--length", "8", "--batch-size", "1"}, `"ranks": 2,`},
	} {
		if out := inProcesses(t, "bench", append(c.args, "--json")...); !strings.Contains(out, c.want) {
			t.Errorf("%v: rank 0 prints\n%s", c.args, out)
		}
	}
}

// Processes with different flags or inputs all end with an error that asks for the same command.
func TestRanksDisagree(t *testing.T) {
	dir := t.TempDir()
	for name, ids := range map[string]string{"a": "1,2,3", "b": "1,2,4"} {
		if err := tensors([]string{filepath.Join(dir, name), "input_ids:i32=" + ids}); err != nil {
			t.Fatal(err)
		}
	}
	for _, own := range [][2][]string{
		{{"run", "--rows", "4"}, {"run", "--rows", "5"}},
		{{"run", "--in", filepath.Join(dir, "a")}, {"run", "--in", filepath.Join(dir, "b")}},
		{{"run", "--rows", "4", "--capture-sizes", "8"}, {"run", "--rows", "4", "--capture-sizes", "16"}},
		{{"run", "--rows", "4"}, {"run", "--rows", "4", "--padded-slots", "pos"}},
		{{"generate", "--ids", "5"}, {"generate", "--ids", "5", "--disable-pass", "fuse"}},
	} {
		meet := "file:" + filepath.Join(t.TempDir(), "meet")
		var ranks []*exec.Cmd
		var says []*bytes.Buffer
		for rank, args := range own {
			cmd, _, stderr := rankOf(t, args[0], strconv.Itoa(rank), meet, "", append([]string{"../testdata/hf/llama", "--tp", "2"}, args[1:]...)...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ranks, says = append(ranks, cmd), append(says, stderr)
		}
		for rank, cmd := range ranks {
			err := cmd.Wait()
			text := says[rank].String()
			if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 1 || !strings.Contains(text, "give all ranks the same command") || strings.Contains(text, "--target") {
				t.Errorf("%v, rank %d: %v, %s", own, rank, err, text)
			}
		}
	}
}

// twoFreePorts returns an address whose port and next port are free.
func twoFreePorts(t *testing.T) string {
	t.Helper()
	for {
		first, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		second, next := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first.Addr().(*net.TCPAddr).Port+1))
		if next == nil {
			next = second.Close()
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		if next == nil {
			return first.Addr().String()
		}
	}
}

// A process with another token ends with an error. The ranks with the right token meet afterwards.
func TestWrongToken(t *testing.T) {
	address := twoFreePorts(t)
	args := []string{"../testdata/hf/llama", "--tp", "2", "--rows", "4"}
	leader, out, leaderSays := rankOf(t, "run", "0", address, "right", args...)
	if err := leader.Start(); err != nil {
		t.Fatal(err)
	}
	wrong, _, wrongSays := rankOf(t, "run", "1", address, "wrong", args...)
	err := wrong.Run()
	if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 1 || !strings.Contains(wrongSays.String(), "the token differs") || !strings.Contains(wrongSays.String(), "PWC_RENDEZVOUS_TOKEN") {
		t.Errorf("the wrong token: %v, %s", err, wrongSays)
	}
	follower, _, followerSays := rankOf(t, "run", "1", address, "right", args...)
	if err := follower.Run(); err != nil {
		t.Errorf("the right token: %v, %s", err, followerSays)
	}
	if err := leader.Wait(); err != nil || !strings.Contains(out.String(), "logits") {
		t.Errorf("rank 0: %v, %s%s", err, out, leaderSays)
	}
}

// If the process of a rank is killed, the other process ends within ten seconds (C22), with an error that names the
// rank, and the ranks can start again.
func TestKilledRank(t *testing.T) {
	meet := filepath.Join(t.TempDir(), "meet")
	for killed, name := range []string{"rank 0", "rank 1"} {
		args := []string{"--ids", "5", "--max-new", "200000", "--context", "200001", "--ignore-eos"}
		leader, _, leaderSays := rankCommand(t, "0", meet, args...)
		leader.Stdout = nil
		out, err := leader.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		follower, _, followerSays := rankCommand(t, "1", meet, args...)
		for _, cmd := range []*exec.Cmd{leader, follower} {
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.ReadFull(out, make([]byte, 8)); err != nil {
			t.Fatalf("%v: %s%s", err, leaderSays, followerSays)
		}
		victim, other, says := leader, follower, followerSays
		if killed == 1 {
			victim, other, says = follower, leader, leaderSays
		}
		if err := victim.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		if _, err := io.Copy(io.Discard, out); err != nil {
			t.Fatal(err)
		}
		err = other.Wait()
		if waited := time.Since(killed); waited > mostAfterLoss {
			t.Errorf("the other rank ended %s after %s was killed, it has %s", waited, name, mostAfterLoss)
		}
		if err := victim.Wait(); err == nil {
			t.Error("the process that was killed has exit code 0")
		}
		if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 1 || !strings.Contains(says.String(), name) {
			t.Errorf("%s was killed; the other rank ended with %v:\n%s", name, err, says)
		}
	}
}
