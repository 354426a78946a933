package train

import (
	"slices"

	"pwc/ir"
	"pwc/ir/dim"
)

// Group is the name of the group of ranks that train together.
const Group = "dp"

// defaultBucket is the size of a bucket in bytes. A call on two GPUs takes at least 10 µs, and copying 4 MiB
// into a bucket takes less than that.
const defaultBucket = 4 << 20

// varying is the placement of values that differ between ranks.
func (p *builder) varying() []ir.Placement {
	if p.options.Ranks == 1 {
		return nil
	}
	return []ir.Placement{{Group: Group, Kind: ir.Varying}}
}

// reducer emits the sums of values over the ranks. It emits the all_reduce of a large value when the
// value is computed, so that it overlaps with the backward of earlier layers. Values smaller than a
// bucket share one all_reduce, emitted when the next value does not fit and at the end. A value that is
// equal on all ranks is multiplied by their number instead.
type reducer struct {
	ranks  int
	most   int64 // bytes of a bucket
	fb     *ir.FuncBuilder
	values []ir.Value
	sums   []ir.Value // indexed like values; NoValue: not yet emitted
	bucket []int      // indices of the values of the next shared all_reduce
	size   int64      // of the bucket, in bytes
}

func (p *builder) reducer(fb *ir.FuncBuilder) *reducer {
	return &reducer{ranks: p.options.Ranks, most: p.options.BucketBytes, fb: fb}
}

// add takes value i, which the nodes before compute. Callers add each i at most once.
func (r *reducer) add(i int, v ir.Value) {
	for len(r.values) <= i {
		r.values, r.sums = append(r.values, ir.NoValue), append(r.sums, ir.NoValue)
	}
	r.values[i] = v
	n := bytesOf(r.fb.Type(v))
	switch {
	case r.ranks == 1:
		r.sums[i] = v
		return
	case !apart(r.fb, v):
		// the sum of equal values over the ranks
		r.sums[i] = r.fb.Op1("mul", []ir.Value{v, r.fb.Float(float64(r.ranks))})
		return
	case n >= r.most:
		r.sums[i] = r.sum(v)
		return
	case r.size+n > r.most:
		r.flush()
	}
	r.bucket, r.size = append(r.bucket, i), r.size+n
}

// finish takes the remaining values, and returns the sums of all.
func (r *reducer) finish(values []ir.Value) []ir.Value {
	for i, v := range values {
		if i >= len(r.values) || r.values[i] == ir.NoValue {
			r.add(i, v)
		}
	}
	r.flush()
	return r.sums
}

func (r *reducer) sum(v ir.Value) ir.Value {
	return r.fb.Op1("all_reduce", []ir.Value{v}, ir.EnumAttr("group", Group))
}

// flush emits the sums of the values in the bucket, with one all_reduce.
func (r *reducer) flush() {
	bucket := r.bucket
	r.bucket, r.size = nil, 0
	switch len(bucket) {
	case 0:
		return
	case 1:
		r.sums[bucket[0]] = r.sum(r.values[bucket[0]])
		return
	}
	e := emitter{r.fb}
	flat := make([]ir.Value, len(bucket))
	for k, i := range bucket {
		flat[k] = e.reshape(r.values[i], e.Type(r.values[i]).Elements())
	}
	all := r.sum(e.Op1("concat", flat, ir.IntAttr("axis", 0)))
	at := dim.Const(0)
	for _, i := range bucket {
		t := e.Type(r.values[i])
		end := at.Add(t.Elements())
		part := e.Op1("slice", []ir.Value{all}, ir.IntAttr("axis", 0), ir.DimAttr("start", at), ir.DimAttr("end", end))
		r.sums[i], at = e.reshape(part, t.Shape...), end
	}
}

// apart reports whether ranks may have different values of v. A gradient that does not depend on the
// batch, such as that of a penalty on large weights, is the same on each rank.
func apart(fb *ir.FuncBuilder, v ir.Value) bool {
	return slices.ContainsFunc(fb.Placed(v), func(p ir.Placement) bool { return p.Kind != ir.Replicated })
}

// bytesOf returns the bytes of a tensor with constant sizes.
func bytesOf(t ir.Type) int64 {
	n, _ := t.Elements().Const()
	return t.DType.Bytes(n)
}
