package hf

import (
	"slices"
	"strings"
	"testing"

	"pwc/ir/dtype"
)

func TestGPT2(t *testing.T) {
	const arch = "GPT2LMHeadModel"
	config := settings{
		"activation_function": "gelu_new", "architectures": []string{arch}, "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1,
		"eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
		"n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": nil, "summary_first_dropout": 0.1,
		"summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
		"task_specific_params": settings{"text-generation": settings{"do_sample": true, "max_length": 50}}, "vocab_size": 50257,
	}
	published{"gpt2", config, 124_439_808, 12, "f32[B, 2, 16, 12, 64]"}.check(t, Options{DType: dtype.F32})

	sameModules(t, arch, settings{}, settings{"n_inner": nil}, settings{"n_inner": 64}, settings{"n_ctx": 7}, settings{"tie_word_embeddings": true},
		settings{"activation_function": "gelu_pytorch_tanh"}, settings{"layer_norm_epsilon": 1e-5}, settings{"reorder_and_upcast_attn": true})
	otherModules(t, arch, settings{"n_inner": 24}, settings{"tie_word_embeddings": false}, settings{"activation_function": "gelu"},
		settings{"layer_norm_epsilon": 1e-6}, settings{"scale_attn_weights": false}, settings{"scale_attn_by_inverse_layer_idx": true},
		settings{"n_positions": 9}, settings{"n_head": 2})
	refuse(t, arch,
		refused{settings{"n_positions": absent{}}, `"n_positions": is missing`},
		refused{settings{"n_head": 3}, `"n_head": 3 does not divide n_embd, 16`},
		refused{settings{"n_head": 17}, "17 does not divide"},
		refused{settings{"hidden_size": 16}, `"hidden_size"`},
		refused{settings{"rope_theta": 10000}, `"rope_theta"`},
		refused{settings{"add_cross_attention": true}, "only decoders can be imported"},
	)
}

// TestBareCheckpoint imports a checkpoint without a head and with masks as buffers, like the first GPT-2. Its module
// differs from others only in the names of tensors.
func TestBareCheckpoint(t *testing.T) {
	config := base("GPT2LMHeadModel")
	m, err := Builtin().Import(config.json(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	bare := slices.Clone(m.Params)
	for i := range bare {
		bare[i].Name = strings.TrimPrefix(bare[i].Name, "transformer.")
	}
	text := importText(t, config, Options{Source: with(Dummy(bare), causalMask("h.0.attn.bias", 8), f32s("h.1.attn.masked_bias", nil, -1e4))})
	if want := strings.ReplaceAll(importText(t, config, Options{}), `"transformer.`, `"`); text != want {
		t.Errorf("module\n%s\nwant\n%s", text, want)
	}
	if _, err := Builtin().Import(config.json(t), Options{Source: Dummy(bare[1:])}); err == nil || !strings.Contains(err.Error(), `missing: "transformer.wte.weight"`) {
		t.Errorf("a checkpoint without an embedding: %v", err)
	}
}
