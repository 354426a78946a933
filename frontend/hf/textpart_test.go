package hf

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir"
	"pwc/safetensors"
)

// The text part of a multimodal model has as many parameters as the same text-only model.
func TestTextParts(t *testing.T) {
	qwen := settings{
		"architectures": []string{"Qwen2VLForConditionalGeneration"}, "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
		"vision_start_token_id": 151652, "vision_end_token_id": 151653, "vision_token_id": 151654, "image_token_id": 151655, "video_token_id": 151656,
		"hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 32768,
		"max_window_layers": 28, "model_type": "qwen2_vl", "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
		"rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
		"use_cache": true, "use_sliding_window": false, "vocab_size": 152064,
		"vision_config": settings{"depth": 32, "embed_dim": 1280}, "rope_scaling": settings{"type": "mrope", "mrope_section": []int{16, 24, 24}},
	}
	published{"Qwen2-VL-7B-Instruct", qwen, 7_615_616_512, 28, "bf16[B, 2, 16, 4, 128]"}.check(t, Options{})
	mistral := settings{
		"architectures": []string{"Mistral3ForConditionalGeneration"}, "image_token_index": 10, "model_type": "mistral3", "multimodal_projector_bias": false,
		"projector_hidden_act": "gelu", "spatial_merge_size": 2, "torch_dtype": "bfloat16", "vision_feature_layer": -1, "vision_config": settings{"model_type": "pixtral"},
		"text_config": settings{
			"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 32768,
			"max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
			"rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": nil, "use_cache": true, "vocab_size": 131072,
		},
	}
	published{"Mistral-Small-3.1-24B-Instruct-2503", mistral, 23_572_403_200, 40, "bf16[B, 2, 16, 8, 128]"}.check(t, Options{})
	ministral := mistral.with(settings{"text_config": mistral["text_config"].(settings).with(settings{
		"model_type": "ministral3", "hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers": 26, "tie_word_embeddings": true, "max_position_embeddings": 262144,
		"rope_theta": absent{}, "rope_parameters": settings{"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
			"mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn", "type": "yarn"},
	})})
	// 131072·3072 + 26·(2·4096·3072 + 2·1024·3072 + 3·9216·3072 + 2·3072) + 3072
	published{"Ministral-3-3B-2512", ministral, 3_429_006_336, 26, "bf16[B, 2, 16, 8, 128]"}.check(t, Options{})
	vl := settings{
		"architectures": []string{"Qwen3VLMoeForConditionalGeneration"}, "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652,
		"vision_end_token_id": 151653, "model_type": "qwen3_vl_moe", "tie_word_embeddings": false, "vision_config": settings{"depth": 27},
		"text_config": settings{
			"attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1, "dtype": "bfloat16", "eos_token_id": 151645,
			"head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 262144,
			"mlp_only_layers": []int{}, "model_type": "qwen3_vl_moe_text", "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
			"num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
			"rope_scaling": settings{"mrope_interleaved": true, "mrope_section": []int{24, 20, 20}, "rope_type": "default"}, "rope_theta": 5000000, "use_cache": true, "vocab_size": 151936,
		},
	}
	published{"Qwen3-VL-30B-A3B-Instruct", vl, 30_532_122_624, 48, "bf16[B, 2, 16, 4, 128]"}.check(t, Options{})
}

// The module of a text part equals that of the text-only model, except for its name, the names of tensors and its list of
// unread tensors. tie_word_embeddings of the file takes precedence.
func TestTextPartIsTheModelOfText(t *testing.T) {
	config := base("Qwen3ForCausalLM").with(settings{"head_dim": 4, "rope_theta": 1000, "max_position_embeddings": 77, "eos_token_id": 5, "tie_word_embeddings": true})
	inner := config.with(settings{"architectures": absent{}, "tie_word_embeddings": false, "model_type": "qwen3_vl_text"})
	outer := settings{"architectures": []string{"Qwen3VLForConditionalGeneration"}, "tie_word_embeddings": true, "text_config": inner}
	code := func(s settings) []string {
		text := strings.ReplaceAll(importText(t, s, Options{}), "model.language_model.", "model.")
		return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
			return strings.Contains(line, "unread") || strings.Contains(line, "module ")
		})
	}
	if diff := cmp.Diff(code(config), code(outer)); diff != "" {
		t.Errorf("module (-alone +part):\n%s", diff)
	}
	refuse(t, "Qwen3VLForConditionalGeneration",
		refused{settings{"text_config": inner.with(settings{"strange": 1})}, `"text_config.strange"`},
		refused{outer.with(settings{"strange": 1}), `"strange"`},
		refused{outer.with(settings{"text_config": inner.with(settings{"num_attention_heads": 0})}), `"text_config.num_attention_heads": 0 is not in`},
	)
	var quantized *QuantizedError
	if _, err := Builtin().Import(outer.with(settings{"text_config": inner.with(settings{"quantization_config": settings{"quant_method": "fp8"}})}).json(t), Options{}); !errors.As(err, &quantized) {
		t.Errorf("quantized inside: %v", err)
	}
}

// renamed is a source whose tensors have other names, with further tensors added.
type renamed struct {
	safetensors.Source
	from, to string
	more     []string
}

func (r renamed) Names() []string {
	var names []string
	for _, name := range r.Source.Names() {
		names = append(names, strings.Replace(name, r.from, r.to, 1))
	}
	return append(names, r.more...)
}

func (r renamed) Info(name string) (safetensors.Info, error) {
	if !slices.Contains(r.Names(), name) {
		return safetensors.Info{}, safetensors.ErrNotFound
	}
	info, err := r.Source.Info(strings.Replace(name, r.to, r.from, 1))
	info.Name = name
	return info, err
}

// Releases of transformers have several names for the parts. Only tensors of the other parts may stay unread.
func TestNamesOfTextParts(t *testing.T) {
	config := settings{"architectures": []string{"Gemma3ForConditionalGeneration"}, "text_config": base("Gemma3ForCausalLM")}
	m, err := Builtin().Import(config.json(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	first := Dummy(m.Params)
	for _, c := range []struct {
		to   string
		more []string
		want string // part of the error
	}{
		{"language_model.model.", []string{"vision_tower.vision_model.embeddings.patch_embedding.weight", "multi_modal_projector.mm_input_projection_weight"}, ""},
		{"model.language_model.", []string{"model.vision_tower.x.y", "model.multi_modal_projector.z"}, ""},
		{"language_model.model.", []string{"audio_tower.x"}, "audio_tower.x"},
		{"language_model.model.", []string{"language_model.model.x.weight"}, "language_model.model.x.weight"},
	} {
		src := renamed{first, "language_model.model.", c.to, c.more}
		m, err := Builtin().Import(config.json(t), Options{Source: src})
		switch {
		case c.want != "":
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: error %v", c, err)
			}
		case err != nil:
			t.Errorf("%v: %v", c, err)
		case !strings.HasPrefix(m.Params[0].Name, c.to) || len(m.Notes) == 0 || !strings.Contains(m.Notes[0], "vision_tower"):
			t.Errorf("%v: reads %s; notes %v", c, m.Params[0].Name, m.Notes)
		case !slices.ContainsFunc(m.Module.Unread, func(u *ir.Unread) bool { return u.Matches(c.more[0]) }):
			t.Errorf("%v: the module does not say that %s goes unread", c, c.more[0])
		}
	}
}
