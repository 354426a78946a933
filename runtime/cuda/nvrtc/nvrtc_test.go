package nvrtc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pwc/runtime/cuda/nvrtc"
)

// open opens the machine's NVRTC. Without one the test is skipped, unless
// PWC_REQUIRE_NVRTC=1 says that there must be one.
func open(t testing.TB) *nvrtc.Library {
	t.Helper()
	l, err := nvrtc.Open(nvrtc.Options{})
	if err != nil {
		var missing *nvrtc.NotFoundError
		if !errors.As(err, &missing) || os.Getenv("PWC_REQUIRE_NVRTC") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return l
}

var axpy = nvrtc.Source{Name: "axpy.cu", Text: `
extern "C" __global__ void axpy(const float *x, float *y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
`}

func TestLibrary(t *testing.T) {
	l := open(t)
	major, minor := l.Version()
	if major < 11 || minor < 0 {
		t.Errorf("version %d.%d", major, minor)
	}
	archs := l.Archs()
	if !slices.IsSorted(archs) || !slices.Contains(archs, 80) || !slices.Contains(archs, 90) {
		t.Errorf("architectures %v, want 80 and 90 among them", archs)
	}
	if !strings.Contains(l.Path(), "libnvrtc.so") {
		t.Errorf("path %q", l.Path())
	}
	t.Logf("%s is NVRTC %d.%d for %v", l.Path(), major, minor, archs)
}

func TestCompile(t *testing.T) {
	l := open(t)
	for _, arch := range []string{"sm_80", "sm_90", "compute_80"} {
		code, err := l.Compile(axpy, nvrtc.CompileOptions{Arch: arch, Flags: []string{"--std=c++17"}})
		if err != nil {
			t.Fatal(err)
		}
		if cubin := strings.HasPrefix(arch, "sm_"); bytes.HasPrefix(code.Cubin, []byte("\x7fELF")) != cubin || bytes.Contains(code.Cubin, []byte("axpy")) != cubin {
			t.Errorf("%s: %d bytes that are not the kernel", arch, len(code.Cubin))
		}
		_, number, _ := strings.Cut(arch, "_")
		if !bytes.Contains(code.PTX, []byte(".target sm_"+number)) || !bytes.Contains(code.PTX, []byte(".entry axpy(")) || bytes.HasSuffix(code.PTX, []byte{0}) {
			t.Errorf("%s: %d bytes that are not the kernel's PTX", arch, len(code.PTX))
		}
		// A second compilation in another directory, of a source with another name, gives the same code.
		t.Chdir(t.TempDir())
		again, err := l.Compile(nvrtc.Source{Name: "/elsewhere/" + axpy.Name, Text: axpy.Text}, nvrtc.CompileOptions{Arch: arch, Flags: []string{"--std=c++17"}})
		if err != nil || !bytes.Equal(again.Cubin, code.Cubin) || !bytes.Equal(again.PTX, code.PTX) {
			t.Errorf("%s: a second compilation gives other code, or %v", arch, err)
		}
	}
}

func TestWarnings(t *testing.T) {
	code, err := open(t).Compile(nvrtc.Source{Name: "warn.cu", Text: "__global__ void k() { int unused; }"}, nvrtc.CompileOptions{Arch: "sm_80"})
	if err != nil || !strings.Contains(code.Log, "unused") {
		t.Errorf("log %q, %v, want a warning of the variable", code.Log, err)
	}
}

func TestErrors(t *testing.T) {
	l := open(t)
	for name, c := range map[string]struct {
		source nvrtc.Source
		o      nvrtc.CompileOptions
		log    string
	}{
		"source": {nvrtc.Source{Name: "bad.cu", Text: "__global__ void k() {\n  undeclared = 1;\n}"}, nvrtc.CompileOptions{Arch: "sm_80"}, "bad.cu(2)"},
		"arch":   {axpy, nvrtc.CompileOptions{Arch: "sm_1"}, ""},
		"flag":   {axpy, nvrtc.CompileOptions{Arch: "sm_80", Flags: []string{"--no-such-flag"}}, ""},
	} {
		_, err := l.Compile(c.source, c.o)
		var e *nvrtc.CompileError
		if !errors.As(err, &e) || e.Name != c.source.Name || e.Arch != c.o.Arch || !strings.Contains(e.Log, c.log) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := l.Compile(axpy, nvrtc.CompileOptions{Arch: "sm_80"}); err != nil {
		t.Errorf("after errors: %v", err)
	}
}

// TestAtOnce compiles from several goroutines, as pieces.Build does.
func TestAtOnce(t *testing.T) {
	l := open(t)
	want, err := l.Compile(axpy, nvrtc.CompileOptions{Arch: "sm_80"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			got, err := l.Compile(axpy, nvrtc.CompileOptions{Arch: "sm_80"})
			if err != nil || !bytes.Equal(got.Cubin, want.Cubin) || !bytes.Equal(got.PTX, want.PTX) {
				t.Errorf("other code, or %v", err)
			}
		})
	}
	wg.Wait()
}

func TestNotFound(t *testing.T) {
	dir := t.TempDir()
	var missing *nvrtc.NotFoundError
	path := filepath.Join(dir, "libnvrtc.so.99")
	_, err := nvrtc.Open(nvrtc.Options{Path: path})
	if !errors.As(err, &missing) || len(missing.Attempts) != 1 || missing.Attempts[0].Path != path || !strings.Contains(err.Error(), path) {
		t.Errorf("%v does not say that %s was looked for", err, path)
	}
	// For a file that is not a library, the error has the loader's reason.
	bad := filepath.Join(dir, "libnvrtc.so.12")
	if err := os.WriteFile(bad, []byte("text"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err = nvrtc.Open(nvrtc.Options{Path: bad}); !errors.As(err, &missing) || missing.Attempts[0].Reason == "" {
		t.Errorf("a file that is not a library: %v", err)
	}
}

func BenchmarkCompile(b *testing.B) {
	l := open(b)
	for b.Loop() {
		if _, err := l.Compile(axpy, nvrtc.CompileOptions{Arch: "sm_90"}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestCompiler(t *testing.T) {
	l := open(t)
	c := l.Compiler("--std=c++17", "--define-macro=LIMIT=4")
	major, minor := l.Version()
	if got, want := c.Version(), fmt.Sprintf("nvrtc %d.%d", major, minor); got != want {
		t.Errorf("version %q, want %q", got, want)
	}
	const source = `extern "C" __global__ void limit(int *x) { if constexpr (LIMIT == 4) *x = LIMIT; }`
	cubin, ptx, err := c.Compile(t.Context(), source, "limit.cu", "sm_80")
	if err != nil || !bytes.HasPrefix(cubin, []byte("\x7fELF")) || !bytes.Contains(ptx, []byte(".entry limit")) {
		t.Errorf("%v: %d bytes that are no cubin, or %d that are no PTX", err, len(cubin), len(ptx))
	}
	if cubin, alone, err := c.Compile(t.Context(), source, "limit.cu", "compute_80"); err != nil || cubin != nil || !bytes.Equal(alone, ptx) {
		t.Errorf("%v: %d bytes of machine code, want 0; the PTX is that of sm_80: %v", err, len(cubin), bytes.Equal(alone, ptx))
	}
	if _, _, err := c.Compile(t.Context(), source, "limit.cu", "80"); err == nil {
		t.Error("compiled for the architecture \"80\"")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := c.Compile(ctx, source, "limit.cu", "sm_80"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestMinimal: from NVRTC 12.4 on, Compiler passes --minimal, so that sources have no declarations of
// textures. Earlier versions, which would refuse the flag, do not get it.
func TestMinimal(t *testing.T) {
	l := open(t)
	const source = `extern "C" __global__ void number(cudaTextureObject_t texture, unsigned long long *x) { *x = texture; }`
	if _, err := l.Compile(nvrtc.Source{Name: "number.cu", Text: source}, nvrtc.CompileOptions{Arch: "sm_80"}); err != nil {
		t.Fatal(err)
	}
	_, _, err := l.Compiler().Compile(t.Context(), source, "number.cu", "sm_80")
	major, minor := l.Version()
	var refused *nvrtc.CompileError
	switch left := major > 12 || major == 12 && minor >= 4; {
	case left && (!errors.As(err, &refused) || !strings.Contains(refused.Log, "cudaTextureObject_t")):
		t.Errorf("NVRTC %d.%d declares textures: %v", major, minor, err)
	case !left && err != nil:
		t.Errorf("NVRTC %d.%d: %v", major, minor, err)
	}
}

// TestDeferred: the version is not known before the first Compile, which opens the library.
func TestDeferred(t *testing.T) {
	l := open(t)
	d := nvrtc.Deferred(nvrtc.Options{Path: l.Path()}, "--std=c++17")
	if got := d.Version(); got != "nvrtc" {
		t.Errorf("version %q before anything was compiled", got)
	}
	if code, _, err := d.Compile(t.Context(), axpy.Text, axpy.Name, "sm_80"); err != nil || !bytes.HasPrefix(code, []byte("\x7fELF")) {
		t.Errorf("%v: %d bytes that are no cubin", err, len(code))
	}
	if got, want := d.Version(), l.Compiler().Version(); got != want {
		t.Errorf("version %q, want %q", got, want)
	}
}

func TestDeferredWithoutLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvrtc.so.99")
	d := nvrtc.Deferred(nvrtc.Options{Path: path})
	for range 2 {
		var missing *nvrtc.NotFoundError
		if _, _, err := d.Compile(t.Context(), axpy.Text, axpy.Name, "sm_80"); !errors.As(err, &missing) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v does not say that %s was looked for", err, path)
		} else if d.Err() != err {
			t.Errorf("%v, then %v", err, d.Err())
		}
	}
}

// TestUnknownArchitecture: the error names the architecture and those of the library, and Err returns it.
// Err does not return errors of sources.
func TestUnknownArchitecture(t *testing.T) {
	d := nvrtc.Deferred(nvrtc.Options{Path: open(t).Path()})
	if _, _, err := d.Compile(t.Context(), "no C", "bad.cu", "sm_80"); err == nil || d.Err() != nil {
		t.Errorf("a source that is wrong: %v, and then %v", err, d.Err())
	}
	_, _, err := d.Compile(t.Context(), axpy.Text, axpy.Name, "sm_999")
	if err == nil || d.Err() != err || !strings.Contains(err.Error(), "sm_80") || !strings.Contains(err.Error(), "not for sm_999") {
		t.Errorf("%v", err)
	}
}

// TestArchSpecific: from NVRTC 12.1 on, sm_90a is supported and compiled. Earlier versions refuse it.
func TestArchSpecific(t *testing.T) {
	l := open(t)
	c, d := l.Compiler(), nvrtc.Deferred(nvrtc.Options{Path: l.Path()})
	major, minor := l.Version()
	makes := major > 12 || major == 12 && minor >= 1
	if !c.Supports("sm_90") || c.Supports("sm_999") || c.Supports("sm_89a") || c.Supports("sm_90a") != makes || d.Supports("sm_90a") != makes {
		t.Errorf("%s: sm_90 %v, sm_999 %v, sm_89a %v, sm_90a %v", c.Version(), c.Supports("sm_90"), c.Supports("sm_999"), c.Supports("sm_89a"), c.Supports("sm_90a"))
	}
	_, _, err := d.Compile(t.Context(), axpy.Text, axpy.Name, "sm_90a")
	if (err == nil) != makes || err != nil && !strings.Contains(err.Error(), "does not compile for sm_90a: arch-specific code is supported from sm_90a on, and needs NVRTC 12.1") {
		t.Errorf("%s: %v", c.Version(), err)
	}
	if nvrtc.Deferred(nvrtc.Options{Path: filepath.Join(t.TempDir(), "none")}).Supports("sm_90") {
		t.Error("Supports reports true without a library")
	}
}

// TestKeepsNothing: Compile leaves no files in the cache that newer libraries have. A child process
// compiles, since the cache's folder depends on the environment of the process.
func TestKeepsNothing(t *testing.T) {
	open(t)
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCompile$")
	cmd.Env = append(os.Environ(), "CUDA_CACHE_PATH="+dir, "HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the cache: %v (%v)", left, err)
	}
}
