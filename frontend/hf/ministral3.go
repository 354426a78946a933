package hf

// Ministral3 imports Ministral3ForCausalLM, the text models of Ministral 3: Mistral with a factor of queries that grows
// with their position. Its settings are in rope_parameters (transformers' modeling_ministral3.py).
func Ministral3(c *Config) Emit {
	d := ReadDecoder(c, Dialect{KVHeads: 8, HeadSize: 128, Eps: 1e-5})
	d.ReadWindow(c, 0)
	const key = "rope_parameters"
	o := c.Object(key)
	if o == nil {
		c.Errorf(key, "is missing")
		return d.Emit
	}
	o.Inert("max_position_embeddings") // repeats the key of the file
	d.Rope = readRope(c, d.HeadSize, RopeKeys{DefaultBase: 1e6}, o)
	if o.Has("llama_4_scaling_beta") {
		d.QueryBeta, d.QueryPeriod = o.Positive("llama_4_scaling_beta"), originalContext(c, o)
	}
	return d.Emit
}
