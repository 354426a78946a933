package cache

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// VerifyResult is what Verify read.
type VerifyResult struct {
	Modules, Entries, Blobs, Tunings int
	Bytes                            int64   // of all files that were read
	Problems                         []error // *DamageErrors, in the order of directories and files
}

// Verify reads every file of the layers and the directory and checks it:
// manifests against their checksums, keys and ids, blobs and graphs against
// their digests, tuning records, and that everything which is named is there. It
// writes nothing. The error is the cause of ctx's end.
func (s *Store) Verify(ctx context.Context) (*VerifyResult, error) {
	v := &VerifyResult{}
	problem := func(err error) { v.Problems = append(v.Problems, err) }
	entries := map[ID]bool{} // whole, in any root
	var modules []*moduleFile
	for _, d := range s.roots {
		t, err := d.open()
		if err != nil {
			if d.layer || !errors.Is(err, fs.ErrNotExist) {
				problem(&DamageError{File: d.dir, Reason: fmt.Sprintf("cannot be opened: %v", reason(err))})
			}
			continue
		}
		err = v.verifyTree(ctx, t, problem, entries, func(m *moduleFile) { modules = append(modules, m) })
		t.Close()
		if err != nil {
			return nil, context.Cause(ctx)
		}
	}
	for _, m := range modules {
		for _, e := range m.Entries {
			if !entries[e.ID] {
				problem(&DamageError{File: m.file, Reason: fmt.Sprintf("no directory has a whole entry %s, which it lists", e.ID)})
			}
		}
	}
	return v, nil
}

// verifyTree checks one directory, adds its whole entries and reports its
// modules. The error is that of ctx.
func (v *VerifyResult) verifyTree(ctx context.Context, t *tree, problem func(error), entries map[ID]bool, module func(*moduleFile)) error {
	blobs := map[Digest]int64{} // whole
	buf := make([]byte, 128<<10)
	err := t.eachHash(ctx, blobsDir, func(h [32]byte, name string) error {
		v.Blobs++
		size, got, err := t.sum(name, buf)
		v.Bytes += size
		switch {
		case err != nil:
			problem(err)
		case got != h:
			problem(t.damage(name, "its contents have the digest %s", got))
		default:
			blobs[h] = size
		}
		return ctx.Err()
	}, problem)
	if err != nil {
		return err
	}
	err = t.eachHash(ctx, keysDir, func(h [32]byte, name string) error {
		v.Entries++
		e, err := t.entry(h)
		if err != nil {
			problem(err)
			return nil
		}
		v.Bytes += int64(len(e.encode()))
		switch size, whole := blobs[e.Blob]; {
		case !whole:
			problem(t.damage(name, "its blob %s is missing or damaged", e.Blob))
		case size != e.Size:
			problem(t.damage(name, "its blob %s has %d bytes, not %d", e.Blob, size, e.Size))
		default:
			entries[h] = true
		}
		return nil
	}, problem)
	if err != nil {
		return err
	}
	err = t.eachHash(ctx, tuningDir, func(h [32]byte, _ string) error {
		v.Tunings++
		r, err := t.tuning(h)
		if err != nil {
			problem(err)
			return nil
		}
		v.Bytes += int64(len(r.encode()))
		return nil
	}, problem)
	if err != nil {
		return err
	}
	return t.eachModule(ctx, func(m *moduleFile) {
		v.Modules++
		v.Bytes += m.size
		graph, err := t.graph(m)
		if err != nil {
			problem(err)
		}
		v.Bytes += int64(len(graph))
		module(m)
	}, func(err error) {
		v.Modules++
		problem(err)
	})
}

// sum hashes a file in pieces of buf. The error is a *DamageError.
func (t *tree) sum(name string, buf []byte) (size int64, d Digest, err error) {
	f, _, err := t.openRegular(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, d, t.damage(name, "it went while it was read")
	}
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
