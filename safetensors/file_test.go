package safetensors

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/ir/dtype"
)

var (
	_ Source = (*File)(nil)
	_ Source = (*Set)(nil)
)

func u8(name string, data ...byte) Tensor {
	return Tensor{Name: name, DType: dtype.U8, Shape: []int64{int64(len(data))}, Data: data}
}

func write(t *testing.T, path string, tensors ...Tensor) {
	t.Helper()
	if err := Write(path, tensors, nil); err != nil {
		t.Fatal(err)
	}
}

// Where the system lists a process's mappings, a closed file is not among them.
func TestCloseUnmaps(t *testing.T) {
	const maps = "/proc/self/maps"
	path := filepath.Join(t.TempDir(), "m.safetensors")
	write(t, path, u8("a", 1, 2, 3))
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	mapped := func() bool {
		text, err := os.ReadFile(maps)
		if err != nil {
			t.Skip(err)
		}
		return strings.Contains(string(text), path)
	}
	if !mapped() {
		t.Error("an open file is not mapped")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if mapped() {
		t.Error("a closed file is mapped")
	}
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	write(t, path, u8("a", 1, 2, 3), u8("b"))
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if f.Path() != path {
		t.Errorf("Path() = %q", f.Path())
	}
	got, err := f.Tensor("a")
	if err != nil || !slices.Equal(got.Data, []byte{1, 2, 3}) {
		t.Errorf("Tensor(a) = %v, %v", got, err)
	}
	if _, err := f.Info("c"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), path) {
		t.Errorf("Info(c): %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := f.Tensor("a"); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Tensor after Close: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("a directory opens")
	}
	for name, data := range map[string]string{"empty": "", "cut": "\x02\x00\x00\x00\x00\x00\x00\x00{"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		var fe *FormatError
		if _, err := Open(path); !errors.As(err, &fe) || fe.File != path {
			t.Errorf("%s: %v, want an error that names %s", name, err, path)
		}
	}
}

func TestOpenDirSingle(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenDir(dir); !errors.Is(err, ErrNoCheckpoint) || !strings.Contains(err.Error(), dir) {
		t.Errorf("an empty directory: %v", err)
	}
	write(t, filepath.Join(dir, SingleFile), u8("b", 1), u8("a", 2))
	s, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := s.Names(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("Names() = %q", got)
	}
	if _, err := s.Tensor("c"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Tensor(c): %v", err)
	}
	if _, err := s.Info("c"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Info(c): %v", err)
	}
}

// shards writes two shards and an index of the given text.
func shards(t *testing.T, index string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "model-1.safetensors"), u8("a", 1), u8("extra", 9))
	write(t, filepath.Join(dir, "model-2.safetensors"), u8("b", 2, 3))
	if err := os.WriteFile(filepath.Join(dir, IndexFile), []byte(index), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestOpenDirShards(t *testing.T) {
	s, err := OpenDir(shards(t, `{"metadata": {"total_size": 4, "deep": [[{}]]},
		"weight_map": {"b": "model-2.safetensors", "a": "model-1.safetensors"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Names(); !slices.Equal(got, []string{"a", "b", "extra"}) {
		t.Errorf("Names() = %q", got)
	}
	got, err := s.Tensor("b")
	if diff := cmp.Diff(u8("b", 2, 3), got); err != nil || diff != "" {
		t.Errorf("Tensor(b): %v (-want +got):\n%s", err, diff)
	}
	info, err := s.Info("a")
	if diff := cmp.Diff(u8("a", 1).Info(), info); err != nil || diff != "" {
		t.Errorf("Info(a): %v (-want +got):\n%s", err, diff)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Tensor("b"); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Tensor after Close: %v", err)
	}
}

func TestOpenDirRefuses(t *testing.T) {
	for _, c := range []struct{ name, index, want string }{
		{"not JSON", `weight_map`, "index is not JSON"},
		{"not UTF-8", "{\"\xff\": 1}", "not UTF-8"},
		{"list", `[]`, "want"},
		{"empty", `{}`, "no weight_map"},
		{"empty map", `{"weight_map": {}}`, "no weight_map"},
		{"text after", `{"weight_map": {"a": "model-1.safetensors"}} 1`, "follows the index"},
		{"map is a list", `{"weight_map": []}`, "want"},
		{"map twice", `{"weight_map": {"a": "model-1.safetensors"}, "weight_map": {}}`, "appears twice"},
		{"tensor twice", `{"weight_map": {"a": "model-1.safetensors", "a": "model-2.safetensors"}}`, `tensor "a": appears twice`},
		{"number", `{"weight_map": {"a": 1}}`, `tensor "a"`},
		{"missing shard", `{"weight_map": {"a": "model-3.safetensors", "b": "model-2.safetensors"}}`, `1 of the 2 files that model.safetensors.index.json names are missing: "model-3.safetensors"`},
		{"shard lacks the tensor", `{"weight_map": {"b": "model-1.safetensors"}}`, `tensor "b": weight_map places it in model-1.safetensors`},
		{"deep nesting", `{"metadata": ` + strings.Repeat("[", 100_000), "index is not JSON"},
		{"up", `{"weight_map": {"a": "../model-1.safetensors"}}`, "not a plain file name"},
		{"dots", `{"weight_map": {"a": ".."}}`, "not a plain file name"},
		{"dot", `{"weight_map": {"a": "."}}`, "not a plain file name"},
		{"nothing", `{"weight_map": {"a": ""}}`, "not a plain file name"},
		{"absolute", `{"weight_map": {"a": "/etc/passwd"}}`, "not a plain file name"},
		{"below", `{"weight_map": {"a": "sub/model-1.safetensors"}}`, "not a plain file name"},
		{"backslash", `{"weight_map": {"a": "..\\model-1.safetensors"}}`, "not a plain file name"},
		{"drive", `{"weight_map": {"a": "C:model-1.safetensors"}}`, "not a plain file name"},
		{"escape", `{"weight_map": {"a": "model\u001b[2J"}}`, "not a plain file name"},
		{"NUL", `{"weight_map": {"a": "model\u0000"}}`, "not a plain file name"},
	} {
		dir := shards(t, c.index)
		s, err := OpenDir(dir)
		if err == nil {
			t.Errorf("%s: opens", c.name)
			s.Close()
			continue
		}
		if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: error %q, want …%s… and the path", c.name, err, c.want)
		}
	}
	t.Run("in two shards", func(t *testing.T) {
		dir := shards(t, `{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}`)
		write(t, filepath.Join(dir, "model-2.safetensors"), u8("b", 2), u8("a", 1))
		if _, err := OpenDir(dir); err == nil || !strings.Contains(err.Error(), `tensor "a": is in model-1.safetensors too`) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("damaged shard", func(t *testing.T) {
		dir := shards(t, `{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}`)
		if err := os.Truncate(filepath.Join(dir, "model-2.safetensors"), 70); err != nil {
			t.Fatal(err)
		}
		var fe *FormatError
		if _, err := OpenDir(dir); !errors.As(err, &fe) || filepath.Base(fe.File) != "model-2.safetensors" {
			t.Errorf("error %v", err)
		}
	})
}

// Some tools write null for no metadata.
func TestMetadataNull(t *testing.T) {
	f, err := Parse(image(`{"__metadata__":null,"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, []byte{7}))
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Metadata(); len(got) != 0 || got == nil {
		t.Errorf("Metadata() = %v", got)
	}
	if x, err := f.Tensor("a"); err != nil || x.Data[0] != 7 {
		t.Errorf("%v %v", x, err)
	}
}
