package graphs

import (
	"errors"
	"slices"

	"pwc/graphs/internal/store"
	"pwc/ir/dtype"
)

// undo saves the previous contents of storages that a run writes and did not make, and the states
// of generators. The nil undo saves nothing.
type undo struct {
	before []kept
	states []keptState
}

type kept struct{ storage, copy Tensor }

type keptState struct {
	g     *Generator
	state GeneratorState
}

// Undoable makes later work of the recorder reversible by Undo, for warm-ups. A capture executes
// nothing and does not need it.
func (r *Recorder) Undoable() *Recorder {
	if !r.Capturing() && r.run.undo == nil {
		r.run.scoped, r.run.undo = true, &undo{}
	}
	return r
}

// Undo restores the storages that the run wrote and did not make, and the generators that it drew
// from. It is ordered after the run's work on the recorder's stream.
func (r *Recorder) Undo() error {
	u := r.run.undo
	if u == nil {
		return nil
	}
	r.run.undo = nil
	var errs []error
	for _, k := range slices.Backward(u.before) {
		errs = append(errs, r.Copy(k.storage, k.copy), k.copy.Release())
	}
	for _, s := range u.states {
		errs = append(errs, s.g.SetState(s.state))
	}
	return errors.Join(errs...)
}

// writes copies a storage before the first write to it. A storage with unreadable contents needs
// no copy.
func (u *undo) writes(r *Recorder, s *store.Storage) error {
	if u == nil || r.run.seen[s] || slices.ContainsFunc(u.before, func(k kept) bool { return k.storage.Storage() == s }) {
		return nil
	}
	whole := s.Tensor(dtype.U8, []int64{s.Buffer().Size}).Weak() // it may have no owner
	if errors.Is(whole.Err(), ErrStale) {
		return nil
	}
	// A separate recorder, because r's storages may be released before Undo.
	c, err := r.s.Eager(r.stream).Clone("contents of "+s.Maker().String()+" before a warm-up", whole)
	if err == nil {
		u.before = append(u.before, kept{whole, c})
	}
	return err
}

// drawn saves the state of a generator before the first draw from it.
func (u *undo) drawn(g *Generator) {
	if u == nil || slices.ContainsFunc(u.states, func(k keptState) bool { return k.g == g }) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	u.states = append(u.states, keptState{g, g.state})
}
