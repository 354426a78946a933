package cuda_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
	"pwc/silly"
	sillycuda "pwc/silly/cuda"
)

// open makes a stream and the op on a device. All are closed at the end of the test.
func open(t *testing.T, dev *cuda.Device, code func(context.Context) (*program.Program, error)) (device.Stream, *sillycuda.Op) {
	t.Helper()
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	op := sillycuda.New(dev, code)
	t.Cleanup(func() {
		if err := errors.Join(s.Synchronize(), op.Close(), op.Close(), s.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, op
}

// call makes a call with operands of random values. It also returns the values.
func call(t *testing.T, dev *cuda.Device, s device.Stream, dt dtype.DType, shape []int64) (*device.OpCall, []*interp.Tensor) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, uint64(dt)))
	c := &device.OpCall{Stream: s, Loc: "here"}
	var values []*interp.Tensor
	for range 4 {
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		x := make([]float64, n)
		for i := range x {
			x[i] = rng.NormFloat64() * math.Exp2(float64(rng.IntN(12)))
		}
		v, err := interp.FromFloat64s(dt, shape, x)
		if err != nil {
			t.Fatal(err)
		}
		m, err := dev.Alloc(dt.Bytes(n))
		if err != nil {
			t.Fatal(err)
		}
		b := device.Buffer{Memory: m, Size: m.Size()}
		if err := s.CopyToDevice(b, v.Bytes()); err != nil {
			t.Fatal(err)
		}
		values = append(values, v)
		c.Args = append(c.Args, device.Tensor{Buffer: b, DType: dt, Shape: shape})
	}
	return c, values
}

// The kernel computes the result of silly.Reference, bit for bit, and zeros in padded rows.
func TestSumOnGPU(t *testing.T) {
	opened := cudatest.Open(t, fake.Options{})
	dev, compiler := opened.Device, opened.Compiler(t)
	s, op := open(t, dev, func(ctx context.Context) (*program.Program, error) {
		target := dev.Info().Target
		_, arch, _ := strings.Cut(target, ":")
		cubin, ptx, err := compiler.Compile(ctx, sillycuda.Source(), "silly.cu", arch)
		if err != nil {
			return nil, err
		}
		k, err := program.CUDAKernel("silly", cubin, ptx)
		return program.Alone(target, k), err
	})
	for _, dt := range []dtype.DType{dtype.F32, dtype.F16, dtype.BF16} {
		c, values := call(t, dev, s, dt, []int64{8, 300})
		c.Size, c.Rows, c.RowExtents = 8, 5, []int64{1, 1, 1, 1}
		if err := op.Launch(c); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, c.Args[3].Size)
		if err := errors.Join(s.CopyToHost(got, c.Args[3].Buffer), s.Synchronize()); err != nil {
			t.Fatal(err)
		}
		if err := silly.Reference(&interp.Call{Args: values}); err != nil {
			t.Fatal(err)
		}
		want := values[3].Bytes()
		clear(want[len(want)/8*5:])
		if !bytes.Equal(got, want) {
			t.Errorf("%s: the bytes differ from those of silly.Reference", dt)
		}
	}
}

// A launch passes the grid and the numbers of elements to the kernel, and refuses invalid calls.
func TestLaunch(t *testing.T) {
	var grid [3]uint32
	var real, all int64
	drv := fake.New(fake.Options{Kernels: []fake.Kernel{{Name: "silly_f32", Params: 6, Run: func(c *fake.Call) {
		grid, real, all = c.Grid, c.Int(4), c.Int(5)
		q, k, v, out := c.F32(0, all), c.F32(1, all), c.F32(2, all), c.F32(3, all)
		for i := range out {
			out[i] = 0
			if int64(i) < real {
				out[i] = q[i] + k[i] + v[i]
			}
		}
	}}}})
	asked := 0
	dev, err := cuda.Open(cuda.Options{Driver: drv})
	if err != nil {
		t.Fatal(err)
	}
	s, op := open(t, dev, func(context.Context) (*program.Program, error) {
		asked++
		return program.Alone("cuda:sm_90", program.Kernel{Name: "silly", Format: program.KernelCUDA, Code: fake.Image("silly_f32")}), nil
	})
	c, values := call(t, dev, s, dtype.F32, []int64{3, 200})
	c.Size, c.Rows, c.RowExtents = 3, 2, []int64{1, 1, 1, 1}
	for range 2 {
		if err := op.Launch(c); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, c.Args[3].Size)
	if err := errors.Join(s.CopyToHost(got, c.Args[3].Buffer), s.Synchronize()); err != nil {
		t.Fatal(err)
	}
	if grid != [3]uint32{3, 1, 1} || real != 400 || all != 600 || asked != 1 {
		t.Errorf("grid %v, %d of %d elements, code asked for %d times", grid, real, all, asked)
	}
	first := math.Float32frombits(binary.LittleEndian.Uint32(got))
	if want := float32(values[0].At(0)) + float32(values[1].At(0)) + float32(values[2].At(0)); first != want {
		t.Errorf("the first element is %g, want %g", first, want)
	}

	wrong := *c
	wrong.Args = c.Args[:3]
	if err := op.Launch(&wrong); err == nil || !strings.Contains(err.Error(), "3 operands, it takes 4") {
		t.Errorf("three operands: %v", err)
	}
	wrong.Args = append([]device.Tensor{}, c.Args...)
	wrong.Args[1].DType = dtype.F16
	if err := op.Launch(&wrong); err == nil || !strings.Contains(err.Error(), "operand 1 is f16") {
		t.Errorf("another dtype: %v", err)
	}
	if err := s.BeginCapture(device.CaptureThreadLocal); err != nil {
		t.Fatal(err)
	}
	if err := op.Launch(c); !errors.Is(err, device.ErrNotCapturable) {
		t.Errorf("while capturing: %v", err)
	}
	g, err := s.EndCapture()
	if err := errors.Join(err, g.Close(), op.Close()); err != nil {
		t.Fatal(err)
	}
	if err := op.Launch(c); !errors.Is(err, device.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if m := drv.Misuse(); len(m) > 0 {
		t.Errorf("misuse of the driver: %q", m)
	}
}

// The source compiles for sm_80 and sm_90.
func TestCompiles(t *testing.T) {
	c := cudatest.NVRTC(t).Compiler("--std=c++17")
	for _, arch := range []string{"sm_80", "sm_90"} {
		if _, _, err := c.Compile(t.Context(), sillycuda.Source(), "silly.cu", arch); err != nil {
			t.Error(err)
		}
	}
}
