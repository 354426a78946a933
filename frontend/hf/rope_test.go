package hf

import (
	"math"
	"testing"
)

// TestLlama3Frequencies holds the frequencies of Llama 3.1 against numbers computed with the reference's formulas in
// Python (transformers' _compute_llama3_parameters, in double precision). Pairs up to 28 keep their frequency, from 35 on
// they have an eighth of it, and those between are blended.
func TestLlama3Frequencies(t *testing.T) {
	d, err := decoderOf(t, base("LlamaForCausalLM").with(settings{
		"head_dim": 128, "rope_theta": 500000.0,
		"rope_scaling": settings{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
			"original_max_position_embeddings": 8192},
	}), nothingMore, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Rope.InvFreq) != 64 {
		t.Fatalf("%d frequencies, want 64", len(d.Rope.InvFreq))
	}
	for i, want := range map[int]float64{
		0: 1, 1: 0.8146172338565447, 16: 0.03760603093086393, 28: 0.0032114459947525913,
		29: 0.002166570763503359, 30: 0.0013718935677611381, 33: 0.00031269375038406517,
		35: 9.556212353964683e-05, 36: 7.78465527393245e-05, 40: 3.428102195952591e-05, 63: 3.068925988914511e-07,
	} {
		if got := d.Rope.InvFreq[i]; got != float64(float32(want)) {
			t.Errorf("pair %d: %v, want %v rounded to f32", i, got, want)
		}
	}
}

func TestLinearFrequencies(t *testing.T) {
	d, err := decoderOf(t, base("LlamaForCausalLM").with(settings{
		"head_dim": 4, "rope_theta": 100, "rope_scaling": settings{"type": "linear", "factor": 2},
	}), nothingMore, 0)
	if err != nil {
		t.Fatal(err)
	}
	// 100^0/2 and 100^(-2/4)/2.
	if got := d.Rope.InvFreq; len(got) != 2 || got[0] != 0.5 || math.Abs(got[1]-0.05) > 1e-8 {
		t.Errorf("frequencies %v, want 0.5 and 0.05", got)
	}
}
