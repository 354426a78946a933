package hf

// Qwen2 imports Qwen2ForCausalLM: Qwen 2 and 2.5. It is Llama with biases on q, k and v, and windows that can be switched
// on (arXiv:2407.10671).
func Qwen2(c *Config) Emit {
	d := ReadDecoder(c, Dialect{})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	d.QKVBias = true
	d.ReadSwitchedWindows(c)
	if c.BoolOr("use_mrope", false) { // the published configs say false
		c.Errorf("use_mrope", "true is not supported: the architecture has no such rope")
	}
	return d.Emit
}
