package piecewise

import (
	"fmt"
	"slices"

	"pwc/ir"
	"pwc/program"
	"pwc/runtime/device"
)

// alignment of every buffer of a step, in bytes: that of memory of cudaMalloc. It is a multiple of
// the widest vector access and of a cache line of a GPU.
const alignment = 256

// env is the values of the module's symbols for one run or capture.
type env struct {
	names  []string
	values []int64
}

func (e *env) lookup(name string) (int64, bool) {
	for i, s := range e.names {
		if s == name {
			return e.values[i], true
		}
	}
	return 0, false
}

func (e *env) set(name string, v int64) {
	for i, s := range e.names {
		if s == name {
			e.values[i] = v
			return
		}
	}
	e.names = append(e.names, name)
	e.values = append(e.values, v)
}

// bytes returns the size of a tensor of type t ([program.Bytes]).
func (e *env) bytes(t ir.Type) (int64, error) { return program.Bytes(t.DType, t.Shape, e.lookup) }

// shape evaluates the extents of a type.
func (e *env) shape(t ir.Type) ([]int64, error) { return evalShape(t.Shape, e.lookup) }

// symbols returns the values of a piece's symbols in the order of its program.
func (e *env) symbols(names []string) ([]int64, error) {
	out := make([]int64, len(names))
	for i, s := range names {
		v, ok := e.lookup(s)
		if !ok {
			return nil, fmt.Errorf("%w: symbol %s has no value", ErrSize, s)
		}
		out[i] = v
	}
	return out, nil
}

// envFor returns the symbols of a function at one size: its size symbol is n, load
// symbols have their values, and all others their largest: a graph serves every number of
// rows that a linked parameter has, and plans have room for every run.
func (fn *function) envFor(n int64) env {
	var e env
	for _, s := range fn.plan.module.Symbols {
		switch {
		case s.Name == fn.size:
			e.set(s.Name, n)
		case s.Kind == ir.Load:
			if v, ok := fn.plan.opts.Memory.Symbols[s.Name]; ok {
				e.set(s.Name, v)
			}
		default:
			e.set(s.Name, fn.plan.opts.limit(s))
		}
	}
	return e
}

// layout contains the offsets of a function's storages in the arena for one size: results of
// pieces live until their last reader, scratch only during its unit.
type layout struct {
	size    int64
	offset  []int64 // by storage, inWork only
	bytes   []int64 // by storage
	scratch []int64 // by unit
	need    []int64 // by unit: scratch bytes
	total   int64   // bytes of the arena
}

// settled is a layout with its memory: parts of the arena, or with a [Canary] allocations.
type settled struct {
	*layout
	work []device.Buffer // by storage, for bytes
	room []device.Buffer // by unit, for need
}

// place computes the layout for a size. Nothing is allocated; the same programs, values of symbols and
// scratch of the device's ops give the same layout everywhere.
func (fn *function) place(n int64) (*layout, error) {
	e := fn.envFor(n)
	l := &layout{size: n, offset: make([]int64, len(fn.storages)), bytes: make([]int64, len(fn.storages)),
		scratch: make([]int64, len(fn.units)), need: make([]int64, len(fn.units))}
	var items []program.Item
	known := map[*program.Program]knownScratch{}
	for i, s := range fn.storages {
		var err error
		if l.bytes[i], err = e.bytes(s.typ); err != nil {
			return nil, fmt.Errorf("@%s at size %d: %w", fn.ir.Name, n, err)
		}
		if s.kind == inWork {
			items = append(items, program.Item{Size: l.bytes[i], Align: alignment, First: int32(s.first), Last: int32(s.last)})
		}
	}
	for i := range fn.units {
		var err error
		if l.need[i], err = fn.scratchBytes(&fn.units[i], n, &e, known); err != nil {
			return nil, err
		}
		items = append(items, program.Item{Size: l.need[i], Align: alignment, First: int32(i), Last: int32(i)})
	}
	offsets, total, err := program.Place(items)
	if err != nil {
		return nil, fmt.Errorf("@%s at size %d: %w", fn.ir.Name, n, err)
	}
	l.total = total
	k := 0
	for i, s := range fn.storages {
		if s.kind == inWork {
			l.offset[i] = offsets[k]
			k++
		}
	}
	copy(l.scratch, offsets[k:])
	return l, nil
}

// knownScratch is the scratch of a program for given values of its symbols.
type knownScratch struct {
	values []int64
	bytes  int64
}

// scratchBytes returns the scratch memory of a unit at a size. Identical pieces, such as
// those of a model's layers, share a program; known caches its scratch, so that it is computed
// once.
func (fn *function) scratchBytes(u *unit, n int64, e *env, known map[*program.Program]knownScratch) (int64, error) {
	if u.piece == nil && u.op == nil {
		return 0, nil
	}
	if u.piece == nil {
		args, err := fn.shapes(u, e)
		if err != nil {
			return 0, err
		}
		return u.op.ScratchBytes(args, u.attrs)
	}
	p, err := fn.plan.program(u.piece, n)
	if err != nil {
		return 0, err
	}
	values, err := e.symbols(u.piece.Symbols)
	if err != nil {
		return 0, err
	}
	if k, ok := known[p]; ok && slices.Equal(k.values, values) {
		return k.bytes, nil
	}
	bytes, err := fn.plan.programScratch(p, values)
	if err == nil {
		known[p] = knownScratch{values, bytes}
	}
	return bytes, err
}

// shapes returns a call's operands and results with their shapes and no memory.
func (fn *function) shapes(u *unit, e *env) ([]device.Tensor, error) {
	out := make([]device.Tensor, len(u.args))
	for i, a := range u.args {
		s := &fn.storages[a]
		shape, err := e.shape(s.typ)
		if err != nil {
			return nil, err
		}
		out[i] = device.Tensor{DType: s.typ.DType, Shape: shape}
	}
	return out, nil
}

func roundUp(n int64) int64 { return (n + alignment - 1) / alignment * alignment }
