package hf

import "testing"

func TestGranite(t *testing.T) {
	const arch = "GraniteForCausalLM"
	config := settings{
		"architectures": []string{arch}, "attention_bias": false, "attention_dropout": 0.1, "attention_multiplier": 0.015625, "bos_token_id": 0,
		"embedding_multiplier": 12.0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
		"intermediate_size": 8192, "logits_scaling": 8.0, "max_position_embeddings": 4096, "mlp_bias": false, "model_type": "granite",
		"num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0, "residual_multiplier": 0.22,
		"rms_norm_eps": 1e-05, "rope_scaling": nil, "rope_theta": 10000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
		"transformers_version": "4.46.0.dev0", "use_cache": true, "vocab_size": 49155,
	}
	published{"granite-3.0-2b-base", config, 2_533_531_648, 40, "bf16[B, 2, 16, 8, 64]"}.check(t, Options{})
	sameModules(t, arch, settings{}, settings{"attention_multiplier": 1.0, "embedding_multiplier": 1, "logits_scaling": 1.0, "residual_multiplier": 1})
	otherModules(t, arch, settings{"attention_multiplier": 0.5}, settings{"embedding_multiplier": 12.0}, settings{"logits_scaling": 8.0},
		settings{"residual_multiplier": 0.22}, settings{"attention_bias": true}, settings{"mlp_bias": true})
	refuse(t, arch,
		refused{settings{"logits_scaling": 0}, "0 is not above 0"},
		refused{settings{"num_local_experts": 4}, `"num_local_experts"`},
	)
}
