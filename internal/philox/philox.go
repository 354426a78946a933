// Package philox is the counter-based generator of the random numbers of the tensor IR.
// It defines the results of the op philox, which have the same bits on every device.
//
// The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). It has no state: four words are a
// function of a counter of four words and a key of two. The key is the seed, low
// word first. The counter is the offset divided by 4, low word first, then the
// index divided by 4, low word first: the layout of cuRAND's Philox, where the
// index divided by 4 is the subsequence.
package philox

import "math/bits"

// The multipliers of a round, and the words that are added to the key between rounds.
const (
	M0 = 0xD2511F53
	M1 = 0xCD9E8D57
	W0 = 0x9E3779B9
	W1 = 0xBB67AE85
)

// Rounds is the number of rounds of a block.
const Rounds = 10

// Words returns the four words of a counter and a key.
func Words(counter [4]uint32, key [2]uint32) [4]uint32 {
	c0, c1, c2, c3 := counter[0], counter[1], counter[2], counter[3]
	k0, k1 := key[0], key[1]
	for range Rounds {
		h0, l0 := bits.Mul32(M0, c0)
		h1, l1 := bits.Mul32(M1, c2)
		c0, c1, c2, c3 = h1^c1^k0, l1, h0^c3^k1, l0
		k0, k1 = k0+W0, k1+W1
	}
	return [4]uint32{c0, c1, c2, c3}
}

// Block returns the words of indices 4*block to 4*block+3 in the sequence of a seed
// and an offset, which it converts to unsigned. It ignores the two lowest bits of the
// offset.
func Block(seed, offset int64, block uint64) [4]uint32 {
	s, o := uint64(seed), uint64(offset)>>2
	return Words([4]uint32{uint32(o), uint32(o >> 32), uint32(block), uint32(block >> 32)}, [2]uint32{uint32(s), uint32(s >> 32)})
}

// Float converts a word to a number in [0, 1): its highest 24 bits times 2^-24, which
// is exact in float32.
func Float(word uint32) float32 { return float32(word>>8) * (1.0 / (1 << 24)) }

// Uniform returns the number with an index, converted to unsigned, in the sequence of
// a seed and an offset: a multiple of 2^-24 in [0, 1).
func Uniform(seed, offset, index int64) float32 {
	return Float(Block(seed, offset, uint64(index)>>2)[index&3])
}

// Uniforms sets dst[i] to [Uniform] of seed[i], offset[i] and index[i], for every i.
// seed, offset and index must be at least as long as dst. Adjacent elements of one
// block share its computation.
func Uniforms(dst []float32, seed, offset, index []int64) {
	seed, offset, index = seed[:len(dst)], offset[:len(dst)], index[:len(dst)]
	for i := 0; i < len(dst); {
		s, o, b := seed[i], offset[i], uint64(index[i])>>2
		w := Block(s, o, b)
		for ; i < len(dst) && uint64(index[i])>>2 == b && seed[i] == s && offset[i] == o; i++ {
			dst[i] = Float(w[index[i]&3])
		}
	}
}
