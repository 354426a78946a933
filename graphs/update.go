package graphs

import (
	"fmt"
	"slices"

	"pwc/runtime/device"
)

// Instantiate makes the executable graph again from the template, which reverts each Update.
// Without Options.KeepTemplate the error matches [ErrTemplate].
func (g *Graph) Instantiate() error {
	if !g.busy.CompareAndSwap(false, true) {
		return ErrBusy
	}
	defer g.busy.Store(false)
	switch {
	case g.dev == nil:
		return fmt.Errorf("%w: instantiating %s", ErrNotCaptured, g.name)
	case g.on.template == nil:
		return fmt.Errorf("%w: instantiating %s", ErrTemplate, g.name)
	}
	dev, err := g.on.template.Instantiate()
	if err != nil {
		return fmt.Errorf("graphs: instantiating %s: %w", g.name, err)
	}
	if g.dev != g.on.graph { // g.on.graph is closed with the recording
		err = g.dev.Close()
	}
	g.dev = dev
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	for i := range g.reads {
		g.move(i, g.reads[i].recorded)
	}
	g.remeet()
	return err
}

// Move is an input of a graph at a new address. Both tensors are whole storages and have the same dtype and
// shape.
type Move struct{ From, To Tensor }

// Update makes the graph read and write other memory in place of inputs that it did not make,
// without a capture and without copies. After an error, either no operation has changed or later
// replays fail. Addresses of library calls and extern ops, for example, cannot change; the error is a
// [*device.RebindError] that names the operation. Update needs Options.KeepTemplate and does not change
// the template.
func (g *Graph) Update(moves ...Move) error {
	if !g.busy.CompareAndSwap(false, true) {
		return ErrBusy
	}
	defer g.busy.Store(false)
	switch {
	case g.dev == nil:
		return fmt.Errorf("%w: update of %s", ErrNotCaptured, g.name)
	case g.on.template == nil:
		return fmt.Errorf("%w: update of %s", ErrTemplate, g.name)
	}
	at := make([]int, len(moves))
	var dev []device.Move
	for i, m := range moves {
		err := m.To.Err()
		if err == nil {
			err = g.s.own(m.To)
		}
		if err != nil {
			return fmt.Errorf("graphs: update of %s: %w", g.name, err)
		}
		if m.From.DType() != m.To.DType() || !slices.Equal(m.From.Shape(), m.To.Shape()) {
			return fmt.Errorf("%w: update of %s: %s to %s", ErrArguments, g.name, m.From, m.To)
		}
		at[i] = slices.IndexFunc(g.reads, func(r read) bool { return r.t.Storage() == m.From.Storage() })
		if at[i] < 0 {
			return fmt.Errorf("%w: update of %s: the graph does not read %s", ErrArguments, g.name, m.From.Storage().Maker())
		}
		for _, t := range []Tensor{m.From, m.To} {
			if t.Range() != t.Storage().Buffer() {
				return fmt.Errorf("%w: update of %s: %s of %s is a part of its storage: move whole storages, because graphs may read the rest", ErrArguments, g.name, t, t.Storage().Maker())
			}
		}
		dev = append(dev, device.Move{From: m.From.Range(), To: m.To.Range()})
	}
	if err := g.dev.Rebind(dev); err != nil {
		return fmt.Errorf("graphs: update of %s: %w", g.name, err)
	}
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	for i, m := range moves {
		g.move(at[i], m.To)
	}
	g.remeet()
	return nil
}

// move makes g.reads[i] a read of t. If the graph writes it, t's memory becomes a span, and the memory of
// the previous tensor is no span any more, unless merge joined it with other memory.
func (g *Graph) move(i int, t Tensor) {
	r := &g.reads[i]
	if r.write && r.t.Range() != t.Range() {
		if j := slices.Index(g.spans, r.t.Range()); j >= 0 {
			g.spans = slices.Delete(g.spans, j, j+1)
		}
		g.spans = append(g.spans, t.Range())
	}
	r.t = t
}
