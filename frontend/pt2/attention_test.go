package pt2

import "testing"

// TestAttentions checks which calls become the op attention. In the archive causal, the first six calls are causal: two
// by is_causal, and one by each of four kinds of mask. The next one has a mask with a window and stays plain, and the
// last one hides keys by the lowest finite number. In sdpa, three calls stay plain, because they have a mask of numbers,
// no heads, or values of another size. Masks of language models compare indices for each sequence of the batch, whose
// size is dynamic or fixed; only that of mistral has a window.
func TestAttentions(t *testing.T) {
	for _, c := range []struct {
		name         string
		dims         map[string]int64
		fused, plain int
	}{
		{"causal", nil, 7, 1},
		{"sdpa", nil, 6, 3},
		{"hf-static-llama", map[string]int64{"s23": 3}, 1, 0},
		{"hf-static-gpt2", map[string]int64{"s23": 3}, 1, 0},
		{"hf-static-mistral", map[string]int64{"s23": 3}, 0, 1},
		{"hf-static-llama", nil, 1, 0},
		{"hf-static-gpt2", nil, 1, 0},
		{"hf-static-mistral", nil, 0, 1},
	} {
		a := open(t, c.name)
		m, err := a.Import(Options{Dims: c.dims})
		if err != nil {
			t.Fatal(c.name, err)
		}
		if got := m.Attentions; got.Fused != c.fused || got.Plain != c.plain || (got.Plain > 0) != (got.Why != "") {
			t.Errorf("%s %v: %+v, want %d fused and %d plain", c.name, c.dims, got, c.fused, c.plain)
		}
	}
}
