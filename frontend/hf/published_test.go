package hf

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Keys of published configs that have no effect do not change the module.
func TestHarmlessKeys(t *testing.T) {
	sameModules(t, "LlamaForCausalLM", settings{},
		settings{"_attn_implementation": "eager", "attn_implementation": "sdpa", "_flash_attn_2_enabled": true, "_commit_hash": "x"},
		settings{"auto_map": settings{"AutoConfig": "x.y"}, "model_max_length": 4096, "max_sequence_length": 2048, "tf_legacy_loss": false},
		settings{"is_llama_config": true, "rope_interleaved": false, "transformers.js_config": settings{"kv_cache_dtype": settings{"fp16": "float16"}}},
		settings{"context_window_size": 2048, "prefill_chunk_size": 2048, "internal_version": "7b"},
		settings{"cross_attention_hidden_size": nil, "sliding_window": nil, "anything": nil}, // null is absent
		settings{"architectures": "LlamaForCausalLM"},                                        // a string instead of a list
	)
	sameModules(t, "GPT2LMHeadModel", settings{}, settings{"n_special": 0, "predict_special_tokens": true})
	sameModules(t, "Starcoder2ForCausalLM", settings{}, settings{"activation_function": "gelu", "layer_norm_epsilon": 1e-5, "scale_attn_weights": true,
		"attention_softmax_in_fp32": true, "scale_attention_softmax_in_fp32": true})
	sameModules(t, "MistralForCausalLM", settings{}, settings{"sliding_window_size": 4096, "attention_sink_size": 4})
}

// Infinity and NaN, as Python writes them, are accepted in keys that are not read and refused in others.
func TestNonFiniteNumbers(t *testing.T) {
	text := string(base("LlamaForCausalLM").with(settings{"strange": 1, `a "NaN" \ Infinity`: 2}).json(t))
	text = strings.Replace(text, `"strange":1`, `"strange":{"limit": [0.0, Infinity, -Infinity,NaN], "text": "-Infinity \" NaN"}`, 1)
	if _, err := Builtin().Import([]byte(text), Options{IgnoreKeys: []string{"strange", `a "NaN" \ Infinity`}}); err != nil {
		t.Errorf("%s: %v", text, err)
	}
	for _, number := range []string{"Infinity", "-Infinity", "NaN"} {
		text := strings.Replace(string(base("LlamaForCausalLM").with(settings{"rope_theta": 12345}).json(t)), "12345", number, 1)
		if _, err := Builtin().Import([]byte(text), Options{}); err == nil || !strings.Contains(err.Error(), `"rope_theta": "`+number+`" is not a number`) {
			t.Errorf("%s: %v", number, err)
		}
	}
}

// A config without architectures is imported by its model_type.
func TestModelType(t *testing.T) {
	meant := map[string]bool{}
	for modelType, arch := range modelTypes() {
		meant[arch] = true
		if modelType == "phi-msft" { // its config has other keys
			continue
		}
		m, err := Builtin().Import(base(arch).with(settings{"architectures": absent{}, "model_type": modelType}).json(t), Options{Context: 64})
		if err != nil || m.Architecture != arch {
			t.Errorf("%s, %q: %v", arch, modelType, err)
		}
	}
	for _, arch := range Builtin().Architectures() {
		if !meant[arch] {
			t.Errorf("no model_type means %s", arch)
		}
	}
	var ue *UnknownArchitectureError
	if _, err := Builtin().Import(base("x").with(settings{"architectures": []string{}, "model_type": "bert"}).json(t), Options{}); !errors.As(err, &ue) {
		t.Errorf("bert: %v", err)
	}
	// architectures takes precedence over model_type.
	if _, err := Builtin().Import(base("LlamaModel").with(settings{"model_type": "llama"}).json(t), Options{}); !errors.As(err, &ue) {
		t.Errorf("LlamaModel: %v", err)
	}
}

// An ignored key may be in an object, and must be in the config.
func TestNestedIgnoreKeys(t *testing.T) {
	config := base("LlamaForCausalLM").with(settings{
		"rope_scaling": settings{"type": "linear", "factor": 2.0, "finetuned": true, "deep": settings{"er": 1}}, "dotted.key": 1, "dotted.outer": settings{"in.ner": 2},
	}).json(t)
	all := []string{"rope_scaling.finetuned", "rope_scaling.deep", "dotted.key", "dotted.outer"}
	if _, err := Builtin().Import(config, Options{IgnoreKeys: all}); err != nil {
		t.Error(err)
	}
	if _, err := Builtin().Import(config, Options{IgnoreKeys: all[1:]}); err == nil || !strings.Contains(err.Error(), `"rope_scaling.finetuned"`) {
		t.Errorf("error %v", err)
	}
	for _, key := range []string{"finetuned", "rope_scaling.fine", "rope_scaling.type.x", "", "dotted", ".", "Dotted.key"} {
		_, err := Builtin().Import(config, Options{IgnoreKeys: append([]string{key}, all...)})
		var ce *ConfigError
		if !errors.As(err, &ce) || len(ce.Problems) != 1 || ce.Problems[0].Key != key || !strings.Contains(err.Error(), "the config has no such key") {
			t.Errorf("%q: %v", key, err)
		}
	}
	for _, key := range []string{"rope_scaling.deep.er", "dotted.outer.in.ner"} { // in the config, inside an object that is ignored too
		if _, err := Builtin().Import(config, Options{IgnoreKeys: append([]string{key}, all...)}); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// Every config in the folder PWC_TEST_CONFIGS is imported, or refused for one of these reasons: it is quantized, its
// architecture is unknown, or it needs Options.Context or Options.DType. This repository does not include such configs,
// because they belong to others.
func TestConfigsOfOthers(t *testing.T) {
	dir := os.Getenv("PWC_TEST_CONFIGS")
	if dir == "" {
		t.Skip("PWC_TEST_CONFIGS names no folder")
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatal(err, paths)
	}
	count := map[string]int{}
	for _, path := range paths {
		text, err := ReadConfig(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Builtin().Import(text, Options{})
		var quantized *QuantizedError
		var unknown *UnknownArchitectureError
		switch {
		case err == nil:
			count["imported"]++
		case errors.As(err, &quantized):
			count["quantized"]++
		case errors.As(err, &unknown):
			count["of an unknown architecture"]++
		case strings.Count(err.Error(), "\n") == 0 && strings.Contains(err.Error(), "(Options.Context)"):
			count["need a context"]++
		case strings.Count(err.Error(), "\n") == 0 && strings.Contains(err.Error(), "(Options.DType)"):
			count["need a dtype"]++
		default:
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
	}
	t.Logf("of %d configs: %v", len(paths), count)
}
