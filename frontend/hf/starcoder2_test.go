package hf

import "testing"

func TestStarCoder2(t *testing.T) {
	const arch = "Starcoder2ForCausalLM"
	small := settings{
		"architectures": []string{arch}, "attention_dropout": 0.1, "residual_dropout": 0.1, "embedding_dropout": 0.1, "bos_token_id": 0,
		"eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "initializer_range": 0.018042, "intermediate_size": 12288,
		"max_position_embeddings": 16384, "mlp_type": "default", "model_type": "starcoder2", "norm_epsilon": 1e-05, "num_attention_heads": 24,
		"num_hidden_layers": 30, "num_key_value_heads": 2, "rope_theta": 999999.4420358813, "sliding_window": 4096, "torch_dtype": "bfloat16",
		"transformers_version": "4.37.0.dev0", "use_bias": true, "use_cache": true, "vocab_size": 49152,
	}
	large := small.with(settings{
		"hidden_size": 6144, "intermediate_size": 24576, "norm_type": "layer_norm", "num_attention_heads": 48, "num_hidden_layers": 40,
		"num_key_value_heads": 4, "rms_norm_eps": 1e-05, "rope_theta": 100000, "tie_word_embeddings": false, "torch_dtype": "float32",
	})
	published{"starcoder2-3b", small, 3_030_371_328, 30, "bf16[B, 2, 16, 2, 128]"}.check(t, Options{})
	published{"starcoder2-15b", large, 15_957_889_024, 40, "f32[B, 2, 16, 4, 128]"}.check(t, Options{})

	sameModules(t, arch, settings{}, settings{"num_key_value_heads": 2, "norm_epsilon": 1e-5, "use_bias": true, "tie_word_embeddings": true},
		settings{"hidden_act": "gelu_pytorch_tanh", "sliding_window": nil, "rms_norm_eps": 1e-3, "mlp_type": "default", "norm_type": "layer_norm"})
	otherModules(t, arch, settings{"num_key_value_heads": 4}, settings{"norm_epsilon": 1e-6}, settings{"use_bias": false},
		settings{"tie_word_embeddings": false}, settings{"hidden_act": "gelu"}, settings{"sliding_window": 9}, settings{"rope_theta": 1e5})
	refuse(t, arch,
		refused{settings{"mlp_type": "gated"}, `"gated" is not supported; supported: default`},
		refused{settings{"norm_type": "rms_norm"}, `"rms_norm" is not supported; supported: layer_norm`},
	)
}
