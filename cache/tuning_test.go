package cache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var testTuning = Tuning{
	TuningKey: TuningKey{Device: "NVIDIA H200", Library: "cublaslt 130100", Problem: "32 x 64 x 128"},
	Choice:    `{"own":true}`, Time: 1500, Before: 2500, Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
}

// The bytes of a record, written by hand.
const tuningText = `pwc tuning record 1
device "NVIDIA H200"
library "cublaslt 130100"
problem "32 x 64 x 128"
choice "{\"own\":true}"
time 1500
before 2500
created 2026-01-02T03:04:05Z
`

func TestTuning(t *testing.T) {
	ctx := context.Background()
	dir, other := t.TempDir(), t.TempDir()
	s := New(Options{Dir: dir})
	if _, ok := s.Tuning(testTuning.TuningKey); ok {
		t.Error("a record of an empty store")
	}
	if err := s.PutTuning(ctx, testTuning); err != nil {
		t.Fatal(err)
	}
	got, ok := s.Tuning(testTuning.TuningKey)
	if !ok || got != testTuning {
		t.Errorf("%+v, %v", got, ok)
	}
	file := filepath.Join(dir, "v1", filepath.FromSlash(tuningFile(testTuning.ID())))
	text, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(text), tuningText+"sum sha256:") {
		t.Errorf("%s, %v", text, err)
	}
	if id := testTuning.ID(); id != ID(DigestOf([]byte("pwc tuning key 1\n"+strings.Join(strings.SplitAfter(tuningText, "\n")[1:4], "")))) {
		t.Errorf("id %s", id)
	}
	for _, key := range []TuningKey{{"x", testTuning.Library, testTuning.Problem}, {testTuning.Device, "x", testTuning.Problem}, {testTuning.Device, testTuning.Library, "x"}} {
		if _, ok := s.Tuning(key); ok {
			t.Errorf("%+v has the record of another", key)
		}
	}

	// A newer record replaces it; a layer comes first.
	newer := testTuning
	newer.Choice = "newer"
	if err := s.PutTuning(ctx, newer); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.Tuning(testTuning.TuningKey); got.Choice != "newer" {
		t.Errorf("the record says %q", got.Choice)
	}
	second := testTuning
	second.Problem = "another"
	if err := errors.Join(New(Options{Dir: other}).PutTuning(ctx, testTuning), s.PutTuning(ctx, second)); err != nil {
		t.Fatal(err)
	}
	both := New(Options{Dir: dir, Layers: []string{other}})
	if got, _ := both.Tuning(testTuning.TuningKey); got != testTuning {
		t.Errorf("with a layer: %+v", got)
	}
	// A missing layer does not hide later directories.
	gone := New(Options{Dir: dir, Layers: []string{filepath.Join(t.TempDir(), "gone"), other}})
	if got, _ := gone.Tuning(testTuning.TuningKey); got != testTuning {
		t.Errorf("behind a missing layer: %+v", got)
	}
	all, err := both.Tunings(ctx)
	if err != nil || len(all) != 2 || !slices.Contains(all, testTuning) || !slices.Contains(all, second) {
		t.Errorf("all: %+v, %v", all, err)
	}

	// A collection keeps tuning records; Clear removes them.
	if r, err := s.GC(ctx, GCOptions{}); err != nil || r.Left == 0 || r.Left != total(t, dir) {
		t.Fatalf("%+v, %v; there are %d bytes", r, err, total(t, dir))
	}
	if v, err := s.Verify(ctx); err != nil || v.Tunings != 2 || len(v.Problems) > 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if err := s.Clear(ctx); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Tuning(testTuning.TuningKey); ok {
		t.Error("a record after everything was cleared")
	}

	if err := New(Options{}).PutTuning(ctx, testTuning); !errors.Is(err, ErrNoDir) {
		t.Errorf("put nowhere: %v", err)
	}
	for what, change := range map[string]func(*Tuning){
		"no device":       func(r *Tuning) { r.Device = "" },
		"no choice":       func(r *Tuning) { r.Choice = "" },
		"a negative time": func(r *Tuning) { r.Time = -1 },
		"negative before": func(r *Tuning) { r.Before = -1 },
		"a far year":      func(r *Tuning) { r.Created = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		bad := testTuning
		change(&bad)
		if err := s.PutTuning(ctx, bad); err == nil || errors.As(err, new(*NotCachedError)) {
			t.Errorf("a record of %s: %v", what, err)
		}
	}
}

// TestTuningDamage changes every byte of a record: it is not used, and Verify
// names it.
func TestTuningDamage(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s := New(Options{Dir: dir})
	if err := s.PutTuning(ctx, testTuning); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "v1", filepath.FromSlash(tuningFile(testTuning.ID())))
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range text {
		damaged := slices.Clone(text)
		damaged[i] ^= 0x20
		if err := os.WriteFile(file, damaged, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, ok := s.Tuning(testTuning.TuningKey); ok {
			t.Fatalf("byte %d changed, and the record is used", i)
		}
		if v, err := s.Verify(ctx); err != nil || len(v.Problems) != 1 || !strings.Contains(v.Problems[0].Error(), "tuning") {
			t.Fatalf("byte %d changed: %+v, %v", i, v, err)
		}
	}
	if all, err := s.Tunings(ctx); err != nil || len(all) > 0 {
		t.Errorf("%+v, %v", all, err)
	}
	if err := s.PutTuning(ctx, testTuning); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Tuning(testTuning.TuningKey); !ok {
		t.Error("it was not repaired")
	}
}

// TestTuningNotCanonical holds that a record is refused whose text is not the encoder's.
func TestTuningNotCanonical(t *testing.T) {
	for _, body := range []string{
		strings.Replace(tuningText, "time 1500", "time 01500", 1),
		strings.Replace(tuningText, "time 1500\n", "", 1),
		strings.Replace(tuningText, `"NVIDIA H200"`, `"NVIDIA\u0020H200"`, 1),
		strings.Replace(tuningText, `choice "{\"own\":true}"`, `choice ""`, 1),
		tuningText + "more 1\n",
	} {
		w := textWriter{buf: []byte(body)}
		if r, err := parseTuning(w.seal()); err == nil {
			t.Errorf("%q was read as %+v", body, r)
		}
	}
}
