package hf

// Mistral imports MistralForCausalLM (arXiv:2310.06825): Llama with a window in every layer, which later models switch
// off. Defaults of the config are those of transformers' configuration_mistral.py.
func Mistral(c *Config) Emit {
	d := ReadDecoder(c, Dialect{KVHeads: 8})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	d.ReadWindow(c, 4096)
	readWindowAgain(c, readWindow(c, 4096))
	c.Inert("attention_sink_size") // of MLC's runtime
	return d.Emit
}
