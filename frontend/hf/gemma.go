package hf

import (
	"math"
	"slices"
)

// Gemma imports GemmaForCausalLM (arXiv:2403.08295): Llama with norm scales that are stored minus 1, an embedding that
// is multiplied by the square root of hidden_size, and the GELU. The activation is hidden_activation if the config has
// it and it is not null, else hidden_act, else gelu_pytorch_tanh. transformers 5 reads hidden_act only. vLLM, and
// transformers in 2024, read hidden_activation only, so "hidden_act": "gelu" alone is gelu_pytorch_tanh there.
func Gemma(c *Config) Emit {
	keys := map[string]string{}
	if c.Has("hidden_activation") {
		keys["hidden_act"] = "hidden_activation"
		c.Inert("hidden_act")
	}
	d := readGemma(c, Dialect{Keys: keys, HeadSize: 256, Activation: "gelu_pytorch_tanh", Tied: true})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	return d.Emit
}

// Gemma2 imports Gemma2ForCausalLM (arXiv:2408.00118): norms before and after attention and MLP, softcaps of scores and
// logits, and a window in layers 0, 2, 4, ….
func Gemma2(c *Config) Emit {
	d := readLaterGemma(c)
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	d.readSoftcaps(c, 50, 30)
	size := readWindow(c, 4096)
	readWindowAgain(c, size)
	d.ReadLayerTypes(c, size, func(layer int64) bool { return layer%2 == 0 })
	return d.Emit
}

// Gemma3 imports Gemma3ForCausalLM (arXiv:2503.19786), the text-only models of Gemma 3. It is Gemma 2 with normalized q
// and k, with a separate rope for layers with a window, and by default without softcaps. Published models have five
// layers with a window for each layer without one.
func Gemma3(c *Config) Emit {
	d := readLaterGemma(c)
	d.Names.QNorm, d.Names.KNorm = "q_norm", "k_norm"
	d.readSoftcaps(c, 0, 0)
	c.Inert("_sliding_window_pattern") // transformers made layer_types from it, which the config has too
	pattern := c.IntOr("sliding_window_pattern", 6, 1, maxLayers)
	d.ReadLayerTypes(c, readWindow(c, 4096), func(layer int64) bool { return (layer+1)%pattern != 0 })

	d.readLayerRopes(c, RopeKeys{DefaultBase: 1e6}, RopeKeys{Base: "rope_local_base_freq"})
	return d.Emit
}

// readGemma honours the keys that all Gemmas have in common.
func readGemma(c *Config, dialect Dialect) *Decoder {
	d := ReadDecoder(c, dialect)
	d.Norm.FromOne = true
	d.ReadAttentionBias(c)
	d.EmbedScale, d.RoundScale = math.Sqrt(float64(d.Hidden)), true
	if c.BoolOr("use_bidirectional_attention", false) {
		c.Errorf("use_bidirectional_attention", "true is not supported: attention is causal")
	}
	return d
}

// readLaterGemma honours the keys that Gemma 2 and 3 have in common. Defaults are those of transformers'
// configuration_gemma2.py. A hidden_activation of null, which transformers refuses, is the default too.
func readLaterGemma(c *Config) *Decoder {
	d := readGemma(c, Dialect{
		Keys:     map[string]string{"hidden_act": "hidden_activation"},
		HeadSize: 256, KVHeads: 4, Activation: "gelu_pytorch_tanh", Tied: true,
	})
	d.Names.MLPNorm, d.Names.MLPPostNorm = "pre_feedforward_layernorm", "post_feedforward_layernorm"
	d.Names.AttentionPostNorm = "post_attention_layernorm"
	d.Scales = slices.Repeat([]float64{1 / math.Sqrt(c.PositiveOr("query_pre_attn_scalar", 256))}, int(d.Layers))
	c.Inert("hidden_act") // older configs have it and hidden_activation; the reference reads only the latter
	return d
}

// readSoftcaps honours the softcaps of scores and logits, with their defaults. Null means no softcap.
func (d *Decoder) readSoftcaps(c *Config, scores, logits float64) {
	d.Softcap = readSoftcap(c, "attn_logit_softcapping", scores)
	d.LogitSoftcap = readSoftcap(c, "final_logit_softcapping", logits)
}

func readSoftcap(c *Config, key string, missing float64) float64 {
	switch {
	case c.Null(key):
		return 0
	case c.Has(key):
		return c.Positive(key)
	}
	return missing
}
