package oci

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"pwc/cache"
	"pwc/internal/openfile"
)

// defaultTag is the tag of an artifact in a layout, as elsewhere in the
// ecosystem.
const defaultTag = "latest"

// Export writes modules of a store as an OCI image layout: those that refs
// name (see [cache.Store.Find]), or all. A name that ends in ".tar" is a tar
// file of the layout, replaced as a whole; any other is a directory, to which
// the artifact is added if it is a layout already. The same modules give the
// same digest, and the same tar.
func Export(ctx context.Context, s *cache.Store, refs []string, name string, o Options) (*Sent, error) {
	a, err := pack(ctx, s, refs, o.MinDriver)
	if err != nil {
		return nil, err
	}
	sent := a.sent()
	tag := cmp.Or(o.Tag, defaultTag)
	progress := &tracker{observe: o.Observer, at: Progress{Total: sent.Blobs, TotalBytes: sent.Bytes}}
	isTar := strings.HasSuffix(name, ".tar")
	signed, err := o.sign(ctx, sent, name, isTar)
	switch {
	case err != nil:
	case isTar:
		err = exportTar(ctx, signed, a, name, tag, sent, progress)
	default:
		// The signature goes first: whoever finds the artifact finds it signed.
		if signed != nil {
			err = exportDir(ctx, signed, name, signatureTag(sent.Digest), &Sent{}, &tracker{})
		}
		if err == nil {
			err = exportDir(ctx, a, name, tag, sent, progress)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("export to %s: %w", name, cause(ctx, err))
	}
	return sent, nil
}

// sign makes the artifact of the signatures of what is exported; nil if none is asked
// for, or the directory has it.
func (o *Options) sign(ctx context.Context, sent *Sent, name string, isTar bool) (*artifact, error) {
	if o.Signer == nil {
		return nil, nil
	}
	var have []signature
	if _, err := os.Stat(filepath.Join(name, ocispec.ImageIndexFile)); !isTar && err == nil {
		l, err := openLayout(name, "")
		if err == nil {
			have, err = signatures(ctx, l, sent.Digest)
			l.close()
		}
		if err != nil {
			return nil, fmt.Errorf("signatures: %w", err)
		}
	}
	sent.SignedBy = o.Signer.Public().ID()
	return sign(o.Signer, sent.Digest, "layout", have)
}

// exportDir adds the artifact to the layout in a directory. A blob that is there and
// damaged is written again. The index is written last, so whoever reads meanwhile, or
// after an export that broke off, finds what was there before.
func exportDir(ctx context.Context, a *artifact, dir, tag string, sent *Sent, progress *tracker) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root, err := openfile.Dir(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := startLayout(root); err != nil {
		return err
	}
	files := dirFiles{root}
	for _, p := range append(slices.Clone(a.parts), a.manifest) {
		if err := ctx.Err(); err != nil {
			return err
		}
		there := files.whole(p.Descriptor)
		if !there {
			data, err := p.load(ctx)
			if err != nil {
				return err
			}
			if err := replaceFile(root, blobName(p.Descriptor), func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
				return err
			}
		}
		if p.Digest == a.manifest.Digest {
			break
		}
		if !there {
			sent.Written++
			sent.WrittenBytes += p.Size
		}
		progress.done(p.Size)
	}
	return addToIndex(ctx, root, a.manifest.Descriptor, tag)
}

// startLayout writes the file that says what the directory is, if it is not there.
func startLayout(root *os.Root) error {
	l := &layout{files: dirFiles{root}}
	err := l.checkVersion()
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}
	aside, err := writeAside(root, func(w io.Writer) error { _, err := w.Write(text); return err })
	if err != nil {
		return err
	}
	// A link replaces nothing: another export may have begun too, and hold the lock on
	// the file that it wrote.
	switch err = root.Link(aside, ocispec.ImageLayoutFile); {
	case err == nil, errors.Is(err, fs.ErrExist):
		return root.Remove(aside)
	}
	return rename(root, aside, ocispec.ImageLayoutFile) // there are no links
}

// addToIndex lists a manifest under a tag, which whatever had it loses. Of several
// exports at once each adds to what the one before it left.
func addToIndex(ctx context.Context, root *os.Root, d ocispec.Descriptor, tag string) error {
	unlock, err := lockLayout(ctx, root)
	if err != nil {
		return err
	}
	defer unlock()
	l := &layout{files: dirFiles{root}}
	index := ocispec.Index{}
	if err := l.readJSON(ocispec.ImageIndexFile, &index); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	index.Versioned, index.MediaType = specs.Versioned{SchemaVersion: 2}, ocispec.MediaTypeImageIndex
	for i := range index.Manifests {
		if m := &index.Manifests[i]; m.Annotations[ocispec.AnnotationRefName] == tag {
			delete(m.Annotations, ocispec.AnnotationRefName)
		}
	}
	// What lost its tag stays, by its digest, once.
	named := map[digest.Digest]bool{d.Digest: true}
	for _, m := range index.Manifests {
		if m.Annotations[ocispec.AnnotationRefName] != "" {
			named[m.Digest] = true
		}
	}
	index.Manifests = slices.DeleteFunc(index.Manifests, func(m ocispec.Descriptor) bool {
		again := m.Annotations[ocispec.AnnotationRefName] == "" && named[m.Digest]
		named[m.Digest] = true
		return again
	})
	d.Annotations = map[string]string{ocispec.AnnotationRefName: tag}
	index.Manifests = append(index.Manifests, d)
	return writeJSON(root, ocispec.ImageIndexFile, index)
}

// lockPause is the time between two tries for a lock that somebody else holds.
// lockPatience is how long an export waits: the index is changed in milliseconds, and
// whoever can read the layout can hold the lock for ever.
const (
	lockPause    = 10 * time.Millisecond
	lockPatience = 10 * time.Second
)

// lockLayout waits until no other export changes the index. The lock is on the file
// that no export replaces. Where files cannot be locked, or the lock is not given back
// in time, there is none.
func lockLayout(ctx context.Context, root *os.Root) (unlock func(), err error) {
	l := flock.New(filepath.Join(root.Name(), ocispec.ImageLayoutFile), flock.SetFlag(os.O_RDONLY))
	waiting, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	locked, err := l.TryLockContext(waiting, lockPause)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil || !locked {
		return func() {}, nil
	}
	return func() { l.Unlock() }, nil
}

func writeJSON(root *os.Root, name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return replaceFile(root, name, func(w io.Writer) error { _, err := w.Write(text); return err })
}

// replaceFile writes a file aside, syncs it and renames it: what was under the name is
// replaced as a whole or not at all.
func replaceFile(root *os.Root, name string, write func(w io.Writer) error) error {
	if err := root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return err
	}
	aside, err := writeAside(root, write)
	if err != nil {
		return err
	}
	return rename(root, aside, name)
}

// rename gives a file that was written aside its name, or removes it.
func rename(root *os.Root, aside, name string) error {
	err := root.Rename(aside, name)
	if err != nil {
		root.Remove(aside)
	}
	return err
}

// writeAside writes a file under a name of its own and syncs it; nothing is left of one
// that cannot be written to its end.
func writeAside(root *os.Root, write func(w io.Writer) error) (name string, err error) {
	name = ".pwc-" + rand.Text()
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return "", err
	}
	err = write(f)
	if err == nil {
		// File systems that cannot sync say so by one of these.
		if err = f.Sync(); errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
			err = nil
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		root.Remove(name)
	}
	return name, err
}

// exportTar writes the layout as a tar. signed may be nil.
func exportTar(ctx context.Context, signed, a *artifact, name, tag string, sent *Sent, progress *tracker) error {
	root, err := openfile.Dir(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer root.Close()
	return replaceFile(root, filepath.Base(name), func(w io.Writer) error { return writeTar(ctx, signed, a, w, tag, sent, progress) })
}

// writeTar writes the members in a fixed order and without times.
func writeTar(ctx context.Context, signed, a *artifact, w io.Writer, tag string, sent *Sent, progress *tracker) error {
	t := tar.NewWriter(w)
	file := func(name string, data []byte) error {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		_, err := t.Write(data)
		return err
	}
	version, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}
	tagged := func(d ocispec.Descriptor, tag string) ocispec.Descriptor {
		d.Annotations = map[string]string{ocispec.AnnotationRefName: tag}
		return d
	}
	listed := []ocispec.Descriptor{tagged(a.manifest.Descriptor, tag)}
	if signed != nil {
		listed = append(listed, tagged(signed.manifest.Descriptor, signatureTag(sent.Digest)))
	}
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: listed})
	if err != nil {
		return err
	}
	if err := errors.Join(file(ocispec.ImageLayoutFile, version), file(ocispec.ImageIndexFile, index)); err != nil {
		return err
	}
	for _, p := range append(slices.Clone(a.parts), a.manifest) {
		data, err := p.load(ctx)
		if err != nil {
			return err
		}
		if err := file(blobName(p.Descriptor), data); err != nil {
			return err
		}
		if p.Digest == a.manifest.Digest {
			break
		}
		sent.Written++
		sent.WrittenBytes += p.Size
		progress.done(p.Size)
	}
	if signed != nil {
		for _, p := range append(slices.Clone(signed.parts), signed.manifest) {
			data, err := p.load(ctx)
			if err == nil {
				err = file(blobName(p.Descriptor), data)
			}
			if err != nil {
				return err
			}
		}
	}
	return t.Close()
}
