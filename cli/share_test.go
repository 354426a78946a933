package cli_test

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"pwc/cli"
)

// pwc runs one command line in this process.
func pwc(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(context.Background(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// Models go through a registry: pushed once, pulled by digest, and taken piece by
// piece where PWC_CACHE_REMOTE names the artifact.
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
	expect("pull", 0, "1 model, 3 artifacts of which 0 were here", "cache", "pull", host+"/models/nineteen@"+digest, "--plain-http")
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
