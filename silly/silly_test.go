package silly_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/runtime/device"
	"pwc/runtime/host"
	"pwc/silly"
)

func newCall(t *testing.T, dt dtype.DType, q, k, v []float64) (*silly.Op, *device.OpCall) {
	t.Helper()
	dev := host.Open(host.Options{Workers: 1})
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(stream.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	n := int64(len(q))
	c := &device.OpCall{Stream: stream, Size: n, Rows: n, Loc: "here"}
	for _, values := range [][]float64{q, k, v, make([]float64, n)} {
		x, err := interp.FromFloat64s(dt, []int64{n}, values)
		if err != nil {
			t.Fatal(err)
		}
		m, err := dev.Alloc(dt.Bytes(n))
		if err != nil {
			t.Fatal(err)
		}
		b := device.Buffer{Memory: m, Size: m.Size()}
		if err := stream.CopyToDevice(b, x.Bytes()); err != nil {
			t.Fatal(err)
		}
		c.Args = append(c.Args, device.Tensor{Buffer: b, DType: dt, Shape: []int64{n}})
	}
	return silly.New(dev), c
}

func result(t *testing.T, c *device.OpCall) *interp.Tensor {
	t.Helper()
	data := make([]byte, c.Args[3].Size)
	if err := c.Stream.CopyToHost(data, c.Args[3].Buffer); err != nil {
		t.Fatal(err)
	}
	x, err := interp.FromBytes(c.Args[3].DType, c.Args[3].Shape, data)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestSum(t *testing.T) {
	// 256 + 1 + 1: bf16 rounds 256 + 1 to 256, so two roundings lose both ones. One rounding keeps them.
	for dt, want := range map[dtype.DType]float64{dtype.F32: 258, dtype.F16: 258, dtype.BF16: 258} {
		op, c := newCall(t, dt, []float64{256, 2}, []float64{1, 3}, []float64{1, 4})
		for range 2 {
			if err := op.Launch(c); err != nil {
				t.Fatal(err)
			}
		}
		if got := result(t, c).Float64s(); got[0] != want || got[1] != 9 {
			t.Errorf("%s: %v, want [%v 9]", dt, got, want)
		}
		if op.Calls() != 2 {
			t.Errorf("%d calls, want 2", op.Calls())
		}
	}
}

func TestPaddedRowsAreZero(t *testing.T) {
	op, c := newCall(t, dtype.F32, []float64{1, 2, 3}, []float64{1, 2, 3}, []float64{1, 2, 3})
	if err := c.Stream.Fill(c.Args[3].Buffer, 0x5a); err != nil {
		t.Fatal(err)
	}
	c.Rows, c.RowExtents = 1, []int64{1, 1, 1, 1}
	if err := op.Launch(c); err != nil {
		t.Fatal(err)
	}
	if got := result(t, c).Float64s(); got[0] != 3 || got[1] != 0 || got[2] != 0 {
		t.Errorf("%v, want [3 0 0]", got)
	}
	c.RowExtents = []int64{0, 0, 0, 0} // no operand has a row dimension, although each has as many elements as the step has rows
	if err := op.Launch(c); err != nil {
		t.Fatal(err)
	}
	if got := result(t, c).Float64s(); got[0] != 3 || got[1] != 6 || got[2] != 9 {
		t.Errorf("%v, want [3 6 9]", got)
	}
}

func TestErrors(t *testing.T) {
	for want, change := range map[string]func(c *device.OpCall){
		"3 operands, it takes 4":           func(c *device.OpCall) { c.Args = c.Args[:3] },
		"operand 1 is f16[2]":              func(c *device.OpCall) { c.Args[1].DType = dtype.F16 },
		"operand 2 is f32[1]":              func(c *device.OpCall) { c.Args[2].Shape = []int64{1} },
		"operand 3: memory of 4 bytes for": func(c *device.OpCall) { c.Args[3].Size = 4 },
		"memory is not of this device":     func(c *device.OpCall) { c.Args[0].Memory = other{} },
		"i32 is not one of f32, f": func(c *device.OpCall) {
			for i := range c.Args {
				c.Args[i].DType = dtype.I32
			}
		},
	} {
		op, c := newCall(t, dtype.F32, []float64{1, 2}, []float64{1, 2}, []float64{1, 2})
		change(c)
		if err := op.Launch(c); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "here: ") {
			t.Errorf("%v, want %q in it, behind the call's loc", err, want)
		}
		if op.Calls() != 0 {
			t.Errorf("%s: a call that failed is counted", want)
		}
	}
}

type other struct{ device.Memory }

func TestNotCaptured(t *testing.T) {
	op, c := newCall(t, dtype.F32, []float64{1}, []float64{1}, []float64{1})
	if err := c.Stream.BeginCapture(device.CaptureThreadLocal); err != nil {
		t.Fatal(err)
	}
	if err := op.Launch(c); !errors.Is(err, device.ErrNotCapturable) {
		t.Errorf("%v, want ErrNotCapturable", err)
	}
	g, err := c.Stream.EndCapture()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if op.Signature().Capture || op.Calls() != 0 {
		t.Error("the op says that it can be captured, or ran")
	}
}

func TestAllocations(t *testing.T) {
	op, c := newCall(t, dtype.F32, []float64{1, 2}, []float64{1, 2}, []float64{1, 2})
	if n := testing.AllocsPerRun(10, func() {
		if err := op.Launch(c); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a launch", n)
	}
}

func TestReference(t *testing.T) {
	op, c := newCall(t, dtype.BF16, []float64{1.5, 2}, []float64{256, 2}, []float64{1, -2})
	if err := op.Launch(c); err != nil {
		t.Fatal(err)
	}
	call := &interp.Call{Name: silly.Name}
	for _, a := range c.Args {
		data := make([]byte, a.Size)
		if err := c.Stream.CopyToHost(data, a.Buffer); err != nil {
			t.Fatal(err)
		}
		x, err := interp.FromBytes(a.DType, a.Shape, data)
		if err != nil {
			t.Fatal(err)
		}
		call.Args = append(call.Args, x)
	}
	call.Args[3].Set(0, 0)
	if err := silly.Reference(call); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(call.Args[3].Bytes(), result(t, c).Bytes()) {
		t.Errorf("reference %v, op %v", call.Args[3].Float64s(), result(t, c).Float64s())
	}
	call.Args = call.Args[:2]
	if err := silly.Reference(call); err == nil {
		t.Error("two operands are accepted")
	}
}
