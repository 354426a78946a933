package hf

import "testing"

func TestQwen3MoE(t *testing.T) {
	const arch = "Qwen3MoeForCausalLM"
	config := settings{
		"architectures": []string{arch}, "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1,
		"eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
		"max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": []int{}, "model_type": "qwen3_moe",
		"moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
		"num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": nil,
		"rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": nil, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
		"transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936,
	}
	coder := config.with(settings{"intermediate_size": 5472, "max_position_embeddings": 262144, "max_window_layers": 28, "qkv_bias": false,
		"rope_theta": 10000000, "router_aux_loss_coef": 0.0, "shared_expert_intermediate_size": 0, "use_qk_norm": true})
	published{"Qwen3-30B-A3B", config, 30_532_122_624, 48, "bf16[B, 2, 16, 4, 128]"}.check(t, Options{})
	published{"Qwen3-Coder-30B-A3B-Instruct", coder, 30_532_122_624, 48, "bf16[B, 2, 16, 4, 128]"}.check(t, Options{})

	sameModules(t, arch, settings{}, settings{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": false},
		settings{"num_local_experts": 128}, settings{"num_local_experts": 128, "num_experts": 128},
		settings{"decoder_sparse_step": 1, "mlp_only_layers": nil, "max_window_layers": 1, "num_key_value_heads": 4, "head_dim": 4},
		settings{"use_sliding_window": false, "sliding_window": 9}, settings{"use_sliding_window": true, "sliding_window": nil},
		settings{"output_router_logits": true, "router_aux_loss_coef": 0.5})
	sameModules(t, arch, settings{"use_sliding_window": true}, settings{"use_sliding_window": true, "sliding_window": 4096})
	sameModules(t, arch, settings{"decoder_sparse_step": 2}, settings{"mlp_only_layers": []int{0}}, settings{"decoder_sparse_step": 2, "mlp_only_layers": []int{0, 0}})
	sameModules(t, arch, settings{"decoder_sparse_step": 3}, settings{"mlp_only_layers": []int{0, 1}})
	otherModules(t, arch, settings{"num_experts": 9}, settings{"num_experts_per_tok": 2}, settings{"moe_intermediate_size": 8}, settings{"norm_topk_prob": true},
		settings{"mlp_only_layers": []int{0}}, settings{"mlp_only_layers": []int{1}}, settings{"decoder_sparse_step": 3}, settings{"attention_bias": true},
		settings{"use_sliding_window": true, "sliding_window": 9}, settings{"decoder_sparse_step": 2, "intermediate_size": 8})
	refuse(t, arch,
		refused{settings{"num_experts": 8, "num_local_experts": 9}, `"num_local_experts": 9 contradicts num_experts, 8`},
		refused{settings{"num_experts": 4}, "8 is more than the 4 experts"},
		refused{settings{"num_experts": 0}, "0 is not in [1, "},
		refused{settings{"mlp_only_layers": []int{2}}, "there is no layer 2"},
		refused{settings{"mlp_only_layers": []int{-1}}, "there is no layer -1"},
		refused{settings{"mlp_only_layers": 1}, "1 is not a list of integers"},
		refused{settings{"mlp_only_layers": []float64{0.5}}, "is not a list of integers"},
		refused{settings{"mlp_only_layers": []any{1, nil}}, "[1,null] is not a list of integers"},
		refused{settings{"decoder_sparse_step": 0}, "0 is not in [1, "},
		refused{settings{"layer_types": []string{"full_attention", "full_attention"}}, `"layer_types"`},
		refused{settings{"shared_expert_intermediate_size": 8}, `"shared_expert_intermediate_size": 8 is not in [0, 0]`},
		refused{settings{"qkv_bias": true}, `"qkv_bias": true is not supported`},
		refused{settings{"use_qk_norm": false}, `"use_qk_norm": false is not supported`},
	)
}
