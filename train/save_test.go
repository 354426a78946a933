package train_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/optim"
	"pwc/piecewise"
	"pwc/safetensors"
	"pwc/train"
)

// dropping is a model with dropout, of a generator that is a state and one that is a parameter.
const dropping = `pwc 1
module "dropping" {
  weight @w : f32[64]
  state @rng : i64[2]
  func @loss(%x: f32[64], %own: i64[2]) -> (f32[]) {
    %d = dropout(%x, @rng, p=0.5)
    %y = mul(%d, @w)
    %e = dropout(%y, %own, p=0.25)
    %loss = sum(%e, axes=[0])
    return %loss
  }
}
`

func ones(n int) safetensors.Tensor {
	v := make([]float64, n)
	for i := range v {
		v[i] = 1
	}
	return safetensors.Tensor{DType: dtype.F32, Shape: []int64{int64(n)}, Data: f32s(v...)}
}

// Every step and every micro-batch draws different random numbers, and backward and forward draw the
// same ones. A run that is captured in another way, saved and resumed draws the numbers of the
// uninterrupted one. Restore drops the losses and results of the steps before it.
func TestRandomNumbers(t *testing.T) {
	src, batch := memory{"w": ones(64)}, memory{"x": ones(64)}
	for _, parts := range []int{1, 2} {
		o := train.Options{Optimizer: optim.SGD{}, LearningRate: 0.125, MicroBatches: parts, Gradients: true}
		one := load(t, testkit.Parse(t, dropping), src, o, onHost(t), piecewise.Full)
		want := steps(t, one, data(t, one, batch), 6)
		for i := range want[1:] {
			if want[i] == want[i+1] {
				t.Errorf("steps have the losses %v", want)
			}
		}
		two := load(t, testkit.Parse(t, dropping), src, o, onHost(t), piecewise.None)
		got := steps(t, two, data(t, two, batch), 2)
		before := floats(states(t, two)["w"])
		got = append(got, steps(t, two, data(t, two, batch), 1)...)
		// The loss is linear in the weight: its gradient by the weight, times the weight, is the loss.
		sum, once := 0.0, 0
		for i, g := range result(t, two, "grad.w") {
			sum += g * before[i]
			if g > 1 && g < 2 { // 1/(2·0.5·0.75): one of two micro-batches drops the element
				once++
			}
		}
		if (once > 0) != (parts == 2) {
			t.Errorf("%d elements are dropped in one of %d micro-batches", once, parts)
		}
		if near([]float64{sum}, []float64{got[2]}) > 1e-5 {
			t.Errorf("the gradient belongs to a loss of %v, not %v", sum, got[2])
		}
		dir := filepath.Join(t.TempDir(), "checkpoint")
		if err := two.Save(dir, src); err != nil {
			t.Fatal(err)
		}
		three := load(t, testkit.Parse(t, dropping), src, o, onHost(t), piecewise.Full)
		if err := three.Restore(dir); err != nil {
			t.Fatal(err)
		}
		got = append(got, steps(t, three, data(t, three, batch), 3)...)
		if near(got, want) != 0 {
			t.Errorf("losses %v, want %v", got, want)
		}
		same(t, states(t, three), states(t, one))
		if err := three.Restore(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := three.Loss(6); err == nil {
			t.Error("a restored run has the loss of a step that it has not run")
		}
		if _, err := three.Result("loss"); err == nil {
			t.Error("a restored run has the results of the run before")
		}
	}
}

// Directories that are no checkpoint of the run are errors. Save does not replace a checkpoint, and leaves no
// files if it fails.
func TestSaveAndRestoreRefuse(t *testing.T) {
	src, batch := memory{"w": ones(64)}, memory{"x": ones(64)}
	adam := train.Options{Optimizer: optim.DefaultAdam(), LearningRate: 0.1}
	s := load(t, testkit.Parse(t, dropping), src, adam, onHost(t), piecewise.Full)
	steps(t, s, data(t, s, batch), 1)
	parent := t.TempDir()
	dir := filepath.Join(parent, "checkpoint")
	if err := s.Save(dir, src, filepath.Join(parent, "missing.json")); err == nil {
		t.Error("a file that is not there was saved")
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("%v, %v were left", left, err)
	}
	if err := s.Save(dir+string(filepath.Separator), src); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(dir, src); err == nil {
		t.Error("a checkpoint was written over")
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) != 1 {
		t.Errorf("%v, %v are there, want the checkpoint alone", left, err)
	}
	sgd := load(t, testkit.Parse(t, dropping), src, train.Options{Optimizer: optim.SGD{Momentum: 0.5}}, onHost(t), piecewise.Full)
	if err := sgd.Restore(dir); err == nil || !strings.Contains(err.Error(), "was trained with adam, not sgd") {
		t.Errorf("another optimizer: %v", err)
	}
	scaler := optim.DefaultScaler()
	adam.Scaler = &scaler
	other := load(t, testkit.Parse(t, dropping), src, adam, onHost(t), piecewise.Full)
	before := states(t, other)
	if err := other.Restore(dir); err == nil || !strings.Contains(err.Error(), "scale") {
		t.Errorf("without a scale: %v", err)
	}
	same(t, states(t, other), before)
	t.Run("incomplete", func(t *testing.T) { incomplete(t, s, dir) })
	if err := safetensors.Write(filepath.Join(dir, train.OptimizerFile), nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Restore(dir); err == nil || !strings.Contains(err.Error(), "version of the format") {
		t.Errorf("no metadata: %v", err)
	}
	if err := s.Restore(filepath.Join(parent, "missing")); err == nil {
		t.Error("a checkpoint that is not there was restored")
	}
}

// incomplete restores s from a checkpoint whose files lack tensors: the weight, then also the states of the
// optimizer. The error names the missing tensors, and no state changes.
func incomplete(t *testing.T, s *train.Step, dir string) {
	saved := states(t, s)
	steps(t, s, data(t, s, memory{"x": ones(64)}), 1)
	before := states(t, s)
	if bytes.Equal(before["w"], saved["w"]) || bytes.Equal(before["train.exp_avg.w"], saved["train.exp_avg.w"]) {
		t.Fatal("a step does not change the weight and its average")
	}
	file, err := safetensors.Open(filepath.Join(dir, train.OptimizerFile))
	if err != nil {
		t.Fatal(err)
	}
	meta := file.Metadata()
	if err := errors.Join(file.Close(), safetensors.Write(filepath.Join(dir, train.ModelFile), nil, nil)); err != nil {
		t.Fatal(err)
	}
	for _, missing := range [][]string{{`"w"`}, {`"w"`, `"exp_avg.w"`, `"step"`}} {
		if len(missing) > 1 {
			if err := safetensors.Write(filepath.Join(dir, train.OptimizerFile), nil, meta); err != nil {
				t.Fatal(err)
			}
		}
		err := s.Restore(dir)
		for _, name := range missing {
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%v, want %s in it", err, name)
			}
		}
		same(t, states(t, s), before)
	}
}
