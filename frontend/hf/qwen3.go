package hf

// Qwen3 imports Qwen3ForCausalLM, the dense models of Qwen 3. It is Llama with normalized q and k, heads whose size is
// not tied to the hidden features, and windows that can be switched on (arXiv:2505.09388).
func Qwen3(c *Config) Emit {
	d := ReadDecoder(c, 128) // transformers' configuration_qwen3.py
	bias := c.BoolOr("attention_bias", false)
	d.QKVBias, d.OutBias = bias, bias
	d.QKNorm = true
	d.ReadWindows(c)
	return d.Emit
}
