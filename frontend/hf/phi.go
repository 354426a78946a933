package hf

import "pwc/internal/termsafe"

// Phi imports PhiForCausalLM (arXiv:2309.05463): Phi 1, 1.5 and 2. Attention and MLP read the same norm, the rope
// rotates a part of each head, and all projections have biases, including the head. Configs with model_type phi-msft
// are from the time before transformers had the architecture. They have other keys and names of tensors.
func Phi(c *Config) Emit {
	if c.StringOr("model_type", "") == "phi-msft" {
		return firstPhi(c)
	}
	d := ReadDecoder(c, Dialect{Keys: map[string]string{"rms_norm_eps": "layer_norm_eps"}, Eps: 1e-5, Activation: "gelu_new"})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{Share: "partial_rotary_factor", DefaultShare: 0.5})
	d.phi()
	d.Names.Norm, d.Names.Out = "final_layernorm", "dense"
	if c.BoolOr("qk_layernorm", false) {
		d.Names.QNorm, d.Names.KNorm = "q_layernorm", "k_layernorm"
	}
	c.Inert("resid_pdrop", "embd_pdrop")
	return d.Emit
}

// phi sets the features that both kinds of configs have in common.
func (d *Decoder) phi() {
	d.Norm.Centered, d.Gated, d.Parallel = true, false, true
	d.QKVBias, d.OutBias, d.MLPBias, d.HeadBias = true, true, true, true
	d.Names.MLPNorm, d.Names.Up, d.Names.Down = "", []string{"fc1"}, "fc2"
	d.Names.Activation = "activation_fn"
}

// firstPhi reads a config of model_type phi-msft.
func firstPhi(c *Config) Emit {
	d := ReadDecoder(c, Dialect{
		Keys: map[string]string{
			"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "num_key_value_heads": "n_head_kv",
			"intermediate_size": "n_inner", "rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation_function", "head_dim": "",
		},
		InnerTimes: 4, Eps: 1e-5, Activation: "gelu_new",
	})
	turned := c.IntOr("rotary_dim", 32, 2, maxHeadSize)
	if turned > d.HeadSize || turned%2 != 0 {
		c.Errorf("rotary_dim", "%d is not an even number of a head's %d elements", turned, d.HeadSize)
		turned = 2
	}
	freq := toF32(frequencies(turned, 10000))
	d.Rope = Rope{InvFreq: freq, Scale: 1, Unscaled: freq}
	d.phi()
	d.Names.Base, d.Names.Embed, d.Names.Layer = "", "transformer.embd.wte", "transformer.h.%d."
	d.Names.Norm, d.Names.Head, d.Names.AttentionNorm = "lm_head.ln", "lm_head.linear", "ln"
	d.Names.Attention, d.Names.QKV, d.Names.Out = "mixer.", []string{"Wqkv"}, "out_proj"
	d.Names.Buffers = []Buffer{{"mixer.rotary_emb.inv_freq", RopeFrequencies}}
	c.tell(c.IntOr("n_positions", 2048, 1, maxPositions))
	c.Inert("attn_pdrop", "resid_pdrop", "embd_pdrop", "flash_attn", "flash_rotary", "fused_dense")
	if raw, ok := c.raw("img_processor"); ok {
		c.Errorf("img_processor", "%s is not supported: images are not read", termsafe.Line(string(raw), termsafe.MaxName))
	}
	return d.Emit
}
