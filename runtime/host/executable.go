package host

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"pwc/program"
	"pwc/program/vec"
	"pwc/runtime/device"
)

// Executable is a loaded program: its decoded and checked kernels, its constants in
// memory, and its extern ops.
type Executable struct {
	dev     *Device
	id      int64
	program *program.Program
	kernels []*vec.Kernel
	consts  []*memory
	ops     device.OpSet
	closed  atomic.Bool

	// faults has one flag for each node whose kernels check indices.
	faults  map[int32]*fault
	faulted atomic.Bool // a flag may be set
}

// fault is set by kernels that meet an index out of range.
type fault struct {
	exec *Executable
	seen atomic.Bool
}

func (f *fault) set() {
	if !f.seen.Load() {
		f.seen.Store(true)
		f.exec.faulted.Store(true)
	}
}

// Load checks a program and makes it ready to bind. Errors of a kernel or step name it.
// [device.Captures.Idle] says when a capture forbids it.
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
	if p == nil {
		return nil, errors.New("no program is given")
	}
	if p.Target != Target {
		return nil, fmt.Errorf("the program is for target %q; this device runs programs for %q", p.Target, Target)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	x := &Executable{dev: d, program: p, ops: ops, faults: map[int32]*fault{}}
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
	for i, s := range p.Required() {
		switch s.Kind {
		case program.StepExtern:
			if ops[s.Extern] == nil {
				return nil, fmt.Errorf("step %d: no extern op %q was given", i, s.Extern)
			}
		case program.StepLibrary:
			if d.Libraries()[s.Extern] == nil {
				return nil, fmt.Errorf("step %d: the device has no library routine %q: Device.AddLibrary gives it one", i, s.Extern)
			}
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

// addFaults makes the flags of the nodes whose indices the kernel checks.
func (x *Executable) addFaults(code *vec.Kernel) {
	add := func(origin int32) {
		if x.faults[origin] == nil {
			x.faults[origin] = &fault{exec: x}
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

// Close closes the program. Launches that are bound to it fail with ErrClosed from then on.
func (x *Executable) Close() error {
	if x.closed.Swap(true) {
		return fmt.Errorf("host: close of a program: %w", device.ErrClosed)
	}
	x.dev.mu.Lock()
	delete(x.dev.loaded, x)
	x.dev.mu.Unlock()
	return nil
}

func (x *Executable) takeFaults(out []device.IndexError) []device.IndexError {
	if !x.faulted.Swap(false) {
		return out
	}
	for origin, f := range x.faults {
		if f.seen.Swap(false) {
			out = append(out, device.IndexError{Executable: x, Origin: origin})
		}
	}
	return out
}

// flagged appends the nodes whose flags are set.
func (x *Executable) flagged(out []device.IndexError) []device.IndexError {
	if !x.faulted.Load() {
		return out
	}
	for origin, f := range x.faults {
		if f.seen.Load() {
			out = append(out, device.IndexError{Executable: x, Origin: origin})
		}
	}
	return out
}

// sortFaults orders faults by program, in the order of loading, and node.
func sortFaults(list []device.IndexError) {
	slices.SortFunc(list, func(a, b device.IndexError) int {
		return cmp.Or(cmp.Compare(a.Executable.(*Executable).id, b.Executable.(*Executable).id), cmp.Compare(a.Origin, b.Origin))
	})
}

// ScratchBytes implements [device.Executable].
func (x *Executable) ScratchBytes(symbols []int64) (int64, error) {
	n, err := device.ScratchBytes(x.program, symbols, x.dev.info.Properties, x.ops, x.dev.Libraries())
	if err != nil {
		return 0, fmt.Errorf("host: scratch: %w", err)
	}
	return n, nil
}

var errUnaligned = errors.New("memory is not aligned")
