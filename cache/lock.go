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

// lock takes a lock and returns what releases it. It waits while another holds
// it: until ctx is done (its error is returned as it is) or timeout has passed.
// A lock with drop is exclusive, and its file goes with the release.
func (t *tree) lock(ctx context.Context, name string, shared, drop bool, timeout time.Duration) (release func(), err error) {
	name = path.Join(locksDir, name)
	if err := t.MkdirAll(locksDir, 0o777); err != nil {
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
			return nil, ctx.Err()
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
