package cuda

import (
	"fmt"
	"math"

	"pwc/internal/cuda/driver"
	"pwc/program"
	"pwc/runtime/device"
)

// The largest grids, the same for every GPU that CUDA 12 knows (CUDA C++
// Programming Guide, "Compute Capabilities").
const (
	maxGridX = math.MaxInt32
	maxGridY = math.MaxUint16 // and z
)

// Bind checks guards, sizes and alignment, and evaluates launch dims and the arguments of
// kernels for symbol values. It compares a kernel's dims with the sizes of its buffers. It
// cannot check which memory the machine code uses: load only programs of a trusted maker.
func (x *Executable) Bind(symbols []int64, args device.Args) (device.BoundLaunch, error) {
	b, err := x.bind(symbols, args)
	if err != nil {
		return nil, refuse("bind", err)
	}
	return b, nil
}

// binder is the state of one Bind.
type binder struct {
	x    *Executable
	p    *program.Program
	env  program.Env
	plan *device.Resolved
	out  *bound

	assigned *device.Assigned
	at       []driver.Ptr // by buffer
}

func (x *Executable) bind(symbols []int64, args device.Args) (*bound, error) {
	if err := x.dev.usable("bind"); err != nil {
		return nil, err
	}
	if x.closed.Load() {
		return nil, device.ErrClosed
	}
	env, plan, err := device.Specialize(x.program, symbols, x.dev.Info().Properties, x.ops, x.dev.Libraries())
	if err != nil {
		return nil, err
	}
	b := &binder{x: x, p: x.program, env: env, plan: plan, out: &bound{exec: x}}
	if err := b.buffers(args); err != nil {
		return nil, err
	}
	b.out.steps = make([]boundStep, len(plan.Steps))
	if err := plan.EachStep(func(i int, s *device.ResolvedStep) error { return b.step(s, &b.out.steps[i]) }); err != nil {
		return nil, err
	}
	b.out.reach.execs = append(b.out.reach.execs, x)
	b.out.reach.seen = nil
	return b.out, nil
}

// buffers finds the memory of every buffer.
func (b *binder) buffers(args device.Args) error {
	m, err := b.plan.Assign(b.p, b.env, args, func(i int32) device.Buffer {
		c := device.Buffer{Size: int64(len(b.p.Consts[i]))}
		if c.Size > 0 {
			c.Memory, c.Offset = b.x.consts, b.x.constAt[i]
		}
		return c
	}, b.x.dev.aligned)
	if err != nil {
		return err
	}
	b.assigned, b.out.assigned = m, m
	b.at = make([]driver.Ptr, len(m.Buffers))
	for i, buf := range m.Buffers {
		p, mem, err := b.x.dev.memory(buf)
		if err != nil {
			return err
		}
		b.at[i] = p
		b.out.reach.memory(mem)
	}
	return nil
}

// aligned returns an error if memory is not the device's, or not aligned.
func (d *Device) aligned(b device.Buffer, align int64) error {
	p, _, err := d.memory(b)
	if err == nil && int64(p)&(align-1) != 0 {
		err = fmt.Errorf("memory is not aligned: address %#x, want a multiple of %d", p, align)
	}
	return err
}

func (b *binder) step(s *device.ResolvedStep, out *boundStep) (err error) {
	switch s.Kind {
	case program.StepKernel:
		err = b.kernel(s.Step, out)
	case program.StepExtern, program.StepLibrary:
		b.op(s, out)
	default:
		return fmt.Errorf("unknown kind %d", s.Kind)
	}
	out.of, out.index = s.Step, s.Index
	return err
}

func (b *binder) kernel(s *program.Step, out *boundStep) error {
	spec := b.x.launches[s]
	if err := b.launch(s, spec, out); err != nil {
		return fmt.Errorf("kernel %s: %w", spec.name, err)
	}
	return nil
}

// launch evaluates a launch configuration and prepares the arguments.
func (b *binder) launch(s *program.Step, spec *launchSpec, out *boundStep) error {
	run := &prepared{function: spec.f.handle}
	*out = boundStep{kind: stepKernel, kernel: run, name: spec.name}
	for j, e := range spec.launch.Grid {
		n, err := e.Eval(b.env)
		if err != nil {
			return err
		}
		most := int64(maxGridY)
		if j == 0 {
			most = maxGridX
		}
		switch {
		case n < 0 || n > most:
			return fmt.Errorf("grid %s = %d, want 0 to %d", e, n, most)
		case n == 0:
			out.kernel = nil // nothing to do
		}
		run.config.Grid[j] = uint32(n)
		run.config.Block[j] = uint32(spec.launch.Block[j])
	}
	shared, err := spec.launch.Shared.Eval(b.env)
	if err != nil {
		return err
	}
	if most := b.x.dev.maxShared(spec.f); shared < 0 || shared > most {
		return fmt.Errorf("%d bytes of dynamic shared memory, want 0 to %d", shared, most)
	}
	run.config.Shared = uint32(shared)
	run.attributes(spec.attrs)
	run.arguments(spec.args(len(s.Args)))
	values := run.values[:0]
	for _, a := range s.Args {
		values = append(values, uint64(b.at[a]))
	}
	most := b.mostElements(s)
	for i, e := range spec.dims {
		n, err := e.Eval(b.env)
		if err != nil {
			return err
		}
		if out.kernel != nil && n > most && (spec.free == nil || !spec.free[i]) {
			return fmt.Errorf("dim %d, %s = %d, is more than the %d elements of the largest buffer that it is given; attribute %s lists dims that buffers need not bound", i, e, n, most, AttrFree)
		}
		values = append(values, uint64(n))
	}
	if spec.faults >= 0 {
		values = append(values, uint64(b.x.faults.base)+uint64(wordBytes*spec.faults))
	}
	_ = append(values, spec.peers.params...)
	out.launches = spec.peers.launches
	return nil
}

// mostElements returns the elements of the largest of a step's buffers, as bound.
func (b *binder) mostElements(s *program.Step) int64 {
	most := int64(0)
	for _, a := range s.Args {
		n := b.assigned.Buffers[a].Size
		if bits := int64(b.p.Buffers[a].DType.Bits()); bits >= 8 {
			n /= bits / 8
		} else {
			n *= 8 / bits // does not overflow, since the buffer exists
		}
		most = max(most, n)
	}
	return most
}

func (b *binder) op(s *device.ResolvedStep, out *boundStep) {
	*out = boundStep{kind: stepOp, op: s.Op, call: b.assigned.Call(s), name: s.Extern}
	if s.Kind == program.StepExtern {
		b.out.calls = append(b.out.calls, out.call)
	}
}
