package runner

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"pwc/ir/dtype"
	"pwc/ir/interp"
)

// processed is a case of testdata/sampling/processors.py.
type processed struct {
	Logits []float32 `json:"logits"`

	Repetition float32   `json:"repetition"`
	IDs        []int32   `json:"ids"`
	Scores     []float32 `json:"scores"`

	Temperature   float32   `json:"temperature"`
	MinP          float32   `json:"min_p"`
	TopK          int64     `json:"top_k"`
	TopP          float32   `json:"top_p"`
	Probabilities []float64 `json:"probabilities"`
}

// Adjusted logits are those of transformers' processors, and tokens are chosen with the probabilities
// after its warpers.
func TestTransformersProcessors(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "testdata", "sampling", "processors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []processed
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	penalties, warped := 0, 0
	for i, c := range cases {
		if c.Scores != nil {
			penalties++
			counts := map[int32]float32{}
			for _, id := range c.IDs {
				counts[id] = inPrompt
			}
			for id, got := range adjusted(t, []adjustment{{logits: c.Logits, counts: counts, repetition: c.Repetition}})[0] {
				if want := c.Scores[id]; math.Abs(float64(got-want)) > 1e-6*math.Abs(float64(want)) {
					t.Errorf("case %d: token %d has %g, want %g", i, id, got, want)
				}
			}
			continue
		}
		warped++
		holdProbabilities(t, i, &c)
	}
	if penalties < 9 || warped < 8 {
		t.Errorf("%d cases of penalties, %d of choices", penalties, warped)
	}
}

// holdProbabilities draws many tokens and compares their frequencies with the probabilities of a case,
// within six standard deviations. A token with probability 0 must never be drawn.
func holdProbabilities(t *testing.T, number int, c *processed) {
	t.Helper()
	const rows, batches = 64, 12
	const draws = rows * batches
	m := sampling(t, int64(len(c.Logits)))
	var logits []float32
	vector := func(v float32) *interp.Tensor {
		x := must(interp.Zeros(dtype.F32, []int64{rows}))
		for i := range rows {
			x.Set(i, float64(v))
		}
		return x
	}
	seed, position, topK := must(interp.Zeros(dtype.I64, []int64{rows})), must(interp.Zeros(dtype.I64, []int64{rows})), must(interp.Zeros(dtype.I64, []int64{rows}))
	for i := range rows {
		logits = append(logits, c.Logits...)
		seed.SetInt(i, 11)
		topK.SetInt(i, c.TopK)
	}
	drawn := make([]int, len(c.Logits))
	for batch := range batches {
		for i := range rows {
			position.SetInt(i, int64(batch*rows+i))
		}
		for _, id := range evaluate(t, m, minPFunc, must(interp.FromF32([]int64{rows, int64(len(c.Logits))}, logits)), vector(c.Temperature), seed, position,
			vector(c.TopP), vector(c.MinP), topK)[0].Int64s() {
			drawn[id]++
		}
	}
	for id, n := range drawn {
		p := c.Probabilities[id]
		if deviation := math.Sqrt(draws * p * (1 - p)); math.Abs(float64(n)-draws*p) > 6*deviation+1e-9 {
			t.Errorf("case %d: token %d was drawn %d times of %d, want %.0f ± %.0f", number, id, n, draws, draws*p, deviation)
		}
	}
}
