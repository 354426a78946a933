package cli_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// rankCommand is pwc generate as a process of rank R, with the file where ranks meet.
func rankCommand(t *testing.T, rank, file string, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a rank that hangs is killed, and the test fails
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, "pwc", append([]string{"generate", "../testdata/hf/llama", "--tp", "2", "--rank", rank, "--rendezvous", "file:" + file}, args...)...)
	cmd.Env = append(cmd.Environ(), "PWC_CACHE=off", "PWC_RENDEZVOUS_TOKEN=secret")
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

// Two processes answer as one process with both ranks does, and only rank 0 says so.
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
		t.Errorf("rank 1: %v, %q, %q; it says nothing", err, said, complaint)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("two processes answer\n%s\none process answers\n%s", got, want)
	}
}

// The process of a rank that is killed ends the other one, with an error that names it, and the
// ranks can start again.
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
		if _, err := io.Copy(io.Discard, out); err != nil {
			t.Fatal(err)
		}
		if err := victim.Wait(); err == nil {
			t.Error("the process that was killed ended well")
		}
		err = other.Wait()
		if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 1 || !strings.Contains(says.String(), name) {
			t.Errorf("%s was killed; the other rank ended with %v:\n%s", name, err, says)
		}
	}
}
