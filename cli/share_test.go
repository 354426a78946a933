package cli_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"pwc/cache"
	"pwc/cli"
	"pwc/program"
)

// pwc runs one command line in this process.
func pwc(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(context.Background(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// Models go through a registry: they are pushed once, and pulled by digest, or fetched piece by
// piece with PWC_CACHE_REMOTE.
func TestRegistry(t *testing.T) {
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	model := filepath.Join("..", "testdata", "nineteen.ir")
	t.Setenv("PWC_CACHE", "")
	t.Setenv("PWC_CACHE_PATH", "")
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	ref := host + "/models/nineteen:v1"
	expect := func(what string, wantCode int, want string, args ...string) string {
		t.Helper()
		code, out, errs := pwc(t, args...)
		if code != wantCode || !strings.Contains(out+errs, want) {
			t.Fatalf("%s: exit code %d, want %d with %q in\n%s%s", what, code, wantCode, want, out, errs)
		}
		return out
	}

	t.Setenv("PWC_CACHE_DIR", t.TempDir())
	expect("compile", 0, "3", "compile", model)
	out := expect("push", 0, "5 of 5 blobs were new", "cache", "push", ref, "--plain-http")
	digest := strings.TrimSpace(out[strings.LastIndex(out, "sha256:"):])
	expect("second push", 0, "0 of 5 blobs were new", "cache", "push", ref, "--plain-http")

	t.Setenv("PWC_CACHE_DIR", t.TempDir())
	expect("pull without --plain-http", 1, "pwc:", "cache", "pull", ref)
	expect("pull for another target", 1, "host", "cache", "pull", ref, "--plain-http", "--target", "cuda:sm_90")
	expect("pull", 0, "1 model, 3 artifacts, 0 of them already in the cache", "cache", "pull", host+"/models/nineteen@"+digest, "--plain-http")
	expect("compile what was pulled", 0, "", "compile", model, "--frozen")

	dir := t.TempDir()
	t.Setenv("PWC_CACHE_DIR", dir)
	t.Setenv("PWC_CACHE_REMOTE", "oci+http://"+ref)
	expect("explain", 0, "0 hits, 3 to be compiled", "cache", "explain", model)
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("explaining left %v, %v", files, err)
	}
	expect("compile over the remote", 0, `"loaded": 3`, "compile", model, "--frozen", "--json")
	t.Setenv("PWC_CACHE_REMOTE", "oci+http://"+host+"/models/other:v1")
	t.Setenv("PWC_CACHE_DIR", t.TempDir())
	expect("a remote that is not there", 0, "level=WARN", "compile", model)
	t.Setenv("PWC_CACHE_DIR", t.TempDir())
	if out := expect("the same, frozen", 1, "models/other", "compile", model, "--frozen", "--json"); !strings.Contains(out, "remote cache") {
		t.Errorf("the error does not say that the remote failed:\n%s", out)
	}
	t.Setenv("PWC_CACHE_REMOTE", "ftp://x")
	expect("a remote that cannot be", 2, "PWC_CACHE_REMOTE", "compile", model)
}

// gpuModel puts a model with machine code into the cache in dir.
func gpuModel(t *testing.T, dir string) {
	t.Helper()
	s := cache.New(cache.Options{Dir: dir})
	k, err := program.CUDAKernel("k", []byte("machine code"), nil)
	if err != nil {
		t.Fatal(err)
	}
	blob, err := program.Alone("cuda:sm_90", k).Encode()
	if err != nil {
		t.Fatal(err)
	}
	key := cache.Key{Piece: sha256.Sum256([]byte("piece")), Target: "cuda:sm_90", Pipeline: "p", Format: program.FormatVersion}
	m := cache.Module{Name: "gpu", Hash: sha256.Sum256([]byte("gpu")), Target: "cuda:sm_90", Graph: []byte("graph"), Entries: []cache.ModuleEntry{{ID: key.Sum(), Size: int64(len(blob))}}}
	for _, err := range []error{s.Put(t.Context(), key, blob, cache.Provenance{Compiler: "nvrtc 12.8"}), s.PutModule(t.Context(), m)} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Machine code goes from a build machine to a fleet with two commands: one signs and one verifies, or
// one pushes and one trusts a digest.
func TestTrust(t *testing.T) {
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer srv.Close()
	ref := strings.TrimPrefix(srv.URL, "http://") + "/models/gpu:v1"
	dir := t.TempDir()
	t.Setenv("PWC_CACHE", "")
	t.Setenv("PWC_CACHE_PATH", "")
	t.Setenv("PWC_CACHE_REMOTE", "")
	t.Setenv("DOCKER_CONFIG", dir)
	list := filepath.Join(dir, "settings", "trust")
	t.Setenv("PWC_CACHE_TRUST", list)
	expect := func(what string, wantCode int, want string, args ...string) string {
		t.Helper()
		code, out, errs := pwc(t, args...)
		if code != wantCode || !strings.Contains(out+errs, want) {
			t.Fatalf("%s: exit code %d, want %d with %q in\n%s%s", what, code, wantCode, want, out, errs)
		}
		return out
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := func(name, kind string, marshal func(any) ([]byte, error), key any) string {
		t.Helper()
		der, err := marshal(key)
		if err != nil {
			t.Fatal(err)
		}
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	key := keyFile("key.pem", "PRIVATE KEY", x509.MarshalPKCS8PrivateKey, private)
	pub := keyFile("key.pub", "PUBLIC KEY", x509.MarshalPKIXPublicKey, private.Public())

	// The build machine.
	t.Setenv("PWC_CACHE_DIR", filepath.Join(dir, "build"))
	gpuModel(t, filepath.Join(dir, "build"))
	expect("a wrong key", 1, "--sign-key", "cache", "push", ref, "--plain-http", "--sign-key", pub)
	out := expect("push", 0, "signed by key ", "cache", "push", ref, "--plain-http", "--sign-key", key)
	digest := strings.TrimSpace(out[strings.LastIndex(out, "sha256:"):])
	tar := filepath.Join(dir, "gpu.tar")
	expect("export", 0, "signed by key ", "cache", "export", tar, "--sign-key", key)

	// A machine of the fleet.
	fleet := func() { t.Setenv("PWC_CACHE_DIR", t.TempDir()) }
	pull := []string{"cache", "pull", ref, "--plain-http", "--target", "cuda:sm_90"}
	imports := []string{"cache", "import", tar, "--target", "cuda:sm_90"}
	for _, take := range [][]string{pull, imports} {
		fleet()
		expect("nothing is trusted", 1, "pwc cache trust add --key FILE with the signer's public key, or pwc cache trust add --artifact "+digest, take...)
		expect("nothing is kept", 0, "has no models", "cache", "ls")
		expect("a private key", 1, "--trust-key", append(take, "--trust-key", key)...)
		expect("with the key", 0, "machine code is trusted: signed by key ", append(take, "--trust-key", pub)...)
		expect("nothing is recorded", 0, "the list in "+list+" is empty", "cache", "trust", "list")
	}
	for _, take := range [][]string{pull, imports} {
		fleet()
		expect("accepted", 0, "machine code is trusted: accepted", append(take, "--trust")...)
		fleet()
		expect("recorded", 0, "machine code is trusted: listed", take...)
		expect("removed", 0, "is empty", "cache", "trust", "remove", digest)
	}

	// The list.
	expect("nothing to add", 2, "--key", "cache", "trust", "add")
	expect("a private key", 1, "must be PUBLIC KEY", "cache", "trust", "add", "--key", key)
	expect("no key", 1, "--key: ", "cache", "trust", "add", "--key", key+".none")
	expect("no repository", 2, "without a tag", "cache", "trust", "add", "--repository", ref)
	expect("no digest", 2, "--artifact", "cache", "trust", "add", "--artifact", "latest")
	out = expect("a key", 0, "Ed25519", "cache", "trust", "add", "--key", pub, "--dir", dir, "--repository", strings.TrimSuffix(ref, ":v1"))
	expect("json", 0, `"algorithm": "Ed25519"`, "cache", "trust", "list", "--json")
	fleet()
	expect("by repository", 0, "listed", pull...)
	expect("remove", 0, "key", "cache", "trust", "remove", dir, strings.TrimSuffix(ref, ":v1"))
	fleet()
	expect("by key", 0, "signed by key", pull...)
	expect("remove it", 0, "is empty", "cache", "trust", "rm", regexp.MustCompile(`[0-9a-f]{64}`).FindString(out)[:8])
	expect("remove it again", 1, "not on the list", "cache", "trust", "remove", dir)
	fleet()
	expect("no longer", 1, "is trusted", pull...)

	// A layer that all users can write.
	layer := filepath.Join(dir, "build")
	t.Setenv("PWC_CACHE_PATH", layer)
	fleet()
	if err := os.Chmod(layer, 0o777); err != nil {
		t.Fatal(err)
	}
	expect("its code goes nowhere", 1, "pwc cache trust add --dir "+layer, "cache", "export", filepath.Join(dir, "again.tar"), "gpu")
	expect("trust it", 0, layer, "cache", "trust", "add", "--dir", layer)
	expect("it does", 0, "wrote", "cache", "export", filepath.Join(dir, "again.tar"), "gpu")
	if err := os.Chmod(list, 0o666); err != nil {
		t.Fatal(err)
	}
	expect("a list that everybody can write", 2, "can write it", "cache", "ls")
}
