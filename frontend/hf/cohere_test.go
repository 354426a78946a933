package hf

import "testing"

func TestCohere(t *testing.T) {
	const arch = "CohereForCausalLM"
	config := settings{
		"architectures": []string{arch}, "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 5, "eos_token_id": 255001,
		"hidden_act": "silu", "hidden_size": 8192, "initializer_range": 0.02, "intermediate_size": 22528, "layer_norm_eps": 1e-05,
		"logit_scale": 0.0625, "max_position_embeddings": 8192, "model_max_length": 131072, "model_type": "cohere", "num_attention_heads": 64,
		"num_hidden_layers": 40, "num_key_value_heads": 64, "pad_token_id": 0, "pretraining_tp": 1, "rope_theta": 8000000.0, "torch_dtype": "float16",
		"transformers_version": "4.38.2", "use_cache": true, "vocab_size": 256000,
	}
	published{"c4ai-command-r-v01", config, 34_980_831_232, 40, "f16[B, 2, 16, 64, 128]"}.check(t, Options{})

	sameModules(t, arch, settings{}, settings{"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "use_qk_norm": false, "tie_word_embeddings": true, "rope_theta": 500000})
	otherModules(t, arch, settings{"logit_scale": 1}, settings{"use_qk_norm": true}, settings{"layer_norm_eps": 1e-6}, settings{"attention_bias": true},
		settings{"num_key_value_heads": 2}, settings{"tie_word_embeddings": false})
	refuse(t, arch, refused{settings{"logit_scale": 0}, "0 is not above 0"}, refused{settings{"rms_norm_eps": 1e-5}, `"rms_norm_eps"`})
}

func TestCohere2(t *testing.T) {
	const arch = "Cohere2ForCausalLM"
	four := settings{"num_hidden_layers": 4}
	const w, f = slidingAttention, fullAttention
	sameModules(t, arch, four, four.with(settings{"layer_types": []string{w, w, w, f}}), four.with(settings{"sliding_window_pattern": 4, "sliding_window": 4096}),
		four.with(settings{"_sliding_window_pattern": 4}))
	otherModules(t, arch, four, four.with(settings{"sliding_window_pattern": 2}), four.with(settings{"sliding_window": 9}), four.with(settings{"layer_types": []string{f, f, f, f}}))
}
