// Package attention is the built-in splitting op "attention::paged": attention
// over a paged KV cache, as serving engines run it (arXiv:2309.06180). This
// package has the parts that all devices share: the op's declaration, its operands
// and attributes, and [Batch], the metadata of a step. Each device has an
// implementation in a package of its own.
//
// In a module the op is declared and called as
//
//	op "attention::paged"(tensor, tensor, tensor, mut tensor, mut tensor) split
//	call "attention::paged"(%q, %k, %v, @l0.kv, %o, scale=0.125)
//
// with N the rows (tokens) of the step, H query heads, KVH key-value heads that
// divide H (GQA, arXiv:2305.13245), D the size of a head, B blocks of S tokens:
//
//	q, o  T[N, H, D]           queries, and the result, which the op writes
//	k, v  T[N, KVH, D]         of the step's tokens, appended to the cache
//	kv    C[B, 2, S, KVH, D]   the cache: blocks, keys | values, tokens
//
// T and C are f32, f16 or bf16. The cache rounds to C; scores, softmax and sums
// are computed in float32 or better, and the result is rounded once to T. Tensor cores
// round the weights of the softmax to T before they multiply values.
//
// A row at position p of its sequence sees the positions 0…p of the sequence if
// causal is set, else all positions. A window w > 0 restricts them to
// p-w+1…p with causal, and to |j-p| < w without. A score is s = scale·q·k, or
// cap·tanh(s/cap) with softcap cap > 0 (arXiv:2408.00118).
//
// Padded rows (slot -1, or beyond the rows of the step) get zeros in o and write
// no KV (C11).
package attention

import (
	"fmt"
	"math"

	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
)

// Name is the op's full name.
const Name = "attention::paged"

// Indices of the operands of a call.
const (
	ArgQ = iota
	ArgK
	ArgV
	ArgKV
	ArgO
	argCount
)

// Signature returns the op's declaration for an implementation. capture says
// whether the implementation can be recorded into a graph. version is the
// implementation's.
func Signature(capture bool, version string) device.Signature {
	return device.Signature{Name: Name, Mut: []bool{false, false, false, true, true}, Capture: capture, Version: version}
}

// Params are the attributes of a call.
type Params struct {
	Scale   float64 // multiplies q·k; attribute scale, default 1/sqrt(D)
	Window  int     // positions that a row sees on each side, itself included; attribute window, 0: all
	Softcap float64 // bound of scores; attribute softcap, 0: no bound
	Causal  bool    // rows see no later position; attribute causal, default true
}

// ParseParams reads the attributes of a call for heads of size headDim. An unknown
// attribute, or a value of the wrong kind or out of its range, is an error.
func ParseParams(attrs []program.Attr, headDim int) (Params, error) {
	p := Params{Scale: 1 / math.Sqrt(float64(headDim)), Causal: true}
	for i := range attrs {
		a := &attrs[i]
		var ok bool
		switch a.Name {
		case "scale":
			p.Scale, ok = number(a)
		case "softcap":
			p.Softcap, ok = number(a)
			ok = ok && p.Softcap >= 0
		case "window":
			var w float64
			w, ok = number(a)
			ok = ok && w >= 0 && w <= math.MaxInt32 && w == math.Trunc(w)
			p.Window = int(w)
		case "causal":
			p.Causal, ok = a.Bool, a.Kind == program.AttrBool
		default:
			return p, fmt.Errorf("%s: unknown attribute %q; it has scale, window, softcap and causal", Name, a.Name)
		}
		if !ok {
			return p, fmt.Errorf("%s: attribute %s has a value out of range or of the wrong kind", Name, a.Name)
		}
	}
	return p, nil
}

// number returns the value of a finite float or of a constant integer.
func number(a *program.Attr) (float64, bool) {
	switch a.Kind {
	case program.AttrFloat:
		return a.Float, !math.IsNaN(a.Float) && !math.IsInf(a.Float, 0)
	case program.AttrDim:
		v, ok := a.Dim.Const()
		return float64(v), ok
	}
	return 0, false
}

// Shape is the shape of one call, in elements.
type Shape struct {
	Rows      int // N, padded rows included
	Heads     int // H
	KVHeads   int // KVH
	HeadDim   int // D
	Blocks    int // B
	BlockSize int // S
	DType     dtype.DType
	KVDType   dtype.DType
}

// Group returns the number of query heads that share a key-value head.
func (s *Shape) Group() int { return s.Heads / max(s.KVHeads, 1) }

// ParseArgs checks the operands of a call against the op's declaration and
// returns their shape.
func ParseArgs(args []device.Tensor) (Shape, error) {
	if len(args) != argCount {
		return Shape{}, fmt.Errorf("%s: %d operands, it takes %d", Name, len(args), argCount)
	}
	q, k, kv := args[ArgQ].Shape, args[ArgK].Shape, args[ArgKV].Shape
	if len(q) != 3 || len(k) != 3 || len(kv) != 5 {
		return Shape{}, fmt.Errorf("%s: q, k and kv have %d, %d and %d extents, they need 3, 3 and 5", Name, len(q), len(k), len(kv))
	}
	s := Shape{Rows: int(q[0]), Heads: int(q[1]), KVHeads: int(k[1]), HeadDim: int(q[2]),
		Blocks: int(kv[0]), BlockSize: int(kv[2]), DType: args[ArgQ].DType, KVDType: args[ArgKV].DType}
	for i := range args {
		want := [...]int64{q[0], q[1], q[2]}
		switch i {
		case ArgK, ArgV:
			want[1] = k[1]
		case ArgKV:
			continue
		}
		t := &args[i]
		if len(t.Shape) != 3 || [3]int64(t.Shape) != want {
			return s, fmt.Errorf("%s: operand %d is %v, it must be %v", Name, i, t.Shape, want)
		}
		if t.DType != s.DType {
			return s, fmt.Errorf("%s: operand %d is %s, q is %s", Name, i, t.DType, s.DType)
		}
	}
	switch {
	case s.KVHeads < 1 || s.Heads < 1 || s.Heads%s.KVHeads != 0:
		return s, fmt.Errorf("%s: %d key-value heads do not divide %d query heads", Name, s.KVHeads, s.Heads)
	case s.HeadDim < 1:
		return s, fmt.Errorf("%s: heads of size %d, they need at least 1 element", Name, s.HeadDim)
	case kv[1] != 2 || s.BlockSize < 1 || kv[3] != k[1] || kv[4] != q[2]:
		return s, fmt.Errorf("%s: kv is %v, it must be [blocks, 2, block size, %d, %d]", Name, kv, k[1], q[2])
	case !floats(s.DType):
		return s, fmt.Errorf("%s: q is %s, it must be f32, f16 or bf16", Name, s.DType)
	case !floats(s.KVDType):
		return s, fmt.Errorf("%s: kv is %s, it must be f32, f16 or bf16", Name, s.KVDType)
	}
	return s, nil
}

func floats(d dtype.DType) bool { return d == dtype.F32 || d == dtype.F16 || d == dtype.BF16 }
