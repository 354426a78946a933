package hf

import (
	"maps"
	"testing"
)

func TestMistral(t *testing.T) {
	const arch = "MistralForCausalLM"
	v01 := settings{
		"architectures": []string{arch}, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
		"initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
		"num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
		"sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0",
		"use_cache": true, "vocab_size": 32000,
	}
	v03 := v01.with(settings{"attention_dropout": 0.0, "rope_theta": 1000000.0, "sliding_window": nil, "vocab_size": 32768})
	published{"Mistral-7B-v0.1", v01, 7_241_732_096, 32, "bf16[B, 2, 16, 8, 128]"}.check(t, Options{})
	published{"Mistral-7B-v0.3", v03, 7_248_023_552, 32, "bf16[B, 2, 16, 8, 128]"}.check(t, Options{})

	// A missing key has its default; null means as many KV heads as heads, or no window.
	heads := settings{"num_attention_heads": 16, "head_dim": 4, "num_key_value_heads": absent{}}
	eight, sixteen := maps.Clone(heads), maps.Clone(heads)
	eight["num_key_value_heads"], eight["sliding_window"], sixteen["num_key_value_heads"] = 8, 4096, 16
	null := maps.Clone(sixteen)
	null["num_key_value_heads"] = nil
	sameModules(t, arch, heads, eight)
	sameModules(t, arch, null, sixteen)
	otherModules(t, arch, settings{"sliding_window": nil}, settings{"sliding_window": 9}, settings{"head_dim": 8})
	refuse(t, arch,
		refused{settings{"sliding_window": 0}, "0 is not in [1, "},
		refused{settings{"layer_types": []string{"full_attention", "full_attention"}}, `"layer_types"`},
		refused{settings{"attention_bias": true}, `"attention_bias"`},
	)
}
