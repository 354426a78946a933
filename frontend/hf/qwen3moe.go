package hf

import "slices"

// Qwen3MoE imports Qwen3MoeForCausalLM, the mixtures of experts of Qwen 3 (arXiv:2505.09388): Qwen 3 with experts in
// the layers that the config selects, and a window in all layers or in no layer. Defaults of the config are those of
// transformers' configuration_qwen3_moe.py.
func Qwen3MoE(c *Config) Emit {
	d := ReadDecoder(c, Dialect{KVHeads: 4})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	d.ReadAttentionBias(c)
	d.Names.QNorm, d.Names.KNorm = "q_norm", "k_norm"
	if size := readWindow(c, 4096); c.BoolOr("use_sliding_window", false) && size > 0 {
		d.Windows = slices.Repeat([]int64{size}, int(d.Layers))
	}
	// Qwen3-Coder's configs have these keys too, with values that do not change the model.
	c.IntOr("shared_expert_intermediate_size", 0, 0, 0)
	if c.BoolOr("qkv_bias", false) {
		c.Errorf("qkv_bias", "true is not supported: the reference reads attention_bias instead")
	}
	if !c.BoolOr("use_qk_norm", true) {
		c.Errorf("use_qk_norm", "false is not supported: the architecture normalizes q and k")
	}
	c.Inert("max_window_layers") // published, but transformers 5 does not read it

	d.readQwenExperts(c, 768, 128, 8)
	return d.Emit
}

// qwen3VLMoEText reads the text part of Qwen3-VL's mixtures of experts (transformers' configuration_qwen3_vl_moe.py).
func qwen3VLMoEText(c *Config) Emit {
	d := ReadDecoder(c, Dialect{KVHeads: 16})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{DefaultBase: 500000})
	d.ReadAttentionBias(c)
	d.Names.QNorm, d.Names.KNorm = "q_norm", "k_norm"
	d.readQwenExperts(c, 1408, 60, 4)
	d.Experts.Normalize = true // the reference does not read norm_topk_prob
	d.Names.StackedUp, d.Names.StackedDown = "experts.gate_up_proj", "experts.down_proj"
	return d.Emit
}
