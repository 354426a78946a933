package hf

import "slices"

// Granite imports GraniteForCausalLM, the dense models of Granite 3: Llama with constants that multiply the embedding,
// the scores and the residual branches, and one that divides the logits (arXiv:2408.13359).
func Granite(c *Config) Emit {
	d := ReadDecoder(c, Dialect{})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	d.ReadAttentionBias(c)
	d.MLPBias = c.BoolOr("mlp_bias", false)
	d.EmbedScale = c.PositiveOr("embedding_multiplier", 1)
	d.Scales = slices.Repeat([]float64{c.PositiveOr("attention_multiplier", 1)}, int(d.Layers))
	d.ResidualScale = c.PositiveOr("residual_multiplier", 1)
	d.LogitDivisor = c.PositiveOr("logits_scaling", 1)
	return d.Emit
}
