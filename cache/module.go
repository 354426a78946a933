package cache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"pwc/internal/termsafe"
)

// Module is a root: the entries of one model for one target. Listing, pinning and collection work
// on modules.
type Module struct {
	Name    string            // of the module, for display; not an absolute path, and without backslashes
	Hash    [sha256.Size]byte // ir.Module.Hash
	Target  string            // of the keys of its entries
	Entries []ModuleEntry     // by id, without repetition
	Graph   []byte            // the split module as text, stored as computation_graph.ir
	Created time.Time         // in whole seconds, UTC; PutModule replaces a zero time by the present time

	// Digest and bytes of the graph. A parsed manifest has these, but not Graph.
	graphDigest Digest
	graphSize   int64
}

// ModuleEntry is one entry of a module.
type ModuleEntry struct {
	ID   ID    // of its key
	Size int64 // bytes of its blob
}

// maxEntries bounds the entries of one module.
const maxEntries = 100_000

const (
	moduleHeader = "pwc cache module 1"
	manifestFile = "manifest"
	graphFile    = "computation_graph.ir"
)

func moduleDir(id ID) string { return path.Join(modulesDir, id.String()) }

// ID returns the identity of the module: the SHA-256 of its name, hash, target and the ids of its
// entries, in any order. The graph is not part of it, because origins in it may change while all
// else stays.
func (m *Module) ID() ID {
	var w textWriter
	w.line("pwc cache module id 1")
	w.line("name", strconv.Quote(m.Name))
	w.line("hash", Digest(m.Hash).String())
	w.line("target", strconv.Quote(m.Target))
	for _, e := range sortedEntries(m.Entries) {
		w.line("entry", e.ID.String())
	}
	return sha256.Sum256(w.buf)
}

// sortedEntries returns the entries by id, without repetition.
func sortedEntries(list []ModuleEntry) []ModuleEntry {
	inOrder := true
	for i := 1; i < len(list) && inOrder; i++ {
		inOrder = bytes.Compare(list[i-1].ID[:], list[i].ID[:]) < 0
	}
	if inOrder {
		return list
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b ModuleEntry) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return slices.CompactFunc(list, func(a, b ModuleEntry) bool { return a.ID == b.ID })
}

func (m *Module) validate() error {
	errs := []error{checkString("module name", m.Name), checkString("target", m.Target),
		checkSize("graph", m.graphSize), checkTime(m.Created)}
	if m.Name == "" || path.IsAbs(m.Name) || strings.Contains(m.Name, `\`) {
		errs = append(errs, fmt.Errorf("cache: module name %q is empty, absolute, or has a backslash", termsafe.Clip(m.Name, 80)))
	}
	if len(m.Entries) > maxEntries {
		errs = append(errs, fmt.Errorf("cache: %d entries, above %d", len(m.Entries), maxEntries))
	}
	for i, e := range m.Entries {
		if i > 0 && bytes.Compare(m.Entries[i-1].ID[:], e.ID[:]) >= 0 {
			errs = append(errs, fmt.Errorf("cache: entry %s is out of order", e.ID))
		}
		errs = append(errs, checkSize("blob", e.Size))
	}
	return errors.Join(errs...)
}

func (m *Module) encode() []byte {
	var w textWriter
	w.line(moduleHeader)
	w.line("name", strconv.Quote(m.Name))
	w.line("hash", Digest(m.Hash).String())
	w.line("target", strconv.Quote(m.Target))
	for _, e := range m.Entries {
		w.line("entry", e.ID.String(), strconv.FormatInt(e.Size, 10))
	}
	w.line("graph", m.graphDigest.String(), strconv.FormatInt(m.graphSize, 10))
	w.line("created", m.Created.UTC().Format(timeLayout))
	return w.seal()
}

// parseModule parses a manifest. The error is only the reason.
func parseModule(data []byte) (*Module, error) {
	m := &Module{}
	err := parseText(data, moduleHeader, func(l *textLine) bool {
		switch l.word {
		case "name":
			m.Name = l.quoted()
		case "hash":
			m.Hash = l.digest()
		case "target":
			m.Target = l.quoted()
		case "entry":
			m.Entries = append(m.Entries, ModuleEntry{l.id(), l.int()})
		case "graph":
			m.graphDigest, m.graphSize = l.digest(), l.int()
		case "created":
			m.Created = l.time()
		default:
			return false
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if err := m.validate(); err != nil {
		return nil, err
	}
	if !bytes.Equal(m.encode(), data) {
		return nil, errors.New("not in the canonical form")
	}
	return m, nil
}

// moduleFile is a module read from a directory.
type moduleFile struct {
	*Module
	id   ID
	file string // its manifest
	size int64  // of the manifest
	used time.Time
}

// module reads and checks the manifest of a module.
func (t *tree) module(id ID) (*moduleFile, error) {
	name := path.Join(moduleDir(id), manifestFile)
	data, info, err := t.readInfo(name, maxManifest)
	if err != nil {
		return nil, err
	}
	m, err := parseModule(data)
	if err != nil {
		return nil, t.damage(name, "%v", err)
	}
	if got := m.ID(); got != id {
		return nil, t.damage(name, "it is the manifest of module %s", got)
	}
	return &moduleFile{Module: m, id: id, file: t.file(name), size: int64(len(data)), used: info.ModTime()}, nil
}

// graph reads and checks the graph of a module.
func (t *tree) graph(m *moduleFile) ([]byte, error) {
	name := path.Join(moduleDir(m.id), graphFile)
	data, err := t.read(name, MaxBlob)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, t.damage(name, "missing, though the manifest of the model names it")
	case err != nil:
		return nil, err
	case int64(len(data)) != m.graphSize || DigestOf(data) != m.graphDigest:
		return nil, t.damage(name, "its contents have the digest %s, the manifest of the model names %s", DigestOf(data), m.graphDigest)
	}
	return data, nil
}

// A writer replaces the graph before the manifest, so between the two the graph belongs to the next
// manifest: readers try again.
const (
	graphTries = 20
	graphPause = 10 * time.Millisecond
)

// whole returns a module with its graph. If another process writes it meanwhile, it returns the
// new state of m. If the error matches fs.ErrNotExist, the module was removed.
func (t *tree) whole(m *moduleFile) (*moduleFile, []byte, error) {
	for try := 1; ; try++ {
		graph, err := t.graph(m)
		if err == nil {
			return m, graph, nil
		}
		if try == graphTries {
			return m, nil, err
		}
		time.Sleep(graphPause)
		now, merr := t.module(m.id)
		switch {
		case errors.Is(merr, fs.ErrNotExist):
			return m, nil, merr
		case merr != nil:
			return m, nil, err
		}
		m = now
	}
}

// PutModule records that a module was built or loaded, and sorts its entries. If a layer has the same
// entries and graph, it writes nothing. If the directory has them, it sets only the manifest's
// modification time, at most once in the life of the store: collection uses that time. Otherwise it
// writes a new module, changed sizes, a changed graph, or a repair.
//
// An error is a *NotCachedError, already logged, unless m is invalid. ctx bounds the waits for a
// running collection and for another writer of the module.
func (s *Store) PutModule(ctx context.Context, m Module) error {
	m.Entries = sortedEntries(m.Entries)
	m.graphDigest, m.graphSize = DigestOf(m.Graph), int64(len(m.Graph))
	if m.Created.IsZero() {
		m.Created = time.Now()
	}
	if err := m.validate(); err != nil {
		return err
	}
	id := m.ID()
	if s.hasModule(id, &m) {
		return nil
	}
	if err := s.putModule(ctx, id, &m); err != nil {
		return s.notCached("module "+strconv.Quote(m.Name), err)
	}
	return nil
}

// hasModule reports whether a root has the module with its graph, and sets its time in the
// directory. Apparent damage may be half of a running write: putModule checks again.
func (s *Store) hasModule(id ID, m *Module) bool {
	for _, d := range s.roots {
		t := s.openRoot(d)
		if t == nil {
			continue
		}
		has, err := t.hasModule(id, m)
		if has && !d.layer {
			s.stamp(t, id)
		}
		t.Close()
		if err != nil && d.layer {
			s.damaged(err)
		}
		if has {
			return true
		}
	}
	return false
}

// hasModule reports whether t has m whole. The error is a *DamageError.
func (t *tree) hasModule(id ID, m *Module) (bool, error) {
	old, err := t.module(id)
	if err == nil {
		_, err = t.graph(old)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && old.graphDigest == m.graphDigest && slices.Equal(old.Entries, m.Entries), err
}

// stamp sets the modification time of a manifest, once. A failure, as in a read-only directory,
// is no fault.
func (s *Store) stamp(t *tree, id ID) {
	s.mu.Lock()
	done := s.stamped[id]
	s.stamped[id] = true
	s.mu.Unlock()
	if done {
		return
	}
	now := time.Now()
	if err := t.Chtimes(path.Join(moduleDir(id), manifestFile), now, now); err != nil {
		s.log.Debug("cache: the use of a module was not recorded", "module", id, "reason", err)
	}
}

// putModule writes the graph and then the manifest that names it. The lock keeps two writers
// apart, so under it damage is damage.
func (s *Store) putModule(ctx context.Context, id ID, m *Module) error {
	t, release, err := s.openWrite(ctx)
	if err != nil {
		return err
	}
	defer release()
	unlock, err := s.lockID(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	switch has, err := t.hasModule(id, m); {
	case has:
		return nil // another process wrote it meanwhile
	case err != nil:
		s.damaged(err)
	}
	if err := t.write(path.Join(moduleDir(id), graphFile), m.Graph); err != nil {
		return err
	}
	return t.write(path.Join(moduleDir(id), manifestFile), m.encode())
}

// eachModule calls visit for every module with a manifest, and damaged for damaged ones. The
// error is that of ctx.
func (t *tree) eachModule(ctx context.Context, visit func(*moduleFile), damaged func(error)) error {
	dirs, err := t.list(modulesDir)
	if err != nil {
		damaged(err)
	}
	for _, e := range dirs {
		if err := ctx.Err(); err != nil {
			return err
		}
		id, err := ParseID(e.Name())
		if err != nil {
			continue
		}
		switch m, err := t.module(id); {
		case err == nil:
			visit(m)
		case !errors.Is(err, fs.ErrNotExist):
			damaged(err)
		}
	}
	return nil
}
