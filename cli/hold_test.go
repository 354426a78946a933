package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// After work that held the process, the command has the time grace again.
func TestWhenReleased(t *testing.T) {
	ctx, held := withHold(t.Context())
	release := hold(ctx)
	released := make(chan time.Time, 1)
	go func() {
		time.Sleep(10 * time.Millisecond)
		released <- time.Now()
		release()
	}()
	const grace = 50 * time.Millisecond
	whenReleased(held, grace)
	if waited := time.Since(<-released); waited < grace {
		t.Errorf("the command had %s after the work, want %s", waited, grace)
	}
}

// An interrupt does not end a training run with --out before the step ends and its checkpoint is written.
func TestTrainHolds(t *testing.T) {
	t.Setenv("PWC_CACHE", "off")
	const model = "../testdata/train/mlp"
	out := filepath.Join(t.TempDir(), "out")
	ctx, held := withHold(t.Context())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		ended <- Run(ctx, []string{"train", model + ".ir", "--weights", model + "/initial.safetensors", "--data", model + "/data.safetensors", "--optimizer", "sgd", "--lr", "0.01",
			"--steps", "100000000", "--save-every", "10", "--out", out}, strings.NewReader(""), &bytes.Buffer{}, &stderr)
	}()
	for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(out, "checkpoint-10")); err == nil {
			break
		}
		if time.Now().After(until) {
			t.Fatal("no checkpoint")
		}
	}
	if held.TryLock() {
		t.Error("nothing holds the process during the steps")
		held.Unlock()
	}
	cancel()
	if code := <-ended; code != exitFailed || !strings.Contains(stderr.String(), "interrupted after step ") {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
	if !held.TryLock() {
		t.Error("the process is held after the command")
	}
}
