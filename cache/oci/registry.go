package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/retry"

	"pwc/internal/termsafe"
)

// A source is a registry or a layout from which an artifact is read.
type source interface {
	// name returns the name for messages.
	name() string
	// resolve returns the descriptor of the manifest, whose type and size were checked.
	resolve(ctx context.Context) (ocispec.Descriptor, error)
	// find is resolve for another tag. The error matches errdef.ErrNotFound or fs.ErrNotExist if the source does not
	// have the tag.
	find(ctx context.Context, tag string) (ocispec.Descriptor, error)
	// open opens a blob or the manifest. The bytes are not verified.
	open(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error)
}

// A repository is a repository of a registry, with a reference in it.
type repository struct {
	repo   *remote.Repository
	client *http.Client
}

// newRepository parses REGISTRY/REPO:TAG or REGISTRY/REPO@sha256:….
func newRepository(ref string, o *Options) (*repository, error) {
	repo, err := remote.NewRepository(ref)
	if err != nil {
		return nil, fmt.Errorf("%q is not REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:…: %w", termsafe.Clip(ref, 80), err)
	}
	if repo.Reference.Reference == "" {
		return nil, fmt.Errorf("%q has no tag and no digest", termsafe.Clip(ref, 80))
	}
	base := o.Transport
	if base == nil {
		base = newTransport()
	}
	again := &retry.Transport{Base: &guard{base: base, plainHTTP: o.PlainHTTP, stall: o.stall(), rate: o.minRate()}}
	if o.Retry != nil {
		again.Policy = func() retry.Policy { return o.Retry }
	}
	client := &http.Client{Transport: &idleCloser{again, base}}
	repo.PlainHTTP = o.PlainHTTP
	repo.ManifestMediaTypes = []string{ocispec.MediaTypeImageManifest}
	repo.Client = &auth.Client{
		Client:     client,
		Header:     http.Header{"User-Agent": {"pwc"}},
		Credential: o.Credential,
		Cache:      auth.NewCache(),
	}
	return &repository{repo: repo, client: client}, nil
}

// idleCloser closes the idle connections below a retry.Transport, which does not pass CloseIdleConnections on.
type idleCloser struct {
	http.RoundTripper
	base http.RoundTripper
}

// CloseIdleConnections implements the interface that http.Client.CloseIdleConnections looks for.
func (c *idleCloser) CloseIdleConnections() {
	if b, ok := c.base.(interface{ CloseIdleConnections() }); ok {
		b.CloseIdleConnections()
	}
}

// close closes the idle connections.
func (r *repository) close() { r.client.CloseIdleConnections() }

func (r *repository) name() string { return r.repo.Reference.String() }

// withoutTag returns the name without tag or digest.
func (r *repository) withoutTag() string {
	return r.repo.Reference.Registry + "/" + r.repo.Reference.Repository
}

func (r *repository) resolve(ctx context.Context) (ocispec.Descriptor, error) {
	return r.find(ctx, r.repo.Reference.Reference)
}

func (r *repository) find(ctx context.Context, tag string) (ocispec.Descriptor, error) {
	d, err := r.repo.Resolve(ctx, tag)
	if err != nil {
		return d, err
	}
	d, err = (&descriptor{MediaType: d.MediaType, Digest: d.Digest.String(), Size: d.Size}).check(ocispec.MediaTypeImageManifest, maxManifest)
	if err != nil {
		return d, fmt.Errorf("its manifest is %w", err)
	}
	return d, nil
}

func (r *repository) open(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	return r.repo.Fetch(ctx, d)
}

// isDigest reports whether the reference is a digest.
func (r *repository) isDigest() bool { return strings.Contains(r.repo.Reference.Reference, ":") }

// has reports whether the registry has a blob.
func (r *repository) has(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	return r.repo.Exists(ctx, d)
}

// upload sends a blob.
func (r *repository) upload(ctx context.Context, d ocispec.Descriptor, data []byte) error {
	return r.repo.Push(ctx, d, bytes.NewReader(data))
}

// tagged reports whether a tag names this manifest.
func (r *repository) tagged(ctx context.Context, d ocispec.Descriptor, tag string) (bool, error) {
	have, err := r.repo.Resolve(ctx, tag)
	if errors.Is(err, errdef.ErrNotFound) {
		return false, nil
	}
	return err == nil && have.Digest == d.Digest, err
}

// tag sends a manifest under a tag. A registry may refuse it if it lacks a blob that the manifest names.
func (r *repository) tag(ctx context.Context, d ocispec.Descriptor, manifest []byte, tag string) error {
	return r.repo.PushReference(ctx, d, bytes.NewReader(manifest), tag)
}
