package hf

import (
	"math"
	"slices"
	"strings"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Rope is a rotary position embedding: it rotates pair i of a head's first elements by InvFreq[i] radians per position
// (RoFormer, arXiv:2104.09864). The other elements are not rotated. The frequencies are rounded to f32, as in the
// reference. This also hides differences of math.Pow between machines, which are in the last bits of float64.
type Rope struct {
	InvFreq []float64
	Scale   float64 // multiplies cosines and sines, rounded to f32; 1 unless rope_type is yarn or longrope

	Unscaled []float64 // InvFreq before scaling, which older checkpoints may hold as a buffer
}

// RopeKeys has a config's names for the settings of a rope, and their defaults. The zero value is Llama's.
type RopeKeys struct {
	Base        string  // key of the base of the frequencies; empty: "rope_theta"
	DefaultBase float64 // 0: 10000

	// Share is the key of the fraction of a head's elements that the rope rotates. If it is empty, the rope rotates all,
	// and another fraction in the config is a problem.
	Share        string
	DefaultShare float64
}

// ReadRope honours rope_theta and rope_scaling, or rope_parameters, which newer configs have in their place, for heads
// of the given size.
func ReadRope(c *Config, headSize int64, keys RopeKeys) Rope {
	return readRope(c, headSize, keys, c.Object("rope_parameters"), c.Object("rope_scaling"))
}

// readLayerRopes honours the ropes of families that have one rope for layers without a window (full) and another for
// layers with one (local). rope_parameters has an object for each. Older configs have keys in the file, of which
// rope_scaling is for full only.
func (d *Decoder) readLayerRopes(c *Config, full, local RopeKeys) {
	var ofFull, ofLocal *Config
	if o := c.Object("rope_parameters"); o != nil {
		ofFull, ofLocal = o.Object(fullAttention), o.Object(slidingAttention)
	}
	d.Rope = readRope(c, d.HeadSize, full, ofFull, c.Object("rope_scaling"))
	rope := readRope(c, d.HeadSize, local, ofLocal)
	d.LocalRope = &rope
}

// readRope reads a rope from the keys of the config itself and from those of the objects that are not nil. They must
// agree.
func readRope(c *Config, headSize int64, keys RopeKeys, objects ...*Config) Rope {
	if keys.Base == "" {
		keys.Base = "rope_theta"
	}
	if keys.DefaultBase == 0 {
		keys.DefaultBase = 10000
	}
	base := c.PositiveOr(keys.Base, keys.DefaultBase)
	share := 1.0
	if keys.Share != "" {
		share = c.FloatOr(keys.Share, keys.DefaultShare)
	}
	var found *Rope
	first := ""
	for _, o := range objects {
		if o == nil {
			continue
		}
		name := strings.TrimSuffix(o.path, ".")
		b, s := o.PositiveOr("rope_theta", base), o.FloatOr("partial_rotary_factor", share)
		if c.Has(keys.Base) && b != base {
			c.Errorf(keys.Base, "%v contradicts %s.rope_theta, %v", base, name, b)
		}
		switch {
		case keys.Share == "" && s != 1:
			o.Errorf("partial_rotary_factor", "%v is not supported: only 1 is", s)
			s = 1
		case keys.Share != "" && c.Has(keys.Share) && s != share && share != keys.DefaultShare: // transformers 5 may write the default in the file and the actual share in the object
			c.Errorf(keys.Share, "%v contradicts %s.partial_rotary_factor, %v", share, name, s)
		}
		r := scaledRope(c, o, turning(c, keys.Share, headSize, s), b)
		if found != nil && (!slices.Equal(found.InvFreq, r.InvFreq) || found.Scale != r.Scale) {
			c.Errorf(name, "contradicts %s", first)
		}
		found, first = &r, name
	}
	if found == nil {
		freq := toF32(frequencies(turning(c, keys.Share, headSize, share), base))
		found = &Rope{InvFreq: freq, Scale: 1, Unscaled: freq}
	}
	if !finite(found.Scale) {
		c.Errorf(keys.Base, "the factor of cosines and sines is outside the range of f32")
	}
	if i := slices.IndexFunc(found.InvFreq, func(f float64) bool { return !finite(f) }); i >= 0 {
		c.Errorf(keys.Base, "frequency %d is outside the range of f32", i)
	}
	return *found
}

// turning returns the number of a head's elements that the rope rotates, an even number. share is their fraction, and
// key its key in the config.
func turning(c *Config, key string, headSize int64, share float64) int64 {
	if key == "" {
		key = "head_dim"
	}
	n := int64(0)
	if size := float64(headSize) * share; size <= float64(headSize) {
		n = int64(max(size, 0)) // truncated, as in the reference
	}
	if n < 2 || n%2 != 0 {
		c.Errorf(key, "the rope must rotate an even number of elements, from 2 to the head's %d; %v times the head gives %v", headSize, share, math.Trunc(share*float64(headSize)))
		return 2
	}
	return n
}

func finite(x float64) bool { return !math.IsInf(x, 0) && !math.IsNaN(x) }

func toF32(v []float64) []float64 {
	for i, x := range v {
		v[i] = dtype.F32.Round(x)
	}
	return v
}

// RopeTables are the cosines and sines of a step's positions, f32[N, pairs]. Layers with the same rope share them.
type RopeTables struct{ Cos, Sin ir.Value }

// RopeTables adds the tables for positions i32[N], with the given location.
func (n *Net) RopeTables(pos ir.Value, r Rope, loc string) RopeTables {
	n.SetLoc(loc)
	freq := n.F.Op1("const", nil, ir.FloatsAttr("values", r.InvFreq...), ir.DTypeAttr(dtype.F32))
	p := n.F.Op1("cast", []ir.Value{pos}, ir.DTypeAttr(dtype.F32))
	p = n.F.Op1("reshape", []ir.Value{p}, ir.DimsAttr("shape", n.Tokens, dim.Const(1)))
	angle := []ir.Value{n.F.Op1("mul", []ir.Value{p, freq})}
	return RopeTables{Cos: n.Times(n.F.Op1("cos", angle), r.Scale), Sin: n.Times(n.F.Op1("sin", angle), r.Scale)}
}

// Rotate rotates the pairs (i, i+R/2) of the first R elements of the heads x[N, heads, size], for tables of R/2 pairs.
func (n *Net) Rotate(x ir.Value, t RopeTables) ir.Value {
	return n.F.Op1("rope", []ir.Value{x, t.Cos, t.Sin})
}
