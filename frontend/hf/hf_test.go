package hf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/safetensors"
)

// TestPublishedModels imports published config.json files without tensors. The numbers of parameters are from model
// cards and the indexes of checkpoints.
func TestPublishedModels(t *testing.T) {
	llama31 := settings{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "attention_bias": false, "attention_dropout": 0.0,
		"bos_token_id": 128000, "eos_token_id": []int{128001, 128008, 128009}, "hidden_act": "silu", "hidden_size": 4096,
		"initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
		"num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-5,
		"rope_scaling": settings{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
			"original_max_position_embeddings": 8192, "rope_type": "llama3"},
		"rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.3",
		"use_cache": true, "vocab_size": 128256,
	}
	llama32 := llama31.with(settings{"head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
		"tie_word_embeddings": true, "rope_scaling": settings{"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
			"original_max_position_embeddings": 8192, "rope_type": "llama3"}})
	qwen25 := settings{
		"architectures": []string{"Qwen2ForCausalLM"}, "model_type": "qwen2", "attention_dropout": 0.0, "bos_token_id": 151643,
		"eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
		"max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 14, "num_hidden_layers": 24,
		"num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 32768,
		"tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.43.1", "use_cache": true,
		"use_sliding_window": false, "vocab_size": 151936,
	}
	qwen3 := settings{
		"architectures": []string{"Qwen3ForCausalLM"}, "model_type": "qwen3", "attention_bias": false, "attention_dropout": 0.0,
		"bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
		"initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
		"num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_scaling": nil,
		"rope_theta": 1000000, "sliding_window": nil, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
		"transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936,
	}
	for _, p := range []published{
		{"Llama-3.1-8B", llama31, 8_030_261_248, 32, "bf16[B, 2, 16, 8, 128]"},
		{"Llama-3.2-1B", llama32, 1_235_814_400, 16, "bf16[B, 2, 16, 8, 64]"},
		{"Qwen2.5-0.5B", qwen25.with(settings{"eos_token_id": 151643, "max_window_layers": 24, "transformers_version": "4.40.1", "use_mrope": false}),
			494_032_768, 24, "bf16[B, 2, 16, 2, 64]"},
		{"Qwen2.5-0.5B-Instruct", qwen25, 494_032_768, 24, "bf16[B, 2, 16, 2, 64]"},
		{"Qwen3-0.6B", qwen3, 596_049_920, 28, "bf16[B, 2, 16, 8, 128]"},
	} {
		p.check(t, Options{})
	}
}

func importText(t *testing.T, s settings, o Options) string {
	t.Helper()
	m, err := Builtin().Import(s.json(t), o)
	if err != nil {
		t.Fatal(err)
	}
	return ir.Print(m.Module)
}

func TestOptions(t *testing.T) {
	config := base("LlamaForCausalLM")
	if a, b := importText(t, config, Options{}), importText(t, config, Options{MaxTokens: 8192, BlockSize: 16, DType: dtype.F32}); a != b {
		t.Errorf("the defaults are others:\n%s", cmp.Diff(a, b))
	}
	for _, o := range []Options{{MaxTokens: -1}, {MaxTokens: 1 << 40}, {Context: 1 << 40}, {BlockSize: -1}, {BlockSize: 1 << 40}, {DType: dtype.I8}, {DType: dtype.F8E4M3}} {
		if _, err := Builtin().Import(config.json(t), o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// TestMaxPositions checks the precedence of the bounds of a sequence: the rows of a table of positions are a hard
// limit, and Options.Context may exceed the length of training of a rope.
func TestMaxPositions(t *testing.T) {
	llama, gpt2 := base("LlamaForCausalLM"), base("GPT2LMHeadModel") // 8 learned positions
	for _, c := range []struct {
		config  settings
		context int64
		want    int64
	}{
		{llama.with(settings{"max_position_embeddings": 131072}), 0, 131072},
		{llama.with(settings{"max_position_embeddings": 131072}), 200000, 200000},
		{llama, 0, 0},
		{gpt2, 0, 8},
		{gpt2, 100, 8},
	} {
		m, err := Builtin().Import(c.config.json(t), Options{Context: c.context, DType: dtype.F32})
		if err != nil {
			t.Fatal(err)
		}
		if m.MaxPositions != c.want || m.Module.Context != c.want {
			t.Errorf("%s for %d: %d positions, %d in the module, want %d", m.Architecture, c.context, m.MaxPositions, m.Module.Context, c.want)
		}
	}
}

// TestDependsOnConfigAlone imports a config twice without a checkpoint and once with one. The modules must be equal, so
// that a model can be compiled without its weights.
func TestDependsOnConfigAlone(t *testing.T) {
	config := base("Qwen3ForCausalLM").with(settings{"torch_dtype": "bfloat16"})
	m, err := Builtin().Import(config.json(t), Options{DType: dtype.F32})
	if err != nil {
		t.Fatal(err)
	}
	first := ir.Print(m.Module)
	for i, o := range []Options{{DType: dtype.F32}, {DType: dtype.F32, Source: Dummy(m.Params)}} {
		if got := importText(t, config, o); got != first {
			t.Errorf("import %d differs:\n%s", i, cmp.Diff(first, got))
		}
	}
}

// TestSourceDTypes imports a checkpoint whose norms, and one of the biases of q, k and v, have a wider dtype than the
// config's.
func TestSourceDTypes(t *testing.T) {
	config := base("LlamaForCausalLM").with(settings{"torch_dtype": "bfloat16", "attention_bias": true})
	m, err := Builtin().Import(config.json(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	params := slices.Clone(m.Params)
	for i, p := range params {
		if strings.Contains(p.Name, "norm") || strings.HasSuffix(p.Name, "k_proj.bias") {
			params[i].DType = dtype.F32
		}
	}
	text := importText(t, config, Options{Source: Dummy(params)})
	for _, want := range []string{
		`weight @norm : bf16[16] = cast("model.norm.weight", dtype=bf16)`,
		`weight @l0.qkv_bias : bf16[48] = concat("model.layers.0.self_attn.q_proj.bias", cast("model.layers.0.self_attn.k_proj.bias", dtype=bf16), "model.layers.0.self_attn.v_proj.bias")`,
		`weight @head : bf16[32, 16] = "lm_head.weight"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if err := m.Check(Dummy(params)); err == nil || !strings.Contains(err.Error(), "is f32[16], the config says bf16[16]") {
		t.Errorf("a module of other dtypes fits the checkpoint: %v", err)
	}
}

func TestCheck(t *testing.T) {
	config := base("LlamaForCausalLM").with(settings{"tie_word_embeddings": true})
	m, err := Builtin().Import(config.json(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	params := slices.Clone(m.Params)
	params[0].Shape = []int64{32, 17}
	params = slices.DeleteFunc(params, func(p Param) bool { return strings.Contains(p.Name, "layers.1.mlp") })
	params = append(params, param("model.layers.0.self_attn.q_proj.bias", dtype.F32, 0, 1, 16),
		param("lm_head.weight", dtype.F32, 0, 1, 32, 16))
	want := &CheckError{
		Missing:    []string{`"model.layers.1.mlp.gate_proj.weight"`, `"model.layers.1.mlp.up_proj.weight"`, `"model.layers.1.mlp.down_proj.weight"`},
		Different:  []string{`"model.embed_tokens.weight" is f32[32 17], the config says f32[32 16]`},
		Unexpected: []string{`"model.layers.0.self_attn.q_proj.bias"`},
	}
	var ce *CheckError
	if err := m.Check(Dummy(params)); !errors.As(err, &ce) {
		t.Fatalf("error %v", err)
	}
	if diff := cmp.Diff(want, ce); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
	if _, err := Builtin().Import(config.json(t), Options{Source: Dummy(params)}); !errors.As(err, &ce) {
		t.Errorf("Import with the checkpoint: %v", err)
	}
	none := Dummy(nil)
	if err := m.Check(none); err == nil || !strings.Contains(err.Error(), "more") || len(err.Error()) > 2000 {
		t.Errorf("an empty checkpoint: %v", err)
	}
}

func TestUnknownArchitecture(t *testing.T) {
	config := base("NoSuchForCausalLM")
	_, err := Builtin().Import(config.json(t), Options{})
	var ue *UnknownArchitectureError
	if !errors.As(err, &ue) || ue.Architecture != "NoSuchForCausalLM" {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{strings.Join(Builtin().Architectures(), ", "), "Options.Architecture", "Registry.Register"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if m, err := Builtin().Import(config.json(t), Options{Architecture: "LlamaForCausalLM"}); err != nil || m.Architecture != "LlamaForCausalLM" {
		t.Errorf("with an architecture named: %v", err)
	}
	if _, err := Builtin().Import(base("").with(settings{"architectures": absent{}}).json(t), Options{}); !errors.As(err, &ue) {
		t.Errorf("without architectures: %v", err)
	}
}

// TestRegister registers a family that Builtin does not have.
func TestRegister(t *testing.T) {
	r := Builtin()
	r.Register("TinyForCausalLM", func(c *Config) Emit {
		d := ReadDecoder(c, Dialect{})
		d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
		d.OutBias = c.BoolOr("out_bias", false)
		return d.Emit
	})
	m, err := r.Import(base("TinyForCausalLM").with(settings{"out_bias": true}).json(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(m.Params, func(p Param) bool { return p.Name == "model.layers.1.self_attn.o_proj.bias" }) {
		t.Error("the family's key has no effect")
	}
	if slices.Contains(Builtin().Architectures(), "TinyForCausalLM") {
		t.Error("registries share state")
	}
}

// TestFamilyMistakes checks the errors for mistakes of a family.
func TestFamilyMistakes(t *testing.T) {
	for want, emit := range map[string]Emit{
		"@w is made of different tensors": func(n *Net) {
			_, _ = n.Forward()
			n.F.Return(n.Weight("w", Scale("a", 4, 1)), n.Weight("w", Scale("b", 4, 1)))
		},
		"@w is made of no tensor": func(n *Net) {
			_, _ = n.Forward()
			n.F.Return(n.Linear(n.Weight("x", Matrix("x", 2, 2)), "w", false))
		},
		"split: sizes sum to 5": func(n *Net) {
			_, _ = n.Forward()
			parts := n.parts(n.Weight("x", Matrix("x", 2, 4)), 2, 3)
			n.F.Return(n.Add(parts[0], parts[1]))
		},
	} {
		r := Builtin()
		r.Register("X", func(c *Config) Emit { return emit })
		if _, err := r.Import([]byte(`{"architectures": ["X"], "dtype": "float32"}`), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want …%s…", err, want)
		}
	}
}

// Without KeyParts, all ranks have the same KV heads.
func TestKeyPartsDefault(t *testing.T) {
	var texts []string
	for _, parts := range []int64{0, 1} {
		r := Builtin()
		r.Register("X", func(c *Config) Emit {
			return func(n *Net) {
				ids, _ := n.Forward()
				n.F.Return(n.Attention(n.Embedding(ids, "embed", "embed", 8, 4), Attention{
					Weight: "l0.", Heads: 1, KVHeads: 1, HeadSize: 2, KeyParts: parts, QueryScale: ir.NoValue,
					QKV: []Projection{{Tensor: "q", Rows: 4, Share: Share{Rows: []Section{{4, 2}}}}, {Tensor: "k", Rows: 2}, {Tensor: "v", Rows: 2}},
					Out: Projection{Tensor: "o", Rows: 4, Share: Share{Inner: true}}, QNorm: "q_norm", KNorm: "k_norm", NormWhole: true,
				}))
				n.Logits(4, Head{Weight: "head", Projection: Projection{Tensor: "head", Rows: 8}})
			}
		})
		m, err := r.Import([]byte(`{"architectures": ["X"], "dtype": "float32"}`), Options{Ranks: 2})
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, ir.Print(m.Module))
	}
	if diff := cmp.Diff(texts[1], texts[0]); diff != "" {
		t.Errorf("KeyParts 0 differs from 1:\n%s", diff)
	}
}

func TestImportDir(t *testing.T) {
	dir := t.TempDir()
	if _, err := Builtin().ImportDir(dir, Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory without config.json: %v", err)
	}
	config := base("LlamaForCausalLM")
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config.json(t), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Builtin().ImportDir(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if m.Module.WeightsFrom != dir {
		t.Errorf("weights from %q, want %q", m.Module.WeightsFrom, dir)
	}

	// The same checkpoint in two shards.
	src := Dummy(m.Params)
	parts, place := [2][]safetensors.Tensor{}, []string{}
	for i, p := range m.Params {
		x, err := src.Tensor(p.Name)
		if err != nil {
			t.Fatal(err)
		}
		parts[i%2] = append(parts[i%2], x)
		place = append(place, fmt.Sprintf("%q: \"model-%d.safetensors\"", p.Name, i%2))
	}
	for i, p := range parts {
		if err := safetensors.Write(filepath.Join(dir, fmt.Sprintf("model-%d.safetensors", i)), p, nil); err != nil {
			t.Fatal(err)
		}
	}
	index := filepath.Join(dir, safetensors.IndexFile)
	if err := os.WriteFile(index, []byte(`{"weight_map": {`+strings.Join(place, ",")+`}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	sharded, err := Builtin().ImportDir(dir, Options{Weights: "elsewhere"})
	if err != nil {
		t.Fatal(err)
	}
	if sharded.Module.WeightsFrom != "elsewhere" {
		t.Errorf("weights from %q", sharded.Module.WeightsFrom)
	}
	if diff := cmp.Diff(m.Params, sharded.Params); diff != "" {
		t.Errorf("params differ:\n%s", diff)
	}

	if err := safetensors.Write(filepath.Join(dir, "model-1.safetensors"), parts[1][1:], nil); err != nil {
		t.Fatal(err)
	}
	var fe *safetensors.FormatError
	if _, err := Builtin().ImportDir(dir, Options{}); !errors.As(err, &fe) || fe.Tensor != parts[1][0].Name {
		t.Errorf("a shard that lost a tensor: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "model-0.safetensors")); err != nil {
		t.Fatal(err)
	}
	if _, err := Builtin().ImportDir(dir, Options{}); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "model-0.safetensors") {
		t.Errorf("a missing shard: %v", err)
	}
}
