package hf

import (
	"slices"
	"strings"
	"testing"
)

func TestGemma(t *testing.T) {
	const arch = "GemmaForCausalLM"
	config := settings{
		"architectures": []string{arch}, "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256,
		"hidden_act": "gelu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 16384, "max_position_embeddings": 8192,
		"model_type": "gemma", "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-06,
		"rope_scaling": nil, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "transformers_version": "4.38.0.dev0", "use_cache": true, "vocab_size": 256000,
	}
	published{"gemma-2b", config, 2_506_172_416, 18, "bf16[B, 2, 16, 1, 256]"}.check(t, Options{})
	sameModules(t, arch, settings{}, settings{"head_dim": 256, "tie_word_embeddings": true, "hidden_act": "gelu_pytorch_tanh"},
		settings{"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}, settings{"hidden_activation": nil})
	sameModules(t, arch, settings{"hidden_act": "gelu"}, settings{"hidden_act": "gelu", "hidden_activation": nil}, settings{"hidden_act": "silu", "hidden_activation": "gelu"})
	otherModules(t, arch, settings{"hidden_act": "gelu"}, settings{"head_dim": 4}, settings{"num_key_value_heads": 1}, settings{"attention_bias": true})
	refuse(t, arch, refused{settings{"use_bidirectional_attention": true}, "attention is causal"}, refused{settings{"query_pre_attn_scalar": 8}, `"query_pre_attn_scalar"`})
}

func TestGemma2(t *testing.T) {
	const arch = "Gemma2ForCausalLM"
	config := settings{
		"architectures": []string{arch}, "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0, "bos_token_id": 2,
		"cache_implementation": "hybrid", "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
		"hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216,
		"max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
		"pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
		"torch_dtype": "float32", "transformers_version": "4.42.4", "use_cache": true, "vocab_size": 256000,
	}
	published{"gemma-2-2b", config, 2_614_341_888, 26, "f32[B, 2, 16, 4, 256]"}.check(t, Options{})

	sameModules(t, arch, settings{}, settings{"head_dim": 256, "num_key_value_heads": 4}, settings{"query_pre_attn_scalar": 256},
		settings{"attn_logit_softcapping": 50, "final_logit_softcapping": 30.0}, settings{"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "silu"},
		settings{"hidden_activation": nil}, settings{"hidden_activation": nil, "hidden_act": "silu"},
		settings{"sliding_window": 4096, "sliding_window_size": 4096}, settings{"layer_types": []string{slidingAttention, fullAttention}},
		settings{"tie_word_embeddings": true, "use_bidirectional_attention": nil})
	otherModules(t, arch, settings{"head_dim": 8}, settings{"query_pre_attn_scalar": 224}, settings{"attn_logit_softcapping": nil},
		settings{"final_logit_softcapping": nil}, settings{"final_logit_softcapping": 20}, settings{"hidden_activation": "gelu"},
		settings{"sliding_window": 8}, settings{"layer_types": []string{fullAttention, slidingAttention}}, settings{"tie_word_embeddings": false},
		settings{"attention_bias": true})
	refuse(t, arch,
		refused{settings{"attn_logit_softcapping": 0}, "0 is not above 0"},
		refused{settings{"sliding_window": 8, "sliding_window_size": 9}, "9 contradicts sliding_window, 8"},
		refused{settings{"sliding_window": nil}, "the config gives no window"},
		refused{settings{"use_bidirectional_attention": true}, "attention is causal"},
		refused{settings{"query_pre_attn_scalar": -1}, "-1 is not above 0"},
	)
}

func TestGemma3(t *testing.T) {
	const arch = "Gemma3ForCausalLM"
	config := settings{
		"architectures": []string{arch}, "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": nil, "bos_token_id": 2,
		"cache_implementation": "hybrid", "eos_token_id": []int{1, 106}, "final_logit_softcapping": nil, "head_dim": 256,
		"hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912,
		"max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
		"num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
		"rope_scaling": nil, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
		"transformers_version": "4.50.0.dev0", "use_cache": true, "vocab_size": 262144,
	}
	published{"gemma-3-1b-it", config, 999_885_952, 26, "bf16[B, 2, 16, 1, 256]"}.check(t, Options{})

	seven := settings{"num_hidden_layers": 7}
	types := slices.Repeat([]string{slidingAttention}, 7)
	types[5] = fullAttention
	linear := settings{"rope_type": "linear", "factor": 8.0}
	newer := settings{slidingAttention: settings{"rope_theta": 10000.0, "rope_type": "default"}, fullAttention: linear.with(settings{"rope_theta": 1e6})}
	sameModules(t, arch, seven, seven.with(settings{"hidden_activation": nil}), seven.with(settings{"sliding_window_pattern": 6}), seven.with(settings{"layer_types": types, "_sliding_window_pattern": 6}),
		seven.with(settings{"rope_theta": 1e6, "rope_local_base_freq": 10000.0}), seven.with(settings{"rope_parameters": settings{fullAttention: nil}}),
		seven.with(settings{"sliding_window": 4096}), seven.with(settings{"attn_logit_softcapping": nil, "final_logit_softcapping": nil}))
	sameModules(t, arch, seven.with(settings{"rope_scaling": linear}), seven.with(settings{"rope_parameters": newer}),
		seven.with(settings{"rope_parameters": newer, "rope_theta": 1e6, "rope_scaling": linear}))
	otherModules(t, arch, settings{"sliding_window_pattern": 2}, settings{"layer_types": []string{fullAttention, slidingAttention}}, settings{"rope_local_base_freq": 20000.0},
		settings{"layer_types": []string{fullAttention, slidingAttention}, "rope_theta": 1e5}, settings{"attn_logit_softcapping": 50.0}, settings{"final_logit_softcapping": 50.0})
	refuse(t, arch,
		refused{settings{"rope_parameters": settings{"rope_theta": 1e6, "rope_type": "default"}}, `"rope_parameters.rope_theta"`},
		refused{settings{"rope_parameters": newer, "rope_theta": 1e5}, "contradicts rope_parameters.full_attention.rope_theta"},
		refused{settings{"rope_parameters": newer, "rope_scaling": settings{"rope_type": "linear", "factor": 2}}, `"rope_scaling": contradicts rope_parameters.full_attention`},
		refused{settings{"use_bidirectional_attention": true}, "attention is causal"},
	)
}

// TestEmbedScale checks the factor of the embedding: the square root of 48 features, 6.9282…, rounded to the model's
// dtype. Adjacent numbers there are 1/32 apart in bf16 and 1/256 in f16.
func TestEmbedScale(t *testing.T) {
	for d, want := range map[string]string{"bfloat16": "mul(%0, 6.9375)", "float32": "mul(%0, 6.928203105926514)", "float16": "mul(%0, 6.9296875)"} {
		text := importText(t, base("Gemma2ForCausalLM").with(settings{"hidden_size": 48, "torch_dtype": d}), Options{})
		if !strings.Contains(text, want) {
			t.Errorf("%s: no %s in\n%s", d, want, text)
		}
	}
}

// TestUntrainedScales: before training the scale of a norm is 1, which Gemma stores as 0.
func TestUntrainedScales(t *testing.T) {
	for arch, want := range map[string]float64{"Gemma3ForCausalLM": 0, "LlamaForCausalLM": 1, "Starcoder2ForCausalLM": 1} {
		m, err := Builtin().Import(base(arch).json(t), Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range m.Params {
			if strings.HasSuffix(p.Name, "norm.weight") && (p.Mean != want || p.Std != 0) {
				t.Errorf("%s: %s has mean %v and deviation %v, want %v and 0", arch, p.Name, p.Mean, p.Std, want)
			}
		}
	}
}
