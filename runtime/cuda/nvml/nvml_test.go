//go:build linux && (amd64 || arm64)

package nvml_test

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pwc/runtime/cuda/nvml"
)

// build compiles testdata/nvml.c, whose functions have the C declarations of nvml.h.
func build(t *testing.T, start string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-DSTART="+start, "-o", path, "testdata/nvml.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// TestNVLinks reads the links of GPUs from a library with NVML's declarations.
func TestNVLinks(t *testing.T) {
	l, err := nvml.Open(nvml.Options{Path: build(t, "0")})
	if err != nil {
		t.Fatal(err)
	}
	const speed = 26562e6
	for pci, want := range map[string][]nvml.NVLink{
		"0000:06:00.0": {{nvml.RemoteGPU, "0000:07:00.0", speed}, {nvml.RemoteSwitch, "", speed}, {nvml.RemoteGPU, "0000:07:00.0", speed}},
		"0000:07:00.0": {{nvml.RemoteGPU, "0000:06:00.0", speed}, {nvml.RemoteGPU, "0000:06:00.0", speed}},
		"0000:08:00.0": nil,
	} {
		got, err := l.NVLinks(pci)
		if err != nil {
			t.Errorf("%s: %v", pci, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", pci, d)
		}
	}
	var status *nvml.StatusError
	if _, err := l.NVLinks("0000:09:00.0"); !errors.As(err, &status) || status.Status != 6 {
		t.Errorf("a GPU that is not there: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestOpenFails: Open returns an error if the library is not there or does not start.
func TestOpenFails(t *testing.T) {
	var missing *nvml.NotFoundError
	if _, err := nvml.Open(nvml.Options{Path: filepath.Join(t.TempDir(), "libnvidia-ml.so.1")}); !errors.As(err, &missing) {
		t.Errorf("no library: %v", err)
	}
	var status *nvml.StatusError
	if _, err := nvml.Open(nvml.Options{Path: build(t, "18")}); !errors.As(err, &status) || status.Status != 18 {
		t.Errorf("a library that does not start: %v", err)
	}
}
