package cuda

import (
	"fmt"
	"math"
	"slices"

	"pwc/ir/dim"
	"pwc/program"
	"pwc/runtime/device"
)

// env gives values to the program's symbols and the device's properties.
func (x *Executable) env(symbols []int64) (program.Env, error) {
	names := x.program.Symbols
	if len(symbols) != len(names) {
		return nil, fmt.Errorf("%d values for %d symbols", len(symbols), len(names))
	}
	return func(name string) (int64, bool) {
		for i, s := range names {
			if s == name {
				return symbols[i], true
			}
		}
		v, ok := x.dev.info.Properties[name]
		return v, ok
	}, nil
}

// scratch is where a program's scratch memory goes for some symbol values.
type scratch struct {
	offsets []int64 // of buffers
	extern  int64   // of the memory that ops take in turn
	need    []int64 // of the ops, by step
	total   int64
}

func (x *Executable) scratch(env program.Env) (*scratch, error) {
	offsets, total, err := x.program.ScratchLayout(env)
	if err != nil {
		return nil, err
	}
	sc := &scratch{offsets: offsets, total: total, need: make([]int64, len(x.ops))}
	most := int64(0)
	for i, op := range x.ops {
		if op == nil {
			continue
		}
		args, err := x.tensors(i, env)
		if err != nil {
			return nil, err
		}
		attrs, err := evalAttrs(x.program.Steps[i].Attrs, env)
		if err != nil {
			return nil, err
		}
		n, err := op.ScratchBytes(args, attrs)
		if err != nil {
			return nil, fmt.Errorf("step %d: %s: %w", i, x.program.Steps[i].Extern, err)
		}
		if n < 0 {
			return nil, fmt.Errorf("step %d: %s asks for %d bytes of scratch", i, x.program.Steps[i].Extern, n)
		}
		sc.need[i] = n
		most = max(most, n)
	}
	if most > 0 {
		if total > math.MaxInt64-program.MaxAlign || most > math.MaxInt64-program.MaxAlign-total {
			return nil, program.ErrTooLarge
		}
		sc.extern = (total + program.MaxAlign - 1) &^ (program.MaxAlign - 1)
		sc.total = sc.extern + most
	}
	return sc, nil
}

// tensors returns the operands of an op's step, without memory.
func (x *Executable) tensors(step int, env program.Env) ([]device.Tensor, error) {
	var args []device.Tensor
	for _, a := range x.program.Steps[step].Args {
		b := &x.program.Buffers[a]
		t := device.Tensor{DType: b.DType, Shape: make([]int64, len(b.Shape))}
		for i, e := range b.Shape {
			v, err := e.Eval(env)
			if err != nil {
				return nil, err
			}
			t.Shape[i] = v
		}
		n, err := b.Bytes(env)
		if err != nil {
			return nil, err
		}
		t.Size = n
		args = append(args, t)
	}
	return args, nil
}

// evalAttrs returns attributes with constant dims.
func evalAttrs(attrs []program.Attr, env program.Env) ([]program.Attr, error) {
	out := slices.Clone(attrs)
	for i := range out {
		a := &out[i]
		v, err := a.Dim.Eval(env)
		if err != nil {
			return nil, err
		}
		a.Dim = dim.Const(v)
		a.Dims = slices.Clone(a.Dims)
		for j, d := range a.Dims {
			v, err := d.Eval(env)
			if err != nil {
				return nil, err
			}
			a.Dims[j] = dim.Const(v)
		}
	}
	return out, nil
}

// ScratchBytes returns what Bind wants as scratch: the program's own, and room
// for the op that asks for most.
func (x *Executable) ScratchBytes(symbols []int64) (int64, error) {
	env, err := x.env(symbols)
	if err != nil {
		return 0, refuse("scratch", err)
	}
	sc, err := x.scratch(env)
	if err != nil {
		return 0, refuse("scratch", err)
	}
	return sc.total, nil
}
