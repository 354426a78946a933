package host

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"unsafe"

	"pwc/ir/dim"
	"pwc/program"
	"pwc/program/vec"
	"pwc/runtime/device"
)

// Executable is a loaded program: its kernels decoded and checked, its
// constants in memory, its extern ops found.
type Executable struct {
	dev     *Device
	id      int64
	program *program.Program
	kernels []*vec.Kernel
	consts  []*memory
	ops     []device.Op // by step; nil but for StepExtern
	closed  atomic.Bool

	// faults has one flag for each node whose kernels check positions.
	faults map[int32]*fault
}

// fault is set by kernels that meet a position out of range.
type fault struct {
	dev  *Device
	seen atomic.Bool
}

func (f *fault) set() {
	if !f.seen.Load() {
		f.seen.Store(true)
		f.dev.faults.Store(true)
	}
}

// Load checks a program and makes it ready to bind. Errors name the step.
func (d *Device) Load(p *program.Program, ops device.OpSet) (device.Executable, error) {
	x, err := d.load(p, ops)
	if err != nil {
		return nil, fmt.Errorf("host: load: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.idle("load"); err != nil {
		return nil, err
	}
	d.loads++
	x.id = d.loads
	d.loaded[x] = struct{}{}
	return x, nil
}

func (d *Device) load(p *program.Program, ops device.OpSet) (*Executable, error) {
	if p.Target != Target {
		return nil, fmt.Errorf("the program is for target %q, not %q", p.Target, Target)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	x := &Executable{dev: d, program: p, ops: make([]device.Op, len(p.Steps)), faults: map[int32]*fault{}}
	for i := range p.Kernels {
		k := &p.Kernels[i]
		if k.Format != program.KernelVec {
			return nil, fmt.Errorf("kernel %d (%s) is not a vector program", i, k.Name)
		}
		code, err := vec.Decode(k.Code)
		if err != nil {
			return nil, fmt.Errorf("kernel %d (%s): %w", i, k.Name, err)
		}
		x.kernels = append(x.kernels, code)
		x.addFaults(code)
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		switch s.Kind {
		case program.StepExtern:
			op := ops[s.Extern]
			if op == nil {
				return nil, fmt.Errorf("step %d: no extern op %q was given", i, s.Extern)
			}
			x.ops[i] = op
		case program.StepLibrary:
			return nil, fmt.Errorf("step %d: the host has no library routine %q", i, s.Extern)
		}
	}
	for _, c := range p.Consts {
		data := alignedBytes(int64(len(c)))
		copy(data, c)
		m := &memory{dev: d, size: int64(len(c))}
		m.base.Store(unsafe.SliceData(data))
		x.consts = append(x.consts, m)
	}
	return x, nil
}

// addFaults makes the flags of the nodes whose positions the kernel checks.
func (x *Executable) addFaults(code *vec.Kernel) {
	add := func(origin int32) {
		if x.faults[origin] == nil {
			x.faults[origin] = &fault{dev: x.dev}
		}
	}
	for _, a := range code.Loop.Access {
		if a.Index != nil {
			add(a.Index.Origin)
		}
	}
	if m := code.MatMul; m != nil && m.Select != nil {
		add(m.Select.Origin)
	}
}

// Program returns the program that was loaded.
func (x *Executable) Program() *program.Program { return x.program }

// Close forgets the program. What was bound of it fails with ErrClosed.
func (x *Executable) Close() error {
	if x.closed.Swap(true) {
		return fmt.Errorf("host: close of a program: %w", device.ErrClosed)
	}
	x.dev.mu.Lock()
	delete(x.dev.loaded, x)
	x.dev.mu.Unlock()
	return nil
}

func (x *Executable) takeFaults(out []device.IndexFault) []device.IndexFault {
	for origin, f := range x.faults {
		if f.seen.Swap(false) {
			out = append(out, device.IndexFault{Executable: x, Origin: origin})
		}
	}
	return out
}

// sortFaults orders faults by program, in the order of loading, and node.
func sortFaults(list []device.IndexFault) {
	slices.SortFunc(list, func(a, b device.IndexFault) int {
		return cmp.Or(cmp.Compare(a.Executable.(*Executable).id, b.Executable.(*Executable).id), cmp.Compare(a.Origin, b.Origin))
	})
}

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
	extern  int64   // of the memory that extern ops take in turn
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

// tensors returns the operands of an extern step, without memory.
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
// for the extern op that asks for most.
func (x *Executable) ScratchBytes(symbols []int64) (int64, error) {
	env, err := x.env(symbols)
	if err != nil {
		return 0, fmt.Errorf("host: scratch: %w", err)
	}
	sc, err := x.scratch(env)
	if err != nil {
		return 0, fmt.Errorf("host: scratch: %w", err)
	}
	return sc.total, nil
}

var errUnaligned = errors.New("memory is not aligned")
