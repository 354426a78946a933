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
		r := &g.reads[i]
		r.t, r.graph = r.recorded, r.made
	}
	g.respan()
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
	reads := slices.Clone(g.reads)
	var dev []device.Move
	for _, m := range moves {
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
		_, made := g.s.madeBy(m.To.Storage())
		found := false
		for i, r := range g.reads {
			if r.t.Storage() == m.From.Storage() { // several, if earlier moves had the same To
				reads[i].t, reads[i].graph, found = m.To, made, true
			}
		}
		if !found {
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
	g.reads = reads
	g.respan()
	g.remeet()
	return nil
}
