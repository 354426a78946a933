package hf

import (
	"math"

	"pwc/internal/termsafe"
	"pwc/ir/dtype"
)

// scaledRope honours the keys of rope_parameters or rope_scaling, o. size is the number of a head's elements that the
// rope rotates. The formulas are those of transformers' modeling_rope_utils.py. Products are converted to float64 to
// prevent a fused multiply-add, which not every machine has and which rounds differently.
func scaledRope(c, o *Config, size int64, base float64) Rope {
	kind := o.StringOr("rope_type", o.StringOr("type", "default"))
	// mrope has three positions: time, height and width. For text they are equal, so mrope is the default rope.
	o.Inert("mrope_section", "mrope_interleaved")
	if kind == "mrope" {
		kind = "default"
	}
	if old := o.StringOr("type", kind); old != kind && old != "mrope" {
		o.Errorf("type", "%s contradicts rope_type %s", termsafe.Quote(old), termsafe.Quote(kind))
	}
	freq, scale := frequencies(size, base), 1.0
	switch kind {
	case "default":
	case "linear":
		factor := o.Positive("factor")
		for i := range freq {
			freq[i] /= factor
		}
	case "llama3":
		llama3Frequencies(freq, o)
	case "dynamic":
		dynamicFrequencies(freq, base, c, o)
	case "yarn":
		scale = yarnFrequencies(freq, base, c, o)
	case "longrope", "su":
		scale = longFrequencies(freq, c, o)
	default:
		o.Errorf("rope_type", "%s is not supported; supported: default, dynamic, linear, llama3, longrope, su, yarn", termsafe.Quote(kind))
		o.Inert(sortedKeys(o.values)...) // their meaning depends on the type, which already is a problem
	}
	return Rope{InvFreq: toF32(freq), Scale: dtype.F32.Round(scale), Unscaled: toF32(frequencies(size, base))}
}

// frequencies returns base^(-2i/size) for the size/2 pairs of elements.
func frequencies(size int64, base float64) []float64 {
	freq := make([]float64, size/2)
	for i := range freq {
		freq[i] = 1 / math.Pow(base, float64(2*i)/float64(size))
	}
	return freq
}

// llama3Frequencies divides low frequencies by a factor, keeps high ones, and interpolates between: Llama 3.1's
// scaling.
func llama3Frequencies(freq []float64, o *Config) {
	factor := o.Positive("factor")
	low, high := o.Positive("low_freq_factor"), o.Positive("high_freq_factor")
	context := o.Positive("original_max_position_embeddings")
	if high <= low {
		o.Errorf("high_freq_factor", "%v is not above low_freq_factor, %v", high, low)
		return
	}
	for i, f := range freq {
		turns := context * f / (2 * math.Pi) // within the original context
		switch {
		case turns < low:
			freq[i] = f / factor
		case turns <= high:
			smooth := (turns - low) / (high - low)
			freq[i] = float64((1-smooth)*(f/factor)) + float64(smooth*f)
		}
	}
}

// dynamicFrequencies raises the base if the longest sequence exceeds the length of training (dynamic NTK-aware
// scaling). The reference computes the base anew at every call, from the longest sequence so far, so one KV cache can
// hold keys of different bases. pwc uses one base, for the longest sequence to be served.
func dynamicFrequencies(freq []float64, base float64, c, o *Config) {
	factor := o.Positive("factor")
	o.Inert("original_max_position_embeddings") // published, but transformers 5 does not read it
	trained := c.Positive("max_position_embeddings")
	if float64(c.context) <= trained {
		return
	}
	size := float64(2 * len(freq))
	if size == 2 {
		o.Errorf("rope_type", "dynamic cannot scale a rope of one pair of elements")
		return
	}
	grown := float64(factor*float64(c.context)/trained) - (factor - 1)
	copy(freq, frequencies(int64(size), float64(base*math.Pow(grown, size/(size-2)))))
}

// yarnFrequencies divides low frequencies by a factor, keeps high ones, and interpolates between by the index of the
// pair (YaRN, arXiv:2309.00071). It returns the factor of cosines and sines.
func yarnFrequencies(freq []float64, base float64, c, o *Config) float64 {
	context := originalContext(c, o)
	factor := contextFactor(c, o, context)
	c.tell(int64(min(context*factor, maxPositions)))
	fast, slow := o.PositiveOr("beta_fast", 32), o.PositiveOr("beta_slow", 1)
	if base == 1 || fast < slow {
		o.Errorf("beta_fast", "%v must not be below beta_slow, %v, and the base, %v, must not be 1", fast, slow, base)
		return 1
	}
	// pair returns the fractional index of the pair that makes the given number of turns within the original context.
	last := float64(2*len(freq) - 1)
	pair := func(turns float64) float64 {
		return float64(len(freq)) * math.Log(context/(turns*2*math.Pi)) / math.Log(base)
	}
	low, high := pair(fast), pair(slow)
	if o.BoolOr("truncate", true) {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, last)
	if low == high {
		high += 0.001
	}
	for i, f := range freq {
		stretch := min(max((float64(i)-low)/(high-low), 0), 1)
		freq[i] = float64(f/factor*stretch) + float64(f*(1-stretch))
	}

	// gain is sqrt(1/t) of the paper. It multiplies q and k, so the logits of attention are multiplied by 1/t.
	gain := func(weight float64) float64 {
		if factor <= 1 {
			return 1
		}
		return float64(0.1*weight*math.Log(factor)) + 1
	}
	above, below := o.FloatOr("mscale", 0), o.FloatOr("mscale_all_dim", 0)
	scale := gain(1)
	if above != 0 && below != 0 {
		scale = gain(above) / gain(below)
	}
	return o.PositiveOr("attention_factor", scale)
}

// longFrequencies divides each pair's frequency by its own factor (LongRoPE, arXiv:2402.13753; "su" in older configs).
// The config has two lists of factors: for sequences up to the original context and for longer ones. The reference
// chooses a list at every call by the longest sequence, so one KV cache can hold keys of both. pwc chooses one list,
// for the longest sequence to be served. longFrequencies returns the factor of cosines and sines.
func longFrequencies(freq []float64, c, o *Config) float64 {
	short, long := o.Floats("short_factor"), o.Floats("long_factor")
	context := originalContext(c, o)
	factor := contextFactor(c, o, context)
	list, key := short, "short_factor"
	switch {
	case c.context == 0:
		o.Errorf("rope_type", "the frequencies depend on whether sequences are longer than %v tokens: give the longest sequence to be served (Options.Context)", context)
	case float64(c.context) > context:
		list, key = long, "long_factor"
	}
	if len(short) != len(freq) || len(long) != len(freq) {
		o.Errorf(key, "short_factor has %d factors and long_factor %d: both must have %d, one per pair of elements", len(short), len(long), len(freq))
		return 1
	}
	for i, f := range list {
		if !(f > 0) {
			o.Errorf(key, "%v is not above 0", f)
			return 1
		}
		freq[i] /= f
	}
	scale := 1.0
	if factor > 1 {
		if context == 1 {
			o.Errorf("original_max_position_embeddings", "1 cannot be scaled: it must be above 1")
			return 1
		}
		scale = math.Sqrt(1 + math.Log(factor)/math.Log(context))
	}
	return o.PositiveOr("attention_factor", scale)
}

// originalContext returns the longest sequence before scaling, original_max_position_embeddings. Newer configs have the
// key in the object o, and Phi-3 in the file c.
func originalContext(c, o *Config) float64 {
	const key = "original_max_position_embeddings"
	if !c.Has(key) {
		if !o.Has(key) { // the default of transformers 5
			return c.Positive("max_position_embeddings")
		}
		return o.Positive(key)
	}
	outer := c.Positive(key)
	if inner := o.PositiveOr(key, outer); inner != outer {
		o.Errorf(key, "%v contradicts %s of the file, %v", inner, key, outer)
	}
	return outer
}

// contextFactor returns the ratio of the longest sequences after and before scaling. It is factor if the config has
// that key, else max_position_embeddings / context.
func contextFactor(c, o *Config, context float64) float64 {
	if o.Has("factor") {
		return o.Positive("factor")
	}
	return c.Positive("max_position_embeddings") / context
}
