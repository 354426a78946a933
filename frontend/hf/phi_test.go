package hf

import (
	"strings"
	"testing"
)

// The parameters are (2·51200·2560 + 51200) + 32·(4·2560² + 2·2560·10240 + 7·2560 + 10240) + 2·2560.
func TestPhi(t *testing.T) {
	const arch = "PhiForCausalLM"
	config := settings{
		"architectures": []string{arch}, "attention_dropout": 0.0, "bos_token_id": 50256, "embd_pdrop": 0.0, "eos_token_id": 50256,
		"hidden_act": "gelu_new", "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 10240, "layer_norm_eps": 1e-05,
		"max_position_embeddings": 2048, "model_type": "phi", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
		"partial_rotary_factor": 0.4, "qk_layernorm": false, "resid_pdrop": 0.1, "rope_scaling": nil, "rope_theta": 10000.0,
		"tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.37.0", "use_cache": true, "vocab_size": 51200,
	}
	first := settings{
		"activation_function": "gelu_new", "architectures": []string{arch}, "attn_pdrop": 0.0,
		"auto_map":   settings{"AutoConfig": "configuration_phi.PhiConfig", "AutoModelForCausalLM": "modeling_phi.PhiForCausalLM"},
		"embd_pdrop": 0.0, "flash_attn": false, "flash_rotary": false, "fused_dense": false, "img_processor": nil, "initializer_range": 0.02,
		"layer_norm_epsilon": 1e-05, "model_type": "phi-msft", "n_embd": 2560, "n_head": 32, "n_head_kv": nil, "n_inner": nil, "n_layer": 32,
		"n_positions": 2048, "resid_pdrop": 0.1, "rotary_dim": 32, "tie_word_embeddings": false, "torch_dtype": "float16", "vocab_size": 51200,
	}
	published{"phi-2", config, 2_779_683_840, 32, "f16[B, 2, 16, 32, 80]"}.check(t, Options{})
	published{"phi-2 as published first", first, 2_779_683_840, 32, "f16[B, 2, 16, 32, 80]"}.check(t, Options{})

	// Both configs give the same nodes, except for locations.
	code := func(s settings) string {
		var lines []string
		for _, line := range strings.Split(importText(t, s, Options{}), "\n") {
			if strings.Contains(line, " = ") && !strings.Contains(line, "weight @") {
				line, _, _ = strings.Cut(line, " loc(")
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "\n")
	}
	if code(config) != code(first) {
		t.Error("the module of phi-msft differs")
	}

	sameModules(t, arch, settings{}, settings{"partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5, "hidden_act": "gelu_new", "qk_layernorm": false})
	otherModules(t, arch, settings{"qk_layernorm": true}, settings{"partial_rotary_factor": 1}, settings{"num_key_value_heads": 2}, settings{"tie_word_embeddings": true})
	refuse(t, arch,
		refused{first.with(settings{"rotary_dim": 96}), "96 is not an even number of a head's 80 elements"},
		refused{first.with(settings{"img_processor": settings{"name": "clip"}}), "images are not read"},
	)
}
