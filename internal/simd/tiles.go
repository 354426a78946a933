package simd

import "pwc/ir/dtype"

// tile adds rows of A times depth rows of B to rows of C, for a fixed number of rows of A and columns of B.
type tile func(depth int, a *float32, lda int, b *byte, ldb int, c *float32, ldc int)

// tiles has the tiles of one number of columns for each dtype of B, by the number of rows of A less one.
type tiles struct{ f32, bf16, f16 [MaxRows]tile }

func (t *tiles) mulAdd(rows, depth int, a *float32, lda int, b Matrix, c *float32, ldc int) {
	all := &t.f32
	switch b.DType {
	case dtype.BF16:
		all = &t.bf16
	case dtype.F16:
		all = &t.f16
	}
	all[rows-1](depth, a, lda, (*byte)(b.At), b.Pitch, c, ldc)
}
