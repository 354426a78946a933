package pt2

import "pwc/ir"

// In PyTorch, views share memory and ops may write it. In the IR, tensors are values. So a tensor of the graph is a
// storage and a list of views. A write through a view gives the storage a new value, from which every other view of
// it is then computed again. torch.func.functionalize works in the same way.

// A storage is memory of the exported program, with its current value.
type storage struct {
	value   ir.Value // ir.NoValue: a tensor of the archive that was not read yet
	first   ir.Value // the value before the first write
	version int      // writes so far
	source  string   // tensor of the archive with the initial value; may be empty
	buffer  bool     // source is a buffer
	input   string   // name of the input; empty: not an input

	operandOf string // an extern op that was called with the memory; empty: there is no such call
}

// A tensor is a value of the graph: a storage, or a view of one.
type tensor struct {
	st    *storage
	views []view
	seen  int // version of the storage from which value was computed
	value ir.Value
	ready bool // value is set
}

// A view reads a part of a tensor, or writes it.
type view struct {
	take func(base ir.Value) ir.Value
	put  func(base, part ir.Value) ir.Value // nil: the view cannot be written through
}

// read returns the current value of a tensor.
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

// write gives a tensor a value of its type. The storage changes, and with it every view.
func (im *importer) write(t *tensor, v ir.Value) {
	im.read(t)
	bases := make([]ir.Value, len(t.views))
	base := t.st.value
	for i, w := range t.views {
		if w.put == nil {
			im.refuse("it writes through a view that cannot be written, such as one with repeated elements")
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

// fresh returns a tensor with new memory.
func fresh(v ir.Value) *tensor { return &tensor{st: &storage{value: v}} }

// through returns the view w of a tensor.
func (t *tensor) through(w view) *tensor {
	views := make([]view, 0, len(t.views)+1)
	return &tensor{st: t.st, views: append(append(views, t.views...), w)}
}
