package oci

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/cache"
	"pwc/internal/testkit"
	"pwc/pieces"
)

var (
	_ pieces.Store = (*Layered)(nil)
	_ pieces.Store = (*cache.Store)(nil)
)

func newRemote(t testing.TB, srv *server, tag string) *Remote {
	t.Helper()
	r, err := NewRemote("oci+http://"+srv.ref(tag), plain())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// newLayer returns a layer over an empty store, its remote, and the log of the remote.
func newLayer(t testing.TB, srv *server, frozen bool) (*Layered, *Remote, *testkit.Log) {
	t.Helper()
	j := &testkit.Log{}
	o := plain()
	o.Logger = j.Logger()
	r, err := NewRemote("oci+http://"+srv.ref("v1"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	s, _ := newStore(t)
	return Layer(s, r, frozen), r, j
}

func wantMiss(t testing.TB, l *Layered, i int) {
	t.Helper()
	if blob, ok, err := l.Get(t.Context(), testKey(i, "host")); err != nil || ok || blob != nil {
		t.Fatalf("Get(key %d) = %d bytes, %v, %v; want a miss", i, len(blob), ok, err)
	}
}

func TestLayer(t *testing.T) {
	srv := newServer(t)
	sent := mustPush(t, filled(t, 3), srv.ref("v1"))
	srv.counts()
	l, r, j := newLayer(t, srv, false)
	if n := srv.counts(); len(n) != 0 {
		t.Errorf("requests before a look-up: %v", n)
	}
	wantMiss(t, l, 7)
	wantHit(t, l, 1, "host")
	wantMiss(t, l, 8)
	wantHit(t, l, 1, "host")
	// The config once, and the one blob.
	if want, n := map[string]int{"HEAD manifests": 1, "GET manifests": 1, "GET blobs": 2}, srv.counts(); !cmp.Equal(n, want) {
		t.Errorf("requests: %v", n)
	}
	wantHit(t, l.Store, 1, "host")
	if _, ok, _ := l.Store.Get(t.Context(), testKey(2, "host")); ok {
		t.Error("an entry that nobody wanted was fetched")
	}
	if blobs, bytes := r.Fetched(); blobs != 1 || bytes != int64(len(testBlob(t, 1, "host"))) {
		t.Errorf("fetched %d blobs, %d bytes", blobs, bytes)
	}
	why, err := l.Explain(t.Context(), testKey(5, "host"))
	if err != nil || !strings.HasSuffix(why[0].Nearest.Provenance.Origin, "@"+sent.Digest.String()) {
		t.Errorf("%+v, %v; want the artifact as the origin", why, err)
	}
	// Put does not send to the remote.
	if err := l.Put(t.Context(), testKey(7, "host"), testBlob(t, 7, "host"), cache.Provenance{}); err != nil {
		t.Fatal(err)
	}
	wantHit(t, l, 7, "host")
	if n := srv.counts(); len(n) != 0 {
		t.Errorf("requests for entries of the store: %v", n)
	}
	if text := j.Take(); text != "" || r.Err() != nil {
		t.Errorf("messages: %s, %v", text, r.Err())
	}
	wantWhole(t, l.Store, 2, 0)
}

// TestLayerFailure checks that the failure of each kind of request, or a missing tag, leads to misses (to errors if
// frozen), one warning, and no more requests.
func TestLayerFailure(t *testing.T) {
	for _, what := range []string{"HEAD manifests", "GET manifests", "GET blobs", "nothing"} {
		srv := newServer(t)
		if what != "nothing" {
			mustPush(t, filled(t, 3), srv.ref("v1"))
		}
		var failed atomic.Bool
		failed.Store(what == "nothing")
		srv.setMeddle(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method+" "+kind(r) != what {
				return false
			}
			failed.Store(true)
			w.WriteHeader(503)
			return true
		})
		for _, frozen := range []bool{false, true} {
			l, r, j := newLayer(t, srv, frozen)
			for i := range 3 {
				blob, ok, err := l.Get(t.Context(), testKey(i, "host"))
				if ok || blob != nil || (err != nil) != frozen {
					t.Errorf("%s, frozen %v: %d bytes, %v, %v", what, frozen, len(blob), ok, err)
				}
				if frozen {
					wantErr(t, err, "remote cache "+srv.ref("v1"))
				}
				if i == 0 {
					srv.counts()
				}
			}
			if n := srv.counts(); len(n) != 0 {
				t.Errorf("%s: requests after the failure: %v", what, n)
			}
			if text := j.Take(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "going on without it") {
				t.Errorf("%s: messages:\n%s", what, text)
			}
			if r.Err() == nil || !failed.Load() {
				t.Errorf("%s: no failure", what)
			}
			// The store still works.
			if err := l.Put(t.Context(), testKey(0, "host"), testBlob(t, 0, "host"), cache.Provenance{}); err != nil {
				t.Error(err)
			}
			wantHit(t, l, 0, "host")
		}
	}
}

// TestLayerFailsOnce checks that concurrent look-ups that fail are one failure.
func TestLayerFailsOnce(t *testing.T) {
	const n = 4
	srv := newServer(t)
	mustPush(t, filled(t, n), srv.ref("v1"))
	l, _, j := newLayer(t, srv, false)
	wantMiss(t, l, n) // reads the config
	var all sync.WaitGroup
	all.Add(n)
	srv.setMeddle(func(w http.ResponseWriter, _ *http.Request) bool {
		all.Done()
		all.Wait()
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if _, ok, err := l.Get(t.Context(), testKey(i, "host")); ok || err != nil {
				t.Errorf("Get(key %d): %v, %v", i, ok, err)
			}
		})
	}
	wg.Wait()
	if text := j.Take(); strings.Count(text, "level=WARN") != 1 {
		t.Errorf("messages:\n%s", text)
	}

	// Look-ups that waited for the failing one do not try again.
	srv.setMeddle(nil)
	l, r, _ := newLayer(t, srv, false)
	wantMiss(t, l, n)
	srv.counts()
	srv.setMeddle(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	for range n {
		wg.Go(func() {
			if _, ok, err := l.Get(t.Context(), testKey(0, "host")); ok || err != nil {
				t.Errorf("%v, %v", ok, err)
			}
		})
	}
	wg.Wait()
	if got := srv.counts()["GET blobs"]; got != 1 || r.Err() == nil {
		t.Errorf("%d requests, failure %v", got, r.Err())
	}
}

// TestLayerContext checks that a cancelled look-up is not a failure of the remote.
func TestLayerContext(t *testing.T) {
	srv := newServer(t)
	mustPush(t, filled(t, 2), srv.ref("v1"))
	for _, what := range []string{"manifests", "blobs"} {
		l, r, j := newLayer(t, srv, true)
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		srv.setMeddle(func(w http.ResponseWriter, r *http.Request) bool {
			if kind(r) == what {
				cancel(stop)
				<-r.Context().Done()
			}
			return kind(r) == what
		})
		if _, ok, err := l.Get(ctx, testKey(0, "host")); ok || !errors.Is(err, stop) {
			t.Errorf("%s: %v, %v; want the cause", what, ok, err)
		}
		srv.setMeddle(nil)
		wantHit(t, l, 0, "host")
		if text := j.Take(); text != "" || r.Err() != nil {
			t.Errorf("messages: %s, %v", text, r.Err())
		}
	}
}

// TestLayerOnce has several stores in one directory, as in several processes. Together they fetch a blob once. A
// caller that holds the lock of the key does not deadlock.
func TestLayerOnce(t *testing.T) {
	srv := newServer(t)
	mustPush(t, filled(t, 4), srv.ref("v1"))
	srv.counts()
	dir := t.TempDir()
	var layers []*Layered
	for range 3 {
		layers = append(layers, Layer(cache.New(cache.Options{Dir: dir}), newRemote(t, srv, "v1"), true))
	}
	var wg sync.WaitGroup
	for _, l := range layers {
		for range 2 {
			wg.Go(func() {
				for i := range 4 {
					unlock, err := l.Lock(t.Context(), testKey(i, "host"))
					if err != nil {
						t.Error(err)
						return
					}
					if blob, ok, err := l.Get(t.Context(), testKey(i, "host")); !ok || err != nil || string(blob) != string(testBlob(t, i, "host")) {
						t.Errorf("Get(key %d) = %d bytes, %v, %v", i, len(blob), ok, err)
					}
					unlock()
				}
			})
			wg.Go(func() {
				for i := range 4 {
					if _, ok, err := l.Get(t.Context(), testKey(3-i, "host")); !ok || err != nil {
						t.Errorf("Get(key %d): %v, %v", 3-i, ok, err)
					}
				}
			})
		}
	}
	wg.Wait()
	// Three configs and four blobs.
	if want, n := map[string]int{"HEAD manifests": 3, "GET manifests": 3, "GET blobs": 7}, srv.counts(); !cmp.Equal(n, want) {
		t.Errorf("requests: %v", n)
	}
	wantWhole(t, layers[0].Store, 4, 0)
}

// TestLayerRepairs checks that the remote repairs a damaged entry of the store.
func TestLayerRepairs(t *testing.T) {
	srv := newServer(t)
	mustPush(t, filled(t, 2), srv.ref("v1"))
	l, _, _ := newLayer(t, srv, false)
	wantHit(t, l, 0, "host")
	d := cache.DigestOf(testBlob(t, 0, "host")).String()[len("sha256:"):]
	file := l.Dir() + "/v1/blobs/" + d[:2] + "/" + d
	if err := os.Truncate(file, 5); err != nil {
		t.Fatal(err)
	}
	wantHit(t, l, 0, "host")
	wantHit(t, l.Store, 0, "host")
	wantWhole(t, l.Store, 1, 0)
	// Without the remote it is an error of the store.
	if err := os.Truncate(file, 5); err != nil {
		t.Fatal(err)
	}
	srv.setMeddle(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true })
	var damage *cache.DamageError
	if _, ok, err := l.Get(t.Context(), testKey(0, "host")); ok || !errors.As(err, &damage) {
		t.Errorf("%v, %v; want the damage", ok, err)
	}
}

// TestLayerNotKept checks that a fetched blob is used even if the store cannot keep it.
func TestLayerNotKept(t *testing.T) {
	srv := newServer(t)
	mustPush(t, filled(t, 2), srv.ref("v1"))
	l := Layer(cache.New(cache.Options{}), newRemote(t, srv, "v1"), false)
	wantHit(t, l, 0, "host")
	wantHit(t, l, 0, "host")
}

// TestLayerRefuses checks that entries that this machine cannot run are misses, with one warning.
func TestLayerRefuses(t *testing.T) {
	srv := newServer(t)
	fleet(t, srv)
	j := &testkit.Log{}
	o := plain()
	o.Machine = Machine{Targets: []string{"cuda:sm_90"}, Driver: "470"}
	o.Logger = j.Logger()
	r, err := NewRemote("oci+http://"+srv.ref("v1"), o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, _ := newStore(t)
	l := Layer(s, r, false)
	for i := range 3 {
		if _, ok, err := l.Get(t.Context(), testKey(i, "cuda:sm_90")); ok || err != nil {
			t.Errorf("%v, %v; want a miss", ok, err)
		}
	}
	if text := j.Take(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "it needs driver 525.60.13, this machine has 470") {
		t.Errorf("messages:\n%s", text)
	}
	// Another machine can use them.
	o.Targets, o.Trust = []string{"cuda:sm_90"}, trusts(srv)
	other, err := NewRemote("oci+http://"+srv.ref("v1"), o)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	wantHit(t, Layer(s, other, false), 0, "cuda:sm_90")
}

func TestRemoteAddress(t *testing.T) {
	for _, bad := range []string{"", "reg.example/team/toy:v1", "https://reg.example/team/toy:v1", "oci://", "oci://toy:v1", "oci://reg.example/team/toy", "oci:/reg.example/team/toy:v1"} {
		if r, err := NewRemote(bad, Options{}); err == nil {
			t.Errorf("%q is %s", bad, r.repo.name())
		}
	}
	if _, err := NewRemote("http://reg.example/team/toy:v1", Options{}); err == nil || !strings.Contains(err.Error(), "oci+http://") {
		t.Errorf("the error does not name the scheme without encryption: %v", err)
	}
	for address, plain := range map[string]bool{"oci://reg.example/team/toy:v1": false, "oci+http://reg.example/team/toy:v1": true,
		"oci://reg.example:5000/toy@sha256:" + strings.Repeat("0", 64): false} {
		r, err := NewRemote(address, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.repo.repo.PlainHTTP != plain {
			t.Errorf("%s: plain HTTP %v", address, r.repo.repo.PlainHTTP)
		}
	}
}
