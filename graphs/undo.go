package graphs

import (
	"errors"
	"slices"

	"pwc/graphs/internal/store"
	"pwc/ir/dtype"
)

// undo keeps what a run changes that was there before: the contents of storages that the
// recorder did not make, and the states of generators. The nil undo keeps nothing.
type undo struct {
	before []kept
	states []keptState
}

type kept struct{ storage, copy Tensor }

type keptState struct {
	g     *Generator
	state GeneratorState
}

// Undoable makes what the recorder is given from here on a trial: Undo takes it back. It is for
// warm-ups. A recorder that captures changes nothing and needs none.
func (r *Recorder) Undoable() *Recorder {
	if !r.Capturing() && r.run.undo == nil {
		r.run.scoped, r.run.undo = true, &undo{}
	}
	return r
}

// Undo restores the storages that the run wrote and did not make, and the generators that it
// drew from, behind the run's work on the recorder's stream.
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

// writes copies a storage before the first write to it. One whose contents nobody may read any
// more has nothing to restore.
func (u *undo) writes(r *Recorder, s *store.Storage) error {
	if u == nil || r.run.seen[s] || slices.ContainsFunc(u.before, func(k kept) bool { return k.storage.Storage() == s }) {
		return nil
	}
	whole := s.Tensor(dtype.U8, []int64{s.Buffer().Size}).Weak() // it may have no owner
	if errors.Is(whole.Err(), ErrStale) {
		return nil
	}
	// A recorder of its own: what r makes may be released before Undo.
	c, err := r.s.Eager(r.stream).Clone("contents of "+s.Maker().String()+" before a warm-up", whole)
	if err == nil {
		u.before = append(u.before, kept{whole, c})
	}
	return err
}

// drawn keeps the state of a generator before the first draw from it.
func (u *undo) drawn(g *Generator) {
	if u == nil || slices.ContainsFunc(u.states, func(k keptState) bool { return k.g == g }) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	u.states = append(u.states, keptState{g, g.state})
}
