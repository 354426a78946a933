package cache

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func goldenEntry() *Entry {
	return &Entry{
		Key:  Key{Piece: [32]byte{0xab, 31: 0x01}, Shape: "s0=[1, 512]", Target: "cuda:sm_90", Pipeline: "7", Externs: `my::gemm@"3"`, Format: 2},
		Blob: DigestOf(nil), Size: 0,
		Provenance: Provenance{Compiler: "nvrtc 12.8", Origin: "@forward item 2 (model.layers.0)", Duration: 1500 * time.Microsecond},
		Created:    time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

// The bytes of manifests, written by hand. A change needs another FormatVersion.
const goldenEntryText = `pwc cache entry 1
piece "ab00000000000000000000000000000000000000000000000000000000000001"
shape "s0=[1, 512]"
target "cuda:sm_90"
pipeline "7"
externs "my::gemm@\"3\""
format "2"
blob sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 0
compiler "nvrtc 12.8"
origin "@forward item 2 (model.layers.0)"
duration 1500000
created 2026-01-02T03:04:05Z
`

func sealed(body string) []byte {
	w := textWriter{buf: []byte(body)}
	return w.seal()
}

func TestEntryGolden(t *testing.T) {
	want := goldenEntryText + "sum " + DigestOf([]byte(goldenEntryText)).String() + "\n"
	if diff := cmp.Diff(want, string(goldenEntry().encode())); diff != "" {
		t.Error(diff)
	}
	got, err := parseEntry([]byte(want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(goldenEntry(), got); diff != "" {
		t.Error(diff)
	}
}

const goldenModuleText = `pwc cache module 1
name "toy"
hash sha256:0100000000000000000000000000000000000000000000000000000000000000
target "host"
entry 0200000000000000000000000000000000000000000000000000000000000000 12
entry 0300000000000000000000000000000000000000000000000000000000000000 34
graph sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 0
created 2026-01-02T03:04:05Z
`

func goldenModule() *Module {
	return &Module{Name: "toy", Hash: [32]byte{1}, Target: "host", Entries: []ModuleEntry{{ID{2}, 12}, {ID{3}, 34}},
		Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), graphDigest: DigestOf(nil)}
}

func TestModuleGolden(t *testing.T) {
	want := goldenModuleText + "sum " + DigestOf([]byte(goldenModuleText)).String() + "\n"
	if diff := cmp.Diff(want, string(goldenModule().encode())); diff != "" {
		t.Error(diff)
	}
	got, err := parseModule([]byte(want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(goldenModule(), got, cmp.AllowUnexported(Module{})); diff != "" {
		t.Error(diff)
	}
}

// A writer of the directory can compute a valid checksum for any text, so the parser must
// check every other rule.
func TestManifestRefused(t *testing.T) {
	entry := func(old, new string) []byte { return sealed(strings.Replace(goldenEntryText, old, new, 1)) }
	module := func(old, new string) []byte { return sealed(strings.Replace(goldenModuleText, old, new, 1)) }
	for _, c := range []struct {
		name   string
		data   []byte
		reason string
	}{
		{"empty", nil, "does not begin"},
		{"another version", entry("entry 1", "entry 2"), "does not begin"},
		{"no sum", []byte(goldenEntryText), "truncated"},
		{"cut sum", entry("", "")[:len(entry("", ""))-1], "truncated"},
		{"changed", bytes.Replace(entry("", ""), []byte("sm_90"), []byte("sm_80"), 1), "checksum"},
		{"text after the sum", append(entry("", ""), "format \"2\"\n"...), "checksum"},
		{"unknown field", entry("format", "path \"/tmp\"\nformat"), `unknown field "path"`},
		{"order", entry("shape \"s0=[1, 512]\"\ntarget \"cuda:sm_90\"", "target \"cuda:sm_90\"\nshape \"s0=[1, 512]\""), "canonical"},
		{"twice", entry("target", "target \"x\"\ntarget"), "canonical"},
		{"missing field", entry("pipeline \"7\"\n", ""), "canonical"},
		{"path for a digest", entry("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "sha256:../../../../../../../../../../../../../../../../../../etc/shadow"), "hex digits"},
		{"path for a piece", entry(`"ab0`, `"../`), "hex digits"},
		{"upper case", entry("sha256:e3b0", "sha256:E3B0"), "hex digits"},
		{"negative size", entry("b855 0", "b855 -1"), "not a number"},
		{"padded size", entry("b855 0", "b855 00"), "canonical"},
		{"huge size", entry("b855 0", "b855 9223372036854775807"), "want 0 to"},
		{"no size", entry("b855 0", "b855"), "missing"},
		{"more values", entry("b855 0", "b855 0 0"), "text after its values"},
		{"negative duration", entry("1500000", "-1"), "not a number"},
		{"raw string", entry(`"7"`, "`7`"), "quoted"},
		{"open string", entry(`"7"`, `"7`), "quoted"},
		{"other escape", entry(`"7"`, `"\x37"`), "canonical"},
		{"not UTF-8", entry(`"7"`, `"\xff"`), "UTF-8"},
		{"time zone", entry("05Z", "05+00:00"), "not a time"},
		{"fraction", entry("05Z", "05.5Z"), "canonical"},
		{"carriage return", entry("\"7\"\n", "\"7\"\r\n"), "text after"},
		{"format in hex", entry(`format "2"`, `format "0x2"`), "not a number"},
		{"no target", entry(`target "cuda:sm_90"`, `target ""`), "without a target"},

		{"module: entries out of order", module("entry 02", "entry 04"), "out of order"},
		{"module: entry twice", module("entry 03", "entry 02"), "out of order"},
		{"module: path for an entry", module("entry 02", "entry ../"), "hex digits"},
		{"module: absolute name", module(`"toy"`, `"/etc/toy"`), "absolute"},
		{"module: Windows path", module(`"toy"`, `"C:\\toy"`), "backslash"},
		{"module: no name", module(`"toy"`, `""`), "empty"},
		{"module: negative size", module(" 12", " -12"), "not a number"},
		{"module: huge graph", module("b855 0", "b855 99999999999"), "want 0 to"},
		{"module: unknown field", module("name", "pin 1\nname"), "unknown field"},
		{"module: twice", module("name", "name \"x\"\nname"), "canonical"},
	} {
		var err error
		if strings.HasPrefix(c.name, "module: ") {
			_, err = parseModule(c.data)
		} else {
			_, err = parseEntry(c.data)
		}
		if err == nil || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %v; want %q", c.name, err, c.reason)
		}
	}
}

func TestEntryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String()
		e := &Entry{
			Key: Key{Piece: [32]byte{1 + rapid.Byte().Draw(t, "piece")%255}, Shape: text.Draw(t, "shape"), Target: "t" + text.Draw(t, "target"),
				Pipeline: text.Draw(t, "pipeline"), Externs: text.Draw(t, "externs"), Format: rapid.IntRange(1, 1<<30).Draw(t, "format")},
			Blob: Digest{rapid.Byte().Draw(t, "blob")}, Size: rapid.Int64Range(0, MaxBlob).Draw(t, "size"),
			Provenance: Provenance{Compiler: text.Draw(t, "compiler"), Origin: text.Draw(t, "origin"), Duration: time.Duration(rapid.Int64Min(0).Draw(t, "duration"))},
			Created:    time.Unix(rapid.Int64Range(0, 1<<37).Draw(t, "created"), 0).UTC(),
		}
		got, err := parseEntry(e.encode())
		if err != nil {
			t.Fatalf("%v\n%s", err, e.encode())
		}
		if diff := cmp.Diff(e, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestModuleID(t *testing.T) {
	m := goldenModule()
	id := m.ID()
	for name, change := range map[string]func(*Module){
		"name":    func(m *Module) { m.Name = "toy2" },
		"hash":    func(m *Module) { m.Hash[5]++ },
		"target":  func(m *Module) { m.Target = "cuda:sm_90" },
		"entries": func(m *Module) { m.Entries = m.Entries[:1] },
		"entry":   func(m *Module) { m.Entries[1].ID[4]++ },
	} {
		o := goldenModule()
		change(o)
		if o.ID() == id {
			t.Errorf("%s does not change the id", name)
		}
	}
	m.graphDigest, m.graphSize, m.Created, m.Entries[0].Size = Digest{9}, 9, time.Time{}, 9
	if m.ID() != id {
		t.Error("the graph, the time or a size changes the id")
	}
}

// A parser accepts only the bytes that the encoder writes for the value, and never
// panics.
func FuzzParse(f *testing.F) {
	f.Add(goldenEntry().encode())
	f.Add(goldenModule().encode())
	f.Add(testTuning.encode())
	f.Add([]byte(entryHeader + "\n"))
	f.Add([]byte(moduleHeader + "\nsum "))
	f.Add(sealed(goldenEntryText + "piece \""))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, data := range [][]byte{data, sealed(string(data))} {
			if e, err := parseEntry(data); err == nil && !bytes.Equal(e.encode(), data) {
				t.Errorf("entry: accepts a text that it does not write: %q", data)
			}
			if m, err := parseModule(data); err == nil && !bytes.Equal(m.encode(), data) {
				t.Errorf("module: accepts a text that it does not write: %q", data)
			}
			if r, err := parseTuning(data); err == nil && !bytes.Equal(r.encode(), data) {
				t.Errorf("tuning record: accepts a text that it does not write: %q", data)
			}
		}
	})
}

// docs/appendix/cache-format.md lists the fields in their order.
func TestDocumentedFormat(t *testing.T) {
	data, err := os.ReadFile("../docs/appendix/cache-format.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(data)
	for _, text := range []string{string(goldenEntry().encode()), string(goldenModule().encode()), string(testTuning.encode())} {
		header, fields, _ := strings.Cut(text, "\n")
		_, table, ok := strings.Cut(doc, "| `"+header+"` | the header |\n")
		if !ok {
			t.Errorf("no table of %q", header)
		}
		last := ""
		for line := range strings.Lines(fields) {
			word, _, _ := strings.Cut(line, " ")
			if word == last { // a list
				continue
			}
			row, rest, _ := strings.Cut(table, "\n")
			if !strings.HasPrefix(row, "| `"+word+" ") {
				t.Errorf("%s: %q stands where %s should be", header, row, word)
			}
			last, table = word, rest
		}
	}
}
