package cache

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// used sets the time of last use of a module.
func used(t testing.TB, s *Store, m Module, when time.Time) {
	t.Helper()
	if err := os.Chtimes(moduleFilePath(s, m, manifestFile), when, when); err != nil {
		t.Fatal(err)
	}
}

func moduleFilePath(s *Store, m Module, file string) string {
	return filepath.Join(s.Dir(), "v1", filepath.FromSlash(moduleDir(m.ID())), file)
}

func TestModules(t *testing.T) {
	layer, dir := t.TempDir(), t.TempDir()
	ls, _ := logged(layer)
	base := fill(t, ls, "base", 1)
	if _, err := ls.Pin(t.Context(), "base"); err != nil { // a pin in a layer is not listed
		t.Fatal(err)
	}
	s, j := logged(dir, layer)
	toy := fill(t, s, "toy", 3)
	older := fill(t, s, "toy", 2) // the same name with other entries is another module
	now := time.Now().Truncate(time.Second)
	used(t, s, toy, now)
	used(t, s, older, now.Add(-time.Hour))
	if _, err := s.Pin(t.Context(), toy.ID().String()[:8]); err != nil {
		t.Fatal(err)
	}
	list, err := s.Modules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	size := func(n int) (bytes int64) {
		for i := range n {
			bytes += int64(len(testBlob(i)))
		}
		return bytes
	}
	want := []ModuleInfo{
		{ID: base.ID(), Name: "base", Target: "host", Hash: base.Hash, Entries: 1, Bytes: size(1), Dir: layer, Layer: true},
		{ID: toy.ID(), Name: "toy", Target: "host", Hash: toy.Hash, Entries: 3, Bytes: size(3), LastUsed: now, Pinned: true, Dir: dir},
		{ID: older.ID(), Name: "toy", Target: "host", Hash: toy.Hash, Entries: 2, Bytes: size(2), LastUsed: now.Add(-time.Hour), Dir: dir},
	}
	for i := range list {
		if d := time.Since(list[i].Created); d < 0 || d > time.Hour {
			t.Errorf("%s was created %v ago", list[i].Name, d)
		}
		list[i].Created = time.Time{}
		if i == 0 {
			list[i].LastUsed = time.Time{}
		}
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Error(diff)
	}

	for ref, want := range map[string]ID{
		"base": base.ID(), base.ID().String(): base.ID(), toy.ID().String()[:4]: toy.ID(), older.ID().String()[:20]: older.ID(),
	} {
		if m, err := s.Find(t.Context(), ref); err != nil || m.ID != want {
			t.Errorf("Find(%s) = %s, %v", ref, m.ID, err)
		}
	}
	for _, ref := range []string{"nothing", "", toy.ID().String()[:3], strings.Repeat("0", 64)} {
		if _, err := s.Find(t.Context(), ref); !errors.Is(err, ErrNotFound) {
			t.Errorf("Find(%q) = %v", ref, err)
		}
	}
	if _, err := s.Find(t.Context(), "toy"); err == nil || !strings.Contains(err.Error(), toy.ID().String()[:12]) || !strings.Contains(err.Error(), older.ID().String()[:12]) {
		t.Errorf("Find of two = %v", err)
	}
	if _, err := s.Pin(t.Context(), "base"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Pin of a layer's = %v", err)
	}
	wantQuiet(t, j)
}

func TestShow(t *testing.T) {
	layer, dir := t.TempDir(), t.TempDir()
	ls, _ := logged(layer)
	if err := ls.Put(t.Context(), testKey(0), testBlob(0), testProvenance); err != nil {
		t.Fatal(err)
	}
	s, j := logged(dir, layer)
	m := testModule("toy", 3) // one entry in the layer, one in the directory, one nowhere
	if err := errors.Join(s.Put(t.Context(), testKey(1), testBlob(1), testProvenance), s.PutModule(t.Context(), m)); err != nil {
		t.Fatal(err)
	}
	d, err := s.Show(t.Context(), "toy")
	if err != nil {
		t.Fatal(err)
	}
	if d.Missing != 1 || len(d.Keys) != 3 || len(d.Found) != 3 || string(d.Graph) != string(m.Graph) {
		t.Errorf("%+v", d)
	}
	for i, k := range d.Keys {
		if e := d.Found[i]; e == nil {
			if k.ID != testKey(2).id() {
				t.Errorf("%s is missing", k.ID)
			}
		} else if e.Key.id() != k.ID || e.Provenance != testProvenance || e.Size != k.Size {
			t.Errorf("%s: %+v", k.ID, e)
		}
	}
	wantQuiet(t, j)

	graph := moduleFilePath(s, m, graphFile)
	write(t, graph, []byte("junk"))
	if d, err := s.Show(t.Context(), "toy"); err != nil || d.Graph != nil {
		t.Errorf("with a damaged graph: %+v, %v", d, err)
	}
	wantLog(t, j, graph)
}

// onWrite is a writer that calls a function.
type onWrite func()

func (f onWrite) Write(b []byte) (int, error) {
	f()
	return len(b), nil
}

// A module that is removed after Show found it, alone or with the whole directory, is an error that names the
// directory.
func TestShowRemoved(t *testing.T) {
	for _, whole := range []bool{false, true} {
		dir := t.TempDir()
		var remove func()
		s := New(Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(onWrite(func() { remove() }), nil))})
		m := fill(t, s, "toy", 1)
		gone := filepath.Dir(moduleFilePath(s, m, manifestFile))
		// Finding the module reads manifests in the order of their ids, and logs this one, the last.
		last := filepath.Join(filepath.Dir(gone), strings.Repeat("f", 64))
		if err := os.Mkdir(last, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(last, manifestFile), []byte("junk"))
		if whole {
			gone = filepath.Join(dir, "v1")
		}
		removals := 0
		remove = func() {
			removals++
			if err := os.RemoveAll(gone); err != nil {
				t.Error(err)
			}
		}
		if d, err := s.Show(t.Context(), "toy"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), dir) || removals == 0 {
			t.Errorf("removed with %s: %+v, %v", filepath.Base(gone), d, err)
		}
	}
}

// The graph is kept in a file of its own and replaced when it changes.
func TestGraph(t *testing.T) {
	s, j := logged(t.TempDir())
	m := fill(t, s, "toy", 1)
	m.Graph = []byte("another loc")
	if err := s.PutModule(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(moduleFilePath(s, m, graphFile)); err != nil || string(data) != "another loc" {
		t.Errorf("%q, %v", data, err)
	}
	if list, err := s.Modules(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	m.Entries[0].Size++ // a compiler that makes other programs from the same keys
	if err := s.PutModule(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Modules(t.Context()); err != nil || len(list) != 1 || list[0].Bytes != m.Entries[0].Size {
		t.Errorf("%v, %v", list, err)
	}
	wantWhole(t, s)
	wantQuiet(t, j)
}

// A module of a layer and the directory is one module. Find returns that of the layer, Pin
// pins that of the directory.
func TestFindInSeveral(t *testing.T) {
	layer, dir := t.TempDir(), t.TempDir()
	for _, d := range []string{layer, dir} {
		one, _ := logged(d)
		fill(t, one, "toy", 2)
	}
	s, j := logged(dir, layer)
	if m, err := s.Find(t.Context(), "toy"); err != nil || m.Dir != layer || !m.Layer {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := s.Pin(t.Context(), "toy"); err != nil || m.Dir != dir || !m.Pinned {
		t.Errorf("%+v, %v", m, err)
	}
	if e, err := s.Explain(t.Context(), testKey(0)); err != nil || !e[0].Hit || e[0].Dir != layer {
		t.Errorf("%+v, %v; want the directory that Get reads", e, err)
	}
	// PutModule logs the damage of a module in a layer.
	file := filepath.Join(layer, "v1", filepath.FromSlash(moduleDir(new(testModule("toy", 2)).ID())), graphFile)
	write(t, file, []byte("junk"))
	if err := s.PutModule(t.Context(), testModule("toy", 2)); err != nil {
		t.Fatal(err)
	}
	wantLog(t, j, file, "digest")
}

// A directory that is also a layer counts once, and is written.
func TestDirectoryNamedTwice(t *testing.T) {
	dir := t.TempDir()
	s, _ := logged(dir, dir, dir)
	fill(t, s, "toy", 1)
	list, err := s.Modules(t.Context())
	if err != nil || len(list) != 1 || list[0].Layer {
		t.Errorf("%+v, %v; want one module, of the directory", list, err)
	}
}

// A damaged manifest does not hide the others.
func TestModulesDamaged(t *testing.T) {
	s, j := logged(t.TempDir())
	m := fill(t, s, "bad", 1)
	fill(t, s, "good", 1)
	file := moduleFilePath(s, m, manifestFile)
	write(t, file, []byte("junk"))
	list, err := s.Modules(t.Context())
	if err != nil || len(list) != 1 || list[0].Name != "good" {
		t.Errorf("%v, %v", list, err)
	}
	wantLog(t, j, file, "does not begin")

	// A valid manifest of another module.
	good, err := os.ReadFile(moduleFilePath(s, testModule("good", 1), manifestFile))
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, good)
	if list, err := s.Modules(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	wantLog(t, j, file, "it is the manifest of module")
}

func TestVerify(t *testing.T) {
	layer, dir := t.TempDir(), t.TempDir()
	ls, _ := logged(layer)
	fill(t, ls, "layered", 2)
	s, _ := logged(dir, layer)
	m := fill(t, s, "toy", 4)
	v, err := s.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var bytes int64
	for _, d := range []string{layer, dir} {
		for _, f := range files(t, d) {
			info, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			bytes += info.Size()
		}
	}
	if v.Modules != 2 || v.Entries != 6 || v.Blobs != 6 || v.Bytes != bytes || len(v.Problems) != 0 {
		t.Errorf("%+v; want %d bytes", v, bytes)
	}

	at := func(dir, name string) string { return filepath.Join(dir, "v1", filepath.FromSlash(name)) }
	bad := map[string]string{ // file to write junk to → part of its problem
		at(layer, blobFile(DigestOf(testBlob(0)))): "digest",
		at(dir, keyFile(testKey(1).id())):          "does not begin",
		moduleFilePath(s, m, graphFile):            "digest",
	}
	for f := range bad {
		write(t, f, []byte("junk"))
	}
	missing := at(dir, blobFile(DigestOf(testBlob(2))))
	if err := os.Remove(missing); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, dir)
	if v, err = s.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(v.Problems)
	for f, part := range bad {
		if !strings.Contains(text, f) || !strings.Contains(text, part) {
			t.Errorf("problems do not name %s: %s\n%s", f, part, text)
		}
	}
	// Each file of bad is a problem, and so is the layer's manifest of key 0, which names the
	// damaged blob. Key 0 is whole in the directory and key 1 in the layer, so the modules lack
	// only key 2: one problem of its manifest, one of its module.
	if len(v.Problems) != len(bad)+1+1+1 {
		t.Errorf("%d problems:\n%s", len(v.Problems), text)
	}
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Errorf("Verify writes:\n%s", diff)
	}
}

func TestExplain(t *testing.T) {
	layer, dir := t.TempDir(), t.TempDir()
	ls, _ := logged(layer)
	s, j := logged(dir, layer)
	put := func(s *Store, change func(*Key)) Key {
		k := testKey(0)
		change(&k)
		if err := s.Put(t.Context(), k, []byte(k.String()), testProvenance); err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := testKey(0)
	if e, err := s.Explain(t.Context(), k); err != nil || len(e) != 1 || e[0].Hit || e[0].Nearest != nil || e[0].Changes != nil {
		t.Errorf("in an empty cache: %+v, %v", e, err)
	}
	j.Take() // the layer is empty

	hit := put(ls, func(k *Key) { k.Target = "cuda:sm_90" })
	put(s, func(k *Key) { k.Piece[0]++ })                               // all the same but the piece
	put(s, func(k *Key) { k.Pipeline, k.Shape, k.Format = "1", "", 9 }) // the same piece, three other factors
	two := put(ls, func(k *Key) { k.Pipeline, k.Shape = "6", "s0=64" })
	before := snapshot(t, dir)
	ex, err := s.Explain(t.Context(), k, hit, testKey(7))
	if err != nil || len(ex) != 3 {
		t.Fatal(ex, err)
	}
	// The same piece first, then the fewest different factors: the entry of pipeline 6
	// has two, the entry of the other target has one.
	if e := ex[0]; e.Hit || e.Nearest == nil || e.Nearest.Key != hit {
		t.Errorf("%+v", e)
	} else if diff := cmp.Diff([]Change{{"target", "cuda:sm_90", "host"}}, e.Changes); diff != "" {
		t.Error(diff)
	}
	if e := ex[1]; !e.Hit || e.Dir != layer || e.Nearest != nil || e.Changes != nil {
		t.Errorf("%+v", e)
	}
	if e := ex[2]; e.Hit || len(e.Changes) != 1 || e.Changes[0].Factor != "piece" {
		t.Errorf("of another piece: %+v", e)
	}
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Errorf("Explain writes:\n%s", diff)
	}
	wantQuiet(t, j)

	// An entry of the same piece with two different factors is nearer than one of another
	// piece with no other difference; of equal entries, the newest is the nearest.
	k = testKey(20)
	put(s, func(o *Key) { o.Piece = testKey(21).Piece })
	for i, name := range []string{"c", "a", "d", "b"} { // d is the newest, and is not written last
		o := k
		o.Target, o.Pipeline = "elsewhere", name
		e := &Entry{Key: o, Blob: DigestOf(nil), Created: time.Unix(int64(1000+i%3), 0)}
		tr, err := s.dir.open()
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.write(keyFile(o.id()), e.encode()); err != nil {
			t.Fatal(err)
		}
		tr.Close()
	}
	if ex, err := s.Explain(t.Context(), k); err != nil || ex[0].Nearest == nil || ex[0].Nearest.Key.Pipeline != "d" {
		t.Errorf("%+v, %v", ex, err)
	}

	// For a damaged entry, the explanation has the damage and no changes.
	file := filepath.Join(layer, "v1", filepath.FromSlash(blobFile(DigestOf([]byte(two.String())))))
	write(t, file, []byte("junk"))
	ex, err = s.Explain(t.Context(), two)
	if err != nil || ex[0].Hit || len(ex[0].Damaged) != 1 || !strings.Contains(ex[0].Damaged[0].Error(), file) || ex[0].Nearest == nil || ex[0].Nearest.Key != two || ex[0].Changes != nil {
		t.Errorf("%+v, %v", ex, err)
	}
}

// Explain logs a directory that it cannot list, and does not count it.
func TestExplainUnlistable(t *testing.T) {
	s, j := logged(t.TempDir())
	fill(t, s, "toy", 1)
	name := "00"
	if strings.HasPrefix(testKey(5).id().String(), name) || strings.HasPrefix(testKey(0).id().String(), name) {
		t.Fatal("the file would be in the way of the keys")
	}
	file := filepath.Join(s.Dir(), "v1", keysDir, name)
	write(t, file, nil)
	if ex, err := s.Explain(t.Context(), testKey(5)); err != nil || ex[0].Hit || ex[0].Nearest == nil || len(ex[0].Damaged) > 0 {
		t.Errorf("%+v, %v", ex, err)
	}
	wantLog(t, j, file, "cannot be listed")
	if n := s.Stats().Damaged; n != 0 {
		t.Errorf("%d damaged files are counted, want 0", n)
	}
}

// Verify during writes and collections finds no damage in files that appear or disappear meanwhile.
func TestVerifyWhileInUse(t *testing.T) {
	s, j := logged(fastTemp(t))
	stop := time.Now().Add(time.Second)
	var users sync.WaitGroup
	for w := range 2 {
		users.Go(func() {
			for n := 0; time.Now().Before(stop); n++ {
				i := 100*w + n%100
				blob := []byte(testKey(i).String())
				if err := s.Put(t.Context(), testKey(i), blob, testProvenance); err != nil {
					t.Error(err)
				}
				m := Module{Name: fmt.Sprint("m", w), Hash: testKey(w).Sum(), Target: "host", Graph: fmt.Append(nil, n)}
				if n%10 == 0 {
					m.Entries = []ModuleEntry{{testKey(i).id(), int64(len(blob))}}
				}
				if err := s.PutModule(t.Context(), m); err != nil {
					t.Error(err)
				}
			}
		})
	}
	users.Go(func() {
		for time.Now().Before(stop) {
			if _, err := s.GC(t.Context(), GCOptions{}); err != nil {
				t.Error(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	runs := 0
	for ; time.Now().Before(stop); runs++ {
		v, err := s.Verify(t.Context())
		if err != nil {
			t.Error(err)
			break
		}
		// An entry may be missing: a collection removed it before its module was recorded.
		problems := slices.DeleteFunc(v.Problems, func(err error) bool { return strings.Contains(err.Error(), "which it lists") })
		if len(problems) > 0 {
			t.Errorf("%d problems, such as %v", len(problems), problems[0])
			break
		}
	}
	users.Wait()
	if runs == 0 {
		t.Error("nothing was verified")
	}
	wantQuiet(t, j)
}

// Verify during writes, without collections, finds no problem: all entries of modules exist.
func TestVerifyWhileWritten(t *testing.T) {
	s, j := logged(fastTemp(t))
	done := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		defer close(done)
		for i := range 400 {
			blob := []byte(testKey(i).String())
			m := Module{Name: fmt.Sprint("m", i), Target: "host", Entries: []ModuleEntry{{testKey(i).id(), int64(len(blob))}}}
			if err := errors.Join(s.Put(t.Context(), testKey(i), blob, testProvenance), s.PutModule(t.Context(), m)); err != nil {
				t.Error(err)
			}
		}
	})
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		v, err := s.Verify(t.Context())
		if err != nil || len(v.Problems) > 0 {
			t.Errorf("%+v, %v", v, err)
			break
		}
	}
	writer.Wait()
	wantQuiet(t, j)
}
