package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// mostAfterLoss is the longest time that ranks may run after one of them is lost (C22). They usually end at once.
const mostAfterLoss = 10 * time.Second

// mlpRun are the arguments of a run of two ranks on the MLP.
func mlpRun(out, steps string, more ...string) []string {
	const model = "../testdata/train/mlp"
	return append([]string{model + ".ir", "--weights", model + "/initial.safetensors", "--data", model + "/data.safetensors", "--optimizer", "sgd", "--lr", "0.01", "--momentum", "0.9",
		"--dp", "2", "--save-every", "10", "--out", out, "--steps", steps}, more...)
}

// inOneProcess runs pwc train of all ranks in one process.
func inOneProcess(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("pwc", append([]string{"train"}, args...)...)
	cmd.Env = append(cmd.Environ(), "PWC_CACHE=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("one process: %v, %s", err, out)
	}
}

// sameFile compares a file of two runs.
func sameFile(t *testing.T, a, b, name string) {
	t.Helper()
	x, err1 := os.ReadFile(filepath.Join(a, name))
	y, err2 := os.ReadFile(filepath.Join(b, name))
	if err1 != nil || err2 != nil || !bytes.Equal(x, y) {
		t.Errorf("%s differs: %v, %v", name, err1, err2)
	}
}

// startRanks starts both ranks of pwc train as processes.
func startRanks(t *testing.T, args []string) (ranks []*exec.Cmd, says []*bytes.Buffer) {
	t.Helper()
	meet := "file:" + filepath.Join(t.TempDir(), "meet")
	for rank := range 2 {
		cmd, _, stderr := rankOf(t, "train", strconv.Itoa(rank), meet, "", args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ranks, says = append(ranks, cmd), append(says, stderr)
	}
	return ranks, says
}

// lastCheckpoint returns the steps of the last checkpoint of a run, 0 without one.
func lastCheckpoint(t *testing.T, out string) int {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(out, "checkpoint-*"))
	if err != nil {
		t.Fatal(err)
	}
	steps := []int{0}
	for _, dir := range dirs {
		if n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "checkpoint-")); err == nil {
			steps = append(steps, n)
		}
	}
	return slices.Max(steps)
}

// awaitCheckpoint waits for the first checkpoint of a run.
func awaitCheckpoint(t *testing.T, out string, says []*bytes.Buffer) {
	t.Helper()
	for until := time.Now().Add(time.Minute); lastCheckpoint(t, out) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("no checkpoint: %s", says)
		}
	}
}

// Two processes train with the same bits as one process with both ranks, also with --resume.
func TestTrainRanksInProcesses(t *testing.T) {
	dir := t.TempDir()
	whole, parts := filepath.Join(dir, "whole"), filepath.Join(dir, "parts")
	inOneProcess(t, mlpRun(whole, "27", "--shuffle", "--seed", "5")...)
	if out := inProcesses(t, "train", mlpRun(parts, "14", "--shuffle", "--seed", "5", "--json")...); !strings.Contains(out, `"ranks": 2`) || !strings.Contains(out, `"steps": 14`) {
		t.Errorf("rank 0 prints\n%s", out)
	}
	inProcesses(t, "train", mlpRun(parts, "27", "--shuffle", "--resume")...)
	for _, name := range []string{"model.safetensors", "checkpoint-27/optimizer.safetensors", "loss.csv"} {
		sameFile(t, whole, parts, name)
	}
}

// If the process of a rank is killed, the other process ends within ten seconds (C22), with an error that names the
// rank. The resumed run has the bits of an uninterrupted one.
func TestTrainKilledRank(t *testing.T) {
	for victim := range 2 {
		dir := t.TempDir()
		out, whole := filepath.Join(dir, "out"), filepath.Join(dir, "whole")
		ranks, says := startRanks(t, mlpRun(out, "100000000"))
		awaitCheckpoint(t, out, says)
		if err := ranks[victim].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		err := ranks[1-victim].Wait()
		if waited := time.Since(killed); waited > mostAfterLoss {
			t.Errorf("rank %d ended %s after rank %d was killed, it has %s", 1-victim, waited, victim, mostAfterLoss)
		}
		name := fmt.Sprintf("rank %d", victim)
		if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 1 || !strings.Contains(says[1-victim].String(), name) {
			t.Errorf("%s was killed; the other rank ended with %v:\n%s", name, err, says[1-victim])
		}
		if err := ranks[victim].Wait(); err == nil {
			t.Error("the process that was killed has exit code 0")
		}
		steps := strconv.Itoa(lastCheckpoint(t, out) + 5)
		inProcesses(t, "train", mlpRun(out, steps, "--resume")...)
		inOneProcess(t, mlpRun(whole, steps)...)
		sameFile(t, whole, out, "model.safetensors")
	}
}

// An interrupt of one process ends all processes after the same step, and rank 0 writes a checkpoint.
func TestTrainRanksInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no signals to send")
	}
	for interrupted := range 2 {
		out := filepath.Join(t.TempDir(), "out")
		ranks, says := startRanks(t, mlpRun(out, "100000000"))
		awaitCheckpoint(t, out, says)
		if err := ranks[interrupted].Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		want := [2]string{fmt.Sprintf("rank %d was interrupted", interrupted), fmt.Sprintf("rank %d was interrupted", interrupted)}
		want[interrupted] = "interrupt signal received"
		for rank, cmd := range ranks {
			err := cmd.Wait()
			if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 1 || !strings.Contains(says[rank].String(), want[rank]) {
				t.Errorf("rank %d: %v, %s; want %q", rank, err, says[rank], want[rank])
			}
		}
		last := lastCheckpoint(t, out)
		if !strings.Contains(says[0].String(), fmt.Sprintf("interrupted after step %d; --resume continues", last)) {
			t.Errorf("rank 0 says %q, the last checkpoint is of step %d", says[0], last)
		}
		inProcesses(t, "train", mlpRun(out, strconv.Itoa(last+3), "--resume")...)
	}
}
