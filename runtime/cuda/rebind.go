package cuda

import (
	"errors"
	"fmt"
	"slices"

	"pwc/internal/cuda/driver"
	"pwc/runtime/device"
)

// change is the change of one operation by Rebind.
type change struct {
	i        int
	old, new []device.Buffer
}

// Rebind implements [device.Graph] by setting the parameters of the executable graph's
// nodes; the recording stays as it is. If the driver refuses a change, the nodes that were
// changed before get their old addresses back. If that fails, too, all later launches and
// calls of Rebind fail.
func (g *Graph) Rebind(moves []device.Move) error {
	const what = "rebind"
	if err := g.dev.usable(what); err != nil {
		return err
	}
	if g.closed {
		return refuse(what, device.ErrClosed)
	}
	if g.spoiled != nil {
		return refuse(what, g.spoiled)
	}
	if err := g.dev.checkMoves(moves); err != nil {
		return refuse(what, err)
	}
	var changes []change
	for i := range g.ops {
		c, err := g.planned(i, moves)
		if err != nil {
			return refuse(what, err)
		}
		if c != nil {
			changes = append(changes, *c)
		}
	}
	if len(changes) == 0 {
		return nil
	}
	if err := g.apply(changes); err != nil {
		return g.dev.wrap(what, err)
	}
	return nil
}

// checkMoves checks that the moves are of the device's memory. The memory of From may be freed.
func (d *Device) checkMoves(moves []device.Move) error {
	if err := device.CheckMoves(moves); err != nil {
		return err
	}
	for i, m := range moves {
		if from := segment(m.From); from == nil || from.dev != d {
			return fmt.Errorf("move %d: %w", i, device.ErrForeignBuffer)
		}
		if _, err := d.touchable(m.To); err != nil {
			return fmt.Errorf("move %d: %w", i, err)
		}
	}
	return nil
}

// refuse returns the [device.RebindError] of operation i.
func (g *Graph) refuse(i int, reason string, cause error) error {
	var n device.Node
	g.ops[i].describe(&n)
	n.Recorded = g.rec.notes[i]
	return device.NotRebindable(i, n, reason, cause)
}

// planned returns the change of operation i by the moves; nil if it does not change.
func (g *Graph) planned(i int, moves []device.Move) (*change, error) {
	o := &g.ops[i]
	c := &change{i: i, old: o.buffers()}
	c.new = slices.Clone(c.old)
	moved := false
	for j, b := range c.old {
		to, ok, err := device.Relocate(b, moves)
		if err != nil {
			return nil, g.refuse(i, "only a part of its memory moves", err)
		}
		c.new[j] = to
		moved = moved || ok
	}
	for _, b := range o.given() {
		if _, ok, err := device.Relocate(b, moves); ok || err != nil {
			return nil, g.refuse(i, "an op was given the address and may keep it", nil)
		}
	}
	known := o.call != nil || o.step != nil || o.kind == device.NodeCopy || o.kind == device.NodeFill || o.kind == device.NodeEvent
	switch {
	case !known && len(moves) > 0:
		return nil, g.refuse(i, "which memory it uses is not known; Stream.LaunchOp launches it as an op, which declares its memory", nil)
	case !moved:
		return nil, nil
	case g.rec.notes[i].Child:
		return nil, g.refuse(i, "the node is part of a graph that was launched while capturing", nil)
	case !o.changeable():
		return nil, g.refuse(i, "an op was given the address and may keep it", nil)
	case o.node == 0:
		return nil, g.refuse(i, "the operation is several nodes of the driver, or the driver did not tell its node", nil)
	}
	if err := g.fits(o, c.new); err != nil {
		return nil, g.refuse(i, "the memory cannot take its place", err)
	}
	return c, nil
}

// fits checks that memory can replace that of an operation.
func (g *Graph) fits(o *operation, args []device.Buffer) error {
	at := make([]driver.Ptr, len(args))
	for j, b := range args {
		var err error
		if at[j], err = g.dev.touchable(b); err != nil {
			return err
		}
		align := int64(1)
		if b.Size > 0 && o.step != nil {
			align = o.bound.exec.program.Buffers[o.step.of.Args[j]].Alignment()
		}
		if err := g.dev.aligned(b, align); err != nil {
			return err
		}
	}
	if o.kind == device.NodeCopy && overlap(at[0], at[1], min(args[0].Size, args[1].Size)) {
		return device.ErrOverlap
	}
	return nil
}

// apply changes the nodes. On an error no node changes, or g.spoiled is set.
func (g *Graph) apply(changes []change) error {
	d := g.dev
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	mode, err := d.relax() // the thread may capture
	if err != nil {
		return err
	}
	err = g.setAll(changes)
	if modeErr := d.check(d.unrelax(mode)); modeErr != nil {
		if err == nil { // the mode is still relaxed, so the capture does not forbid the calls
			err = g.undo(changes)
		}
		return errors.Join(modeErr, err)
	}
	if err != nil {
		return err
	}
	g.ops = slices.Clone(g.ops)
	for _, c := range changes {
		g.ops[c.i].args = c.new
	}
	g.rebound = true
	g.reach = g.reached()
	return nil
}

// setAll gives the nodes their new addresses, or on an error those of before.
func (g *Graph) setAll(changes []change) error {
	for k, c := range changes {
		if err := g.set(&g.ops[c.i], c.new); err != nil {
			err = g.refuse(c.i, "the driver refuses the change", g.dev.check(err))
			return errors.Join(err, g.undo(changes[:k+1])) // the node whose change failed may have changed
		}
	}
	return nil
}

// undo gives nodes the addresses of before. If that fails, it sets g.spoiled and returns it.
func (g *Graph) undo(changes []change) error {
	for _, c := range changes {
		if err := g.set(&g.ops[c.i], c.old); err != nil {
			g.spoiled = fmt.Errorf("node %d has the address of a Rebind that failed: capture again: %w", c.i, g.dev.check(err))
			return g.spoiled
		}
	}
	return nil
}

// reached returns the objects that the graph uses after Rebind. It leaves out the memory that
// operations used before and no longer use.
func (g *Graph) reached() *reach {
	before, after := &reach{}, &reach{}
	before.operations(g.rec.ops)
	after.operations(g.ops)
	for _, m := range g.rec.reach.mems {
		if _, ok := before.seen[m]; !ok {
			after.memory(m)
		}
	}
	after.add(&reach{hosts: g.rec.reach.hosts, execs: g.rec.reach.execs, modules: g.rec.reach.modules, events: g.rec.reach.events})
	after.seen = nil
	return after
}

// operations adds the memory that operations were given.
func (r *reach) operations(ops []operation) {
	for i := range ops {
		for _, b := range slices.Concat(ops[i].buffers(), ops[i].given()) {
			r.memory(segment(b))
		}
	}
}

// set sets the addresses of an operation's node. The context is current.
func (g *Graph) set(o *operation, args []device.Buffer) error {
	d := g.dev
	at := make([]driver.Ptr, len(args))
	for j, b := range args {
		if m := segment(b); m != nil {
			at[j] = m.ptr + driver.Ptr(b.Offset)
		}
	}
	switch o.kind {
	case device.NodeCopy:
		return d.drv.GraphExecMemcpyNodeSetAddresses(g.exec, o.node, d.ctx, at[0], at[1])
	case device.NodeFill:
		return d.drv.GraphExecMemsetNodeSetAddress(g.exec, o.node, d.ctx, at[0])
	default:
		k := o.step.kernel.clone()
		for j := range at {
			k.values[j] = uint64(at[j])
		}
		return d.drv.GraphExecKernelNodeSetParams(g.exec, o.node, k.function, &k.config, &k.params[0])
	}
}

// clone returns the launch with arguments of its own.
func (p *prepared) clone() *prepared {
	c := &prepared{function: p.function, config: p.config}
	c.arguments(len(p.values))
	copy(c.values, p.values)
	return c
}
