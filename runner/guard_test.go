package runner

import (
	"slices"
	"testing"

	"pwc/piecewise"
)

// Answers are the same with canaries between buffers, and with NaN in memory that a run must write before
// it reads it: no function reads values that another run left.
func TestGuarded(t *testing.T) {
	list := mixture(3, 12, 12)
	for _, mode := range []piecewise.Mode{piecewise.None, piecewise.FullAndPiecewise} {
		o := Options{Backend: piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{1, 4, 8, 24}}}, MaxSequences: 8, MaxTokens: 24, Blocks: 60}
		want := alone(t, llama(t, o), list)
		o.Backend.Debug.Canary, o.Backend.Debug.Poison = piecewise.CanaryBytes, true
		r := llama(t, o)
		var seqs []*Sequence
		for _, q := range list {
			seqs = append(seqs, submit(t, r, q))
		}
		drain(t, r)
		for i, s := range seqs {
			if !slices.Equal(s.IDs(), want[i]) {
				t.Errorf("mode %s, request %d: %v (%v), want %v", mode, i, s.IDs(), s.Err(), want[i])
			}
		}
		if err := r.Backend().CheckCanaries(); err != nil {
			t.Error(err)
		}
	}
}
