package hf

import (
	"slices"
	"testing"
)

func TestPhi3(t *testing.T) {
	const arch = "Phi3ForCausalLM"
	ones, twos := slices.Repeat([]float64{1}, 48), slices.Repeat([]float64{2}, 48)
	mini := settings{
		"architectures": []string{arch}, "attention_bias": false, "attention_dropout": 0.0,
		"auto_map":     settings{"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
		"bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
		"intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
		"num_key_value_heads": 32, "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
		"rope_scaling": nil, "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
		"transformers_version": "4.40.2", "use_cache": true, "vocab_size": 32064,
	}
	mini128k := mini.with(settings{"max_position_embeddings": 131072, "sliding_window": 262144,
		"rope_scaling": settings{"type": "su", "short_factor": ones, "long_factor": twos}})
	phi4mini := mini128k.with(settings{
		"bos_token_id": 199999, "eos_token_id": 199999, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": false, "mlp_bias": false,
		"num_attention_heads": 24, "num_key_value_heads": 8, "partial_rotary_factor": 0.75, "tie_word_embeddings": true, "vocab_size": 200064,
		"rope_scaling": settings{"type": "longrope", "short_factor": ones, "long_factor": twos},
	})
	published{"Phi-3-mini-4k-instruct", mini, 3_821_079_552, 32, "bf16[B, 2, 16, 32, 96]"}.check(t, Options{})
	published{"Phi-3-mini-128k-instruct", mini128k, 3_821_079_552, 32, "bf16[B, 2, 16, 32, 96]"}.check(t, Options{Context: 131072})
	published{"Phi-4-mini-instruct", phi4mini, 3_836_021_760, 32, "bf16[B, 2, 16, 8, 128]"}.check(t, Options{Context: 4096})

	long := settings{"rope_type": "longrope", "short_factor": []float64{1, 2}, "long_factor": []float64{3, 4}, "original_max_position_embeddings": 16}
	outer := settings{"max_position_embeddings": 64, "original_max_position_embeddings": 16}
	inner := settings{"type": "su", "short_factor": []float64{1, 2}, "long_factor": []float64{3, 4}}
	sameModules(t, arch, settings{}, settings{"partial_rotary_factor": 1.0}, settings{"sliding_window": nil},
		settings{"rope_parameters": settings{"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 1.0}},
		settings{"original_max_position_embeddings": 7, "rms_norm_eps": 1e-5, "full_attn_mod": 1, "interpolate_factor": 1})
	sameModules(t, arch, outer.with(settings{"rope_scaling": inner}), outer.with(settings{"rope_parameters": long}),
		settings{"max_position_embeddings": 64, "rope_scaling": long}, settings{"rope_scaling": long.with(settings{"factor": 4})})
	sameModules(t, arch, settings{"partial_rotary_factor": 0.5}, settings{"rope_parameters": settings{"partial_rotary_factor": 0.5}},
		settings{"partial_rotary_factor": 0.5, "rope_parameters": settings{"partial_rotary_factor": 0.5}}, settings{"partial_rotary_factor": 0.7})
	otherModules(t, arch, settings{"partial_rotary_factor": 0.5}, settings{"sliding_window": 9}, settings{"rms_norm_eps": 1e-6},
		outer.with(settings{"rope_scaling": inner}), settings{"head_dim": 8})
	refuse(t, arch,
		refused{outer.with(settings{"rope_scaling": inner}), "longer than 16 tokens: give the longest sequence to be served (Options.Context)"},
		refused{settings{"partial_rotary_factor": 0.1}, "an even number of elements, from 2"},
		refused{settings{"partial_rotary_factor": 1.5}, "an even number of elements, from 2"},
		refused{settings{"partial_rotary_factor": 0.75}, "head's 4; 0.75 times the head gives 3"},
		refused{settings{"partial_rotary_factor": 0.5, "rope_parameters": settings{"partial_rotary_factor": 1.0}}, "contradicts rope_parameters.partial_rotary_factor"},
		refused{settings{"attention_bias": true}, "the architecture has no such bias"},
		refused{settings{"lm_head_bias": true}, "the architecture has no such bias"},
		refused{settings{"full_attn_mod": 2}, "2 is not in [1, 1]"},
		refused{settings{"interpolate_factor": 2}, "2 is not in [1, 1]"},
	)
}
