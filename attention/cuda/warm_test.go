package cuda_test

import (
	"slices"
	"testing"

	"pwc/attention"
	"pwc/runtime/cuda/fake"
)

// TestWarm holds that a warm-up is a launch on a step without rows, and that the
// next step has its own metadata.
func TestWarm(t *testing.T) {
	r := newFakeRig(t, fake.Lazy)
	c := r.call(attention.NewBatch(0, 0, 0))
	c.Meta, c.Rows = nil, 8
	r.must(r.op.Warm(c))
	if c.Meta != nil || c.Rows != 8 {
		t.Errorf("the call became %+v", c)
	}
	b := batch(t, 3)
	c.Meta, c.Rows = b, int64(b.Rows())
	r.must(r.op.Prepare(r.stream, b, 8, c.Rows))
	r.must(r.op.Launch(c))
	r.must(r.stream.Synchronize())
	if len(r.seen) != 2 || r.seen[0].rows != 0 || r.seen[0].requests != 0 || r.seen[1].rows != 3 || r.seen[1].lengths[0] != 5 {
		t.Errorf("launches saw %+v", r.seen)
	}
}

// TestScratchNeverShrinks holds that a plan for many rows serves fewer, as steps
// without graphs need it.
func TestScratchNeverShrinks(t *testing.T) {
	r := newFakeRig(t, fake.Lazy)
	last := int64(0)
	for rows := int64(0); rows <= 2000; rows++ {
		args := slices.Clone(r.args)
		for _, i := range []int{attention.ArgQ, attention.ArgK, attention.ArgV, attention.ArgO} {
			args[i].Shape = slices.Clone(args[i].Shape)
			args[i].Shape[0] = rows
		}
		n, err := r.op.ScratchBytes(args, nil)
		r.must(err)
		if n < last {
			t.Fatalf("%d bytes for %d rows, %d for one less", n, rows, last)
		}
		last = n
	}
	if last == 0 {
		t.Error("no scratch at all")
	}
}
