package piecewise

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pwc/pieces"
	"pwc/program"
	"pwc/runtime/device"
)

// Warmup loads and initializes kernels and libraries before their first use. Outside a capture and on
// padding only, it launches each program that runs can use, once; the library routines of every
// capture size; and, at capture sizes, extern ops that implement [device.Warmer]. Results of earlier
// runs are overwritten ([ErrStale]); states that pieces write are restored.
func (b *Backend) Warmup(ctx context.Context) error {
	if err := b.enter(loaded, capturedAll); err != nil {
		return err
	}
	defer b.pool.release()
	return b.note(b.warmup(ctx))
}

func (b *Backend) warmup(ctx context.Context) (err error) {
	restore, err := b.residents.keepStates()
	if err != nil {
		return err
	}
	b.pool.obey(ctx)
	defer func() {
		err = b.pool.settle(err) // states are restored after an error, too
		if err = errors.Join(err, restore()); err == nil {
			b.advance(warm)
		}
	}()
	w := &warming{b: b, done: map[programUse]bool{}, ops: map[string]bool{}}
	w.libraries, _ = b.pool.stream.(device.LibraryStream)
	for _, fn := range b.funcs {
		fn.spoil() // the warm-up overwrites its results
		// A warm-up reads memory that nothing has written. Zeros are valid as indices, too.
		if err := fn.fill(fn.largest, 0); err != nil {
			return err
		}
		for _, n := range fn.warmSizes(w.libraries != nil) {
			e := fn.envFor(n)
			for i := range fn.units {
				if err := w.unit(ctx, fn, i, n, &e, slices.Contains(fn.sizes, n)); err != nil {
					return err
				}
			}
		}
	}
	if err := b.pool.stream.Synchronize(); err != nil {
		return err
	}
	// Clear the faults: indices that a warm-up computes are meaningless.
	_, err = b.residents.takeFaults()
	return err
}

// programUse is a launch of a program at a size; size 0: at any size.
type programUse struct {
	program *program.Program
	size    int64
}

// warming is the state of one warm-up.
type warming struct {
	b         *Backend
	libraries device.LibraryStream // nil: the device has no libraries
	done      map[programUse]bool
	ops       map[string]bool // calls that warm has warmed up, by op, attributes and shapes
}

// unit warms up a unit of fn at size n. captured reports whether n is a capture size: other sizes
// only add the programs that no capture size uses.
func (w *warming) unit(ctx context.Context, fn *instance, i int, n int64, e *env, captured bool) error {
	u := &fn.units[i]
	switch {
	case u.piece != nil:
		return w.piece(ctx, fn, i, n, e, captured)
	case captured:
		op, ok := u.op.(device.Warmer)
		if !ok {
			return nil
		}
		call, err := fn.call(i, e, fn.largest)
		if err == nil {
			err = w.warm(op, call)
		}
		if err != nil {
			return fmt.Errorf("warm-up of @%s, %s at size %d: %w", fn.ir.Name, fn.loc(u, 0), n, err)
		}
	}
	return nil
}

// piece launches the program of a piece if no unit has launched it yet, and warms up its library
// routines and extern ops for each capture size.
func (w *warming) piece(ctx context.Context, fn *instance, i int, n int64, e *env, captured bool) error {
	b, u := w.b, &fn.units[i]
	p, err := b.plan.program(u.piece, n)
	if err != nil {
		return err
	}
	first := !w.done[programUse{p, 0}]
	if w.done[programUse{p, n}] || !first && (!captured || w.libraries == nil && len(u.piece.Module.Externs) == 0) {
		return nil
	}
	w.done[programUse{p, 0}], w.done[programUse{p, n}] = true, true
	if err := ctx.Err(); err != nil {
		return err
	}
	launch, err := fn.bind(i, n, e, fn.largest)
	if err != nil {
		return err
	}
	for _, call := range launch.Calls() {
		call.Rows = 0 // nothing but padding
	}
	switch {
	case w.libraries != nil:
		err = w.libraries.WarmLibraries(launch) // extern ops, too
	case captured:
		err = w.externs(u, launch)
	}
	if err == nil && first {
		err = errors.Join(b.clearInputs(fn), b.pool.stream.Launch(launch))
	}
	if err != nil {
		return fmt.Errorf("warm-up of @%s piece %d at size %d: %w", fn.ir.Name, fn.split.Items[u.item].ID, n, err)
	}
	return nil
}

// warmSizes returns the sizes of a warm-up: the capture sizes, and then one that each artifact
// serves, for programs that no capture size uses. A program is launched at the first size that
// uses it. With library routines, which are warmed up for every capture size, that is the largest;
// otherwise the smallest, which takes the least time.
func (fn *function) warmSizes(libraries bool) []int64 {
	out := slices.Clone(fn.sizes)
	if libraries {
		slices.Reverse(out)
	}
	ranges := fn.plan.built.Ranges(fn.split)
	for _, r := range ranges {
		n := max(r.Lo, fn.lo, min(1, fn.hi))
		for r.Lo < r.Hi && slices.Contains(ranges, pieces.Range{Lo: n, Hi: n}) {
			n++ // a compile size, which has another program than the range
		}
		if n <= min(r.Hi, fn.hi) {
			out = append(out, n)
		}
	}
	if fn.size == "" || len(out) == 0 {
		out = append(out, fn.hi)
	}
	return out
}

// externs warms up the extern ops of a piece.
func (w *warming) externs(u *unit, launch device.BoundLaunch) error {
	nodes := u.piece.Func.Nodes
	for _, call := range launch.Calls() {
		o := int(call.Origin)
		if o < 0 || o >= len(nodes) || nodes[o].Extern == nil {
			continue
		}
		if op, ok := w.b.plan.ops[nodes[o].Extern.Name].(device.Warmer); ok {
			call.Stream = w.b.pool.stream
			if err := w.warm(op, call); err != nil {
				return err
			}
		}
	}
	return nil
}

// warm warms up a call on padding, unless a call with the same attributes and shapes was warmed up.
func (w *warming) warm(op device.Warmer, call *device.OpCall) error {
	key := fmt.Sprint(op.Signature().Name, call.Attrs)
	for _, a := range call.Args {
		key += fmt.Sprint(a.DType, a.Shape)
	}
	if w.ops[key] {
		return nil
	}
	w.ops[key] = true
	call.Rows = 0
	return op.Warm(call)
}

// clearInputs fills the inputs with the values of padded rows, so that a warm-up computes on
// defined values.
func (b *Backend) clearInputs(fn *instance) error {
	fn.ring.sent = nil
	for i := range fn.inputs {
		if buf := fn.inputBuffer(i); buf.Size > 0 {
			if err := b.pool.stream.Fill(buf, fn.inputs[i].fill); err != nil {
				return err
			}
			fn.b.replaced(fn.inputs[i].place, nil)
		}
	}
	return nil
}
