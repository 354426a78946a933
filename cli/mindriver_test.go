package cli

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"pwc/cache"
	"pwc/cache/oci"
	"pwc/program"
)

// minDriver returns the oldest CUDA version of a driver that runs the output of a compiler.
func TestMinDriver(t *testing.T) {
	for _, c := range []struct{ target, compiler, want string }{
		{"host", "", ""},
		{"cuda:sm_90", "nvrtc 11.8", "12.0"},
		{"cuda:sm_90", "nvrtc 12.9", "12.0"},
		{"cuda:sm_90", "nvrtc 13.1", "13.0"},
		{"cuda:sm_90", "another compiler", "12.0"},
	} {
		if got := minDriver(c.target, c.compiler); got != c.want {
			t.Errorf("%s by %s: %q, want %q", c.target, c.compiler, got, c.want)
		}
	}
}

// PWC_CACHE_REMOTE gives a GPU only programs that its driver loads, and a command that only compiles, which has no
// driver, all programs for its target. With --frozen the error says which driver a program needs.
func TestRemoteMinDriver(t *testing.T) {
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer srv.Close()
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	repository := strings.TrimPrefix(srv.URL, "http://") + "/models/gpu"
	const name = "cuda:sm_90"
	k, err := program.CUDAKernel("k", []byte("machine code"), nil)
	if err != nil {
		t.Fatal(err)
	}
	blob, err := program.Alone(name, k).Encode()
	if err != nil {
		t.Fatal(err)
	}
	key := cache.Key{Piece: sha256.Sum256([]byte("piece")), Target: name, Pipeline: "p", Format: program.FormatVersion}
	from := cache.New(cache.Options{Dir: t.TempDir()})
	m := cache.Module{Name: "gpu", Target: name, Graph: []byte("graph"), Entries: []cache.ModuleEntry{{ID: key.Sum(), Size: int64(len(blob))}}}
	if err := errors.Join(from.Put(t.Context(), key, blob, cache.Provenance{Compiler: "nvrtc 13.0"}), from.PutModule(t.Context(), m)); err != nil {
		t.Fatal(err)
	}
	o := oci.FromEnv()
	o.PlainHTTP, o.MinDriver = true, minDriver
	if _, err := oci.Push(t.Context(), from, nil, repository+":v1", o); err != nil {
		t.Fatal(err)
	}
	t.Setenv(oci.EnvRemote, "oci+http://"+repository+":v1")
	for driver, refused := range map[string]string{"12.9": "it needs driver 13.0, this machine has 12.9", "13.0": "", "13.1": "", "": ""} {
		var messages bytes.Buffer
		a := &app{out: &messages, err: &messages, trust: &cache.Trust{}}
		if err := a.trust.AddRepository(repository); err != nil {
			t.Fatal(err)
		}
		for _, frozen := range []bool{false, true} {
			s, done, err := a.overRemote(cache.New(cache.Options{Dir: t.TempDir()}), &target{name: name, driver: driver}, frozen)
			if err != nil {
				t.Fatal(err)
			}
			_, ok, err := s.Get(t.Context(), key)
			done()
			if ok != (refused == "") || !strings.Contains(messages.String(), refused) || (err != nil) != (frozen && refused != "") || err != nil && !strings.Contains(err.Error(), refused) {
				t.Errorf("driver %q, frozen %v: found %v, %v\n%s", driver, frozen, ok, err, &messages)
			}
		}
	}
}
