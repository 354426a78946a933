package hf

// Llama imports LlamaForCausalLM: Llama 1 to 3.2 and the many models that kept its shape.
func Llama(c *Config) Emit {
	d := ReadDecoder(c, Dialect{})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	bias := c.BoolOr("attention_bias", false)
	d.QKVBias, d.OutBias = bias, bias
	d.MLPBias = c.BoolOr("mlp_bias", false)
	return d.Emit
}
