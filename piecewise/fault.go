package piecewise

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/runtime/device"
)

// indexError joins faults of the backend's programs as [device.IndexError]s, each op once,
// sorted by name; nil: there are no faults.
func (r *residents) indexError(faults []device.IndexError) error {
	if len(faults) == 0 {
		return nil
	}
	var named []*device.IndexError
	for _, f := range faults {
		f.Op = "an op"
		if src, ok := r.faults[f.Executable]; ok {
			f.Op = src.fn.loc(src.unit, f.Origin)
		}
		if !slices.ContainsFunc(named, func(e *device.IndexError) bool { return e.Op == f.Op }) {
			named = append(named, &f)
		}
	}
	slices.SortFunc(named, func(a, b *device.IndexError) int { return strings.Compare(a.Op, b.Op) })
	errs := make([]error, len(named))
	for i, e := range named {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// Faults returns the ops of the backend that met an index out of range since the last
// [Results.Wait], [Result.CopyTo], [FaultSnapshot.Take] or warm-up, as [device.IndexError]s; nil if
// no op did. It does not wait, does not clear the faults, and allocates nothing if there are
// none. It includes the faults of all runs that the caller has waited for, by an event or the stream, and
// may include those of later runs.
func (b *Backend) Faults() error {
	if b.residents.watch == nil || !b.residents.watch.Raised() {
		return nil
	}
	return b.residents.indexError(b.residents.watch.Faults())
}

// FaultSnapshot separates the faults of runs that were issued before Take from those of later
// runs, so that each of several steps in flight gets its own faults (C12).
type FaultSnapshot struct {
	b    *Backend
	snap device.FaultSnapshot
}

// NewFaultSnapshot makes a snapshot for a backend that is loaded.
func (b *Backend) NewFaultSnapshot() (*FaultSnapshot, error) {
	if err := b.enter(loaded, sealed); err != nil {
		return nil, err
	}
	defer b.pool.release()
	snap, err := b.residents.watch.NewSnapshot()
	if err != nil {
		return nil, b.note(fmt.Errorf("piecewise: a snapshot of fault flags: %w", err))
	}
	return &FaultSnapshot{b, snap}, nil
}

// Take enqueues the snapshot on the backend's stream, after all runs so far, and clears the flags
// for later runs. Call [FaultSnapshot.Err] once an event that was recorded on the stream after Take
// has completed.
func (s *FaultSnapshot) Take() error {
	if s.b == nil {
		return ErrOrder
	}
	if err := s.b.enter(loaded, sealed); err != nil {
		return err
	}
	defer s.b.pool.release()
	return s.b.note(s.snap.Take(s.b.pool.stream))
}

// Err returns the faults that the last Take found, as [device.IndexError]s; nil if there are
// none.
func (s *FaultSnapshot) Err() error {
	if s.b == nil {
		return nil
	}
	return s.b.residents.indexError(s.snap.Faults())
}

// Close gives the snapshot's memory back.
func (s *FaultSnapshot) Close() error {
	if s.b == nil {
		return nil
	}
	return s.snap.Close()
}
