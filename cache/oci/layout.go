package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"pwc/cache"
	"pwc/internal/exactjson"
	"pwc/internal/openfile"
	"pwc/internal/termsafe"
)

// Import takes modules from an OCI image layout into a store, as [Pull] does from a registry. The layout is a
// directory, or an uncompressed tar file of one. Import uses no network.
func Import(ctx context.Context, s *cache.Store, name string, o Options) (*Received, error) {
	l, err := openLayout(name, o.Tag)
	if err != nil {
		return nil, err
	}
	defer l.close()
	return receive(ctx, s, l, &o)
}

// InspectLayout is [Inspect] of a layout.
func InspectLayout(ctx context.Context, name string, o Options) (*Info, error) {
	l, err := openLayout(name, o.Tag)
	if err != nil {
		return nil, err
	}
	defer l.close()
	a, err := open(ctx, l)
	if err != nil {
		return nil, err
	}
	return &Info{a.digest, a.config}, nil
}

// A layout is an OCI image layout and a reference to an artifact in it.
type layout struct {
	path  string
	ref   string // tag or digest; "": the only artifact, or else latest
	files files
}

// files opens the files of a layout by slash-separated names.
type files interface {
	// open opens a file. The error matches fs.ErrNotExist if there is none.
	open(name string) (io.ReadCloser, error)
	close() error
}

func openLayout(name, ref string) (*layout, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	l := &layout{path: name, ref: ref}
	if info.IsDir() {
		root, err := openfile.Dir(name)
		if err != nil {
			return nil, err
		}
		l.files = dirFiles{root}
		return l, nil
	}
	if l.files, err = openTar(name); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}

func (l *layout) close() { l.files.close() }

func (l *layout) name() string {
	if l.ref == "" {
		return l.path
	}
	return l.path + " (" + l.ref + ")"
}

// resolve finds the manifest in index.json.
func (l *layout) resolve(ctx context.Context) (ocispec.Descriptor, error) { return l.find(ctx, l.ref) }

func (l *layout) find(_ context.Context, ref string) (none ocispec.Descriptor, err error) {
	if err := l.checkVersion(); err != nil {
		return none, err
	}
	var index struct {
		Manifests list[descriptor] `json:"manifests"`
	}
	if err := l.readJSON(ocispec.ImageIndexFile, &index); err != nil {
		return none, err
	}
	d, err := choose(index.Manifests, ref)
	if err != nil {
		return none, err
	}
	out, err := d.check(ocispec.MediaTypeImageManifest, maxManifest)
	if err != nil {
		return none, fmt.Errorf("its manifest is %w", err)
	}
	return out, nil
}

// checkVersion reads the layout file, which marks a directory as a layout.
func (l *layout) checkVersion() error {
	var version struct {
		Version string `json:"imageLayoutVersion"`
	}
	if err := l.readJSON(ocispec.ImageLayoutFile, &version); err != nil {
		return err
	}
	if version.Version != ocispec.ImageLayoutVersion {
		return fmt.Errorf("%s: layout version %q, not %q", ocispec.ImageLayoutFile, termsafe.Clip(version.Version, 80), ocispec.ImageLayoutVersion)
	}
	return nil
}

// choose returns the manifest that ref names. Without a ref it returns the only artifact, which may have several
// tags, or else the one with the default tag. A manifest without an artifact type may be a pwc cache, as some tools
// drop the type from the index when they copy.
func choose(list []descriptor, ref string) (*descriptor, error) {
	var found []*descriptor
	var have []string
	for i := range list {
		d := &list[i]
		switch {
		case ref != "" && (d.Digest == ref || d.Annotations.RefName == ref):
			return d, nil
		case isSignatureTag(d.Annotations.RefName):
		case d.ArtifactType == ArtifactType || d.ArtifactType == "" && d.MediaType == ocispec.MediaTypeImageManifest:
			found = append(found, d)
			name := d.Annotations.RefName
			if name == "" {
				name = d.Digest
			}
			have = append(have, termsafe.Clip(name, 80))
		}
	}
	switch {
	case ref != "":
		return nil, fmt.Errorf("the layout has no %q; it has %q: %w", termsafe.Clip(ref, 80), have, fs.ErrNotExist)
	case len(found) == 0:
		return nil, errors.New("the layout has no pwc cache")
	case !slices.Contains(have, defaultTag) && slices.ContainsFunc(found, func(d *descriptor) bool { return d.Digest != found[0].Digest }):
		return nil, fmt.Errorf("the layout has several artifacts; name one of %q", have)
	}
	return found[max(0, slices.Index(have, defaultTag))], nil
}

// readJSON reads a small file of the layout.
func (l *layout) readJSON(name string, v any) error {
	f, err := l.files.open(name)
	if err != nil {
		return fmt.Errorf("not an OCI image layout: %w", err)
	}
	defer f.Close()
	text, err := readBounded(f, maxManifest)
	if err == nil {
		err = exactjson.Unmarshal(text, v)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// open opens a blob. The file name contains the digest, which was checked to be hex digits.
func (l *layout) open(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	f, err := l.files.open(blobName(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: the layout does not have it: %w", d.Digest, err)
	}
	return f, err
}

func blobName(d ocispec.Descriptor) string {
	return path.Join(ocispec.ImageBlobsDir, d.Digest.Algorithm().String(), d.Digest.Encoded())
}

// dirFiles are the files below a directory. Links out of it are not followed.
type dirFiles struct{ root *os.Root }

func (d dirFiles) open(name string) (io.ReadCloser, error) {
	f, _, err := openfile.RegularIn(d.root, name)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// whole reports whether the layout has a blob with the right bytes.
func (d dirFiles) whole(b ocispec.Descriptor) bool {
	f, err := d.open(blobName(b))
	if err != nil {
		return false
	}
	defer f.Close()
	v := b.Digest.Verifier()
	n, err := io.Copy(v, f)
	return err == nil && n == b.Size && v.Verified()
}

func (d dirFiles) close() error { return d.root.Close() }

// tarFiles are the regular files of a tar.
type tarFiles struct {
	file *os.File
	at   map[string]*io.SectionReader
}

// maxMembers is the largest number of members of a tar: all layers, and as many other members.
const maxMembers = 2 * maxList

// openTar finds the files of a tar without reading them.
func openTar(name string) (*tarFiles, error) {
	f, _, err := openfile.Regular(name)
	if err != nil {
		return nil, err
	}
	t := &tarFiles{file: f, at: map[string]*io.SectionReader{}}
	if err := t.index(); err != nil {
		f.Close()
		return nil, fmt.Errorf("not a tar of an OCI image layout: %w", err)
	}
	return t, nil
}

func (t *tarFiles) index() error {
	var magic [4]byte
	if n, _ := t.file.ReadAt(magic[:], 0); bytes.HasPrefix(magic[:n], []byte{0x1f, 0x8b}) || bytes.HasPrefix(magic[:n], []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return errors.New("it is compressed; decompress it first")
	}
	r := tar.NewReader(t.file)
	for n := 0; ; n++ {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if n == maxMembers {
			return fmt.Errorf("more than %d members", maxMembers)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		// The reader is behind the header, where the data begins. In a sparse file
		// other bytes follow, and the digest does not match.
		start, err := t.file.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		t.at[path.Clean(h.Name)] = io.NewSectionReader(t.file, start, h.Size)
	}
}

func (t *tarFiles) open(name string) (io.ReadCloser, error) {
	r := t.at[name]
	if r == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	// Each caller gets its own offset, as several may be open.
	return io.NopCloser(io.NewSectionReader(r, 0, r.Size())), nil
}

func (t *tarFiles) close() error { return t.file.Close() }
