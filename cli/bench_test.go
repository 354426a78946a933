package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// llama8B is the published shape of Llama-3.1-8B: 32 layers, 4 distinct pieces.
const llama8B = `{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "rms_norm_eps": 1e-05,
"rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": false}`

// BenchmarkProcess measures whole processes: pwc version, and pwc compile of the 8B shape with an empty
// cache, with a full one, and with a full one and a plan for the 51 default capture sizes.
func BenchmarkProcess(b *testing.B) {
	dir := b.TempDir()
	bin := filepath.Join(dir, "pwc")
	build := exec.Command("go", "build", "-o", bin, "../cmd/pwc")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	config := filepath.Join(dir, "config.json")
	if err := os.WriteFile(config, []byte(llama8B), 0o644); err != nil {
		b.Fatal(err)
	}
	warm := filepath.Join(dir, "cache")
	call := func(b *testing.B, cache string, args ...string) string {
		cmd := exec.Command(bin, args...)
		cmd.Env = append(os.Environ(), "PWC_CACHE=", "PWC_CACHE_DIR="+cache)
		out, err := cmd.CombinedOutput()
		if err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	call(b, warm, "compile", config)
	b.Run("version", func(b *testing.B) {
		for b.Loop() {
			call(b, warm, "version")
		}
	})
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			call(b, filepath.Join(b.TempDir(), "empty"), "compile", config, "--capture-sizes", "none")
		}
	})
	b.Run("warm", func(b *testing.B) {
		for b.Loop() {
			if out := call(b, warm, "compile", config, "--capture-sizes", "none", "--frozen", "--json"); !strings.Contains(out, `"compiled": 0`) {
				b.Fatalf("a warm start compiled\n%s", out)
			}
		}
	})
	b.Run("warm-51-sizes", func(b *testing.B) {
		for b.Loop() {
			call(b, warm, "compile", config, "--frozen")
		}
	})
}
