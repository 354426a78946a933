package hf

// Mixtral imports MixtralForCausalLM (arXiv:2401.04088): Mistral with experts in every layer. Published models have no
// windows. Defaults of the config are those of transformers' configuration_mixtral.py.
func Mixtral(c *Config) Emit {
	d := ReadDecoder(c, Dialect{KVHeads: 8, Eps: 1e-5})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{DefaultBase: 1e6})
	d.ReadWindow(c, 0)
	d.ReadExperts(c, d.Inner, 8, 2, "num_local_experts")
	d.Experts.Normalize = true
	d.Names.MLP, d.Names.Router, d.Names.Expert = "block_sparse_moe.", "gate", "experts.%d."
	d.Names.Up, d.Names.Down = []string{"w1", "w3"}, "w2"
	c.Inert("router_jitter_noise") // for training
	return d.Emit
}
