package hf

import "testing"

func TestSmolLM3(t *testing.T) {
	const arch = "SmolLM3ForCausalLM"
	config := settings{
		"architectures": []string{arch}, "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": nil, "eos_token_id": 128012,
		"hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 65536,
		"max_window_layers": 28, "mlp_bias": false, "model_type": "smollm3", "no_rope_layer_interval": 4, "num_attention_heads": 16,
		"num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-06,
		"rope_scaling": nil, "rope_theta": 5000000.0, "sliding_window": nil, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
		"transformers_version": "4.53.0", "use_cache": false, "use_sliding_window": false, "vocab_size": 128256,
	}
	published{"SmolLM3-3B", config, 3_075_098_624, 36, "bf16[B, 2, 16, 4, 128]"}.check(t, Options{})

	sameModules(t, arch, settings{"no_rope_layer_interval": 2}, settings{"no_rope_layers": []int{1, 0}}, settings{"no_rope_layers": []int{1, 0, 0}, "no_rope_layer_interval": 1},
		settings{"no_rope_layers": []int{1, 0}, "sliding_window": 9})
	sameModules(t, arch, settings{"no_rope_layer_interval": 2, "use_sliding_window": true, "sliding_window": 9},
		settings{"no_rope_layer_interval": 2, "use_sliding_window": true, "sliding_window": 9, "layer_types": []string{fullAttention, slidingAttention}})
	otherModules(t, arch, settings{"no_rope_layers": []int{0, 1}}, settings{"no_rope_layers": []int{1, 0}}, settings{"no_rope_layers": []int{0, 0}},
		settings{"no_rope_layer_interval": 2, "use_sliding_window": true, "sliding_window": 9}, settings{"attention_bias": true}, settings{"mlp_bias": true},
		settings{"tie_word_embeddings": false}, settings{"rope_theta": 10000})
	refuse(t, arch,
		refused{settings{"no_rope_layers": []int{1}}, "has 1 entries for 2 layers"},
		refused{settings{"no_rope_layers": []int{1, 2}}, "2 of layer 1 is neither 0 nor 1"},
		refused{settings{"no_rope_layer_interval": 0}, "0 is not in [1, "},
	)
}
