package graphs

import (
	"errors"
	"fmt"
	"sync"

	"pwc/ir/dim"
	"pwc/program"
	"pwc/runtime/device"
)

// Program is a compiled function of a module, or a piece of one, which a [Recorder] launches. Its operands are
// the parameters of the [program.Program]: those of the function, then weights, then states.
type Program struct {
	s      *Session
	exec   device.Executable
	prog   *program.Program
	name   string
	makers []*Maker // by result

	aligns   []int64 // by parameter: the alignment of its address
	routines bool    // it calls library routines
	warmMu   sync.Mutex
	warm     map[string]struct{} // symbol values of earlier runs
}

// Load prepares a compiled function for launches. name is the function's, for messages. ops are
// its extern ops.
func (s *Session) Load(p *program.Program, name string, ops ...device.Op) (*Program, error) {
	set := device.OpSet{}
	for _, op := range ops {
		set[op.Signature().Name] = op
	}
	exec, err := s.dev.Load(p, set)
	if err != nil {
		return nil, fmt.Errorf("graphs: loading @%s: %w", name, err)
	}
	out := &Program{s: s, exec: exec, prog: p, name: name, warm: map[string]struct{}{}}
	for i := range p.Results {
		out.makers = append(out.makers, &Maker{Name: fmt.Sprintf("result %d of @%s", i, name), Output: i})
	}
	out.aligns = make([]int64, len(p.Params))
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Kind == program.BufferParam {
			out.aligns[b.Index] = max(out.aligns[b.Index], b.Alignment())
		}
	}
	for range p.Routines() {
		out.routines = true
		s.routines.Store(true)
		break
	}
	return out, nil
}

// Name returns the function's name, without "@".
func (p *Program) Name() string { return p.name }

// Program returns the compiled form.
func (p *Program) Program() *program.Program { return p.prog }

// Close unloads the program. Graphs that contain it must not be replayed any more.
func (p *Program) Close() error { return p.exec.Close() }

// Arg is an operand of [Recorder.Run]: a [Tensor], or a [*Generator] for a parameter with the
// state of a generator.
type Arg interface{ graphArg() }

// TensorArg is a tensor as an operand.
type TensorArg Tensor

func (TensorArg) graphArg()  {}
func (*Generator) graphArg() {}

// Args returns tensors as operands.
func Args(ts ...Tensor) []Arg {
	args := make([]Arg, len(ts))
	for i, t := range ts {
		args[i] = TensorArg(t)
	}
	return args
}

// env is the values of a program's symbols.
type env struct {
	names  []string
	values []int64
	known  []bool
}

func (e *env) lookup(name string) (int64, bool) {
	for i, n := range e.names {
		if n == name {
			return e.values[i], e.known[i]
		}
	}
	return 0, false
}

func (e *env) set(name string, v int64) (fits bool) {
	for i, n := range e.names {
		if n == name {
			if e.known[i] {
				return e.values[i] == v
			}
			e.values[i], e.known[i] = v, true
			return true
		}
	}
	return false
}

// bindSymbols reads symbol values from the operands' shapes and checks every operand against its
// parameter. symbols has values that no shape determines.
func (p *Program) bindSymbols(shapes [][]int64, symbols map[string]int64) (*env, error) {
	e := &env{names: p.prog.Symbols, values: make([]int64, len(p.prog.Symbols)), known: make([]bool, len(p.prog.Symbols))}
	for name, v := range symbols {
		if !e.set(name, v) {
			return nil, fmt.Errorf("%w: @%s has no symbol %q", ErrArguments, p.name, name)
		}
	}
	for i := range p.prog.Params {
		dims := p.prog.Params[i].Shape
		if len(dims) != len(shapes[i]) {
			return nil, fmt.Errorf("%w: operand %d of @%s has shape %v, the parameter %v", ErrArguments, i, p.name, shapes[i], dims)
		}
		for j, d := range dims {
			if name, ok := lone(d); ok {
				e.set(name, shapes[i][j])
			}
		}
	}
	var missing []error
	for i, name := range e.names {
		if !e.known[i] {
			missing = append(missing, fmt.Errorf("%w: no operand of @%s determines symbol %q: give it with Recorder.RunSymbols", ErrArguments, p.name, name))
		}
	}
	if missing != nil {
		return nil, errors.Join(missing...)
	}
	for i := range p.prog.Params {
		for j, d := range p.prog.Params[i].Shape {
			if want, err := d.Eval(e.lookup); err != nil || want != shapes[i][j] {
				return nil, fmt.Errorf("%w: operand %d of @%s has shape %v, the parameter %v (%s is %d)", ErrArguments, i, p.name, shapes[i], p.prog.Params[i].Shape, d, want)
			}
		}
	}
	return e, nil
}

// lone returns the symbol of a size that is a bare symbol.
func lone(d dim.Dim) (string, bool) {
	names := d.Symbols()
	return first(names), len(names) == 1 && d.Equal(dim.Sym(names[0]))
}

func first(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// shapeOf evaluates a shape.
func shapeOf(dims []dim.Dim, e *env) ([]int64, error) {
	shape := make([]int64, len(dims))
	for i, d := range dims {
		n, err := d.Eval(e.lookup)
		if err != nil {
			return nil, err
		}
		shape[i] = n
	}
	return shape, nil
}
