package cache

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"pwc/internal/testkit"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPutGet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "when", "needed")
	s, j := logged(dir)
	wantMiss(t, s, 0)
	if _, err := os.Stat(dir); err == nil {
		t.Error("a miss makes the directory")
	}
	fill(t, s, "toy", 3)
	for i := range 3 {
		wantHit(t, s, i)
		wantHit(t, New(Options{Dir: dir}), i)
	}
	wantMiss(t, s, 3)
	for name, other := range others(testKey(0)) {
		if _, ok, err := s.Get(t.Context(), other); ok || err != nil {
			t.Errorf("another %s: %v, %v; want a miss", name, ok, err)
		}
	}
	wantWhole(t, s)
	wantQuiet(t, j)

	n := int64(len(testBlob(0)) + len(testBlob(1)) + len(testBlob(2)))
	st := s.Stats()
	if st.Stored != 3 || st.StoredBytes != n || st.Loaded != 3 || st.LoadedBytes != n || st.Damaged != 0 || st.NotCached != 0 || st.LoadTime <= 0 || st.StoreTime <= 0 {
		t.Errorf("stats %+v", st)
	}
}

// Entries whose programs are the same share the blob.
func TestContentIsShared(t *testing.T) {
	s, _ := logged(t.TempDir())
	for i := range 5 {
		if err := s.Put(t.Context(), testKey(i), []byte("same"), testProvenance); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(files(t, filepath.Join(s.Dir(), "v1", blobsDir))); n != 1 {
		t.Errorf("%d blobs, want 1", n)
	}
	v, err := s.Verify(t.Context())
	if err != nil || v.Entries != 5 || v.Blobs != 1 || len(v.Problems) != 0 {
		t.Errorf("Verify = %+v, %v", v, err)
	}
}

func TestEmptyBlob(t *testing.T) {
	s, j := logged(t.TempDir())
	if err := s.Put(t.Context(), testKey(0), nil, Provenance{}); err != nil {
		t.Fatal(err)
	}
	blob, ok, err := s.Get(t.Context(), testKey(0))
	if !ok || err != nil || len(blob) != 0 {
		t.Errorf("Get = %q, %v, %v", blob, ok, err)
	}
	wantQuiet(t, j)
}

// Invalid entries are refused, but not with a NotCachedError.
func TestPutRefuses(t *testing.T) {
	s, j := logged(t.TempDir())
	for _, err := range []error{
		s.Put(t.Context(), Key{}, nil, testProvenance),
		s.Put(t.Context(), testKey(0), nil, Provenance{Compiler: "\xff"}),
		s.Put(t.Context(), testKey(0), nil, Provenance{Duration: -1}),
		s.PutModule(t.Context(), Module{Name: "/etc/passwd"}),
		s.PutModule(t.Context(), Module{Name: "m", Entries: []ModuleEntry{{ID{}, -1}}}),
	} {
		var nc *NotCachedError
		if err == nil || errors.As(err, &nc) {
			t.Errorf("got %v, want an error of the arguments", err)
		}
	}
	wantQuiet(t, j)
	if n := len(snapshot(t, s.Dir())); n != 1 {
		t.Errorf("%d files were made", n-1)
	}
}

// Another program for the key replaces the first, and a second Put of the same
// writes nothing.
func TestPutAgain(t *testing.T) {
	s, _ := logged(t.TempDir())
	fill(t, s, "toy", 2)
	old := time.Now().Add(-time.Hour)
	for _, f := range files(t, s.Dir()) {
		if err := os.Chtimes(f, old, old); err != nil {
			t.Fatal(err)
		}
	}
	entries := func() []map[string]string {
		return []map[string]string{snapshot(t, filepath.Join(s.Dir(), "v1", keysDir)), snapshot(t, filepath.Join(s.Dir(), "v1", blobsDir))}
	}
	before := entries()
	fill(t, s, "toy", 2)
	if diff := cmp.Diff(before, entries()); diff != "" || s.Stats().Stored != 2 {
		t.Errorf("the second Put writes (%d stored):\n%s", s.Stats().Stored, diff)
	}
	// Put repairs either file.
	for i, name := range []string{keyFile(testKey(0).id()), blobFile(DigestOf(testBlob(1)))} {
		if err := os.Remove(filepath.Join(s.Dir(), "v1", filepath.FromSlash(name))); err != nil {
			t.Fatal(err)
		}
		fill(t, s, "toy", 2)
		if n := s.Stats().Stored; n != int64(3+i) {
			t.Errorf("%d stored after a repair, want %d", n, 3+i)
		}
	}
	if err := s.Put(t.Context(), testKey(0), []byte("other"), testProvenance); err != nil {
		t.Fatal(err)
	}
	if blob, _, _ := s.Get(t.Context(), testKey(0)); !bytes.Equal(blob, []byte("other")) {
		t.Errorf("Get = %q", blob)
	}
}

func TestHitWritesNothing(t *testing.T) {
	layer := t.TempDir()
	ls, _ := logged(layer)
	fill(t, ls, "layered", 2)
	dir := t.TempDir()
	s, _ := logged(dir, layer)
	for i := 2; i < 4; i++ {
		if err := s.Put(t.Context(), testKey(i), testBlob(i), testProvenance); err != nil {
			t.Fatal(err)
		}
	}
	m := testModule("own", 4)
	if err := s.PutModule(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	manifest := filepath.Join(dir, "v1", filepath.FromSlash(moduleDir(m.ID())), manifestFile)
	for _, d := range []string{layer, dir} {
		for _, f := range files(t, d) {
			if err := os.Chtimes(f, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	before, layerBefore := snapshot(t, dir), snapshot(t, layer)

	s, j := logged(dir, layer) // another process
	for range 3 {
		for i := range 4 {
			wantHit(t, s, i)
		}
		for _, m := range []Module{m, testModule("layered", 2)} {
			if err := s.PutModule(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantQuiet(t, j)
	if diff := cmp.Diff(layerBefore, snapshot(t, layer)); diff != "" {
		t.Errorf("the layer changed:\n%s", diff)
	}
	// Only the time of use of the directory's module may have changed.
	info, err := os.Stat(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if !info.ModTime().After(old.Add(time.Minute)) {
		t.Error("the use of the module was not recorded")
	}
	if err := os.Chtimes(manifest, old, old); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Errorf("the directory changed:\n%s", diff)
	}
	// Once in the life of a store.
	if err := s.PutModule(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Errorf("the use was recorded again:\n%s", diff)
	}
}

func TestLayers(t *testing.T) {
	first, second, dir := t.TempDir(), t.TempDir(), t.TempDir()
	put := func(dir string, i int, blob string) {
		s, _ := logged(dir)
		if err := s.Put(t.Context(), testKey(i), []byte(blob), testProvenance); err != nil {
			t.Fatal(err)
		}
	}
	put(first, 0, "first")
	put(second, 0, "second")
	put(dir, 0, "dir")
	put(second, 1, "second")
	put(dir, 1, "dir")
	put(dir, 2, "dir")
	s, j := logged(dir, first, second)
	for i, want := range []string{"first", "second", "dir"} {
		if blob, ok, err := s.Get(t.Context(), testKey(i)); !ok || err != nil || string(blob) != want {
			t.Errorf("key %d from %q, %v, %v; want %s", i, blob, ok, err, want)
		}
	}
	wantQuiet(t, j)

	// A damaged entry in a layer is a warning, and the next layer has a hit.
	file := filepath.Join(first, "v1", filepath.FromSlash(keyFile(testKey(0).id())))
	if err := os.WriteFile(file, []byte("junk"), 0o666); err != nil {
		t.Fatal(err)
	}
	if blob, ok, err := s.Get(t.Context(), testKey(0)); !ok || err != nil || string(blob) != "second" {
		t.Errorf("from %q, %v, %v; want second", blob, ok, err)
	}
	wantLog(t, j, file, "does not begin")

	// Put writes only in the directory; without a directory it writes nothing.
	before := snapshot(t, first)
	put3 := func(s *Store) error { return s.Put(t.Context(), testKey(3), testBlob(3), testProvenance) }
	if err := put3(s); err != nil {
		t.Fatal(err)
	}
	ro, j := logged("", first, second)
	var nc *NotCachedError
	if err := put3(ro); !errors.As(err, &nc) || !errors.Is(err, ErrNoDir) {
		t.Errorf("Put without a directory: %v", err)
	}
	wantLog(t, j, "not kept", "no directory")
	if unlock, err := ro.Lock(t.Context(), testKey(3)); err != nil {
		t.Error(err)
	} else {
		unlock()
	}
	if diff := cmp.Diff(before, snapshot(t, first)); diff != "" {
		t.Errorf("a layer was written:\n%s", diff)
	}
	wantMiss(t, ro, 3)

	// A missing layer is logged once.
	gone, j := logged(dir, filepath.Join(dir, "nowhere"))
	wantHit(t, gone, 3)
	wantLog(t, j, "read-only layer", "nowhere")
	wantHit(t, gone, 3)
	wantQuiet(t, j)
}

func TestZeroStore(t *testing.T) {
	s := New(Options{})
	wantMiss(t, s, 0)
	if err := s.Put(t.Context(), testKey(0), nil, testProvenance); !errors.Is(err, ErrNoDir) {
		t.Errorf("Put: %v", err)
	}
	if list, err := s.Modules(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("Modules = %v, %v", list, err)
	}
	if _, err := s.GC(t.Context(), GCOptions{}); !errors.Is(err, ErrNoDir) {
		t.Errorf("GC: %v", err)
	}
}

// Stores of two format versions on one directory do not read each other's files, and the later version does not
// change those of the earlier one.
func TestFormatVersions(t *testing.T) {
	dir := t.TempDir()
	one, j1 := logged(dir)
	j2 := &testkit.Log{}
	two := newStore(Options{Dir: dir, Logger: j2.Logger()}, FormatVersion+1)
	fill(t, one, "toy", 2)
	wantMiss(t, two, 0)
	before := snapshot(t, filepath.Join(dir, "v1"))
	for i := range 3 {
		if err := two.Put(t.Context(), testKey(i), append(testBlob(i), '2'), testProvenance); err != nil {
			t.Fatal(err)
		}
	}
	if err := two.PutModule(t.Context(), testModule("toy", 3)); err != nil {
		t.Fatal(err)
	}
	wantHit(t, one, 0)
	wantMiss(t, one, 2)
	if _, err := two.GC(t.Context(), GCOptions{}); err != nil {
		t.Fatal(err)
	}
	if v, err := two.Verify(t.Context()); err != nil || v.Entries != 0 {
		t.Errorf("after a collection of everything: %+v, %v", v, err)
	}
	if err := two.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, snapshot(t, filepath.Join(dir, "v1"))); diff != "" {
		t.Errorf("version 2 changed version 1:\n%s", diff)
	}
	wantQuiet(t, j1)
	wantQuiet(t, j2)
}

func TestContextEnds(t *testing.T) {
	s, _ := logged(t.TempDir())
	fill(t, s, "toy", 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if _, _, err := s.Get(ctx, testKey(0)); !errors.Is(err, cause) {
		t.Errorf("Get: %v", err)
	}
	for name, err := range map[string]error{
		"Modules": second(s.Modules(ctx)), "Verify": second(s.Verify(ctx)), "Explain": second(s.Explain(ctx, testKey(5))),
		"GC": second(s.GC(ctx, GCOptions{})),
	} {
		if !errors.Is(err, cause) {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantHit(t, s, 0)
	// Finished work is stored although ctx has ended.
	if err := s.Put(ctx, testKey(1), testBlob(1), testProvenance); err != nil {
		t.Errorf("Put: %v", err)
	}
	wantHit(t, s, 1)

	// The wait for a lock ends with ctx, among goroutines and among stores.
	for _, other := range []*Store{s, New(Options{Dir: s.Dir()})} {
		unlock, err := s.Lock(t.Context(), testKey(2))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Millisecond, cause)
		if _, err := other.Lock(ctx, testKey(2)); !errors.Is(err, cause) {
			t.Errorf("Lock: %v", err)
		}
		cancel()
		unlock()
		unlock, err = other.Lock(t.Context(), testKey(2))
		if err != nil {
			t.Fatal(err)
		}
		unlock()
	}
}

func second[T any](_ T, err error) error { return err }

// makeOnce does what pieces.Build does for one artifact.
func makeOnce(ctx context.Context, s *Store, k Key, compile func() []byte) ([]byte, error) {
	if blob, ok, err := s.Get(ctx, k); ok || ctx.Err() != nil {
		return blob, err
	}
	unlock, err := s.Lock(ctx, k)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if blob, ok, err := s.Get(ctx, k); ok || ctx.Err() != nil {
		return blob, err
	}
	blob := compile()
	if err := s.Put(ctx, k, blob, testProvenance); err != nil {
		var nc *NotCachedError
		if !errors.As(err, &nc) {
			return nil, err
		}
	}
	return blob, nil
}

// Goroutines of one store, and of several on one directory, compile a key once.
func TestOneCompileAmongGoroutines(t *testing.T) {
	dir := t.TempDir()
	var compiled [4]atomic.Int32
	var wg sync.WaitGroup
	for range 3 {
		s, _ := logged(dir)
		for range 4 {
			wg.Go(func() {
				for i := range compiled {
					blob, err := makeOnce(t.Context(), s, testKey(i), func() []byte {
						compiled[i].Add(1)
						time.Sleep(2 * time.Millisecond)
						return testBlob(i)
					})
					if err != nil || !bytes.Equal(blob, testBlob(i)) {
						t.Errorf("key %d: %q, %v", i, blob, err)
					}
				}
			})
		}
	}
	wg.Wait()
	for i := range compiled {
		if n := compiled[i].Load(); n != 1 {
			t.Errorf("key %d was compiled %d times", i, n)
		}
	}
	if n := len(files(t, filepath.Join(dir, "v1", locksDir))); n != 1 {
		t.Errorf("%d lock files are left, want only that of collection", n)
	}
	if n := len(files(t, filepath.Join(dir, "v1", tmpDir))); n != 0 {
		t.Errorf("%d temporary files are left", n)
	}
}

// Writers do not wait for each other; they wait for a collection.
func TestWritersShare(t *testing.T) {
	j := &testkit.Log{}
	s := New(Options{Dir: fastTemp(t), Logger: j.Logger(), LockTimeout: 50 * time.Millisecond})
	tr, err := s.dir.create()
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	for _, writer := range []bool{true, false} {
		unlock, err := tr.lock(t.Context(), gcLock, writer, false, &budget{limit: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Put(t.Context(), testKey(1), testBlob(1), testProvenance); err != nil {
			t.Fatal(err)
		}
		unlock()
		if writer {
			wantQuiet(t, j)
		} else {
			wantLog(t, j, "going on without the lock")
		}
	}
}

// A lock that is never released delays the result by the timeout.
func TestLockTimeout(t *testing.T) {
	dir := t.TempDir()
	holder, _ := logged(dir)
	unlock, err := holder.Lock(t.Context(), testKey(0))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	j := &testkit.Log{}
	s := New(Options{Dir: dir, Logger: j.Logger(), LockTimeout: time.Millisecond})
	blob, err := makeOnce(t.Context(), s, testKey(0), func() []byte { return testBlob(0) })
	if err != nil || !bytes.Equal(blob, testBlob(0)) {
		t.Errorf("%q, %v", blob, err)
	}
	wantLog(t, j, "going on without the lock", testKey(0).id().String())
	wantHit(t, s, 0)
}

// TestLockTimeoutIsForAll: another store holds the lock of collections and those of three keys, and
// does not release them. All writes of a store, also in many goroutines, together wait for one
// timeout.
func TestLockTimeoutIsForAll(t *testing.T) {
	dir := fastTemp(t)
	holder, _ := logged(dir)
	tree, err := holder.dir.create()
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	release, err := tree.lock(t.Context(), gcLock, false, false, &holder.waits)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for i := range 3 {
		unlock, err := holder.Lock(t.Context(), testKey(i))
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
	}
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Minute
		j := &testkit.Log{}
		s := New(Options{Dir: dir, Logger: j.Logger(), LockTimeout: timeout})
		start := time.Now()
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				if _, err := makeOnce(t.Context(), s, testKey(i), func() []byte { return testBlob(i) }); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for i := range 10 {
			if err := s.Put(t.Context(), testKey(10+i), testBlob(10+i), testProvenance); err != nil {
				t.Error(err)
			}
			if _, err := makeOnce(t.Context(), s, testKey(i), func() []byte { return testBlob(i) }); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took > timeout {
			t.Errorf("twenty writes waited for %v, with a timeout of %v", took, timeout)
		}
		if text := j.Take(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "going on without the lock") {
			t.Errorf("messages:\n%s", text)
		}
		for i := range 20 {
			wantHit(t, s, i)
		}
	})
}
