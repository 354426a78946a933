package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"pwc/internal/openfile"
	"pwc/internal/termsafe"
)

// The file names of a checkpoint directory, as Hugging Face's save_pretrained writes them.
const (
	SingleFile = "model.safetensors"            // a checkpoint of one file
	IndexFile  = "model.safetensors.index.json" // weight_map of a checkpoint in shards
)

// Set is the open checkpoint of a directory: one file or several shards. It is safe for
// concurrent use, except Close (see [File]).
type Set struct {
	files []*File
	names []string         // of all shards, sorted
	home  map[string]*File // by tensor: its shard
	dir   string
	notes []string
}

// ErrNoCheckpoint is wrapped by OpenDir's error for a directory with neither SingleFile nor IndexFile.
var ErrNoCheckpoint = errors.New("no checkpoint")

// OpenDir opens a checkpoint directory: model.safetensors if it exists, otherwise the shards of
// model.safetensors.index.json, as transformers does (modeling_utils.py). It refuses a missing
// shard, a tensor in two shards, an index that places a tensor in a shard without it, and
// model.safetensors next to shards of an index, because one of the two checkpoints is stale. If
// model.safetensors exists and no shard of the index does, it opens model.safetensors, with a note
// ([Set.Notes]). The Set has all tensors of the shards, also those that the index does not list.
func OpenDir(dir string) (*Set, error) {
	l, err := layoutOf(dir)
	if err != nil {
		return nil, err
	}
	s := &Set{home: map[string]*File{}, dir: dir, notes: l.notes}
	if err := s.open(l.shards, l.placed); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Notes returns a sentence for each unexpected property of the directory: a file model*.safetensors that is not
// read, or an index whose shards do not exist.
func (s *Set) Notes() []string { return slices.Clone(s.notes) }

func (s *Set) open(shards []string, placed []placement) error {
	byName := make(map[string]*File, len(shards))
	for _, shard := range shards {
		f, err := Open(filepath.Join(s.dir, shard))
		if err != nil {
			return err
		}
		s.files = append(s.files, f)
		byName[shard] = f
		for _, name := range f.Names() {
			if other, dup := s.home[name]; dup {
				return &FormatError{File: f.path, Tensor: name, Reason: "is in " + filepath.Base(other.path) + " too"}
			}
			s.home[name] = f
			s.names = append(s.names, name)
		}
	}
	slices.Sort(s.names)
	for _, p := range placed {
		if _, ok := byName[p.shard].index[p.tensor]; !ok {
			return &FormatError{File: filepath.Join(s.dir, IndexFile), Tensor: p.tensor,
				Reason: "weight_map places it in " + p.shard + ", which does not contain it"}
		}
	}
	return nil
}

// Names returns the names of all tensors, sorted.
func (s *Set) Names() []string { return slices.Clone(s.names) }

// Info describes a tensor, like [File.Info].
func (s *Set) Info(name string) (Info, error) {
	f, ok := s.home[name]
	if !ok {
		return Info{}, tensorError(s.dir, name, ErrNotFound)
	}
	return f.Info(name)
}

// Tensor returns a tensor that aliases its shard's mapping, like [File.Tensor].
func (s *Set) Tensor(name string) (Tensor, error) {
	f, ok := s.home[name]
	if !ok {
		return Tensor{}, tensorError(s.dir, name, ErrNotFound)
	}
	return f.Tensor(name)
}

// Close closes every shard; see [File.Close].
func (s *Set) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// placement is one pair of an index's weight_map.
type placement struct{ tensor, shard string }

// layout has the files of a directory's checkpoint.
type layout struct {
	shards []string    // sorted
	placed []placement // pairs of the index; empty without one
	notes  []string    // Set.Notes
}

// layoutOf determines the checkpoint's files in a directory.
func layoutOf(dir string) (*layout, error) {
	single, err := exists(dir, SingleFile)
	if err != nil {
		return nil, err
	}
	placed, err := readIndex(filepath.Join(dir, IndexFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l := &layout{placed: placed}
	for _, p := range placed {
		l.shards = append(l.shards, p.shard)
	}
	slices.Sort(l.shards)
	l.shards = slices.Compact(l.shards)
	var missing []string
	for _, name := range l.shards {
		there, err := exists(dir, name)
		if err != nil {
			return nil, err
		}
		if !there {
			missing = append(missing, termsafe.Quote(name))
		}
	}
	switch {
	case !single && len(placed) == 0:
		return nil, fmt.Errorf("safetensors: %s: %w: it has neither %s nor %s", dir, ErrNoCheckpoint, SingleFile, IndexFile)
	case single && len(placed) == 0:
		l.shards = []string{SingleFile}
	case slices.Equal(l.shards, []string{SingleFile}):
	case single && len(missing) == len(l.shards):
		l.notes = append(l.notes, fmt.Sprintf("%s is read; the %d files that %s names do not exist", SingleFile, len(l.shards), IndexFile))
		l.shards, l.placed = []string{SingleFile}, nil
	case single:
		return nil, fmt.Errorf("safetensors: %s: the directory has two checkpoints: %s, and %d of the %d files that %s names; remove the one that is stale (transformers reads %s)",
			dir, SingleFile, len(l.shards)-len(missing), len(l.shards), IndexFile, SingleFile)
	case len(missing) > 0:
		const shown = 4
		more := ""
		if n := len(missing) - shown; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		return nil, fmt.Errorf("safetensors: %s: %d of the %d files that %s names are missing: %s%s: %w",
			dir, len(missing), len(l.shards), IndexFile, strings.Join(missing[:min(shown, len(missing))], ", "), more, fs.ErrNotExist)
	}
	return l, l.noteOthers(dir)
}

// noteOthers notes files that are named like shards and are not read.
func (l *layout) noteOthers(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if ok, _ := filepath.Match("model*.safetensors", name); ok && !slices.Contains(l.shards, name) {
			l.notes = append(l.notes, fmt.Sprintf("%s is not read: it is not one of the checkpoint's files, %s", termsafe.Quote(name), termsafe.Quote(l.shards[0])))
			if len(l.shards) > 1 {
				l.notes[len(l.notes)-1] += fmt.Sprintf(" and %d more", len(l.shards)-1)
			}
		}
	}
	return nil
}

func exists(dir, name string) (bool, error) {
	switch _, err := os.Stat(filepath.Join(dir, name)); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	default:
		return false, fmt.Errorf("safetensors: %w", err)
	}
}

// readIndex reads an index of at most MaxHeader bytes.
func readIndex(path string) ([]placement, error) {
	text, err := openfile.Read(path, MaxHeader)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	placed, err := parseIndex(text)
	if fe, ok := errors.AsType[*FormatError](err); ok {
		fe.File = path
	}
	return placed, err
}

// parseIndex reads the weight_map of an index, in its order. It skips other keys, such as totals.
func parseIndex(text []byte) ([]placement, error) {
	if what := openfile.Placeholder(text); what != "" {
		return nil, fault("", "%s", what)
	}
	if !utf8.Valid(text) {
		return nil, fault("", "index is not UTF-8")
	}
	p := headerParser{dec: json.NewDecoder(bytes.NewReader(text)), what: "index", seen: map[string]bool{}}
	p.dec.UseNumber()
	if err := p.delim('{', "index"); err != nil {
		return nil, err
	}
	var placed []placement
	for p.dec.More() {
		key, err := p.key()
		if err != nil {
			return nil, err
		}
		if p.seen[key] {
			return nil, fault("", "key %s appears twice in the index", termsafe.Quote(key))
		}
		p.seen[key] = true
		if key == "weight_map" {
			placed, err = p.weightMap()
		} else {
			var skipped json.RawMessage
			if e := p.dec.Decode(&skipped); e != nil {
				err = fault("", "index is not JSON: %v", e)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if err := p.delim('}', "index"); err != nil {
		return nil, err
	}
	if t, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fault("", "%s follows the index's JSON object", describe(t, err))
	}
	if len(placed) == 0 {
		return nil, fault("", "index has no weight_map, or an empty one")
	}
	return placed, nil
}

func (p *headerParser) weightMap() ([]placement, error) {
	if err := p.delim('{', "weight_map"); err != nil {
		return nil, err
	}
	var placed []placement
	seen := map[string]bool{}
	for p.dec.More() {
		name, err := p.key()
		if err != nil {
			return nil, err
		}
		if seen[name] {
			return nil, fault(name, "appears twice in weight_map")
		}
		seen[name] = true
		t, err := p.token()
		if err != nil {
			return nil, err
		}
		shard, ok := t.(string)
		if !ok {
			return nil, fault(name, "weight_map gives %s, not a file name", describe(t, nil))
		}
		if !plainName(shard) {
			return nil, fault(name, "weight_map gives %s, which is not a plain file name", termsafe.Quote(shard))
		}
		placed = append(placed, placement{name, shard})
	}
	return placed, p.delim('}', "weight_map")
}

// plainName reports whether a shard's name is printable and stays in its directory on every platform.
func plainName(s string) bool {
	printable := !strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) })
	return s != "" && s != "." && s != ".." && filepath.IsLocal(s) && printable && !strings.ContainsAny(s, "/\\:")
}
