package oci

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"pwc/cache"
	"pwc/internal/termsafe"
)

// Sent is the result of Export and Push.
type Sent struct {
	Digest       cache.Digest // of the manifest: the "@sha256:…" of a reference
	Modules      int
	Entries      int
	Blobs        int   // layers and the config
	Bytes        int64 // of the blobs
	Written      int   // blobs that the destination did not have
	WrittenBytes int64
	SignedBy     string // id of the key of Options.Signer; "": the artifact was not signed
}

func (a *artifact) sent() *Sent {
	s := &Sent{Modules: len(a.config.Modules), Entries: len(a.config.Entries), Blobs: len(a.parts)}
	s.Digest, _ = cache.ParseDigest(a.manifest.Digest.String()) // cannot fail: pack made it
	for _, p := range a.parts {
		s.Bytes += p.Size
	}
	return s
}

// Push sends modules of a store to REGISTRY/REPO:TAG: the modules that refs name (see [cache.Store.Find]), or all.
// Blobs that the registry has are not sent again. The tag is set last, so a concurrent pull gets the old artifact or
// the complete new one. The same modules from the same compilers, with the same minimum drivers, give the same
// digest. If the tag names the artifact already, Push sends only a missing signature.
func Push(ctx context.Context, s *cache.Store, refs []string, ref string, o Options) (*Sent, error) {
	r, err := newRepository(ref, &o)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if r.isDigest() {
		return nil, fmt.Errorf("%q: a push needs a tag; the digest follows from the contents", termsafe.Clip(ref, 80))
	}
	a, err := pack(ctx, s, refs, o.MinDriver)
	if err != nil {
		return nil, err
	}
	sent := a.sent()
	// The signature is pushed first, so that a reader that finds the artifact finds its signature.
	err = pushSignature(ctx, r, sent, &o)
	if err == nil {
		err = push(ctx, r, a, r.repo.Reference.Reference, sent, &o)
	}
	if err != nil {
		return nil, fmt.Errorf("push to %s: %w", r.name(), cause(ctx, err))
	}
	return sent, nil
}

// pushSignature signs the artifact if the options have a signer.
func pushSignature(ctx context.Context, r *repository, sent *Sent, o *Options) error {
	if o.Signer == nil {
		return nil
	}
	have, err := signatures(ctx, r, sent.Digest)
	if err != nil {
		return fmt.Errorf("signatures: %w", err)
	}
	sent.SignedBy = o.Signer.Public().ID()
	s, err := sign(o.Signer, sent.Digest, r.withoutTag(), have)
	if err != nil || s == nil {
		return err
	}
	quiet := *o
	quiet.Observer = nil
	if err := push(ctx, r, s, signatureTag(sent.Digest), &Sent{}, &quiet); err != nil {
		return fmt.Errorf("signature: %w", err)
	}
	return nil
}

// push sends an artifact under a tag.
func push(ctx context.Context, r *repository, a *artifact, tag string, sent *Sent, o *Options) error {
	progress := &tracker{observe: o.Observer, at: Progress{Total: sent.Blobs, TotalBytes: sent.Bytes}}
	switch there, err := r.tagged(ctx, a.manifest.Descriptor, tag); {
	case err != nil:
		return err
	case there: // the push that set the tag had sent the blobs
		progress.allDone()
		return nil
	}
	var written, writtenBytes atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(o.jobs())
	for _, p := range a.parts {
		g.Go(func() error {
			there, err := r.has(gctx, p.Descriptor)
			if err != nil {
				return err
			}
			if !there {
				data, err := p.load(gctx)
				if err != nil {
					return err
				}
				if err := r.upload(gctx, p.Descriptor, data); err != nil {
					return err
				}
				written.Add(1)
				writtenBytes.Add(p.Size)
			}
			progress.done(p.Size)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	sent.Written, sent.WrittenBytes = int(written.Load()), writtenBytes.Load()
	manifest, err := a.manifest.load(ctx)
	if err != nil {
		return err
	}
	return r.tag(ctx, a.manifest.Descriptor, manifest, tag)
}
