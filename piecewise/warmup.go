package piecewise

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pwc/program"
	"pwc/runtime/device"
)

// Warmup runs every distinct program that a run can have once outside capture, so that
// modules are loaded and libraries initialised, the library routines of every captured size,
// and extern ops of captured sizes that are a [device.Warmer] on nothing but padding. A
// program that no captured size runs is run at the smallest size that it serves. Its results
// are thrown away, and states are afterwards what they were.
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
		err = b.pool.settle(err) // states are restored all the same
		if err = errors.Join(err, restore()); err == nil {
			b.advance(warm)
		}
	}()
	w := &warming{b: b, done: map[programUse]bool{}, ops: map[string]bool{}}
	w.libraries, _ = b.pool.stream.(device.LibraryStream)
	for _, fn := range b.funcs {
		fn.spoil() // its results lie where the warm-up writes
		// A warm-up reads what nothing wrote: indices among it must be in range.
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
	// Indices that a warm-up computed mean nothing.
	_, err = b.residents.takeFaults()
	return err
}

// programUse is the run of a program at a size; size 0 is a run at any.
type programUse struct {
	program *program.Program
	size    int64
}

// warming is the state of one warm-up.
type warming struct {
	b         *Backend
	libraries device.LibraryStream // nil: the device has no libraries
	done      map[programUse]bool
	ops       map[string]bool // splitting ops that ran
}

// unit warms a unit of fn at a size n, which is captured or not: sizes that are not
// captured only add the programs that no captured size has.
func (w *warming) unit(ctx context.Context, fn *instance, i int, n int64, e *env, captured bool) error {
	u := &fn.units[i]
	switch {
	case u.piece != nil:
		return w.piece(ctx, fn, i, n, e, captured)
	case captured:
		if err := fn.warmOp(i, e, w.ops); err != nil {
			return fmt.Errorf("warm-up of @%s, %s at size %d: %w", fn.ir.Name, fn.loc(u, 0), n, err)
		}
	}
	return nil
}

// piece runs the program of a piece the first time that it is met, and the choices of
// library routines for each captured size.
func (w *warming) piece(ctx context.Context, fn *instance, i int, n int64, e *env, captured bool) error {
	b, u := w.b, &fn.units[i]
	p, err := b.plan.program(u.piece, n)
	if err != nil {
		return err
	}
	first := !w.done[programUse{p, 0}]
	if w.done[programUse{p, n}] || !first && (w.libraries == nil || !captured) {
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
	if w.libraries != nil {
		err = w.libraries.WarmLibraries(launch)
	}
	if err == nil && first {
		err = errors.Join(b.clearInputs(fn), b.pool.stream.Launch(launch))
	}
	if err != nil {
		return fmt.Errorf("warm-up of @%s piece %d at size %d: %w", fn.ir.Name, fn.split.Items[u.item].ID, n, err)
	}
	return nil
}

// warmSizes returns the sizes that a warm-up runs: those that are captured, and then one in
// the range of every artifact, of which those are run whose program no captured size has.
// The first size of a program is the one that it is run at. With library routines, which are
// warmed up for every size, that is the largest; else the smallest, which takes the least time.
func (fn *function) warmSizes(libraries bool) []int64 {
	out := slices.Clone(fn.sizes)
	if libraries {
		slices.Reverse(out)
	}
	for _, r := range fn.plan.built.Ranges(fn.split) {
		if n := max(r.Lo, fn.lo, min(1, fn.hi)); n <= min(r.Hi, fn.hi) {
			out = append(out, n)
		}
	}
	if fn.size == "" || len(out) == 0 {
		out = append(out, fn.hi)
	}
	return out
}

// warmOp runs a call of an extern op on padding, unless one with operands of the
// same shapes has been.
func (fn *instance) warmOp(i int, e *env, done map[string]bool) error {
	w, ok := fn.units[i].op.(device.Warmer)
	if !ok {
		return nil
	}
	call, err := fn.call(i, e, fn.largest)
	if err != nil {
		return err
	}
	key := fmt.Sprint(w.Signature().Name, call.Attrs)
	for _, a := range call.Args {
		key += fmt.Sprint(a.DType, a.Shape)
	}
	if done[key] {
		return nil
	}
	done[key] = true
	call.Rows = 0
	return w.Warm(call)
}

// clearInputs gives the inputs what padded rows hold, so that a warm-up computes on defined
// values.
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
