// Package silly is the demonstration op "silly::attention", vLLM's toy for
// testing piecewise compilation (tests/compile/silly_attention.py):
//
//	op "silly::attention"(tensor, tensor, tensor, mut tensor) split
//
// It writes q + k + v into its last operand and is never captured. This package runs it on
// the host device and counts its calls there; pwc/silly/cuda runs it on NVIDIA GPUs.
package silly

import (
	"fmt"
	"slices"
	"sync/atomic"

	"pwc/internal/elements"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// Name is the op's full name.
const Name = "silly::attention"

// Op is the op on one host device.
type Op struct {
	dev   *host.Device
	calls atomic.Int64
}

// New returns the op for a device, with a count of zero.
func New(dev *host.Device) *Op { return &Op{dev: dev} }

var _ device.Op = (*Op)(nil)

// Calls returns the number of launches without an error. Any goroutine may call it.
func (o *Op) Calls() int64 { return o.calls.Load() }

// Signature returns the op's declaration.
func (o *Op) Signature() device.Signature {
	return device.Signature{Name: Name, Mut: []bool{false, false, false, true}, Version: "1"}
}

// ScratchBytes returns 0.
func (o *Op) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

// Launch computes out = q + k + v, four tensors of one shape and one of the
// dtypes f32, f16 and bf16. Padded rows become zero. While the stream captures
// the error is device.ErrNotCapturable.
func (o *Op) Launch(c *device.OpCall) error {
	if c.Stream.Capturing() {
		return fmt.Errorf("%s: %s: %w", c.Loc, Name, device.ErrNotCapturable)
	}
	if len(c.Args) != 4 {
		return fmt.Errorf("%s: %s: %d operands, it takes 4", c.Loc, Name, len(c.Args))
	}
	var t [4]elements.Slice
	for i := range c.Args {
		a := &c.Args[i]
		if a.DType != c.Args[0].DType || !slices.Equal(a.Shape, c.Args[0].Shape) {
			return fmt.Errorf("%s: %s: operand %d is %s%v, the first is %s%v", c.Loc, Name, i, a.DType, a.Shape, c.Args[0].DType, c.Args[0].Shape)
		}
		b, err := o.dev.Bytes(a.Buffer)
		if err == nil {
			t[i], err = elements.View(a, b)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: operand %d: %w", c.Loc, Name, i, err)
		}
	}
	o.calls.Add(1)
	all := 1
	for _, n := range c.Args[0].Shape {
		all *= int(n)
	}
	real := all
	if s := c.Args[3].Shape; len(s) > 0 && s[0] > 0 {
		real = all / int(s[0]) * int(c.RealExtent(3))
	}
	var q, k, v [64]float32
	for at := 0; at < real; at += len(q) {
		n := min(len(q), real-at)
		t[0].Load(q[:n], at)
		t[1].Load(k[:n], at)
		t[2].Load(v[:n], at)
		for i := range n {
			q[i] = float32(c.Args[0].DType.Round(float64(q[i]) + float64(k[i]) + float64(v[i])))
		}
		t[3].Store(at, q[:n])
	}
	t[3].Zero(real, all)
	return nil
}

// Reference is the op for the reference interpreter.
func Reference(c *interp.Call) error {
	if len(c.Args) != 4 {
		return fmt.Errorf("%s: %d operands, it takes 4", Name, len(c.Args))
	}
	q, k, v, out := c.Args[0], c.Args[1], c.Args[2], c.Args[3]
	if out.Type != dtype.F32 && out.Type != dtype.F16 && out.Type != dtype.BF16 || k.Len() != q.Len() || v.Len() != q.Len() || out.Len() != q.Len() {
		return fmt.Errorf("%s: operands are %s, %s, %s and %s", Name, q, k, v, out)
	}
	for i := range q.Len() {
		out.Set(i, q.At(i)+k.At(i)+v.At(i))
	}
	return nil
}
