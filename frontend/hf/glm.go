package hf

// GLM imports GlmForCausalLM (arXiv:2406.12793): Llama with gate and up in one matrix, and partial rotary embeddings of
// interleaved pairs. Defaults of the config are those of transformers' configuration_glm.py.
func GLM(c *Config) Emit { return readGLM(c).Emit }

// GLM4 imports Glm4ForCausalLM, the models of GLM-4-0414 and GLM-Z1: GLM with additional norms after attention and MLP.
func GLM4(c *Config) Emit {
	d := readGLM(c)
	d.Names.AttentionPostNorm, d.Names.MLPPostNorm = "post_self_attn_layernorm", "post_mlp_layernorm"
	return d.Emit
}

func readGLM(c *Config) *Decoder {
	d := ReadDecoder(c, Dialect{HeadSize: 128, KVHeads: 2, Eps: 1.5625e-7})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{Share: "partial_rotary_factor", DefaultShare: 0.5})
	d.Neighbours = true
	d.QKVBias = c.BoolOr("attention_bias", true)
	d.Names.Up, d.Names.Activation = []string{"gate_up_proj"}, "activation_fn"
	return d
}
