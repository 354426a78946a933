package hf

import "testing"

func TestGPTNeoX(t *testing.T) {
	const arch = "GPTNeoXForCausalLM"
	pythia := settings{
		"architectures": []string{arch}, "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu", "hidden_size": 768, "initializer_range": 0.02,
		"intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 12,
		"num_hidden_layers": 12, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false, "torch_dtype": "float16",
		"transformers_version": "4.24.0", "use_cache": true, "use_parallel_residual": true, "vocab_size": 50304,
	}
	neox := settings{
		"architectures": []string{arch}, "attention_probs_dropout_prob": 0, "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu_fast",
		"hidden_dropout_prob": 0, "hidden_size": 6144, "initializer_range": 0.02, "intermediate_size": 24576, "layer_norm_eps": 1e-05,
		"max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 64, "num_hidden_layers": 44, "rotary_emb_base": 10000,
		"rotary_pct": 0.25, "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.19.0.dev0", "use_cache": true,
		"vocab_size": 50432,
	}
	published{"pythia-160m", pythia, 162_322_944, 12, "f16[B, 2, 16, 12, 64]"}.check(t, Options{})
	published{"gpt-neox-20b", neox, 20_554_567_680, 44, "f16[B, 2, 16, 64, 96]"}.check(t, Options{})

	all := settings{"rotary_pct": 1.0}
	sameModules(t, arch, all, settings{"rotary_pct": absent{}, "rope_parameters": settings{"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"}},
		all.with(settings{"rotary_emb_base": 10000, "rope_theta": 10000, "partial_rotary_factor": 1.0, "rope_scaling": nil}), // as newer transformers save it
		all.with(settings{"rotary_emb_base": 10000, "attention_bias": true, "layer_norm_eps": 1e-5, "use_parallel_residual": true, "hidden_act": "gelu"}))
	sameModules(t, arch, settings{"hidden_size": 32, "rotary_pct": absent{}}, settings{"hidden_size": 32, "rotary_pct": 0.25})
	otherModules(t, arch, settings{"hidden_size": 32}, settings{"hidden_size": 32, "rotary_emb_base": 20000}, settings{"rotary_pct": 1}, settings{"use_parallel_residual": false},
		settings{"attention_bias": false}, settings{"layer_norm_eps": 1e-6}, settings{"hidden_act": "gelu_fast"}, settings{"tie_word_embeddings": true})
	refuse(t, arch,
		refused{settings{"num_key_value_heads": 2}, `"num_key_value_heads"`},
		refused{settings{"head_dim": 4}, `"head_dim"`},
		refused{settings{"rotary_pct": 1, "rope_theta": 20000}, `"rope_theta": 20000 contradicts rotary_emb_base, 10000`},
		refused{settings{"rotary_pct": 1, "partial_rotary_factor": 0.5}, `"partial_rotary_factor": 0.5 contradicts rotary_pct, 1`},
		refused{settings{"rotary_pct": 0.25}, "head's 4; 0.25 times the head gives 1"},
		refused{settings{"rotary_pct": 0.25, "num_attention_heads": 32}, "32 does not divide hidden_size"},
	)
}
