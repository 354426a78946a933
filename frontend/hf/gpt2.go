package hf

import "math"

// GPT2 imports GPT2LMHeadModel (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019): learned
// positions, layer norms, an MLP without a gate, biases except in the head, and matrices that are stored transposed.
func GPT2(c *Config) Emit {
	d := ReadDecoder(c, Dialect{
		Keys: map[string]string{
			"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "intermediate_size": "n_inner",
			"rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation_function", "num_key_value_heads": "", "head_dim": "",
		},
		InnerTimes: 4, Eps: 1e-5, Activation: "gelu_new", Tied: true,
	})
	d.Positions = c.Int("n_positions", 1, maxExtent)
	d.Norm.Centered, d.Gated, d.Transposed = true, false, true
	d.QKVBias, d.OutBias, d.MLPBias = true, true, true
	d.Names = Names{
		Base: "transformer.", Embed: "wte", Positions: "wpe", Layer: "h.%d.", Norm: "ln_f", Head: "lm_head",
		AttentionNorm: "ln_1", MLPNorm: "ln_2",
		Attention: "attn.", QKV: []string{"c_attn"}, Out: "c_proj",
		MLP: "mlp.", Up: []string{"c_fc"}, Down: "c_proj", Activation: "act", Dropout: "drop",
		Buffers: []Buffer{{"attn.bias", CausalMask}, {"attn.masked_bias", MaskValue}},
	}

	scaled, byLayer := c.BoolOr("scale_attn_weights", true), c.BoolOr("scale_attn_by_inverse_layer_idx", false)
	for i := range d.Layers {
		scale := 1.0
		if scaled {
			scale /= math.Sqrt(float64(d.HeadSize))
		}
		if byLayer {
			scale /= float64(i + 1)
		}
		d.Scales = append(d.Scales, scale)
	}
	c.Inert(
		"n_ctx", // old name of n_positions
		"resid_pdrop", "embd_pdrop", "attn_pdrop",
		"n_special", "predict_special_tokens", // for training
		"reorder_and_upcast_attn", // scores are computed in f32 in any case
		"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
	)
	return d.Emit
}
