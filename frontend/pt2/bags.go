package pt2

import (
	"math"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// Values of the argument mode of embedding_bag.
const bagSum, bagMean, bagMax = 0, 1, 2

// bagRules sum or average the rows of a table for each bag of indices, or take the largest elements.
var bagRules = map[string]opRule{
	"aten.embedding_bag": embeddingBag, "aten._embedding_bag": embeddingBag, "aten._embedding_bag_forward_only": embeddingBag,
}

// embeddingBag takes a vector of indices, and the offset in it at which each bag starts. It returns the first result
// only: the others serve the backward.
func embeddingBag(c *call) []ir.Value {
	table, index, offsets, t := c.tensor("weight"), c.cast(c.tensor("indices"), i64), c.cast(c.tensor("offsets"), i64), c.out(0)
	mode := c.int("mode", bagSum)
	if c.rank(index) != 1 || c.rank(offsets) != 1 || mode < bagSum || mode > bagMax {
		c.fail("it takes a vector of indices, one of offsets, and a mode from 0 to 2")
	}
	rows := c.cast(c.bin("embedding", table, index), dtype.F32)
	if c.has("per_sample_weights") {
		rows = c.bin("mul", rows, c.unsqueeze(c.cast(c.tensor("per_sample_weights"), dtype.F32), 1))
	}
	bags, n := t.Shape[0], c.shape(index)[0]
	// in marks the indices of each bag: [bags, indices], or [bags, width] if all bags have one width.
	var in ir.Value
	if width, ok := c.evenBags(offsets, bags, n); ok {
		rows = c.reshape(rows, bags, width, c.shape(rows)[1])
		index = c.reshape(index, bags, width)
		in = c.full(c.i(1), dtype.Bool, bags, width)
	} else {
		place := c.along(i64, 2, 1, n)
		starts := c.slice(offsets, 0, dim.Const(0), bags, 1)
		ends := c.bagEnds(offsets, bags, n)
		in = c.bin("and", c.compare("ge", place, c.unsqueeze(starts, 1)), c.compare("lt", place, c.unsqueeze(ends, 1)))
		rows, index = c.unsqueeze(rows, 0), c.unsqueeze(index, 0)
	}
	if pad := c.int("padding_idx", -1); pad >= 0 {
		in = c.bin("and", in, c.compare("ne", index, c.i(pad)))
	}
	identity := 0.0
	op := "sum"
	if mode == bagMax {
		identity, op = math.Inf(-1), "max"
	}
	y := c.reduce(op, c.where(c.unsqueeze(in, 2), rows, c.f(identity)), []int{1}, false)
	if mode != bagSum {
		count := c.reduce("sum", c.cast(in, i64), []int{1}, true)
		if mode == bagMean {
			y = c.bin("div", y, c.cast(c.bin("maximum", count, c.i(1)), dtype.F32))
		} else {
			y = c.where(c.compare("eq", count, c.i(0)), c.f(0), y)
		}
	}
	return one(c.cast(y, t.DType))
}

// evenBags returns the width of bags if it is the same for all: for a matrix of indices,
// torch.nn.functional.embedding_bag makes the offsets with arange. Then each bag reads its own indices only.
func (c *call) evenBags(offsets ir.Value, bags, n dim.Dim) (width dim.Dim, ok bool) {
	f := c.fb.Func()
	steps := f.Def(offsets)
	if steps == nil || steps.Op.ID != ir.OpMul || f.Values[steps.Args[1]].Kind != ir.LiteralValue {
		return dim.Dim{}, false
	}
	from := f.Def(steps.Args[0])
	width = dim.Const(int64(f.Values[steps.Args[1]].Literal.Float64()))
	return width, from != nil && from.Op.ID == ir.OpIota && n.Equal(bags.Mul(width))
}

// bagEnds returns the end of each bag, which is the start of the next bag. The last bag ends at n, or with
// include_last_offset at the last offset, which starts no bag.
func (c *call) bagEnds(offsets ir.Value, bags, n dim.Dim) ir.Value {
	if c.bool("include_last_offset", false) {
		return c.slice(offsets, 0, dim.Const(1), bags.Add(dim.Const(1)), 1)
	}
	end := c.reshape(c.scalar(n, i64), dim.Const(1))
	return c.concat(0, c.slice(offsets, 0, dim.Const(1), bags, 1), end)
}
