//go:build !nocuda

package cli

import (
	"errors"
	"math"
	"testing"

	"golang.org/x/sync/errgroup"

	"pwc/collective"
	collectivecuda "pwc/collective/cuda"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
)

// TestTimedCode: the kernel of a measured all_reduce is the one of the module, or is compiled.
func TestTimedCode(t *testing.T) {
	e := &entries{knows: []string{"sm_90"}}
	gpu := &target{name: "cuda:sm_90", cuda: kernelCompiler{e}}
	gpu.configure(&buildFlags{})
	v := collectivecuda.Variant{Algorithm: collectivecuda.OneShot, Protocol: collectivecuda.LL, DType: dtype.BF16, Ranks: 2}
	made, err := gpu.timedCode(t.Context(), v)
	if err != nil || e.asked != 1 {
		t.Fatalf("without the kernel in the module: %v, compiled %d times", err, e.asked)
	}
	gpu.kernels.keep(collectiveKernel(v), made)
	if got, err := gpu.timedCode(t.Context(), v); err != nil || got != made || e.asked != 1 {
		t.Errorf("with the kernel in the module: %v, compiled %d times", err, e.asked)
	}
}

// errless is a compiler whose Err is nil.
type errless struct{ cudatest.Compiler }

func (errless) Err() error { return nil }

// TestDeviceCollectiveCounts: each GPU of a group counts its own calls.
func TestDeviceCollectiveCounts(t *testing.T) {
	devices := cudatest.Several(t, 2, fake.Options{})
	groups, err := collective.Local("tp", 2, collective.Options{})
	if err != nil {
		t.Fatal(err)
	}
	compiler := devices[0].Compiler(t)
	v := collectivecuda.Variant{Algorithm: collectivecuda.OneShot, Protocol: collectivecuda.LL, DType: dtype.F32, Ranks: 2}
	code, err := collectivecuda.Compile(t.Context(), compiler, devices[0].Info().Target, v)
	if err != nil {
		t.Fatal(err)
	}
	var all errgroup.Group
	for rank, g := range groups {
		all.Go(func() (err error) {
			gpu, err := newGPUTarget(devices[rank].Device, "cuda", errless{compiler})
			if err != nil {
				return err
			}
			gpu.configure(&buildFlags{captureSizes: "none"})
			gpu.kernels.keep(collectiveKernel(v), code)
			if err := gpu.join(t.Context(), math.MaxInt64, g); err != nil {
				return err
			}
			s, err := gpu.dev.NewStream()
			if err != nil {
				return err
			}
			m, err := gpu.dev.Alloc(64)
			if err != nil {
				return err
			}
			x := device.Tensor{Buffer: device.Buffer{Memory: m, Size: 64}, DType: dtype.F32, Shape: []int64{16}}
			call := &device.OpCall{Args: []device.Tensor{x, x}, Attrs: []program.Attr{
				{Name: collective.AttrGroup, Kind: program.AttrString, Str: "tp"}, {Name: collective.AttrSize, Dim: dim.Const(2)}}}
			op := devices[rank].Libraries()[collective.AllReduce.Name()]
			if err := errors.Join(s.LaunchOp(op, call), s.LaunchOp(op, call), s.Synchronize()); err != nil {
				return err
			}
			if got, want := *gpu.collectives(), (collectiveCounts{Peer: 2}); got != want {
				t.Errorf("rank %d counts %+v, want %+v", rank, got, want)
			}
			return errors.Join(g.Barrier(t.Context()), m.Free())
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
}
