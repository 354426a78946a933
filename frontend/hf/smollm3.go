package hf

// SmolLM3 imports SmolLM3ForCausalLM: Llama without a rope in some layers, in published models in every fourth. Without
// layer_types, use_sliding_window gives only these layers a window. Defaults of the config are those of transformers'
// configuration_smollm3.py.
func SmolLM3(c *Config) Emit {
	d := ReadDecoder(c, Dialect{KVHeads: 4, Tied: true})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{DefaultBase: 2e6})
	d.ReadAttentionBias(c)
	d.MLPBias = c.BoolOr("mlp_bias", false)
	d.readNoRopeLayers(c)
	size := readWindow(c, 0)
	if !c.BoolOr("use_sliding_window", false) {
		size = 0
	}
	d.ReadLayerTypes(c, size, func(layer int64) bool { return size > 0 && d.Unturned[layer] })
	c.Inert("max_window_layers") // published, but transformers 5 does not read it
	return d.Emit
}

// readNoRopeLayers honours no_rope_layers, a list with 0 for each layer without a rope and 1 for each layer with one.
// If the config does not have it, every no_rope_layer_interval-th layer has no rope.
func (d *Decoder) readNoRopeLayers(c *Config) {
	const key = "no_rope_layers"
	interval := c.IntOr("no_rope_layer_interval", 4, 1, maxLayers)
	turned := c.Ints(key)
	d.Unturned = make([]bool, d.Layers)
	if turned != nil && int64(len(turned)) < d.Layers {
		c.Errorf(key, "has %d entries for %d layers", len(turned), d.Layers)
		return
	}
	for i := range d.Unturned {
		switch {
		case turned == nil:
			d.Unturned[i] = (int64(i)+1)%interval == 0
		case turned[i] != 0 && turned[i] != 1:
			c.Errorf(key, "%d of layer %d is neither 0 nor 1", turned[i], i)
			return
		default:
			d.Unturned[i] = turned[i] == 0
		}
	}
}
