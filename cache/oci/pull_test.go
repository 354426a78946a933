package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pwc/cache"
)

// TestPullFaults has a registry that fails in several ways for one blob. The store keeps whole entries only, and
// the next pull fetches the missing ones only.
func TestPullFaults(t *testing.T) {
	real := testBlob(t, 3, "host")
	bad := "/blobs/" + cache.DigestOf(real).String()
	tests := map[string]struct {
		answer http.HandlerFunc
		want   []string // parts of the error
		as     func(error) bool
		tries  int // requests for the blob; 0: not checked
	}{
		"500":                              {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, []string{"500"}, nil, 2},
		"404":                              {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, []string{"not found"}, nil, 1},
		"denied":                           {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, []string{"403"}, nil, 1},
		"connection cut before the answer": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, []string{"EOF"}, nil, 0},
		"connection cut in the middle": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(real)))
			w.Write(real[:len(real)/2])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, []string{"EOF"}, nil, 3},
		"other bytes": {func(w http.ResponseWriter, _ *http.Request) { w.Write(append([]byte{real[0] ^ 1}, real[1:]...)) }, []string{"digest"}, isContent, 1},
		"too few bytes": {func(w http.ResponseWriter, _ *http.Request) {
			w.Write(real[:10])
			w.(http.Flusher).Flush() // no Content-Length
		}, []string{"10 of its"}, isContent, 1},
		"too many bytes": {func(w http.ResponseWriter, _ *http.Request) {
			w.Write(real)
			w.(http.Flusher).Flush()
			w.Write(make([]byte, 100))
		}, []string{"more than its"}, isContent, 1},
		"another length": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "7")
			w.Write([]byte("program"))
		}, []string{"Content-Length"}, nil, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			srv, from := newServer(t), filled(t, 8)
			mustPush(t, from, srv.ref("v1"))
			var tries atomic.Int64
			srv.setMeddle(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasSuffix(r.URL.Path, bad) {
					return false
				}
				tries.Add(1)
				test.answer(w, r)
				return true
			})
			to, _ := newStore(t)
			o := plain()
			o.Jobs = 1
			_, err := Pull(t.Context(), to, srv.ref("v1"), o)
			wantErr(t, err, append(test.want, srv.ref("v1"))...)
			if test.as != nil && !test.as(err) {
				t.Errorf("error of type %T", err)
			}
			if n := int(tries.Load()); test.tries > 0 && n != test.tries {
				t.Errorf("%d requests for the blob, want %d", n, test.tries)
			}
			v, err := to.Verify(t.Context())
			if err != nil || len(v.Problems) > 0 || v.Entries > 7 || v.Modules != 0 {
				t.Fatalf("after the failure: %+v, %v", v, err)
			}
			srv.setMeddle(nil)
			srv.counts()
			got, err := Pull(t.Context(), to, srv.ref("v1"), o)
			if err != nil {
				t.Fatal(err)
			}
			if got.Kept != v.Entries || got.Fetched != 9-v.Entries {
				t.Errorf("resumed: %+v; %d entries were there", got, v.Entries)
			}
			// The config is a blob too.
			if n := srv.counts()["GET blobs"]; n != got.Fetched+1 {
				t.Errorf("resumed with %d requests, want %d", n, got.Fetched+1)
			}
			wantWhole(t, to, 8, 1)
		})
	}
}

func isContent(err error) bool {
	_, ok := errors.AsType[*ContentError](err)
	return ok
}

// TestPullBrokenTransfers checks that a pull survives some transfers that break off.
func TestPullBrokenTransfers(t *testing.T) {
	srv, from := newServer(t), filled(t, 8)
	sent := mustPush(t, from, srv.ref("v1"))
	var n atomic.Int64
	srv.setMeddle(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || n.Add(1)%2 == 0 {
			return false
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		w.Header().Set("Content-Length", fmt.Sprint(sizeOf(t, from, sent, r)))
		w.Write([]byte("{"))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	to, _ := newStore(t)
	o := plain()
	o.Jobs = 1
	if _, err := Pull(t.Context(), to, srv.ref("v1"), o); err != nil {
		t.Fatal(err)
	}
	wantWhole(t, to, 8, 1)
}

// sizeOf returns the right size of the blob of a request.
func sizeOf(t testing.TB, s *cache.Store, sent *Sent, r *http.Request) int64 {
	a, err := pack(context.Background(), s, nil, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	for _, p := range append(slices.Clone(a.parts), a.manifest) {
		if strings.HasSuffix(r.URL.Path, p.Digest.String()) {
			return p.Size
		}
	}
	t.Errorf("unexpected request %s", r.URL)
	return 0
}

// TestPullResumes interrupts a pull several times: each pull continues from the entries that are there.
func TestPullResumes(t *testing.T) {
	srv, from := newServer(t), filled(t, 6)
	mustPush(t, from, srv.ref("v1"))
	to, _ := newStore(t)
	for have := 0; have < 6; have++ {
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		o := plain()
		o.Jobs = 1
		fetched := 0
		o.Observer = func(p Progress) {
			if p.Total != 7 {
				t.Errorf("progress %+v", p)
			}
			if p.Done == have+1 {
				cancel(stop)
			}
			fetched = p.Done
		}
		_, err := Pull(ctx, to, srv.ref("v1"), o)
		cancel(nil)
		if !errors.Is(err, stop) || fetched != have+1 {
			t.Fatalf("pull %d: %v after %d blobs", have, err, fetched)
		}
		v, err := to.Verify(t.Context())
		if err != nil || len(v.Problems) > 0 || v.Entries != have+1 || v.Modules != 0 {
			t.Fatalf("pull %d left %+v, %v", have, v, err)
		}
	}
	got, err := Pull(t.Context(), to, srv.ref("v1"), plain())
	if err != nil || got.Kept != 6 || got.Fetched != 1 {
		t.Fatalf("%+v, %v; want the graph alone to be fetched", got, err)
	}
	srv.counts()
	got, err = Pull(t.Context(), to, srv.ref("v1"), plain())
	if err != nil || got.Kept != 6 || got.Fetched != 0 {
		t.Fatalf("%+v, %v; want nothing to be fetched", got, err)
	}
	if want, n := map[string]int{"HEAD manifests": 1, "GET manifests": 1, "GET blobs": 1}, srv.counts(); !cmp.Equal(n, want) {
		t.Errorf("a pull of entries that the store has: %v", n)
	}
	wantWhole(t, to, 6, 1)
}

// TestPullStopped checks that a module without a graph is not recorded if an entry is missing.
func TestPullStopped(t *testing.T) {
	from, _ := newStore(t)
	m := fill(t, from, "toy", "host", 0, 3)
	m.Name, m.Graph = "bare", nil
	if err := from.PutModule(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	srv := newServer(t)
	o := plain()
	if _, err := Push(t.Context(), from, []string{"bare"}, srv.ref("v1"), o); err != nil {
		t.Fatal(err)
	}
	to, _ := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	o.Jobs, o.Observer = 1, func(Progress) { cancel() }
	if _, err := Pull(ctx, to, srv.ref("v1"), o); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	wantWhole(t, to, 1, 0)
	o.Observer = nil
	if got, err := Pull(t.Context(), to, srv.ref("v1"), o); err != nil || got.Fetched != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	wantWhole(t, to, 3, 1)
}

func TestSlowRegistry(t *testing.T) {
	srv, from := newServer(t), filled(t, 2)
	mustPush(t, from, srv.ref("v1"))
	for _, what := range []string{"manifests", "blobs"} {
		for _, half := range []bool{false, true} {
			srv.setMeddle(func(w http.ResponseWriter, r *http.Request) bool {
				if kind(r) != what || r.Method != http.MethodGet {
					return false
				}
				if half {
					w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
					w.Write([]byte("{"))
					w.(http.Flusher).Flush()
				}
				<-r.Context().Done()
				return true
			})
			to, _ := newStore(t)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			_, err := Pull(ctx, to, srv.ref("v1"), plain())
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, half %v: %v; want the deadline", what, half, err)
			}
			o := plain()
			o.Stall = 30 * time.Millisecond
			_, err = Pull(t.Context(), to, srv.ref("v1"), o)
			if stall, ok := errors.AsType[*StallError](err); !ok || !strings.Contains(stall.URL, what) {
				t.Errorf("%s, half %v: %v; want a stall", what, half, err)
			}
			wantWhole(t, to, 0, 0)
		}
	}
}

// TestSlowButMoving checks that a transfer may take longer than Stall if bytes move.
func TestSlowButMoving(t *testing.T) {
	srv, from := newServer(t), filled(t, 1)
	mustPush(t, from, srv.ref("v1"))
	blob := testBlob(t, 0, "host")
	srv.setMeddle(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, cache.DigestOf(blob).String()) {
			return false
		}
		for i := range blob {
			w.Write(blob[i : i+1])
			if i%(len(blob)/6) == 0 {
				w.(http.Flusher).Flush()
				time.Sleep(50 * time.Millisecond)
			}
		}
		return true
	})
	to, _ := newStore(t)
	o := plain()
	o.Stall, o.MinRate = 250*time.Millisecond, -1 // the transfer takes at least 300 ms
	if _, err := Pull(t.Context(), to, srv.ref("v1"), o); err != nil {
		t.Fatal(err)
	}
	wantWhole(t, to, 1, 1)
}

func TestPushFaults(t *testing.T) {
	for _, method := range []string{"HEAD manifests", "HEAD blobs", "POST uploads", "PUT uploads", "PUT manifests"} {
		srv, from := newServer(t), filled(t, 3)
		fail := func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method+" "+kind(r) != method {
				return false
			}
			w.WriteHeader(502)
			return true
		}
		srv.setMeddle(fail)
		_, err := Push(t.Context(), from, nil, srv.ref("v1"), plain())
		wantErr(t, err, "502", srv.ref("v1"))
		// A failed push sets no tag.
		srv.setMeddle(nil)
		to, _ := newStore(t)
		if _, err := Pull(t.Context(), to, srv.ref("v1"), plain()); err == nil {
			t.Errorf("%s: there is an artifact under the tag", method)
		}
		// A push survives one failure.
		var once atomic.Bool
		srv.setMeddle(func(w http.ResponseWriter, r *http.Request) bool {
			return r.Method+" "+kind(r) == method && once.CompareAndSwap(false, true) && fail(w, r)
		})
		mustPush(t, from, srv.ref("v1"))
		if _, err := Pull(t.Context(), to, srv.ref("v1"), plain()); err != nil {
			t.Error(err)
		}
		wantWhole(t, to, 3, 1)
	}
}

func TestPushStalls(t *testing.T) {
	srv, from := newServer(t), filled(t, 1)
	srv.setMeddle(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut {
			io.Copy(io.Discard, r.Body) // the server notices the end of the client only after this
			<-r.Context().Done()
		}
		return r.Method == http.MethodPut
	})
	o := plain()
	o.Stall = 30 * time.Millisecond
	_, err := Push(t.Context(), from, nil, srv.ref("v1"), o)
	if _, ok := errors.AsType[*StallError](err); !ok {
		t.Errorf("%v; want a stall", err)
	}
}

// TestPullKeepsOtherBytes checks that an intact entry of the store stays, if the artifact has other bytes for its
// key.
func TestPullKeepsOtherBytes(t *testing.T) {
	srv, from := newServer(t), filled(t, 3)
	mustPush(t, from, srv.ref("v1"))
	to, _ := newStore(t)
	own := testBlob(t, 99, "host")
	if err := to.Put(t.Context(), testKey(1, "host"), own, cache.Provenance{Compiler: "mine"}); err != nil {
		t.Fatal(err)
	}
	got, err := Pull(t.Context(), to, srv.ref("v1"), plain())
	if err != nil || got.Kept != 1 || got.Fetched != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	if blob, ok, err := to.Get(t.Context(), testKey(1, "host")); err != nil || !ok || string(blob) != string(own) {
		t.Errorf("the entry was replaced (%v, %v)", ok, err)
	}
	info, err := to.Find(t.Context(), "toy")
	if want := int64(len(testBlob(t, 0, "host")) + len(own) + len(testBlob(t, 2, "host"))); err != nil || info.Bytes != want {
		t.Errorf("the module says %d bytes, want %d (%v)", info.Bytes, want, err)
	}
	if v, err := to.Verify(t.Context()); err != nil || len(v.Problems) > 0 {
		t.Errorf("%v, %v", v.Problems, err)
	}
}

// TestPullRepairs checks that a pull replaces damaged entries.
func TestPullRepairs(t *testing.T) {
	srv, from := newServer(t), filled(t, 3)
	mustPush(t, from, srv.ref("v1"))
	to := filled(t, 3)
	d := cache.DigestOf(testBlob(t, 1, "host")).String()[len("sha256:"):]
	if err := os.WriteFile(to.Dir()+"/v1/blobs/"+d[:2]+"/"+d, []byte("junk"), 0o666); err != nil {
		t.Fatal(err)
	}
	got, err := Pull(t.Context(), to, srv.ref("v1"), plain())
	if err != nil || got.Kept != 2 || got.Fetched != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	wantWhole(t, to, 3, 1)
}

// TestSharedBlob checks that two keys with one program have one blob.
func TestSharedBlob(t *testing.T) {
	srv := newServer(t)
	from, _ := newStore(t)
	m := fill(t, from, "toy", "host", 0, 2)
	key := testKey(7, "host")
	blob := testBlob(t, 0, "host")
	if err := from.Put(t.Context(), key, blob, cache.Provenance{Compiler: "vec 1"}); err != nil {
		t.Fatal(err)
	}
	m.Entries = append(m.Entries, cache.ModuleEntry{ID: key.Sum(), Size: int64(len(blob))})
	m.Name = "more"
	if err := from.PutModule(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	o := plain()
	if sent, err := Push(t.Context(), from, []string{"more"}, srv.ref("v1"), o); err != nil || sent.Blobs != 4 || sent.Entries != 3 {
		t.Fatalf("%+v, %v", sent, err)
	}
	to, _ := newStore(t)
	if got, err := Pull(t.Context(), to, srv.ref("v1"), o); err != nil || got.Entries != 3 || got.Fetched != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	wantWhole(t, to, 3, 1)
}

func TestPullNotKept(t *testing.T) {
	srv, from := newServer(t), filled(t, 3)
	mustPush(t, from, srv.ref("v1"))
	nowhere := cache.New(cache.Options{})
	_, err := Pull(t.Context(), nowhere, srv.ref("v1"), plain())
	if !errors.Is(err, cache.ErrNoDir) {
		t.Errorf("%v; want ErrNoDir", err)
	}
}
