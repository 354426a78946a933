package compile

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
	"pwc/program"
)

// bufferAlign is the alignment of buffers in bytes: a cache line, and the width
// of the widest vector access of any target.
const bufferAlign = 64

// emitter puts a program together.
type emitter struct {
	f       *fuser
	p       *program.Program
	b       Backend
	life    map[*memory]*span
	buffers map[*memory]int32
	kernels map[string]int32 // by the key of method kernel
	ranges  map[string]dim.Interval
}

// emit makes the program of the planned steps.
func emit(s *state) error {
	e := &emitter{f: s.fused, b: s.b, life: lifetimes(s.steps), buffers: make(map[*memory]int32), kernels: make(map[string]int32), ranges: make(map[string]dim.Interval),
		p: &program.Program{Target: s.b.Target()}}
	e.declare(s.m)
	codes := e.lowerAll(s.ctx, s.steps)
	if s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	for i, st := range s.steps {
		if err := e.step(i, st, codes[i]); err != nil {
			return err
		}
	}
	s.drawn.declare(e.p)
	s.prog = e.p
	return nil
}

// lowered is the code of a step, or the error of making it.
type lowered struct {
	code Code
	err  error
}

// lowerAll makes the code of all steps, in several goroutines: for some targets this takes
// most of the time of a compilation. When ctx ends, it begins no more steps.
func (e *emitter) lowerAll(ctx context.Context, steps []*planned) []lowered {
	out := make([]lowered, len(steps))
	for _, st := range steps {
		for _, k := range st.kernels {
			k.Ranges = e.ranges
		}
	}
	var next atomic.Int64
	work := func() {
		for i := next.Add(1) - 1; i < int64(len(steps)) && ctx.Err() == nil; i = next.Add(1) - 1 {
			if len(steps[i].kernels) > 0 {
				out[i].code, out[i].err = e.lower(steps[i])
			}
		}
	}
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(steps)) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	return out
}

// declare sets the program's symbols and their guards, its parameters, results and constants.
func (e *emitter) declare(m *ir.Module) {
	p := e.p
	for _, s := range m.Symbols {
		p.Symbols = append(p.Symbols, s.Name)
		p.Guards = append(p.Guards, program.Guard{Expr: dim.Sym(s.Name), Lo: s.Lo, Hi: s.Hi})
		e.ranges[s.Name] = dim.Interval{Lo: s.Lo, Hi: s.Hi}
	}
	written := make(map[ir.Value]bool)
	for _, n := range e.f.fn.Nodes {
		for _, w := range n.Versions {
			written[e.f.fn.Base(w.Value)] = true
		}
	}
	states := make([]bool, len(m.States))
	for v, info := range e.f.fn.Values {
		if info.Kind == ir.StateValue && written[ir.Value(v)] {
			states[info.Index] = true
		}
	}
	for _, v := range e.f.fn.Params {
		info := &e.f.fn.Values[v]
		p.Params = append(p.Params, program.Param{Kind: program.ParamValue, Mut: info.Mut, DType: info.Type.DType, Shape: info.Type.Shape})
	}
	for _, w := range m.Weights {
		p.Params = append(p.Params, program.Param{Kind: program.ParamWeight, DType: w.Type.DType, Shape: w.Type.Shape})
	}
	for i, s := range m.States {
		p.Params = append(p.Params, program.Param{Kind: program.ParamState, Mut: states[i], DType: s.Type.DType, Shape: s.Type.Shape})
	}
	for _, r := range e.f.results {
		p.Results = append(p.Results, program.Result{DType: r.typ.DType, Shape: r.typ.Shape, Alias: int32(r.alias), Same: int32(r.same)})
	}
	p.Consts = e.f.values
}

// buffer returns the program's buffer of a memory, in order of first use.
func (e *emitter) buffer(m *memory) int32 {
	m = m.root()
	if i, ok := e.buffers[m]; ok {
		return i
	}
	b := program.Buffer{DType: m.typ.DType, Shape: m.typ.Shape, Align: bufferAlign}
	switch {
	case m.kind == paramMemory:
		b.Kind, b.Index = program.BufferParam, int32(m.index)
		if r, ok := e.b.(WeightReader); ok && r.ReadsUnalignedWeights() && e.p.Params[m.index].Kind == program.ParamWeight {
			b.Align = 0
		}
	case m.kind == constMemory:
		b.Kind, b.Index = program.BufferConst, int32(m.index)
	case m.result >= 0:
		b.Kind, b.Index = program.BufferResult, int32(m.result)
	default:
		l := e.life[m]
		b.Kind, b.First, b.Last = program.BufferScratch, l.first, l.last
	}
	i := int32(len(e.p.Buffers))
	e.p.Buffers = append(e.p.Buffers, b)
	e.buffers[m] = i
	return i
}

func (e *emitter) step(i int, st *planned, made lowered) error {
	if len(st.kernels) == 0 {
		s := st.group.call.step()
		s.Origin = st.group.origin
		for _, m := range st.mems {
			s.Args = append(s.Args, e.buffer(m))
		}
		e.p.Steps = append(e.p.Steps, s)
		return nil
	}
	err := made.err
	if err == nil {
		err = e.code(int32(i), st, made.code)
	}
	if err != nil {
		return &nodeError{origin: st.group.origin, msg: fmt.Sprintf("%s: kernel %s: %v", e.b.Target(), st.kernels[0].Name, err)}
	}
	return nil
}

// lower makes the code of a step's kernels. It is called from several goroutines.
func (e *emitter) lower(st *planned) (Code, error) {
	switch {
	case st.chain != nil:
		return e.b.(VerticalFuser).LowerVertical(st.chain)
	case len(st.kernels) > 1:
		return e.b.(HorizontalFuser).LowerHorizontal(st.kernels)
	}
	return e.b.Lower(st.kernels[0])
}

// code appends the step that runs code: a choice of variants, or, if there is only one
// variant with one step and no guard, that step.
func (e *emitter) code(at int32, st *planned, code Code) error {
	args := make([]func() int32, 0, len(st.mems)+len(code.Temps)) // a call makes the buffer, so unused ones are not made
	for _, m := range st.mems {
		args = append(args, func() int32 { return e.buffer(m) })
	}
	for _, t := range code.Temps {
		args = append(args, sync.OnceValue(func() int32 {
			e.p.Buffers = append(e.p.Buffers, program.Buffer{Kind: program.BufferScratch, DType: t.DType, Shape: t.Shape, Align: bufferAlign, First: at, Last: at})
			return int32(len(e.p.Buffers) - 1)
		}))
	}
	choice := program.Step{Kind: program.StepChoice, Origin: st.group.origin}
	for _, v := range code.Variants {
		way := program.Variant{Guard: v.Guard, Device: v.Device}
		for _, s := range v.Steps {
			step := program.Step{Kind: program.StepLibrary, Extern: s.Library, Attrs: s.Attrs, Launch: s.Launch, Origin: st.group.origin}
			if s.Library == "" {
				step.Kind, step.Kernel = program.StepKernel, e.kernel(s.Kernel)
			}
			if s.Args == nil {
				for _, m := range st.mems {
					step.Args = append(step.Args, e.buffer(m))
				}
			}
			for _, a := range s.Args {
				if a < 0 || int(a) >= len(args) {
					return fmt.Errorf("the code has argument %d, want 0 to %d: the kernels have %d arguments, the code %d Temps", a, len(args)-1, len(st.mems), len(code.Temps))
				}
				step.Args = append(step.Args, args[a]())
			}
			if step.Kind == program.StepKernel {
				e.freeDims(&step)
			}
			way.Steps = append(way.Steps, step)
		}
		choice.Variants = append(choice.Variants, way)
	}
	if v := choice.Variants; len(v) == 1 && len(v[0].Steps) == 1 && v[0].Guard.Always() {
		choice = v[0].Steps[0]
	}
	e.p.Steps = append(e.p.Steps, choice)
	return nil
}

// kernel adds a kernel, or finds the one with the same code and, unless it is a SIMD kernel,
// the same name and PTX.
func (e *emitter) kernel(k program.Kernel) int32 {
	key := string(rune(k.Format)) + string(k.Code)
	if k.Format != program.KernelVec { // an image may hold several entries
		key = k.Name + "\x00" + key + "\x00" + string(k.PTX)
	}
	if i, ok := e.kernels[key]; ok {
		return i
	}
	i := int32(len(e.p.Kernels))
	e.p.Kernels = append(e.p.Kernels, k)
	e.kernels[key] = i
	return i
}

// encodeConst returns the elements of a const node as a tensor stores them.
func encodeConst(dt dtype.DType, values []float64) []byte {
	var b []byte
	for _, v := range values {
		switch dt {
		case dtype.F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
		case dtype.F16:
			b = binary.LittleEndian.AppendUint16(b, dtype.F64ToF16(v))
		case dtype.BF16:
			b = binary.LittleEndian.AppendUint16(b, dtype.F64ToBF16(v))
		default:
			x := uint64(int64(v))
			for i := 0; i < dt.Bits(); i += 8 {
				b = append(b, byte(x>>i))
			}
		}
	}
	return b
}
