package hf

import "testing"

func TestMixtral(t *testing.T) {
	const arch = "MixtralForCausalLM"
	config := settings{
		"architectures": []string{arch}, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
		"initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
		"num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
		"output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": nil,
		"tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000,
	}
	published{"Mixtral-8x7B-v0.1", config, 46_702_792_704, 32, "bf16[B, 2, 16, 8, 128]"}.check(t, Options{})

	sameModules(t, arch, settings{}, settings{"num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": nil},
		settings{"output_router_logits": true, "router_aux_loss_coef": 0.5, "router_jitter_noise": 0.1, "head_dim": nil},
		settings{"rope_parameters": settings{"rope_theta": 1000000.0, "rope_type": "default"}})
	otherModules(t, arch, settings{"num_local_experts": 4}, settings{"num_experts_per_tok": 1}, settings{"num_experts_per_tok": 3}, settings{"sliding_window": 9},
		settings{"rope_theta": 10000}, settings{"head_dim": 8}, settings{"num_key_value_heads": 4}, settings{"hidden_act": "gelu"}, settings{"intermediate_size": 8})
	refuse(t, arch,
		refused{settings{"num_local_experts": 0}, "0 is not in [1, "},
		refused{settings{"num_local_experts": 1 << 30}, "is not in [1, "},
		refused{settings{"num_local_experts": 1 << 17}, "131072 experts in 2 layers are more than 131072"},
		refused{settings{"num_experts_per_tok": 0}, "0 is not in [1, "},
		refused{settings{"num_experts_per_tok": 9}, "9 is more than the 8 experts"},
		refused{settings{"num_experts": 8}, `"num_experts"`},
		refused{settings{"attention_bias": false}, `"attention_bias"`},
		refused{settings{"norm_topk_prob": true}, `"norm_topk_prob"`},
	)
}
