package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/gofrs/flock"
)

// Locks are advisory locks on empty files. A lock on a key is held while the
// key is compiled, so that others wait for the result instead of making it
// too. The lock "gc" is shared by those who write and exclusive to those who
// remove. Nothing relies on them: a file system without locks costs work.

const gcLock = "gc"

// Pauses between two tries for a lock that somebody else holds. The kernel
// offers no wait that a context can end.
const (
	lockPauseMin = time.Millisecond
	lockPauseMax = 50 * time.Millisecond
)

// errLockTimeout is the error of a lock that was held for too long.
var errLockTimeout = errors.New("held by another process for too long")

// Lock waits until nobody else, in this process or another, makes the entry of
// this key; unlock lets the next one. It saves work and guards nothing: where
// files cannot be locked, or a lock is held longer than Options.LockTimeout, it
// says so in the log and returns as if it had the lock. It fails only when ctx
// ends.
func (s *Store) Lock(ctx context.Context, key Key) (unlock func(), err error) {
	return s.lockID(ctx, key.id())
}

func (s *Store) lockID(ctx context.Context, id ID) (unlock func(), err error) {
	if err := s.enter(ctx, id); err != nil {
		return nil, err
	}
	t, err := s.dir.create()
	if err != nil { // what is made cannot be kept, and the Put says so
		return func() { s.leave(id) }, nil
	}
	release, err := t.lock(ctx, id.String(), false, true, s.lockTimeout)
	if err != nil {
		t.Close()
		if ctx.Err() != nil {
			s.leave(id)
			return nil, context.Cause(ctx)
		}
		s.noLock(err)
		return func() { s.leave(id) }, nil
	}
	return func() { release(); t.Close(); s.leave(id) }, nil
}

// enter is the lock among goroutines.
func (s *Store) enter(ctx context.Context, id ID) error {
	for {
		s.mu.Lock()
		other := s.held[id]
		if other == nil {
			s.held[id] = make(chan struct{})
		}
		s.mu.Unlock()
		if other == nil {
			return nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *Store) leave(id ID) {
	s.mu.Lock()
	mine := s.held[id]
	delete(s.held, id)
	s.mu.Unlock()
	close(mine)
}

// lock takes a lock and returns what releases it. It waits while another holds
// it: until ctx is done (its cause is returned) or timeout has passed.
// A lock with drop is exclusive, and its file goes with the release.
func (t *tree) lock(ctx context.Context, name string, shared, drop bool, timeout time.Duration) (release func(), err error) {
	name = path.Join(locksDir, name)
	if err := t.MkdirAll(locksDir, dirMode); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(timeout)
	for pause := lockPauseMin; ; pause = min(2*pause, lockPauseMax) {
		l, err := t.tryLock(name, shared)
		if err != nil {
			return nil, err
		}
		if l != nil {
			return func() {
				if drop {
					t.Remove(name) // while it is held: see tryLock
				}
				l.Unlock()
			}, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s: %w (%v)", t.file(name), errLockTimeout, timeout)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// tryLock takes the lock if it is free; nil, nil if not. The file is made
// through the tree, so that a link cannot lead out of it, and locked without
// making it. Whoever drops a lock file removes it while holding it, so a lock
// counts only if its file is still the one under the name.
func (t *tree) tryLock(name string, shared bool) (*flock.Flock, error) {
	f, err := t.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	f.Close()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, t.damage(name, "not a regular file (%s)", info.Mode().Type())
	}
	l := flock.New(t.file(name), flock.SetFlag(os.O_RDWR))
	try := l.TryLock
	if shared {
		try = l.TryRLock
	}
	switch ok, err := try(); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil // dropped in between
	case err != nil:
		return nil, err
	case !ok:
		return nil, nil
	}
	held, err := l.Stat()
	if err == nil {
		if info, err = t.Lstat(name); err == nil && os.SameFile(held, info) {
			return l, nil
		}
	}
	l.Unlock()
	return nil, nil
}
