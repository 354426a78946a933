package oci

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"pwc/cache"
)

func TestPushPull(t *testing.T) {
	srv, from := newServer(t), filled(t, 5)
	sent := mustPush(t, from, srv.ref("v1"))
	// 5 programs, a graph and the config.
	if sent.Blobs != 7 || sent.Written != 7 || sent.Entries != 5 || sent.Modules != 1 || sent.WrittenBytes != sent.Bytes {
		t.Errorf("sent %+v", sent)
	}
	to, journal := newStore(t)
	got, err := Pull(t.Context(), to, srv.ref("v1"), plain())
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest != sent.Digest || got.Entries != 5 || got.Fetched != 6 || got.Kept != 0 || len(got.Modules) != 1 || len(got.Refused) != 0 {
		t.Errorf("received %+v", got)
	}
	wantWhole(t, to, 5, 1)
	for i := range 5 {
		wantHit(t, to, i, "host")
	}
	was, err := from.Show(t.Context(), "toy")
	if err != nil {
		t.Fatal(err)
	}
	is, err := to.Show(t.Context(), "toy")
	if err != nil {
		t.Fatal(err)
	}
	if is.ID != was.ID || string(is.Graph) != string(was.Graph) || !cmp.Equal(is.Keys, was.Keys) {
		t.Errorf("the module changed on its way")
	}
	e := is.Found[0]
	if want := "from " + srv.Listener.Addr().String() + "/team/toy@" + sent.Digest.String(); e.Provenance.Origin != want || e.Provenance.Compiler != "vec 1" {
		t.Errorf("provenance %+v, want origin %q and the compiler", e.Provenance, want)
	}
	if text := journal.Take(); text != "" {
		t.Errorf("messages: %s", text)
	}
}

// TestManifest compares the types and annotations of the manifest, which other tools read, with texts written by hand.
func TestManifest(t *testing.T) {
	srv, s := newServer(t), filled(t, 1)
	fill(t, s, "gpu", "cuda:sm_90", 7, 8)
	mustPush(t, s, srv.ref("v1"))
	resp, err := http.Get("http://" + srv.Listener.Addr().String() + "/v2/team/toy/manifests/v1")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Header.Get("Content-Type"); got != "application/vnd.oci.image.manifest.v1+json" {
		t.Errorf("content type %s", got)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	if m.SchemaVersion != 2 || m.ArtifactType != "application/vnd.pwc.cache.v1" || m.Config.MediaType != "application/vnd.pwc.cache.config.v1+json" {
		t.Errorf("manifest %s", text)
	}
	types := map[string]int{}
	var size int64
	for _, l := range m.Layers {
		types[l.MediaType]++
		size += l.Size
	}
	if want := map[string]int{"application/vnd.pwc.cache.program.v1": 2, "application/vnd.pwc.cache.graph.v1": 2}; !cmp.Equal(types, want) {
		t.Errorf("layers %v", types)
	}
	bytes, err := json.Marshal(size)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"cache.pwc.image/entry-count":      "2",
		"cache.pwc.image/cache-size-bytes": string(bytes),
		"cache.pwc.image/summary":          `{"targets":[{"backend":"cuda","arch":"sm_90","warp_size":32},{"backend":"host","arch":"","warp_size":0}]}`,
		"cache.pwc.image/format":           "v1",
	}
	if diff := cmp.Diff(want, m.Annotations); diff != "" {
		t.Error(diff)
	}
}

func TestSecondPushUploadsNothing(t *testing.T) {
	srv, s := newServer(t), filled(t, 5)
	first := mustPush(t, s, srv.ref("v1"))
	if n := srv.counts(); n["POST uploads"] != 7 || n["PUT uploads"] != 7 || n["PUT manifests"] != 1 {
		t.Errorf("first push: %v", n)
	}
	again := mustPush(t, s, srv.ref("v1"))
	if want := map[string]int{"HEAD manifests": 1}; !cmp.Equal(srv.counts(), want) || again.Written != 0 || again.Digest != first.Digest {
		t.Errorf("second push: %+v", again)
	}
	// Another tag needs the manifest only.
	mustPush(t, s, srv.ref("v2"))
	if want, got := map[string]int{"HEAD manifests": 1, "HEAD blobs": 7, "PUT manifests": 1}, srv.counts(); !cmp.Equal(got, want) {
		t.Errorf("push under another tag: %v", got)
	}
	// A second module sends its new blobs only: two programs, its graph and the config.
	fill(t, s, "toy two", "host", 3, 7)
	more := mustPush(t, s, srv.ref("v1"))
	if got := srv.counts(); more.Written != 4 || got["PUT uploads"] != 4 || got["HEAD blobs"] != 10 || got["PUT manifests"] != 1 {
		t.Errorf("push of more: %+v, %v", more, got)
	}
}

// TestPushObserver checks that the last progress of a push is that of all blobs, if the registry lacks all of them, has
// the blobs under another tag, or has the tag.
func TestPushObserver(t *testing.T) {
	srv, s := newServer(t), filled(t, 5)
	for i, push := range []struct {
		tag          string
		calls, wrote int
	}{{"v1", 7, 7}, {"v2", 7, 0}, {"v1", 1, 0}} {
		var seen []Progress
		o := plain()
		o.Observer = func(p Progress) { seen = append(seen, p) }
		sent, err := Push(t.Context(), s, nil, srv.ref(push.tag), o)
		if err != nil {
			t.Fatal(err)
		}
		if len(seen) != push.calls || sent.Written != push.wrote {
			t.Fatalf("push %d: progress %+v, %d blobs written", i, seen, sent.Written)
		}
		if got, want := seen[len(seen)-1], (Progress{7, 7, sent.Bytes, sent.Bytes}); got != want {
			t.Errorf("push %d ends with %+v, want %+v", i, got, want)
		}
	}
}

// TestReproducible checks that the digest does not depend on the order of modules, times, durations, origins or the
// directory of the store.
func TestReproducible(t *testing.T) {
	a, _ := newStore(t)
	fill(t, a, "one", "host", 0, 4)
	fill(t, a, "two", "host", 2, 6)
	b, _ := newStore(t)
	for i := 5; i >= 2; i-- {
		p := cache.Provenance{Compiler: "vec 1", Origin: "somewhere else", Duration: 77}
		if err := b.Put(t.Context(), testKey(i, "host"), testBlob(t, i, "host"), p); err != nil {
			t.Fatal(err)
		}
	}
	fill(t, b, "two", "host", 2, 6)
	fill(t, b, "one", "host", 0, 4)
	var digests []cache.Digest
	var texts []string
	for _, s := range []*cache.Store{a, b} {
		for _, refs := range [][]string{{"one", "two"}, {"two", "one", "one"}, nil} {
			art, err := pack(t.Context(), s, refs, nil)
			if err != nil {
				t.Fatal(err)
			}
			digests = append(digests, art.sent().Digest)
			text, err := art.config.encode()
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(text))
		}
	}
	for i := range digests {
		if digests[i] != digests[0] {
			t.Fatalf("digest %d is %s, the first is %s:\n%s\n%s", i, digests[i], digests[0], texts[i], texts[0])
		}
	}
	one, err := pack(t.Context(), a, []string{"one"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if one.sent().Digest == digests[0] {
		t.Error("other modules have the same digest")
	}
	// A push of a pulled artifact gives the same artifact.
	srv := newServer(t)
	sent := mustPush(t, a, srv.ref("v1"))
	c, _ := newStore(t)
	if _, err := Pull(t.Context(), c, srv.ref("v1"), plain()); err != nil {
		t.Fatal(err)
	}
	if again := mustPush(t, c, srv.ref("v2")); again.Digest != sent.Digest || again.Written != 0 {
		t.Errorf("pushed again: %+v", again)
	}
}

func TestPushErrors(t *testing.T) {
	srv, s := newServer(t), filled(t, 2)
	host := srv.Listener.Addr().String()
	push := func(s *cache.Store, refs []string, ref string, o Options) error {
		_, err := Push(t.Context(), s, refs, ref, o)
		return err
	}
	wantErr(t, push(s, []string{"nobody"}, srv.ref("v1"), plain()), "no such module", "nobody")
	wantErr(t, push(s, nil, host+"/team/toy", plain()), "no tag")
	wantErr(t, push(s, nil, srv.at(cache.Digest{1}), plain()), "needs a tag")
	wantErr(t, push(s, nil, "toy:v1", plain()), "is not REGISTRY/REPOSITORY:TAG")
	wantErr(t, push(s, nil, host+"/Team:v1", plain()), "is not REGISTRY/REPOSITORY:TAG")
	empty, _ := newStore(t)
	wantErr(t, push(empty, nil, srv.ref("v1"), plain()), "holds no module")
	o := plain()
	o.MinDriver = func(string, string) string { return "newest" }
	wantErr(t, push(s, nil, srv.ref("v1"), o), "minimum driver", `"newest"`)
	if n := srv.counts(); len(n) != 0 {
		t.Errorf("requests: %v", n)
	}
	lost, _ := newStore(t)
	m := cache.Module{Name: "lost", Hash: [32]byte{1}, Target: "host", Entries: []cache.ModuleEntry{{ID: testKey(1, "host").Sum(), Size: 5}}}
	if err := lost.PutModule(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	wantErr(t, push(lost, nil, srv.ref("v1"), plain()), "lost", "1 of 1 entries are missing")
	damaged := filled(t, 1)
	toy, err := damaged.Find(t.Context(), "toy")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(damaged.Dir(), "v1", "modules", toy.ID.String(), "computation_graph.ir"), []byte("junk"))
	wantErr(t, push(damaged, nil, srv.ref("v1"), plain()), "toy", "its graph is damaged")
	bare, _ := newStore(t)
	if err := bare.PutModule(t.Context(), cache.Module{Name: "bare", Hash: [32]byte{1}, Target: "host"}); err != nil {
		t.Fatal(err)
	}
	wantErr(t, push(bare, nil, srv.ref("v1"), plain()), "nothing to share")
}

// TestPushOfChanging checks that a blob that is removed or changed between the making of the manifest and the upload
// is an error, not another artifact.
func TestPushOfChanging(t *testing.T) {
	for name, change := range map[string]func(s *cache.Store) error{
		"it was replaced": func(s *cache.Store) error {
			return s.Put(t.Context(), testKey(1, "host"), testBlob(t, 99, "host"), cache.Provenance{})
		},
		"it was removed": func(s *cache.Store) error { return s.Clear(t.Context()) },
	} {
		srv, s := newServer(t), filled(t, 3)
		changed := false
		srv.setMeddle(func(http.ResponseWriter, *http.Request) bool {
			if !changed {
				changed = true
				if err := change(s); err != nil {
					t.Error(err)
				}
			}
			return false
		})
		_, err := Push(t.Context(), s, nil, srv.ref("v1"), plain())
		wantErr(t, err, "entry ", name)
		to, _ := newStore(t)
		if _, err := Pull(t.Context(), to, srv.ref("v1"), plain()); err == nil {
			t.Errorf("%s: there is an artifact", name)
		}
	}
}
