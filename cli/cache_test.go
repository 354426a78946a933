package cli_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// one parses the only JSON document of an output.
func one(t *testing.T, out string) (doc map[string]any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(out))
	if err := d.Decode(&doc); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if err := d.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		t.Errorf("more than a document (%v):\n%s", err, out)
	}
	return doc
}

// withNineteen makes a cache with one module, for the rest of the test.
func withNineteen(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv("PWC_CACHE", "")
	t.Setenv("PWC_CACHE_PATH", "")
	t.Setenv("PWC_CACHE_DIR", dir)
	if code, _, errs := pwc(t, "compile", filepath.Join("..", "testdata", "nineteen.ir")); code != 0 {
		t.Fatal(errs)
	}
	return dir
}

// If pwc cache gc cannot remove a blob, its only JSON document has the error and the number of removed modules.
func TestCollectionThatFails(t *testing.T) {
	dir := withNineteen(t)
	blobs, err := filepath.Glob(filepath.Join(dir, "v1", "blobs", "*", "*"))
	if err != nil || len(blobs) == 0 {
		t.Fatal(blobs, err)
	}
	if err := errors.Join(os.Remove(blobs[0]), os.MkdirAll(filepath.Join(blobs[0], "mine"), 0o777)); err != nil {
		t.Fatal(err)
	}
	code, out, errs := pwc(t, "cache", "gc", "--max-bytes", "0", "--grace", "0s", "--json")
	doc := one(t, out)
	if text, _ := doc["error"].(string); code != 1 || !strings.Contains(text, blobs[0]) || !strings.Contains(errs, blobs[0]) || doc["modules"] != 1.0 {
		t.Errorf("exit code %d, %v, %s", code, doc, errs)
	}
	if code, out, _ := pwc(t, "cache", "gc", "--max-bytes", "1GiB", "--json"); code != 0 || one(t, out)["error"] != nil {
		t.Errorf("exit code %d, %s", code, out)
	}
}

// A damaged graph is an error, not an empty graph.
func TestShowGraph(t *testing.T) {
	dir := withNineteen(t)
	_, graph, _ := pwc(t, "cache", "show", "nineteen", "--graph")
	if !strings.HasPrefix(graph, "pwc 1\n") {
		t.Fatalf("%q", graph)
	}
	if code, out, _ := pwc(t, "cache", "show", "nineteen", "--graph", "--json"); code != 0 || one(t, out)["graph"] != graph {
		t.Errorf("exit code %d, %s", code, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "v1", "modules", "*", "computation_graph.ir"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.WriteFile(files[0], []byte("junk"), 0o666); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := pwc(t, "cache", "show", "nineteen", "--graph"); code != 1 || out != "" || !strings.Contains(errs, "damaged") {
		t.Errorf("of a damaged one: exit code %d, %q, %s", code, out, errs)
	}
	if code, out, _ := pwc(t, "cache", "show", "nineteen"); code != 0 || !strings.Contains(out, "3 artifacts") {
		t.Errorf("the artifacts of a model with a damaged graph: exit code %d, %s", code, out)
	}
}
