package oci

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"pwc/cache"
	"pwc/internal/exactjson"
	"pwc/internal/termsafe"
)

// Media types of an artifact and its parts.
const (
	ArtifactType    = "application/vnd.pwc.cache.v1"
	ConfigMediaType = "application/vnd.pwc.cache.config.v1+json"
	BlobMediaType   = "application/vnd.pwc.cache.program.v1" // package program's encoding
	GraphMediaType  = "application/vnd.pwc.cache.graph.v1"   // a module's computation_graph.ir
)

// Annotations of the manifest, for tools that list images. They are the labels that Red Hat's Model Cache Vault gives
// to the images of other caches (cache.triton.image/…, cache.vllm.image/…), under our own prefix. This package does
// not read them.
const (
	AnnotationEntryCount = "cache.pwc.image/entry-count"      // entries, in decimal
	AnnotationCacheSize  = "cache.pwc.image/cache-size-bytes" // Config.Bytes, in decimal
	AnnotationSummary    = "cache.pwc.image/summary"          // {"targets":[{"backend":"cuda","arch":"sm_90","warp_size":32}]}
	AnnotationFormat     = "cache.pwc.image/format"           // "v1": version of the cache format
)

// An artifact is a manifest, a config and layers.
type artifact struct {
	config   *Config
	manifest part
	parts    []part // the layers in the order of the manifest, then the config
}

// A part is one blob of an artifact.
type part struct {
	ocispec.Descriptor
	load func(ctx context.Context) ([]byte, error)
}

func inline(mediaType string, data []byte) part {
	return part{ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))},
		func(context.Context) ([]byte, error) { return data, nil }}
}

// pack makes the artifact of the modules of a store that refs name, or of all modules if refs is empty. A blob is
// read when it is sent.
func pack(ctx context.Context, s *cache.Store, refs []string, minDriver func(target, compiler string) string) (*artifact, error) {
	modules, err := show(ctx, s, refs)
	if err != nil {
		return nil, err
	}
	c := &Config{}
	loads := map[digest.Digest]func(context.Context) ([]byte, error){}
	entries := map[cache.ID]*cache.Entry{}
	for _, m := range modules {
		for i, e := range m.Found {
			entries[m.Keys[i].ID] = e
		}
	}
	drivers := map[string]string{}
	index := map[cache.ID]int{}
	for i, id := range sortedIDs(entries) {
		e := entries[id]
		index[id] = i
		c.Entries = append(c.Entries, Entry{Piece: e.Key.Piece, Shape: e.Key.Shape, Target: e.Key.Target, Pipeline: e.Key.Pipeline,
			Externs: e.Key.Externs, Format: e.Key.Format, Blob: Content{e.Blob, e.Size}, Compiler: e.Provenance.Compiler})
		loads[digest.Digest(e.Blob.String())] = loadBlob(s, e)
		if minDriver == nil {
			continue
		}
		if err := newestDriver(drivers, e.Key.Target, minDriver(e.Key.Target, e.Provenance.Compiler)); err != nil {
			return nil, err
		}
	}
	for _, m := range modules {
		out := Module{Name: m.Name, Hash: m.Hash, Target: m.Target, Graph: Content{cache.DigestOf(m.Graph), int64(len(m.Graph))}, Entries: list[int]{}}
		for _, k := range m.Keys {
			out.Entries = append(out.Entries, index[k.ID])
		}
		c.Modules = append(c.Modules, out)
		loads[digest.Digest(out.Graph.Digest.String())] = func(context.Context) ([]byte, error) { return m.Graph, nil }
	}
	c.derive(drivers)
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("cannot be shared: %w", err)
	}
	return assemble(c, loads)
}

// newestDriver raises the minimum driver of a target to v.
func newestDriver(drivers map[string]string, target, v string) error {
	if v == "" {
		return nil
	}
	newer, err := parseVersion(v)
	if err != nil {
		return fmt.Errorf("target %s: minimum driver %w", target, err)
	}
	if have, err := parseVersion(drivers[target]); err != nil || olderVersion(have, newer) {
		drivers[target] = v
	}
	return nil
}

// show returns the modules that refs name, or all if refs is empty, each once, sorted by id.
func show(ctx context.Context, s *cache.Store, refs []string) ([]*cache.ModuleDetail, error) {
	if len(refs) == 0 {
		all, err := s.Modules(ctx)
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			refs = append(refs, m.ID.String())
		}
	}
	found := map[cache.ID]*cache.ModuleDetail{}
	for _, ref := range refs {
		m, err := s.Show(ctx, ref)
		if err != nil {
			return nil, err
		}
		switch {
		case m.Missing > 0:
			return nil, fmt.Errorf("module %s is not whole in the cache: %d of %d entries are missing; compile it again", m.Name, m.Missing, len(m.Keys))
		case m.Graph == nil:
			return nil, fmt.Errorf("module %s is not whole in the cache: its graph is damaged; compile it again", m.Name)
		}
		found[m.ID] = m
	}
	if len(found) == 0 {
		return nil, errors.New("the cache holds no module")
	}
	var out []*cache.ModuleDetail
	for _, id := range sortedIDs(found) {
		out = append(out, found[id])
	}
	return out, nil
}

func sortedIDs[T any](m map[cache.ID]T) []cache.ID {
	ids := make([]cache.ID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b cache.ID) int { return bytes.Compare(a[:], b[:]) })
	return ids
}

// loadBlob returns a function that reads the blob of an entry. It fails if the blob is not the one that the manifest
// names.
func loadBlob(s *cache.Store, e *cache.Entry) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		blob, ok, err := s.Get(ctx, e.Key)
		if err == nil && !ok {
			err = errors.New("it was removed from the cache")
		}
		if err == nil && cache.DigestOf(blob) != e.Blob {
			err = errors.New("it was replaced in the cache")
		}
		if err != nil {
			return nil, fmt.Errorf("entry %s: %w", e.Key, err)
		}
		return blob, nil
	}
}

// layers returns the descriptors of all blobs that a config lists, sorted by digest. Some registries refuse empty
// blobs, so these have no layer.
func (c *Config) layers() []ocispec.Descriptor {
	var out []ocispec.Descriptor
	add := func(mediaType string, b Content) {
		if b.Size > 0 {
			out = append(out, ocispec.Descriptor{MediaType: mediaType, Digest: digest.Digest(b.Digest.String()), Size: b.Size})
		}
	}
	for i := range c.Entries {
		add(BlobMediaType, c.Entries[i].Blob)
	}
	for i := range c.Modules {
		add(GraphMediaType, c.Modules[i].Graph)
	}
	slices.SortFunc(out, func(a, b ocispec.Descriptor) int { return cmp.Compare(a.Digest, b.Digest) })
	return slices.CompactFunc(out, func(a, b ocispec.Descriptor) bool { return a.Digest == b.Digest })
}

// assemble makes manifest and config. The same config gives the same bytes: they contain no time, and JSON sorts maps
// by key.
func assemble(c *Config, loads map[digest.Digest]func(context.Context) ([]byte, error)) (*artifact, error) {
	text, err := c.encode()
	if err != nil {
		return nil, err
	}
	if len(text) > maxConfig {
		return nil, fmt.Errorf("too much for one artifact: its config would have %d bytes, above %d; share fewer modules at once", len(text), maxConfig)
	}
	a := &artifact{config: c}
	config := inline(ConfigMediaType, text)
	layers := c.layers()
	if len(layers) == 0 {
		return nil, errors.New("there is nothing to share: the modules have no entries and no graph")
	}
	for _, d := range layers {
		a.parts = append(a.parts, part{d, loads[d.Digest]})
	}
	a.parts = append(a.parts, config)
	summary, err := c.summary()
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: ArtifactType,
		Config:       config.Descriptor,
		Layers:       layers,
		Annotations: map[string]string{
			AnnotationEntryCount: strconv.Itoa(len(c.Entries)),
			AnnotationCacheSize:  strconv.FormatInt(c.Bytes, 10),
			AnnotationSummary:    summary,
			AnnotationFormat:     "v" + strconv.Itoa(c.CacheFormat),
		},
	})
	if err != nil {
		return nil, err
	}
	if len(manifest) > maxManifest {
		return nil, fmt.Errorf("too much for one artifact: the manifest of %d layers would have %d bytes, above %d; share fewer modules at once", len(layers), len(manifest), maxManifest)
	}
	a.manifest = inline(ocispec.MediaTypeImageManifest, manifest)
	a.manifest.ArtifactType = ArtifactType
	return a, nil
}

// summary returns the targets in the form of MCV's label. warp_size is 32 on every CUDA architecture, and 0 for
// targets without warps.
func (c *Config) summary() (string, error) {
	type target struct {
		Backend  string `json:"backend"`
		Arch     string `json:"arch"`
		WarpSize int    `json:"warp_size"`
	}
	var s struct {
		Targets []target `json:"targets"`
	}
	for _, t := range c.Targets {
		out := target{}
		out.Backend, out.Arch, _ = strings.Cut(t.Name, ":")
		if out.Backend == "cuda" {
			out.WarpSize = 32
		}
		s.Targets = append(s.Targets, out)
	}
	text, err := json.Marshal(s)
	return string(text), err
}

// A descriptor has the fields that are read of a descriptor in a manifest or an index.
type descriptor struct {
	MediaType    string `json:"mediaType"`
	ArtifactType string `json:"artifactType"`
	Digest       string `json:"digest"`
	Size         int64  `json:"size"`
	Annotations  struct {
		RefName string `json:"org.opencontainers.image.ref.name"`
	} `json:"annotations"`
}

// check returns the descriptor if it has the media type and from 1 to limit bytes. It refuses a digest other than
// SHA-256, which could not be compared with the digests of the cache.
func (d *descriptor) check(mediaType string, limit int64) (ocispec.Descriptor, error) {
	if d.MediaType != mediaType {
		return ocispec.Descriptor{}, fmt.Errorf("of type %q, not %q", termsafe.Clip(d.MediaType, 80), mediaType)
	}
	if _, err := cache.ParseDigest(d.Digest); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("not named by its SHA-256: %w", err)
	}
	if d.Size <= 0 || d.Size > limit {
		return ocispec.Descriptor{}, fmt.Errorf("of %d bytes, want 1 to %d", d.Size, limit)
	}
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: digest.Digest(d.Digest), Size: d.Size}, nil
}

// parseManifest returns the descriptors of the config and of the layers. The error does not name the source.
func parseManifest(text []byte) (config ocispec.Descriptor, layers []descriptor, err error) {
	var m struct {
		SchemaVersion int              `json:"schemaVersion"`
		MediaType     string           `json:"mediaType"`
		ArtifactType  string           `json:"artifactType"`
		Config        descriptor       `json:"config"`
		Layers        list[descriptor] `json:"layers"`
	}
	if err := exactjson.Unmarshal(text, &m); err != nil {
		return config, nil, fmt.Errorf("not JSON of a manifest: %w", err)
	}
	if m.SchemaVersion != 2 || m.MediaType != ocispec.MediaTypeImageManifest {
		return config, nil, fmt.Errorf("not an OCI image manifest (schema %d, type %q)", m.SchemaVersion, termsafe.Clip(m.MediaType, 80))
	}
	if m.ArtifactType != ArtifactType {
		return config, nil, fmt.Errorf("not a cache: its artifact type is %q, not %q", termsafe.Clip(cmp.Or(m.ArtifactType, m.Config.MediaType), 80), ArtifactType)
	}
	config, err = m.Config.check(ConfigMediaType, maxConfig)
	if err != nil {
		return config, nil, fmt.Errorf("its config is %w", err)
	}
	return config, m.Layers, nil
}

// checkLayers returns an error if the layers are not those that the config lists.
func (c *Config) checkLayers(layers []descriptor) error {
	want := c.layers()
	if len(layers) != len(want) {
		return fmt.Errorf("the manifest has %d layers, its config lists %d", len(layers), len(want))
	}
	for i, d := range want {
		if l := layers[i]; l.MediaType != d.MediaType || l.Digest != d.Digest.String() || l.Size != d.Size {
			return fmt.Errorf("layer %d of the manifest is not the one that its config lists (%s, %d bytes)", i, d.Digest, d.Size)
		}
	}
	return nil
}
