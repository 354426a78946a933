package hf

import "testing"

func TestEXAONE4(t *testing.T) {
	const arch = "Exaone4ForCausalLM"
	llama3 := settings{"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}
	small := settings{
		"architectures": []string{arch}, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 361, "head_dim": 64, "hidden_act": "silu",
		"hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 4096, "max_position_embeddings": 65536, "model_type": "exaone4",
		"num_attention_heads": 32, "num_hidden_layers": 30, "num_key_value_heads": 8, "pad_token_id": 0, "rms_norm_eps": 1e-05,
		"rope_scaling": llama3, "rope_theta": 1000000, "sliding_window": nil, "sliding_window_pattern": nil, "tie_word_embeddings": true,
		"torch_dtype": "bfloat16", "transformers_version": "4.54.0", "use_cache": true, "vocab_size": 102400,
	}
	// 102400·2048 + 30·(2·2048² + 2·512·2048 + 3·4096·2048 + 2·2048 + 2·64) + 2048
	published{"EXAONE-4.0-1.2B", small, 1_279_391_488, 30, "bf16[B, 2, 16, 8, 64]"}.check(t, Options{})

	four := settings{"num_hidden_layers": 4}
	windows := func(types ...string) settings { return four.with(settings{"sliding_window": 9, "layer_types": types}) }
	const w, f = slidingAttention, fullAttention
	sameModules(t, arch, windows(w, w, w, f), four.with(settings{"sliding_window": 9}), four.with(settings{"sliding_window": 9, "sliding_window_pattern": 4}),
		four.with(settings{"sliding_window": 9, "sliding_window_pattern": "LLLG"}))
	sameModules(t, arch, windows(w, f, w, f), four.with(settings{"sliding_window": 9, "sliding_window_pattern": "LG"}), four.with(settings{"sliding_window": 9, "sliding_window_pattern": 2}))
	sameModules(t, arch, four.with(settings{"sliding_window": nil}), four.with(settings{"sliding_window": nil, "sliding_window_pattern": "LG"}))
	// Without sliding_window all layers have a rope; with it, only the layers that have a window.
	otherModules(t, arch, settings{"sliding_window": nil}, settings{"sliding_window": 9, "sliding_window_pattern": nil}, settings{"sliding_window": 9, "sliding_window_pattern": 2})
	sameModules(t, arch, settings{"sliding_window": 9, "sliding_window_pattern": nil}, settings{"sliding_window": 9, "sliding_window_pattern": 0}, settings{"sliding_window": 9, "sliding_window_pattern": ""})
	refuse(t, arch, refused{settings{"sliding_window_pattern": "LX"}, `"LX" has other letters than L and G`}, refused{settings{"sliding_window_pattern": -1}, "-1 is not in [0, "})
}
