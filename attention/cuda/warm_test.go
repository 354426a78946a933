package cuda_test

import (
	"errors"
	"slices"
	"testing"

	"pwc/attention"
	"pwc/internal/cuda/fake"
	"pwc/ir/dtype"
)

// TestWarm: a warm-up launches once each kernel that a step of its size can need, with a step without rows, and the
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
	// For 16-bit types there is a kernel for large tiles, too.
	for i, a := range r.args {
		dims := slices.Clone(a.Shape)
		dims[len(dims)-1] = 64
		if i != attention.ArgKV {
			dims[0] = 9
		}
		r.args[i] = r.tensor(dtype.BF16, dims...)
	}
	r.seen = nil
	c = r.call(attention.NewBatch(0, 0, 0))
	r.must(errors.Join(r.op.Warm(c), r.stream.Synchronize()))
	if len(r.seen) != 2 || r.seen[0].rows != 0 || r.seen[1].rows != 0 || r.seen[0].shared == r.seen[1].shared {
		t.Errorf("with tensor cores: %+v", r.seen)
	}
	// The launches of a warm-up do not overlap.
	for _, s := range r.seen {
		if s.order != 0 {
			t.Errorf("the launches of a warm-up overlap: %+v", r.seen)
		}
	}
}
