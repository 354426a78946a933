package hf

// OLMo3 imports Olmo3ForCausalLM: OLMo 2 with a window in three of four layers. The ropes of these layers are not
// scaled. Defaults of the config are those of transformers' configuration_olmo3.py.
func OLMo3(c *Config) Emit {
	d := readOLMo(c)
	d.readLayerRopes(c, RopeKeys{DefaultBase: 500000}, RopeKeys{DefaultBase: 500000})
	d.ReadLayerTypes(c, readWindow(c, 4096), func(layer int64) bool { return (layer+1)%4 != 0 })
	return d.Emit
}
