// Package cuda runs the demonstration op "silly::attention" (package silly) on
// NVIDIA GPUs. As on the host it is never captured.
package cuda

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"sync"

	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
	"pwc/silly"
)

//go:embed silly.cu
var source string

// Source returns the CUDA C of the op's kernels: C++17 without headers.
func Source() string { return source }

// Op is the op on one GPU. It may be used by several goroutines.
type Op struct {
	dev  *cuda.Device
	code func(ctx context.Context) (*program.Program, error)

	mu     sync.Mutex
	module *cuda.Module
	calls  map[dtype.DType]*cuda.KernelCall
	closed bool
}

var _ device.Op = (*Op)(nil)

// threads is the number of threads in a block.
const threads = 256

// New returns the op for a device. The first launch calls code, which must return a program that
// consists of the compiled [Source]. Close the op before the device.
func New(dev *cuda.Device, code func(ctx context.Context) (*program.Program, error)) *Op {
	return &Op{dev: dev, code: code, calls: map[dtype.DType]*cuda.KernelCall{}}
}

// Signature returns the op's declaration.
func (o *Op) Signature() device.Signature {
	return device.Signature{Name: silly.Name, Mut: []bool{false, false, false, true}, Version: "1"}
}

// ScratchBytes returns 0.
func (o *Op) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

// Launch enqueues out = q + k + v, four tensors of one shape and one of the dtypes
// f32, f16 and bf16. Padded rows become zero. While the stream captures the error
// is device.ErrNotCapturable.
func (o *Op) Launch(c *device.OpCall) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", c.Loc, silly.Name, fmt.Errorf(format, args...))
	}
	stream, ok := c.Stream.(*cuda.Stream)
	switch {
	case !ok:
		return fail("%w", device.ErrForeignStream)
	case stream.Capturing():
		return fail("%w", device.ErrNotCapturable)
	case len(c.Args) != 4:
		return fail("%d operands, it takes 4", len(c.Args))
	}
	for i := range c.Args {
		if a := &c.Args[i]; a.DType != c.Args[0].DType || !slices.Equal(a.Shape, c.Args[0].Shape) {
			return fail("operand %d is %s%v, the first is %s%v", i, a.DType, a.Shape, c.Args[0].DType, c.Args[0].Shape)
		}
	}
	all := int64(1)
	for _, n := range c.Args[0].Shape {
		all *= n
	}
	real := all
	if s := c.Args[3].Shape; len(s) > 0 && s[0] > 0 {
		real = all / s[0] * c.RealExtent(3)
	}
	if all == 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	call, err := o.call(c.Args[0].DType)
	if err != nil {
		return fail("%w", err)
	}
	for i := range c.Args {
		if err := call.SetBuffer(i, c.Args[i].Buffer); err != nil {
			return fail("%w", err)
		}
	}
	call.SetArg(4, uint64(real))
	call.SetArg(5, uint64(all))
	blocks := (all + threads - 1) / threads
	if blocks > math.MaxInt32 {
		return fail("operands of %d elements, at most %d are possible", all, int64(math.MaxInt32)*threads)
	}
	call.Grid, call.Block = [3]uint32{uint32(blocks), 1, 1}, [3]uint32{threads, 1, 1}
	return stream.LaunchKernel(call)
}

// call returns the kernel for a dtype, loaded.
func (o *Op) call(dt dtype.DType) (*cuda.KernelCall, error) {
	if o.closed {
		return nil, device.ErrClosed
	}
	if c := o.calls[dt]; c != nil {
		return c, nil
	}
	if dt != dtype.F32 && dt != dtype.F16 && dt != dtype.BF16 {
		return nil, fmt.Errorf("operands are %s, it takes f32, f16 and bf16", dt)
	}
	if o.module == nil {
		code, err := o.code(context.Background())
		if err != nil {
			return nil, err
		}
		if o.module, err = o.dev.LoadModule(code); err != nil {
			return nil, err
		}
	}
	f, err := o.module.Function("silly_" + dt.String())
	if err != nil {
		return nil, err
	}
	c, err := f.NewCall(6, cuda.LaunchOptions{})
	if err == nil {
		o.calls[dt] = c
	}
	return c, err
}

// Close frees the op's memory on the device. A second call does nothing.
func (o *Op) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if o.module == nil {
		return nil
	}
	m := o.module
	o.module = nil
	return m.Close()
}
