package safetensors

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// OpenDir reads the files that transformers reads, and refuses a directory with two
// checkpoints.
func TestOpenDirChooses(t *testing.T) {
	const both = `{"weight_map": {"b": "model-2.safetensors", "a": "model-1.safetensors"}}`
	for _, c := range []struct {
		name   string
		single bool
		index  string   // empty: none
		remove []string // of the shards
		names  []string // of the tensors; nil: refused
		want   string   // of the error, or of the notes
	}{
		{"nothing", false, "", []string{"model-1.safetensors", "model-2.safetensors"}, nil, "neither model.safetensors nor"},
		{"shards without an index", false, "", nil, nil, "neither model.safetensors nor"},
		{"the single file, and shards without an index", true, "", nil, []string{"s"}, `"model-1.safetensors" is not read: it is not one of the checkpoint's files, "model.safetensors"`},
		{"the single file alone", true, "", []string{"model-1.safetensors", "model-2.safetensors"}, []string{"s"}, ""},
		{"an index of the single file", true, `{"weight_map": {"s": "model.safetensors"}}`, []string{"model-1.safetensors", "model-2.safetensors"}, []string{"s"}, ""},
		{"an index of the single file, wrong", true, `{"weight_map": {"x": "model.safetensors"}}`, nil, nil, `tensor "x": weight_map places it in model.safetensors`},
		{"both", true, both, nil, nil, "the directory has two checkpoints: model.safetensors, and 2 of the 2 files"},
		{"both, some shards", true, both, []string{"model-1.safetensors"}, nil, "the directory has two checkpoints: model.safetensors, and 1 of the 2 files"},
		{"an index without its shards", true, both, []string{"model-1.safetensors", "model-2.safetensors"}, []string{"s"}, "model.safetensors is read; the 2 files that model.safetensors.index.json names do not exist"},
		{"the index", false, both, nil, []string{"a", "b", "extra"}, ""},
		{"an index without a shard", false, both, []string{"model-2.safetensors"}, nil, `1 of the 2 files that model.safetensors.index.json names are missing: "model-2.safetensors"`},
		{"a shard too many", false, `{"weight_map": {"a": "model-1.safetensors"}}`, nil, []string{"a", "extra"}, `"model-2.safetensors" is not read`},
		{"a pointer for an index", false, "version https://git-lfs.github.com/spec/v1\n", nil, nil, "model.safetensors.index.json: it is a Git LFS pointer"},
	} {
		dir := shards(t, c.index)
		if c.index == "" {
			c.remove = append(c.remove, IndexFile)
		}
		for _, name := range c.remove {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if c.single {
			write(t, filepath.Join(dir, SingleFile), u8("s", 1))
		}
		s, err := OpenDir(dir)
		if (err == nil) != (c.names != nil) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: error %v, want …%s…", c.name, err, c.want)
			}
			continue
		}
		notes := strings.Join(s.Notes(), "\n")
		if got := s.Names(); !slices.Equal(got, c.names) || !strings.Contains(notes, c.want) || c.want == "" && notes != "" {
			t.Errorf("%s: tensors %q, notes %q", c.name, got, notes)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := OpenDir(shards(t, strings.ReplaceAll(both, "model-1", "model-7"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing shard: %v", err)
	}
}
