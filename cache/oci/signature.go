package oci

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"

	"pwc/cache"
	"pwc/internal/exactjson"
	"pwc/internal/termsafe"
)

// Signatures are those of cosign (SIGNATURE_SPEC.md of github.com/sigstore/cosign): an image manifest under the tag
// sha256-<hex>.sig. Each layer is a text that names the digest of the signed artifact ("simple signing"), with a
// signature over its bytes in an annotation. Certificates, transparency logs and bundles are not read: only keys
// decide.
const (
	signatureMediaType  = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureAnnotation = "dev.cosignproject.cosign/signature"
	signatureType       = "cosign container image signature"

	maxSignatures = 32      // of an artifact
	maxPayload    = 8 << 10 // bytes
	maxSignature  = 1 << 10 // characters
)

func signatureTag(d cache.Digest) string { return strings.Replace(d.String(), ":", "-", 1) + ".sig" }

func isSignatureTag(tag string) bool {
	return strings.HasPrefix(tag, "sha256-") && strings.HasSuffix(tag, ".sig")
}

// A payload is the signed text. Only type and digest are read: a signature is about the digest, in any registry.
type payload struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional json.RawMessage `json:"optional"`
}

// A signature is one layer of the manifest of signatures.
type signature struct {
	payload []byte
	bytes   []byte
}

// A signatureSet has the signatures of one artifact. Its zero value is that of an artifact without a manifest of signatures.
type signatureSet struct {
	manifest []byte // as it was read
	layers   int    // of the manifest, also those that are no signatures
	list     []signature
}

// by returns the first of the keys that made this signature of a digest. It reports false if none did.
func (s *signature) by(keys []cache.PublicKey, of cache.Digest) (key cache.PublicKey, ok bool) {
	var p payload
	if exactjson.Unmarshal(s.payload, &p) != nil || p.Critical.Type != signatureType || p.Critical.Image.Digest != of.String() {
		return key, false
	}
	for _, k := range keys {
		if k.Verify(s.payload, s.bytes) {
			return k, true
		}
	}
	return key, false
}

// signatures reads the signatures of an artifact, if any. Layers that are not signatures are left out.
func signatures(ctx context.Context, src source, of cache.Digest) (*signatureSet, error) {
	d, err := src.find(ctx, signatureTag(of))
	if errors.Is(err, errdef.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &signatureSet{}, nil
	}
	if err != nil {
		return nil, cause(ctx, err)
	}
	text, err := fetch(ctx, src, d)
	if err != nil {
		return nil, err
	}
	var m struct {
		Layers list[struct {
			MediaType   string `json:"mediaType"`
			Digest      string `json:"digest"`
			Size        int64  `json:"size"`
			Annotations struct {
				Signature string `json:"dev.cosignproject.cosign/signature"`
			} `json:"annotations"`
		}] `json:"layers"`
	}
	if err := exactjson.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("not JSON of a manifest: %w", err)
	}
	if len(m.Layers) > maxSignatures {
		return nil, fmt.Errorf("it has %d signatures; the limit is %d", len(m.Layers), maxSignatures)
	}
	out := &signatureSet{manifest: text, layers: len(m.Layers)}
	for _, l := range m.Layers {
		d, err := (&descriptor{MediaType: l.MediaType, Digest: l.Digest, Size: l.Size}).check(signatureMediaType, maxPayload)
		if err != nil || len(l.Annotations.Signature) > maxSignature {
			continue
		}
		var s signature
		if s.bytes, err = base64.StdEncoding.DecodeString(l.Annotations.Signature); err != nil {
			continue
		}
		if s.payload, err = fetch(ctx, src, d); err != nil {
			return nil, err
		}
		out.list = append(out.list, s)
	}
	return out, nil
}

// sign makes the manifest of an artifact's signatures: the one that it has, with a layer more by the signer. It returns
// nil if the artifact has a signature by the signer. All else of the manifest stays as it is, such as the certificates
// and bundles of other signatures. reference is the name of the artifact in the signed text.
func sign(signer *cache.Signer, of cache.Digest, reference string, have *signatureSet) (*artifact, error) {
	for i := range have.list {
		if _, ok := have.list[i].by([]cache.PublicKey{signer.Public()}, of); ok {
			return nil, nil
		}
	}
	if have.layers == maxSignatures {
		return nil, fmt.Errorf("it has %d signatures already, which is the limit", have.layers)
	}
	var p payload
	p.Critical.Identity.Reference, p.Critical.Image.Digest, p.Critical.Type, p.Optional = reference, of.String(), signatureType, json.RawMessage("null")
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	if len(text) > maxPayload {
		return nil, fmt.Errorf("the name %q is too long to be signed", termsafe.Clip(reference, 80))
	}
	sig, err := signer.Sign(text)
	if err != nil {
		return nil, err
	}
	layer := inline(signatureMediaType, text)
	layer.Annotations = map[string]string{signatureAnnotation: base64.StdEncoding.EncodeToString(sig)}
	if have.manifest != nil {
		manifest, err := withLayer(have.manifest, layer.Descriptor)
		if err != nil {
			return nil, err
		}
		return &artifact{manifest: inline(ocispec.MediaTypeImageManifest, manifest), parts: []part{layer}}, nil
	}
	config := inline(ocispec.MediaTypeImageConfig, []byte(`{"architecture":"","os":"","config":{},"rootfs":{"type":"layers","diff_ids":[]}}`))
	manifest, err := json.Marshal(ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: config.Descriptor, Layers: []ocispec.Descriptor{layer.Descriptor}})
	if err != nil {
		return nil, err
	}
	return &artifact{manifest: inline(ocispec.MediaTypeImageManifest, manifest), parts: []part{layer, config}}, nil
}

// withLayer adds a layer to the text of a manifest, and keeps its other keys, layers and annotations.
func withLayer(manifest []byte, layer ocispec.Descriptor) ([]byte, error) {
	var m map[string]json.RawMessage
	var layers []json.RawMessage
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, err
	}
	if text, ok := m["layers"]; ok {
		if err := json.Unmarshal(text, &layers); err != nil {
			return nil, err
		}
	}
	added, err := json.Marshal(layer)
	if err != nil {
		return nil, err
	}
	if m["layers"], err = json.Marshal(append(layers, added)); err != nil {
		return nil, err
	}
	out, err := json.Marshal(m)
	if err == nil && len(out) > maxManifest {
		err = fmt.Errorf("the manifest of its signatures would have %d bytes, above %d", len(out), maxManifest)
	}
	return out, err
}

// trusted returns why the machine code of an artifact may be used. The error is a *[cache.UntrustedError], an error
// of reading the signatures, or that of Options.Accept.
func (o *Options) trusted(ctx context.Context, a *remoteArtifact) (why string, err error) {
	from := ""
	if r, ok := a.src.(*repository); ok {
		from = r.withoutTag()
	}
	if o.Trust.TrustsArtifact(from, a.digest) {
		return "listed", nil
	}
	reason := "no key is trusted that could have signed it"
	if o.Trust != nil && len(o.Trust.Keys) > 0 {
		have, err := signatures(ctx, a.src, a.digest)
		if err != nil {
			return "", fmt.Errorf("%s: signatures: %w", a.src.name(), err)
		}
		for i := range have.list {
			if k, ok := have.list[i].by(o.Trust.Keys, a.digest); ok {
				return "signed by key " + k.ID()[:16], nil
			}
		}
		if reason = "it is not signed"; len(have.list) > 0 {
			reason = fmt.Sprintf("none of its %d signatures is by a trusted key", len(have.list))
		}
	}
	if o.Accept != nil {
		return "accepted", o.Accept(a.digest)
	}
	return "", &cache.UntrustedError{Target: a.config.machineTarget(), Source: a.src.name(), Reason: reason,
		Fix: "pwc cache trust add --key FILE with the signer's public key, or pwc cache trust add --artifact " + a.digest.String()}
}

// machineTarget returns the first machine code target of the artifact, or "".
func (c *Config) machineTarget() string {
	for _, t := range c.Targets {
		if cache.NeedsTrust(t.Name) {
			return t.Name
		}
	}
	return ""
}

// needsTrust reports whether a module has machine code.
func (c *Config) needsTrust(m *Module) bool {
	for _, e := range m.Entries {
		if cache.NeedsTrust(c.Entries[e].Target) {
			return true
		}
	}
	return cache.NeedsTrust(m.Target)
}
