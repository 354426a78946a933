// Package cudatest opens the device of tests of kernels: the machine's GPU, or without
// one a GPU that package fake emulates, which executes the PTX of NVRTC.
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

// Opened is a device for a test of kernels.
type Opened struct {
	*cuda.Device
	// Emulated is true if the device executes PTX on the host, so that large kernels take too long.
	Emulated bool
	driver   *fake.Driver
}

// GPU opens the machine's GPU and closes it at the end of the test. Without a GPU the test is
// skipped, unless PWC_REQUIRE_GPU=1; then it fails.
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

// Open opens the machine's GPU, or without one an emulated GPU with the options o, by default of
// compute capability 9.0, and closes it at the end of the test. With PWC_REQUIRE_GPU=1 a test on a
// machine without a GPU fails. An emulated GPU fails the test if package ptx finds an error in a
// kernel, or if the driver was used wrongly. Under the race detector, tests on emulated GPUs are
// skipped, because they take too long.
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

// Emulated opens an emulated device, even if the machine has a GPU, and returns its driver, too. It
// is for tests of the errors that package ptx finds in kernels, which may lose the device. The test
// closes the device. Under the race detector the test is skipped, as by Open.
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

// Several opens n GPUs of the machine, or n emulated ones if the machine has fewer, and closes them
// at the end of the test. With PWC_REQUIRE_GPU=1 a test that needs more GPUs than the machine has is
// skipped, and so is a test on emulated GPUs under the race detector.
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

// opened closes the device at the end of the test, if the test has not closed it. Then faults and
// misuse of o.driver fail the test.
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
// PWC_REQUIRE_NVRTC=1; then it fails.
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

// Compiler opens NVRTC as a compiler for the device. For an emulated device its cubins contain
// PTX.
func (o *Opened) Compiler(t testing.TB) Compiler {
	t.Helper()
	l := NVRTC(t)
	c := l.Compiler(standard)
	if !o.Emulated {
		return c
	}
	return emulated{c, l}
}

// emulated compiles only to PTX.
type emulated struct {
	*nvrtc.Compiler
	l *nvrtc.Library
}

// Compile returns the PTX, and a cubin of the fake driver that contains it. Code for
// sm_90a is compiled for compute_90, so that compilers need not support sm_90a: its special
// instructions are PTX in asm statements of the source, which the compiler does not check.
func (c emulated) Compile(ctx context.Context, source, name, arch string) (cubin, ptx []byte, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	_, number, _ := strings.Cut(arch, "_")
	flags := []string{standard}
	if n, alone := strings.CutSuffix(number, "a"); alone {
		number, flags = n, append(flags, "-D__CUDA_ARCH_FEAT_SM"+n+"_ALL") // as compilers that support it define it
	}
	code, err := c.l.Compile(nvrtc.Source{Name: name, Text: source}, nvrtc.CompileOptions{Arch: "compute_" + number, Flags: flags})
	return fake.Cubin(code.PTX), code.PTX, err
}

// Supports is true for every architecture.
func (c emulated) Supports(string) bool { return true }

// standard is the flag that all kernels are compiled with.
const standard = "--std=c++17"
