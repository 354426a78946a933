package hf

// Cohere imports CohereForCausalLM: Command R and Aya 23. Attention and MLP read the same norm, a layer norm without a
// bias. The rope rotates interleaved pairs, the head is tied by default, and logit_scale multiplies the logits.
// Defaults of the config are those of transformers' configuration_cohere.py.
func Cohere(c *Config) Emit {
	d := readCohere(c, RopeKeys{DefaultBase: 500000})
	if c.BoolOr("use_qk_norm", false) {
		d.Names.QNorm, d.Names.KNorm, d.QKNormByHead = "q_norm", "k_norm", true
	}
	return d.Emit
}

// Cohere2 imports Cohere2ForCausalLM: Command R7B and Command A. It is Cohere with a window in three of four layers.
// Only layers with a window have a rope (transformers' configuration_cohere2.py).
func Cohere2(c *Config) Emit {
	d := readCohere(c, RopeKeys{})
	pattern := c.IntOr("sliding_window_pattern", c.IntOr("_sliding_window_pattern", 4, 1, maxLayers), 1, maxLayers)
	d.ReadLayerTypes(c, readWindow(c, 4096), func(layer int64) bool { return (layer+1)%pattern != 0 })
	d.Unturned = make([]bool, d.Layers)
	for i := range d.Unturned {
		d.Unturned[i] = d.window(int64(i)) == 0
	}
	c.Inert("order_of_interleaved_layers", "position_embedding_type", "rotary_pct", // published, but transformers 5 does not read them
		"use_embedding_sharing", "use_gated_activation", "use_parallel_block", "use_parallel_embedding", "layer_switch")
	return d.Emit
}

func readCohere(c *Config, rope RopeKeys) *Decoder {
	d := ReadDecoder(c, Dialect{Keys: map[string]string{"rms_norm_eps": "layer_norm_eps"}, Eps: 1e-5, Tied: true})
	d.Rope = ReadRope(c, d.HeadSize, rope)
	d.Neighbours, d.Parallel = true, true
	d.Norm.Centered, d.Norm.Unbiased = true, true
	d.Names.MLPNorm = ""
	d.ReadAttentionBias(c)
	d.LogitScale = c.PositiveOr("logit_scale", 0.0625)
	return d
}
