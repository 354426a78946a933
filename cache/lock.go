package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sync"
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

// errLockTimeout is the error of a lock that is held when the time for waiting is up.
var errLockTimeout = errors.New("held by another process, and the time for waiting is up")

// budget is time that all waits of a store share. It runs while anybody waits, once
// for all who do.
type budget struct {
	limit time.Duration

	mu      sync.Mutex
	waiters int
	since   time.Time // the first of the waiters came
	spent   time.Duration
}

func (b *budget) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters == 0 {
		b.since = time.Now()
	}
	b.waiters++
}

func (b *budget) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiters--; b.waiters == 0 {
		b.spent += time.Since(b.since)
	}
}

// left returns what is left of the time, to one who waits.
func (b *budget) left() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limit - b.spent - time.Since(b.since)
}

// Lock waits until nobody else, in this process or another, makes the entry of
// this key; unlock lets the next one. It saves work and guards nothing: where
// files cannot be locked, or Options.LockTimeout has passed in waits, it
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
	release, err := t.lock(ctx, id.String(), false, true, &s.waits)
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
// it: until ctx is done (its cause is returned) or the time for waiting is up.
// A lock with drop is exclusive, and its file goes with the release.
func (t *tree) lock(ctx context.Context, name string, shared, drop bool, wait *budget) (release func(), err error) {
	name = path.Join(locksDir, name)
	if err := t.MkdirAll(locksDir, dirMode); err != nil {
		return nil, err
	}
	wait.begin()
	defer wait.end()
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
		left := wait.left()
		if left <= 0 {
			return nil, fmt.Errorf("%s: %w (%v)", t.file(name), errLockTimeout, wait.limit)
		}
		timer := time.NewTimer(min(pause, left))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// guardLock gives a lock file the mode that fits: who may read a file can lock it, so
// nobody may who cannot write the cache. What is another user's stays as it is.
func (t *tree) guardLock(f *os.File, info fs.FileInfo) {
	mode := fs.FileMode(0o600)
	if dir, err := t.Lstat(locksDir); err == nil && dir.Mode()&groupWrites != 0 {
		mode = 0o660
	}
	if modesMean && info.Mode().Perm() != mode {
		_ = f.Chmod(mode) // by another than the owner it fails
	}
}

// tryLock takes the lock if it is free; nil, nil if not. The file is made
// through the tree, so that a link cannot lead out of it, and locked without
// making it. Whoever drops a lock file removes it while holding it, so a lock
// counts only if its file is still the one under the name.
func (t *tree) tryLock(name string, shared bool) (*flock.Flock, error) {
	f, err := t.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() {
		t.guardLock(f, info)
	}
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
