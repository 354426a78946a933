package hf

// Limits of a config, far above those of any published model. They bound the cost of an import.
const (
	maxLayers   = 4096
	maxExtent   = 1 << 26 // vocabulary, features
	maxHeadSize = 1 << 14
)

// Dialect has the names of a family's keys and their defaults. The zero value is Llama's.
type Dialect struct {
	// Keys maps Llama's names of keys to the family's. An empty name for num_key_value_heads or head_dim means that the
	// family has no such key.
	Keys map[string]string

	HeadSize   int64   // default of head_dim; 0: hidden_size / num_attention_heads
	KVHeads    int64   // default of num_key_value_heads; 0, or null in the config: num_attention_heads
	InnerTimes int64   // default of intermediate_size, in multiples of hidden_size; 0: the key is required
	Eps        float64 // default of rms_norm_eps; 0: 1e-6
	Activation string  // default of hidden_act; empty: "silu"
	Tied       bool    // default of tie_word_embeddings
}

// ReadDecoder honours the keys that decoders have in common, except those of positions. The result has Llama's names,
// RMS norms and a gated MLP, which families then change.
func ReadDecoder(c *Config, dialect Dialect) *Decoder {
	key := func(name string) string {
		if k, ok := dialect.Keys[name]; ok {
			return k
		}
		return name
	}
	if dialect.Eps == 0 {
		dialect.Eps = 1e-6
	}
	if dialect.Activation == "" {
		dialect.Activation = "silu"
	}
	d := &Decoder{
		Vocab:      c.Int(key("vocab_size"), 1, maxExtent),
		Hidden:     c.Int(key("hidden_size"), 1, maxExtent),
		Layers:     c.Int(key("num_hidden_layers"), 1, maxLayers),
		Heads:      c.Int(key("num_attention_heads"), 1, maxHeadSize),
		Tied:       c.BoolOr("tie_word_embeddings", dialect.Tied),
		Names:      llamaNames(),
		Norm:       Norm{Eps: c.PositiveOr(key("rms_norm_eps"), dialect.Eps)},
		Activation: OneOf(c, key("hidden_act"), dialect.Activation, activations()),
		Gated:      true,
	}
	inner := key("intermediate_size")
	if dialect.InnerTimes == 0 {
		d.Inner = c.Int(inner, 1, maxExtent)
	} else {
		d.Inner = c.IntOr(inner, dialect.InnerTimes*d.Hidden, 1, maxExtent)
	}

	d.KVHeads = d.Heads
	if k := key("num_key_value_heads"); k != "" {
		if dialect.KVHeads != 0 && !c.Null(k) {
			d.KVHeads = dialect.KVHeads
		}
		d.KVHeads = c.IntOr(k, d.KVHeads, 1, maxHeadSize)
		if d.Heads%d.KVHeads != 0 {
			c.Errorf(k, "%d does not divide %s, %d", d.KVHeads, key("num_attention_heads"), d.Heads)
		}
	}

	size := key("head_dim")
	d.HeadSize = dialect.HeadSize
	if d.HeadSize == 0 {
		d.HeadSize = d.Hidden / d.Heads
		if d.Hidden%d.Heads != 0 && (size == "" || !c.Has(size)) {
			c.Errorf(key("num_attention_heads"), "%d does not divide %s, %d", d.Heads, key("hidden_size"), d.Hidden)
		}
	}
	if size != "" {
		d.HeadSize = c.IntOr(size, d.HeadSize, 1, maxHeadSize)
	} else {
		size = key("num_attention_heads")
	}
	if d.HeadSize < 1 || d.HeadSize > maxHeadSize {
		c.Errorf(size, "a head of %d elements is not in [1, %d]", d.HeadSize, maxHeadSize)
		d.HeadSize = 2
	}
	return d
}

// ReadAttentionBias honours attention_bias: whether the projections of q, k, v and the output have biases.
func (d *Decoder) ReadAttentionBias(c *Config) {
	d.QKVBias = c.BoolOr("attention_bias", false)
	d.OutBias = d.QKVBias
}
