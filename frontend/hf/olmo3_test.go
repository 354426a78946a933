package hf

import (
	"slices"
	"testing"
)

func TestOLMo3(t *testing.T) {
	const arch = "Olmo3ForCausalLM"
	types := slices.Repeat([]string{slidingAttention, slidingAttention, slidingAttention, fullAttention}, 8)
	yarn := settings{"attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"}
	config := settings{
		"architectures": []string{arch}, "attention_bias": false, "attention_dropout": 0.0, "dtype": "bfloat16", "eos_token_id": 100257,
		"hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "layer_types": types,
		"max_position_embeddings": 65536, "model_type": "olmo3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
		"pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": yarn, "rope_theta": 500000, "sliding_window": 4096,
		"tie_word_embeddings": false, "transformers_version": "4.57.0", "use_cache": true, "vocab_size": 100278,
	}
	published{"Olmo-3-1025-7B", config, 7_298_011_136, 32, "bf16[B, 2, 16, 32, 128]"}.check(t, Options{})

	scaling := settings{"rope_type": "linear", "factor": 2.0}
	sameModules(t, arch, settings{}, settings{"sliding_window": 4096, "layer_types": []string{slidingAttention, slidingAttention}}, settings{"rope_theta": 500000})
	sameModules(t, arch, settings{"rope_scaling": scaling, "layer_types": []string{fullAttention, slidingAttention}},
		settings{"layer_types": []string{fullAttention, slidingAttention}, "rope_parameters": settings{
			fullAttention: scaling.with(settings{"rope_theta": 500000}), slidingAttention: settings{"rope_type": "default"}}})
	otherModules(t, arch, settings{"sliding_window": 9}, settings{"layer_types": []string{slidingAttention, fullAttention}}, settings{"attention_bias": true},
		settings{"rope_theta": 10000}, settings{"layer_types": []string{fullAttention, fullAttention}, "rope_scaling": scaling})
	refuse(t, arch, refused{settings{"layer_types": []string{"x", "y"}}, `"x" of layer 0 is not supported`})
}
