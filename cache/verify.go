package cache

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// VerifyResult counts checked files and lists problems.
type VerifyResult struct {
	Modules, Entries, Blobs, Tunings int
	Bytes                            int64   // of blobs, and of undamaged manifests, graphs and tuning records
	Problems                         []error // *DamageErrors, in the order of directories and files; last, entries that modules list and that are missing
}

// Verify reads and checks the layers and the directory: manifests and tuning records against their
// checksums and ids, blobs and graphs against their digests, and that every file and entry that a
// manifest names exists. It writes nothing. Concurrent writes and removals are no problem: Verify
// looks for missing files again. The error is the cause of ctx's end.
func (s *Store) Verify(ctx context.Context) (*VerifyResult, error) {
	v := &verifier{entries: map[ID]bool{}}
	defer func() {
		for _, t := range v.trees {
			t.Close()
		}
	}()
	for _, d := range s.roots {
		t, err := d.open()
		if err != nil {
			if d.layer || !errors.Is(err, fs.ErrNotExist) {
				v.problem(&DamageError{File: d.dir, Reason: fmt.Sprintf("cannot be opened: %v", reason(err))})
			}
			continue
		}
		v.trees = append(v.trees, t)
		if err := v.tree(ctx, t); err != nil {
			return nil, context.Cause(ctx)
		}
	}
	for _, m := range v.modules {
		for _, e := range m.Entries {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if v.entries[e.ID] || v.appeared(e.ID) {
				continue
			}
			if _, err := m.tree.module(m.id); errors.Is(err, fs.ErrNotExist) {
				break // collected meanwhile, with its entries
			}
			v.problem(&DamageError{File: m.file, Reason: fmt.Sprintf("no directory has a whole entry %s, which it lists", e.ID)})
		}
	}
	return &v.VerifyResult, nil
}

// verifier is one run of Verify.
type verifier struct {
	VerifyResult
	trees   []*tree
	entries map[ID]bool // whole ones, in any tree
	modules []verifiedModule
}

type verifiedModule struct {
	*moduleFile
	tree *tree
}

func (v *verifier) problem(err error) { v.Problems = append(v.Problems, err) }

// found reports a problem, unless the file was removed after it was listed.
func (v *verifier) found(err error) {
	if !errors.Is(err, fs.ErrNotExist) {
		v.problem(err)
	}
}

// appeared reports whether an entry was written after its directory was listed.
func (v *verifier) appeared(id ID) bool {
	for _, t := range v.trees {
		if _, _, err := t.get(id); err == nil {
			v.entries[id] = true
			return true
		}
	}
	return false
}

// tree checks one directory, adds its whole entries and its modules. The error is
// that of ctx.
func (v *verifier) tree(ctx context.Context, t *tree) error {
	blobs := map[Digest]int64{} // whole blobs
	buf := make([]byte, 128<<10)
	err := t.eachHash(ctx, blobsDir, func(h [32]byte, name string) error {
		size, got, err := t.sum(name, buf)
		v.Bytes += size
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return ctx.Err() // an entry that names the blob reports it
		case err != nil:
			v.problem(err)
		case got != h:
			v.problem(t.damage(name, "its contents have the digest %s", got))
		default:
			blobs[h] = size
		}
		v.Blobs++
		return ctx.Err()
	}, v.problem)
	if err != nil {
		return err
	}
	err = t.eachHash(ctx, keysDir, func(h [32]byte, name string) error {
		v.Entries++
		e, err := t.entry(h)
		if err != nil {
			v.found(err)
			return nil
		}
		v.Bytes += int64(len(e.encode()))
		size, whole := blobs[e.Blob]
		if !whole || size != e.Size {
			// The blob may be new, or the entry removed or changed, since the listing.
			switch _, _, err := t.get(h); {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err == nil:
			case !whole:
				v.problem(t.damage(name, "its blob %s is missing or damaged", e.Blob))
				return nil
			default:
				v.problem(t.damage(name, "its blob %s has %d bytes, not %d", e.Blob, size, e.Size))
				return nil
			}
		}
		v.entries[h] = true
		return nil
	}, v.problem)
	if err != nil {
		return err
	}
	err = t.eachHash(ctx, tuningDir, func(h [32]byte, _ string) error {
		v.Tunings++
		r, err := t.tuning(h)
		if err != nil {
			v.found(err)
			return nil
		}
		v.Bytes += int64(len(r.encode()))
		return nil
	}, v.problem)
	if err != nil {
		return err
	}
	return t.eachModule(ctx, func(m *moduleFile) {
		v.Modules++
		m, graph, err := t.whole(m)
		if err != nil {
			v.found(err)
		}
		v.Bytes += m.size + int64(len(graph))
		v.modules = append(v.modules, verifiedModule{m, t})
	}, func(err error) {
		v.Modules++
		v.problem(err)
	})
}

// sum hashes a file through buf. The error matches fs.ErrNotExist if the file does not exist, and
// is a *DamageError otherwise.
func (t *tree) sum(name string, buf []byte) (size int64, d Digest, err error) {
	f, _, err := t.openRegular(name)
	if err != nil {
		return 0, d, err
	}
	defer f.Close()
	for h := sha256.New(); ; {
		n, err := f.Read(buf)
		h.Write(buf[:n])
		size += int64(n)
		switch {
		case err == io.EOF:
			return size, Digest(h.Sum(nil)), nil
		case err != nil:
			return size, d, t.damage(name, "cannot be read: %v", reason(err))
		}
	}
}
