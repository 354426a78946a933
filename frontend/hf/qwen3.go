package hf

// Qwen3 imports Qwen3ForCausalLM, the dense models of Qwen 3. It is Llama with normalized q and k, heads whose size is
// not tied to the hidden features, and windows that can be switched on (arXiv:2505.09388).
func Qwen3(c *Config) Emit { return readQwen3(c, 10000) }

// readQwen3 is Qwen3 with the given default of the rope's base.
func readQwen3(c *Config, base float64) Emit {
	d := ReadDecoder(c, Dialect{HeadSize: 128}) // transformers' configuration_qwen3.py
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{DefaultBase: base})
	d.ReadAttentionBias(c)
	d.Names.QNorm, d.Names.KNorm = "q_norm", "k_norm"
	d.ReadSwitchedWindows(c)
	return d.Emit
}
