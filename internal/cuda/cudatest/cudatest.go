// Package cudatest opens what tests of kernels run on: the machine's GPU, or
// where there is none a GPU that package fake emulates, which executes the
// kernels that NVRTC compiles.
package cudatest

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/runtime/cuda"
	"pwc/runtime/cuda/nvrtc"
)

// Opened is a device for a test of kernels, which the test's end closes.
type Opened struct {
	*cuda.Device
	// Emulated says that the device executes PTX on the host: some hundred million
	// instructions of threads in a second, and half a million matrix instructions of
	// warps.
	Emulated bool
	driver   *fake.Driver
}

// GPU opens the machine's GPU. Without one the test is skipped, unless
// PWC_REQUIRE_GPU=1 says that there must be one.
func GPU(t testing.TB) *Opened {
	t.Helper()
	dev, err := cuda.Open(cuda.Options{})
	if err != nil {
		if os.Getenv("PWC_REQUIRE_GPU") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return opened(t, &Opened{Device: dev})
}

// Open opens the machine's GPU, or an emulated one as o describes it, by default of
// compute capability 9.0. The emulated one fails the test for whatever package ptx
// finds wrong with its kernels. It is skipped under the race detector, which slows it down tenfold and
// has nothing to find in it: kernels run on the goroutine that waits for them.
func Open(t testing.TB, o fake.Options) *Opened {
	t.Helper()
	if dev, err := cuda.Open(cuda.Options{}); err == nil || os.Getenv("PWC_REQUIRE_GPU") == "1" {
		if err != nil {
			t.Fatal(err)
		}
		return opened(t, &Opened{Device: dev})
	}
	e, f := Emulated(t, o)
	e.driver = f
	return opened(t, e)
}

// Emulated opens an emulated device, whatever GPU there is, and returns its driver too: for
// tests of what package ptx finds wrong with a kernel, which may lose the device. They
// close it. Under the race detector they are skipped, as by Open.
func Emulated(t testing.TB, o fake.Options) (*Opened, *fake.Driver) {
	t.Helper()
	if raceDetector {
		t.Skip("an emulated GPU is too slow under the race detector")
	}
	f := fake.New(o)
	dev, err := cuda.Open(cuda.Options{Driver: f})
	if err != nil {
		t.Fatal(err)
	}
	return &Opened{Device: dev, Emulated: true}, f
}

// Several opens n GPUs of the machine, or where it has fewer n emulated ones, as Open does.
func Several(t testing.TB, n int, o fake.Options) []*Opened {
	t.Helper()
	var out []*Opened
	for i := range n {
		dev, err := cuda.Open(cuda.Options{Ordinal: i})
		if err != nil {
			break
		}
		out = append(out, opened(t, &Opened{Device: dev}))
	}
	if len(out) == n {
		return out
	}
	if os.Getenv("PWC_REQUIRE_GPU") == "1" {
		t.Skipf("the machine has %d GPUs, the test needs %d", len(out), n)
	}
	if raceDetector {
		t.Skip("an emulated GPU is too slow under the race detector")
	}
	o.Devices = n
	f := fake.New(o)
	out = nil
	for i := range n {
		dev, err := cuda.Open(cuda.Options{Ordinal: i, Driver: f})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, opened(t, &Opened{Device: dev, Emulated: true, driver: f}))
	}
	return out
}

// opened closes the device at the test's end, if the test has not.
func opened(t testing.TB, o *Opened) *Opened {
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
		if o.driver == nil {
			return
		}
		for _, m := range slices.Concat(o.driver.Faults(), o.driver.Misuse()) {
			t.Error(m)
		}
	})
	return o
}

// Compiler compiles CUDA C to a cubin and PTX.
type Compiler interface {
	Compile(ctx context.Context, source, name, arch string) (cubin, ptx []byte, err error)
	Supports(arch string) bool
	Version() string
}

// NVRTC opens the compiler. Without it the test is skipped, unless
// PWC_REQUIRE_NVRTC=1 says that there must be one.
func NVRTC(t testing.TB) *nvrtc.Library {
	t.Helper()
	l, err := nvrtc.Open(nvrtc.Options{})
	var missing *nvrtc.NotFoundError
	if errors.As(err, &missing) && os.Getenv("PWC_REQUIRE_NVRTC") != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Compiler opens NVRTC as a compiler for the device. What it makes for an emulated
// one in place of a cubin is the PTX.
func (o *Opened) Compiler(t testing.TB) Compiler {
	t.Helper()
	l := NVRTC(t)
	c := l.Compiler(standard)
	if !o.Emulated {
		return c
	}
	return emulated{c, l}
}

// emulated compiles to PTX alone, which takes half the time.
type emulated struct {
	*nvrtc.Compiler
	l *nvrtc.Library
}

// Compile returns the PTX, and what the emulated device takes for its machine code. To
// make PTX for an architecture alone the compiler need not know it: what no other one has
// are instructions of PTX in the source, which it does not read.
func (c emulated) Compile(ctx context.Context, source, name, arch string) (cubin, ptx []byte, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	_, number, _ := strings.Cut(arch, "_")
	flags := []string{standard}
	if n, alone := strings.CutSuffix(number, "a"); alone {
		number, flags = n, append(flags, "-D__CUDA_ARCH_FEAT_SM"+n+"_ALL") // as compilers that know it do
	}
	code, err := c.l.Compile(nvrtc.Source{Name: name, Text: source}, nvrtc.CompileOptions{Arch: "compute_" + number, Flags: flags})
	return fake.Cubin(code.PTX), code.PTX, err
}

// Supports is true for every architecture.
func (c emulated) Supports(string) bool { return true }

// standard is the flag that all kernels are compiled with.
const standard = "--std=c++17"
