package hf

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"pwc/ir"
	"pwc/ir/dtype"
)

// settings is a config.json that a test edits. json.RawMessage is for values that encoding/json does not write.
type settings map[string]any

// absent, as a value of an edit, stands for a key that [settings.with] deletes.
type absent struct{}

// base is a small config of an architecture, with the keys that have no default or a default that does not fit the
// sizes.
func base(arch string) settings {
	s := settings{
		"architectures": []string{arch}, "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
		"num_attention_heads": 4, "torch_dtype": "float32",
	}
	switch arch {
	case "GPT2LMHeadModel":
		return settings{
			"architectures": []string{arch}, "vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 8, "torch_dtype": "float32",
		}
	case "GPTNeoXForCausalLM":
		return s.with(settings{"rotary_pct": 0.5}) // the default share, 1/4, would rotate one element of 4
	case "Mistral3ForConditionalGeneration":
		return settings{"architectures": []string{arch}, "text_config": base("MistralForCausalLM")}
	case "MistralForCausalLM", "MixtralForCausalLM", "Qwen2MoeForCausalLM":
		return s.with(settings{"num_key_value_heads": 2}) // the default is 8 or 16
	case "Ministral3ForCausalLM":
		return s.with(settings{"num_key_value_heads": 2, "rope_parameters": settings{"rope_type": "default", "rope_theta": 10000.0}})
	case "Qwen3VLMoeForConditionalGeneration":
		return s.with(settings{"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2})
	}
	return s
}

func (s settings) with(edits settings) settings {
	out := maps.Clone(s)
	for k, v := range edits {
		if _, gone := v.(absent); gone {
			delete(out, k)
		} else {
			out[k] = v
		}
	}
	return out
}

func (s settings) json(t testing.TB) []byte {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// decoderOf reads a config with Llama's keys, and those that set reads, without building a module.
func decoderOf(t *testing.T, s settings, set func(*Config, *Decoder)) (*Decoder, error) {
	t.Helper()
	c, err := parseConfig(s.json(t))
	if err != nil {
		t.Fatal(err)
	}
	c.Inert("architectures", "torch_dtype", "dtype", "model_type")
	c.Inert(inertKeys()...)
	d := ReadDecoder(c, Dialect{})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	set(c, d)
	return d, c.err()
}

func nothingMore(*Config, *Decoder) {}

func TestSpellings(t *testing.T) {
	llama3 := settings{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
	type group struct {
		name string
		all  []settings // configs of the same decoder
	}
	for _, g := range []group{
		{"default rope", []settings{
			{},
			{"rope_theta": 10000},
			{"rope_theta": 10000.0, "rope_scaling": nil},
			{"rope_theta": 1e4, "rope_scaling": settings{"rope_type": "default"}},
			{"rope_parameters": settings{"rope_theta": 10000.0, "rope_type": "default"}},
			{"rope_parameters": settings{"rope_theta": 10000.0}},
			{"rope_parameters": settings{"rope_type": "default", "partial_rotary_factor": 1.0}, "rope_theta": 10000.0},
			{"rope_parameters": nil},
		}},
		{"theta", []settings{
			{"rope_theta": 500000},
			{"rope_parameters": settings{"rope_theta": 500000.0, "rope_type": "default"}},
			{"rope_parameters": settings{"rope_theta": 500000.0, "rope_type": "default"}, "rope_theta": 500000.0},
		}},
		{"linear", []settings{
			{"rope_scaling": settings{"type": "linear", "factor": 2}},
			{"rope_scaling": settings{"rope_type": "linear", "factor": 2.0}},
			{"rope_scaling": settings{"rope_type": "linear", "type": "linear", "factor": 2.0}},
			{"rope_parameters": settings{"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}},
			{"rope_parameters": settings{"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}, "rope_scaling": settings{"type": "linear", "factor": 2}},
		}},
		{"llama3", []settings{
			{"rope_theta": 500000.0, "rope_scaling": llama3.with(settings{"rope_type": "llama3"})},
			{"rope_theta": 500000.0, "rope_scaling": llama3.with(settings{"type": "llama3"})},
			{"rope_parameters": llama3.with(settings{"rope_type": "llama3", "rope_theta": 500000.0})},
		}},
		{"kv heads", []settings{{}, {"num_key_value_heads": 4}, {"num_key_value_heads": nil}}},
		{"head size", []settings{{}, {"head_dim": 4}, {"head_dim": nil}}},
		{"activation", []settings{{}, {"hidden_act": "silu"}, {"hidden_act": "swish"}}},
		{"eps", []settings{{}, {"rms_norm_eps": 1e-6}, {"rms_norm_eps": json.RawMessage("0.000001")}}},
		{"inert", []settings{{}, {"use_cache": false, "bos_token_id": []int{1, 2}, "transformers_version": "9", "id2label": settings{"0": "x"}}}},
	} {
		var want *Decoder
		for i, s := range g.all {
			got, err := decoderOf(t, base("LlamaForCausalLM").with(s), nothingMore)
			if err != nil {
				t.Errorf("%s, spelling %d: %v", g.name, i, err)
				continue
			}
			if want == nil {
				want = got
			} else if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: spelling %d differs from the first:\n%s", g.name, i, diff)
			}
		}
	}
}

func TestDTypeSpellings(t *testing.T) {
	for _, c := range []struct {
		config settings
		want   string // dtype of the first weight, or part of the error
	}{
		{settings{"torch_dtype": "bfloat16"}, "bf16"},
		{settings{"torch_dtype": absent{}, "dtype": "bfloat16"}, "bf16"},
		{settings{"torch_dtype": "float16", "dtype": "float16"}, "f16"},
		{settings{"torch_dtype": "float32"}, "f32"},
		{settings{"torch_dtype": "float16", "dtype": "bfloat16"}, "contradicts"},
		{settings{"torch_dtype": "int8"}, `"int8" is not supported; supported: bfloat16, float16, float32`},
		{settings{"torch_dtype": 7}, "7 is not a string"},
		{settings{"torch_dtype": absent{}}, "set the dtype to import in (Options.DType)"},
		{settings{"torch_dtype": nil}, "set the dtype to import in (Options.DType)"},
	} {
		m, err := Builtin().Import(base("LlamaForCausalLM").with(c.config).json(t), Options{})
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: error %v, want …%s…", c.config, err, c.want)
			}
			continue
		}
		if got := m.Module.Weights[0].Type.DType.String(); got != c.want {
			t.Errorf("%v: weights are %s, want %s", c.config, got, c.want)
		}
	}
}

func TestWindows(t *testing.T) {
	read := func(c *Config, d *Decoder) { d.ReadSwitchedWindows(c) }
	four := base("Qwen2ForCausalLM").with(settings{"num_hidden_layers": 4})
	const w, f = "sliding_attention", "full_attention"
	for _, c := range []struct {
		edits settings
		want  []int64
	}{
		{settings{}, []int64{0, 0, 0, 0}},
		{settings{"sliding_window": 9, "max_window_layers": 1}, []int64{0, 0, 0, 0}},
		{settings{"use_sliding_window": false, "sliding_window": nil, "layer_types": []string{f, f, f, f}}, []int64{0, 0, 0, 0}},
		{settings{"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 3}, []int64{0, 0, 0, 9}},
		{settings{"use_sliding_window": true, "sliding_window": 9}, []int64{0, 0, 0, 0}},
		{settings{"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 0, "layer_types": []string{f, w, f, w}}, []int64{0, 9, 0, 9}},
	} {
		d, err := decoderOf(t, four.with(c.edits), read)
		if err != nil {
			t.Errorf("%v: %v", c.edits, err)
		} else if !slices.Equal(d.Windows, c.want) {
			t.Errorf("%v: windows %v, want %v", c.edits, d.Windows, c.want)
		}
	}
	for _, c := range []struct {
		edits settings
		want  string
	}{
		{settings{"use_sliding_window": true}, `"sliding_window": is missing`},
		{settings{"use_sliding_window": true, "sliding_window": 0}, "0 is not in"},
		{settings{"layer_types": []string{f}}, "has 1 entries for 4 layers"},
		{settings{"layer_types": []string{f, f, f, f, f}}, "has 5 entries for 4 layers"},
		{settings{"layer_types": []string{f, f, f, w}}, "layer 3"},
		{settings{"layer_types": []string{f, f, f, w}, "sliding_window": 9}, "layer 3"},
		{settings{"layer_types": []string{f, "chunked_attention", f, f}}, `"chunked_attention" of layer 1 is not supported`},
		{settings{"layer_types": f}, "has 1 entries for 4 layers"},
		{settings{"layer_types": 1}, "is not a list of strings"},
	} {
		if _, err := decoderOf(t, four.with(c.edits), read); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want …%s…", c.edits, err, c.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	rope := func(s settings) settings { return settings{"rope_scaling": s} }
	llama3 := settings{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
	for _, c := range []struct {
		arch  string
		edits settings
		want  string
	}{
		{"Llama", settings{"vocab_size": absent{}}, `"vocab_size": is missing`},
		{"Llama", settings{"hidden_size": nil}, `"hidden_size": is missing`},
		{"Llama", settings{"hidden_size": 0}, "0 is not in [1, "},
		{"Llama", settings{"hidden_size": -16}, "-16 is not in [1, "},
		{"Llama", settings{"hidden_size": "16"}, `"16" is not an integer`},
		{"Llama", settings{"hidden_size": 16.5}, "16.5 is not an integer"},
		{"Llama", settings{"hidden_size": true}, "true is not an integer"},
		{"Llama", settings{"hidden_size": json.RawMessage("99999999999999999999")}, "is not an integer"},
		{"Llama", settings{"num_hidden_layers": int64(1) << 40}, "is not in [1, 4096]"},
		{"Llama", settings{"num_attention_heads": 3}, "3 does not divide hidden_size"},
		{"Llama", settings{"num_key_value_heads": 3}, "3 does not divide num_attention_heads"},
		{"Llama", settings{"head_dim": 5}, "even number of elements, from 2 to the head's 5; 1 times the head gives 5"},
		{"Llama", settings{"hidden_size": 1 << 20, "num_attention_heads": 1}, "a head of 1048576 elements is not in [1, 16384]"},
		{"Llama", settings{"num_attention_heads": 16}, "from 2 to the head's 1"},
		{"Llama", settings{"hidden_act": "quick_gelu"}, `"quick_gelu" is not supported; supported: gelu, gelu_fast, gelu_new`},
		{"Llama", settings{"hidden_act": []string{"silu"}}, "is not a string"},
		{"Llama", settings{"rms_norm_eps": 0}, "0 is not above 0"},
		{"Llama", settings{"rms_norm_eps": "1e-6"}, "is not a number"},
		{"Llama", settings{"attention_bias": 1}, "1 is not true or false"},
		{"Llama", settings{"is_encoder_decoder": true}, "only decoders can be imported"},
		{"Llama", settings{"pruned_heads": settings{"0": []int{1}}}, "pruned heads are not supported"},
		{"Llama", settings{"rope_theta": -1}, "-1 is not above 0"},
		{"Llama", settings{"rope_theta": 1, "rope_parameters": settings{"rope_theta": 2}}, "contradicts rope_parameters.rope_theta"},
		{"Llama", settings{"rope_scaling": 2}, "not a JSON object"},
		{"Llama", rope(settings{"rope_type": "proportional", "factor": 4.0, "beta_fast": 32}), `"rope_scaling.rope_type": "proportional" is not supported; supported: default, dynamic, linear, llama3, longrope, su, yarn`},
		{"Llama", rope(settings{"type": "dynamic", "factor": 4.0}), `"max_position_embeddings": is missing`},
		{"Llama", rope(settings{"type": "linear", "rope_type": "llama3", "factor": 2.0}), "contradicts rope_type"},
		{"Llama", rope(settings{"type": "linear"}), `"rope_scaling.factor": is missing`},
		{"Llama", rope(settings{"type": "linear", "factor": 0}), "0 is not above 0"},
		{"Llama", rope(settings{"type": "linear", "factor": 2, "attention_factor": 1}), `"rope_scaling.attention_factor"`},
		{"Llama", rope(settings{"rope_type": "default", "partial_rotary_factor": 0.5}), "0.5 is not supported: only 1 is"},
		{"Llama", rope(llama3.with(settings{"high_freq_factor": 1.0})), "is not above low_freq_factor"},
		{"Llama", rope(llama3.with(settings{"low_freq_factor": absent{}})), `"rope_scaling.low_freq_factor": is missing`},
		{"Llama", settings{"rope_parameters": llama3, "rope_scaling": settings{"type": "linear", "factor": 2}}, "contradicts rope_parameters"},
		{"Llama", settings{"head_dim": 8, "rope_theta": 1e-200}, "frequency 1 is outside the range of f32"},
		{"Llama", rope(settings{"type": "linear", "factor": 1e-200}), "frequency 0 is outside the range of f32"},
		{"Llama", settings{"sliding_window": 4096}, `"sliding_window"`},
		{"Llama", settings{"rope_interleaved": true}, `"rope_interleaved": true is not supported`},
		{"Mistral", settings{"sliding_window_size": 7}, "7 contradicts sliding_window, 4096"},
		{"Llama", settings{"architectures": []string{"LlamaForCausalLM", "Other"}}, "names 2 architectures"},
		{"Qwen2", settings{"attention_bias": false}, `"attention_bias"`},
		{"Qwen2", settings{"mlp_bias": false}, `"mlp_bias"`},
		{"Qwen2", settings{"use_mrope": true}, `"use_mrope": true is not supported`},
		{"Qwen3", settings{"mlp_bias": false}, `"mlp_bias"`},
	} {
		_, err := Builtin().Import(base(c.arch+"ForCausalLM").with(c.edits).json(t), Options{})
		var ce *ConfigError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v: error %v, want …%s…", c.arch, c.edits, err, c.want)
		}
	}
}

func TestRefusalsComeTogether(t *testing.T) {
	config := base("LlamaForCausalLM").with(settings{
		"zeta": 1, "alpha": false, "beta": nil, "rope_scaling": settings{"type": "linear", "factor": 2, "beta": 3},
		"hidden_act": "tanhshrink", "vocab_size": absent{},
	})
	_, err := Builtin().Import(config.json(t), Options{})
	var ce *ConfigError
	if !errors.As(err, &ce) {
		t.Fatalf("error %v", err)
	}
	if want := []string{"alpha", "rope_scaling.beta", "zeta"}; !slices.Equal(ce.Refused, want) {
		t.Errorf("refused %q, want %q", ce.Refused, want)
	}
	var keys []string
	for _, p := range ce.Problems {
		keys = append(keys, p.Key)
	}
	slices.Sort(keys)
	if want := []string{"hidden_act", "vocab_size"}; !slices.Equal(keys, want) {
		t.Errorf("problems with %q, want %q", keys, want)
	}
	if !strings.Contains(err.Error(), "Options.IgnoreKeys") {
		t.Errorf("no way out is named: %v", err)
	}
}

func TestIgnoreKeys(t *testing.T) {
	config := base("LlamaForCausalLM").with(settings{"zeta": settings{"a": 1}, "eta": 2}).json(t)
	_, err := Builtin().Import(config, Options{IgnoreKeys: []string{"zeta"}})
	var ce *ConfigError
	if !errors.As(err, &ce) || !slices.Equal(ce.Refused, []string{"eta"}) {
		t.Errorf("error %v, want eta alone refused", err)
	}
	if _, err := Builtin().Import(config, Options{IgnoreKeys: []string{"zeta", "eta"}}); err != nil {
		t.Error(err)
	}
}

func TestNotAConfig(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "not a JSON object",
		"[]":                                   "not a JSON object",
		"null":                                 "not a JSON object",
		`{"a": 1} {}`:                          "text follows",
		`{"a": 1, "a": 1}`:                     `key "a" appears twice`,
		`{"a": }`:                              "not JSON",
		`{"a": Nan}`:                           "not JSON",
		`{"a": NaN1}`:                          "not JSON",
		`{"a"`:                                 "not JSON",
		`{`:                                    "not JSON",
		"{\"a\": \"\xff\"}":                    "not UTF-8",
		`{"architectures":[]}`:                 "names no architecture",
		`{"a": ` + strings.Repeat("[", 20_000): "not JSON",
	} {
		if _, err := Builtin().Import([]byte(text), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: error %v, want …%s…", text, err, want)
		}
	}
	dup := `{"architectures":["LlamaForCausalLM"],"rope_scaling":{"factor":1,"factor":2}}`
	if _, err := Builtin().Import([]byte(dup), Options{}); err == nil || !strings.Contains(err.Error(), `"rope_scaling": key "factor" appears twice`) {
		t.Errorf("error %v", err)
	}
}

// TestTooLarge imports a config whose shapes overflow int64, which must be an error.
func TestTooLarge(t *testing.T) {
	config := base("LlamaForCausalLM").with(settings{"num_attention_heads": maxHeadSize, "num_key_value_heads": maxHeadSize, "head_dim": maxHeadSize})
	_, err := Builtin().Import(config.json(t), Options{BlockSize: maxBlock})
	if err == nil || !strings.Contains(err.Error(), "more elements than an int64 can count") {
		t.Errorf("error %v", err)
	}
}

// TestAnyConfig draws valid configs, and requires that the text of each module parses.
func TestAnyConfig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kv := rapid.IntRange(1, 3).Draw(t, "kv")
		heads := kv * rapid.IntRange(1, 3).Draw(t, "group")
		size := 2 * rapid.IntRange(1, 4).Draw(t, "size")
		arch := rapid.SampledFrom(Builtin().Architectures()).Draw(t, "arch")
		config := settings{
			"architectures":       []string{arch},
			"torch_dtype":         rapid.SampledFrom([]string{"float32", "float16", "bfloat16"}).Draw(t, "dtype"),
			"hidden_act":          rapid.SampledFrom(sortedKeys(activations())).Draw(t, "act"),
			"vocab_size":          rapid.IntRange(1, 9).Draw(t, "vocab"),
			"hidden_size":         rapid.IntRange(1, 9).Draw(t, "hidden"),
			"intermediate_size":   rapid.IntRange(1, 9).Draw(t, "inner"),
			"num_hidden_layers":   rapid.IntRange(1, 3).Draw(t, "layers"),
			"num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": size,
			"tie_word_embeddings": rapid.Bool().Draw(t, "tied"),
			"rope_theta":          rapid.Float64Range(1, 1e7).Draw(t, "theta"),
		}
		switch arch {
		case "GPT2LMHeadModel": // as in GPT-NeoX, the head size is hidden_size / heads, and there are as many KV heads as heads
			config = settings{
				"architectures": config["architectures"], "torch_dtype": config["torch_dtype"], "vocab_size": config["vocab_size"],
				"activation_function": config["hidden_act"], "n_inner": config["intermediate_size"], "n_layer": config["num_hidden_layers"],
				"n_embd": heads * size, "n_head": heads, "n_positions": size,
			}
		case "GPTNeoXForCausalLM":
			config = config.with(settings{
				"hidden_size": heads * size, "num_key_value_heads": absent{}, "head_dim": absent{}, "rope_theta": absent{},
				"rotary_emb_base": config["rope_theta"], "rotary_pct": 1,
			})
		case "PhiForCausalLM", "GlmForCausalLM", "Glm4ForCausalLM": // half of a head, the default share, may be odd
			config = config.with(settings{"partial_rotary_factor": 1})
		case "Ministral3ForCausalLM":
			config = config.with(settings{"rope_theta": absent{}, "rope_parameters": settings{"rope_theta": config["rope_theta"]}})
		case "Mistral3ForConditionalGeneration":
			config = settings{"architectures": config["architectures"], "text_config": config.with(settings{"architectures": absent{}})}
		case "GemmaForCausalLM":
			config = config.with(settings{"hidden_activation": config["hidden_act"], "hidden_act": absent{}})
		}
		text, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Builtin().Import(text, Options{
			DType:     rapid.SampledFrom([]dtype.DType{dtype.Invalid, dtype.F32, dtype.F16, dtype.BF16}).Draw(t, "import dtype"),
			MaxTokens: rapid.Int64Range(1, maxTokens).Draw(t, "tokens"),
			BlockSize: rapid.Int64Range(1, maxBlock).Draw(t, "block"),
		})
		if err != nil {
			t.Fatal(err)
		}
		printed := ir.Print(m.Module)
		again, err := ir.Parse("module.ir", []byte(printed))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(printed, ir.Print(again)); diff != "" {
			t.Fatalf("parsing and printing changes the module:\n%s", diff)
		}
	})
}

// FuzzImport requires that no config.json crashes the import, and that an accepted one gives a verified module whose
// tensors a dummy checkpoint has.
func FuzzImport(f *testing.F) {
	paths, err := filepath.Glob("../../testdata/hf/*/config.json")
	if err != nil || len(paths) == 0 {
		f.Fatal(err, paths)
	}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, arch := range Builtin().Architectures() {
		f.Add(base(arch).with(settings{"rope_scaling": settings{"type": "linear", "factor": 2}}).json(f))
	}
	f.Fuzz(func(t *testing.T, config []byte) {
		m, err := Builtin().Import(config, Options{})
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without a message")
			}
			return
		}
		if err := m.Module.Verify(); err != nil {
			t.Fatal(err)
		}
		if err := m.Check(Dummy(m.Params)); err != nil {
			t.Fatal(err)
		}
	})
}
