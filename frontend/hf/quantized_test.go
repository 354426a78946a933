package hf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pwc/internal/termsafe"
	"pwc/ir/dtype"
)

// A config with a key of quantization is refused, also if IgnoreKeys has the key. The error does not offer to ignore it.
func TestQuantizedConfigs(t *testing.T) {
	for _, c := range []struct {
		edits settings
		want  string
	}{
		{settings{"quantization_config": settings{"quant_method": "gptq", "bits": 4}}, `"quantization_config": the checkpoint is quantized with "gptq"`},
		{settings{"quantization_config": settings{"format": "int-quantized"}}, `quantized with "int-quantized"`},
		{settings{"quantization_config": settings{"quant_method": nil}, "strange": 1}, "quantized with an unnamed method"},
		{settings{"quantization_config": []int{}}, "quantized with an unnamed method"},
		{settings{"compression_config": settings{}}, `"compression_config": the checkpoint is quantized with an unnamed method`},
		{settings{"quantization": settings{"group_size": 64, "bits": 4}}, `"quantization": the checkpoint is quantized with "4 bits"`},
		{settings{"quantization": settings{"group_size": 64, "bits": 4}, "quantization_config": settings{"group_size": 64, "bits": 4}}, `quantized with "4 bits"`},
		{settings{"quant_config": settings{"quant_algo": "NVFP4"}}, `quantized with "NVFP4"`},
		{settings{"quantization": settings{"quantization": settings{"quantization": settings{"quant_algo": "FP8"}}}}, "quantized with an unnamed method"},
	} {
		for _, o := range []Options{{}, {IgnoreKeys: []string{"quantization_config", "compression_config", "quantization", "quant_config", "strange"}}} {
			_, err := Builtin().Import(base("LlamaForCausalLM").with(c.edits).json(t), o)
			var qe *QuantizedError
			if !errors.As(err, &qe) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "Ignore") {
				t.Errorf("%v: error %v, want …%s…", c.edits, err, c.want)
			}
		}
	}
	if _, err := Builtin().Import(base("LlamaForCausalLM").with(settings{"quantization_config": nil}).json(t), Options{}); err != nil {
		t.Errorf("null: %v", err)
	}
}

// The files of ModelOpt, AutoGPTQ and AWQ in the config's directory mark a checkpoint as quantized. The file of an
// adapter is refused too.
func TestFilesBesideTheConfig(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"hf_quant_config.json", `{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}`, `hf_quant_config.json: the checkpoint is quantized with "FP8"`},
		{"hf_quant_config.json", `{"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}}`, `quantized with "FP8"`},
		{"hf_quant_config.json", `x`, "an unnamed method"},
		{"quantize_config.json", `{"bits": 4}`, `quantize_config.json: the checkpoint is quantized with "4 bits"`},
		{"quant_config.json", `{"w_bit": 4}`, "quant_config.json"},
		{"adapter_config.json", `{}`, "adapter_config.json: the directory also holds an adapter"},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"config.json": string(base("LlamaForCausalLM").json(t)), "other.json": string(base("LlamaForCausalLM").json(t)), c.file: c.text} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Builtin().ImportDir(dir, Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.file, err)
		}
		if _, err := Builtin().ImportFile(filepath.Join(dir, "config.json"), Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, by the file: %v", c.file, err)
		}
		if _, err := Builtin().ImportFile(filepath.Join(dir, "other.json"), Options{}); err != nil { // the files belong to config.json only
			t.Errorf("%s beside other.json: %v", c.file, err)
		}
	}
}

// Without a mark in the config, a quantized checkpoint is recognized by its tensors. The error is short for any number.
func TestQuantizedTensors(t *testing.T) {
	config := base("LlamaForCausalLM")
	m, err := Builtin().Import(config.json(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(p []Param) []Param
		want   string
	}{
		{"i8", func(p []Param) []Param { p[2].DType = dtype.I8; return p }, "1 of i8 (" + termsafe.Quote(m.Params[2].Name) + ")"},
		{"f8e4m3", func(p []Param) []Param { p[2].DType, p[3].DType = dtype.F8E4M3, dtype.F8E4M3; return p }, "2 of f8e4m3"},
		{"scales alone", func(p []Param) []Param {
			return append(p, param("model.layers.0.self_attn.q_proj.weight_scale", dtype.F32, 0, 1, 1))
		}, "1 of *.weight_scale"},
		{"MLX", func(p []Param) []Param {
			return append(p, param("lm_head.scales", dtype.F16, 0, 1, 1), param("lm_head.biases", dtype.F16, 0, 1, 1))
		}, "1 of *.biases (\"lm_head.biases\"), 1 of *.scales"},
		{"packed", func(p []Param) []Param { p[4].DType = dtype.U4; return p }, "1 of u4"},
		{"many", func(p []Param) []Param {
			for i := range 36000 {
				p = append(p, param(fmt.Sprintf("model.layers.%d.mlp.weight_scale", i), dtype.F32, 0, 1, 1))
			}
			return p
		}, "36000 of *.weight_scale"},
	} {
		src := Dummy(c.change(slices.Clone(m.Params)))
		_, err := Builtin().Import(config.json(t), Options{Source: src})
		var qe *QuantizedError
		if !errors.As(err, &qe) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 500 {
			t.Errorf("%s: error %v, want …%s…", c.name, err, c.want)
		}
		if _, err := Builtin().Import(config.json(t), Options{Source: src, IgnoreTensors: []string{"model.layers.*.mlp.weight_scale"}}); !errors.As(err, &qe) {
			t.Errorf("%s, ignored: %v", c.name, err)
		}
		if err := m.Check(src); !errors.As(err, &qe) {
			t.Errorf("%s: Check: %v", c.name, err)
		}
	}
}

// Many tensors with a dtype that weights cannot be made from give one error.
func TestOddTensorsAreOneError(t *testing.T) {
	config := base("LlamaForCausalLM").with(settings{"attention_bias": true})
	m, err := Builtin().Import(config.json(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	params := slices.Clone(m.Params)
	for i := range params {
		if strings.HasSuffix(params[i].Name, ".bias") {
			params[i].DType = dtype.I16
		}
	}
	_, err = Builtin().Import(config.json(t), Options{Source: Dummy(params)})
	if err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), "_proj.bias\" is i16") {
		t.Errorf("error %v", err)
	}
}
