package hf

import "fmt"

// Decoder is the shape that Llama gave its descendants: an embedding, layers of attention and gated MLP, each behind an
// RMS norm and beside a residual, a last norm and a head. Families read it with [ReadDecoder], set what they differ in,
// and return its Emit.
type Decoder struct {
	Vocab, Hidden, Inner, Layers int64

	Heads, KVHeads, HeadSize int64

	QKVBias, OutBias, MLPBias bool
	QKNorm                    bool
	Tied                      bool    // the head is the embedding's table
	Eps                       float64 // of every norm
	Activation                string  // op of the IR
	Rope                      Rope
	Windows                   []int64 // attention window of each layer, 0: all positions; nil: all positions everywhere
}

// Limits of what a config may ask for, far above any model there is. They bound what importing one can cost.
const (
	maxLayers   = 4096
	maxExtent   = 1 << 26 // vocabulary, features
	maxHeadSize = 1 << 14
)

// ReadDecoder honours the keys that all decoders of this shape have. headSize is the size of a head where the config
// does not say; 0 means that the hidden features are divided among the heads.
func ReadDecoder(c *Config, headSize int64) *Decoder {
	d := &Decoder{
		Vocab:      c.Int("vocab_size", 1, maxExtent),
		Hidden:     c.Int("hidden_size", 1, maxExtent),
		Inner:      c.Int("intermediate_size", 1, maxExtent),
		Layers:     c.Int("num_hidden_layers", 1, maxLayers),
		Heads:      c.Int("num_attention_heads", 1, maxHeadSize),
		Tied:       c.BoolOr("tie_word_embeddings", false),
		Eps:        c.PositiveOr("rms_norm_eps", 1e-6),
		Activation: OneOf(c, "hidden_act", "silu", activations()),
	}
	d.KVHeads = c.IntOr("num_key_value_heads", d.Heads, 1, maxHeadSize)
	if d.Heads%d.KVHeads != 0 {
		c.Errorf("num_key_value_heads", "%d does not divide num_attention_heads, %d", d.KVHeads, d.Heads)
	}
	if headSize == 0 {
		if headSize = d.Hidden / d.Heads; d.Hidden%d.Heads != 0 && !c.Has("head_dim") {
			c.Errorf("num_attention_heads", "%d does not divide hidden_size, %d", d.Heads, d.Hidden)
		}
	}
	d.HeadSize = c.IntOr("head_dim", headSize, 2, maxHeadSize)
	if d.HeadSize < 2 || d.HeadSize > maxHeadSize || d.HeadSize%2 != 0 {
		c.Errorf("head_dim", "%d is not an even number in [2, %d]: its halves turn against each other", d.HeadSize, maxHeadSize)
		d.HeadSize = 2
	}
	d.Rope = ReadRope(c, d.HeadSize, 10000)
	return d
}

// ReadWindows honours the keys that give layers a window: use_sliding_window switches them on, layer_types says which
// layers have one, and without it all from max_window_layers on do, as in transformers' configuration_qwen2.py.
func (d *Decoder) ReadWindows(c *Config) {
	const window, full = "sliding_attention", "full_attention"
	size := c.IntOr("sliding_window", 1, 1, maxExtent)
	first := c.IntOr("max_window_layers", 28, 0, maxExtent)
	types := c.Strings("layer_types")
	on := c.BoolOr("use_sliding_window", false)
	if on && !c.Has("sliding_window") {
		c.Errorf("sliding_window", "is missing while use_sliding_window is true")
	}
	if types == nil {
		for i := range d.Layers {
			if on && i >= first {
				types = append(types, window)
			} else {
				types = append(types, full)
			}
		}
	}
	if int64(len(types)) != d.Layers {
		c.Errorf("layer_types", "has %d entries for %d layers", len(types), d.Layers)
		return
	}
	d.Windows = make([]int64, d.Layers)
	for i, t := range types {
		switch {
		case t == full:
		case t == window && on:
			d.Windows[i] = size
		case t == window:
			c.Errorf("layer_types", "layer %d has %s while use_sliding_window is false", i, quote(t))
			return
		default:
			c.Errorf("layer_types", "%s of layer %d is not supported; supported: %s, %s", quote(t), i, full, window)
			return
		}
	}
}

// Emit builds the module.
func (d *Decoder) Emit(n *Net) {
	const table = "model.embed_tokens"
	ids, pos := n.Forward()
	x := n.Embedding(ids, "embed", table, d.Vocab, d.Hidden)
	rope := n.RopeTables(pos, d.Rope, "model.rotary_emb")
	for i := range d.Layers {
		weight, tensor := fmt.Sprintf("l%d.", i), fmt.Sprintf("model.layers.%d", i)
		a := Attention{
			Weight: weight, Tensor: tensor + ".self_attn",
			Heads: d.Heads, KVHeads: d.KVHeads, HeadSize: d.HeadSize,
			QKVBias: d.QKVBias, OutBias: d.OutBias, QKNorm: d.QKNorm, NormEps: d.Eps,
		}
		if d.Windows != nil {
			a.Window = d.Windows[i]
		}
		h := n.RMSNorm(x, weight+"attn_norm", tensor+".input_layernorm", d.Eps)
		x = n.Add(x, n.Attention(h, a, rope))
		h = n.RMSNorm(x, weight+"mlp_norm", tensor+".post_attention_layernorm", d.Eps)
		x = n.Add(x, n.GatedMLP(h, GatedMLP{Weight: weight, Tensor: tensor + ".mlp", Inner: d.Inner, Activation: d.Activation, Bias: d.MLPBias}))
		n.Ignore(tensor + ".self_attn.rotary_emb.inv_freq") // older checkpoints keep the frequencies
	}
	x = n.RMSNorm(x, "norm", "model.norm", d.Eps)
	n.F.Return(x)

	const head = "lm_head"
	if d.Tied {
		n.Ignore(head + ".weight") // some tools write the table twice
		n.Logits(d.Hidden, "embed", Projection{table, d.Vocab})
		return
	}
	n.Logits(d.Hidden, "head", Projection{head, d.Vocab})
}
