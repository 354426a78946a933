package hf

// OLMo2 imports Olmo2ForCausalLM (arXiv:2501.00656): Llama with its norms after attention and MLP instead of before,
// and q and k normalized over all heads together.
func OLMo2(c *Config) Emit {
	d := readOLMo(c)
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	return d.Emit
}

// readOLMo honours the keys that OLMo 2 and 3 have in common.
func readOLMo(c *Config) *Decoder {
	d := ReadDecoder(c, Dialect{Eps: 1e-5})
	d.normsAfter()
	d.Names.QNorm, d.Names.KNorm, d.QKNormWhole = "q_norm", "k_norm", true
	d.ReadAttentionBias(c)
	return d
}

// normsAfter puts norms after attention and MLP, and removes those before.
func (d *Decoder) normsAfter() {
	d.Names.AttentionNorm, d.Names.AttentionPostNorm = "", "post_attention_layernorm"
	d.Names.MLPNorm, d.Names.MLPPostNorm = "", "post_feedforward_layernorm"
}
