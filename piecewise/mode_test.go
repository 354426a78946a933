package piecewise

import (
	"slices"
	"testing"
)

// The lists are vLLM's defaults (VllmConfig._set_cudagraph_sizes) for a max_num_batched_tokens of the
// limit and a max_num_seqs of at least 256, from 1 on, 51 sizes up to 512; and the limit itself where
// vLLM omits it: 3, 27 and 300 are off its strides.
func TestDefaultCaptureSizes(t *testing.T) {
	small := []int64{1, 2, 4, 8, 16, 24}
	for limit, want := range map[int64][]int64{0: nil, 1: {1}, 3: {1, 2, 3}, 4: {1, 2, 4}, 24: small, 27: append(slices.Clone(small), 27)} {
		if got := DefaultCaptureSizes(limit); !slices.Equal(got, want) {
			t.Errorf("sizes up to %d: %v, want %v", limit, got, want)
		}
	}
	all := DefaultCaptureSizes(8192)
	if len(all) != 51 || all[50] != 512 || all[33] != 248 || all[34] != 256 || all[35] != 272 {
		t.Errorf("sizes up to 8192: %v; want 51 of them: …, 248, 256, 272, …, 512", all)
	}
	if got := DefaultCaptureSizes(300); got[len(got)-1] != 300 || got[len(got)-2] != 288 {
		t.Errorf("sizes up to 300 end in %v, want 288, 300", got[len(got)-2:])
	}
}

func TestParseMode(t *testing.T) {
	for m := None; m <= FullAndPiecewise; m++ {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Errorf("ParseMode(%q) = %v, %v", m.String(), got, err)
		}
	}
	if _, err := ParseMode("partial"); err == nil {
		t.Error(`ParseMode accepts "partial", which is no mode`)
	}
}
