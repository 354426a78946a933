package compile_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"pwc/compile"
	hostbackend "pwc/compile/host"
	"pwc/internal/oracle"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/host"
)

// sillyOp is silly::attention on the host device.
type sillyOp struct{ dev *host.Device }

func (o sillyOp) Signature() device.Signature {
	return device.Signature{Name: "silly::attention", Mut: []bool{false, false, false, true}}
}

func (o sillyOp) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }

func (o sillyOp) Launch(c *device.OpCall) error {
	return c.Stream.(*host.Stream).Call(func() error {
		call := &interp.Call{Name: "silly::attention"}
		for _, a := range c.Args {
			data, err := o.dev.Bytes(a.Buffer)
			if err != nil {
				return err
			}
			x, err := interp.FromBytes(a.DType, a.Shape, data)
			if err != nil {
				return err
			}
			call.Args = append(call.Args, x)
		}
		if err := oracle.SillyAttention(call); err != nil {
			return err
		}
		out, err := o.dev.Bytes(c.Args[3].Buffer)
		if err != nil {
			return err
		}
		copy(out, call.Args[3].Bytes())
		return nil
	})
}

// execute runs a program on the host device and returns its results. Mutable
// parameters and states of b are written.
func execute(p *program.Program, m *ir.Module, b *oracle.Inputs) ([]*interp.Tensor, error) {
	dev := host.Open(host.Options{Workers: 2})
	defer dev.Close()
	stream, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	run := testkit.Runner{Device: dev, Stream: stream, Ops: device.OpSet{"silly::attention": sillyOp{dev}}}
	out, err := run.Run(p, m, b)
	if err != nil {
		return nil, err
	}
	for i, x := range b.All(m) {
		y := out.Mutated[i]
		if y == nil {
			continue
		}
		for j := range x.Len() {
			if x.Type.Float() {
				x.Set(j, y.At(j))
			} else {
				x.SetInt(j, y.Int(j))
			}
		}
	}
	return out.Results, nil
}

// compileHost compiles a module for the host.
func compileHost(t testing.TB, m *ir.Module, s compile.Shape, o compile.Options) *program.Program {
	t.Helper()
	p, err := compile.Compile(context.Background(), m, s, hostbackend.New(), o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// check compiles, runs and compares with the interpreter, within the dtype's
// tolerance. If each is true, it also compares element by element.
func check(m *ir.Module, s compile.Shape, o compile.Options, b *oracle.Inputs, each bool) error {
	p, err := compile.Compile(context.Background(), m, s, hostbackend.New(), o)
	if err != nil {
		return err
	}
	if err := p.Validate(); err != nil {
		return fmt.Errorf("%w\n%s", err, p)
	}
	want, wantMem := b.Clone(), b.Clone()
	expect, err := oracle.Interpret(context.Background(), m, want)
	if err != nil {
		return err
	}
	got, err := execute(p, m, wantMem)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p)
	}
	for i := range expect {
		if each {
			for j := range expect[i].Len() {
				if a, b := got[i].At(j), expect[i].At(j); !near(expect[i].Type, a, b) {
					return fmt.Errorf("result %d, element %d: %v, want %v\n%s", i, j, a, b, p)
				}
			}
		}
		if d := interp.Compare(got[i], expect[i]); !d.Within(tolerance(expect[i].Type)) {
			return fmt.Errorf("result %d: %s\ngot  %v\nwant %v\n%s", i, d, got[i], expect[i], p)
		}
	}
	left, right := wantMem.All(m), want.All(m)
	for i := range left {
		if d := interp.Compare(left[i], right[i]); !d.Within(tolerance(left[i].Type)) {
			return fmt.Errorf("parameter %d after the run: %s\n%s", i, d, p)
		}
	}
	return nil
}

// tolerance is the relative error ‖a−b‖/‖b‖ that the dtype's roundings allow.
func tolerance(dt dtype.DType) float64 {
	switch dt {
	case dtype.F32:
		return 1e-5
	case dtype.F16:
		return 2e-3
	case dtype.BF16:
		return 1.6e-2
	}
	return 0
}

// near reports whether two elements differ by at most half of the tolerance of their
// dtype, or by one or two of its smallest numbers. A NaN is near a NaN; the sign of a zero counts.
func near(dt dtype.DType, a, b float64) bool {
	switch {
	case a != a || b != b:
		return a != a && b != b
	case a == b:
		return a != 0 || math.Signbit(a) == math.Signbit(b)
	}
	// Twice the smallest number of f32, once that of the others: a narrow value is rounded
	// twice, to f32 and then to its dtype.
	least := map[dtype.DType]float64{dtype.F32: 0x1p-148, dtype.BF16: 0x1p-133, dtype.F16: 0x1p-24}[dt]
	return math.Abs(a-b) <= math.Max(tolerance(dt)/2*math.Max(math.Abs(a), math.Abs(b)), least)
}
