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

// defaultTag is the tag of an artifact in a layout, as in other OCI tools.
const defaultTag = "latest"

// Export writes modules of a store as an OCI image layout: the modules that refs name (see [cache.Store.Find]), or
// all. A name that ends in ".tar" is a tar file of the layout, which is replaced as a whole. Any other name is a
// directory; if it is a layout already, the artifact is added. The same modules from the same compilers, with
// the same minimum drivers, give the same digest and, with the same tag and no signature, the same tar.
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
		// The signature is written first, so that a reader that finds the artifact finds its signature.
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

// sign returns the artifact with the signatures of the exported artifact. It returns nil if the options ask for no
// signature, or if the directory has the signer's signature already.
func (o *Options) sign(ctx context.Context, sent *Sent, name string, isTar bool) (*artifact, error) {
	if o.Signer == nil {
		return nil, nil
	}
	have := &signatureSet{}
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

// exportDir adds the artifact to the layout in a directory. It replaces damaged blobs. The index is
// written last: until then, or if the export fails, readers find the layout as it was.
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

// startLayout writes the layout file, if the directory has none.
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
	// A link fails if the file exists: another export may have written it, and may hold the lock on
	// it.
	switch err = root.Link(aside, ocispec.ImageLayoutFile); {
	case err == nil, errors.Is(err, fs.ErrExist):
		return root.Remove(aside)
	}
	return rename(root, aside, ocispec.ImageLayoutFile) // the file system has no links
}

// addToIndex adds a manifest to the index under a tag, and takes the tag from the manifest that had
// it. The lock serializes concurrent exports.
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
	// A manifest that lost its tag stays in the index, once and without a tag, unless another tag names it.
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

// lockPause is the time between two attempts to lock. lockPatience is how long an export waits:
// changing the index takes milliseconds, but any process that can read the layout can hold the lock
// for ever.
const (
	lockPause    = 10 * time.Millisecond
	lockPatience = 10 * time.Second
)

// lockLayout waits until no other export changes the index. It locks the layout file, which no export
// replaces. If files cannot be locked, or the wait is too long, the export continues without a lock.
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

// replaceFile writes a temporary file, syncs it and renames it, so that the replacement is atomic.
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

// rename renames a temporary file to its name, or removes it on failure.
func rename(root *os.Root, aside, name string) error {
	err := root.Rename(aside, name)
	if err != nil {
		root.Remove(aside)
	}
	return err
}

// writeAside writes a temporary file and syncs it. It removes the file on failure.
func writeAside(root *os.Root, write func(w io.Writer) error) (name string, err error) {
	name = ".pwc-" + rand.Text()
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return "", err
	}
	err = write(f)
	if err == nil {
		// These errors mean that the file system cannot sync.
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
