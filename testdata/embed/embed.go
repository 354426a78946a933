// Package embed is a program of its own that embeds pwc: all that a runner in Go
// needs to compile a module, capture it and replay it.
package embed

import (
	"context"
	"encoding/binary"
	"errors"
	"math"

	"pwc/build"
	compilehost "pwc/compile/host"
	"pwc/ir"
	"pwc/piecewise"
	"pwc/runtime/device"
	"pwc/runtime/host"
	"pwc/silly"
)

// Run compiles the module of a text, captures it for sizes, and runs @forward on
// x, f32[N], once.
func Run(ctx context.Context, text []byte, sizes []int64, x []float32) (y []float32, stats piecewise.Stats, err error) {
	m, err := ir.Parse("module.ir", text)
	if err != nil {
		return nil, stats, err
	}
	dev := host.Open(host.Options{})
	defer func() { err = errors.Join(err, dev.Close()) }()
	b, err := piecewise.New(ctx, m, piecewise.Options{
		Device: dev, Target: build.Pipeline{Backend: compilehost.New()},
		Ops: []device.Op{silly.New(dev)}, Mode: piecewise.Piecewise, CaptureSizes: sizes,
	})
	if err != nil {
		return nil, stats, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := errors.Join(b.Load(ctx, nil, nil), b.Capture(ctx), b.Seal()); err != nil {
		return nil, stats, err
	}
	f := b.Func("forward")
	in, err := f.Inputs(int64(len(x)))
	if err != nil {
		return nil, stats, err
	}
	buf, err := in.Float32s("x")
	if err != nil {
		return nil, stats, err
	}
	copy(buf, x)
	r, err := f.Run(ctx, in, nil)
	if err != nil {
		return nil, stats, err
	}
	data := make([]byte, 4*len(x))
	if err := r.At(0).CopyTo(data); err != nil {
		return nil, stats, err
	}
	for i := range x {
		y = append(y, math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
	}
	return y, b.Stats(), nil
}
