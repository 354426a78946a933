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

// Locks are advisory locks on empty files. A process holds the lock of a key while it compiles
// the key, so that others wait for the result. Writers share the lock "gc", and collection holds
// it exclusively. Correctness does not depend on locks: without them work is repeated.

const gcLock = "gc"

// Pauses between two attempts to take a held lock. The kernel has no wait that a context can end.
const (
	lockPauseMin = time.Millisecond
	lockPauseMax = 50 * time.Millisecond
)

// errLockTimeout: a lock was held until the end of the wait.
var errLockTimeout = errors.New("held by another process or store, and the time for waiting is up")

// budget is the waiting time of a store, shared by all waits. Concurrent waits use it once.
type budget struct {
	limit time.Duration

	mu      sync.Mutex
	waiters int
	since   time.Time // arrival of the first waiter
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

// left returns the remaining time of a waiter.
func (b *budget) left() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limit - b.spent - time.Since(b.since)
}

// Lock waits until no other process or goroutine makes the entry of this key; unlock releases it.
// It saves work, and correctness does not depend on it: if files cannot be locked, or waits took
// Options.LockTimeout, it logs that once. Then, and without a directory to write, only goroutines of
// this store exclude each other. It fails only if ctx ends.
func (s *Store) Lock(ctx context.Context, key Key) (unlock func(), err error) {
	return s.lockID(ctx, key.id())
}

func (s *Store) lockID(ctx context.Context, id ID) (unlock func(), err error) {
	if err := s.enter(ctx, id); err != nil {
		return nil, err
	}
	t, err := s.dir.create()
	if err != nil { // the entry cannot be stored, which Put reports
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

// enter takes the lock among the goroutines that use this store.
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

// lock takes a lock and returns its release. It waits while another process holds it, until ctx
// is done (it returns the cause) or the waiting time is used up. With drop, which needs an exclusive
// lock, the release removes the file.
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
					t.Remove(name) // while the lock is held: see tryLock
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

// guardLock sets the mode of a lock file. Whoever can read a file can lock it, so only writers of
// the cache may read it. A file of another user keeps its mode.
func (t *tree) guardLock(f *os.File, info fs.FileInfo) {
	mode := fs.FileMode(0o600)
	if dir, err := t.Lstat(locksDir); err == nil && dir.Mode()&groupWrites != 0 {
		mode = 0o660
	}
	if modesMean && info.Mode().Perm() != mode {
		_ = f.Chmod(mode) // fails for a file of another user
	}
}

// tryLock takes the lock if it is free; nil, nil if not. It makes the file through the tree, so
// that a link cannot lead out of it, and locks it without creating it. A process removes a lock
// file while it holds the lock, so a lock counts only if its file still has the name.
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
		return nil, nil // removed meanwhile
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
