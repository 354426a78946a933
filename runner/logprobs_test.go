package runner

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"pwc/piecewise"
	"pwc/safetensors"
)

// logSoftmax returns log probabilities, computed in float64, and the n most probable ids in descending
// order; of equal ones the lowest comes first.
func logSoftmax(logits []float32, n int) (all []float64, top []int32) {
	sum, most := 0.0, slices.Max(logits)
	for _, x := range logits {
		sum += math.Exp(float64(x) - float64(most))
	}
	for i, x := range logits {
		all, top = append(all, float64(x)-float64(most)-math.Log(sum)), append(top, int32(i))
	}
	slices.SortStableFunc(top, func(a, b int32) int { return cmp.Compare(logits[b], logits[a]) })
	return all, top[:n]
}

func holdLogprobs(t *testing.T, what string, l TokenLogprobs, id int32, logits []float32, n int) {
	t.Helper()
	all, top := logSoftmax(logits, n)
	if l.ID != id || math.Abs(float64(l.Logprob.Logprob)-all[id]) > 1e-4 {
		t.Errorf("%s: token %d has %g, want token %d with %g", what, l.ID, l.Logprob.Logprob, id, all[id])
	}
	if len(l.Top) != n {
		t.Fatalf("%s: %d most probable tokens, want %d", what, len(l.Top), n)
	}
	for i, got := range l.Top {
		if got.ID != top[i] || math.Abs(float64(got.Logprob)-all[top[i]]) > 1e-4 {
			t.Errorf("%s: place %d has token %d with %g, want %d with %g", what, i, got.ID, got.Logprob, top[i], all[top[i]])
		}
	}
}

// tensorOf returns the elements of a tensor, of four bytes each, and the size of its last dimension.
func tensorOf(t *testing.T, name, tensor string) ([]uint32, int) {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(checkpoints, name, "expected.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, err := f.Tensor(tensor)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]uint32, len(x.Data)/4)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(x.Data[4*i:])
	}
	return out, int(x.Shape[len(x.Shape)-1])
}

// Log probabilities of a prompt follow from transformers' logits, also if a chunk has more rows than
// @logits takes. Those of an answer are the same in a prompt that contains the answer. Preemptions
// change nothing.
func TestLogprobsOfTransformers(t *testing.T) {
	ids, length := tensorOf(t, "llama", "input_ids")
	bits, v := tensorOf(t, "llama", "logits")
	prompt, logits := make([]int32, length), make([][]float32, length)
	for i := range prompt {
		prompt[i] = int32(ids[i])
		for _, b := range bits[i*v : (i+1)*v] {
			logits[i] = append(logits[i], math.Float32frombits(b))
		}
	}
	greedy := expected(t, "llama")
	const top = 5
	for _, c := range []struct {
		mode   piecewise.Mode
		blocks int
	}{{piecewise.None, 60}, {piecewise.FullAndPiecewise, 60}, {piecewise.Piecewise, 9}} {
		r := llama(t, Options{MaxSequences: 3, MaxTokens: 8, Blocks: c.blocks, Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: c.mode, Sizes: []int64{1, 2, 4, 8}}}})
		all := Logprobs{Answer: true, Prompt: true, Top: top}
		beside := submit(t, r, Request{Prompt: []int32{3, 4}, MaxNew: 20, Sampling: Sampling{Temperature: 1}})
		long := submit(t, r, Request{Prompt: prompt, MaxNew: 1, Logprobs: all})
		answer := submit(t, r, Request{Prompt: greedy[:9], MaxNew: len(greedy) - 9, Logprobs: all})
		whole := submit(t, r, Request{Prompt: greedy, MaxNew: 1, Logprobs: Logprobs{Prompt: true, Top: top}})
		drain(t, r)
		for _, s := range []*Sequence{beside, long, answer, whole} {
			if s.Err() != nil {
				t.Fatal(s.Err())
			}
		}
		if preempted := r.Stats().Preempted > 0; preempted != (c.blocks == 9) {
			t.Errorf("%d blocks: %d preemptions", c.blocks, r.Stats().Preempted)
		}
		scores := long.PromptLogprobs()
		if len(scores) != length || scores[0].Top != nil {
			t.Fatalf("%d tokens of the prompt are scored, the first has %v", len(scores), scores[0])
		}
		for i := 1; i < length; i++ {
			holdLogprobs(t, "prompt", scores[i], prompt[i], logits[i-1], top)
		}
		last, ok := long.Logprobs(0)
		if !ok {
			t.Fatal("no log probability of the first token")
		}
		holdLogprobs(t, "the first token", last, long.IDs()[length], logits[length-1], top)
		if !slices.Equal(answer.IDs(), greedy) {
			t.Fatalf("%v, want %v", answer.IDs(), greedy)
		}
		in := whole.PromptLogprobs()
		for i := range len(greedy) - 9 {
			got, ok := answer.Logprobs(i)
			want := in[9+i]
			if !ok || got.ID != want.ID || math.Abs(float64(got.Logprob.Logprob-want.Logprob.Logprob)) > 1e-4 || !slices.EqualFunc(got.Top, want.Top, func(a, b Logprob) bool { return a.ID == b.ID }) {
				t.Errorf("token %d of the answer: %+v, in a prompt %+v", i, got, want)
			}
		}
		if _, ok := beside.Logprobs(0); ok || beside.PromptLogprobs() != nil {
			t.Error("a request that did not ask has log probabilities")
		}
		if _, ok := whole.Logprobs(0); ok {
			t.Error("a request that asked only for the prompt has log probabilities of the answer")
		}
	}
}

// Log probabilities of an answer are computed after masks and biases and before the temperature. A reader
// gets them together with the token.
func TestLogprobsOfAdjustedLogits(t *testing.T) {
	r := flatRunner(t, Options{MaxSequences: 2, MaxTokens: 6, Blocks: 8})
	s := submit(t, r, Request{Prompt: []int32{1}, MaxNew: 3, Logprobs: Logprobs{Answer: true, Top: 3},
		Sampling: Sampling{Temperature: 9, Seed: 3, Allowed: []int32{0, 4}, LogitBias: map[int32]float64{0: 2}}})
	done := make(chan error)
	go func() {
		n := 0
		var err error
		for id, e := range s.Tokens(context.Background()) {
			l, ok := s.Logprobs(n)
			if err = errors.Join(err, e); !ok || l.ID != id {
				err = errors.Join(err, errors.New("a token has no log probability, or another's"))
			}
			if _, ok := s.Logprobs(n + 3); ok {
				err = errors.Join(err, errors.New("a token after the end has one"))
			}
			n++
		}
		done <- err
	}()
	drain(t, r)
	if err := <-done; err != nil {
		t.Error(err)
	}
	// The model's logit of token i is i/4. With the bias, token 0 has 2 and token 4 has 1.
	l, _ := s.Logprobs(0)
	want := map[int32]float64{0: -math.Log(1 + math.Exp(-1)), 4: -1 - math.Log(1+math.Exp(-1))}
	if got := float64(l.Logprob.Logprob); math.Abs(got-want[l.ID]) > 1e-6 {
		t.Errorf("token %d has %g, want %g", l.ID, got, want[l.ID])
	}
	if l.Top[0].ID != 0 || l.Top[1].ID != 4 || math.Abs(float64(l.Top[1].Logprob)-want[4]) > 1e-6 || !math.IsInf(float64(l.Top[2].Logprob), -1) {
		t.Errorf("the most probable are %v", l.Top)
	}
	for _, n := range []int{-1, 9, MaxLogprobs + 1} { // the vocabulary has 8 tokens
		if _, err := r.Submit(context.Background(), Request{Prompt: []int32{1}, MaxNew: 1, Logprobs: Logprobs{Top: n}}); !errors.Is(err, ErrRequest) {
			t.Errorf("%d most probable tokens: %v", n, err)
		}
	}
}
