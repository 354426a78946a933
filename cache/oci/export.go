package oci

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/errdef"

	"pwc/cache"
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
	if strings.HasSuffix(name, ".tar") {
		err = exportTar(ctx, a, name, tag, sent, progress)
	} else {
		err = exportDir(ctx, a, name, tag, sent, progress)
	}
	if err != nil {
		return nil, fmt.Errorf("export to %s: %w", name, cause(ctx, err))
	}
	return sent, nil
}

// exportDir adds the artifact to the layout in a directory. The index is
// written last.
func exportDir(ctx context.Context, a *artifact, dir, tag string, sent *Sent, progress *tracker) error {
	store, err := oci.NewWithContext(ctx, dir)
	if err != nil {
		return err
	}
	store.AutoSaveIndex = false
	for _, p := range append(slices.Clone(a.parts), a.manifest) {
		there, err := store.Exists(ctx, p.Descriptor)
		if err != nil {
			return err
		}
		if !there {
			data, err := p.load(ctx)
			if err != nil {
				return err
			}
			if err := store.Push(ctx, p.Descriptor, bytes.NewReader(data)); err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
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
	if err := store.Tag(ctx, a.manifest.Descriptor, tag); err != nil {
		return err
	}
	return store.SaveIndex()
}

// exportTar writes the layout aside, syncs it and renames it.
func exportTar(ctx context.Context, a *artifact, name, tag string, sent *Sent, progress *tracker) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err := writeTar(ctx, a, f, tag, sent, progress); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// writeTar writes the members in a fixed order and without times.
func writeTar(ctx context.Context, a *artifact, w io.Writer, tag string, sent *Sent, progress *tracker) error {
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
	listed := a.manifest.Descriptor
	listed.Annotations = map[string]string{ocispec.AnnotationRefName: tag}
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{listed}})
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
	return t.Close()
}
