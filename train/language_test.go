package train_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pwc/frontend/hf"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/optim"
	"pwc/piecewise"
	"pwc/safetensors"
	"pwc/train"
)

// entropy is the mean cross entropy of logits [T, V] with the labels after the first, in float64.
// Labels of -100 are left out.
func entropy(logits []float64, labels []int32) float64 {
	v := len(logits) / len(labels)
	sum, n := 0.0, 0.0
	for i, next := range labels[1:] {
		if next == -100 {
			continue
		}
		n++
		row, total := logits[i*v:(i+1)*v], 0.0
		for _, x := range row {
			total += math.Exp(x)
		}
		sum += math.Log(total) - row[next]
	}
	return sum / n
}

// The loss of a checkpoint is that of the logits that transformers computed, for families with
// windows, bounded scores, groups of heads, experts and scaled ropes. A step lowers it.
func TestLanguage(t *testing.T) {
	families, err := filepath.Glob("../testdata/hf/*/config.json")
	if err != nil || len(families) < 20 {
		t.Fatalf("%d families, %v", len(families), err)
	}
	for _, config := range families {
		dir := filepath.Dir(config)
		name := filepath.Base(dir)
		switch {
		case testing.Short() && name != "llama" && name != "gemma2":
			continue
		case strings.HasSuffix(name, "_long"): // its sequence is padded
			continue
		}
		t.Run(name, func(t *testing.T) {
			m, err := hf.Builtin().ImportDir(dir, hf.Options{DType: dtype.F32, Context: 64})
			if err != nil {
				t.Fatal(err)
			}
			expected, err := safetensors.Open(filepath.Join(dir, "expected.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer expected.Close()
			ids := ints(t, expected, "input_ids")
			l, err := train.Language(m.Module, 1, int64(len(ids)))
			if err != nil {
				t.Fatal(err)
			}
			src, err := safetensors.OpenDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			s := load(t, l, src, train.Options{Optimizer: optim.SGD{}, LearningRate: 1e-3}, onHost(t), piecewise.None)
			x, err := expected.Tensor("input_ids")
			if err != nil {
				t.Fatal(err)
			}
			losses := steps(t, s, data(t, s, memory{train.InputIDs: x}), 2)
			want := entropy(tensor(t, expected, "logits"), ids)
			if !(math.Abs(losses[0]-want) <= 1e-4*want) {
				t.Errorf("the loss is %v, want %v", losses[0], want)
			}
			if !(losses[1] < losses[0]) {
				t.Errorf("a step raises the loss from %v to %v", losses[0], losses[1])
			}
			if err := s.CanSave(src); err != nil {
				t.Error(err)
			}
		})
	}
}

// Rows of a batch do not see each other: the loss of two rows is the mean of theirs.
func TestLanguageRows(t *testing.T) {
	const dir = "../testdata/hf/mistral"
	m, err := hf.Builtin().ImportDir(dir, hf.Options{DType: dtype.F32})
	if err != nil {
		t.Fatal(err)
	}
	src, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	const length = 12
	batch := safetensors.Tensor{DType: dtype.U8, Shape: []int64{2 * length}, Data: []byte("one sequence another one")}
	for i := range batch.Data {
		batch.Data[i] %= 64
	}
	loss := func(rows, n int64) []float64 {
		l, err := train.Language(m.Module, rows, length)
		if err != nil {
			t.Fatal(err)
		}
		s := load(t, l, src, train.Options{Optimizer: optim.SGD{}}, onHost(t), piecewise.Full)
		return steps(t, s, data(t, s, memory{train.InputIDs: batch}), int(n))
	}
	one, two := loss(1, 2), loss(2, 1)
	if d := math.Abs(two[0] - (one[0]+one[1])/2); !(d <= 1e-6) || one[0] == one[1] {
		t.Errorf("a batch has the loss %v, its rows %v", two, one)
	}
}

// A token with the label -100 does not count in the loss. Any other token counts with the loss of its label,
// also if the label is not the token. A step of a batch without labels changes no weight.
func TestLabeled(t *testing.T) {
	const dir = "../testdata/hf/llama"
	m, err := hf.Builtin().ImportDir(dir, hf.Options{DType: dtype.F32})
	if err != nil {
		t.Fatal(err)
	}
	src, err := safetensors.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	expected, err := safetensors.Open(filepath.Join(dir, "expected.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer expected.Close()
	ids, err := expected.Tensor("input_ids")
	if err != nil {
		t.Fatal(err)
	}
	labels := ints(t, expected, "input_ids")
	l, err := train.Labeled(m.Module, 1, int64(len(labels)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(labels) / 2 { // a prompt
		labels[i] = -100
	}
	last := len(labels) - 1
	labels[last] = (labels[last] + 1) % 7
	none := slices.Repeat([]int32{-100}, len(labels))
	both := safetensors.Tensor{DType: dtype.I32, Shape: []int64{2, int64(len(labels))}}
	for _, x := range slices.Concat(labels, none) {
		both.Data = binary.LittleEndian.AppendUint32(both.Data, uint32(x))
	}
	s := load(t, l, src, train.Options{Optimizer: optim.SGD{}, LearningRate: 1e-3}, onHost(t), piecewise.Full)
	d := data(t, s, memory{train.InputIDs: ids, train.Labels: both})
	losses := steps(t, s, d, 1)
	before := states(t, s)
	losses = append(losses, steps(t, s, d, 1)...)
	if want := entropy(tensor(t, expected, "logits"), labels); !(math.Abs(losses[0]-want) <= 1e-4*want) || losses[1] != 0 {
		t.Errorf("the losses are %v, want %v and 0", losses, want)
	}
	after := states(t, s)
	for _, w := range s.Program().Weights {
		if !bytes.Equal(before[w.Name], after[w.Name]) {
			t.Errorf("a batch without labels changes weight %s", w.Name)
		}
	}
}

// Modules that are no language model are errors, and so are rows that are too short or too long.
func TestLanguageRefuses(t *testing.T) {
	m, err := hf.Builtin().ImportDir("../testdata/hf/llama", hf.Options{DType: dtype.F32})
	if err != nil {
		t.Fatal(err)
	}
	for want, call := range map[string]func() (*ir.Module, error){
		"@forward of ids":   func() (*ir.Module, error) { return train.Language(parseFile(t, "mlp"), 1, 8) },
		"at least 2 tokens": func() (*ir.Module, error) { return train.Language(m.Module, 1, 1) },
		"up to 256":         func() (*ir.Module, error) { return train.Language(m.Module, 1, 257) },
	} {
		if _, err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Operations of a step, by hand: a GEMM of [6, 4] by [4, 8], three times 2·6·8·4, and attention of
// 3 queries over 3 keys in 2 heads of 2, for 2 rows: 3.5 times 2·2·2·3·3·2·2, half if causal.
func TestOperations(t *testing.T) {
	m := testkit.Parse(t, `pwc 1
module "m" {
  weight @w : f32[8, 4]
  func @f(%x: f32[6, 4], %q: f32[2, 3, 2, 2]) -> (f32[6, 8], f32[2, 3, 2, 2], f32[2, 3, 2, 2]) {
    %y = linear(%x, @w)
    %o, %l = attention(%q, %q, %q, scale=1.0)
    %p, %m = attention(%q, %q, %q, scale=1.0, causal=true)
    return %y, %o, %p
  }
}
`)
	if got, want := train.Operations(m.Funcs[0]), int64(3*2*6*8*4+288*7/2+288*7/4); got != want {
		t.Errorf("%d operations, want %d", got, want)
	}
}
