// Command embed is a program outside of pwc's module that embeds it: a model
// made with a builder, an extern op of its own that needs to know where
// sequences start, and a step that is replayed.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"math"
	"os"

	"pwc/compile/host"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// model is y = relu(2x + shift(2x)) over the rows of a step. It is cut at shift.
func model() (*ir.Module, error) {
	b := ir.NewBuilder("embedded")
	rows := ir.TypeOf(dtype.F32, b.Symbol("N", 1, 64, ir.Batch), dim.Const(2))
	b.Extern(&ir.Extern{Name: shiftName, Mut: []bool{false, true}, Split: true})
	f := b.Func("forward")
	x := f.Param("x", rows)
	x = f.Op1("mul", []ir.Value{x, f.Float(2)})
	before := f.Op1("empty_like", []ir.Value{x})
	f.SetLoc("model.shift")
	f.Call(shiftName, []ir.Value{x, before}, nil)
	y := f.Op1("add", []ir.Value{x, f.Latest(before)})
	f.Return(f.Op1("relu", []ir.Value{y}))
	return b.Build()
}

// run makes a step of three rows, the last of which starts a sequence, and
// prints it.
func run(w io.Writer) error {
	ctx := context.Background()
	m, err := model()
	if err != nil {
		return err
	}
	dev := hostdev.Open(hostdev.Options{})
	defer dev.Close()
	b, err := piecewise.New(ctx, m, piecewise.Options{Device: dev, Ops: []device.Op{&shift{dev}},
		Compile: piecewise.CompileOptions{Compiler: pieces.Pipeline{Backend: host.New()}},
		Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4}}})
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.Load(ctx, nil, nil); err != nil {
		return err
	}
	if err := b.Capture(ctx); err != nil {
		return err
	}
	if err := b.Seal(); err != nil {
		return err
	}

	forward := b.Func("forward")
	in, err := forward.Inputs(3)
	if err != nil {
		return err
	}
	x, err := in.Float32s("x")
	if err != nil {
		return err
	}
	copy(x, []float32{1, -1, 10, -20, 100, 100})
	r, err := forward.Run(ctx, in, starts{2})
	if err != nil {
		return err
	}
	n, err := r.At(0).Size()
	if err != nil {
		return err
	}
	y := make([]byte, n)
	if err := r.At(0).CopyTo(y); err != nil {
		return err
	}
	for i := 0; i < len(y); i += 8 {
		fmt.Fprintln(w, float(y[i:]), float(y[i+4:]))
	}
	s := b.Stats()
	fmt.Fprintf(w, "%d replay of %d graphs, padded by %d\n", s.Replays, s.GraphsCaptured, s.PaddedRows)
	return nil
}

func float(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
