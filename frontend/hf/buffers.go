package hf

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"pwc/ir/dtype"
	"pwc/safetensors"
)

// Buffer is a tensor of a layer that older checkpoints store although the reference computes it.
// It may stay unread only if it has the values that the model computes.
type Buffer struct {
	Name  string // after the layer's prefix, in full: "self_attn.rotary_emb.inv_freq"
	Holds BufferKind
}

// BufferKind is the required contents of a [Buffer].
type BufferKind uint8

// The buffers that checkpoints of transformers have.
const (
	RopeFrequencies BufferKind = iota // inv_freq: the rope's frequencies, before or after their scaling
	CausalMask                        // bias: [1, 1, n, n], true or 1 where row i sees column j ≤ i, else false or 0
	MaskValue                         // masked_bias: the number that stands for a masked score, far below any score
)

// hides returns how a buffer differs from the values that the model computes, given the rope of its layer. It returns
// an empty string if the buffer can stay unread.
func (k BufferKind) hides(t safetensors.Tensor, rope Rope) string {
	switch k {
	case CausalMask:
		return notCausal(t)
	case MaskValue:
		v, ok := elements(t)
		switch {
		case !ok || len(v) != 1:
			return fmt.Sprintf("is %s%v: it must be one f32, f16 or bf16 number, the value of a masked score", t.DType, t.Shape)
		case !(v[0] <= -1e3):
			return fmt.Sprintf("is %.6g: it must be at most -1000, the value of a masked score", v[0])
		}
		return ""
	}
	v, ok := elements(t)
	switch {
	case !ok || len(v) != len(rope.InvFreq):
		return fmt.Sprintf("is %s%v: the config's rope has %d frequencies", t.DType, t.Shape, len(rope.InvFreq))
	case !near(v, rope.InvFreq) && !near(v, rope.Unscaled):
		i := 0
		for near(v[i:i+1], rope.InvFreq[i:i+1]) {
			i++
		}
		return fmt.Sprintf("differs from the config's rope: frequency %d is %.6g, not %.6g", i, v[i], rope.InvFreq[i])
	}
	return ""
}

// near reports whether frequencies agree within the error of checkpoints that computed them in 16 bits. In bf16 the
// exponent of the base has 8 bits, so the relative error of a frequency is up to ln(base)/2^8.
func near(got, want []float64) bool {
	return slices.EqualFunc(got, want, func(g, w float64) bool { return math.Abs(g-w) <= w/16+0x1p-24 })
}

// notCausal returns why a tensor is not a causal mask, or an empty string if it is one.
func notCausal(t safetensors.Tensor) string {
	n := int64(0)
	if r := len(t.Shape); r >= 2 {
		n = t.Shape[r-1]
	}
	v, ok := elements(t)
	if !ok || n == 0 || int64(len(v)) != n*n || t.Shape[len(t.Shape)-2] != n {
		return fmt.Sprintf("is %s%v: it must be one square mask", t.DType, t.Shape)
	}
	for i, x := range v {
		if row, col := int64(i)/n, int64(i)%n; (x != 0) != (col <= row) {
			return fmt.Sprintf("is not a causal mask: row %d, column %d is %v", row, col, x)
		}
	}
	return ""
}

// elements returns a tensor's values. ok is false for dtypes that buffers do not have.
func elements(t safetensors.Tensor) (v []float64, ok bool) {
	size := t.DType.Bits() / 8
	var decode func(b []byte) float64
	switch t.DType {
	case dtype.F32:
		decode = func(b []byte) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))) }
	case dtype.F16:
		decode = func(b []byte) float64 { return float64(dtype.F16ToF32(binary.LittleEndian.Uint16(b))) }
	case dtype.BF16:
		decode = func(b []byte) float64 { return float64(dtype.BF16ToF32(binary.LittleEndian.Uint16(b))) }
	case dtype.U8, dtype.I8, dtype.Bool:
		decode = func(b []byte) float64 { return float64(b[0]) }
	default:
		return nil, false
	}
	v = make([]float64, len(t.Data)/size)
	for i := range v {
		v[i] = decode(t.Data[i*size:])
	}
	return v, true
}

// ignored is a tensor that a checkpoint may hold and the module does not read.
type ignored struct {
	kind  BufferKind
	rope  Rope
	check bool // its values must be those of kind
}

// Ignore declares a tensor that checkpoints may hold and that has no effect, whatever its values are.
func (n *Net) Ignore(tensor string) {
	n.ignored[tensor] = ignored{}
	n.B.Unread(tensor, "")
}

// ignoreBuffers declares the buffers of the decoder's layers, whose tensors have the prefix base. The module has one
// declaration for each buffer, for all layers. [Model.Check] compares the values of each layer.
func (d *Decoder) ignoreBuffers(n *Net, base string) {
	for _, b := range d.Names.Buffers {
		n.B.Unread(base+strings.Replace(d.Names.Layer, "%d", "*", 1)+b.Name, "")
		for i := range d.Layers {
			n.ignored[base+fmt.Sprintf(d.Names.Layer, i)+b.Name] = ignored{b.Holds, d.rope(i), true}
		}
	}
}
