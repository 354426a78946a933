// Package reference computes "attention::paged" (package attention) in plain float64
// loops. Tests compare implementations with it, and it is the op for the reference
// interpreter.
package reference

import (
	"fmt"
	"math"

	"pwc/attention"
	"pwc/internal/opattr"
	"pwc/ir/interp"
	"pwc/runtime/device"
)

// Extern returns the op for the interpreter. Every call calls batch for the metadata of
// the step. The batch has as many rows as the operands, or fewer if the step is padded.
func Extern(batch func() *attention.Batch) interp.Extern {
	return func(c *interp.Call) error {
		args := make([]device.Tensor, len(c.Args))
		for i, a := range c.Args {
			args[i] = device.Tensor{DType: a.Type, Shape: a.Shape}
		}
		s, err := attention.ParseArgs(args)
		if err != nil {
			return err
		}
		p, err := attention.ParseParams(opattr.Of(c.Attrs), s.HeadDim)
		if err != nil {
			return err
		}
		b := batch()
		if b.Rows() > s.Rows {
			return fmt.Errorf("attention: the batch describes %d rows, the operands have %d", b.Rows(), s.Rows)
		}
		if err := b.Validate(b.Rows(), s.Blocks, s.BlockSize); err != nil {
			return err
		}
		compute(&s, &p, b, c.Args)
		return nil
	}
}

func compute(s *attention.Shape, p *attention.Params, b *attention.Batch, args []*interp.Tensor) {
	k, v, cache, o := args[attention.ArgK], args[attention.ArgV], args[attention.ArgKV], args[attention.ArgO]
	// at returns the index of the cache element that has element 0 of a head's key
	// (which = 0) or value (1) at a slot.
	at := func(slot, which, head int) int {
		return (((slot/s.BlockSize*2+which)*s.BlockSize+slot%s.BlockSize)*s.KVHeads + head) * s.HeadDim
	}
	for row, slot := range b.Slots {
		if slot == attention.PaddedSlot {
			continue
		}
		for h := range s.KVHeads {
			for e := range s.HeadDim {
				from := (row*s.KVHeads+h)*s.HeadDim + e
				cache.Set(at(int(slot), 0, h)+e, k.At(from))
				cache.Set(at(int(slot), 1, h)+e, v.At(from))
			}
		}
	}
	for i := range o.Len() {
		o.Set(i, 0)
	}
	for r, n := range b.SeqLens {
		length, first, end := int(n), int(b.QueryStart[r]), int(b.QueryStart[r+1])
		slot := func(pos int) int {
			return int(b.BlockTable[r*b.Stride+pos/s.BlockSize])*s.BlockSize + pos%s.BlockSize
		}
		for row := first; row < end; row++ {
			if b.Slots[row] == attention.PaddedSlot {
				continue
			}
			pos := length - end + row
			for head := range s.Heads {
				key := func(j int) int { return at(slot(j), 0, head/s.Group()) }
				value := func(j int) int { return at(slot(j), 1, head/s.Group()) }
				attend(s, p, visible(p, pos, length), (row*s.Heads+head)*s.HeadDim, args, key, value)
			}
		}
	}
}

// attend computes a head of a row, which begins at element out of q and o, over the
// positions seen. key and value return the elements of the cache at which the key and the
// value of a position begin.
func attend(s *attention.Shape, p *attention.Params, seen []int, out int, args []*interp.Tensor, key, value func(j int) int) {
	q, cache, o := args[attention.ArgQ], args[attention.ArgKV], args[attention.ArgO]
	scores := make([]float64, len(seen))
	for i, j := range seen {
		for e := range s.HeadDim {
			scores[i] += q.At(out+e) * cache.At(key(j)+e)
		}
		scores[i] *= p.Scale
		if p.Softcap > 0 {
			scores[i] = p.Softcap * math.Tanh(scores[i]/p.Softcap)
		}
	}
	softmax(scores)
	for e := range s.HeadDim {
		x := 0.0
		for i, j := range seen {
			x += scores[i] * cache.At(value(j)+e)
		}
		o.Set(out+e, x)
	}
}

// visible returns the positions of a sequence of length tokens that the query at position pos attends to.
func visible(p *attention.Params, pos, length int) []int {
	var seen []int
	for j := range length {
		if p.Causal && j > pos || p.Window > 0 && (j <= pos-p.Window || j-pos >= p.Window) {
			continue
		}
		seen = append(seen, j)
	}
	return seen
}

// softmax replaces scores by their softmax.
func softmax(scores []float64) {
	top, sum := math.Inf(-1), 0.0
	for _, x := range scores {
		top = max(top, x)
	}
	for i, x := range scores {
		scores[i] = math.Exp(x - top)
		sum += scores[i]
	}
	for i := range scores {
		scores[i] /= sum
	}
}
