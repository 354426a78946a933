package cache

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"
)

// GCOptions are the limits of a collection.
type GCOptions struct {
	// MaxBytes bounds the bytes of the directory's blobs, manifests, graphs and tuning records.
	MaxBytes int64

	// Grace keeps entries without a module, and blobs without an entry, for this time after they
	// were written, because a module is recorded after its entries were made. An hour suffices.
	// It keeps no module, and no entries that only a removed module used.
	Grace time.Duration
}

// GCResult counts removed and remaining files.
type GCResult struct {
	Modules, Entries, Blobs int   // removed
	Freed                   int64 // bytes of these and of removed graphs
	Left                    int64 // bytes of what MaxBytes bounds; above it if files are pinned, recent, tuning records or not removable
}

// GC removes files from the directory, never from a layer. First it removes unusable files:
// damaged manifests, entries whose blob is missing or has another size, blobs without an entry.
// Unlike Verify, it does not read blobs. Then, until the rest is within MaxBytes, it removes
// entries without a module, oldest first, and then modules by least recent use, each with the entries
// that no other module uses and their blobs, unless another entry has the same blob. Pinned modules
// keep their files. A program that another process still needs is compiled again.
//
// GC waits for running writes, at most Options.LockTimeout, and delays new ones, if files can be
// locked. Without locks an entry may lose its blob and is then a miss. If a pinned module is damaged, GC
// stops with an error, because the entries of the module are unknown. If directories of pins, entries or
// modules cannot be listed, it stops with a *DamageError, because it is unknown which files are in use.
// Otherwise the error joins failed removals and the cause of ctx's end, or it is ErrNoDir, or a *DamageError if
// the directory cannot be opened. Also with an error, the result counts what was found and removed.
func (s *Store) GC(ctx context.Context, o GCOptions) (GCResult, error) {
	var r GCResult
	err := s.exclusive(ctx, func(t *tree) error {
		c := &collector{t: t, now: time.Now(), grace: o.Grace, entries: map[ID]*gcEntry{}, blobs: map[Digest]*gcBlob{}, result: &r}
		err := c.scan(ctx, s.damaged)
		if err == nil {
			err = c.collect(ctx, o.MaxBytes)
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return errors.Join(append(c.errs, err)...)
	})
	if err == nil {
		s.log.Info("cache: collected", "dir", s.dir.dir, "modules", r.Modules, "entries", r.Entries, "blobs", r.Blobs, "freed", r.Freed, "left", r.Left)
	}
	return r, err
}

// Clear removes all files of this format version from the directory except locks, and so also pinned
// modules and tuning records, which GC with MaxBytes 0 keeps. It does not change layers and other versions.
func (s *Store) Clear(ctx context.Context) error {
	return s.exclusive(ctx, func(t *tree) error {
		var errs []error
		// Roots first: after a kill between two directories, no file names a removed one.
		for _, dir := range []string{pinsDir, modulesDir, keysDir, blobsDir, tuningDir, tmpDir} {
			errs = append(errs, t.RemoveAll(dir))
		}
		return errors.Join(errs...)
	})
}

// exclusive runs f on the directory, if it exists. Nobody writes meanwhile, unless exclusive cannot get the lock: see
// noLock.
func (s *Store) exclusive(ctx context.Context, f func(t *tree) error) error {
	if s.dir.dir == "" {
		return ErrNoDir
	}
	t, err := s.dir.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &DamageError{File: s.dir.dir, Reason: fmt.Sprintf("cannot be opened: %v", reason(err))}
	}
	defer t.Close()
	unlock, err := t.lock(ctx, gcLock, false, false, &s.waits)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.noLock(err)
		unlock = func() {}
	}
	defer unlock()
	t.sweepTemp()
	t.sweepLocks()
	return f(t)
}

// sweepLocks removes lock files of keys and modules that nobody holds: their processes died.
func (t *tree) sweepLocks() {
	files, _ := t.list(locksDir) // a directory that cannot be listed keeps its files
	for _, e := range files {
		if _, err := ParseID(e.Name()); err != nil {
			continue
		}
		name := path.Join(locksDir, e.Name())
		if l, err := t.tryLock(name, false); err == nil && l != nil {
			t.Remove(name)
			l.Unlock()
		}
	}
}

type (
	// gcBlob is a blob with its number of entries.
	gcBlob struct {
		size int64
		time time.Time
		refs int
	}
	// gcEntry is an entry with its number of modules.
	gcEntry struct {
		id   ID
		blob Digest
		size int64 // of the manifest
		time time.Time
		refs int
	}
	gcModule struct {
		id              ID
		entries         []ModuleEntry
		manifest, graph int64 // bytes
		used            time.Time
		pinned          bool
	}
	collector struct {
		t       *tree
		now     time.Time
		grace   time.Duration
		modules []*gcModule
		entries map[ID]*gcEntry
		blobs   map[Digest]*gcBlob
		result  *GCResult
		errs    []error // files that could not be removed
	}
)

// scan reads the directory and removes damaged manifests. If a pinned module is damaged, or pins, entries or
// modules cannot be listed, it is unknown which files are in use, so GC removes nothing more.
func (c *collector) scan(ctx context.Context, damaged func(error)) error {
	pinned, err := c.t.pins()
	if err != nil {
		return err
	}
	if err := c.scanBlobs(ctx, damaged); err != nil {
		return err
	}
	if err := c.scanEntries(ctx, damaged); err != nil {
		return err
	}
	if err := c.scanTunings(ctx, damaged); err != nil {
		return err
	}
	return c.scanModules(ctx, pinned, damaged)
}

func (c *collector) scanBlobs(ctx context.Context, damaged func(error)) error {
	return c.t.eachHash(ctx, blobsDir, func(h [32]byte, name string) error {
		info, err := c.t.Lstat(name)
		if err != nil {
			return nil // removed meanwhile
		}
		c.blobs[h] = &gcBlob{size: info.Size(), time: info.ModTime()}
		c.result.Left += info.Size()
		return nil
	}, damaged)
}

func (c *collector) scanEntries(ctx context.Context, damaged func(error)) error {
	var unlisted error // the blobs of entries that cannot be listed seem unused
	err := c.t.eachHash(ctx, keysDir, func(h [32]byte, name string) error {
		info, err := c.t.Lstat(name)
		if err != nil {
			return nil
		}
		c.result.Left += info.Size()
		e, err := c.t.entry(h)
		if err == nil && !c.hasBlob(e) {
			err = c.t.damage(name, "its blob %s is missing or has not %d bytes", e.Blob, e.Size)
		}
		if err != nil {
			damaged(err)
			if c.remove(name, info.Size()) {
				c.result.Entries++
			}
			return nil
		}
		c.entries[h] = &gcEntry{id: h, blob: e.Blob, size: info.Size(), time: info.ModTime()}
		if b := c.blobs[e.Blob]; b != nil {
			b.refs++
		}
		return nil
	}, func(err error) { unlisted = errors.Join(unlisted, err) })
	if err == nil {
		err = unlisted
	}
	return err
}

// scanTunings counts tuning records, which stay.
func (c *collector) scanTunings(ctx context.Context, damaged func(error)) error {
	return c.t.eachHash(ctx, tuningDir, func(_ [32]byte, name string) error {
		if info, err := c.t.Lstat(name); err == nil {
			c.result.Left += info.Size()
		}
		return nil
	}, damaged)
}

// hasBlob reports whether the blob of an entry exists with its size. Without locks it may be
// newer than the list of blobs.
func (c *collector) hasBlob(e *Entry) bool {
	if b := c.blobs[e.Blob]; b != nil {
		return b.size == e.Size
	}
	info, err := c.t.Lstat(blobFile(e.Blob))
	return err == nil && info.Size() == e.Size
}

func (c *collector) scanModules(ctx context.Context, pinned map[ID]bool, damaged func(error)) error {
	dirs, err := c.t.list(modulesDir)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		id, err := ParseID(d.Name())
		if err != nil {
			continue
		}
		g := &gcModule{id: id, pinned: pinned[id]}
		if info, err := c.t.Lstat(path.Join(moduleDir(id), manifestFile)); err == nil {
			g.manifest, g.used = info.Size(), info.ModTime()
		}
		if info, err := c.t.Lstat(path.Join(moduleDir(id), graphFile)); err == nil {
			g.graph = info.Size()
		}
		c.result.Left += g.manifest + g.graph
		m, err := c.t.module(id)
		if err != nil {
			if g.pinned && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("a pinned module is damaged, and its entries are unknown; compile it again, or remove its pin, the file %s: %w", c.t.file(pinFile(id)), err)
			}
			if !errors.Is(err, fs.ErrNotExist) {
				damaged(err)
			}
			c.removeModule(g)
			continue
		}
		g.entries = m.Entries
		c.modules = append(c.modules, g)
		for _, e := range m.Entries {
			if k := c.entries[e.ID]; k != nil {
				k.refs++
			}
		}
	}
	return nil
}

// collect removes blobs without an entry; then entries without a module, and then modules, until the
// rest is within the limit. The error is that of ctx.
func (c *collector) collect(ctx context.Context, limit int64) error {
	for d, b := range c.blobs {
		if b.refs == 0 && !c.young(b.time) {
			c.removeBlob(d)
		}
	}
	var loose []*gcEntry
	for _, e := range c.entries {
		if e.refs == 0 && !c.young(e.time) {
			loose = append(loose, e)
		}
	}
	slices.SortFunc(loose, func(a, b *gcEntry) int { return cmp.Or(a.time.Compare(b.time), bytes.Compare(a.id[:], b.id[:])) })
	for _, e := range loose {
		if c.result.Left <= limit || ctx.Err() != nil {
			return ctx.Err()
		}
		c.removeEntry(e)
	}
	slices.SortFunc(c.modules, func(a, b *gcModule) int { return cmp.Or(a.used.Compare(b.used), bytes.Compare(a.id[:], b.id[:])) })
	for _, m := range c.modules {
		if c.result.Left <= limit || ctx.Err() != nil {
			return ctx.Err()
		}
		// The root first: a kill in between leaves entries without a module.
		if m.pinned || !c.removeModule(m) {
			continue
		}
		for _, e := range m.entries {
			if k := c.entries[e.ID]; k != nil {
				if k.refs--; k.refs == 0 {
					c.removeEntry(k)
				}
			}
		}
	}
	return nil
}

// young reports whether a file was written within Grace. A wrong clock may have dated it into the future.
func (c *collector) young(t time.Time) bool { return c.now.Sub(t).Abs() < c.grace }

// removeModule removes a module, and reports whether its manifest is gone.
func (c *collector) removeModule(m *gcModule) bool {
	dir := moduleDir(m.id)
	if !c.remove(path.Join(dir, manifestFile), m.manifest) {
		return false
	}
	if m.manifest > 0 {
		c.result.Modules++
	}
	c.remove(path.Join(dir, graphFile), m.graph)
	c.t.Remove(dir) // fails if the directory has other files, which is fine
	return true
}

func (c *collector) removeEntry(e *gcEntry) {
	delete(c.entries, e.id)
	if !c.remove(keyFile(e.id), e.size) {
		return
	}
	c.result.Entries++
	if b := c.blobs[e.blob]; b != nil {
		if b.refs--; b.refs == 0 {
			c.removeBlob(e.blob)
		}
	}
}

func (c *collector) removeBlob(d Digest) {
	size := c.blobs[d].size
	delete(c.blobs, d)
	if c.remove(blobFile(d), size) {
		c.result.Blobs++
	}
}

// remove removes a file of that size, and reports whether it is gone. A failure is an error of the
// collection, which continues.
func (c *collector) remove(name string, size int64) bool {
	if err := c.t.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.errs = append(c.errs, fmt.Errorf("cache: %s cannot be removed: %w", c.t.file(name), reason(err)))
		return false
	}
	c.result.Freed += size
	c.result.Left -= size
	return true
}
