package pt2

import "pwc/ir"

// In PyTorch views share memory and ops may write it; in the IR tensors are values. A tensor
// of the graph is therefore a storage and the views that lead to it: a write through a view
// gives the storage a new value, and other views are taken anew from it. The same method is
// torch.func.functionalize.

// storage is memory of the exported program, by its newest value.
type storage struct {
	value   ir.Value // ir.NoValue: a tensor of the archive that nothing has read
	first   ir.Value // the value before the first write
	version int      // writes so far
	source  string   // the archive's tensor that it starts from
	buffer  bool     // and that is a buffer
	input   string   // the input that it is
}

// tensor is a value of the graph: the storage itself, or a view of it.
type tensor struct {
	st    *storage
	views []view
	seen  int // version of the storage that value was taken from
	value ir.Value
	ready bool // value is set

}

// view takes a part of a tensor, or writes one.
type view struct {
	take func(base ir.Value) ir.Value
	put  func(base, part ir.Value) ir.Value // nil: the view cannot be written through
}

// read returns the value that a tensor has now.
func (im *importer) read(t *tensor) ir.Value {
	if t.st.value == ir.NoValue {
		t.st.value = im.weight(t.st)
	}
	if len(t.views) == 0 {
		return t.st.value
	}
	if !t.ready || t.seen != t.st.version {
		v := t.st.value
		for _, w := range t.views {
			v = w.take(v)
		}
		t.value, t.seen, t.ready = v, t.st.version, true
	}
	return t.value
}

// write gives a tensor a value of its type: the storage changes, and every view of it.
func (im *importer) write(t *tensor, v ir.Value) {
	im.read(t)
	bases := make([]ir.Value, len(t.views))
	base := t.st.value
	for i, w := range t.views {
		if w.put == nil {
			im.refuse("it writes a view that repeats or reorders memory")
		}
		bases[i] = base
		base = w.take(base)
	}
	for i := len(t.views) - 1; i >= 0; i-- {
		v = t.views[i].put(bases[i], v)
	}
	if t.st.version == 0 {
		t.st.first = t.st.value
	}
	t.st.value = v
	t.st.version++
}

// fresh returns a tensor with memory of its own.
func fresh(v ir.Value) *tensor { return &tensor{st: &storage{value: v}} }

// through returns the view w of a tensor.
func (t *tensor) through(w view) *tensor {
	views := make([]view, 0, len(t.views)+1)
	return &tensor{st: t.st, views: append(append(views, t.views...), w)}
}
