package piecewise

import (
	"bytes"
	"errors"
	"fmt"

	"pwc/runtime/device"
)

// rowTest is an op that is declared rowwise and not random, in a backend with [CanaryBytes]. Each
// call that no graph contains is launched twice, the second time with other values in its last
// rows; the results of the rows before them must be equal bit for bit. A call with one row, padding
// included, or with padding only, is not tested.
type rowTest struct{ device.Op }

var (
	_ device.Preparer = rowTest{}
	_ device.Warmer   = rowTest{}
)

// Prepare calls Prepare of the op, if it has that method.
func (t rowTest) Prepare(s device.Stream, meta any, size, rows int64) error {
	if p, ok := t.Op.(device.Preparer); ok {
		return p.Prepare(s, meta, size, rows)
	}
	return nil
}

// Warm calls Warm of the op, if it has that method.
func (t rowTest) Warm(c *device.OpCall) error {
	if w, ok := t.Op.(device.Warmer); ok {
		return w.Warm(c)
	}
	return nil
}

// Launch runs the op, and once more to test it.
func (t rowTest) Launch(c *device.OpCall) error {
	last := c.Rows // the first row that is changed
	if last == c.Size {
		last--
	}
	if c.Capturing || c.Stream.Capturing() || last < 1 || len(c.RowExtents) != len(c.Args) {
		return t.Op.Launch(c)
	}
	before, err := t.read(c)
	if err != nil {
		return err
	}
	if err := t.Op.Launch(c); err != nil {
		return err
	}
	first, err := t.read(c)
	if err != nil {
		return err
	}
	changed := make([][]byte, len(before))
	for i, b := range before {
		changed[i] = bytes.Clone(b)
		if a := &c.Args[i]; c.RowExtents[i] > 0 && len(b) > 0 {
			from := rowAt(c, i, int(last))
			if a.DType.Float() {
				fillBytes(changed[i][from:], poison)
			} else { // the values of the first row, which are valid
				row := changed[i][:rowAt(c, i, 1)]
				for at := from; at < int64(len(b)); at += int64(len(row)) {
					copy(changed[i][at:], row)
				}
			}
		}
	}
	if err := t.write(c, changed); err != nil {
		return err
	}
	if err := t.Op.Launch(c); err != nil {
		return err
	}
	second, err := t.read(c)
	if err != nil {
		return err
	}
	// Leave operands and results as after one call.
	if err := t.write(c, first); err != nil {
		return err
	}
	mut := t.Op.Signature().Mut
	var errs []error
	for i := range c.Args {
		if i < len(mut) && !mut[i] || len(first[i]) == 0 {
			continue
		}
		end := int64(len(first[i]))
		if c.RowExtents[i] > 0 {
			end = rowAt(c, i, int(last))
		}
		if a, b := first[i][:end], second[i][:end]; !bytes.Equal(a, b) {
			at := 0
			for a[at] == b[at] {
				at++
			}
			errs = append(errs, fmt.Errorf("%w: %s: %s is declared rowwise, but byte %d of tensor %d, counted over operands and results, depends on rows from %d on", ErrOp, c.Loc, t.Op.Signature().Name, at, i, last))
		}
	}
	return errors.Join(errs...)
}

// rowAt returns the byte of Args[i] at which a row begins.
func rowAt(c *device.OpCall, i, row int) int64 {
	a := &c.Args[i]
	return a.Size / a.Shape[0] * c.RowExtents[i] * int64(row)
}

// read copies the tensors of a call to the host.
func (t rowTest) read(c *device.OpCall) ([][]byte, error) {
	out := make([][]byte, len(c.Args))
	for i := range c.Args {
		out[i] = make([]byte, c.Args[i].Size)
		if err := c.Stream.CopyToHost(out[i], c.Args[i].Buffer); err != nil {
			return nil, err
		}
	}
	return out, c.Stream.Synchronize()
}

// write copies bytes over the tensors of a call, and waits for it.
func (t rowTest) write(c *device.OpCall, data [][]byte) error {
	for i := range c.Args {
		if err := c.Stream.CopyToDevice(c.Args[i].Buffer, data[i]); err != nil {
			return err
		}
	}
	return c.Stream.Synchronize()
}

func fillBytes(b []byte, v byte) {
	if v == 0 {
		clear(b)
		return
	}
	for i := range b {
		b[i] = v
	}
}
