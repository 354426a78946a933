package oci

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"pwc/cache"
	"pwc/internal/exactjson"
	"pwc/internal/termsafe"
)

// ConfigVersion is the version of the config's JSON. Any change of its bytes for the same modules needs a new
// version.
const ConfigVersion = 1

// Limits for texts that are read from a registry or a layout. Registries accept manifests of up to 4 MiB, which
// is about 28,000 layers; maxConfig and maxList follow from that. maxText is the limit of a string in a manifest of
// package cache.
const (
	maxManifest = 4 << 20
	maxConfig   = 16 << 20
	maxList     = 1 << 15 // elements of one list
	maxText     = 64 << 10
)

// Config lists the contents of an artifact. Modules, Entries and each MinDriver determine all other fields.
type Config struct {
	Version        int          `json:"version"`         // ConfigVersion
	CacheFormat    int          `json:"cache_format"`    // cache.FormatVersion: the meaning of the factors of keys
	ProgramFormats list[int]    `json:"program_formats"` // of the entries, ascending
	Pipelines      list[string] `json:"pipelines"`       // of the entries, sorted
	Targets        list[Target] `json:"targets"`         // of the entries and modules, sorted by name
	Bytes          int64        `json:"bytes"`           // of all blobs and graphs, each counted once
	Modules        list[Module] `json:"modules"`         // sorted by id
	Entries        list[Entry]  `json:"entries"`         // sorted by id; each belongs to a module

	ids []cache.ID // of Entries
}

// Target is a target of entries or modules.
type Target struct {
	Name      string `json:"target"`     // "host", "cuda:sm_90"
	MinDriver string `json:"min_driver"` // oldest driver that loads them, by its CUDA version in numbers and dots; empty: no driver is needed
	Entries   int    `json:"entries"`
	Bytes     int64  `json:"bytes"` // of their blobs, each counted once
}

// Module is a [cache.Module] without its time.
type Module struct {
	Name    string       `json:"name"`
	Hash    cache.Digest `json:"hash"`
	Target  string       `json:"target"`
	Graph   Content      `json:"graph"`
	Entries list[int]    `json:"entries"` // indices of Config.Entries, ascending
}

// Content is the content of a layer.
type Content struct {
	Digest cache.Digest `json:"digest"`
	Size   int64        `json:"size"` // bytes; a graph of 0 bytes has no layer
}

// Entry is a [cache.Entry] without its time, compile duration and origin: these differ between machines that compile
// the same bytes.
type Entry struct {
	Piece    cache.Digest `json:"piece"` // this and the next five fields are the factors of the key
	Shape    string       `json:"shape"`
	Target   string       `json:"target"`
	Pipeline string       `json:"pipeline"`
	Externs  string       `json:"externs"`
	Format   int          `json:"format"`
	Blob     Content      `json:"blob"`
	Compiler string       `json:"compiler"`
}

// Key returns the key of the entry.
func (e *Entry) Key() cache.Key {
	return cache.Key{Piece: e.Piece, Shape: e.Shape, Target: e.Target, Pipeline: e.Pipeline, Externs: e.Externs, Format: e.Format}
}

// list is a JSON array of at most maxList elements. Without the limit, a text of a few megabytes ("[{},{},…]") would
// take tens of times its size in memory.
type list[T any] []T

// UnmarshalJSON decodes one element after the other, so that it stops at the limit.
func (l *list[T]) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errors.New("not an array")
	}
	*l = list[T]{}
	for d.More() {
		if len(*l) == maxList {
			return fmt.Errorf("an array of more than %d elements", maxList)
		}
		var v T
		if err := d.Decode(&v); err != nil {
			return err
		}
		*l = append(*l, v)
	}
	return nil
}

// module returns the module for the store, without its graph.
func (c *Config) module(m *Module) cache.Module {
	out := cache.Module{Name: m.Name, Hash: m.Hash, Target: m.Target, Entries: make([]cache.ModuleEntry, len(m.Entries))}
	for i, e := range m.Entries {
		out.Entries[i] = cache.ModuleEntry{ID: c.ids[e], Size: c.Entries[e].Blob.Size}
	}
	return out
}

// derive sets the fields that follow from modules and entries, and from the minimum driver of each target.
func (c *Config) derive(minDriver map[string]string) {
	c.Version, c.CacheFormat = ConfigVersion, cache.FormatVersion
	c.ProgramFormats, c.Pipelines, c.Targets, c.Bytes = list[int]{}, list[string]{}, list[Target]{}, 0
	if c.Entries == nil {
		c.Entries = list[Entry]{}
	}
	c.ids = make([]cache.ID, len(c.Entries))
	targets := map[string]*Target{}
	target := func(name string) *Target {
		t := targets[name]
		if t == nil {
			t = &Target{Name: name, MinDriver: minDriver[name]}
			targets[name] = t
		}
		return t
	}
	type blob struct {
		digest cache.Digest
		target string
	}
	counted := map[blob]bool{}
	count := func(b Content, target string, bytes *int64) {
		if at := (blob{b.Digest, target}); !counted[at] {
			counted[at] = true
			*bytes += b.Size
		}
	}
	formats, pipelines := map[int]bool{}, map[string]bool{}
	for i := range c.Entries {
		e := &c.Entries[i]
		c.ids[i] = e.Key().Sum()
		if !formats[e.Format] {
			formats[e.Format] = true
			c.ProgramFormats = append(c.ProgramFormats, e.Format)
		}
		if !pipelines[e.Pipeline] {
			pipelines[e.Pipeline] = true
			c.Pipelines = append(c.Pipelines, e.Pipeline)
		}
		t := target(e.Target)
		t.Entries++
		count(e.Blob, e.Target, &t.Bytes)
		count(e.Blob, "", &c.Bytes)
	}
	for i := range c.Modules {
		target(c.Modules[i].Target)
		count(c.Modules[i].Graph, "", &c.Bytes)
	}
	for _, t := range targets {
		c.Targets = append(c.Targets, *t)
	}
	slices.Sort(c.ProgramFormats)
	slices.Sort(c.Pipelines)
	slices.SortFunc(c.Targets, func(a, b Target) int { return strings.Compare(a.Name, b.Name) })
}

// validate returns an error about contents that an artifact cannot have. derive must run first.
func (c *Config) validate() error {
	if len(c.Modules) == 0 {
		return errors.New("no module")
	}
	if len(c.Modules) > maxList || len(c.Entries) > maxList || len(c.Targets) > maxList {
		return fmt.Errorf("%d modules, %d entries, %d targets; the limit for each is %d", len(c.Modules), len(c.Entries), len(c.Targets), maxList)
	}
	sizes := map[cache.Digest]int64{}
	graphs := map[cache.Digest]bool{}
	content := func(b Content, least int64) error {
		if b.Size < least || b.Size > cache.MaxBlob {
			return fmt.Errorf("%s has %d bytes, not from %d to %d", b.Digest, b.Size, least, cache.MaxBlob)
		}
		if size, seen := sizes[b.Digest]; seen && size != b.Size {
			return fmt.Errorf("%s has two sizes, %d and %d bytes", b.Digest, size, b.Size)
		}
		sizes[b.Digest] = b.Size
		return nil
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		if i > 0 && bytes.Compare(c.ids[i-1][:], c.ids[i][:]) >= 0 {
			return fmt.Errorf("entry %d is out of order", i)
		}
		if err := cmp.Or(e.Key().Validate(), checkText("compiler", e.Compiler), content(e.Blob, 1)); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
	}
	used := make([]bool, len(c.Entries))
	var last cache.ID
	for i := range c.Modules {
		m := &c.Modules[i]
		for j, e := range m.Entries {
			if e < 0 || e >= len(c.Entries) || j > 0 && m.Entries[j-1] >= e {
				return fmt.Errorf("module %d: entry %d is out of range or out of order", i, e)
			}
			used[e] = true
		}
		module := c.module(m)
		if err := cmp.Or(module.Validate(), content(m.Graph, 0)); err != nil {
			return fmt.Errorf("module %d: %w", i, err)
		}
		id := module.ID()
		if i > 0 && bytes.Compare(last[:], id[:]) >= 0 {
			return fmt.Errorf("module %d is out of order", i)
		}
		last, graphs[m.Graph.Digest] = id, true
	}
	if i := slices.Index(used, false); i >= 0 {
		return fmt.Errorf("entry %d belongs to no module", i)
	}
	for i := range c.Entries {
		if graphs[c.Entries[i].Blob.Digest] {
			return fmt.Errorf("%s is both a program and a graph", c.Entries[i].Blob.Digest)
		}
	}
	for i := range c.Targets {
		if d := c.Targets[i].MinDriver; d != "" {
			if _, err := parseVersion(d); err != nil {
				return fmt.Errorf("target %s: minimum driver %w", c.Targets[i].Name, err)
			}
		}
	}
	return nil
}

func checkText(what, s string) error {
	if len(s) > maxText || !utf8.ValidString(s) {
		return fmt.Errorf("%s %q is not UTF-8 of at most %d bytes", what, termsafe.Clip(s, 80), maxText)
	}
	return nil
}

// encode returns the JSON, without white space, in the order of the fields.
func (c *Config) encode() ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(c); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// parseConfig parses the output of encode for a valid config, and refuses any other text: each config has one text,
// and its summary cannot contradict its entries. The error does not name the source.
func parseConfig(text []byte) (*Config, error) {
	if len(text) > maxConfig {
		return nil, fmt.Errorf("%d bytes, above the limit of %d", len(text), maxConfig)
	}
	// A later version may have other fields, so only the version is decoded first.
	var version struct {
		Version     int `json:"version"`
		CacheFormat int `json:"cache_format"`
	}
	if err := exactjson.Unmarshal(text, &version); err != nil {
		return nil, fmt.Errorf("not JSON of a config: %w", err)
	}
	if version.Version != ConfigVersion {
		return nil, fmt.Errorf("it has version %d; this version of pwc supports version %d", version.Version, ConfigVersion)
	}
	if version.CacheFormat != cache.FormatVersion {
		return nil, fmt.Errorf("it has cache format %d; this version of pwc supports format %d", version.CacheFormat, cache.FormatVersion)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	given := &Config{}
	if err := d.Decode(given); err != nil {
		return nil, fmt.Errorf("not JSON of a config: %w", err)
	}
	minDriver := make(map[string]string, len(given.Targets))
	for _, t := range given.Targets {
		minDriver[t.Name] = t.MinDriver
	}
	c := &Config{Modules: given.Modules, Entries: given.Entries}
	c.derive(minDriver)
	if err := c.validate(); err != nil {
		return nil, err
	}
	again, err := c.encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, text) {
		return nil, errors.New("not in the canonical form: its summary contradicts its entries, or another tool wrote it")
	}
	return c, nil
}

// parseVersion parses up to eight numbers separated by dots, "570.86.10".
func parseVersion(s string) ([]int, error) {
	parts := strings.Split(s, ".")
	out := make([]int, len(parts))
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 || p[0] == '+' || p[0] == '-' || len(parts) > 8 {
			return nil, fmt.Errorf("%q is not up to eight numbers separated by dots", termsafe.Clip(s, 80))
		}
		out[i] = n
	}
	return out, nil
}

// olderVersion reports whether a is older than b; both are parsed.
func olderVersion(a, b []int) bool {
	trim := func(v []int) []int { // 12 is 12.0
		for len(v) > 0 && v[len(v)-1] == 0 {
			v = v[:len(v)-1]
		}
		return v
	}
	return slices.Compare(trim(a), trim(b)) < 0
}

// readBounded reads all of a text of at most limit bytes.
func readBounded(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("above the limit of %d bytes", limit)
	}
	return data, err
}
