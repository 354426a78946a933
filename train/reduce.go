package train

import (
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// Group is the name of the group of ranks that train together.
const Group = "dp"

// defaultBucket is the size of a bucket in bytes. A call on two GPUs takes about 10 µs whatever it sums, and
// copying 4 MiB into a bucket takes less than that.
const defaultBucket = 4 << 20

// varying is the placement of values that each rank has its own of.
func (p *builder) varying() []ir.Placement {
	if p.options.Ranks == 1 {
		return nil
	}
	return []ir.Placement{{Group: Group, Kind: ir.Varying}}
}

// reduce emits the sums over the ranks of what [builder.gradients] returns. Values smaller than a bucket are
// joined, in the order in which forward and backward compute them.
func (p *builder) reduce(fb *ir.FuncBuilder, values []ir.Value) []ir.Value {
	if p.options.Ranks == 1 {
		return values
	}
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(values[a] - values[b]) })
	sums := make([]ir.Value, len(values))
	var bucket []int
	size := int64(0)
	flush := func() {
		p.reduceBucket(fb, values, sums, bucket)
		bucket, size = nil, 0
	}
	for _, i := range order {
		n := bytesOf(fb.Type(values[i]))
		switch {
		case !apart(fb, values[i]):
			sums[i] = fb.Op1("mul", []ir.Value{values[i], fb.Float(float64(p.options.Ranks))})
			continue
		case n >= p.options.BucketBytes:
			p.reduceBucket(fb, values, sums, []int{i})
			continue
		case size+n > p.options.BucketBytes:
			flush()
		}
		bucket, size = append(bucket, i), size+n
	}
	flush()
	return sums
}

// reduceBucket emits the sums of values[i] for i in bucket, with one all_reduce.
func (p *builder) reduceBucket(fb *ir.FuncBuilder, values, sums []ir.Value, bucket []int) {
	sum := func(x ir.Value) ir.Value { return fb.Op1("all_reduce", []ir.Value{x}, ir.EnumAttr("group", Group)) }
	switch len(bucket) {
	case 0:
		return
	case 1:
		sums[bucket[0]] = sum(values[bucket[0]])
		return
	}
	e := emitter{fb}
	flat := make([]ir.Value, len(bucket))
	for k, i := range bucket {
		flat[k] = e.reshape(values[i], fb.Type(values[i]).Elements())
	}
	all := sum(fb.Op1("concat", flat, ir.IntAttr("axis", 0)))
	at := dim.Const(0)
	for _, i := range bucket {
		t := fb.Type(values[i])
		end := at.Add(t.Elements())
		part := fb.Op1("slice", []ir.Value{all}, ir.IntAttr("axis", 0), ir.DimAttr("start", at), ir.DimAttr("end", end))
		sums[i], at = e.reshape(part, t.Shape...), end
	}
}

// apart reports whether ranks have different values of v. A gradient that no batch takes part in, such as
// that of a penalty of large weights, is the same on each rank.
func apart(fb *ir.FuncBuilder, v ir.Value) bool {
	return slices.ContainsFunc(fb.Placed(v), func(p ir.Placement) bool { return p.Kind != ir.Replicated })
}

// bytesOf returns the bytes of a tensor of constant extents.
func bytesOf(t ir.Type) int64 {
	n, _ := t.Elements().Const()
	return t.DType.Bytes(n)
}
