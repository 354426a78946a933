package hf_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"pwc/frontend/hf"
	"pwc/ir"
	"pwc/ir/dtype"
)

// oneOfEachFamily are the goldens that are also divided among ranks: at least one for each family, except GLM (GLM4
// without two norms) and most text parts, whose families are in the list. They have the options of the
// family that need a division of their own (norms of q and k, biases).
var oneOfEachFamily = []string{
	"llama", "mistral", "ministral3", "smollm3", "granite", "falcon3", "qwen2", "qwen3", "starcoder2", "phi3", "glm4",
	"gemma", "gemma2", "gemma3", "cohere_qknorm", "cohere2", "exaone4", "olmo2", "olmo3_bias",
	"gpt2", "gpt_neox", "phi_qknorm", "mixtral", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe", "gemma3_vl",
}

// TestRanks compares models on several ranks with transformers: logits and greedy tokens, with at
// least one KV head per rank, and with fewer KV heads than ranks. Ranks that do not divide the query heads
// are refused.
func TestRanks(t *testing.T) {
	for _, ranks := range []int64{2, 4} {
		for _, name := range oneOfEachFamily {
			t.Run(fmt.Sprintf("%s/%d", name, ranks), func(t *testing.T) {
				o := goldens()[name]
				o.DType, o.Ranks = dtype.F32, ranks
				if heads := headsOf(t, name); heads%ranks != 0 {
					refused(t, name, o, fmt.Sprintf("%d heads of attention (num_attention_heads) cannot be divided among %d ranks", heads, ranks))
					return
				}
				checkLogits(t, name, o)
				greedy(t, name, o)
			})
		}
	}
}

// TestExpertParallel compares the logits of models whose ranks have whole experts with transformers.
func TestExpertParallel(t *testing.T) {
	for _, name := range []string{"mixtral", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe"} {
		o := goldens()[name]
		o.DType, o.Ranks, o.ExpertParallel = dtype.F32, 2, true
		checkLogits(t, name, o)
	}
}

func checkLogits(t *testing.T, name string, o hf.Options) {
	t.Helper()
	g := openGolden(t, name)
	ids := g.ids(t, "input_ids")
	r := newRunner(t, importGolden(t, g, o), g.checkpoint)
	got := r.step(t, ids, 0, rowsOf(len(ids))...)
	if d := largestDifference(got.Float64s(), g.values(t, "logits")); !(d <= 1e-4) {
		t.Errorf("%s: logits differ by %g", name, d)
	}
}

func refused(t *testing.T, name string, o hf.Options, want string) {
	t.Helper()
	_, err := hf.Builtin().ImportDir(openGolden(t, name).dir, o)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v, want %q", name, err, want)
	}
}

// headsOf returns the number of query heads of a golden.
func headsOf(t *testing.T, name string) int64 {
	t.Helper()
	m := importGolden(t, openGolden(t, name), goldens()[name])
	f := m.Module.Func("forward")
	for _, n := range f.Nodes {
		if n.Name() == hf.AttentionOp {
			heads, _ := f.Type(n.Args[0]).Shape[1].Const()
			return heads
		}
	}
	t.Fatalf("%s has no attention", name)
	return 0
}

// TestNormsOfRanks compares a model on several ranks with the model on one, for each kind of norm over all heads of q
// and k. With four ranks, two ranks share a KV head.
func TestNormsOfRanks(t *testing.T) {
	config, err := os.ReadFile(openGolden(t, "olmo2").dir + "/config.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, norm := range map[string]hf.Norm{
		"rms": {}, "rms from one": {FromOne: true}, "layer": {Centered: true}, "layer without bias": {Centered: true, Unbiased: true},
	} {
		norm.Eps = 1e-5
		families := hf.Builtin()
		families.Register("Olmo2ForCausalLM", func(c *hf.Config) hf.Emit {
			d := hf.ReadDecoder(c, hf.Dialect{})
			d.ReadAttentionBias(c)
			d.Rope = hf.ReadRope(c, d.HeadSize, hf.RopeKeys{})
			d.Names.QNorm, d.Names.KNorm, d.QKNormWhole = "q_norm", "k_norm", true
			d.Norm = norm
			return d.Emit
		})
		logits := func(ranks int64) []float64 {
			m, err := families.Import(config, hf.Options{DType: dtype.F32, Ranks: ranks})
			if err != nil {
				t.Fatalf("%s, %d ranks: %v", name, ranks, err)
			}
			for i := range m.Params { // values of scales and biases differ
				if strings.Contains(m.Params[i].Name, "_norm.") {
					m.Params[i].Std = 0.5
				}
			}
			return newRunner(t, m, hf.Dummy(m.Params)).step(t, []int32{1, 2, 3, 4, 5}, 0, 2, 4).Float64s()
		}
		want := logits(1)
		for _, ranks := range []int64{2, 4} {
			if d := largestDifference(logits(ranks), want); !(d <= 1e-5) {
				t.Errorf("%s: %d ranks differ by %g", name, ranks, d)
			}
		}
	}
}

// TestCacheOfRanks checks that a rank's KV cache has only its own heads, and the cache's placement.
func TestCacheOfRanks(t *testing.T) {
	for ranks, want := range map[int64]string{1: "bf16[B, 2, 16, 2, 16]", 2: "bf16[B, 2, 16, 1, 16] shard 3 over tp", 4: "bf16[B, 2, 16, 1, 16] varying over tp"} {
		m := importGolden(t, openGolden(t, "llama"), hf.Options{Ranks: ranks, DType: dtype.BF16})
		s := m.Module.States[0]
		got := s.Type.String()
		for _, p := range s.Placements {
			got += " " + p.String()
		}
		if got != want {
			t.Errorf("%d ranks: a cache is %s, want %s", ranks, got, want)
		}
	}
}

// TestRanksThatDoNotDivide checks the errors for sizes that the number of ranks does not divide.
func TestRanksThatDoNotDivide(t *testing.T) {
	refused(t, "llama", hf.Options{Ranks: 3}, "4 heads of attention (num_attention_heads) cannot be divided among 3 ranks")
	refused(t, "llama", hf.Options{Ranks: 3}, "2 heads of keys and values (num_key_value_heads) cannot be shared by 3 ranks")
	refused(t, "mixtral", hf.Options{Ranks: 3, ExpertParallel: true}, "experts cannot be divided among 3 ranks")
	refused(t, "llama", hf.Options{Ranks: -1}, fmt.Sprintf("Ranks -1 must be in [1, %d]", ir.MaxGroupSize))
}

// TestOptionsComeTogether: an error lists all options out of range.
func TestOptionsComeTogether(t *testing.T) {
	for _, want := range []string{"MaxTokens -1 must", "BlockSize -2 in", "imported in i8", "Ranks -3 must", "Context -4 must"} {
		refused(t, "llama", hf.Options{MaxTokens: -1, BlockSize: -2, DType: dtype.I8, Ranks: -3, Context: -4}, want)
	}
}
