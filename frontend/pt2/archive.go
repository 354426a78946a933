package pt2

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"pwc/internal/exactjson"
	"pwc/internal/openfile"
	"pwc/internal/termsafe"
)

// Limits of an archive. Entries are stored uncompressed, so no entry is larger than the file.
const (
	maxEntries = 1 << 20
	maxGraph   = 1 << 30 // bytes of the graph's JSON; a model of 10,000 nodes has 10 MB
	maxConfig  = 1 << 28 // bytes of a JSON file that describes weights or constants
	maxNodes   = 1 << 20
)

// resave is the advice in errors about formats that are not supported.
const resave = "re-save it with torch.export.save of torch ≥ 2.9"

// pickled are entries that only archives of earlier formats have.
var pickled = []string{"serialized_exported_program.json", "serialized_state_dict.pt", "serialized_state_dict.json"}

// Archive is an open archive of one exported program. It is a [safetensors.Source] of the program's tensors:
// parameters and buffers have their names in the state dict, constants the names that the graph signature gives them.
// It is safe for concurrent use, except for Close.
type Archive struct {
	path    string
	file    *os.File // nil if the archive is in memory
	root    string   // the folder that all entries are in
	model   string   // name of the exported program
	entries map[string]*zip.File
	program exportedProgram
	tensors map[string]*payload
	names   []string // of tensors, sorted
}

// Open opens an archive, and checks its structure, its versions and, for dtypes that the IR has, the place of each
// tensor. The error wraps a [*FormatError] or an error of the system.
func Open(path string) (*Archive, error) {
	f, info, err := openfile.Regular(path)
	if err != nil {
		return nil, fmt.Errorf("pt2: %w", err)
	}
	a := &Archive{path: path, file: f}
	if err := a.read(f, info.Size()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return a, nil
}

// Read is [Open] for an archive of size bytes in memory.
func Read(r io.ReaderAt, size int64) (*Archive, error) {
	a := &Archive{}
	if err := a.read(r, size); err != nil {
		return nil, err
	}
	return a, nil
}

// Close closes the file. Tensors that were read stay valid.
func (a *Archive) Close() error {
	if a.file == nil {
		return nil
	}
	f := a.file
	a.file = nil
	return f.Close()
}

// TorchVersion returns the version of PyTorch that wrote the archive.
func (a *Archive) TorchVersion() string { return a.program.TorchVersion }

func (a *Archive) errorf(entry, format string, args ...any) error {
	return &FormatError{File: a.path, Entry: entry, Reason: fmt.Sprintf(format, args...)}
}

func (a *Archive) read(r io.ReaderAt, size int64) error {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return a.errorf("", "it is not a zip file (%v)", err)
	}
	for _, f := range z.File {
		if slices.Contains(pickled, path.Base(f.Name)) {
			return a.errorf("", "it has the format of torch before 2.8, with pickled tensors: %s", resave)
		}
	}
	if err := a.index(z, size); err != nil {
		return err
	}
	if err := a.checkFormat(); err != nil {
		return err
	}
	if err := a.readGraph(); err != nil {
		return err
	}
	return a.readPayloads()
}

// index checks the directory of the zip file: names, sizes, and that no byte is in two entries.
func (a *Archive) index(z *zip.Reader, size int64) error {
	if len(z.File) == 0 || len(z.File) > maxEntries {
		return a.errorf("", "it has %d entries; an archive has from 1 to %d", len(z.File), maxEntries)
	}
	a.entries = make(map[string]*zip.File, len(z.File))
	a.root, _, _ = strings.Cut(z.File[0].Name, "/")
	type span struct{ from, to int64 }
	var spans []span
	for _, f := range z.File {
		name, ok := strings.CutPrefix(f.Name, a.root+"/")
		shown := termsafe.Clip(f.Name, 200)
		offset, err := f.DataOffset()
		switch {
		case !ok || name == "" || path.Clean(f.Name) != f.Name || strings.ContainsAny(f.Name, "\\\x00"):
			return a.errorf(shown, "it is not a path below %s/", termsafe.Clip(a.root, 80))
		case a.entries[name] != nil:
			return a.errorf(shown, "the archive has two entries of this name")
		case f.Method != zip.Store || f.CompressedSize64 != f.UncompressedSize64:
			return a.errorf(shown, "the entry is compressed; torch.export.save stores entries as they are")
		case err != nil:
			return a.errorf(shown, "%v", err)
		case f.UncompressedSize64 > uint64(size) || offset > size-int64(f.UncompressedSize64):
			return a.errorf(shown, "the entry has %d bytes and ends beyond the file, which has %d", f.UncompressedSize64, size)
		}
		a.entries[name] = f
		if f.UncompressedSize64 > 0 {
			spans = append(spans, span{offset, offset + int64(f.UncompressedSize64)})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return int(min(1, max(-1, a.from-b.from))) })
	for i := 1; i < len(spans); i++ {
		if spans[i].from < spans[i-1].to {
			return a.errorf("", "entries overlap at byte %d", spans[i].from)
		}
	}
	return nil
}

// bytes reads an entry of at most limit bytes and checks its CRC.
func (a *Archive) bytes(name string, limit int64) ([]byte, error) {
	f := a.entries[name]
	if f == nil {
		return nil, a.errorf(termsafe.Clip(name, 200), "the archive has no such entry")
	}
	if f.UncompressedSize64 > uint64(limit) {
		return nil, a.errorf(termsafe.Clip(name, 200), "it has %d bytes; the limit is %d", f.UncompressedSize64, limit)
	}
	r, err := f.Open()
	if err != nil {
		return nil, a.errorf(termsafe.Clip(name, 200), "%v", err)
	}
	defer r.Close()
	out := make([]byte, f.UncompressedSize64)
	if _, err := io.ReadFull(r, out); err != nil {
		return nil, a.errorf(termsafe.Clip(name, 200), "%v", err)
	}
	// The reader checks the CRC when it reaches the end.
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		return nil, a.errorf(termsafe.Clip(name, 200), "%v", err)
	}
	return out, nil
}

// text returns a short entry, trimmed of white space; empty if the archive does not have the entry.
func (a *Archive) text(name string) (string, error) {
	if a.entries[name] == nil {
		return "", nil
	}
	b, err := a.bytes(name, 1<<10)
	return strings.TrimSpace(string(b)), err
}

// checkFormat refuses other formats and versions of archives, and finds the exported program.
func (a *Archive) checkFormat() error {
	format, err := a.text("archive_format")
	if err != nil {
		return err
	}
	version, err := a.text("archive_version")
	if err != nil {
		return err
	}
	order, err := a.text("byteorder")
	switch {
	case err != nil:
		return err
	case format == "" && a.entries["data.pkl"] != nil:
		return a.errorf("", "it is a file of torch.save or TorchScript, not of torch.export.save")
	case format != "pt2":
		return a.errorf("archive_format", "it contains %q, not \"pt2\": the file is not an archive of torch.export.save", termsafe.Clip(format, 40))
	case version != "" && version != "0":
		return a.errorf("archive_version", "version %s of the archive is not supported; version 0 is", termsafe.Clip(version, 20))
	case order != "" && order != "little":
		return a.errorf("byteorder", "tensors are %q-endian; only little-endian is supported", termsafe.Clip(order, 20))
	}
	var models []string
	for name := range a.entries {
		if rest, ok := strings.CutPrefix(name, "models/"); ok && strings.HasSuffix(rest, ".json") && !strings.Contains(rest, "/") {
			models = append(models, strings.TrimSuffix(rest, ".json"))
		}
	}
	slices.Sort(models)
	switch {
	case len(models) == 1:
		a.model = models[0]
	case len(models) == 0 && a.compiled():
		return a.errorf("", "it has code that AOTInductor compiled and no exported program; save the program with torch.export.save")
	case len(models) == 0:
		return a.errorf("", "it has no exported program (models/*.json): %s", resave)
	default:
		return a.errorf("", "it has %d exported programs (%s); save each in an archive of its own", len(models), termsafe.Names(models))
	}
	return nil
}

// compiled reports whether the archive has code of AOTInductor.
func (a *Archive) compiled() bool {
	for name := range a.entries {
		if strings.HasPrefix(name, "data/aotinductor/") {
			return true
		}
	}
	return false
}

// readGraph decodes the exported program and checks its version.
func (a *Archive) readGraph() error {
	name := "models/" + a.model + ".json"
	text, err := a.bytes(name, maxGraph)
	if err != nil {
		return err
	}
	shown := termsafe.Clip(name, 100)
	// The version defines the meaning of all other fields, so it is checked first.
	var version struct {
		SchemaVersion *schemaVersion `json:"schema_version"`
	}
	if err := exactjson.Unmarshal(text, &version); err != nil {
		return a.errorf(shown, "%v", err)
	}
	switch v := version.SchemaVersion; {
	case v == nil:
		return a.errorf(shown, "it has no schema_version")
	case v.Major != schemaMajor:
		return a.errorf(shown, "version %d.%d of the schema is not supported; versions %d.x are", v.Major, v.Minor, schemaMajor)
	}
	if err := exactjson.Unmarshal(text, &a.program); err != nil {
		return a.errorf(shown, "%v", err)
	}
	if n := a.program.GraphModule.Graph.nodes(); n > maxNodes {
		return a.errorf(shown, "the graph has %d nodes; the limit is %d", n, maxNodes)
	}
	return nil
}
