package hf

// GPTNeoX imports GPTNeoXForCausalLM (arXiv:2204.06745): GPT-NeoX-20B, Pythia and similar models. Attention and MLP
// read the same input through separate norms, the rope rotates a part of each head, and q, k and v are stored head
// after head.
func GPTNeoX(c *Config) Emit {
	d := ReadDecoder(c, Dialect{
		Keys: map[string]string{"rms_norm_eps": "layer_norm_eps", "num_key_value_heads": "", "head_dim": ""},
		Eps:  1e-5, Activation: "gelu",
	})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{Base: "rotary_emb_base", Share: "rotary_pct", DefaultShare: 0.25})
	readAgain(c, "rope_theta", "rotary_emb_base", 10000)
	readAgain(c, "partial_rotary_factor", "rotary_pct", 0.25)
	d.Norm.Centered, d.Gated, d.Interleaved = true, false, true
	d.Parallel = c.BoolOr("use_parallel_residual", true)
	d.QKVBias = c.BoolOr("attention_bias", true)
	d.OutBias, d.MLPBias = d.QKVBias, true
	d.Names = Names{
		Base: "gpt_neox.", Embed: "embed_in", Layer: "layers.%d.", Norm: "final_layer_norm", Head: "embed_out",
		AttentionNorm: "input_layernorm", MLPNorm: "post_attention_layernorm",
		Attention: "attention.", QKV: []string{"query_key_value"}, Out: "dense",
		MLP: "mlp.", Up: []string{"dense_h_to_4h"}, Down: "dense_4h_to_h", Activation: "act",
		Buffers: []Buffer{{"attention.bias", CausalMask}, {"attention.masked_bias", MaskValue}, {"attention.rotary_emb.inv_freq", RopeFrequencies}},
	}
	c.Inert("hidden_dropout", "classifier_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob")
	return d.Emit
}

// readAgain honours a key that some releases of transformers write with the same value as the key first. The argument
// missing is the default of both.
func readAgain(c *Config, key, first string, missing float64) {
	if !c.Has(key) {
		return
	}
	if want, v := c.FloatOr(first, missing), c.FloatOr(key, missing); v != want {
		c.Errorf(key, "%v contradicts %s, %v", v, first, want)
	}
}
