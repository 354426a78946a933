package cache

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"pwc/internal/testkit"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"
)

// fastTemp returns an empty directory, in /dev/shm if possible, because tests that write
// thousands of files would wait for fsync elsewhere.
func fastTemp(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "pwc-cache-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// smallCache is a cache with one module of two entries. After damage to one of its files,
// survive checks that a warning names the file, that compiling again gives the right
// result, and that the cache is repaired.
type smallCache struct {
	t      *testing.T
	s      *Store
	j      *testkit.Log
	module Module
}

func newSmallCache(t *testing.T) *smallCache {
	c := &smallCache{t: t}
	c.s, c.j = logged(fastTemp(t))
	c.module = fill(t, c.s, "toy", 2)
	return c
}

// files returns the files of the cache that have contents.
func (c *smallCache) files() []string {
	var out []string
	for _, f := range files(c.t, c.s.Dir()) {
		if info, err := os.Stat(f); err == nil && info.Size() > 0 {
			out = append(out, f)
		}
	}
	if len(out) != 6 { // two manifests, two blobs, the module and its graph
		c.t.Fatalf("files: %q", out)
	}
	return out
}

// survive does what a warm start does after file was damaged.
func (c *smallCache) survive(file, what string) {
	c.t.Helper()
	compiled := 0
	for i := range 2 {
		blob, err := makeOnce(c.t.Context(), c.s, testKey(i), func() []byte { compiled++; return testBlob(i) })
		if err != nil || !bytes.Equal(blob, testBlob(i)) {
			c.t.Fatalf("%s, %s: key %d gives %q, %v", file, what, i, blob, err)
		}
	}
	if err := c.s.PutModule(c.t.Context(), c.module); err != nil {
		c.t.Fatalf("%s, %s: module: %v", file, what, err)
	}
	text := c.j.Take()
	if !strings.Contains(text, file) || !strings.Contains(text, "reason=") {
		c.t.Fatalf("%s, %s: no warning names the file and a reason:\n%s", file, what, text)
	}
	want := 1
	if strings.Contains(file, modulesDir) {
		want = 0
	}
	if compiled != want {
		c.t.Fatalf("%s, %s: compiled %d times, want %d", file, what, compiled, want)
	}
	for i := range 2 {
		wantHit(c.t, c.s, i)
	}
	if err := c.s.PutModule(c.t.Context(), c.module); err != nil {
		c.t.Fatal(err)
	}
	wantQuiet(c.t, c.j)
}

func write(t testing.TB, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestEveryByteFlipped(t *testing.T) {
	c := newSmallCache(t)
	for _, file := range c.files() {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i := range data {
			for _, mask := range []byte{0x01, 0x20, 0xff} { // the neighbour, the other case, all bits
				bad := bytes.Clone(data)
				bad[i] ^= mask
				write(t, file, bad)
				c.survive(file, "byte flipped")
			}
			// The repair may have another time in it.
			if data, err = os.ReadFile(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantWhole(t, c.s)
}

func TestEveryLength(t *testing.T) {
	c := newSmallCache(t)
	for _, file := range c.files() {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for n := range data {
			write(t, file, data[:n])
			c.survive(file, "truncated")
		}
		for _, more := range []string{"\x00", "\n", "x", string(data)} {
			write(t, file, append(bytes.Clone(data), more...))
			c.survive(file, "grown")
		}
		write(t, file, make([]byte, len(data)))
		c.survive(file, "zeroed")
		if err := os.Truncate(file, 1<<40); err != nil { // sparse: read whole, it would not fit in memory
			t.Fatal(err)
		}
		c.survive(file, "huge")
	}
	wantWhole(t, c.s)
}

// A directory, link or pipe in place of a file is damage, and so is a missing blob or graph. A missing manifest is a
// plain miss.
func TestNotAFile(t *testing.T) {
	for what, plant := range map[string]func(file, outside string) error{
		"missing":        func(file, _ string) error { return nil },
		"directory":      func(file, _ string) error { return os.Mkdir(file, 0o777) },
		"link outside":   func(file, outside string) error { return os.Symlink(outside, file) },
		"relative link":  func(file, outside string) error { return os.Symlink("../../../../../../../../etc/hostname", file) },
		"dangling link":  func(file, _ string) error { return os.Symlink("nowhere", file) },
		"link to itself": func(file, _ string) error { return os.Symlink(filepath.Base(file), file) },
		"link to its own": func(file, _ string) error {
			os.Rename(file+".saved", file+".own")
			return os.Symlink(file+".own", file)
		},
		"named pipe": func(file, _ string) error { return mkfifo(file) },
	} {
		t.Run(what, func(t *testing.T) {
			c := newSmallCache(t)
			for _, file := range c.files() {
				outside := filepath.Join(t.TempDir(), "outside")
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				write(t, outside, data) // even the right bytes are not read outside the directory
				if err := os.Rename(file, file+".saved"); err != nil {
					t.Fatal(err)
				}
				if err := plant(file, outside); err != nil {
					t.Skip(err)
				}
				if what == "missing" && (strings.Contains(file, keysDir) || strings.HasSuffix(file, manifestFile)) {
					// A plain miss, and no warning.
					for i := range 2 {
						if _, err := makeOnce(t.Context(), c.s, testKey(i), func() []byte { return testBlob(i) }); err != nil {
							t.Fatal(err)
						}
					}
					if err := c.s.PutModule(t.Context(), c.module); err != nil {
						t.Fatal(err)
					}
					wantQuiet(t, c.j)
				} else {
					c.survive(file, what)
				}
				if after, err := os.ReadFile(outside); err != nil || !bytes.Equal(after, data) {
					t.Fatalf("%s: the file outside was changed: %q, %v", file, after, err)
				}
				os.Remove(file + ".saved")
				os.Remove(file + ".own")
			}
			wantWhole(t, c.s)
		})
	}
}

// Links and files in place of the cache's directories: the store changes nothing outside, and
// results are right.
func TestBadDirectories(t *testing.T) {
	for _, name := range []string{"v1", "v1/keys", "v1/blobs", "v1/modules", "v1/tmp", "v1/locks", "v1/pins"} {
		for what, plant := range map[string]func(path, outside string) error{
			"file":         func(path, _ string) error { return os.WriteFile(path, nil, 0o666) },
			"link outside": func(path, outside string) error { return os.Symlink(outside, path) },
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				c := newSmallCache(t)
				path, outside := filepath.Join(c.s.Dir(), filepath.FromSlash(name)), filepath.Join(t.TempDir(), "outside")
				if err := os.MkdirAll(path, 0o777); err != nil {
					t.Fatal(err)
				}
				if err := os.CopyFS(outside, os.DirFS(path)); err != nil {
					t.Fatal(err)
				}
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				before := snapshot(t, outside)
				if err := plant(path, outside); err != nil {
					t.Fatal(err)
				}
				s, j := logged(c.s.Dir())
				for i := range 3 { // one more than was there
					blob, err := makeOnce(t.Context(), s, testKey(i), func() []byte { return testBlob(i) })
					if err != nil || !bytes.Equal(blob, testBlob(i)) {
						t.Errorf("key %d: %q, %v", i, blob, err)
					}
				}
				var nc *NotCachedError
				if err := s.PutModule(t.Context(), testModule("other", 3)); err != nil && !errors.As(err, &nc) {
					t.Errorf("PutModule: %v", err)
				}
				if name != "v1/pins" { // no call until here reads pins
					wantLog(t, j, "reason=")
				}
				if _, err := s.Pin(t.Context(), "other"); err == nil && (name == "v1" || name == "v1/pins" || name == "v1/tmp") {
					t.Error("Pin says that it did")
				}
				s.Modules(t.Context())
				s.Verify(t.Context())
				s.Explain(t.Context(), testKey(9))
				s.GC(t.Context(), GCOptions{})
				s.Clear(t.Context())
				for f, was := range before {
					if now := snapshot(t, outside)[f]; now != was {
						t.Errorf("outside: %s is %q, was %q", f, now, was)
					}
				}
				if n := len(snapshot(t, outside)); n != len(before) {
					t.Errorf("outside: %d files, were %d", n, len(before))
				}
			})
		}
	}
}

// With a directory that cannot be made or opened, results are right, and only the first failure to store is a warning.
func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, []byte("not a directory"))
	for _, dir := range []string{file, filepath.Join(file, "below"), "/proc/self/nothing/here", "a\x00b"} {
		s, j := logged(dir)
		blob, err := makeOnce(t.Context(), s, testKey(0), func() []byte { return testBlob(0) })
		if err != nil || !bytes.Equal(blob, testBlob(0)) {
			t.Errorf("%q: %q, %v", dir, blob, err)
		}
		wantLog(t, j, "not kept", "reason=")
		var nc *NotCachedError
		if err := s.Put(t.Context(), testKey(0), testBlob(0), testProvenance); !errors.As(err, &nc) {
			t.Errorf("%q: Put: %v", dir, err)
		}
		if err := s.PutModule(t.Context(), testModule("toy", 1)); !errors.As(err, &nc) {
			t.Errorf("%q: PutModule: %v", dir, err)
		}
		if text := j.Take(); strings.Contains(text, "not kept") {
			t.Errorf("%q: the second or third is a warning again:\n%s", dir, text)
		}
		if n := s.Stats().NotCached; n != 3 {
			t.Errorf("%q: %d not cached, want 3", dir, n)
		}
	}
}

// Without locks, the store works, and logs that once.
func TestNoLocks(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "v1"), 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "v1", locksDir), nil)
	s, j := logged(dir)
	for i := range 3 {
		if _, err := makeOnce(t.Context(), s, testKey(i), func() []byte { return testBlob(i) }); err != nil {
			t.Fatal(err)
		}
		wantHit(t, s, i)
	}
	if err := s.PutModule(t.Context(), testModule("toy", 3)); err != nil {
		t.Fatal(err)
	}
	if text := j.Take(); strings.Count(text, "locking fails") != 1 || strings.Count(text, "\n") != 1 {
		t.Errorf("messages:\n%s", text)
	}
	if r, err := s.GC(t.Context(), GCOptions{}); err != nil || r.Modules != 1 || r.Entries != 3 {
		t.Errorf("GC = %+v, %v", r, err)
	}
}

// A name that rename cannot replace: the result is right, but not stored.
func TestRenameFails(t *testing.T) {
	s, j := logged(t.TempDir())
	file := filepath.Join(s.Dir(), "v1", filepath.FromSlash(keyFile(testKey(0).id())))
	if err := os.MkdirAll(filepath.Join(file, "full"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, said := range []string{"not kept", "counts as a miss"} {
		blob, err := makeOnce(t.Context(), s, testKey(0), func() []byte { return testBlob(0) })
		if err != nil || !bytes.Equal(blob, testBlob(0)) {
			t.Errorf("%q, %v", blob, err)
		}
		wantLog(t, j, "not a regular file", said, file)
	}
	if n := len(files(t, filepath.Join(s.Dir(), "v1", tmpDir))); n != 0 {
		t.Errorf("%d temporary files are left", n)
	}
}

// A valid manifest under the name of another key is damage.
func TestMovedManifest(t *testing.T) {
	s, j := logged(t.TempDir())
	fill(t, s, "toy", 2)
	at := func(i int) string { return filepath.Join(s.Dir(), "v1", filepath.FromSlash(keyFile(testKey(i).id()))) }
	data, err := os.ReadFile(at(0))
	if err != nil {
		t.Fatal(err)
	}
	write(t, at(1), data)
	if blob, ok, err := s.Get(t.Context(), testKey(1)); ok || err == nil {
		t.Errorf("Get = %q, %v, %v", blob, ok, err)
	}
	wantLog(t, j, at(1), "it is the manifest of key")
	if v, err := s.Verify(t.Context()); err != nil || len(v.Problems) != 2 { // and the module lacks an entry
		t.Errorf("Verify = %+v, %v", v, err)
	}
}

// A manifest with the right blob, another size and a valid checksum is damage.
func TestWrongSize(t *testing.T) {
	s, j := logged(t.TempDir())
	fill(t, s, "toy", 1)
	e := &Entry{Key: testKey(0), Blob: DigestOf(testBlob(0)), Size: int64(len(testBlob(0))) + 1, Created: time.Now()}
	write(t, filepath.Join(s.Dir(), "v1", filepath.FromSlash(keyFile(e.Key.id()))), e.encode())
	if blob, ok, err := s.Get(t.Context(), testKey(0)); ok || err == nil {
		t.Errorf("Get = %q, %v, %v", blob, ok, err)
	}
	wantLog(t, j, filepath.Join(s.Dir(), "v1", filepath.FromSlash(blobFile(e.Blob))), "bytes, not")
	if v, err := s.Verify(t.Context()); err != nil || len(v.Problems) != 2 || !strings.Contains(v.Problems[0].Error(), "bytes, not") { // and the module lacks it
		t.Errorf("Verify = %+v, %v", v, err)
	}
	if err := s.Put(t.Context(), testKey(0), testBlob(0), testProvenance); err != nil {
		t.Fatal(err)
	}
	wantHit(t, s, 0)
}

// Files of writers that died are removed, files of running writers are not.
func TestSweep(t *testing.T) {
	s, _ := logged(t.TempDir())
	tmp, locks := filepath.Join(s.Dir(), "v1", tmpDir), filepath.Join(s.Dir(), "v1", locksDir)
	for _, d := range []string{tmp, locks} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	for name, age := range map[string]time.Duration{"ancient": 1000 * time.Hour, "old": 2 * youngWithin, "of tomorrow": -24 * time.Hour, "soon": -2 * youngWithin,
		"young": time.Second, "ahead": -time.Second, "held": 1000 * time.Hour, "held tomorrow": -24 * time.Hour} {
		file := filepath.Join(tmp, name)
		write(t, file, []byte("x"))
		if err := os.Chtimes(file, now, now.Add(-age)); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, "held") {
			l := flock.New(file, flock.SetFlag(os.O_RDWR))
			if ok, err := l.TryLock(); !ok {
				t.Skip(err)
			}
			defer l.Unlock()
		}
	}
	if err := s.Put(t.Context(), testKey(0), testBlob(0), testProvenance); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, f := range files(t, tmp) {
		left = append(left, filepath.Base(f))
	}
	slices.Sort(left)
	if want := []string{"ahead", "held", "held tomorrow", "young"}; !slices.Equal(left, want) {
		t.Errorf("left in tmp: %q, want %q", left, want)
	}

	write(t, filepath.Join(locks, testKey(1).id().String()), nil) // its holder died
	unlock, err := s.Lock(t.Context(), testKey(2))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Dir: s.Dir()}).GC(t.Context(), GCOptions{MaxBytes: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(locks, testKey(1).id().String())); err == nil {
		t.Error("a lock file without a holder is left")
	}
	if _, err := os.Stat(filepath.Join(locks, testKey(2).id().String())); err != nil {
		t.Error("the file of a held lock was removed")
	}
	unlock()
}
