package hf

// Qwen2MoE imports Qwen2MoeForCausalLM, Qwen1.5-MoE and Qwen2-57B-A14B (arXiv:2407.10671): Qwen 2 with experts in the
// layers that the config selects, and a shared expert that every token computes. use_sliding_window gives every second
// layer below max_window_layers a window. Defaults of the config are those of transformers' configuration_qwen2_moe.py.
func Qwen2MoE(c *Config) Emit {
	d := ReadDecoder(c, Dialect{KVHeads: 16})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	d.QKVBias = c.BoolOr("qkv_bias", true)
	size := readWindowFrom(c, 4096, 0) // transformers writes 0 where windows are off
	first := c.IntOr("max_window_layers", 28, 0, maxExtent)
	if !c.BoolOr("use_sliding_window", false) {
		size = 0
	}
	d.ReadLayerTypes(c, size, func(layer int64) bool { return size > 0 && layer%2 == 0 && layer < first })

	d.readQwenExperts(c, 1408, 60, 4)
	d.Experts.Shared = c.IntOr("shared_expert_intermediate_size", 5632, 1, maxExtent)
	d.Names.Shared, d.Names.SharedGate = "shared_expert.", "shared_expert_gate"
	return d.Emit
}

// readQwenExperts honours the keys of experts in Qwen's models. inner, count and perToken are the defaults of the
// intermediate features, the number of experts and the experts per token.
func (d *Decoder) readQwenExperts(c *Config, inner, count, perToken int64) {
	d.ReadExperts(c, c.IntOr("moe_intermediate_size", inner, 1, maxExtent), count, perToken, "num_experts", "num_local_experts")
	d.Experts.Normalize = c.BoolOr("norm_topk_prob", false)
	d.Names.Router, d.Names.Expert = "gate", "experts.%d."
	step := c.IntOr("decoder_sparse_step", 1, 1, maxExtent)
	d.Experts.Dense = make([]bool, d.Layers)
	for i := range d.Layers {
		d.Experts.Dense[i] = (i+1)%step != 0
	}
	for _, i := range c.Ints("mlp_only_layers") {
		if i < 0 || i >= d.Layers {
			c.Errorf("mlp_only_layers", "there is no layer %d in a model of %d layers", i, d.Layers)
			continue
		}
		d.Experts.Dense[i] = true
	}
}
