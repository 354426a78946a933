package hf

// EXAONE4 imports Exaone4ForCausalLM (arXiv:2507.11407): norms after attention and MLP, and normalized q and k. The
// larger models have a window in three of four layers, and only these layers have a rope. Defaults of the config are
// those of transformers' configuration_exaone4.py.
func EXAONE4(c *Config) Emit {
	d := ReadDecoder(c, Dialect{Eps: 1e-5})
	d.Rope = ReadRope(c, d.HeadSize, RopeKeys{})
	d.normsAfter()
	d.Names.QNorm, d.Names.KNorm = "q_norm", "k_norm"
	size := readWindow(c, 4096)
	sliding := readPattern(c)
	d.ReadLayerTypes(c, size, func(layer int64) bool { return size > 0 && sliding(layer) })
	if size > 0 {
		d.Unturned = make([]bool, d.Layers)
		for i := range d.Unturned {
			d.Unturned[i] = d.window(int64(i)) == 0
		}
	}
	return d.Emit
}

// readPattern honours sliding_window_pattern, and returns which layers have a window. The key is a number n (every n-th
// layer has no window) or a string that repeats (L is a layer with a window, G one without). With 0, null or an empty
// string, no layer has a window.
func readPattern(c *Config) func(layer int64) bool {
	const key = "sliding_window_pattern"
	none := func(int64) bool { return false }
	if raw, ok := c.raw(key); ok && raw[0] == '"' {
		letters := c.StringOr(key, "")
		for _, l := range letters {
			if l != 'L' && l != 'G' {
				c.Errorf(key, "%q has other letters than L and G", letters)
				return none
			}
		}
		if letters == "" {
			return none
		}
		return func(layer int64) bool { return letters[layer%int64(len(letters))] == 'L' }
	}
	if c.Null(key) {
		return none
	}
	every := c.IntOr(key, 4, 0, maxLayers)
	if every == 0 {
		return none
	}
	return func(layer int64) bool { return (layer+1)%every != 0 }
}
