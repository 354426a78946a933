package main

import (
	"fmt"
	"slices"

	"pwc/program"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

const shiftName = "embed::shift"

// starts is the metadata of a step: the rows other than row 0 at which sequences
// start. It changes from step to step, which is why shift is not captured.
type starts []int64

// shift is the extern op out[i] = x[i-1], and 0 where a sequence starts.
type shift struct{ dev *hostdev.Device }

// Signature says that the op reads its first operand and writes the second.
func (s *shift) Signature() device.Signature {
	return device.Signature{Name: shiftName, Mut: []bool{false, true}}
}

// ScratchBytes returns 0: the op needs no scratch memory.
func (s *shift) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

// Launch shifts the rows of the step, and zeroes the padded ones.
func (s *shift) Launch(c *device.OpCall) error {
	at, ok := c.Meta.(starts)
	if !ok {
		return fmt.Errorf("%s: %s: metadata is %T", c.Loc, shiftName, c.Meta)
	}
	x, err := s.dev.Bytes(c.Args[0].Buffer)
	if err != nil {
		return err
	}
	out, err := s.dev.Bytes(c.Args[1].Buffer)
	if err != nil {
		return err
	}
	row := int64(len(x)) / c.Size
	clear(out) // padded rows too
	for i := int64(1); i < c.Rows; i++ {
		if !slices.Contains(at, i) {
			copy(out[i*row:(i+1)*row], x[(i-1)*row:i*row])
		}
	}
	return nil
}
