package hf

import (
	"math"
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Rope is a rotary position embedding: pair i of a head's elements turns by InvFreq[i] radians a position (RoFormer,
// arXiv:2104.09864). The frequencies are values of f32, as in the reference, which also makes them the same on every
// machine.
type Rope struct {
	InvFreq []float64
}

// ReadRope honours rope_theta and rope_scaling, or rope_parameters, which newer configs have in their place, for heads
// whose first size elements turn. theta is the base of a config that has none.
func ReadRope(c *Config, size int64, theta float64) Rope {
	base := c.PositiveOr("rope_theta", theta)
	var found *Rope
	for _, key := range []string{"rope_parameters", "rope_scaling"} {
		o := c.Object(key)
		if o == nil {
			continue
		}
		b := o.PositiveOr("rope_theta", base)
		if c.Has("rope_theta") && b != base {
			c.Errorf("rope_theta", "%v contradicts %s.rope_theta, %v", base, key, b)
		}
		r := scaledRope(o, size, b)
		if found != nil && !slices.Equal(found.InvFreq, r.InvFreq) {
			c.Errorf(key, "contradicts rope_parameters")
		}
		found = &r
	}
	if found == nil {
		found = &Rope{InvFreq: toF32(frequencies(size, base))}
	}
	for i, f := range found.InvFreq {
		if math.IsInf(f, 0) {
			c.Errorf("rope_theta", "frequency %d is beyond the range of f32", i)
			break
		}
	}
	return *found
}

// scaledRope honours the keys of rope_parameters or rope_scaling.
func scaledRope(o *Config, size int64, base float64) Rope {
	if f := o.FloatOr("partial_rotary_factor", 1); f != 1 {
		o.Errorf("partial_rotary_factor", "%v is not supported: only 1 is", f)
	}
	kind := o.StringOr("rope_type", o.StringOr("type", "default"))
	if old := o.StringOr("type", kind); old != kind {
		o.Errorf("type", "%s contradicts rope_type %s", quote(old), quote(kind))
	}
	freq := frequencies(size, base)
	switch kind {
	case "default":
	case "linear":
		factor := o.Positive("factor")
		for i := range freq {
			freq[i] /= factor
		}
	case "llama3":
		llama3Frequencies(freq, o)
	default:
		o.Errorf("rope_type", "%s is not supported; supported: default, linear, llama3", quote(kind))
		o.Inert(sortedKeys(o.values)...) // their meaning depends on the type; one complaint is enough
	}
	return Rope{InvFreq: toF32(freq)}
}

// frequencies returns base^(-2i/size) for the size/2 pairs of elements.
func frequencies(size int64, base float64) []float64 {
	freq := make([]float64, size/2)
	for i := range freq {
		freq[i] = 1 / math.Pow(base, float64(2*i)/float64(size))
	}
	return freq
}

// llama3Frequencies stretches the slow pairs by a factor, leaves the fast ones, and blends between: Llama 3.1's scaling,
// as in transformers' _compute_llama3_parameters.
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
			// The conversions keep a compiler from fusing, which would give machines different digits.
			freq[i] = float64((1-smooth)*(f/factor)) + float64(smooth*f)
		}
	}
}

func toF32(v []float64) []float64 {
	for i, x := range v {
		v[i] = dtype.F32.Round(x)
	}
	return v
}

// RopeTables are the cosines and sines of a step's positions, f32[N, pairs], computed once and used by every layer.
type RopeTables struct{ Cos, Sin ir.Value }

// RopeTables adds the tables for positions i32[N].
func (n *Net) RopeTables(pos ir.Value, r Rope, loc string) RopeTables {
	n.F.SetLoc(loc)
	freq := n.F.Op1("const", nil, ir.FloatsAttr("values", r.InvFreq...), ir.DTypeAttr(dtype.F32))
	p := n.F.Op1("cast", []ir.Value{pos}, ir.DTypeAttr(dtype.F32))
	p = n.F.Op1("reshape", []ir.Value{p}, ir.DimsAttr("shape", n.Tokens, dim.Const(1)))
	angle := []ir.Value{n.F.Op1("mul", []ir.Value{p, freq})}
	return RopeTables{Cos: n.F.Op1("cos", angle), Sin: n.F.Op1("sin", angle)}
}

// Rotate turns the pairs (i, i+R/2) of the heads x[N, heads, size].
func (n *Net) Rotate(x ir.Value, t RopeTables) ir.Value {
	return n.F.Op1("rope", []ir.Value{x, t.Cos, t.Sin})
}
