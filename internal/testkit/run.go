package testkit

import (
	"errors"

	"pwc/internal/oracle"
	"pwc/ir"
	"pwc/ir/dtype"
	"pwc/ir/interp"
	"pwc/program"
	"pwc/runtime/device"
)

// Outcome contains the results and side effects of a run of a program.
type Outcome struct {
	Results []*interp.Tensor
	Mutated []*interp.Tensor // by parameter; nil: not mutable
	Faults  []int32          // origins of the accesses with an index out of range
}

// Runner runs programs on a device.
type Runner struct {
	Device device.Device
	Stream device.Stream
	Ops    device.OpSet
	// Bare: new memory is not filled. Otherwise it is filled with 0xa5, so that unwritten
	// memory does not equal an expected result.
	Bare bool

	memory []device.Memory
}

// Run runs a program of m, which must have one function. It does not change the inputs.
func (r Runner) Run(p *program.Program, m *ir.Module, in *oracle.Inputs) (out *Outcome, err error) {
	exe, err := r.Device.Load(p, r.Ops)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, exe.Close())
		for _, m := range r.memory {
			err = errors.Join(err, m.Free())
		}
	}()
	symbols := make([]int64, len(p.Symbols))
	for i, s := range p.Symbols {
		symbols[i] = in.Symbols[s]
	}
	args, shapes, err := r.args(p, m, in)
	if err != nil {
		return nil, err
	}
	n, err := exe.ScratchBytes(symbols)
	if err != nil {
		return nil, err
	}
	if args.Scratch, err = r.alloc(n); err != nil {
		return nil, err
	}
	launch, err := exe.Bind(symbols, args)
	if err != nil {
		return nil, err
	}
	if err := r.Stream.Launch(launch); err != nil {
		return nil, err
	}
	return r.outcome(p, m, in, args, shapes)
}

// args allocates the parameters, with the inputs in them, and the results.
func (r *Runner) args(p *program.Program, m *ir.Module, in *oracle.Inputs) (args device.Args, shapes [][]int64, err error) {
	for _, x := range in.All(m) {
		buf, err := r.alloc(int64(len(x.Bytes())))
		if err == nil && buf.Size > 0 {
			err = r.Stream.CopyToDevice(buf, x.Bytes())
		}
		if err != nil {
			return args, nil, err
		}
		args.Params = append(args.Params, buf)
	}
	shapes = make([][]int64, len(p.Results))
	for i, res := range p.Results {
		if shapes[i], err = oracle.Extents(res.Shape, in.Symbols); err != nil {
			return args, nil, err
		}
		elements := int64(1)
		for _, d := range shapes[i] {
			elements *= d
		}
		buf, err := r.alloc(res.DType.Bytes(elements))
		if err != nil {
			return args, nil, err
		}
		args.Results = append(args.Results, buf)
	}
	return args, shapes, nil
}

func (r *Runner) alloc(n int64) (device.Buffer, error) {
	mem, err := r.Device.Alloc(max(n, 1))
	if err != nil {
		return device.Buffer{}, err
	}
	r.memory = append(r.memory, mem)
	buf := device.Buffer{Memory: mem, Size: n}
	if n == 0 || r.Bare {
		return buf, nil
	}
	return buf, r.Stream.Fill(buf, 0xa5)
}

func (r *Runner) outcome(p *program.Program, m *ir.Module, in *oracle.Inputs, args device.Args, shapes [][]int64) (*Outcome, error) {
	out := &Outcome{Mutated: make([]*interp.Tensor, len(p.Params))}
	for i, res := range p.Results {
		buf := args.Results[i]
		if res.Alias >= 0 {
			buf = args.Params[res.Alias]
		} else if res.Same >= 0 {
			buf = args.Results[res.Same]
		}
		x, err := r.read(buf, res.DType, shapes[i])
		if err != nil {
			return nil, err
		}
		out.Results = append(out.Results, x)
	}
	for i, x := range in.All(m) {
		if !p.Params[i].Mut {
			continue
		}
		var err error
		if out.Mutated[i], err = r.read(args.Params[i], x.Type, x.Shape); err != nil {
			return nil, err
		}
	}
	faults, err := r.Device.TakeFaults(r.Stream)
	for _, f := range faults {
		out.Faults = append(out.Faults, f.Origin)
	}
	return out, err
}

func (r *Runner) read(buf device.Buffer, dt dtype.DType, shape []int64) (*interp.Tensor, error) {
	data := make([]byte, buf.Size)
	if buf.Size > 0 {
		if err := r.Stream.CopyToHost(data, buf); err != nil {
			return nil, err
		}
	}
	if err := r.Stream.Synchronize(); err != nil {
		return nil, err
	}
	return interp.FromBytes(dt, shape, data)
}
