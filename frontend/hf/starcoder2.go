package hf

// StarCoder2 imports Starcoder2ForCausalLM (arXiv:2402.19173): layer norms, an MLP without a gate, biases except in the
// head, and a window in every layer if the config has one.
func StarCoder2(c *Config) Emit {
	d := ReadDecoder(c, Dialect{
		Keys:    map[string]string{"rms_norm_eps": "norm_epsilon"},
		KVHeads: 2, Eps: 1e-5, Activation: "gelu_pytorch_tanh", Tied: true,
	})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	d.ReadWindow(c, 0)
	d.Norm.Centered, d.Gated = true, false
	d.Names.Up, d.Names.Down, d.Names.Activation = []string{"c_fc"}, "c_proj", "act"
	bias := c.BoolOr("use_bias", true)
	d.QKVBias, d.OutBias, d.MLPBias = bias, bias, bias
	OneOf(c, "mlp_type", "default", map[string]bool{"default": true}) // other values are from before the model was published
	OneOf(c, "norm_type", "layer_norm", map[string]bool{"layer_norm": true})
	c.Inert("residual_dropout", "embedding_dropout",
		// Published, but transformers 5 does not read them.
		"rms_norm_eps", "activation_function", "layer_norm_epsilon", "scale_attn_weights", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
	)
	return d.Emit
}
