package device

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"pwc/ir/dim"
	"pwc/program"
)

// ErrDeclined is the error, wrapped with the reason, that an op's ScratchBytes returns
// for a call that it does not take. A choice of the program then tries its next variant.
var ErrDeclined = errors.New("device: the routine does not take this call")

// Resolved is a program for given symbol values: the steps that run, and the offsets of
// scratch memory.
type Resolved struct {
	Steps   []ResolvedStep
	Offsets []int64 // of scratch buffers, by buffer
	Extern  int64   // offset of the scratch memory that ops use one after the other
	Scratch int64   // bytes of all scratch memory, which Bind needs

	// Declined has the variants before the chosen ones whose guards hold, but with a library
	// routine that is missing or declines the call.
	Declined []Declined
}

// ResolvedStep is a step that runs: one of the program's, or of the variant that
// was chosen.
type ResolvedStep struct {
	*program.Step
	Index int // index in the program's steps: of this step, or of the choice that it belongs to

	// Of extern ops and library routines.
	Op      Op
	Tensors []Tensor // operands, then results; Assigned.Call gives them memory
	Values  []program.Attr
	Need    int64 // scratch memory that the op asks for, bytes
}

// Declined is a variant that was not taken because of a library routine.
type Declined struct {
	Step    int
	Library string
	Missing bool // the device does not have the routine; false: the routine declines the call
	Reason  error
}

// Resolve makes a program's choices for symbol values and plans its scratch
// memory. The program need not be loaded. An extern op that is missing in ops counts
// with 0 bytes of scratch memory (Load refuses such a program). A missing library routine
// is an error, unless a variant without it can be taken.
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
	var declined error
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
				r.Steps, declined = r.Steps[:before], err
				continue variants
			} else if err != nil {
				return err
			}
		}
		return nil
	}
	const none = "no variant fits these sizes and this device"
	if declined != nil {
		return fmt.Errorf("%s: %w", none, declined)
	}
	return errors.New(none)
}

// step appends a step that is not a choice.
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
		return fmt.Errorf("the op asks for %d bytes of scratch, want 0 or more", s.Need)
	}
	return nil
}

// Call returns the step of a library routine with its operands and attributes for
// symbol values. No device needs to have the routine.
func Call(p *program.Program, index int, s *program.Step, env program.Env) (*ResolvedStep, error) {
	out := &ResolvedStep{Step: s, Index: index}
	if err := out.operands(p, env); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Extern, err)
	}
	return out, nil
}

// Holds reports whether a variant's guards hold for the sizes and the device of env.
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

// ForDevice reports whether a variant is for the device whose properties env has. If the
// device lacks a property that the variant's guard names, it is not.
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

// Env returns an environment with the values of a program's symbols, in their order, and
// the properties of a device.
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

// Specialize checks a program's guards for symbol values on a device, and resolves the
// program. If a guard does not hold, the error is a [GuardError].
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

// ScratchBytes returns the bytes of scratch memory of a program and its ops for the values
// of its symbols, without checking its guards.
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

// evalAttrs returns copies of attributes with their dims evaluated.
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
