package cli_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pwc/cli"
	"pwc/ir/interp"
)

// A run on two devices with two micro-batches each has the losses (within 1e-5) and weights (1e-4) of a run on one
// device with four micro-batches.
func TestTrainRanks(t *testing.T) {
	for _, name := range []string{"mlp", "llama"} {
		flags := func(out string, more ...string) []string {
			return append(append([]string{"--out", out, "--shuffle"}, more...), trainGoldens[name]...)
		}
		one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
		want := trained(t, name, flags(one, "--micro-batches", "4")...)
		got := trained(t, name, flags(two, "--dp", "2", "--micro-batches", "2", "--bucket", "4KiB")...)
		for i := range want {
			if !(math.Abs(got[i]-want[i]) <= 1e-5*want[i]) {
				t.Errorf("%s: the loss of step %d is %v, on one device %v", name, i+1, got[i], want[i])
			}
		}
		a, b := openTensors(t, filepath.Join(one, "model.safetensors")), openTensors(t, filepath.Join(two, "model.safetensors"))
		for _, w := range a.Names() {
			if d := interp.Compare(readTensor(t, b, w), readTensor(t, a, w)); !d.Within(1e-4) {
				t.Errorf("%s: %s: %s", name, w, d)
			}
		}
	}
}

// A resumed run on two devices has the bits of an uninterrupted one. It can be resumed with other numbers of devices
// and micro-batches.
func TestTrainRanksResume(t *testing.T) {
	dir := t.TempDir()
	whole, parts := filepath.Join(dir, "whole"), filepath.Join(dir, "parts")
	flags := []string{"--dp", "2", "--lr", "1e-2", "--precision", "f16", "--shuffle", "--seed", "3"}
	trained(t, "llama", append(flags, "--steps", "7", "--out", whole)...)
	trained(t, "llama", append(flags, "--steps", "4", "--out", parts)...)
	trained(t, "llama", append(flags, "--steps", "7", "--out", parts, "--resume")...)
	for _, file := range []string{"model.safetensors", "checkpoint-7/optimizer.safetensors", "loss.csv"} {
		a, err1 := os.ReadFile(filepath.Join(whole, file))
		b, err2 := os.ReadFile(filepath.Join(parts, file))
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs: %v, %v", file, err1, err2)
		}
	}
	if n := len(trained(t, "llama", "--dp", "3", "--precision", "f16", "--micro-batches", "2", "--steps", "9", "--out", parts, "--resume")); n != 2 {
		t.Errorf("three devices run %d steps after the 7 of two, want 2", n)
	}
	if n := len(trained(t, "llama", "--precision", "f16", "--steps", "10", "--out", parts, "--resume")); n != 1 {
		t.Errorf("one device runs %d steps after the 9 of three, want 1", n)
	}
}

// bench --train measures steps of several devices: two devices have twice the rows and operations of one.
func TestBenchTrainRanks(t *testing.T) {
	var of [2]struct{ Ranks, Rows, Operations int64 }
	for i, ranks := range []string{"1", "2"} {
		var stdout, stderr bytes.Buffer
		args := []string{"bench", "../testdata/train/repeat/config.json", "--train", "--length", "16", "--dp", ranks, "--json"}
		if code := cli.Run(t.Context(), args, strings.NewReader(""), &stdout, &stderr); code != 0 {
			t.Fatalf("exit code %d: %s", code, &stderr)
		}
		if err := json.Unmarshal(stdout.Bytes(), &of[i]); err != nil {
			t.Fatal(err)
		}
	}
	if one, two := of[0], of[1]; one.Ranks != 1 || two.Ranks != 2 || two.Rows != 2*one.Rows || two.Operations != 2*one.Operations {
		t.Errorf("%+v on one device, %+v on two", one, two)
	}
}

// --bucket on one device, --bucket 0, --dp 0, and --dp and --micro-batches for a module with several losses are errors
// that say why.
func TestTrainRanksUsage(t *testing.T) {
	mlp := []string{"train", "../testdata/train/mlp.ir", "--weights", "../testdata/train/mlp/initial.safetensors", "--data", "../testdata/train/mlp/data.safetensors", "--steps", "1"}
	branch := []string{"train", "../testdata/train/branch.ir", "--weights", "../testdata/train/branch/initial.safetensors", "--data", "../testdata/train/branch/data.safetensors", "--steps", "1"}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{append(mlp, "--bucket", "1MiB"), 2, "--bucket has no effect on one device: --dp N trains on N"},
		{append(mlp, "--dp", "2", "--bucket", "0"), 2, "--bucket 0: want at least 1 byte"},
		{append(mlp, "--dp", "0"), 2, "--dp"},
		{append(branch, "--dp", "2"), 1, "a module with several losses is trained on one device"},
		{append(branch, "--dp", "2"), 1, "On the command line: --dp gives Options.Ranks; --func NAME chooses one loss"},
		{append(branch, "--micro-batches", "2"), 1, "a module with several losses are not cut"},
		{append(branch, "--micro-batches", "2"), 1, "On the command line: --micro-batches gives Options.MicroBatches; --func NAME chooses one loss"},
	} {
		var stdout, stderr bytes.Buffer
		if code := cli.Run(t.Context(), c.args, strings.NewReader(""), &stdout, &stderr); code != c.code || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%v: exit code %d: %s; want %d and %q", c.args, code, &stderr, c.code, c.want)
		}
	}
}
