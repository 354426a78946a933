package hf

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// TestLlama3Frequencies compares the frequencies of Llama 3.1 with numbers computed with the reference's formulas in
// Python (transformers' _compute_llama3_parameters, in double precision). Pairs up to 28 keep their frequency, pairs
// from 35 on have an eighth of it, and pairs between are interpolated.
func TestLlama3Frequencies(t *testing.T) {
	d, err := decoderOf(t, base("LlamaForCausalLM").with(settings{
		"head_dim": 128, "rope_theta": 500000.0,
		"rope_scaling": settings{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
			"original_max_position_embeddings": 8192},
	}), nothingMore)
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
	}), nothingMore)
	if err != nil {
		t.Fatal(err)
	}
	// 100^0/2 and 100^(-2/4)/2.
	if got := d.Rope.InvFreq; len(got) != 2 || got[0] != 0.5 || math.Abs(got[1]-0.05) > 1e-8 {
		t.Errorf("frequencies %v, want 0.5 and 0.05", got)
	}
}

// TestYarnFrequencies compares scalings with numbers computed in Python, with the formulas of the paper and of
// transformers' _compute_yarn_parameters. In Qwen2.5, pairs up to 23 keep their frequency, and pairs from 40 on have a
// quarter of it. Another case does not round these indices, and has a gain with mscale and mscale_all_dim.
func TestYarnFrequencies(t *testing.T) {
	for _, c := range []struct {
		headSize int
		base     float64
		scaling  settings
		scale    float64
		want     map[int]float64
	}{
		{128, 1e6, settings{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 1.138629436111989, map[int]float64{
			0: 1, 1: 0.8058421877614819, 23: 0.006978305848598663, 24: 0.005375321490790102, 30: 0.0010643609812470017,
			39: 6.490394320837028e-05, 40: 4.445698525097307e-05, 41: 3.582531425592407e-05, 63: 3.102344401879299e-07,
		}},
		{64, 10000, settings{"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
			"mscale": 1.0, "mscale_all_dim": 0.707, "truncate": false}, 1.0857263992561355, map[int]float64{
			0: 1, 9: 0.07498942093324558, 10: 0.056234132519034905, 11: 0.04036758449441141, 15: 0.008446235311291834,
			20: 0.0007226383418941806, 22: 0.00011838773159168898, 23: 3.33380358040831e-05, 24: 2.5e-05, 31: 3.33380358040831e-06,
		}},
		// The context is so short that only the fastest pair keeps its frequency.
		{4, 100, settings{"type": "yarn", "factor": 4, "original_max_position_embeddings": 4, "attention_factor": 1}, 1, map[int]float64{0: 1, 1: 0.025}},
		{4, 100, settings{"type": "yarn", "factor": 0.5, "original_max_position_embeddings": 4}, 1, map[int]float64{0: 1, 1: 0.2}},
		// mscale has no effect without mscale_all_dim, and the reverse.
		{4, 100, settings{"type": "yarn", "factor": 4, "original_max_position_embeddings": 4, "mscale": 0.5}, 1.138629436111989, nil},
		{4, 100, settings{"type": "yarn", "factor": 4, "original_max_position_embeddings": 4, "mscale_all_dim": 0.5}, 1.138629436111989, nil},
		// The base is so small that pairs up to 22 would be interpolated. The bound is 2·4 - 1 = 7.
		{8, 2, settings{"type": "yarn", "factor": 4, "original_max_position_embeddings": 248}, 1.138629436111989, map[int]float64{
			0: 1, 1: 0.8408964152537145, 2: 0.6187184335382291, 3: 0.4459526681260204,
		}},
	} {
		d, err := decoderOf(t, base("LlamaForCausalLM").with(settings{"head_dim": c.headSize, "rope_theta": c.base, "rope_scaling": c.scaling}), nothingMore)
		if err != nil {
			t.Error(err)
			continue
		}
		if want := float64(float32(c.scale)); d.Rope.Scale != want {
			t.Errorf("cosines and sines times %v, want %v", d.Rope.Scale, want)
		}
		for i, want := range c.want {
			if got := d.Rope.InvFreq[i]; math.Abs(got-want) > 1e-7*want {
				t.Errorf("head of %d, pair %d: %v, want %v", c.headSize, i, got, want)
			}
		}
	}
}

// TestLongFrequencies checks the choice of factors by the longest sequence to be served: short_factor up to 4096. The
// rope rotates 4 elements, with frequencies 1 and 100^(-2/4) before scaling, and the scale is sqrt(1 + ln 32/ln 4096).
func TestLongFrequencies(t *testing.T) {
	scaling := settings{"rope_type": "longrope", "short_factor": []float64{1, 2}, "long_factor": []float64{4, 8}}
	for _, c := range []struct {
		context int64
		edits   settings
		freq    []float64
		scale   float64
	}{
		{4096, settings{}, []float64{1, 0.05}, 1.1902380714238083},
		{4097, settings{}, []float64{0.25, 0.0125}, 1.1902380714238083},
		{1, settings{"factor": 0.5}, []float64{1, 0.05}, 1},
		{1 << 20, settings{"attention_factor": 1.25}, []float64{0.25, 0.0125}, 1.25},
	} {
		text := base("Phi3ForCausalLM").with(settings{"rope_theta": 100, "rope_scaling": scaling.with(c.edits),
			"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}).json(t)
		config, err := parseConfig(text)
		if err != nil {
			t.Fatal(err)
		}
		config.context = c.context
		got := ReadRope(config, 4, RopeKeys{})
		if len(config.report.problems) > 0 {
			t.Errorf("context %d: %v", c.context, config.report.problems)
		}
		if want := float64(float32(c.scale)); got.Scale != want {
			t.Errorf("context %d: cosines and sines times %v, want %v", c.context, got.Scale, want)
		}
		if !slices.EqualFunc(got.InvFreq, c.freq, func(a, b float64) bool { return math.Abs(a-b) <= 1e-7*b }) {
			t.Errorf("context %d: frequencies %v, want %v", c.context, got.InvFreq, c.freq)
		}
	}
}

// TestDynamicFrequencies checks the base beyond 16 tokens: for 33, with factor 2, it is 100·(2·33/16 - 1)^(4/2).
func TestDynamicFrequencies(t *testing.T) {
	config := base("LlamaForCausalLM").with(settings{"head_dim": 4, "rope_theta": 100, "max_position_embeddings": 16, "rope_scaling": settings{"type": "dynamic", "factor": 2}})
	for context, want := range map[int64]float64{0: 0.1, 16: 0.1, 33: 0.032} {
		c, err := parseConfig(config.json(t))
		if err != nil {
			t.Fatal(err)
		}
		c.context = context
		rope := ReadRope(c, 4, RopeKeys{})
		if len(c.report.problems) > 0 || rope.InvFreq[0] != 1 || math.Abs(rope.InvFreq[1]-want) > 1e-7 || rope.Scale != 1 {
			t.Errorf("context %d: %v, times %v: %v", context, rope.InvFreq, rope.Scale, c.report.problems)
		}
	}
}

// A rope with YaRN scaling supports the original length times the factor, or max_position_embeddings if that is more.
// Options.Context takes precedence.
func TestYarnReaches(t *testing.T) {
	yarn := settings{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
	for _, c := range []struct {
		edits   settings
		context int64
		want    int64
	}{
		{settings{"max_position_embeddings": 256, "rope_scaling": yarn}, 0, 1024},
		{settings{"max_position_embeddings": 1024, "rope_scaling": yarn}, 0, 1024},
		{settings{"max_position_embeddings": 2000, "rope_scaling": yarn}, 0, 2000},
		{settings{"max_position_embeddings": 256, "rope_scaling": yarn}, 300, 300},
		{settings{"max_position_embeddings": 256, "rope_scaling": settings{"type": "yarn", "factor": 2}}, 0, 512},
	} {
		m, err := Builtin().Import(base("LlamaForCausalLM").with(c.edits).json(t), Options{Context: c.context})
		if err != nil || m.MaxPositions != c.want || m.Module.Context != c.want {
			t.Errorf("%v, context %d: %v, want %d: %v", c.edits, c.context, m, c.want, err)
		}
	}
}

func TestScalingRefusals(t *testing.T) {
	yarn := settings{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
	long := settings{"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 16,
		"short_factor": []float64{1, 2}, "long_factor": []float64{4, 8}}
	for _, c := range []struct {
		edits settings
		want  string
	}{
		{settings{"rope_scaling": yarn.with(settings{"original_max_position_embeddings": absent{}})}, `"max_position_embeddings": is missing`},
		{settings{"rope_scaling": settings{"rope_type": "dynamic", "factor": 2}}, `"max_position_embeddings": is missing`},
		{settings{"rope_scaling": settings{"rope_type": "dynamic"}, "max_position_embeddings": 16}, `"rope_scaling.factor": is missing`},
		{settings{"rope_scaling": settings{"rope_type": "dynamic", "factor": 2}, "max_position_embeddings": 16, "head_dim": 2}, "one pair of elements"},
		{settings{"rope_scaling": yarn.with(settings{"factor": absent{}})}, `"max_position_embeddings": is missing`},
		{settings{"rope_scaling": yarn.with(settings{"factor": 0})}, "0 is not above 0"},
		{settings{"rope_scaling": yarn.with(settings{"beta_fast": 1, "beta_slow": 2})}, "1 must not be below beta_slow, 2"},
		{settings{"rope_scaling": yarn, "rope_theta": 1}, "the base, 1, must not be 1"},
		{settings{"rope_scaling": yarn.with(settings{"truncate": 1})}, "1 is not true or false"},
		{settings{"rope_scaling": yarn.with(settings{"finetuned": true})}, `"rope_scaling.finetuned"`},
		{settings{"rope_scaling": yarn.with(settings{"attention_factor": -1})}, "-1 is not above 0"},
		{settings{"rope_scaling": yarn, "original_max_position_embeddings": 32}, "16 contradicts original_max_position_embeddings of the file, 32"},
		{settings{"rope_scaling": yarn.with(settings{"mscale": 1e300, "mscale_all_dim": 1e-300})}, "outside the range of f32"},
		{settings{"rope_scaling": long.with(settings{"long_factor": absent{}})}, "short_factor has 2 factors and long_factor 0: both must have 2"},
		{settings{"rope_scaling": long.with(settings{"short_factor": []float64{1}})}, "short_factor has 1 factors"},
		{settings{"rope_scaling": long.with(settings{"long_factor": []float64{1, 0}})}, `"rope_scaling.long_factor": 0 is not above 0`},
		{settings{"rope_scaling": long.with(settings{"long_factor": "x"})}, "is not a list of numbers"},
		{settings{"rope_scaling": long.with(settings{"original_max_position_embeddings": 1})}, "1 cannot be scaled"},
		{settings{"rope_scaling": yarn, "rope_theta": 1e-200}, "is outside the range of f32"},
		{settings{"rope_parameters": yarn, "rope_scaling": yarn.with(settings{"attention_factor": 2})}, `"rope_scaling": contradicts rope_parameters`},
	} {
		_, err := Builtin().Import(base("LlamaForCausalLM").with(c.edits).json(t), Options{Context: 64})
		var ce *ConfigError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want …%s…", c.edits, err, c.want)
		}
	}
	if _, err := Builtin().Import(base("LlamaForCausalLM").json(t), Options{Context: -1}); err == nil {
		t.Error("a context below 0 is accepted")
	}
}
