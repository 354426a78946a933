package device

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"pwc/ir/dim"
	"pwc/program"
)

// ErrDeclined is what an op's ScratchBytes returns, wrapped with the reason, for
// a call that it does not take: a choice of the program goes on to its next
// variant.
var ErrDeclined = errors.New("device: the routine does not take this call")

// Resolved is a program for some symbol values: the steps that run, and where
// scratch memory lies.
type Resolved struct {
	Steps   []ResolvedStep
	Offsets []int64 // of scratch buffers, by buffer
	Extern  int64   // where the memory starts that ops take in turn
	Scratch int64   // bytes of all scratch memory; Bind wants as many

	// Declined has the variants that would have been taken but for a library
	// routine that is not there or does not take the call.
	Declined []Declined
}

// ResolvedStep is a step that runs: one of the program's, or of the variant that
// was chosen.
type ResolvedStep struct {
	*program.Step
	Index int // of the program's step that it is or belongs to

	// Of extern ops and library routines.
	Op      Op
	Tensors []Tensor // operands, without memory
	Values  []program.Attr
	Need    int64 // scratch memory that the op asks for, bytes
}

// Declined is a variant that was not taken for want of a library routine.
type Declined struct {
	Step    int
	Library string
	Missing bool // the device does not have it; else it does not take the call
	Reason  error
}

// Resolve makes a program's choices for symbol values and plans its scratch
// memory. It reads no memory: what it says of a device holds before a program is
// loaded. An extern op that is not among ops, which Load refuses, asks for no
// memory; a library routine that is not there is an error, unless another variant
// does without.
func Resolve(p *program.Program, env program.Env, ops, libraries OpSet) (*Resolved, error) {
	r := &Resolved{Steps: make([]ResolvedStep, 0, len(p.Steps))}
	for i := range p.Steps {
		s := &p.Steps[i]
		err := error(nil)
		if s.Kind == program.StepChoice {
			err = r.choose(p, i, env, libraries)
		} else {
			err = r.step(p, i, s, env, ops, libraries)
		}
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
	}
	var err error
	if r.Offsets, r.Scratch, err = p.ScratchLayout(env); err != nil {
		return nil, err
	}
	most := int64(0)
	for i := range r.Steps {
		most = max(most, r.Steps[i].Need)
	}
	if most > 0 {
		if r.Scratch > math.MaxInt64-program.MaxAlign || most > math.MaxInt64-program.MaxAlign-r.Scratch {
			return nil, program.ErrTooLarge
		}
		r.Extern = (r.Scratch + program.MaxAlign - 1) &^ (program.MaxAlign - 1)
		r.Scratch = r.Extern + most
	}
	return r, nil
}

// choose appends the steps of the variant that runs.
func (r *Resolved) choose(p *program.Program, i int, env program.Env, libraries OpSet) error {
	before := len(r.Steps)
variants:
	for j := range p.Steps[i].Variants {
		v := &p.Steps[i].Variants[j]
		if ok, err := Holds(v, env); err != nil {
			return err
		} else if !ok {
			continue
		}
		for n := range v.Steps {
			s := &v.Steps[n]
			if err := r.step(p, i, s, env, nil, libraries); errors.Is(err, ErrDeclined) {
				r.Declined = append(r.Declined, Declined{i, s.Extern, libraries[s.Extern] == nil, err})
				r.Steps = r.Steps[:before]
				continue variants
			} else if err != nil {
				return err
			}
		}
		return nil
	}
	return errors.New("no variant is for these sizes")
}

// step appends a step that is no choice.
func (r *Resolved) step(p *program.Program, i int, s *program.Step, env program.Env, ops, libraries OpSet) error {
	out := ResolvedStep{Step: s, Index: i}
	switch s.Kind {
	case program.StepExtern:
		out.Op = ops[s.Extern]
	case program.StepLibrary:
		if out.Op = libraries[s.Extern]; out.Op == nil {
			return fmt.Errorf("%w: the device has no library routine %q", ErrDeclined, s.Extern)
		}
	}
	if out.Op != nil {
		if err := out.op(p, env); err != nil {
			return fmt.Errorf("%s: %w", s.Extern, err)
		}
	}
	r.Steps = append(r.Steps, out)
	return nil
}

// operands finds the operands and attributes of an op.
func (s *ResolvedStep) operands(p *program.Program, env program.Env) (err error) {
	for _, a := range s.Args {
		b := &p.Buffers[a]
		t := Tensor{DType: b.DType, Shape: make([]int64, len(b.Shape))}
		for i, e := range b.Shape {
			v, err := e.Eval(env)
			if err != nil {
				return err
			}
			t.Shape[i] = v
		}
		n, err := b.Bytes(env)
		if err != nil {
			return err
		}
		t.Size = n
		s.Tensors = append(s.Tensors, t)
	}
	s.Values, err = evalAttrs(s.Attrs, env)
	return err
}

// op finds the operands of an op and asks it for its scratch memory.
func (s *ResolvedStep) op(p *program.Program, env program.Env) error {
	err := s.operands(p, env)
	if err != nil {
		return err
	}
	if s.Need, err = s.Op.ScratchBytes(s.Tensors, s.Values); err != nil {
		return err
	}
	if s.Need < 0 {
		return fmt.Errorf("it asks for %d bytes of scratch", s.Need)
	}
	return nil
}

// Call returns a library routine's step of a program with its operands and
// attributes for symbol values, whether or not a device has the routine.
func Call(p *program.Program, index int, s *program.Step, env program.Env) (*ResolvedStep, error) {
	out := &ResolvedStep{Step: s, Index: index}
	if err := out.operands(p, env); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Extern, err)
	}
	return out, nil
}

// Holds reports whether a variant is for the sizes, and for the device.
func Holds(v *program.Variant, env program.Env) (bool, error) {
	if !ForDevice(v, env) {
		return false, nil
	}
	err := CheckGuard(v.Guard, env)
	if errors.Is(err, ErrGuard) {
		return false, nil
	}
	return err == nil, err
}

// ForDevice reports whether a variant is for the device whose properties env has. One
// without a property that the variant asks for is none of those.
func ForDevice(v *program.Variant, env program.Env) bool { return CheckGuard(v.Device, env) == nil }

// CheckGuard returns a [GuardError] if a constraint does not hold.
func CheckGuard(g program.Guard, env program.Env) error {
	v, err := g.Expr.Eval(env)
	if err != nil {
		return err
	}
	if v < g.Lo || v > g.Hi {
		return &GuardError{Expr: g.Expr.String(), Value: v, Lo: g.Lo, Hi: g.Hi}
	}
	return nil
}

// Env gives values to a program's symbols, in their order, and to the properties
// of a device.
func Env(p *program.Program, symbols []int64, properties map[string]int64) (program.Env, error) {
	if len(symbols) != len(p.Symbols) {
		return nil, fmt.Errorf("%d values for %d symbols", len(symbols), len(p.Symbols))
	}
	return func(name string) (int64, bool) {
		for i, s := range p.Symbols {
			if s == name {
				return symbols[i], true
			}
		}
		v, ok := properties[name]
		return v, ok
	}, nil
}

// Specialize is a program for the values of its symbols on a device: it checks the
// program's guards, which are [GuardError]s, and resolves it.
func Specialize(p *program.Program, symbols []int64, properties map[string]int64, ops, libraries OpSet) (program.Env, *Resolved, error) {
	env, err := Env(p, symbols, properties)
	if err != nil {
		return nil, nil, err
	}
	for _, g := range p.Guards {
		if err := CheckGuard(g, env); err != nil {
			return nil, nil, err
		}
	}
	r, err := Resolve(p, env, ops, libraries)
	return env, r, err
}

// ScratchBytes returns the scratch memory of a program and its ops for the values of its
// symbols, whatever its guards say of them.
func ScratchBytes(p *program.Program, symbols []int64, properties map[string]int64, ops, libraries OpSet) (int64, error) {
	env, err := Env(p, symbols, properties)
	if err != nil {
		return 0, err
	}
	r, err := Resolve(p, env, ops, libraries)
	if err != nil {
		return 0, err
	}
	return r.Scratch, nil
}

// EachStep calls f with every step; an error names the step of the program.
func (r *Resolved) EachStep(f func(i int, s *ResolvedStep) error) error {
	for i := range r.Steps {
		if err := f(i, &r.Steps[i]); err != nil {
			return fmt.Errorf("step %d: %w", r.Steps[i].Index, err)
		}
	}
	return nil
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
