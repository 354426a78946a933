package piecewise

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"pwc/ir"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/safetensors"
	"pwc/split"
)

// stateMemory is the memory of the states. Without a [Canary], states that Load was not
// given are in one segment. On a [device.Reserver] this is reserved address space: graphs
// can be captured before the KV cache gets memory, and stay valid afterwards, because its
// addresses do not change (C7).
type stateMemory struct {
	buffers  []device.Buffer // by the module's states
	segment  device.Memory   // nil: the backend allocated no segment
	reserved device.State    // segment, while it does not have all its memory
}

// stateBytes returns the size of each state of the module, and the size of a segment
// for the states for which own is true.
func (pl *plan) stateBytes(own func(*ir.State) bool) (each []int64, total int64, err error) {
	e := (&function{plan: pl}).envFor(0)
	for _, s := range pl.module.States {
		n, err := e.bytes(s.Type)
		if err != nil {
			return nil, 0, fmt.Errorf("state @%s: %w", s.Name, err)
		}
		each = append(each, n)
		if own(s) {
			if err := addTo(&total, n); err != nil {
				return nil, 0, fmt.Errorf("state @%s: %w", s.Name, err)
			}
		}
	}
	if r, ok := pl.opts.Device.(device.Reserver); ok {
		g, err := r.MapGranularity()
		if err != nil {
			return nil, 0, err
		}
		if total > math.MaxInt64-g {
			return nil, 0, fmt.Errorf("states: %w", program.ErrTooLarge)
		}
		total = (total + g - 1) / g * g
	}
	return each, total, nil
}

// loadStates sets the memory of the states: for those that given names, the memory there, and for
// the others parts of a new segment.
func (r *residents) loadStates(given map[string]device.Buffer) error {
	for name := range given {
		if !slices.ContainsFunc(r.plan.module.States, func(s *ir.State) bool { return s.Name == name }) {
			return fmt.Errorf("%w: the module has no state @%s", ErrNotLoaded, name)
		}
	}
	own := func(s *ir.State) bool { _, ok := given[s.Name]; return !ok }
	each, total, err := r.plan.stateBytes(own)
	if err != nil {
		return err
	}
	if r.plan.opts.Debug.Canary != CanaryOff {
		total = 0
	}
	m := &r.states
	m.buffers = make([]device.Buffer, len(each))
	if total > 0 {
		if err := r.takeStates(total); err != nil {
			return fmt.Errorf("piecewise: %d bytes for states: %w", total, err)
		}
	}
	off := int64(0)
	for i, s := range r.plan.module.States {
		switch {
		case !own(s):
			r.assign(&m.buffers[i], given[s.Name])
			if m.buffers[i].Size != each[i] {
				return fmt.Errorf("%w: state @%s needs %d bytes, was given %d", ErrNotLoaded, s.Name, each[i], m.buffers[i].Size)
			}
		case r.plan.opts.Debug.Canary != CanaryOff:
			buf, err := r.takeCanary(each[i], "state @"+s.Name)
			if err == nil {
				err = r.pool.stream.Fill(buf, 0)
			}
			if err != nil {
				return err
			}
			r.assign(&m.buffers[i], buf)
		default:
			r.assign(&m.buffers[i], device.Buffer{Memory: m.segment, Offset: off, Size: each[i]})
			off += roundUp(each[i])
		}
	}
	if r.plan.piecesTouchStates() {
		return r.mapStates() // warm-up runs pieces
	}
	return nil
}

// loadInitial writes the initial values of states that the caller did not give, computed from
// the checkpoint as weights are. If there are any, all states get their memory now.
func (r *residents) loadInitial(ctx context.Context, src safetensors.Source, given map[string]device.Buffer) error {
	for i, s := range r.plan.module.States {
		w := r.plan.module.WeightOf(s.Initial(), r.plan.opts.Rank)
		if _, theirs := given[s.Name]; w == nil || theirs {
			continue
		}
		if src == nil {
			return fmt.Errorf("%w: state @%s starts from tensors and Load got no checkpoint", ErrNotLoaded, s.Name)
		}
		if err := errors.Join(ctx.Err(), r.mapStates()); err != nil {
			return err
		}
		t, err := computeWeight(src, w)
		if err != nil {
			return fmt.Errorf("the initial value of state @%s: %w", s.Name, err)
		}
		if err := r.fill(r.states.buffers[i], t); err != nil {
			return err
		}
	}
	return nil
}

// takeStates allocates the segment; reserved address space gets as little memory as possible.
func (r *residents) takeStates(total int64) error {
	m := &r.states
	d, ok := r.plan.opts.Device.(device.Reserver)
	if !ok {
		var err error
		if m.segment, err = r.plan.opts.Device.Alloc(total); err != nil {
			m.segment = nil
			return err
		}
		return r.pool.stream.Fill(device.Buffer{Memory: m.segment, Size: total}, 0)
	}
	s, err := d.ReserveState(total)
	if err != nil {
		return err
	}
	m.segment, m.reserved = s, s
	return s.Map(1)
}

// mapStates gives a reserved segment all its memory and fills it with zeros, once.
func (r *residents) mapStates() error {
	m := &r.states
	if m.reserved == nil {
		return nil
	}
	total := m.reserved.Size()
	if err := m.reserved.Map(total); err != nil {
		return fmt.Errorf("piecewise: %d bytes for states: %w", total, err)
	}
	if err := r.pool.stream.Fill(device.Buffer{Memory: m.segment, Size: total}, 0); err != nil {
		return fmt.Errorf("piecewise: zeroing the states: %w", err) // reserved stays set, so the next call tries again
	}
	m.reserved = nil
	return nil
}

// piecesTouchStates reports whether a compiled piece reads or writes a state. If none
// does, no memory of states is needed before the first run: [device.Warmer] must not
// use states.
func (pl *plan) piecesTouchStates() bool {
	for _, fn := range pl.funcs {
		for i := range fn.units {
			u := &fn.units[i]
			if u.piece != nil && slices.ContainsFunc(u.args, func(a int32) bool { return fn.storages[a].kind == inState }) {
				return true
			}
		}
	}
	return false
}

// keepStates copies to the host each state that a compiled piece writes, and returns a
// function that restores them after a warm-up, which computes on padding. KV caches are
// usually written only by extern ops, which do not touch states in a warm-up, so the
// copies are small.
func (r *residents) keepStates() (restore func() error, err error) {
	kept := map[int][]byte{} // by state
	s := r.pool.stream
	for i := range r.plan.module.States {
		if !r.plan.piecesWrite(i) {
			continue
		}
		kept[i] = make([]byte, r.states.buffers[i].Size)
		if err := s.CopyToHost(kept[i], r.states.buffers[i]); err != nil {
			return nil, err
		}
	}
	if len(kept) == 0 {
		return func() error { return nil }, nil
	}
	if err := s.Synchronize(); err != nil {
		return nil, err
	}
	return func() error {
		var errs []error
		for i, data := range kept {
			errs = append(errs, s.CopyToDevice(r.states.buffers[i], data))
		}
		return errors.Join(append(errs, s.Synchronize())...)
	}, nil
}

// piecesWrite reports whether a compiled piece writes a state of the module.
func (pl *plan) piecesWrite(state int) bool {
	for _, fn := range pl.funcs {
		for i := range fn.units {
			if p := fn.units[i].piece; p != nil && pieceWrites(p, state) {
				return true
			}
		}
	}
	return false
}

func pieceWrites(p *split.Piece, state int) bool {
	for _, n := range p.Func.Nodes {
		for _, w := range n.Versions {
			info := &p.Func.Values[p.Func.Base(w.Value)]
			if info.Kind == ir.StateValue && p.States[info.Index] == state {
				return true
			}
		}
	}
	return false
}

// State returns the memory of a state. On a [device.Reserver], do not access the memory before the
// end of Capture or the first run: until then the addresses may have no memory (see [Backend.Load]).
func (b *Backend) State(name string) (device.Buffer, error) {
	for i, s := range b.plan.module.States {
		if s.Name == name && i < len(b.residents.states.buffers) {
			return b.residents.states.buffers[i], nil
		}
	}
	return device.Buffer{}, fmt.Errorf("%w: no loaded state @%s", ErrNotLoaded, name)
}

// SetState replaces the memory of a state by other memory of the same size. Results that a
// function returned in the state are then stale. Runs of graphs that were captured with the old
// memory fail ([AddressError]) until Capture is called again or the old memory is set back.
func (b *Backend) SetState(name string, buf device.Buffer) error {
	if err := b.enter(loaded, sealed); err != nil {
		return err
	}
	defer b.pool.release()
	old, err := b.State(name)
	if err != nil {
		return err
	}
	if old.Size != buf.Size {
		return fmt.Errorf("%w: state @%s needs %d bytes, was given %d", ErrNotLoaded, name, old.Size, buf.Size)
	}
	for i, s := range b.plan.module.States {
		if s.Name == name {
			b.residents.assign(&b.residents.states.buffers[i], buf)
			b.replaced(b.plan.states[i], nil)
		}
	}
	return nil
}
