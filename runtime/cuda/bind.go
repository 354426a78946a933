package cuda

import (
	"fmt"
	"math"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda/internal/driver"
	"pwc/runtime/device"
)

// The largest grids, the same for every GPU that CUDA 12 knows (CUDA C++
// Programming Guide, "Compute Capabilities").
const (
	maxGridX = math.MaxInt32
	maxGridY = math.MaxUint16 // and z
)

// Bind resolves the program for symbol values: guards, the sizes and alignment
// of what is given, launch dims and the kernels' arguments. What kernels touch
// within what they are given is the compiler's to prove.
func (x *Executable) Bind(symbols []int64, args device.Args) (device.BoundLaunch, error) {
	b, err := x.bind(symbols, args)
	if err != nil {
		return nil, refuse("bind", err)
	}
	return b, nil
}

// binder is the state of one Bind.
type binder struct {
	x      *Executable
	p      *program.Program
	env    program.Env
	plan   *device.Resolved
	out    *bound
	mem    []boundBuffer // by buffer
	extern device.Buffer // scratch of ops
}

// boundBuffer is a buffer's memory: exactly the bytes that the program declares.
type boundBuffer struct {
	ptr driver.Ptr
	buf device.Buffer
}

func (x *Executable) bind(symbols []int64, args device.Args) (*bound, error) {
	if err := x.dev.usable("bind"); err != nil {
		return nil, err
	}
	if x.closed.Load() {
		return nil, device.ErrClosed
	}
	env, err := x.env(symbols)
	if err != nil {
		return nil, err
	}
	for _, g := range x.program.Guards {
		if err := device.CheckGuard(g, env); err != nil {
			return nil, err
		}
	}
	plan, err := x.resolve(env)
	if err != nil {
		return nil, err
	}
	b := &binder{x: x, p: x.program, env: env, plan: plan, out: &bound{exec: x}}
	if err := b.buffers(args); err != nil {
		return nil, err
	}
	b.out.steps = make([]boundStep, len(plan.Steps))
	for i := range plan.Steps {
		s := &plan.Steps[i]
		if err := b.step(s, &b.out.steps[i]); err != nil {
			return nil, fmt.Errorf("step %d: %w", s.Index, err)
		}
	}
	b.out.reach.execs = append(b.out.reach.execs, x)
	b.out.reach.seen = nil
	return b.out, nil
}

// buffers finds the memory of every buffer.
func (b *binder) buffers(args device.Args) error {
	p := b.p
	if len(args.Params) != len(p.Params) || len(args.Results) != len(p.Results) {
		return fmt.Errorf("%d parameters and %d results for a program of %d and %d", len(args.Params), len(args.Results), len(p.Params), len(p.Results))
	}
	for i := range p.Params {
		if err := b.given(p.Params[i].DType, p.Params[i].Shape, args.Params[i]); err != nil {
			return fmt.Errorf("parameter %d: %w", i, err)
		}
	}
	for i := range p.Results {
		r := &p.Results[i]
		if r.Alias >= 0 || r.Same >= 0 {
			continue
		}
		if err := b.given(r.DType, r.Shape, args.Results[i]); err != nil {
			return fmt.Errorf("result %d: %w", i, err)
		}
	}
	if args.Scratch.Size < b.plan.Scratch {
		return fmt.Errorf("scratch of %d bytes, want %d", args.Scratch.Size, b.plan.Scratch)
	}
	b.mem = make([]boundBuffer, len(p.Buffers))
	for i := range p.Buffers {
		if err := b.buffer(i, args); err != nil {
			return fmt.Errorf("buffer %d: %w", i, err)
		}
	}
	if b.plan.Scratch > 0 {
		b.extern = args.Scratch.Slice(b.plan.Extern, b.plan.Scratch-b.plan.Extern)
	}
	return nil
}

// given checks memory that the caller gives for a tensor.
func (b *binder) given(dt dtype.DType, shape []dim.Dim, have device.Buffer) error {
	want, err := program.Bytes(dt, shape, b.env)
	if err != nil {
		return err
	}
	if have.Size < want {
		return fmt.Errorf("%d bytes of memory, want %d", have.Size, want)
	}
	_, _, err = b.x.dev.memory(have)
	return err
}

func (b *binder) buffer(i int, args device.Args) error {
	buf := &b.p.Buffers[i]
	want, err := buf.Bytes(b.env)
	if err != nil {
		return err
	}
	var from device.Buffer
	switch buf.Kind {
	case program.BufferParam:
		from = args.Params[buf.Index]
	case program.BufferResult:
		from = args.Results[buf.Index]
	case program.BufferScratch:
		if want > 0 {
			from = args.Scratch.Slice(b.plan.Offsets[i], want)
		}
	case program.BufferConst:
		from = device.Buffer{Size: int64(len(b.p.Consts[buf.Index]))}
		if from.Size > 0 {
			from.Memory, from.Offset = b.x.consts, b.x.constAt[buf.Index]
		}
	}
	if from.Size < want {
		return fmt.Errorf("%d bytes of memory, want %d", from.Size, want)
	}
	if want == 0 {
		return nil
	}
	from.Size = want
	ptr, m, err := b.x.dev.memory(from)
	if err != nil {
		return err
	}
	if int64(ptr)&(buf.Alignment()-1) != 0 {
		return fmt.Errorf("memory is not aligned: address %#x, want a multiple of %d", ptr, buf.Alignment())
	}
	b.mem[i] = boundBuffer{ptr, from}
	b.out.reach.memory(m)
	return nil
}

func (b *binder) step(s *device.ResolvedStep, out *boundStep) error {
	switch s.Kind {
	case program.StepKernel:
		return b.kernel(s.Step, out)
	case program.StepCopy:
		dst, src := &b.mem[s.Args[0]], &b.mem[s.Args[1]]
		if dst.buf.Size != src.buf.Size {
			return fmt.Errorf("copy of %d bytes over %d", src.buf.Size, dst.buf.Size)
		}
		if overlap(dst.ptr, src.ptr, dst.buf.Size) {
			return device.ErrOverlap
		}
		*out = boundStep{kind: stepCopy, dst: dst.ptr, src: src.ptr, bytes: dst.buf.Size}
	case program.StepFill:
		return b.fill(s.Step, out)
	case program.StepExtern, program.StepLibrary:
		b.op(s, out)
	default:
		return fmt.Errorf("unknown kind %d", s.Kind)
	}
	return nil
}

// fill makes memory commands of a pattern: one for a pattern of 1, 2 or 4 bytes,
// else one for each element of the pattern, over all its repetitions.
func (b *binder) fill(s *program.Step, out *boundStep) error {
	pattern := []byte(s.Pattern())
	dst := &b.mem[s.Args[0]]
	if dst.buf.Size%int64(len(pattern)) != 0 {
		return fmt.Errorf("fill of %d bytes with a pattern of %d", dst.buf.Size, len(pattern))
	}
	pattern = period(pattern)
	width := 4
	for width > 1 && (len(pattern)%width != 0 || int64(dst.ptr)%int64(width) != 0) {
		width /= 2
	}
	*out = boundStep{kind: stepFill, dst: dst.ptr, bytes: dst.buf.Size, width: width}
	for ; len(pattern) > 0; pattern = pattern[width:] {
		var v uint32
		for j := range width {
			v |= uint32(pattern[j]) << (8 * j)
		}
		out.pattern = append(out.pattern, v)
	}
	return nil
}

// period returns the shortest start of a pattern that repeats to all of it.
func period(pattern []byte) []byte {
	n := len(pattern)
	for k := 1; k <= n/2; k++ {
		if n%k == 0 && string(pattern[k:]) == string(pattern[:n-k]) {
			return pattern[:k]
		}
	}
	return pattern
}

func (b *binder) kernel(s *program.Step, out *boundStep) error {
	spec := b.x.launches[s]
	if err := b.launch(s, spec, out); err != nil {
		return fmt.Errorf("kernel %s: %w", spec.name, err)
	}
	return nil
}

// launch evaluates a launch configuration and lays the arguments ready.
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
			return fmt.Errorf("grid %s = %d, it takes 0 to %d", e, n, most)
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
		return fmt.Errorf("%d bytes of dynamic shared memory, it takes 0 to %d", shared, most)
	}
	run.config.Shared = uint32(shared)
	run.attributes(spec.attrs)
	run.arguments(spec.args(len(s.Args)))
	values := run.values[:0]
	for _, a := range s.Args {
		values = append(values, uint64(b.mem[a].ptr))
	}
	for _, e := range spec.dims {
		n, err := e.Eval(b.env)
		if err != nil {
			return err
		}
		values = append(values, uint64(n))
	}
	if spec.faults >= 0 {
		_ = append(values, uint64(b.x.faults.base)+uint64(wordBytes*spec.faults))
	}
	return nil
}

func (b *binder) op(s *device.ResolvedStep, out *boundStep) {
	for j, a := range s.Args {
		s.Tensors[j].Buffer = b.mem[a].buf
	}
	call := &device.OpCall{Args: s.Tensors, Attrs: s.Values, Origin: s.Origin}
	if s.Need > 0 {
		call.Scratch = b.extern.Slice(0, s.Need)
	}
	*out = boundStep{kind: stepOp, op: s.Op, call: call, name: s.Extern}
	if s.Kind == program.StepExtern {
		b.out.calls = append(b.out.calls, call)
	}
}
