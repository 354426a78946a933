package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"go.uber.org/goleak"
	"oras.land/oras-go/v2/registry/remote/retry"

	"pwc/cache"
	"pwc/internal/testkit"
	"pwc/program"
)

// roleEnv is the variable that makes the test binary run one of the jobs in roles instead of the tests.
const roleEnv = "PWC_CACHE_OCI_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// testKey returns key number i.
func testKey(i int, target string) cache.Key {
	return cache.Key{Piece: sha256.Sum256(fmt.Appendf(nil, "piece %d", i)), Shape: "s0=[1, 512]", Target: target, Pipeline: "7 -cse", Format: program.FormatVersion}
}

// testBlob returns a program for testKey(i), with some constants.
func testBlob(t testing.TB, i int, target string) []byte {
	t.Helper()
	p := &program.Program{Target: target, Consts: [][]byte{bytes.Repeat(fmt.Appendf(nil, "constant of piece %d\n", i), 20+i%7)}}
	blob, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return blob
}

// fill puts entries from … to-1, and a module of them.
func fill(t testing.TB, s *cache.Store, name, target string, from, to int) cache.Module {
	t.Helper()
	m := cache.Module{Name: name, Hash: sha256.Sum256([]byte(name)), Target: target, Graph: []byte("pwc 1\nmodule \"" + name + "\" {\n}\n")}
	for i := from; i < to; i++ {
		blob := testBlob(t, i, target)
		p := cache.Provenance{Compiler: "vec 1", Origin: fmt.Sprintf("@forward item %d", i), Duration: time.Duration(i+1) * time.Millisecond}
		if err := s.Put(t.Context(), testKey(i, target), blob, p); err != nil {
			t.Fatal(err)
		}
		m.Entries = append(m.Entries, cache.ModuleEntry{ID: testKey(i, target).Sum(), Size: int64(len(blob))})
	}
	if err := s.PutModule(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// newStore returns a store in a new directory, and its log.
func newStore(t testing.TB) (*cache.Store, *testkit.Log) {
	t.Helper()
	j := &testkit.Log{}
	return cache.New(cache.Options{Dir: t.TempDir(), Logger: j.Logger()}), j
}

// filled returns a store with the module "toy" of n entries for the host.
func filled(t testing.TB, n int) *cache.Store {
	t.Helper()
	s, _ := newStore(t)
	fill(t, s, "toy", "host", 0, n)
	return s
}

// server is a registry in the test process that counts requests.
type server struct {
	*httptest.Server
	mu    sync.Mutex
	count map[string]int // requests by method and kind: "GET blobs"

	// meddle may answer in place of the registry, and then returns true. nil: the registry answers.
	meddle func(w http.ResponseWriter, r *http.Request) bool
}

func newServer(t testing.TB) *server { return startServer(t, httptest.NewServer) }

func startServer(t testing.TB, start func(http.Handler) *httptest.Server) *server {
	t.Helper()
	s := &server{count: map[string]int{}}
	real := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s.Server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.count[r.Method+" "+kind(r)]++
		meddle := s.meddle
		s.mu.Unlock()
		if meddle == nil || !meddle(w, r) {
			real.ServeHTTP(w, r)
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(s.Close)
	return s
}

// kind returns "manifests", "uploads" or "blobs", or else the path of the request.
func kind(r *http.Request) string {
	for _, k := range []string{"manifests", "uploads", "blobs"} {
		if strings.Contains(r.URL.Path, "/"+k+"/") {
			return k
		}
	}
	return r.URL.Path
}

// counts returns the number of requests since the last call.
func (s *server) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.count = map[string]int{} }()
	return s.count
}

func (s *server) setMeddle(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meddle = f
}

// ref returns the reference of a tag in the registry.
func (s *server) ref(tag string) string { return s.Listener.Addr().String() + "/team/toy:" + tag }

func (s *server) at(d cache.Digest) string {
	return s.Listener.Addr().String() + "/team/toy@" + d.String()
}

// impatient retries a request once, without a pause.
var impatient = &retry.GenericPolicy{Retryable: retry.DefaultPredicate, MaxRetry: 1,
	Backoff: func(int, *http.Response) time.Duration { return 0 }}

// plain returns the options of a machine that runs host programs and uses a local registry without encryption.
func plain() Options {
	return Options{PlainHTTP: true, Retry: impatient, Machine: Machine{Targets: []string{"host"}}}
}

// trusts returns a list with the repositories of a registry below team.
func trusts(s *server) *cache.Trust {
	return &cache.Trust{Repositories: []string{s.Listener.Addr().String() + "/team"}}
}

// mustPush pushes all modules.
func mustPush(t testing.TB, s *cache.Store, ref string) *Sent {
	t.Helper()
	sent, err := Push(t.Context(), s, nil, ref, plain())
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

func wantHit(t testing.TB, s interface {
	Get(context.Context, cache.Key) ([]byte, bool, error)
}, i int, target string) {
	t.Helper()
	blob, ok, err := s.Get(t.Context(), testKey(i, target))
	if err != nil || !ok || !bytes.Equal(blob, testBlob(t, i, target)) {
		t.Fatalf("Get(key %d) = %d bytes, %v, %v; want its blob", i, len(blob), ok, err)
	}
}

// wantWhole checks that Verify finds no problem in a store, and how many entries and modules it has.
func wantWhole(t testing.TB, s *cache.Store, entries, modules int) {
	t.Helper()
	v, err := s.Verify(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Problems) > 0 || v.Entries != entries || v.Modules != modules {
		t.Fatalf("%d entries, %d modules, problems %v; want %d entries, %d modules", v.Entries, v.Modules, v.Problems, entries, modules)
	}
}

func wantErr(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Fatalf("error %q lacks %q", err, p)
		}
	}
}
