package host

import (
	"fmt"

	"pwc/program/vec"
)

// topK is a vec.TopK bound to memory. Elements are compared as float32 if they are floats,
// as int64 if they are integers; both conversions are exact.
type topK struct {
	n, k              int64
	in, values, index access
	float             bool
}

// candidate is an element with its index.
type candidate struct {
	f  float32
	i  int64
	at int64
}

func (k *kernel) bindTopK(z *sizer, t *vec.TopK, outer []int64, args [][]byte) error {
	b := &topK{n: z.eval(t.N), k: t.K, float: t.In.DType.Float()}
	if z.err == nil && (b.n < 0 || b.k > b.n) {
		z.fail(fmt.Errorf("topk cannot take the %d largest of %d elements", b.k, b.n))
	}
	bind := func(a *vec.Access, count int64, out *access) {
		strides, inner := z.evalAll(a.Outer), z.evalAll(a.Inner)
		out.dtype, out.unit, out.offset = a.DType, k.pool.unit, z.eval(a.Offset)
		out.outer, out.inner = merge(nil, outer, strides), []axis{{count, inner[0]}}
		reach := span{out.offset, out.offset}
		for i, n := range outer {
			reach = z.add(reach, n, strides[i])
		}
		reach = z.add(reach, count, inner[0])
		data := args[a.Arg]
		z.back(out, data, reach, k.rows > 0 && count > 0)
	}
	bind(&t.In, b.n, &b.in)
	bind(&t.Values, b.k, &b.values)
	bind(&t.Index, b.k, &b.index)
	if z.err != nil {
		return z.err
	}
	k.topK = b
	k.cols = b.n
	k.block = maxBlock
	k.split(1, true, false)
	return nil
}

func (t *topK) run(k *kernel, part int64, l *lane) {
	r0 := part * k.rowStep
	l.vec.f = resize(l.vec.f, k.block)
	l.vec.i = resize(l.vec.i, k.block)
	l.heap = resize(l.heap, int(t.k))
	for r := r0; r < min(r0+k.rowStep, k.rows) && !l.stop.ended.Load(); r++ {
		t.row(k, r, l)
	}
}

// row keeps the k best elements in a heap with the worst of them on top. At the end it removes
// and stores them, the worst first.
func (t *topK) row(k *kernel, r int64, l *lane) {
	if t.k == 0 {
		return
	}
	h := l.heap[:0]
	base, stride := t.in.row(r), t.in.inner[0].stride
	for c := int64(0); c < t.n; c += int64(k.block) {
		n := min(int64(k.block), t.n-c)
		if l.spend(4 * n) {
			return
		}
		if t.float {
			t.in.getF(l.vec.f[:n], base+c*stride, stride)
		} else {
			t.in.getI(l.vec.i[:n], base+c*stride, stride)
		}
		for j := range n {
			x := candidate{at: c + j}
			if t.float {
				x.f = l.vec.f[j]
			} else {
				x.i = l.vec.i[j]
			}
			if int64(len(h)) < t.k {
				h = append(h, x)
				siftUp(h)
			} else if x.beats(h[0]) {
				h[0] = x
				siftDown(h)
			}
		}
	}
	values, index := t.values.row(r), t.index.row(r)
	for len(h) > 0 {
		if l.spend(16) {
			return
		}
		x, last := h[0], len(h)-1
		at := int64(last)
		if t.float {
			l.vec.f[0] = x.f
			t.values.putF(l.vec.f[:1], values+at*t.values.inner[0].stride, 0)
		} else {
			l.vec.i[0] = x.i
			t.values.putI(l.vec.i[:1], values+at*t.values.inner[0].stride, 0)
		}
		l.vec.i[0] = x.at
		t.index.putI(l.vec.i[:1], index+at*t.index.inner[0].stride, 0)
		h[0] = h[last]
		h = h[:last]
		siftDown(h)
	}
}

// beats reports whether x comes before y in the result: if it is larger, where NaN counts as
// the largest, or equal and of lower index. Candidates use f or i; the other field is zero in
// both.
func (x candidate) beats(y candidate) bool {
	switch {
	case x.f > y.f || x.i > y.i || x.f != x.f && y.f == y.f:
		return true
	case x.f < y.f || x.i < y.i || x.f == x.f && y.f != y.f:
		return false
	}
	return x.at < y.at
}

func siftUp(h []candidate) {
	for i := len(h) - 1; i > 0; {
		p := (i - 1) / 2
		if !h[p].beats(h[i]) {
			return
		}
		h[p], h[i] = h[i], h[p]
		i = p
	}
}

func siftDown(h []candidate) {
	for i := 0; ; {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c].beats(h[c+1]) {
			c++
		}
		if !h[i].beats(h[c]) {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}
