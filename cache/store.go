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

// Options configure a store. The zero value is an empty store that keeps nothing.
type Options struct {
	Dir    string       // read and written; empty: nothing is stored
	Layers []string     // read-only, searched in this order before Dir
	Logger *slog.Logger // nil: no messages

	// Trust lists directories whose machine code is used although others can write them. Nil:
	// only machine code of Dir, if it belongs to the user or root and only they and its group can
	// write it, and of layers that only the user and root can write.
	Trust *Trust

	// LockTimeout bounds the total time that the store waits for locks of other processes: of those
	// that compile the same keys, of collections, and of writers if it collects. After it the store
	// takes only free locks, and otherwise repeats work. 0: ten minutes.
	LockTimeout time.Duration
}

const defaultLockTimeout = 10 * time.Minute

// Store is a cache on disk. It keeps no file open and needs no closing. All methods are safe for
// concurrent use, and many stores in many processes may share a directory.
type Store struct {
	roots []root // the layers, then the directory to write
	dir   root
	trust *Trust
	log   *slog.Logger
	waits budget

	count counters

	sweep    sync.Once // of temporary files, before the first write
	lockWarn sync.Once
	waitWarn sync.Once

	mu       sync.Mutex
	held     map[ID]chan struct{} // locks held through this store, closed by their release
	stamped  map[ID]bool          // modules whose use this store has recorded
	unopened map[string]bool      // directories that could not be opened, and were logged

	unvouched map[string]bool // directories with untrusted machine code or tuning records, which were logged
}

// New returns a store. It opens no file before the first use, and directories need not exist.
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
			continue // otherwise it would be listed twice, and its use not recorded
		}
		s.roots = append(s.roots, root{dir: dir, version: version, layer: true})
	}
	if o.Dir != "" {
		s.roots = append(s.roots, s.dir)
	}
	return s
}

// Dir returns the directory to write, or "".
func (s *Store) Dir() string { return s.dir.dir }

// Stats counts what a store did since it was made.
type Stats struct {
	Loaded      int64 // whole entries found
	LoadedBytes int64 // of their blobs, read and verified
	LoadTime    time.Duration
	Stored      int64 // entries written, including repairs
	StoredBytes int64 // of their blobs
	StoreTime   time.Duration
	Damaged     int64 // unusable files at each encounter, except in Explain and Verify; once each directory that cannot be opened
	NotCached   int64 // entries, modules and tuning records that could not be written
	Untrusted   int64 // untrusted entries of machine code and tuning records, at each look-up by Get, Tuning or Tunings
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

// damaged logs and counts an unusable file.
func (s *Store) damaged(err error) {
	s.count.damaged.Add(1)
	s.warnDamaged(err)
}

// warnDamaged logs an unusable file.
func (s *Store) warnDamaged(err error) {
	if d, ok := errors.AsType[*DamageError](err); ok {
		s.log.Warn("cache: damaged file; it counts as a miss", "file", d.File, "reason", d.Reason)
	} else {
		s.log.Warn("cache: damaged file; it counts as a miss", "reason", err)
	}
}

// notCached logs, counts and wraps a failure to store. Only the first is a warning: a full disk
// is one fault, for any number of files.
func (s *Store) notCached(what string, err error) error {
	level := slog.LevelInfo
	if s.count.notCached.Add(1) == 1 {
		level = slog.LevelWarn
	}
	s.log.Log(context.Background(), level, "cache: not kept", "what", what, "dir", s.dir.dir, "reason", err)
	return &NotCachedError{What: what, Err: err}
}

// openRoot opens a directory for reading; nil if that fails. It logs the failure once for each
// directory, but not if the directory to write does not exist yet.
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
		s.log.Warn("cache: a read-only layer has no directory of this format version", "dir", d.dir, "version", d.version)
	default:
		s.damaged(&DamageError{File: d.dir, Reason: fmt.Sprintf("cannot be opened: %v", reason(err))})
	}
	return nil
}

// Get returns the blob of a key, from the first layer with a whole entry, otherwise from the
// directory; false if there is none. It compares every byte with its hash, writes nothing, and
// logs damaged files. If it finds only damaged or untrusted entries, the error joins a *DamageError
// for each damaged one and an *[UntrustedError] for each directory whose entry is untrusted machine
// code. Then make the entry again and Put it, which replaces damage in Options.Dir. Any other error is
// the cause of ctx's end.
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

// getTrusted is get for trusted entries. The error is that of get or an *UntrustedError.
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

// get reads and checks an entry and its manifest. The error matches fs.ErrNotExist if there is
// none, and is a *DamageError otherwise.
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
		// Collection removes the manifest and then the blob, so an entry that was removed
		// meanwhile, or removed and written again, is not damaged.
		if again {
			return nil, nil, t.damage(blobFile(e.Blob), "missing; the entry %s names it", id)
		}
	}
}

// Put stores a blob under a key. It keeps a whole entry with the same blob, and replaces any other
// entry of the key. An error is a *NotCachedError, already logged, unless key, blob or p are
// invalid. ctx bounds only the wait for a running collection: finished work is stored even if
// nobody waits for it any more.
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

// openWrite opens the directory for a write that collection waits for. Without a lock the write
// continues, and entries that collection then removes are made again.
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

// noLock logs, once for each of two reasons, that work may be repeated.
func (s *Store) noLock(err error) {
	if errors.Is(err, errLockTimeout) {
		s.waitWarn.Do(func() { s.log.Warn("cache: going on without the lock, and without waiting for others", "reason", err) })
		return
	}
	s.lockWarn.Do(func() {
		s.log.Warn("cache: locking fails; work may be done twice", "dir", s.dir.dir, "reason", err)
	})
}
