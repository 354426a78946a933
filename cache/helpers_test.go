package cache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"pwc/internal/testkit"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// roleEnv makes the test binary, started again, do one of the jobs in roles
// or platformRoles instead of testing.
const roleEnv = "PWC_CACHE_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		do := roles[role]
		if do == nil {
			do = platformRoles[role]
		}
		if err := do(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// testKey returns the i-th test key.
func testKey(i int) Key {
	return Key{Piece: sha256.Sum256(fmt.Appendf(nil, "piece %d", i)), Shape: "s0=[1, 512]", Target: "host", Pipeline: "7 -cse", Format: 1}
}

// testBlob returns the only right blob of testKey(i).
func testBlob(i int) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "program of piece %d\n", i), 1+i%7)
}

var testProvenance = Provenance{Compiler: "vec 1", Origin: "@forward item 0", Duration: 1500 * time.Microsecond}

// testModule returns a module over the first n keys.
func testModule(name string, n int) Module {
	m := Module{Name: name, Hash: sha256.Sum256([]byte(name)), Target: "host", Graph: []byte("pwc 1\nmodule \"" + name + "\" {\n}\n")}
	for i := range n {
		m.Entries = append(m.Entries, ModuleEntry{testKey(i).id(), int64(len(testBlob(i)))})
	}
	return m
}

// fill stores the first n entries and a module of them.
func fill(t testing.TB, s *Store, name string, n int) Module {
	t.Helper()
	for i := range n {
		if err := s.Put(t.Context(), testKey(i), testBlob(i), testProvenance); err != nil {
			t.Fatal(err)
		}
	}
	m := testModule(name, n)
	if err := s.PutModule(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// logged returns a store on dir and its log.
func logged(dir string, layers ...string) (*Store, *testkit.Log) {
	j := &testkit.Log{}
	return New(Options{Dir: dir, Layers: layers, Logger: j.Logger()}), j
}

func wantHit(t testing.TB, s *Store, i int) {
	t.Helper()
	blob, ok, err := s.Get(t.Context(), testKey(i))
	if err != nil || !ok || !bytes.Equal(blob, testBlob(i)) {
		t.Fatalf("Get(key %d) = %d bytes, %v, %v; want its blob", i, len(blob), ok, err)
	}
}

func wantMiss(t testing.TB, s *Store, i int) {
	t.Helper()
	if blob, ok, err := s.Get(t.Context(), testKey(i)); err != nil || ok {
		t.Fatalf("Get(key %d) = %d bytes, %v, %v; want a miss", i, len(blob), ok, err)
	}
}

func wantQuiet(t testing.TB, j *testkit.Log) {
	t.Helper()
	if text := j.Take(); text != "" {
		t.Fatalf("unexpected messages:\n%s", text)
	}
}

func wantLog(t testing.TB, j *testkit.Log, parts ...string) {
	t.Helper()
	text := j.Take()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Fatalf("messages lack %q:\n%s", p, text)
		}
	}
}

// wantWhole checks that every file of the store is right.
func wantWhole(t testing.TB, s *Store) {
	t.Helper()
	v, err := s.Verify(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Problems) > 0 {
		t.Fatalf("problems: %v", v.Problems)
	}
}

// snapshot describes dir, and every file and directory below it: name, mode, size, time, contents.
func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%v %d %v", info.Mode(), info.Size(), info.ModTime())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + DigestOf(data).String()
		}
		rel, _ := filepath.Rel(dir, path)
		out[rel] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// files returns the regular files under dir.
func files(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	for name, text := range snapshot(t, dir) {
		if strings.HasPrefix(text, "-") {
			out = append(out, filepath.Join(dir, name))
		}
	}
	return out
}
