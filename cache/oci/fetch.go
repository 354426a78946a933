package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"pwc/cache"
	"pwc/internal/termsafe"
	"pwc/program"
)

// fetchTries is the number of requests for a blob whose transfer breaks off. Options.Retry decides about requests
// that get no answer, or an error.
const fetchTries = 3

// fetch reads a blob and verifies its size and digest.
func fetch(ctx context.Context, src source, d ocispec.Descriptor) ([]byte, error) {
	for try := 1; ; try++ {
		data, err := fetchOnce(ctx, src, d)
		broken := errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
		if err == nil || !broken || try == fetchTries || ctx.Err() != nil {
			return data, cause(ctx, err)
		}
	}
}

func fetchOnce(ctx context.Context, src source, d ocispec.Descriptor) ([]byte, error) {
	body, err := src.open(ctx, d)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	// The size is not trusted: memory grows with the bytes that arrive.
	var buf bytes.Buffer
	buf.Grow(int(min(d.Size, 1<<20)))
	n, err := buf.ReadFrom(io.LimitReader(body, d.Size+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: after %d of %d bytes: %w", d.Digest, n, d.Size, err)
	case n > d.Size:
		return nil, &ContentError{d.Digest.String(), fmt.Sprintf("more than its %d bytes arrived", d.Size)}
	case n < d.Size:
		return nil, &ContentError{d.Digest.String(), fmt.Sprintf("%d of its %d bytes arrived", n, d.Size)}
	}
	if got := cache.DigestOf(buf.Bytes()).String(); got != d.Digest.String() {
		return nil, &ContentError{d.Digest.String(), "the bytes that arrived have the digest " + got}
	}
	return buf.Bytes(), nil
}

// A remoteArtifact is an artifact whose config was read.
type remoteArtifact struct {
	src    source
	digest cache.Digest // of the manifest
	config *Config
}

// origin returns the origin of entries that are taken from the artifact.
func (a *remoteArtifact) origin() string {
	name := "layout"
	if r, ok := a.src.(*repository); ok {
		name = r.withoutTag()
	}
	return "from " + name + "@" + a.digest.String()
}

// open reads the manifest and the config only.
func open(ctx context.Context, src source) (*remoteArtifact, error) {
	d, err := src.resolve(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", src.name(), cause(ctx, err))
	}
	a := &remoteArtifact{src: src}
	if a.digest, err = cache.ParseDigest(d.Digest.String()); err != nil {
		return nil, &FormatError{src.name(), "manifest", err}
	}
	text, err := fetch(ctx, src, d)
	if err != nil {
		return nil, fmt.Errorf("%s: manifest: %w", src.name(), err)
	}
	configAt, layers, err := parseManifest(text)
	if err != nil {
		return nil, &FormatError{src.name(), "manifest", err}
	}
	if text, err = fetch(ctx, src, configAt); err != nil {
		return nil, fmt.Errorf("%s: config: %w", src.name(), err)
	}
	if a.config, err = parseConfig(text); err != nil {
		return nil, &FormatError{src.name(), "config", err}
	}
	if err := a.config.checkLayers(layers); err != nil {
		return nil, &FormatError{src.name(), "manifest", err}
	}
	return a, nil
}

// content reads a layer. Empty content has no layer.
func (a *remoteArtifact) content(ctx context.Context, b Content) ([]byte, error) {
	if b.Size == 0 {
		if b.Digest != cache.DigestOf(nil) {
			return nil, &ContentError{b.Digest.String(), "it is not the digest of empty content"}
		}
		return []byte{}, nil
	}
	return fetch(ctx, a.src, ocispec.Descriptor{MediaType: BlobMediaType, Digest: digest.Digest(b.Digest.String()), Size: b.Size})
}

// checkProgram returns an error unless a blob is a program for the target of a key. Package program checks the
// program; nothing can check that it was compiled from the piece of the key.
func checkProgram(blob []byte, key cache.Key) error {
	p, err := program.Decode(blob)
	if err == nil && p.Target != key.Target {
		err = fmt.Errorf("it is for target %s, not %s", termsafe.Clip(p.Target, 80), termsafe.Clip(key.Target, 80))
	}
	if err != nil {
		return &ContentError{cache.DigestOf(blob).String(), fmt.Sprintf("not a program for entry %s: %v", key, err)}
	}
	return nil
}

// refuses returns why a target cannot be used, or "" if it can.
func (o *Options) refuses(c *Config, name string) string {
	if o.Targets != nil {
		if !slices.Contains(o.Targets, name) {
			return fmt.Sprintf("not one of the requested targets (%s)", quoted(o.Targets))
		}
		return ""
	}
	if !slices.Contains(o.Machine.Targets, name) {
		if len(o.Machine.Targets) == 0 {
			return "this machine runs no target"
		}
		return fmt.Sprintf("this machine runs %s", quoted(o.Machine.Targets))
	}
	i := slices.IndexFunc(c.Targets, func(t Target) bool { return t.Name == name })
	if i < 0 || c.Targets[i].MinDriver == "" {
		return ""
	}
	need, err := parseVersion(c.Targets[i].MinDriver)
	if err != nil {
		return "its minimum driver " + err.Error()
	}
	if o.Machine.Driver == "" {
		return fmt.Sprintf("it needs driver %s, this machine has none", c.Targets[i].MinDriver)
	}
	have, err := parseVersion(o.Machine.Driver)
	if err != nil {
		return "this machine's driver " + err.Error()
	}
	if olderVersion(have, need) {
		return fmt.Sprintf("it needs driver %s, this machine has %s", c.Targets[i].MinDriver, o.Machine.Driver)
	}
	return ""
}

// quoted formats names for a message.
func quoted(names []string) string {
	return fmt.Sprintf("%q", names)
}

// refusesEntry returns why an entry cannot be used, or "" if it can.
func (o *Options) refusesEntry(c *Config, e *Entry) string {
	if e.Format != program.FormatVersion {
		return fmt.Sprintf("its programs have format %d; this version of pwc loads format %d", e.Format, program.FormatVersion)
	}
	return o.refuses(c, e.Target)
}

// refusesModule returns why a module cannot be used, or "" if it can.
func (o *Options) refusesModule(c *Config, m *Module) string {
	if why := o.refuses(c, m.Target); why != "" {
		return why
	}
	for _, e := range m.Entries {
		if why := o.refusesEntry(c, &c.Entries[e]); why != "" {
			return why
		}
	}
	return ""
}
