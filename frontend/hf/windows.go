package hf

import (
	"slices"

	"pwc/internal/termsafe"
)

// Names of the kinds of attention layers in layer_types.
const (
	slidingAttention = "sliding_attention"
	fullAttention    = "full_attention"
)

// ReadWindow honours sliding_window as the window of every layer. The argument missing is its default. A default of
// 0, or null in the config, means no window.
func (d *Decoder) ReadWindow(c *Config, missing int64) {
	if size := readWindow(c, missing); size > 0 {
		d.Windows = slices.Repeat([]int64{size}, int(d.Layers))
	}
}

func readWindow(c *Config, missing int64) int64 {
	return readWindowFrom(c, missing, 1)
}

// readWindowFrom is readWindow with the smallest valid window as the argument least. A window of 0 means no window.
func readWindowFrom(c *Config, missing, least int64) int64 {
	const key = "sliding_window"
	if c.Null(key) {
		return 0
	}
	return c.IntOr(key, missing, least, maxExtent)
}

// readWindowAgain honours sliding_window_size, which some published configs have with the same value as sliding_window.
func readWindowAgain(c *Config, size int64) {
	if again := c.IntOr("sliding_window_size", size, 0, maxExtent); again != size {
		c.Errorf("sliding_window_size", "%d contradicts sliding_window, %d", again, size)
	}
}

// ReadSwitchedWindows honours sliding_window if use_sliding_window switches windows on. layer_types gives the layers
// with a window; without it, these are all from max_window_layers on, as in transformers' configuration_qwen2.py.
func (d *Decoder) ReadSwitchedWindows(c *Config) {
	size := readWindow(c, 0)
	first := c.IntOr("max_window_layers", 28, 0, maxExtent)
	on := c.BoolOr("use_sliding_window", false)
	if on && size == 0 {
		c.Errorf("sliding_window", "is missing while use_sliding_window is true")
	}
	if !on {
		size = 0
	}
	d.ReadLayerTypes(c, size, func(layer int64) bool { return on && layer >= first })
}

// ReadLayerTypes honours layer_types, the layers that have a window of the given size. Without the key, the
// function missing decides. size is 0 if no layer may have a window.
func (d *Decoder) ReadLayerTypes(c *Config, size int64, missing func(layer int64) bool) {
	const key = "layer_types"
	types := c.Strings(key)
	if types == nil {
		for i := range d.Layers {
			if missing(i) {
				types = append(types, slidingAttention)
			} else {
				types = append(types, fullAttention)
			}
		}
	}
	if int64(len(types)) != d.Layers {
		c.Errorf(key, "has %d entries for %d layers", len(types), d.Layers)
		return
	}
	d.Windows = make([]int64, d.Layers)
	for i, t := range types {
		switch {
		case t == fullAttention:
		case t == slidingAttention && size > 0:
			d.Windows[i] = size
		case t == slidingAttention:
			c.Errorf(key, "layer %d has %s, but the config gives no window or switches it off", i, t)
			return
		default:
			c.Errorf(key, "%s of layer %d is not supported; supported: %s, %s", termsafe.Quote(t), i, fullAttention, slidingAttention)
			return
		}
	}
}
