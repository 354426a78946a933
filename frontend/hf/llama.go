package hf

// Llama imports LlamaForCausalLM: Llama 1 to 3.2 and the many other models with this architecture.
func Llama(c *Config) Emit {
	d := ReadDecoder(c, Dialect{})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	d.ReadAttentionBias(c)
	d.MLPBias = c.BoolOr("mlp_bias", false)
	return d.Emit
}
