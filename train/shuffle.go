package train

import (
	"fmt"
	"math/rand/v2"
)

// order is the order of the rows in the current pass over the data.
type order struct {
	seed  int64
	total int64 // rows
	pass  int64 // the pass of rows; -1: rows is empty
	rows  []int
}

// Shuffle draws another order of the rows for each pass over the data, from the seed and the
// number of the pass. So a resumed run has the batches of an uninterrupted one. A row is an index
// of the leading axis of an input. Rows that do not fill a last batch are left out; these
// may be other rows in each pass. Inputs with only one batch are the same in every step.
//
// Inputs with several batches must have the same number of rows, per batch and in total. Otherwise
// Shuffle returns an error and changes nothing.
func (d *Data) Shuffle(seed int64) error {
	var first *dataInput
	for i := range d.inputs {
		x := &d.inputs[i]
		switch {
		case x.batches == 1:
			continue
		case first == nil:
			first = x
		case x.rows != first.rows || x.total() != first.total():
			return fmt.Errorf("train: %s has %d rows in batches of %d, %s has %d in batches of %d: rows can be shuffled only if all inputs have the same numbers; shuffle the file instead",
				first.name, first.total(), first.rows, x.name, x.total(), x.rows)
		}
	}
	d.order = &order{seed: seed, pass: -1}
	if first != nil {
		d.order.total = first.total()
	}
	return nil
}

// batch returns the rows of a batch, counted over all passes.
func (o *order) batch(i, rows int64) []int {
	each := o.total / rows
	if pass := i / each; pass != o.pass {
		o.pass = pass
		o.rows = rand.New(rand.NewPCG(uint64(o.seed), uint64(pass))).Perm(int(o.total))
	}
	at := i % each * rows
	return o.rows[at : at+rows]
}

// total returns the number of rows of the tensor.
func (x *dataInput) total() int64 { return int64(len(x.data)) / (x.size / x.rows) }

// gather returns the bytes of rows.
func (x *dataInput) gather(rows []int) []byte {
	size := int(x.size / x.rows)
	x.drawn = x.drawn[:0]
	for _, r := range rows {
		x.drawn = append(x.drawn, x.data[r*size:(r+1)*size]...)
	}
	return x.drawn
}
