package hf

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pwc/ir"
	"pwc/ir/dtype"
)

// The module has the ids that end a sequence: those of generation_config.json, else those of config.json.
func TestEOS(t *testing.T) {
	for _, c := range []struct {
		config     any
		generation string
		want       []int32
	}{
		{absent{}, "", nil},
		{nil, "", nil},
		{2, "", []int32{2}},
		{[]int{128001, 128008, 128009}, "", []int32{128001, 128008, 128009}},
		{[]int{7, 7, 2}, "", []int32{7, 2}},
		{-1, "", nil},
		{2, `{"eos_token_id": [2, 185], "temperature": 0.6, "strange": {}}`, []int32{2, 185}},
		{2, `{"eos_token_id": 185}`, []int32{185}},
		{2, `{"eos_token_id": null}`, []int32{2}},
		{2, `{}`, []int32{2}},
		{2, `{"eos_token_id": []}`, nil},
		{absent{}, `{"eos_token_id": 3}`, []int32{3}},
	} {
		o := Options{}
		if c.generation != "" {
			o.GenerationConfig = []byte(c.generation)
		}
		m, err := Builtin().Import(base("LlamaForCausalLM").with(settings{"eos_token_id": c.config}).json(t), o)
		if err != nil {
			t.Errorf("%v %s: %v", c.config, c.generation, err)
			continue
		}
		if !slices.Equal(m.Module.EOS, c.want) {
			t.Errorf("%v %s: %v, want %v", c.config, c.generation, m.Module.EOS, c.want)
		}
		again, err := ir.Parse("again", []byte(ir.Print(m.Module)))
		if err != nil || !slices.Equal(again.EOS, c.want) {
			t.Errorf("%v %s: the text keeps %v: %v", c.config, c.generation, again.EOS, err)
		}
	}
	for _, c := range []struct {
		config     any
		generation string
		want       string
	}{
		{"2", "", `config.json: "eos_token_id": "2" is not an integer`},
		{int64(1) << 40, "", `"eos_token_id": 1099511627776 is not in`},
		{[]any{2, nil}, "", "is not a list of integers"},
		{[]int64{1 << 40}, "", "1099511627776 is no token id"},
		{2, `{"eos_token_id": "x"}`, `generation_config.json: "eos_token_id": "x" is not an integer`},
		{2, `{"eos_token_id": 1, "eos_token_id": 2}`, `generation_config.json: key "eos_token_id" appears twice`},
		{2, `[]`, "generation_config.json: not a JSON object"},
	} {
		o := Options{}
		if c.generation != "" {
			o.GenerationConfig = []byte(c.generation)
		}
		_, err := Builtin().Import(base("LlamaForCausalLM").with(settings{"eos_token_id": c.config}).json(t), o)
		var ce *ConfigError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %s: error %v, want …%s…", c.config, c.generation, err, c.want)
		}
	}
}

// Keys are case-sensitive.
func TestKeysAreExact(t *testing.T) {
	m, err := Builtin().Import(base("LlamaForCausalLM").json(t), Options{GenerationConfig: []byte(`{"EOS_token_id": 3}`)})
	if err != nil || m.Module.EOS != nil {
		t.Errorf("%v %v", m.Module.EOS, err)
	}
	if _, err := Builtin().Import(base("LlamaForCausalLM").with(settings{"Vocab_Size": 7}).json(t), Options{}); err == nil || !strings.Contains(err.Error(), `"Vocab_Size"`) {
		t.Errorf("error %v", err)
	}
}

// The config is read before any tensor, and generation_config.json is read from its directory.
func TestImportReadsTheConfigFirst(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("model.safetensors", "damaged")
	write("config.json", string(base("NoSuchForCausalLM").json(t)))
	var ue *UnknownArchitectureError
	if _, err := Builtin().ImportDir(dir, Options{}); !errors.As(err, &ue) {
		t.Errorf("error %v", err)
	}
	write("config.json", string(base("LlamaForCausalLM").with(settings{"strange": 1}).json(t)))
	var ce *ConfigError
	if _, err := Builtin().ImportDir(dir, Options{}); !errors.As(err, &ce) {
		t.Errorf("error %v", err)
	}
	write("config.json", string(base("LlamaForCausalLM").with(settings{"eos_token_id": 2}).json(t)))
	write("generation_config.json", `{"eos_token_id": [2, 185]}`)
	m, err := Builtin().ImportFile(filepath.Join(dir, "config.json"), Options{})
	if err != nil || !slices.Equal(m.Module.EOS, []int32{2, 185}) || m.Module.WeightsFrom != dir {
		t.Errorf("%v %v", m, err)
	}
	write("generation_config.json", `{"eos_token_id": "x"}`)
	if _, err := Builtin().ImportFile(filepath.Join(dir, "config.json"), Options{}); !errors.As(err, &ce) || ce.File != "generation_config.json" {
		t.Errorf("error %v", err)
	}
}

// Without a dtype in the config, the dtype is that of most elements of the tensors.
func TestDTypeOfTheTensors(t *testing.T) {
	config := base("LlamaForCausalLM").with(settings{"torch_dtype": absent{}, "dtype": absent{}})
	m, err := Builtin().Import(config.json(t), Options{DType: dtype.BF16})
	if err != nil {
		t.Fatal(err)
	}
	params := slices.Clone(m.Params)
	for i := range params {
		params[i].DType = dtype.BF16
		if strings.Contains(params[i].Name, "norm") {
			params[i].DType = dtype.F32
		}
	}
	got, err := Builtin().Import(config.json(t), Options{Source: Dummy(params)})
	if err != nil {
		t.Fatal(err)
	}
	if d := got.Module.Func("forward").ResultTypes[0].DType; d != dtype.BF16 {
		t.Errorf("imported in %s", d)
	}
	if _, err := Builtin().Import(config.json(t), Options{}); err == nil || !strings.Contains(err.Error(), "Options.DType") {
		t.Errorf("without tensors: %v", err)
	}
}
