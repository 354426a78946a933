package program

import (
	"fmt"
	"slices"
	"strings"

	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program/vec"
)

// MaxAlign is the largest alignment of a buffer, and the smallest alignment of a
// device's memory, in bytes.
const MaxAlign = 256

// PropertyPrefix is the prefix of names of device properties in dims.
const PropertyPrefix = "device."

// Validate makes the checks that do not depend on symbol values, among them: indices of
// parameters, results, constants, buffers and kernels are in range, symbols are declared,
// scratch buffers are used in their lifetimes, a later step waits for each async collective,
// generators advance by multiples of DrawStep, vector kernels are valid, and vector kernels
// write no constant and no parameter that is not mut. Addresses, and sizes other than those of
// constants, are checked when the program is bound.
func (p *Program) Validate() error {
	v := &validator{p: p, symbols: make(map[string]bool, len(p.Symbols))}
	v.program()
	if v.err != nil {
		return fmt.Errorf("program: %w", v.err)
	}
	return nil
}

type validator struct {
	p       *Program
	symbols map[string]bool
	kernels []*vec.Kernel // decoded KernelVec kernels, nil for others
	err     error
}

func (v *validator) failf(format string, args ...any) {
	if v.err == nil {
		v.err = fmt.Errorf(format, args...)
	}
}

func (v *validator) program() {
	p := v.p
	if p.Target == "" {
		v.failf("no target")
	}
	for _, s := range p.Symbols {
		switch {
		case !dim.ValidName(s) || strings.HasPrefix(s, PropertyPrefix):
			v.failf("symbol %q: want letters, digits, '_' and '.', first a letter or '_', and not the prefix %q of device properties", s, PropertyPrefix)
		case v.symbols[s]:
			v.failf("symbol %s twice", s)
		}
		v.symbols[s] = true
	}
	for _, g := range p.Guards {
		v.guard("guard", g)
	}
	for i, a := range p.Params {
		v.dims(fmt.Sprintf("parameter %d", i), a.Shape...)
		if a.Kind > ParamState || !a.DType.Valid() {
			v.failf("parameter %d: kind %d, dtype %s; want a kind from 0 to %d and a valid dtype", i, a.Kind, a.DType, ParamState)
		}
		v.generator(i, &p.Params[i])
	}
	for i, r := range p.Results {
		v.dims(fmt.Sprintf("result %d", i), r.Shape...)
		v.result(i, &r)
	}
	for i := range p.Buffers {
		v.buffer(i, &p.Buffers[i])
	}
	v.kernels = make([]*vec.Kernel, len(p.Kernels))
	for i := range p.Kernels {
		v.kernel(i, &p.Kernels[i])
	}
	for i := range p.Steps {
		if v.err != nil {
			return
		}
		v.step(i, &p.Steps[i])
	}
}

func (v *validator) result(i int, r *Result) {
	switch {
	case !r.DType.Valid():
		v.failf("result %d: dtype %s", i, r.DType)
	case r.Alias < -1 || int(r.Alias) >= len(v.p.Params):
		v.failf("result %d: alias %d, want -1 or one of the %d parameters", i, r.Alias, len(v.p.Params))
	case r.Same < -1 || int(r.Same) >= i:
		v.failf("result %d: same %d, want -1 or an earlier result", i, r.Same)
	case r.Alias >= 0 && r.Same >= 0:
		v.failf("result %d: alias %d and same %d, want at most one of them", i, r.Alias, r.Same)
	}
}

func (v *validator) generator(i int, a *Param) {
	switch {
	case !a.Generator && a.Advance != 0:
		v.failf("parameter %d: it is not a generator, but advances by %d", i, a.Advance)
	case !a.Generator:
	case a.Mut || a.Kind == ParamWeight || a.DType != dtype.I64 || len(a.Shape) != 1 || !a.Shape[0].Equal(dim.Const(2)):
		v.failf("parameter %d: it is %s[%s], kind %d, mut %t; want i64[2] for a generator, not mut and not a weight", i, a.DType, dim.Join(a.Shape), a.Kind, a.Mut)
	case a.Advance < 0 || a.Advance%DrawStep != 0:
		v.failf("parameter %d: the generator advances by %d, want a multiple of %d, at least 0", i, a.Advance, DrawStep)
	}
}

func (v *validator) dims(what string, ds ...dim.Dim) {
	for _, d := range ds {
		if _, ok := d.Const(); ok {
			continue
		}
		if err := d.Err(); err != nil {
			v.failf("%s: %w", what, err)
			return
		}
		for _, s := range d.Symbols() {
			if !v.symbols[s] && !strings.HasPrefix(s, PropertyPrefix) {
				v.failf("%s: unknown symbol %s", what, s)
				return
			}
		}
	}
}

func (v *validator) guard(what string, g Guard) {
	v.dims(what, g.Expr)
	if g.Lo > g.Hi {
		v.failf("%s: %s in [%d, %d], which is empty", what, g.Expr, g.Lo, g.Hi)
	}
}

func (v *validator) buffer(i int, b *Buffer) {
	p := v.p
	what := fmt.Sprintf("buffer %d", i)
	v.dims(what, b.Shape...)
	if !b.DType.Valid() {
		v.failf("%s: dtype %s", what, b.DType)
	}
	if b.Align < 0 || b.Align > MaxAlign || b.Align&(b.Align-1) != 0 {
		v.failf("%s: alignment %d, want 0 or a power of two up to %d", what, b.Align, MaxAlign)
	}
	within := func(n int) {
		if b.Index < 0 || int(b.Index) >= n {
			v.failf("%s: index %d, want one below %d", what, b.Index, n)
		}
	}
	switch b.Kind {
	case BufferParam:
		within(len(p.Params))
	case BufferResult:
		if within(len(p.Results)); v.err == nil {
			if r := p.Results[b.Index]; r.Alias >= 0 || r.Same >= 0 {
				v.failf("%s: result %d returns a parameter or an earlier result, so it has no buffer", what, b.Index)
			}
		}
	case BufferScratch:
		if b.First < 0 || b.First > b.Last || int(b.Last) >= len(p.Steps) {
			v.failf("%s: lifetime from step %d to %d, want an ascending range within the %d steps", what, b.First, b.Last, len(p.Steps))
		}
	case BufferConst:
		if within(len(p.Consts)); v.err == nil {
			n, err := b.Bytes(func(string) (int64, bool) { return 0, false })
			if err != nil {
				v.failf("%s: %w", what, err)
			} else if have := int64(len(p.Consts[b.Index])); n > have {
				v.failf("%s: constant %d has %d bytes, the buffer needs %d", what, b.Index, have, n)
			}
		}
	default:
		v.failf("%s: unknown kind %d", what, b.Kind)
	}
}

func (v *validator) kernel(i int, k *Kernel) {
	switch k.Format {
	case KernelVec:
		if len(k.PTX) > 0 {
			v.failf("kernel %d (%s): PTX of a vector kernel", i, k.Name)
		}
		code, err := vec.Decode(k.Code)
		if err != nil {
			v.failf("kernel %d (%s): %w", i, k.Name, err)
			return
		}
		v.kernels[i] = code
		code.EachDim(func(d dim.Dim) { v.dims(fmt.Sprintf("kernel %d (%s)", i, k.Name), d) })
	case KernelCUDA:
		if len(k.Code) == 0 && len(k.PTX) == 0 {
			v.failf("kernel %d (%s): no code", i, k.Name)
		}
	default:
		v.failf("kernel %d (%s): unknown format %d", i, k.Name, k.Format)
	}
}

func (v *validator) step(i int, s *Step) {
	what := fmt.Sprintf("step %d", i)
	if s.Kind == StepChoice {
		v.choice(what, i, s)
	} else {
		v.plain(what, i, s)
		v.overlaps(what, i, s)
	}
}

// overlaps checks an async step: a later step waits for it, and no step between the two uses the
// memory of its destination.
func (v *validator) overlaps(what string, i int, s *Step) {
	switch {
	case v.err != nil || !s.async():
		return
	case len(s.Args) == 0:
		v.failf("%s: it is async, and has no buffers; want its destination first", what)
		return
	}
	for j := i + 1; j < len(v.p.Steps); j++ {
		later := &v.p.Steps[j]
		if later.Kind == StepLibrary && later.Extern == CollectiveWait && slices.Equal(later.Args, s.Args) {
			return
		}
		if b := v.use(later, s.Args[0]); b >= 0 {
			v.failf("%s: it is async, and step %d uses buffer %d, the memory of its destination, before a step waits for it", what, j, b)
			return
		}
	}
	v.failf("%s: it is async, and no later step is %s of its buffers", what, CollectiveWait)
}

// async reports whether a step is a collective that may overlap with later ones.
func (s *Step) async() bool {
	return s.Kind == StepLibrary && strings.HasPrefix(s.Extern, CollectivePrefix) && slices.ContainsFunc(s.Attrs, func(a Attr) bool { return a.Name == asyncAttr && a.Bool })
}

// use returns a buffer with the memory of the given one that a step or one of its variants uses, or -1.
// The arguments of s need not be valid yet.
func (v *validator) use(s *Step, buffer int32) int32 {
	for _, a := range s.Args {
		if v.sameMemory(a, buffer) {
			return a
		}
	}
	for _, way := range s.Variants {
		for i := range way.Steps {
			if a := v.use(&way.Steps[i], buffer); a >= 0 {
				return a
			}
		}
	}
	return -1
}

// sameMemory reports whether buffer a, which may be out of range, has the memory of the valid buffer b.
// Scratch buffers whose lifetimes overlap have separate memory.
func (v *validator) sameMemory(a, b int32) bool {
	if a < 0 || int(a) >= len(v.p.Buffers) {
		return false
	}
	x, y := &v.p.Buffers[a], &v.p.Buffers[b]
	return a == b || x.Kind != BufferScratch && x.Kind == y.Kind && x.Index == y.Index
}

// choice checks a StepChoice, step i of the program.
func (v *validator) choice(what string, i int, s *Step) {
	if len(s.Args) > 0 || len(s.Attrs) > 0 || len(s.Variants) == 0 {
		v.failf("%s: a choice of %d variants, with %d buffers and %d attributes; want at least 1 variant, and buffers and attributes only in variants", what, len(s.Variants), len(s.Args), len(s.Attrs))
		return
	}
	for j := range s.Variants {
		way := &s.Variants[j]
		what := fmt.Sprintf("%s: variant %d", what, j)
		v.guard(what, way.Guard)
		v.guard(what, way.Device)
		for _, s := range way.Device.Expr.Symbols() {
			if !strings.HasPrefix(s, PropertyPrefix) {
				v.failf("%s: the device guard depends on symbol %s, want only device properties", what, s)
			}
		}
		last := j == len(s.Variants)-1
		if last && !(way.Guard.Always() && way.Device.Always()) {
			v.failf("%s: the last variant must hold for all sizes and devices", what)
		}
		for n := range way.Steps {
			one := &way.Steps[n]
			what := fmt.Sprintf("%s: step %d", what, n)
			switch {
			case one.Kind == StepChoice || one.Kind == StepExtern:
				v.failf("%s: a step of kind %s, want a kernel or a library routine", what, name(stepNames[:], one.Kind))
			case one.async():
				v.failf("%s: a collective of a choice is async; async calls must be steps of the program", what)
			case one.Kind == StepLibrary && last && !strings.HasPrefix(one.Extern, CollectivePrefix):
				v.failf("%s: the last variant needs library routine %q, want only kernels and collectives", what, one.Extern)
			}
			v.plain(what, i, one)
		}
	}
}

// plain checks a step that is not a choice; i is the index of the program's step.
func (v *validator) plain(what string, i int, s *Step) {
	p := v.p
	if s.Origin < -1 {
		v.failf("%s: node %d, want an index, or -1 for no node", what, s.Origin)
	}
	for _, a := range s.Args {
		if a < 0 || int(a) >= len(p.Buffers) {
			v.failf("%s: buffer %d, want one below %d", what, a, len(p.Buffers))
			return
		}
		if b := &p.Buffers[a]; b.Kind == BufferScratch && (i < int(b.First) || i > int(b.Last)) {
			v.failf("%s: buffer %d is used outside its lifetime", what, a)
		}
	}
	for _, a := range s.Attrs {
		v.attr(what, a)
	}
	v.launch(what, &s.Launch)
	if len(s.Variants) > 0 {
		v.failf("%s: it has variants, and is not a choice", what)
	}
	switch s.Kind {
	case StepKernel:
		v.stepKernel(what, s)
	case StepExtern, StepLibrary:
		if s.Extern == "" {
			v.failf("%s: no name to call", what)
		}
	default:
		v.failf("%s: unknown kind %d", what, s.Kind)
	}
}

func (v *validator) stepKernel(what string, s *Step) {
	if s.Kernel < 0 || int(s.Kernel) >= len(v.p.Kernels) {
		v.failf("%s: kernel %d, want one below %d", what, s.Kernel, len(v.p.Kernels))
		return
	}
	k := v.kernels[s.Kernel]
	if k == nil {
		return
	}
	if int(k.Args) != len(s.Args) {
		v.failf("%s: %d buffers for a kernel that takes %d", what, len(s.Args), k.Args)
		return
	}
	for _, a := range k.Stores() {
		v.writes(what, s.Args[a])
	}
}

// writes checks that a buffer may be written.
func (v *validator) writes(what string, buffer int32) {
	switch b := &v.p.Buffers[buffer]; {
	case b.Kind == BufferConst:
		v.failf("%s: writes the constant buffer %d", what, buffer)
	case b.Kind == BufferParam && !v.p.Params[b.Index].Mut:
		v.failf("%s: writes parameter %d, which is not mut", what, b.Index)
	}
}

func (v *validator) launch(what string, l *Launch) {
	v.dims(what, l.Grid[0], l.Grid[1], l.Grid[2], l.Shared)
	for _, b := range l.Block {
		if b < 0 {
			v.failf("%s: %d threads, want at least 0", what, b)
		}
	}
	for _, a := range l.Attrs {
		v.attr(what, a)
	}
}

func (v *validator) attr(what string, a Attr) {
	if a.Kind > AttrFloats {
		v.failf("%s: attribute %s of unknown kind %d", what, a.Name, a.Kind)
	}
	v.dims(what, a.Dim)
	v.dims(what, a.Dims...)
}
