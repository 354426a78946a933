package hf

// Phi3 imports Phi3ForCausalLM (arXiv:2404.14219): Phi 3, 3.5 and 4. It is Llama with q, k and v in one matrix, gate
// and up in another, sliding-window attention, partial rotary embeddings, and scaling by LongRoPE.
func Phi3(c *Config) Emit {
	d := ReadDecoder(c, Dialect{Eps: 1e-5})
	d.Names.QKV, d.Names.Up = []string{"qkv_proj"}, []string{"gate_up_proj"}
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{Share: "partial_rotary_factor", DefaultShare: 1})
	d.ReadWindow(c, 0)
	for _, key := range []string{"attention_bias", "mlp_bias", "lm_head_bias"} {
		if c.BoolOr(key, false) {
			c.Errorf(key, "true is not supported: the architecture has no such bias")
		}
	}
	// Published configs have these keys for the code in their own repositories (auto_map). transformers reads neither.
	for _, key := range []string{"full_attn_mod", "interpolate_factor"} {
		c.IntOr(key, 1, 1, 1)
	}
	c.Inert("resid_pdrop", "embd_pdrop",
		"original_max_position_embeddings", // without effect unless the rope is scaled
	)
	return d.Emit
}
