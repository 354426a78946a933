package hf

import "testing"

func TestOLMo2(t *testing.T) {
	const arch = "Olmo2ForCausalLM"
	config := settings{
		"architectures": []string{arch}, "attention_bias": false, "attention_dropout": 0.0, "eos_token_id": 100257, "hidden_act": "silu",
		"hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2",
		"num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
		"rope_scaling": nil, "rope_theta": 500000, "tie_word_embeddings": false, "torch_dtype": "float32", "transformers_version": "4.47.0",
		"use_cache": true, "vocab_size": 100352,
	}
	published{"OLMo-2-1124-7B", config, 7_298_617_344, 32, "f32[B, 2, 16, 32, 128]"}.check(t, Options{})
	sameModules(t, arch, settings{}, settings{"rms_norm_eps": 1e-5}, settings{"num_key_value_heads": 4}, settings{"num_key_value_heads": nil})
	otherModules(t, arch, settings{"attention_bias": true}, settings{"num_key_value_heads": 2}, settings{"rms_norm_eps": 1e-6}, settings{"tie_word_embeddings": true})
	refuse(t, arch, refused{settings{"clip_qkv": 8.0}, `"clip_qkv"`}, refused{settings{"layer_types": []string{fullAttention, slidingAttention}}, `"layer_types"`})
}
