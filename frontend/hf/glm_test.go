package hf

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pwc/checkpoint"
	"pwc/ir"
	"pwc/ir/dtype"
)

func TestGLM4(t *testing.T) {
	const arch = "Glm4ForCausalLM"
	config := settings{
		"architectures": []string{arch}, "attention_bias": true, "attention_dropout": 0.0, "eos_token_id": []int{151329, 151336, 151338},
		"head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 13696,
		"max_position_embeddings": 32768, "model_type": "glm4", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
		"pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
		"torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0", "use_cache": true, "vocab_size": 151552,
	}
	published{"GLM-4-9B-0414", config, 9_400_279_040, 40, "bf16[B, 2, 16, 2, 128]"}.check(t, Options{})
	sameModules(t, arch, settings{}, settings{"head_dim": 128, "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-7})
	otherModules(t, arch, settings{"partial_rotary_factor": 1.0}, settings{"attention_bias": false}, settings{"head_dim": 64}, settings{"tie_word_embeddings": true})
	refuse(t, arch, refused{settings{"head_dim": 2}, "an even number of elements, from 2"})
}

func TestGLM(t *testing.T) {
	const arch = "GlmForCausalLM"
	otherModules(t, arch, settings{"attention_bias": false}, settings{"partial_rotary_factor": 1.0})
	if a, b := importText(t, base(arch), Options{}), importText(t, base("Glm4ForCausalLM"), Options{}); a == b {
		t.Error("GLM and GLM-4, which has additional norms, give the same module")
	}
}

// TestInterleavedOrder: a matrix and its bias have the same order of rows, also if the matrix is stored transposed.
// Norms and stacked matrices that would keep the checkpoint's order are refused.
func TestInterleavedOrder(t *testing.T) {
	for _, p := range []Projection{{Tensor: "qkv", Rows: 24, Heads: 2}, {Tensor: "q", Rows: 16, Neighbours: 4, HeadSize: 8}} {
		leaf := &ir.WeightExpr{}
		want := p.matrix(3).form(transposed(leaf, 1, 0))
		p.Transposed = true
		if got := p.matrix(3).form(leaf); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the rows of a transposed matrix have another order", p.Tensor)
		}
		p.Transposed = false
		rows := make([]float64, p.Rows)
		for i := range rows {
			rows[i] = float64(i)
		}
		src := with(Dummy(nil), f32s("matrix", []int64{p.Rows, 1}, rows...), f32s("bias", []int64{p.Rows}, rows...))
		order := func(name string, q part) []byte {
			w := &ir.Weight{Name: name, Type: ir.TypeOf(dtype.F32, dims(q.shape)...), Expr: q.form(&ir.WeightExpr{Name: name})}
			got, err := checkpoint.Compute(src, w)
			if err != nil {
				t.Fatal(err)
			}
			return slices.Concat(got.Parts...)
		}
		matrix, bias := order("matrix", p.matrix(1)), order("bias", p.bias())
		if !bytes.Equal(matrix, bias) || bytes.Equal(bias, f32s("", nil, rows...).Data) {
			t.Errorf("%s: the rows of the matrix are %v, those of the bias %v", p.Tensor, matrix, bias)
		}
	}
	const arch = "GlmForCausalLM"
	for want, family := range map[string]Family{
		`norm "model.layers.0.self_attn.q_norm": with a rope of interleaved pairs`: func(c *Config) Emit {
			d := readGLM(c)
			d.Names.QNorm, d.Names.KNorm = "q_norm", "k_norm"
			return d.Emit
		},
		`projection "experts": stacked matrices keep the checkpoint's order`: func(c *Config) Emit {
			readGLM(c)
			return func(n *Net) {
				_, _ = n.Forward()
				x := n.Weight("x", Matrix("x", 2, 4))
				n.F.Return(n.Linear(x, "w", false, Projection{Tensor: "experts", Rows: 24, Stacked: 2, Heads: 2}))
			}
		},
	} {
		families := Builtin()
		families.Register(arch, family)
		if _, err := families.Import(base(arch).json(t), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
