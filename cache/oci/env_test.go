package oci

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"pwc/cache"
)

// roles are jobs of the test binary when it is started again: a process reads proxy variables once only.
var roles = map[string]func(args []string) error{
	// pull DIR REF pulls REF into the store in DIR, as a command line does.
	"pull": func(args []string) error {
		o := FromEnv()
		o.PlainHTTP, o.Retry, o.Machine = true, impatient, Machine{Targets: []string{"host"}}
		got, err := Pull(context.Background(), cache.New(cache.Options{Dir: args[0]}), args[1], o)
		if err == nil && got.Entries != 3 {
			err = fmt.Errorf("%+v", got)
		}
		return err
	},
}

// TestFromEnv reaches a registry whose name only the proxy knows, with the credentials of Docker's config.
func TestFromEnv(t *testing.T) {
	srv := newServer(t)
	mustPush(t, filled(t, 3), srv.ref("v1"))
	real, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	var proxied atomic.Int64
	var private atomic.Bool
	private.Store(true)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Host != "registry.example" {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		proxied.Add(1)
		if user, password, _ := r.BasicAuth(); private.Load() && (user != "me" || password != "secret") {
			w.Header().Set("WWW-Authenticate", `Basic realm="toy"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		out := r.Clone(r.Context())
		out.URL.Host, out.RequestURI = real.Host, ""
		resp, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		if r.Method != http.MethodHead {
			text, _ := readBounded(resp.Body, 1<<20)
			w.Write(text)
		}
	}))
	defer proxy.Close()
	defer http.DefaultClient.CloseIdleConnections()

	docker := t.TempDir()
	config := `{"auths":{"registry.example":{"auth":"` + base64.StdEncoding.EncodeToString([]byte("me:secret")) + `"}}}`
	writeFile(t, filepath.Join(docker, "config.json"), []byte(config))
	pull := func(dir string, env ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], dir, "registry.example/team/toy:v1")
		cmd.Env = append(env, roleEnv+"=pull")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	dir := t.TempDir()
	if out, err := pull(dir, "DOCKER_CONFIG="+docker, "HTTP_PROXY="+proxy.URL); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if proxied.Load() == 0 {
		t.Error("not through the proxy")
	}
	wantWhole(t, cache.New(cache.Options{Dir: dir}), 3, 1)
	if out, err := pull(t.TempDir(), "HTTP_PROXY="+proxy.URL); err == nil || !strings.Contains(out, "credential") {
		t.Errorf("without a home directory: %v: %s", err, out)
	}
	n := proxied.Load()
	if out, err := pull(t.TempDir(), "DOCKER_CONFIG="+docker, "HTTP_PROXY="+proxy.URL, "NO_PROXY=registry.example"); err == nil || proxied.Load() != n {
		t.Errorf("past the proxy: %v: %s", err, out)
	}
	writeFile(t, filepath.Join(docker, "config.json"), []byte("{"))
	if out, err := pull(t.TempDir(), "DOCKER_CONFIG="+docker, "HTTP_PROXY="+proxy.URL); err == nil || !strings.Contains(out, "credentials of Docker") {
		t.Errorf("with a broken config: %v: %s", err, out)
	}
	private.Store(false)
	if out, err := pull(t.TempDir(), "HTTP_PROXY="+proxy.URL); err != nil {
		t.Errorf("without a home directory, from a registry that asks for nothing: %v: %s", err, out)
	}
}
