package cuda

import (
	"fmt"
	"slices"

	"pwc/runtime/device"
)

// Rebind implements [device.Graph].
func (g *Graph) Rebind(moves []device.Move) error {
	const what = "rebind"
	if err := g.dev.usable(what); err != nil {
		return err
	}
	if g.closed {
		return refuse(what, device.ErrClosed)
	}
	if err := g.dev.checkMoves(moves); err != nil {
		return refuse(what, err)
	}
	for i := range g.rec.ops {
		o := &g.rec.ops[i]
		for _, b := range slices.Concat(o.buffers(), o.given()) {
			if _, moved, err := device.Relocate(b, moves); moved || err != nil {
				var n device.Node
				o.describe(&n)
				n.Recorded = g.rec.notes[i]
				return refuse(what, device.NotRebindable(i, n, "the device cannot change its nodes", err))
			}
		}
	}
	return nil
}

// checkMoves checks that the moves are of the device's memory; that of From may be freed.
func (d *Device) checkMoves(moves []device.Move) error {
	if err := device.CheckMoves(moves); err != nil {
		return err
	}
	for i, m := range moves {
		if from := segment(m.From); from == nil || from.dev != d {
			return fmt.Errorf("move %d: %w", i, device.ErrForeignBuffer)
		}
		if _, _, err := d.memory(m.To); err != nil {
			return fmt.Errorf("move %d: %w", i, err)
		}
	}
	return nil
}
