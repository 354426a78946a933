package hf

import "testing"

func TestQwen2MoE(t *testing.T) {
	const arch = "Qwen2MoeForCausalLM"
	config := settings{
		"architectures": []string{arch}, "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151643,
		"hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632, "max_position_embeddings": 8192,
		"max_window_layers": 21, "model_type": "qwen2_moe", "moe_intermediate_size": 1408, "norm_topk_prob": false, "num_attention_heads": 16,
		"num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16, "output_router_logits": false,
		"rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632,
		"sliding_window": 32768, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936,
	}
	published{"Qwen1.5-MoE-A2.7B", config, 14_315_784_192, 24, "bf16[B, 2, 16, 16, 128]"}.check(t, Options{})

	const w, f = slidingAttention, fullAttention
	on := settings{"use_sliding_window": true, "sliding_window": 9}
	sameModules(t, arch, settings{}, settings{"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "qkv_bias": true},
		settings{"sliding_window": 9})
	sameModules(t, arch, on, on.with(settings{"layer_types": []string{w, f}}))
	sameModules(t, arch, on.with(settings{"max_window_layers": 0}), settings{})
	otherModules(t, arch, on, settings{"qkv_bias": false}, settings{"shared_expert_intermediate_size": 8}, settings{"norm_topk_prob": true}, settings{"mlp_only_layers": []int{1}})
	refuse(t, arch, refused{settings{"mlp_only_layers": []int{2}}, "there is no layer 2"}, refused{settings{"shared_expert_intermediate_size": 0}, "0 is not in [1, "})
}
