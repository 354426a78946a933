package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"

	"pwc/cache"
)

// The tests of this file show what the author of an artifact, a registry, or an attacker between them can do and
// cannot do.

// writeFile writes a file and the directories above it.
func writeFile(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o666); err != nil {
		t.Fatal(err)
	}
}

// writeLayout writes a layout with one artifact of the given parts.
func writeLayout(t testing.TB, dir string, manifest part, parts ...part) {
	t.Helper()
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []ocispec.Descriptor{manifest.Descriptor}})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`))
	writeFile(t, filepath.Join(dir, "index.json"), index)
	for _, p := range append(parts, manifest) {
		data, err := p.load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, filepath.FromSlash(blobName(p.Descriptor))), data)
	}
}

// forge makes the artifact of a store with a changed config and manifest. The manifest names the changed config,
// unless it is changed to name another.
func forge(t testing.TB, s *cache.Store, config func(string) string, manifest func(m *ocispec.Manifest)) (part, []part) {
	t.Helper()
	a, err := pack(t.Context(), s, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	last := len(a.parts) - 1
	text, err := a.parts[last].load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		edited := config(string(text))
		if edited == string(text) {
			t.Fatalf("nothing was changed in %s", text)
		}
		a.parts[last] = inline(ConfigMediaType, []byte(edited))
	}
	if text, err = a.manifest.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	m.Config = a.parts[last].Descriptor
	if manifest != nil {
		manifest(&m)
	}
	if text, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return inline(ocispec.MediaTypeImageManifest, text), a.parts
}

func TestForged(t *testing.T) {
	replace := func(old, new string) func(string) string {
		return func(s string) string { return strings.Replace(s, old, new, 1) }
	}
	blob := cache.DigestOf(testBlob(t, 0, "host")).String()
	tests := map[string]struct {
		config   func(string) string
		manifest func(m *ocispec.Manifest)
		want     string
	}{
		"a later version":      {replace(`"version":1`, `"version":2`), nil, "it has version 2; this version of pwc supports version 1"},
		"another cache format": {replace(`"cache_format":1`, `"cache_format":9`), nil, "it has cache format 9"},
		"not JSON":             {func(s string) string { return s[:len(s)/2] }, nil, "not JSON"},
		"an unknown field":     {replace(`"version":1`, `"version":1,"then":"run this"`), nil, "unknown field"},
		"a field twice":        {replace(`"version":1`, `"version":1,"version":1`), nil, `key "version" twice`},
		"white space":          {func(s string) string { return s + " " }, nil, "canonical"},
		"more after the end":   {func(s string) string { return s + "{}" }, nil, "not JSON"},
		"a lying summary":      {replace(`"targets":[{"target":"host"`, `"targets":[{"target":"cuda:sm_90"`), nil, "canonical"},
		"a lying size":         {replace(`"bytes":`, `"bytes":1`), nil, "canonical"},
		"no modules": {func(s string) string {
			i := strings.Index(s, `"modules":`)
			j := strings.Index(s, `,"entries":[{`)
			return s[:i] + `"modules":[]` + s[j:]
		}, nil, "no module"},
		"no list": {func(s string) string {
			i := strings.Index(s, `"modules":`)
			j := strings.Index(s, `,"entries":[{`)
			return s[:i] + `"modules":null` + s[j:]
		}, nil, "not an array"},
		"a path as a name":            {replace(`"name":"toy"`, `"name":"/etc/passwd"`), nil, "is empty, absolute"},
		"a name that is not UTF-8":    {replace(`"name":"toy"`, "\"name\":\"t\xffy\""), nil, "canonical"},
		"a path as a digest":          {replace(blob, "sha256:../../../../etc/passwd"), nil, "not 64 lower-case hex digits"},
		"another hash":                {replace(blob, "md5:d41d8cd98f00b204e9800998ecf8427e"), nil, "md5:"},
		"an entry out of range":       {replace(`"entries":[0,1]`, `"entries":[0,7]`), nil, "out of range"},
		"a negative entry":            {replace(`"entries":[0,1]`, `"entries":[-1,1]`), nil, "out of range"},
		"an entry twice":              {replace(`"entries":[0,1]`, `"entries":[0,0]`), nil, "out of order"},
		"an entry of no module":       {replace(`"entries":[0,1]`, `"entries":[0]`), nil, "belongs to no module"},
		"a key without a target":      {replace(`"target":"host","pipeline"`, `"target":"","pipeline"`), nil, "key without a target"},
		"a driver without a version":  {replace(`"min_driver":""`, `"min_driver":"rm -rf"`), nil, "is not up to eight numbers separated by dots"},
		"an entry of a negative size": {replace(fmt.Sprintf(`"digest":"%s","size":`, blob), fmt.Sprintf(`"digest":"%s","size":-`, blob)), nil, "bytes, not from"},
		"an entry of a petabyte":      {replace(fmt.Sprintf(`"digest":"%s","size":`, blob), fmt.Sprintf(`"digest":"%s","size":1000000000000`, blob)), nil, "bytes, not from"},
		"another artifact":            {nil, func(m *ocispec.Manifest) { m.ArtifactType = "application/vnd.example" }, "not a cache"},
		"an image":                    {nil, func(m *ocispec.Manifest) { m.ArtifactType, m.Config.MediaType = "", ocispec.MediaTypeImageConfig }, "not a cache"},
		"another config":              {nil, func(m *ocispec.Manifest) { m.Config.MediaType = "application/json" }, "its config is of type"},
		"a config of a petabyte":      {nil, func(m *ocispec.Manifest) { m.Config.Size = 1 << 50 }, "want 1 to"},
		"a config of no bytes":        {nil, func(m *ocispec.Manifest) { m.Config.Size = 0 }, "of 0 bytes"},
		"a config with another size":  {nil, func(m *ocispec.Manifest) { m.Config.Size-- }, "more than its"},
		"a path as a config":          {nil, func(m *ocispec.Manifest) { m.Config.Digest = "sha256:../../index.json" }, "not named by its SHA-256"},
		"a layer less":                {nil, func(m *ocispec.Manifest) { m.Layers = m.Layers[1:] }, "has 2 layers, its config lists 3"},
		"a layer more":                {nil, func(m *ocispec.Manifest) { m.Layers = append(m.Layers, m.Layers[0]) }, "has 4 layers"},
		"another layer":               {nil, func(m *ocispec.Manifest) { m.Layers[0].Size++ }, "layer 0 of the manifest"},
		"another schema":              {nil, func(m *ocispec.Manifest) { m.SchemaVersion = 1 }, "not an OCI image manifest"},
	}
	from := filled(t, 2)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			manifest, parts := forge(t, from, test.config, test.manifest)
			writeLayout(t, dir, manifest, parts...)
			to, journal := newStore(t)
			_, err := Import(t.Context(), to, dir, plain())
			wantErr(t, err, test.want, dir)
			wantWhole(t, to, 0, 0)
			if text := journal.Take(); text != "" {
				t.Errorf("messages: %s", text)
			}
		})
	}
}

// evil returns a store in which the key of piece 0 has other bytes, with a module of the same name.
func evil(t testing.TB, blob []byte) *cache.Store {
	t.Helper()
	s, _ := newStore(t)
	m := fill(t, s, "toy", "host", 0, 2)
	if err := s.Put(t.Context(), testKey(0, "host"), blob, cache.Provenance{Compiler: "vec 1"}); err != nil {
		t.Fatal(err)
	}
	m.Entries[0].Size = int64(len(blob))
	if err := s.PutModule(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestNotAProgram checks that a blob with the right digest that is not a program for the key's target is not stored.
func TestNotAProgram(t *testing.T) {
	for name, blob := range map[string][]byte{
		"a script":                     []byte("#!/bin/sh\nrm -rf /\n"),
		"a program for another target": testBlob(t, 0, "cuda:sm_90"),
		"half a program":               testBlob(t, 0, "host")[:50],
	} {
		t.Run(name, func(t *testing.T) {
			srv := newServer(t)
			mustPush(t, evil(t, blob), srv.ref("v1"))
			to, _ := newStore(t)
			_, err := Pull(t.Context(), to, srv.ref("v1"), plain())
			if !isContent(err) {
				t.Fatalf("%v; want a ContentError", err)
			}
			wantErr(t, err, "not a program for entry")
			if _, ok, _ := to.Get(t.Context(), testKey(0, "host")); ok {
				t.Error("it is in the store")
			}
			remote := newRemote(t, srv, "v1")
			if _, ok, _ := Layer(to, remote, false).Get(t.Context(), testKey(0, "host")); ok {
				t.Error("the remote layer gave it")
			}
			wantErr(t, remote.Err(), "not a program for entry")
		})
	}
}

// TestTagsAndDigests shows that a registry decides which programs a tag names, and cannot do so for a digest.
func TestTagsAndDigests(t *testing.T) {
	srv := newServer(t)
	good := mustPush(t, filled(t, 2), srv.ref("v1"))
	other := testBlob(t, 66, "host")
	bad := mustPush(t, evil(t, other), srv.ref("v1"))
	if good.Digest == bad.Digest {
		t.Fatal("the same digest")
	}
	to, _ := newStore(t)
	if _, err := Pull(t.Context(), to, srv.ref("v1"), plain()); err != nil {
		t.Fatal(err)
	}
	if blob, ok, err := to.Get(t.Context(), testKey(0, "host")); err != nil || !ok || string(blob) != string(other) {
		t.Errorf("a tag that was moved gave %d bytes, %v, %v", len(blob), ok, err)
	}
	safe, _ := newStore(t)
	if _, err := Pull(t.Context(), safe, srv.at(good.Digest), plain()); err != nil {
		t.Fatal(err)
	}
	wantHit(t, safe, 0, "host")

	// The registry answers a request for the digest with the other artifact, and sends a false digest in the header
	// or none.
	for _, header := range []string{good.Digest.String(), bad.Digest.String(), ""} {
		srv.setMeddle(func(w http.ResponseWriter, r *http.Request) bool {
			if kind(r) != "manifests" || r.URL.Path == "/v2/team/toy/manifests/v1" {
				return false
			}
			resp, err := http.Get("http://" + r.Host + "/v2/team/toy/manifests/v1")
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
			if header != "" {
				w.Header().Set("Docker-Content-Digest", header)
			}
			w.Header().Set("Content-Length", resp.Header.Get("Content-Length"))
			if r.Method == http.MethodGet {
				text, _ := readBounded(resp.Body, maxManifest)
				w.Write(text)
			}
			return true
		})
		again, _ := newStore(t)
		if _, err := Pull(t.Context(), again, srv.at(good.Digest), plain()); err == nil {
			t.Errorf("header %q: another artifact was taken for the digest", header)
		}
		wantWhole(t, again, 0, 0)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestAnnouncedSizes checks that memory grows with the bytes that arrive, not with the announced size.
func TestAnnouncedSizes(t *testing.T) {
	dir := t.TempDir()
	blob := cache.DigestOf(testBlob(t, 0, "host")).String()
	a, err := pack(t.Context(), filled(t, 1), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := a.config
	c.Entries[0].Blob.Size = cache.MaxBlob
	c.derive(nil)
	forged, err := assemble(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range forged.parts[:len(forged.parts)-1] {
		forged.parts[i].load = func(context.Context) ([]byte, error) { return []byte("little"), nil }
	}
	writeLayout(t, dir, forged.manifest, forged.parts...)
	to, _ := newStore(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = Import(t.Context(), to, dir, plain())
	runtime.ReadMemStats(&after)
	wantErr(t, err, blob, "6 of its")
	if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
		t.Errorf("%d bytes were allocated", used)
	}
}

// TestNoBytes checks that the digest of an empty graph is verified, although nothing is fetched.
func TestNoBytes(t *testing.T) {
	dir := t.TempDir()
	a, err := pack(t.Context(), filled(t, 1), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	loads := map[digest.Digest]func(context.Context) ([]byte, error){}
	for _, p := range a.parts {
		loads[p.Digest] = p.load
	}
	a.config.Modules[0].Graph.Size = 0
	a.config.derive(nil)
	forged, err := assemble(a.config, loads)
	if err != nil {
		t.Fatal(err)
	}
	writeLayout(t, dir, forged.manifest, forged.parts...)
	to, _ := newStore(t)
	if _, err := Import(t.Context(), to, dir, plain()); !isContent(err) {
		t.Errorf("%v; want a ContentError", err)
	}
	wantWhole(t, to, 1, 0)
}

// TestEncryption checks that without PlainHTTP nothing is sent or read unencrypted, neither at first nor because the
// registry redirects or names a token service.
func TestEncryption(t *testing.T) {
	srv, from := newServer(t), filled(t, 2)
	o := plain()
	o.PlainHTTP = false
	_, err := Push(t.Context(), from, nil, srv.ref("v1"), o)
	if err == nil {
		t.Fatal("pushed over HTTP")
	}
	if n := srv.counts(); len(n) != 0 {
		t.Errorf("requests: %v", n)
	}

	var sent atomic.Int64
	open := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent.Add(1) }))
	defer open.Close()
	tls := startServer(t, httptest.NewTLSServer)
	o.Transport = tls.Client().Transport
	o.Credential = auth.StaticCredential(tls.Listener.Addr().String(), auth.Credential{Username: "me", Password: "secret"})
	if _, err := Push(t.Context(), from, nil, tls.ref("v1"), o); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"GET manifests", "GET blobs", "POST uploads", "PUT uploads", "HEAD blobs"} {
		for name, answer := range map[string]http.HandlerFunc{
			"redirect": func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, open.URL+r.URL.Path, http.StatusTemporaryRedirect)
			},
			"token service": func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+open.URL+`/token",service="x"`)
				w.WriteHeader(http.StatusUnauthorized)
			},
		} {
			tls.setMeddle(func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method+" "+kind(r) != what {
					return false
				}
				answer(w, r)
				return true
			})
			to, _ := newStore(t)
			if strings.HasPrefix(what, "GET") {
				_, err = Pull(t.Context(), to, tls.ref("v1"), o)
			} else {
				_, err = Push(t.Context(), filled(t, 3), nil, tls.ref("v1"), o)
			}
			if err == nil {
				t.Errorf("%s, %s: no error", what, name)
			}
			wantWhole(t, to, 0, 0)
		}
	}
	if sent.Load() != 0 {
		t.Errorf("%d requests without encryption", sent.Load())
	}
}

// TestCredentialsStay checks that the credentials of a registry do not follow a redirect to another host, where blobs
// often are.
func TestCredentialsStay(t *testing.T) {
	srv, from := newServer(t), filled(t, 2)
	var leaked atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			leaked.Store(true)
		}
		resp, err := http.Get("http://" + srv.Listener.Addr().String() + strings.Replace(r.URL.Path, "/elsewhere", "", 1))
		if err != nil {
			w.WriteHeader(500)
			return
		}
		defer resp.Body.Close()
		io.Copy(w, resp.Body)
	}))
	defer other.Close()
	defer http.DefaultClient.CloseIdleConnections()
	mustPush(t, from, srv.ref("v1"))
	srv.setMeddle(func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user == "me" && password == "secret" {
			if kind(r) == "blobs" {
				http.Redirect(w, r, other.URL+"/elsewhere"+r.URL.Path, http.StatusTemporaryRedirect)
				return true
			}
			return false
		}
		if r.UserAgent() == "pwc" {
			w.Header().Set("WWW-Authenticate", `Basic realm="toy"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	})
	to, _ := newStore(t)
	o := plain()
	_, err := Pull(t.Context(), to, srv.ref("v1"), o)
	wantErr(t, err, "credential")
	o.Credential = auth.StaticCredential(srv.Listener.Addr().String(), auth.Credential{Username: "me", Password: "wrong"})
	_, err = Pull(t.Context(), to, srv.ref("v1"), o)
	wantErr(t, err, "401")
	if strings.Contains(err.Error(), "wrong") {
		t.Errorf("the password is in the message: %v", err)
	}
	o.Credential = auth.StaticCredential(srv.Listener.Addr().String(), auth.Credential{Username: "me", Password: "secret"})
	if _, err = Pull(t.Context(), to, srv.ref("v1"), o); err != nil {
		t.Fatal(err)
	}
	if leaked.Load() {
		t.Error("credentials went to another host")
	}
	wantWhole(t, to, 2, 1)
}
