package cache

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"pwc/internal/testkit"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// total returns the bytes of all files.
func total(t testing.TB, dir string) int64 {
	t.Helper()
	var n int64
	for _, f := range files(t, dir) {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

// moduleOf returns a module over some keys.
func moduleOf(name string, keys ...int) Module {
	m := testModule(name, 0)
	for _, i := range keys {
		m.Entries = append(m.Entries, ModuleEntry{testKey(i).id(), int64(len(testBlob(i)))})
	}
	return m
}

// gcCache makes three modules, a = {0, 1}, b = {1, 2} and c = {3}, and an entry without a
// module, 4. c was used first, a last.
func gcCache(t *testing.T) (s *Store, j *testkit.Log, a, b, c Module) {
	s, j = logged(t.TempDir())
	for i := range 5 {
		if err := s.Put(t.Context(), testKey(i), testBlob(i), testProvenance); err != nil {
			t.Fatal(err)
		}
	}
	a, b, c = moduleOf("a", 0, 1), moduleOf("b", 1, 2), moduleOf("c", 3)
	now := time.Now()
	for i, m := range []Module{a, b, c} {
		if err := s.PutModule(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		used(t, s, m, now.Add(-time.Duration(i)*time.Hour))
	}
	return s, j, a, b, c
}

// have returns the names of modules and the numbers of keys that are left.
func have(t *testing.T, s *Store) string {
	t.Helper()
	list, err := s.Modules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range list {
		out = append(out, m.Name)
	}
	for i := range 5 {
		if _, ok, err := s.Get(t.Context(), testKey(i)); err != nil {
			t.Fatal(err)
		} else if ok {
			out = append(out, fmt.Sprint(i))
		}
	}
	wantWhole(t, s)
	return strings.Join(out, " ")
}

func TestGCOrder(t *testing.T) {
	s, j, _, _, _ := gcCache(t)
	all := total(t, s.Dir())
	r, err := s.GC(t.Context(), GCOptions{MaxBytes: all})
	if err != nil || r != (GCResult{Left: all}) {
		t.Errorf("within the limit: %+v, %v; want %d bytes left", r, err, all)
	}
	// Each limit is one byte less than the remaining files. The entry without a module goes first, then modules by use.
	for _, want := range []string{"a b c 0 1 2 3", "a b 0 1 2", "a 0 1", ""} {
		before := total(t, s.Dir())
		r, err := s.GC(t.Context(), GCOptions{MaxBytes: before - 1})
		if err != nil {
			t.Fatal(err)
		}
		if got := have(t, s); got != want {
			t.Fatalf("left %q, want %q", got, want)
		}
		if left := total(t, s.Dir()); r.Left != left || r.Freed != before-left {
			t.Errorf("%+v; want %d freed, %d left", r, before-left, left)
		}
	}
	wantQuiet(t, j)
}

// Entries that no module uses are removed by age.
func TestGCLoose(t *testing.T) {
	s, _ := logged(t.TempDir())
	for _, i := range []int{2, 0, 3, 1} {
		if err := s.Put(t.Context(), testKey(i), testBlob(i), testProvenance); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(filepath.Join(s.Dir(), "v1", filepath.FromSlash(keyFile(testKey(i).id()))), when, when); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"1 2 3", "2 3", "3", ""} {
		if _, err := s.GC(t.Context(), GCOptions{MaxBytes: total(t, s.Dir()) - 1}); err != nil {
			t.Fatal(err)
		}
		if got := have(t, s); got != want {
			t.Errorf("left %q, want %q", got, want)
		}
	}
}

func TestGCUse(t *testing.T) {
	s, _, _, _, c := gcCache(t)
	if err := New(Options{Dir: s.Dir()}).PutModule(t.Context(), c); err != nil { // another process uses c
		t.Fatal(err)
	}
	if _, err := s.GC(t.Context(), GCOptions{MaxBytes: total(t, s.Dir()) * 2 / 3}); err != nil {
		t.Fatal(err)
	}
	if got := have(t, s); !strings.Contains(got, "c") || strings.Contains(got, "b") {
		t.Errorf("left %q", got)
	}
}

func TestGCPinned(t *testing.T) {
	s, j, _, _, _ := gcCache(t)
	if m, err := s.Pin(t.Context(), "b"); err != nil || !m.Pinned {
		t.Fatal(m, err)
	}
	r, err := s.GC(t.Context(), GCOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := have(t, s); got != "b 1 2" {
		t.Errorf("left %q", got)
	}
	if r.Modules != 2 || r.Entries != 3 || r.Blobs != 3 || r.Left != total(t, s.Dir()) {
		t.Errorf("%+v", r)
	}
	// The entries of a damaged pinned module are unknown.
	file := moduleFilePath(s, moduleOf("b", 1, 2), manifestFile)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, []byte("junk"))
	m := moduleOf("b", 1, 2)
	pin := filepath.Join(s.Dir(), "v1", pinsDir, m.ID().String())
	if _, err := s.GC(t.Context(), GCOptions{}); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), pin) {
		t.Errorf("GC = %v", err)
	}
	write(t, file, good)
	if got := have(t, s); got != "b 1 2" {
		t.Errorf("left %q", got)
	}
	for range 2 {
		if m, err := s.Unpin(t.Context(), "b"); err != nil || m.Pinned {
			t.Fatal(m, err)
		}
	}
	if _, err := s.GC(t.Context(), GCOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := have(t, s); got != "" || total(t, s.Dir()) != 0 {
		t.Errorf("left %q", got)
	}
	wantQuiet(t, j)
}

func TestGCGrace(t *testing.T) {
	s, _, _, _, _ := gcCache(t)
	blob := []byte("a blob whose manifest is yet to come")
	orphan := filepath.Join(s.Dir(), "v1", filepath.FromSlash(blobFile(DigestOf(blob))))
	if err := os.MkdirAll(filepath.Dir(orphan), 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, orphan, blob)
	if _, err := s.GC(t.Context(), GCOptions{Grace: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if got := have(t, s); got != "4" {
		t.Errorf("left %q, want only the young entry without a module", got)
	}
	if _, err := os.Stat(orphan); err != nil {
		t.Error(err)
	}
	r, err := s.GC(t.Context(), GCOptions{MaxBytes: 1 << 30}) // a blob without an entry goes at any limit
	if err != nil || r.Blobs != 1 || r.Entries != 0 || r.Freed != int64(len(blob)) {
		t.Errorf("%+v, %v", r, err)
	}
}

// A file that a wrong clock dated a day into the future is not young for ever.
func TestGCOfTomorrow(t *testing.T) {
	for ahead, kept := range map[time.Duration]bool{24 * time.Hour: false, time.Minute: true} {
		s, j := logged(t.TempDir())
		if err := s.Put(t.Context(), testKey(0), testBlob(0), testProvenance); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(ahead)
		for _, name := range []string{keyFile(testKey(0).id()), blobFile(DigestOf(testBlob(0)))} {
			if err := os.Chtimes(filepath.Join(s.Dir(), "v1", filepath.FromSlash(name)), when, when); err != nil {
				t.Fatal(err)
			}
		}
		for _, grace := range []time.Duration{time.Hour, 0} {
			if r, err := s.GC(t.Context(), GCOptions{Grace: grace}); err != nil || (r.Left > 0) != (grace > 0 && kept) {
				t.Errorf("%v ahead, grace of %v: %+v, %v", ahead, grace, r, err)
			}
		}
		wantQuiet(t, j)
	}
}

// If a collection removes a module while Pin waits, Pin fails.
func TestPinOfCollected(t *testing.T) {
	s, _ := logged(fastTemp(t))
	fill(t, s, "toy", 1)
	tr, err := s.dir.open()
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	unlock, err := tr.lock(t.Context(), gcLock, false, false, &budget{limit: time.Minute}) // a collection is under way
	if err != nil {
		t.Fatal(err)
	}
	pinned := make(chan error)
	go func() {
		info, err := s.Pin(t.Context(), "toy")
		if info.Pinned {
			err = errors.New("Pin reports it as pinned")
		}
		pinned <- err
	}()
	time.Sleep(100 * time.Millisecond) // Pin has found it and waits
	err = tr.RemoveAll(modulesDir)
	unlock()
	if perr := <-pinned; err != nil || !errors.Is(perr, ErrNotFound) {
		t.Errorf("%v, %v", err, perr)
	}
	if pins, err := tr.pins(); err != nil || len(pins) > 0 {
		t.Errorf("pins of nothing: %v, %v", pins, err)
	}
}

func TestGCDamaged(t *testing.T) {
	s, j, _, b, _ := gcCache(t)
	key := filepath.Join(s.Dir(), "v1", filepath.FromSlash(keyFile(testKey(0).id())))
	write(t, key, []byte("junk"))
	write(t, moduleFilePath(s, b, manifestFile), []byte("junk"))
	r, err := s.GC(t.Context(), GCOptions{MaxBytes: 1 << 30})
	if err != nil || r.Entries != 1 || r.Blobs != 1 || r.Modules != 1 || r.Left != total(t, s.Dir()) {
		t.Errorf("%+v, %v", r, err)
	}
	wantLog(t, j, key, moduleFilePath(s, b, manifestFile))
	if _, ok, err := s.Get(t.Context(), testKey(2)); !ok || err != nil { // loose now, and within the limit
		t.Error(ok, err)
	}
}

// A collection that cannot list entries is an error, and removes no blobs: their entries may be pinned.
func TestGCUnlistable(t *testing.T) {
	s, j, _, _, _ := gcCache(t)
	if _, err := s.Pin(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	sub := filepath.Dir(filepath.Join(s.Dir(), "v1", filepath.FromSlash(keyFile(testKey(0).id()))))
	saved := filepath.Join(t.TempDir(), "saved")
	if err := os.Rename(sub, saved); err != nil {
		t.Fatal(err)
	}
	write(t, sub, nil)
	r, err := s.GC(t.Context(), GCOptions{})
	if d, ok := errors.AsType[*DamageError](err); !ok || d.File != sub || r.Modules+r.Entries+r.Blobs != 0 {
		t.Errorf("%+v, %v; want the damage of %s", r, err, sub)
	}
	if err := errors.Join(os.Remove(sub), os.Rename(saved, sub)); err != nil {
		t.Fatal(err)
	}
	if got := have(t, s); got != "a b c 0 1 2 3 4" {
		t.Errorf("left %q", got)
	}
	wantQuiet(t, j)
}

// A collection removes entries whose blob is missing or truncated.
func TestGCWithoutBlob(t *testing.T) {
	s, j, _, _, _ := gcCache(t)
	file := func(name string) string { return filepath.Join(s.Dir(), "v1", filepath.FromSlash(name)) }
	gone, cut := file(blobFile(DigestOf(testBlob(0)))), file(blobFile(DigestOf(testBlob(1))))
	if err := errors.Join(os.Remove(gone), os.Truncate(cut, 1)); err != nil {
		t.Fatal(err)
	}
	r, err := s.GC(t.Context(), GCOptions{MaxBytes: 1 << 30})
	if err != nil || r.Entries != 2 || r.Blobs != 1 || r.Modules != 0 || r.Left != total(t, s.Dir()) {
		t.Errorf("%+v, %v", r, err)
	}
	wantLog(t, j, file(keyFile(testKey(0).id())), file(keyFile(testKey(1).id())), "missing")
	wantMiss(t, s, 0)
	wantMiss(t, s, 1)
	wantQuiet(t, j)
}

// A collection removes the directories of collected modules and stale temporary files; Clear removes
// all temporary files.
func TestNothingIsLeft(t *testing.T) {
	s, j, _, _, _ := gcCache(t)
	file := func(name string) string { return filepath.Join(s.Dir(), "v1", filepath.FromSlash(name)) }
	aside := func(name string, age time.Duration) string {
		name = file(tmpDir + "/" + name)
		write(t, name, []byte("half"))
		when := time.Now().Add(-age)
		if err := os.Chtimes(name, when, when); err != nil {
			t.Fatal(err)
		}
		return name
	}
	stale, young := aside("stale", 2*staleAfter), aside("young", 0)
	if _, err := s.GC(t.Context(), GCOptions{}); err != nil {
		t.Fatal(err)
	}
	if dirs, err := os.ReadDir(file(modulesDir)); err != nil || len(dirs) > 0 {
		t.Errorf("%d directories of modules that were collected, %v", len(dirs), err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a collection leaves the file of a dead writer: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("a collection removes a file that a writer may still use: %v", err)
	}
	if err := s.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(young); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Clear leaves a temporary file: %v", err)
	}
	wantQuiet(t, j)
}

// The pin of a module without a manifest protects no entry.
func TestGCPinnedWithoutManifest(t *testing.T) {
	s, _, a, _, _ := gcCache(t)
	if _, err := s.Pin(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(moduleFilePath(s, a, manifestFile)); err != nil {
		t.Fatal(err)
	}
	if r, err := s.GC(t.Context(), GCOptions{}); err != nil || r.Entries != 5 || r.Left != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A collection removes no foreign files and none of other format versions, and does not change layers.
func TestGCForeign(t *testing.T) {
	layer := t.TempDir()
	ls, _ := logged(layer)
	fill(t, ls, "layered", 2)
	s, _ := logged(t.TempDir(), layer)
	fill(t, s, "toy", 2)
	foreign := []string{"README", "v1/README", "v1/keys/README", "v1/keys/zz/README", "v1/blobs/00/README", "v1/modules/README", "v2/keys/00/x",
		"v1/keys/ff/" + ID{}.String(), "v1/blobs/ff/" + ID{}.String()}
	for _, f := range foreign {
		f = filepath.Join(s.Dir(), filepath.FromSlash(f))
		if err := os.MkdirAll(filepath.Dir(f), 0o777); err != nil {
			t.Fatal(err)
		}
		write(t, f, []byte("mine"))
	}
	before := snapshot(t, layer)
	r, err := s.GC(t.Context(), GCOptions{})
	if err != nil || r.Modules != 1 || r.Entries != 2 || r.Left != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, f := range foreign {
		if _, err := os.Stat(filepath.Join(s.Dir(), filepath.FromSlash(f))); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(before, snapshot(t, layer)); diff != "" {
		t.Errorf("the layer changed:\n%s", diff)
	}
	wantHit(t, s, 0) // from the layer
}

func TestClear(t *testing.T) {
	s, _, _, _, _ := gcCache(t)
	if _, err := s.Pin(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := have(t, s); got != "" || total(t, s.Dir()) != 0 {
		t.Errorf("left %q", got)
	}
	fill(t, s, "toy", 2)
	if got := have(t, s); got != "toy 0 1" {
		t.Errorf("after it: %q", got)
	}
	if err := New(Options{Dir: filepath.Join(t.TempDir(), "nowhere")}).Clear(t.Context()); err != nil {
		t.Errorf("of a directory that is not there: %v", err)
	}
}

// Collection during reads and writes: right results and no warnings.
func TestGCWhileInUse(t *testing.T) {
	s, j := logged(fastTemp(t))
	stop := time.Now().Add(300 * time.Millisecond)
	var users, collector sync.WaitGroup
	done := make(chan struct{})
	for w := range 4 {
		users.Go(func() {
			for n := w; time.Now().Before(stop); n++ {
				i := n % 5
				blob, err := makeOnce(t.Context(), s, testKey(i), func() []byte { return testBlob(i) })
				if err != nil || !bytes.Equal(blob, testBlob(i)) {
					t.Errorf("key %d: %q, %v", i, blob, err)
				}
				m := moduleOf("m", i)
				m.Graph = fmt.Append(nil, n) // mostly a new one, so that the directory is written
				if err := s.PutModule(t.Context(), m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	removed := 0
	collector.Go(func() {
		for {
			r, err := s.GC(t.Context(), GCOptions{})
			if err != nil {
				t.Error(err)
			}
			removed += r.Entries
			select {
			case <-done:
				return
			default:
			}
		}
	})
	users.Wait()
	close(done)
	collector.Wait()
	if removed == 0 {
		t.Error("nothing was collected")
	}
	if r, err := s.GC(t.Context(), GCOptions{}); err != nil || r.Left != 0 || total(t, s.Dir()) != 0 {
		t.Errorf("after all writes: %+v, %v", r, err)
	}
	wantQuiet(t, j)
}

// For random modules and limits, after a collection: the rest is within the limit or
// pinned, remaining modules keep their entries, modules were removed in order of use,
// and entries without a module remain only if no module was removed and the limit has room.
func TestGCProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(fastTemp(t), "gc")
		if err != nil {
			rt.Fatal(err)
		}
		s, _ := logged(dir)
		keys := rapid.IntRange(0, 8).Draw(rt, "keys")
		for i := range keys {
			if err := s.Put(t.Context(), testKey(i), testBlob(i), testProvenance); err != nil {
				rt.Fatal(err)
			}
		}
		var modules []Module
		pinned := map[ID]bool{}
		for i := range rapid.IntRange(0, 4).Draw(rt, "modules") {
			m := moduleOf(fmt.Sprint("m", i), rapid.SliceOfN(rapid.IntRange(0, 8), 0, 5).Draw(rt, "uses")...)
			m.Hash = sha256.Sum256([]byte{byte(i)})
			if err := s.PutModule(t.Context(), m); err != nil {
				rt.Fatal(err)
			}
			used(t, s, m, time.Unix(int64(1000+i), 0))
			modules = append(modules, m)
			if rapid.IntRange(0, 3).Draw(rt, "pin") == 0 {
				if _, err := s.Pin(t.Context(), m.Name); err != nil {
					rt.Fatal(err)
				}
				pinned[m.ID()] = true
			}
		}
		before := total(t, dir)
		limit := rapid.Int64Range(0, before+1).Draw(rt, "limit")
		r, err := s.GC(t.Context(), GCOptions{MaxBytes: limit})
		if err != nil {
			rt.Fatal(err)
		}
		left := total(t, dir)
		if r.Left != left || r.Freed != before-left {
			rt.Fatalf("%+v; %d before, %d left", r, before, left)
		}
		list, err := s.Modules(t.Context())
		if err != nil {
			rt.Fatal(err)
		}
		alive := map[ID]bool{}
		for _, m := range list {
			alive[m.ID] = true
		}
		needed := map[ID]bool{}
		gone := false // a module that was used later was removed
		for i := len(modules) - 1; i >= 0; i-- {
			id := modules[i].ID()
			if !alive[id] {
				gone = true
			} else if gone && !pinned[id] {
				rt.Fatalf("m%d stays, and one used later is gone", i)
			}
			if pinned[id] && !alive[id] {
				rt.Fatalf("m%d was pinned and is gone", i)
			}
			if alive[id] {
				for _, e := range modules[i].Entries {
					needed[e.ID] = true
				}
			}
		}
		for i := range keys {
			_, ok, err := s.Get(t.Context(), testKey(i))
			if err != nil || needed[testKey(i).id()] && !ok {
				rt.Fatalf("key %d, which a module uses: %v, %v", i, ok, err)
			}
			if ok && !needed[testKey(i).id()] && (gone || left > limit) {
				rt.Fatalf("key %d, which no module uses, is left although a module is gone or the limit is exceeded", i)
			}
		}
		if left > limit {
			for id := range alive {
				if !pinned[id] {
					rt.Fatalf("%d bytes left, above %d, and a module is not pinned", left, limit)
				}
			}
		}
	})
}
