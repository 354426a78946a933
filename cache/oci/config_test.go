package oci

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"pgregory.net/rapid"

	"pwc/cache"
)

// hand is a config of one module, written by hand. Its digests are those of the texts "piece", "toy", "graph" and
// "blob", made with sha256sum.
const hand = `{"version":1,"cache_format":1,"program_formats":[1],"pipelines":["7 -cse"],` +
	`"targets":[{"target":"cuda:sm_90","min_driver":"525.60.13","entries":1,"bytes":4}],"bytes":9,` +
	`"modules":[{"name":"toy <&> \"quoted\"","hash":"sha256:0f53133ce57ca8e8937bb4b1c15a33ef9594704e1c11abd58e598bb8362f7385","target":"cuda:sm_90",` +
	`"graph":{"digest":"sha256:eef93e1d14482804277fca0172464032d1a4fdbcc338524059fa1e861454ad4d","size":5},"entries":[0]}],` +
	`"entries":[{"piece":"sha256:34235a2c502e3919d3f00af5dabb87cb58aef4566b10631f2a5db94950ebffbd","shape":"s0=[1, 512]","target":"cuda:sm_90","pipeline":"7 -cse",` +
	`"externs":"my::op 3","format":1,"blob":{"digest":"sha256:fa2c8cc4f28176bbeed4b736df569a34c79cd3723e9ec42f9674b4d46ac6b8b8","size":4},"compiler":"nvrtc 12.8"}]}`

// TestConfigGolden fixes the bytes of a config: users have written down digests that depend on them. A change needs a
// new ConfigVersion.
func TestConfigGolden(t *testing.T) {
	c, err := parseConfig([]byte(hand))
	if err != nil {
		t.Fatal(err)
	}
	m, e := c.Modules[0], c.Entries[0]
	if m.Name != `toy <&> "quoted"` || m.Graph.Size != 5 || e.Shape != "s0=[1, 512]" || e.Externs != "my::op 3" || e.Compiler != "nvrtc 12.8" || e.Blob.Size != 4 ||
		c.Targets[0].MinDriver != "525.60.13" || e.Blob.Digest != cache.DigestOf([]byte("blob")) {
		t.Errorf("%+v", c)
	}
	made := &Config{Modules: []Module{m}, Entries: []Entry{e}}
	made.derive(map[string]string{"cuda:sm_90": "525.60.13"})
	if text, err := made.encode(); err != nil || string(text) != hand {
		t.Errorf("%s, %v", text, err)
	}
}

// TestConfigContents checks that a digest has one size and one kind, that a text has a limit, and that lists are in
// order.
func TestConfigContents(t *testing.T) {
	parsed := func() *Config {
		c, err := parseConfig([]byte(hand))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	refuse := func(c *Config, want string) {
		t.Helper()
		c.derive(nil)
		text, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		_, err = parseConfig(text)
		wantErr(t, err, want)
	}
	c := parsed()
	c.Modules[0].Graph = c.Entries[0].Blob
	refuse(c, "is both a program and a graph")
	c = parsed()
	c.Modules[0].Graph = Content{c.Entries[0].Blob.Digest, 7}
	refuse(c, "has two sizes, 4 and 7 bytes")
	c = parsed()
	c.Entries[0].Compiler = strings.Repeat("x", maxText+1)
	refuse(c, "compiler")

	s := filled(t, 2)
	fill(t, s, "other", "host", 0, 2)
	packed := func() *Config {
		a, err := pack(t.Context(), s, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return a.config
	}
	c = packed()
	c.Entries[0], c.Entries[1] = c.Entries[1], c.Entries[0]
	refuse(c, "entry 1 is out of order")
	c = packed()
	c.Entries[1] = c.Entries[0]
	refuse(c, "entry 1 is out of order")
	c = packed()
	c.Modules[0], c.Modules[1] = c.Modules[1], c.Modules[0]
	refuse(c, "module 1 is out of order")
	c = packed()
	c.Modules[1] = c.Modules[0]
	refuse(c, "module 1 is out of order")
}

// TestTooMuch checks that no artifact is made whose entries, layers or config exceed the limits of a reader.
func TestTooMuch(t *testing.T) {
	many := func(n int, shape string, size int) *Config {
		c := &Config{Modules: []Module{{Name: "toy", Hash: cache.Digest{1}, Target: "host", Entries: list[int]{}}}}
		ids := map[cache.Digest]cache.ID{} // id by piece
		for i := range n {
			e := Entry{Piece: cache.DigestOf(fmt.Append(nil, i)), Shape: shape, Target: "host", Format: 1, Blob: Content{cache.DigestOf(fmt.Append(nil, i%size)), 9}}
			c.Entries, ids[e.Piece] = append(c.Entries, e), e.Key().Sum()
			c.Modules[0].Entries = append(c.Modules[0].Entries, i)
		}
		slices.SortFunc(c.Entries, func(a, b Entry) int { x, y := ids[a.Piece], ids[b.Piece]; return bytes.Compare(x[:], y[:]) })
		c.derive(nil)
		return c
	}
	if err := many(maxList, "", 1).validate(); err != nil {
		t.Error(err)
	}
	wantErr(t, many(maxList+1, "", 1).validate(), "32769 entries")
	_, err := assemble(many(32_000, "", 32_000), nil)
	wantErr(t, err, "the manifest of 32000 layers", "fewer modules")
	_, err = assemble(many(300, strings.Repeat("x", maxText), 300), nil)
	wantErr(t, err, "its config", "fewer modules")
}

// TestConfigBounds checks the limits of lists, and of the memory that parsing takes.
func TestConfigBounds(t *testing.T) {
	for _, element := range []string{"{}", "[]", "0", `""`} {
		for _, field := range []string{"entries", "modules", "pipelines", "program_formats", "targets"} {
			text := `{"version":1,"cache_format":1,"` + field + `":[` + strings.Repeat(element+",", 1<<20/(len(element)+1)) + element + `]}`
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := parseConfig([]byte(text))
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Fatalf("a list of %q was taken as %s", element, field)
			}
			// Measured: 5 to 36 MB, most of it copies of the text and 32768 elements.
			if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
				t.Errorf("%d bytes were allocated for %s of %q", used, field, element)
			}
		}
	}
	if _, err := parseConfig(make([]byte, maxConfig+1)); err == nil || !strings.Contains(err.Error(), "above the limit") {
		t.Error(err)
	}
	layer := `{"mediaType":"x"}`
	text := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":[` + strings.Repeat(layer+",", maxList) + layer + `]}`
	if _, _, err := parseManifest([]byte(text)); err == nil || !strings.Contains(err.Error(), "more than 32768") {
		t.Errorf("manifest of too many layers: %v", err)
	}
	deep := strings.Repeat("[", 1<<20)
	if _, err := parseConfig([]byte(deep)); err == nil {
		t.Error("nested a million times")
	}
}

// drawConfig draws a config that pack could make.
func drawConfig(t *rapid.T) *Config {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab \"\\<>&\u2028é\n\x00")), 0, 8, -1)
	targets := rapid.SampledFrom([]string{"host", "cuda:sm_80", "cuda:sm_90"})
	c := &Config{}
	seen := map[cache.ID]bool{}
	for range rapid.IntRange(0, 6).Draw(t, "entries") {
		blob := []byte(fmt.Sprint("blob", rapid.IntRange(0, 3).Draw(t, "blob")))
		e := Entry{Piece: cache.DigestOf([]byte(text.Draw(t, "piece"))), Shape: text.Draw(t, "shape"), Target: targets.Draw(t, "target"), Pipeline: text.Draw(t, "pipeline"),
			Externs: text.Draw(t, "externs"), Format: rapid.IntRange(1, 3).Draw(t, "format"), Blob: Content{cache.DigestOf(blob), int64(len(blob))}, Compiler: text.Draw(t, "compiler")}
		if id := cache.ID(e.Key().Sum()); !seen[id] {
			seen[id] = true
			c.Entries = append(c.Entries, e)
		}
	}
	slices.SortFunc(c.Entries, func(a, b Entry) int { x, y := a.Key().Sum(), b.Key().Sum(); return bytes.Compare(x[:], y[:]) })
	all := list[int]{}
	for i := range c.Entries {
		all = append(all, i)
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "modules") {
		graph := []byte(fmt.Sprint("graph", i))
		m := Module{Name: "m" + text.Draw(t, "name"), Hash: sha256.Sum256(graph), Target: targets.Draw(t, "target"), Graph: Content{cache.DigestOf(graph), int64(len(graph))}, Entries: all}
		if i > 0 {
			m.Entries = list[int]{}
			for e := range c.Entries {
				if rapid.Bool().Draw(t, "uses") {
					m.Entries = append(m.Entries, e)
				}
			}
		}
		m.Name = strings.ReplaceAll(m.Name, `\`, "")
		c.Modules = append(c.Modules, m)
	}
	drivers := map[string]string{}
	if rapid.Bool().Draw(t, "driver") {
		drivers["cuda:sm_90"] = "525.60.13"
	}
	c.derive(drivers)
	slices.SortFunc(c.Modules, func(a, b Module) int {
		x, y := c.module(&a), c.module(&b)
		i, j := x.ID(), y.ID()
		return bytes.Compare(i[:], j[:])
	})
	return c
}

// TestConfigRoundTrip checks that an encoded config parses to the same config, and that the manifest has the config's
// digest and size, and layers with as many bytes as the config says.
func TestConfigRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		text, err := c.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseConfig(text)
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if other, err := again.encode(); err != nil || !bytes.Equal(other, text) {
			t.Fatalf("%v:\n%s\n%s", err, text, other)
		}
		byName := slices.IsSortedFunc(c.Targets, func(a, b Target) int { return strings.Compare(a.Name, b.Name) })
		if !slices.IsSorted(c.Pipelines) || !slices.IsSorted(c.ProgramFormats) || !byName {
			t.Fatalf("not in order:\n%s", text)
		}
		a, err := assemble(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := a.manifest.load(nil)
		if err != nil {
			t.Fatal(err)
		}
		config, layers, err := parseManifest(manifest)
		if err != nil {
			t.Fatal(err)
		}
		if config.Digest.String() != cache.DigestOf(text).String() || config.Size != int64(len(text)) {
			t.Fatalf("the manifest names the config %s", config.Digest)
		}
		if err := again.checkLayers(layers); err != nil {
			t.Fatal(err)
		}
		var sum int64
		for _, l := range layers {
			sum += l.Size
		}
		if sum != c.Bytes {
			t.Fatalf("layers of %d bytes, the config says %d", sum, c.Bytes)
		}
	})
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(hand))
	f.Add([]byte(strings.Replace(hand, `"entries":[0]`, `"entries":[0,0]`, 1)))
	f.Add([]byte(`{"version":1,"cache_format":1,"modules":null,"entries":[{}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseConfig(text)
		if err != nil {
			return
		}
		if again, err := c.encode(); err != nil || !bytes.Equal(again, text) {
			t.Fatalf("a text that is not canonical was taken (%v):\n%s\n%s", err, text, again)
		}
		for i := range c.Modules {
			m := c.module(&c.Modules[i])
			if err := m.Validate(); err != nil {
				t.Fatalf("a module that cannot be kept: %v", err)
			}
		}
		for i := range c.Entries {
			if err := c.Entries[i].Key().Validate(); err != nil {
				t.Fatalf("a key that cannot be kept: %v", err)
			}
		}
		if _, err := assemble(c, nil); err != nil && len(c.layers()) > 0 {
			t.Fatal(err)
		}
		o := Options{Machine: Machine{Targets: []string{"host", "cuda:sm_90"}, Driver: "550"}}
		(&Info{Config: c}).Usable(o)
	})
}

func FuzzManifest(f *testing.F) {
	good, err := json.Marshal(ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, ArtifactType: ArtifactType,
		Config: inline(ConfigMediaType, []byte(hand)).Descriptor, Layers: []ocispec.Descriptor{{MediaType: BlobMediaType, Size: 4}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Replace(good, []byte(`"schemaVersion":0`), []byte(`"schemaVersion":2`), 1))
	f.Fuzz(func(t *testing.T, text []byte) {
		config, layers, err := parseManifest(text)
		if err != nil {
			return
		}
		if _, err := cache.ParseDigest(config.Digest.String()); err != nil || config.Size <= 0 || config.Size > maxConfig || len(layers) > maxList {
			t.Fatalf("%+v, %d layers", config, len(layers))
		}
	})
}
