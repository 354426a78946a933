package cli_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"pwc/cli"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/safetensors"
)

// trainGoldens are the flags of PyTorch's runs in testdata/train.
var trainGoldens = map[string][]string{
	"mlp":    {"--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.9", "--weight-decay", "0.01", "--steps", "12"},
	"gpt":    {"--optimizer", "adamw", "--lr", "3e-3", "--betas", "0.9,0.95", "--eps", "1e-8", "--weight-decay", "0.1", "--steps", "30"},
	"llama":  {"--optimizer", "adamw", "--lr", "1e-2", "--betas", "0.9,0.99", "--eps", "1e-8", "--weight-decay", "0", "--clip-norm", "1", "--steps", "25"},
	"branch": {"--optimizer", "sgd", "--lr", "0.05", "--steps", "16"},
}

// trained runs train with --json on a model of testdata/train and returns its losses.
func trained(t *testing.T, name string, flags ...string) []float64 {
	t.Helper()
	t.Setenv("PWC_CACHE", "off")
	dir := filepath.Join("../testdata/train", name)
	args := append([]string{"train", dir + ".ir", "--weights", filepath.Join(dir, "initial.safetensors"), "--data", filepath.Join(dir, "data.safetensors"), "--json"}, flags...)
	var stdout, stderr bytes.Buffer
	if code := cli.Run(t.Context(), args, strings.NewReader(""), &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	var report struct {
		Losses []float64 `json:"losses"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	return report.Losses
}

func openTensors(t *testing.T, path string) *safetensors.File {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func readTensor(t *testing.T, f *safetensors.File, name string) *interp.Tensor {
	t.Helper()
	x, err := f.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	y, err := interp.FromBytes(x.DType, x.Shape, x.Data)
	if err != nil {
		t.Fatal(err)
	}
	return y
}

// train has the losses and weights of each of PyTorch's runs, within 1e-4, except the biases of qkv.
func TestTrainAsPyTorch(t *testing.T) {
	for name, flags := range trainGoldens {
		out := filepath.Join(t.TempDir(), "out")
		got := trained(t, name, append(flags, "--out", out)...)
		expected := openTensors(t, filepath.Join("../testdata/train", name, "expected.safetensors"))
		want := readTensor(t, expected, "losses")
		if len(got) != want.Len() {
			t.Fatalf("%s: %d losses, want %d", name, len(got), want.Len())
		}
		for i, loss := range got {
			if w := want.At(i); !(math.Abs(loss-w) <= 1e-4*w) {
				t.Errorf("%s: the loss of step %d is %v, want %v", name, i+1, loss, w)
			}
		}
		weights := openTensors(t, filepath.Join(out, "model.safetensors"))
		for _, w := range weights.Names() {
			if strings.HasSuffix(w, "qkv.bias") {
				continue // the gradient of the keys' bias is only rounding, which Adam scales up to steps of full size
			}
			if d := interp.Compare(readTensor(t, weights, w), readTensor(t, expected, "final."+w)); !d.Within(1e-4) {
				t.Errorf("%s: %s: %s", name, w, d)
			}
		}
		for _, file := range []string{"loss.csv", "loss.svg"} {
			if data, err := os.ReadFile(filepath.Join(out, file)); err != nil || len(data) == 0 {
				t.Errorf("%s: %s: %v", name, file, err)
			}
		}
	}
}

// A run with bf16 GEMMs reaches the loss of f32 within 3 %, and so does a run with f16 and a scaled loss.
func TestTrainPrecisions(t *testing.T) {
	want := trained(t, "gpt", trainGoldens["gpt"]...)
	for _, precision := range []string{"bf16", "f16"} {
		got := trained(t, "gpt", append(trainGoldens["gpt"], "--precision", precision)...)
		last := len(want) - 1
		if d := math.Abs(got[last]-want[last]) / want[last]; d > 0.03 || got[0] == want[0] {
			t.Errorf("%s reaches %v, f32 %v", precision, got[last], want[last])
		}
	}
}

// A resumed run has the bits of an uninterrupted one: weights, optimizer, losses, and the order of the
// rows, whose seed is in the checkpoint.
func TestTrainResumes(t *testing.T) {
	dir := t.TempDir()
	whole, parts := filepath.Join(dir, "whole"), filepath.Join(dir, "parts")
	flags := func(steps, out string, more ...string) []string {
		return append([]string{"--optimizer", "adamw", "--lr", "1e-2", "--clip-norm", "1", "--loss-scale", "1024", "--loss-scale-interval", "3", "--precision", "f16", "--shuffle", "--steps", steps, "--out", out}, more...)
	}
	trained(t, "llama", flags("12", whole, "--seed", "7")...)
	if n := len(trained(t, "llama", flags("5", parts, "--seed", "7")...)); n != 5 {
		t.Errorf("%d losses, want 5", n)
	}
	if n := len(trained(t, "llama", flags("12", parts, "--resume", "--save-every", "4")...)); n != 7 {
		t.Errorf("%d losses after the resumption, want 7", n)
	}
	for _, file := range []string{"model.safetensors", "checkpoint-12/model.safetensors", "checkpoint-12/optimizer.safetensors", "loss.csv", "loss.svg"} {
		a, err1 := os.ReadFile(filepath.Join(whole, file))
		b, err2 := os.ReadFile(filepath.Join(parts, file))
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs: %v, %v", file, err1, err2)
		}
	}
	if _, err := os.Stat(filepath.Join(parts, "checkpoint-8")); err != nil {
		t.Error(err)
	}
	refused := []string{"train", "../testdata/train/llama.ir", "--weights", "../testdata/train/llama/initial.safetensors", "--data", "../testdata/train/llama/data.safetensors"}
	var stdout, stderr bytes.Buffer
	code := cli.Run(t.Context(), append(refused, flags("13", parts, "--resume", "--seed", "8")...), strings.NewReader(""), &stdout, &stderr)
	if want := "has seed 7, which --resume keeps"; code != 2 || !strings.Contains(stderr.String(), want) {
		t.Errorf("--resume with another seed: exit code %d: %s; want 2 and %q", code, &stderr, want)
	}
	if n := len(trained(t, "llama", flags("13", parts, "--resume", "--seed", "7")...)); n != 1 {
		t.Errorf("%d losses with the seed of the run, want 1", n)
	}
	if a, b := trained(t, "llama", "--steps", "1"), trained(t, "llama", "--steps", "1", "--shuffle"); a[0] == b[0] {
		t.Errorf("the first batch has loss %v, shuffled or not", a[0])
	}
}

// An interrupt writes a complete checkpoint, from which the run resumes, also on several devices.
func TestTrainInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no signals to send")
	}
	for _, ranks := range []string{"1", "3"} {
		testTrainInterrupted(t, ranks)
	}
}

func testTrainInterrupted(t *testing.T, ranks string) {
	out := filepath.Join(t.TempDir(), "out")
	const model = "../testdata/train/mlp"
	cmd := exec.Command("pwc", "train", model+".ir", "--weights", model+"/initial.safetensors", "--data", model+"/data.safetensors", "--optimizer", "sgd", "--lr", "0.01", "--steps", "100000000", "--save-every", "10", "--out", out, "--dp", ranks)
	cmd.Env = append(cmd.Environ(), "PWC_CACHE=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(out, "checkpoint-10")); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != 1 {
		t.Errorf("%v, want exit code 1", err)
	}
	_, rest, ok := strings.Cut(stderr.String(), "pwc: interrupted after step ")
	text, _, _ := strings.Cut(rest, ";")
	last, err := strconv.Atoi(text)
	if !ok || err != nil {
		t.Fatalf("standard error is\n%s", &stderr)
	}
	if left, err := filepath.Glob(filepath.Join(out, "*tmp*")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v were left", left, err)
	}
	if n := len(trained(t, "mlp", "--optimizer", "sgd", "--lr", "0.01", "--steps", strconv.Itoa(last+3), "--out", out, "--resume", "--dp", ranks)); n != 3 {
		t.Errorf("%d steps after the resumption, want 3", n)
	}
}

// Labels in the file are used: the loss is 0 if all labels are -100.
func TestTrainLabels(t *testing.T) {
	const dir = "../testdata/train/repeat"
	ids, err := openTensors(t, dir+"/data.safetensors").Tensor("input_ids")
	if err != nil {
		t.Fatal(err)
	}
	labels := safetensors.Tensor{Name: "labels", DType: dtype.I32, Shape: ids.Shape}
	for range ids.Shape[0] * ids.Shape[1] {
		left := int32(-100)
		labels.Data = binary.LittleEndian.AppendUint32(labels.Data, uint32(left))
	}
	file := filepath.Join(t.TempDir(), "data.safetensors")
	if err := safetensors.Write(file, []safetensors.Tensor{ids, labels}, nil); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PWC_CACHE", "off")
	var stdout, stderr bytes.Buffer
	args := []string{"train", dir + "/config.json", "--weights", "dummy", "--data", file, "--steps", "2", "--json"}
	code := cli.Run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	if got := strings.Join(strings.Fields(stdout.String()), ""); code != 0 || !strings.Contains(got, `"losses":[0,0],`) {
		t.Errorf("exit code %d: %s%s", code, &stdout, &stderr)
	}
}

// A small language model learns to repeat tokens, starting from only a config, and the output is a
// checkpoint that pwc generate reads.
func TestTrainLearns(t *testing.T) {
	t.Setenv("PWC_CACHE", "off")
	out := filepath.Join(t.TempDir(), "out")
	const dir = "../testdata/train/repeat"
	run := func(args ...string) string {
		var stdout, stderr bytes.Buffer
		if code := cli.Run(t.Context(), args, strings.NewReader(""), &stdout, &stderr); code != 0 {
			t.Fatalf("exit code %d: %s", code, &stderr)
		}
		return stdout.String()
	}
	text := run("train", dir+"/config.json", "--weights", "dummy", "--data", dir+"/data.safetensors", "--batch-size", "16", "--lr", "3e-3", "--steps", "300", "--out", out, "--json")
	var report struct {
		Losses []float64 `json:"losses"`
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatal(err)
	}
	// 3 of 15 tokens are random among 31 ids: 3 ln(31) / 15 = 0.69.
	if first, last := report.Losses[0], report.Losses[299]; first < 3.4 || last > 1 {
		t.Errorf("the loss goes from %v to %v", first, last)
	}
	if got := run("generate", out, "--ids", "5,9,2,7,5,9", "--max-new", "8"); got != "2 7 5 9 2 7 5 9\n" {
		t.Errorf("it goes on with %q", got)
	}
}
