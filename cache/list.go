package cache

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"pwc/internal/termsafe"
)

// ModuleInfo is a module in a listing.
type ModuleInfo struct {
	ID       ID
	Name     string
	Target   string
	Hash     [sha256.Size]byte
	Entries  int
	Bytes    int64     // of the blobs, when the module was recorded
	Created  time.Time // when it was recorded
	LastUsed time.Time // when it was last recorded or loaded; in a layer: when it was written
	Pinned   bool      // in the directory; layers are not collected
	Dir      string    // where it is
	Layer    bool      // Dir is a read-only layer
}

// Modules lists the modules of all layers and the directory: by name, then by last use, newest
// first. It logs damaged manifests and leaves them out. The error is the cause of ctx's end.
func (s *Store) Modules(ctx context.Context) ([]ModuleInfo, error) {
	var list []ModuleInfo
	for _, d := range s.roots {
		t := s.openRoot(d)
		if t == nil {
			continue
		}
		var pinned map[ID]bool
		if !d.layer {
			var err error
			if pinned, err = t.pins(); err != nil {
				s.damaged(err)
			}
		}
		err := t.eachModule(ctx, func(m *moduleFile) {
			info := ModuleInfo{ID: m.id, Name: m.Name, Target: m.Target, Hash: m.Hash, Entries: len(m.Entries),
				Created: m.Created, LastUsed: m.used, Pinned: pinned[m.id], Dir: d.dir, Layer: d.layer}
			for _, e := range m.Entries {
				info.Bytes += e.Size
			}
			list = append(list, info)
		}, s.damaged)
		t.Close()
		if err != nil {
			return nil, context.Cause(ctx)
		}
	}
	slices.SortStableFunc(list, func(a, b ModuleInfo) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), b.LastUsed.Compare(a.LastUsed), bytes.Compare(a.ID[:], b.ID[:]))
	})
	return list, nil
}

// Find returns the module of ref: its name, or at least four first digits of its id. The error
// matches ErrNotFound, lists the ids that ref could mean, or is the cause of ctx's end. If several
// directories have the module, Find returns that of the first.
func (s *Store) Find(ctx context.Context, ref string) (ModuleInfo, error) {
	list, err := s.Modules(ctx)
	if err != nil {
		return ModuleInfo{}, err
	}
	return find(list, s.roots, ref)
}

// find is Find among the modules of some roots.
func find(list []ModuleInfo, roots []root, ref string) (ModuleInfo, error) {
	var found []ModuleInfo
	for _, d := range roots {
		for _, m := range list {
			if m.Dir != d.dir || m.Name != ref && (len(ref) < 4 || !strings.HasPrefix(m.ID.String(), ref)) {
				continue
			}
			if !slices.ContainsFunc(found, func(f ModuleInfo) bool { return f.ID == m.ID }) {
				found = append(found, m)
			}
		}
	}
	switch len(found) {
	case 0:
		return ModuleInfo{}, fmt.Errorf("%w: %q", ErrNotFound, termsafe.Clip(ref, 80))
	case 1:
		return found[0], nil
	}
	ids := make([]string, len(found))
	for i, m := range found {
		ids[i] = m.ID.String()[:12] + " for " + m.Target
	}
	return ModuleInfo{}, fmt.Errorf("cache: %q means several modules: %s", termsafe.Clip(ref, 80), strings.Join(ids, ", "))
}

// ModuleDetail describes a module.
type ModuleDetail struct {
	ModuleInfo
	Graph   []byte        // computation_graph.ir; nil if it is damaged, which is logged
	Keys    []ModuleEntry // by id
	Found   []*Entry      // the manifest of each; nil if no directory has it whole
	Missing int           // nils in Found
}

// Show returns the details of the module of ref (see Find). If the module or its directory is removed meanwhile, the
// error matches ErrNotFound.
func (s *Store) Show(ctx context.Context, ref string) (*ModuleDetail, error) {
	info, err := s.Find(ctx, ref)
	if err != nil {
		return nil, err
	}
	var trees []*tree
	defer func() {
		for _, t := range trees {
			t.Close()
		}
	}()
	d := &ModuleDetail{ModuleInfo: info}
	removed := true
	for _, r := range s.roots {
		t := s.openRoot(r)
		if t == nil {
			continue
		}
		trees = append(trees, t)
		if r.dir != info.Dir {
			continue
		}
		m, err := t.module(info.ID)
		if err == nil {
			m, d.Graph, err = t.whole(m)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // collected
			continue
		case err != nil && m == nil:
			return nil, err
		case err != nil:
			s.damaged(err)
		}
		d.Keys, removed = m.Entries, false
	}
	if removed {
		return nil, fmt.Errorf("%w: %q was removed from %s meanwhile", ErrNotFound, termsafe.Clip(ref, 80), info.Dir)
	}
	for _, k := range d.Keys {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		e := s.findEntry(trees, k.ID)
		if e == nil {
			d.Missing++
		}
		d.Found = append(d.Found, e)
	}
	return d, nil
}

// findEntry returns the first whole manifest of a key, or nil.
func (s *Store) findEntry(trees []*tree, id ID) *Entry {
	for _, t := range trees {
		e, err := t.entry(id)
		if err == nil {
			return e
		}
		if !errors.Is(err, fs.ErrNotExist) {
			s.damaged(err)
		}
	}
	return nil
}

// Pin protects a module of the directory, and all that it uses, from collection. For a module
// that only a layer has, the error matches ErrNotFound: layers are not collected.
func (s *Store) Pin(ctx context.Context, ref string) (ModuleInfo, error) {
	info, err := s.setPin(ctx, ref, func(t *tree, id ID, name string) error {
		// A collection may have removed the module since it was found.
		if _, err := t.module(id); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: %q was collected", ErrNotFound, termsafe.Clip(ref, 80))
		}
		return t.write(name, nil)
	})
	info.Pinned = err == nil
	return info, err
}

// Unpin undoes Pin.
func (s *Store) Unpin(ctx context.Context, ref string) (ModuleInfo, error) {
	info, err := s.setPin(ctx, ref, func(t *tree, _ ID, name string) error {
		if err := t.Remove(name); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	info.Pinned = info.Pinned && err != nil
	return info, err
}

func (s *Store) setPin(ctx context.Context, ref string, set func(t *tree, id ID, name string) error) (ModuleInfo, error) {
	list, err := s.Modules(ctx)
	if err != nil {
		return ModuleInfo{}, err
	}
	list = slices.DeleteFunc(list, func(m ModuleInfo) bool { return m.Layer })
	info, err := find(list, []root{s.dir}, ref)
	if err != nil {
		return info, err
	}
	t, release, err := s.openWrite(ctx)
	if err != nil {
		return info, err
	}
	defer release()
	return info, set(t, info.ID, pinFile(info.ID))
}

// pins returns the pinned modules.
func (t *tree) pins() (map[ID]bool, error) {
	files, err := t.list(pinsDir)
	if err != nil {
		return nil, err
	}
	pinned := make(map[ID]bool, len(files))
	for _, e := range files {
		if id, err := ParseID(e.Name()); err == nil {
			pinned[id] = true
		}
	}
	return pinned, nil
}
