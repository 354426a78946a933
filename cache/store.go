package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options say where a store is. The zero value is a store that holds nothing
// and keeps nothing.
type Options struct {
	Dir    string       // read and written; empty: nothing is kept
	Layers []string     // read, never written, searched in this order before Dir
	Logger *slog.Logger // nil: no messages

	// Trust says which directories may hold machine code whoever can write them. Nil:
	// only Dir, and layers that nobody but the user and root can write.
	Trust *Trust

	// LockTimeout bounds the time that the store waits, in all its life, for other
	// processes: those that compile the same keys, and collections. From then on it takes
	// the locks that are free, and else does work twice. 0: ten minutes.
	LockTimeout time.Duration
}

const defaultLockTimeout = 10 * time.Minute

// Store is a cache on disk. It holds nothing open and needs no closing; all
// methods may be called from many goroutines, and many stores, in many
// processes, may share a directory.
type Store struct {
	roots []root // the layers, then the directory that is written
	dir   root
	trust *Trust
	log   *slog.Logger
	waits budget

	count counters

	sweep    sync.Once // of temporary files, before the first write
	lockWarn sync.Once
	waitWarn sync.Once

	mu       sync.Mutex
	held     map[ID]chan struct{} // locks held in this process, closed by their release
	stamped  map[ID]bool          // modules whose use this process has recorded
	unopened map[string]bool      // directories that could not be opened, and were reported

	unvouched map[string]bool // directories with machine code that is not used, which were reported
}

// New returns a store. No file is touched before it is used, and no directory
// has to exist.
func New(o Options) *Store { return newStore(o, FormatVersion) }

// newStore is New for a format version.
func newStore(o Options, version int) *Store {
	s := &Store{
		dir:       root{dir: o.Dir, version: version},
		trust:     o.Trust,
		log:       o.Logger,
		waits:     budget{limit: cmp.Or(o.LockTimeout, defaultLockTimeout)},
		held:      map[ID]chan struct{}{},
		stamped:   map[ID]bool{},
		unopened:  map[string]bool{},
		unvouched: map[string]bool{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for i, dir := range o.Layers {
		if dir == o.Dir || slices.Contains(o.Layers[:i], dir) {
			continue // it would be listed twice, and the directory's use not be recorded
		}
		s.roots = append(s.roots, root{dir: dir, version: version, layer: true})
	}
	if o.Dir != "" {
		s.roots = append(s.roots, s.dir)
	}
	return s
}

// Dir returns the directory that is written, or "".
func (s *Store) Dir() string { return s.dir.dir }

// Stats counts what a store did since it was made.
type Stats struct {
	Loaded      int64 // entries found whole
	LoadedBytes int64 // of their blobs, read and verified
	LoadTime    time.Duration
	Stored      int64 // entries written, repairs included
	StoredBytes int64 // of their blobs
	StoreTime   time.Duration
	Damaged     int64 // files that were there and could not be used, each time
	NotCached   int64 // entries and modules that could not be written
	Untrusted   int64 // look-ups that found machine code which is not trusted
}

type counters struct {
	loaded, loadedBytes, loadTime, stored, storedBytes, storeTime, damaged, notCached, untrusted atomic.Int64
}

// Stats returns the counts.
func (s *Store) Stats() Stats {
	c := &s.count
	return Stats{
		Loaded: c.loaded.Load(), LoadedBytes: c.loadedBytes.Load(), LoadTime: time.Duration(c.loadTime.Load()),
		Stored: c.stored.Load(), StoredBytes: c.storedBytes.Load(), StoreTime: time.Duration(c.storeTime.Load()),
		Damaged: c.damaged.Load(), NotCached: c.notCached.Load(), Untrusted: c.untrusted.Load(),
	}
}

// damaged logs and counts a file that cannot be used.
func (s *Store) damaged(err error) {
	s.count.damaged.Add(1)
	if d, ok := errors.AsType[*DamageError](err); ok {
		s.log.Warn("cache: damaged file; it counts as a miss", "file", d.File, "reason", d.Reason)
	} else {
		s.log.Warn("cache: damaged file; it counts as a miss", "reason", err)
	}
}

// notCached logs, counts and wraps the reason why something was not kept. The first
// is a warning and the others are not: a full disk is one fault, however many
// artifacts a model has.
func (s *Store) notCached(what string, err error) error {
	level := slog.LevelInfo
	if s.count.notCached.Add(1) == 1 {
		level = slog.LevelWarn
	}
	s.log.Log(context.Background(), level, "cache: not kept", "what", what, "dir", s.dir.dir, "reason", err)
	return &NotCachedError{What: what, Err: err}
}

// openRoot opens a directory for reading; nil if that cannot be done. It is
// said once for each directory, and not at all if the one that is written is
// not there yet.
func (s *Store) openRoot(d root) *tree {
	t, err := d.open()
	if err == nil {
		return t
	}
	absent := errors.Is(err, fs.ErrNotExist)
	if absent && !d.layer {
		return nil
	}
	s.mu.Lock()
	said := s.unopened[d.dir]
	s.unopened[d.dir] = true
	s.mu.Unlock()
	switch {
	case said:
	case absent:
		s.log.Warn("cache: a read-only layer holds nothing of this format version", "dir", d.dir, "version", d.version)
	default:
		s.damaged(&DamageError{File: d.dir, Reason: fmt.Sprintf("cannot be opened: %v", reason(err))})
	}
	return nil
}

// Get returns the blob of a key, every byte of it checked against its hash:
// from the first layer that has it whole, else from the directory; false where
// there is none. Nothing is written. Files that are damaged are logged. If no
// whole entry was found beside them the error joins their *DamageErrors: the
// entry is to be made again and put, which repairs it. So it does with an
// *[UntrustedError] for each directory that has the entry and is not trusted with
// machine code. Any other error is the cause of ctx's end.
func (s *Store) Get(ctx context.Context, key Key) (blob []byte, ok bool, err error) {
	if ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	start := time.Now()
	id := key.id()
	var damage []error
	for _, d := range s.roots {
		t := s.openRoot(d)
		if t == nil {
			continue
		}
		blob, err := s.getTrusted(d, t, key)
		t.Close()
		if err == nil {
			s.count.loaded.Add(1)
			s.count.loadedBytes.Add(int64(len(blob)))
			s.count.loadTime.Add(int64(time.Since(start)))
			s.log.Debug("cache: hit", "id", id, "dir", d.dir, "bytes", len(blob))
			return blob, true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			s.unusable(d, err)
			damage = append(damage, err)
		}
	}
	return nil, false, errors.Join(damage...)
}

// getTrusted is get of what is trusted; the error is that of get or an
// *UntrustedError.
func (s *Store) getTrusted(d root, t *tree, key Key) ([]byte, error) {
	id := key.id()
	blob, info, err := t.get(id)
	if err == nil {
		err = s.vouch(d, t, key.Target, keyFile(id), info)
	}
	if err != nil {
		return nil, err
	}
	return blob, nil
}

// get reads and checks an entry, and describes its manifest. The error matches
// fs.ErrNotExist if there is none, and else is a *DamageError.
func (t *tree) get(id ID) ([]byte, fs.FileInfo, error) {
	for again := false; ; again = true {
		e, info, err := t.entryInfo(id)
		if err != nil {
			return nil, nil, err
		}
		blob, err := t.blob(e.Blob, e.Size)
		if !errors.Is(err, fs.ErrNotExist) {
			return blob, info, err
		}
		// Collection removes the manifest and then the blob, so an entry that
		// went meanwhile, or went and came back, is not damaged.
		if again {
			return nil, nil, t.damage(blobFile(e.Blob), "missing; the entry %s names it", id)
		}
	}
}

// Put keeps a blob under a key. What is there and whole is left alone, and
// what is damaged is written anew. An error is a *NotCachedError, already
// logged, unless key, blob or p cannot be an entry at all. ctx bounds the wait
// for a collection that is under way: work that is done is kept even if nobody
// waits for it any more.
func (s *Store) Put(ctx context.Context, key Key, blob []byte, p Provenance) error {
	e := &Entry{Key: key, Blob: DigestOf(blob), Size: int64(len(blob)), Provenance: p, Created: time.Now()}
	if err := e.validate(); err != nil {
		return err
	}
	start := time.Now()
	if err := s.put(ctx, e, blob); err != nil {
		return s.notCached("entry "+key.id().String(), err)
	}
	s.count.storeTime.Add(int64(time.Since(start)))
	return nil
}

// put writes the blob and then the manifest that names it.
func (s *Store) put(ctx context.Context, e *Entry, blob []byte) error {
	t, release, err := s.openWrite(ctx)
	if err != nil {
		return err
	}
	defer release()
	id := e.Key.id()
	_, blobErr := t.blob(e.Blob, e.Size)
	if blobErr != nil {
		if err := t.write(blobFile(e.Blob), blob); err != nil {
			return err
		}
	}
	if old, err := t.entry(id); err != nil || old.Blob != e.Blob || old.Size != e.Size {
		if err := t.write(keyFile(id), e.encode()); err != nil {
			return err
		}
	} else if blobErr == nil {
		return nil
	}
	s.count.stored.Add(1)
	s.count.storedBytes.Add(e.Size)
	s.log.Debug("cache: stored", "id", id, "blob", e.Blob, "bytes", e.Size, "origin", e.Provenance.Origin)
	return nil
}

// openWrite opens the directory for a write that collection waits for. Without
// a lock it goes on: what collection then removes is made again.
func (s *Store) openWrite(ctx context.Context) (t *tree, release func(), err error) {
	t, err = s.dir.create()
	if err != nil {
		return nil, nil, err
	}
	s.sweep.Do(t.sweepTemp)
	unlock, err := t.lock(ctx, gcLock, true, false, &s.waits)
	if err != nil {
		if ctx.Err() != nil {
			t.Close()
			return nil, nil, context.Cause(ctx)
		}
		s.noLock(err)
		unlock = func() {}
	}
	return t, func() { unlock(); t.Close() }, nil
}

// noLock says, once for each of the two reasons, that work may be done twice.
func (s *Store) noLock(err error) {
	if errors.Is(err, errLockTimeout) {
		s.waitWarn.Do(func() { s.log.Warn("cache: going on without the lock, and without waiting for others", "reason", err) })
		return
	}
	s.lockWarn.Do(func() {
		s.log.Warn("cache: locking fails; work may be done twice", "dir", s.dir.dir, "reason", err)
	})
}
