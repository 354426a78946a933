package piecewise

import (
	"fmt"

	"pwc/ir/dtype"
	"pwc/runtime/device"
)

// Results are the results of one run. They are valid until the same function's next
// run, a warm-up, or another write to their memory (see [Alias]); a later read is a
// [StaleError]. Results is a small value; copies refer to the same results.
type Results struct {
	fn   *instance
	run  uint64
	rows int64
	size int64 // with padding
}

// Result is one result of a run.
type Result struct {
	set Results
	i   int
}

// Len returns the number of results.
func (r Results) Len() int {
	if r.fn == nil {
		return 0
	}
	return len(r.fn.returns)
}

// At returns result i, counted from 0. If the function has no result i, methods of the Result return an
// error, and DType the zero DType.
func (r Results) At(i int) Result { return Result{r, i} }

// Release declares that the results will not be read again. A later read is
// [ErrReleased].
func (r Results) Release() {
	if r.fn != nil && r.fn.run == r.run {
		r.fn.released = r.run
	}
}

// Wait waits for all work on the pool's stream, the run included. It returns a
// [device.IndexError] for each op of the backend that met an index out of range since the last
// Wait, CopyTo, [FaultSnapshot.Take] or warm-up (C12). It returns a [StaleError] if the function was
// run or warmed up again, but Wait does not check whether something else overwrote single results.
func (r Results) Wait() error {
	if err := r.latest(0); err != nil {
		return err
	}
	return r.fn.b.settle()
}

// exists returns an error if there is no such result.
func (r Result) exists() error {
	switch fn := r.set.fn; {
	case fn == nil:
		return fmt.Errorf("%w: a result of the zero Results", ErrOrder)
	case r.i < 0 || r.i >= len(fn.returns):
		return fmt.Errorf("%w: @%s has %d results, counted from 0, and no result %d", ErrOrder, fn.ir.Name, len(fn.returns), r.i)
	}
	return nil
}

// check returns an error if the result cannot be read.
func (r Result) check() error {
	if err := r.exists(); err != nil {
		return err
	}
	return r.set.check(r.i)
}

// check returns an error if the run's result i cannot be read any more.
func (r Results) check(i int) error {
	if err := r.latest(i); err != nil {
		return err
	}
	if i < len(r.fn.lost) && r.fn.lost[i] == r.run {
		return &StaleError{Func: r.fn.ir.Name, Result: i, Run: r.run}
	}
	return nil
}

// latest returns an error, about result i, if the function was run or warmed up again, or the
// results were released or their backend closed.
func (r Results) latest(i int) error {
	switch {
	case r.fn == nil:
		return fmt.Errorf("%w: these are the zero Results", ErrOrder)
	case r.fn.closed:
		return ErrClosed
	case r.fn.run != r.run:
		return &StaleError{Func: r.fn.ir.Name, Result: i, Run: r.run, Latest: r.fn.run}
	case r.fn.spoiled == r.run:
		return &StaleError{Func: r.fn.ir.Name, Result: i, Run: r.run}
	case r.fn.released == r.run:
		return fmt.Errorf("%w: result %d of @%s, run %d", ErrReleased, i, r.fn.ir.Name, r.run)
	}
	return nil
}

// settle waits for the stream, and returns and clears the faults of kernels.
func (b *Backend) settle() error {
	if err := b.pool.stream.Synchronize(); err != nil {
		return b.note(err)
	}
	faults, err := b.residents.takeFaults()
	if err != nil {
		return b.note(err)
	}
	return b.residents.indexError(faults)
}

// takeFaults returns and clears the faults of the backend's own programs, and leaves those of
// other backends of the device.
func (r *residents) takeFaults() ([]device.IndexError, error) {
	if len(r.programs) == 0 {
		return nil, nil
	}
	return r.plan.opts.Device.TakeFaults(r.pool.stream, r.programs...)
}

// env returns the values of symbols at the result's run. The values of symbols other than the size
// symbol are kept only for the latest run of the function.
func (r Result) env() (env, error) {
	fn := r.set.fn
	if fn.size == "" && len(fn.symbols) == 0 || fn.size != "" && len(fn.symbols) == 1 {
		return fn.envFor(r.set.rows), nil
	}
	if fn.run != r.set.run {
		return env{}, &StaleError{Func: fn.ir.Name, Result: r.i, Run: r.set.run, Latest: fn.run}
	}
	return fn.envOf(fn.ran), nil
}

// Shape returns the result's extents, without padded rows.
func (r Result) Shape() ([]int64, error) {
	if err := r.exists(); err != nil {
		return nil, err
	}
	e, err := r.env()
	if err != nil {
		return nil, err
	}
	return e.shape(r.set.fn.ir.ResultTypes[r.i])
}

// DType returns the result's element type, and the zero DType if there is no such
// result.
func (r Result) DType() dtype.DType {
	if r.exists() != nil {
		return 0
	}
	return r.set.fn.ir.ResultTypes[r.i].DType
}

// Tensor returns the result's memory on the device, without padded rows. Order reads of
// it before the function's next run.
func (r Result) Tensor() (device.Tensor, error) {
	if err := r.check(); err != nil {
		return device.Tensor{}, err
	}
	fn := r.set.fn
	e, err := r.env()
	if err != nil {
		return device.Tensor{}, err
	}
	shape, err := e.shape(fn.ir.ResultTypes[r.i])
	if err != nil {
		return device.Tensor{}, err
	}
	buf, err := fn.buffer(fn.returns[r.i], &e, fn.largest)
	return device.Tensor{Buffer: buf, DType: r.DType(), Shape: shape}, err
}

// rows returns the memory of the first rows of a result whose rows are those
// of its function.
func (r Result) rows(n int64) device.Buffer {
	fn := r.set.fn
	return fn.fixed(&fn.storages[fn.returns[r.i]]).Slice(0, fn.rowBytes[r.i]*n)
}

// memory returns the result's buffer, without padded rows.
func (r Result) memory() (device.Buffer, error) {
	if err := r.check(); err != nil {
		return device.Buffer{}, err
	}
	if r.set.fn.rowBytes[r.i] > 0 {
		return r.rows(r.set.rows), nil
	}
	t, err := r.Tensor()
	return t.Buffer, err
}

// Size returns the result's bytes, without padded rows.
func (r Result) Size() (int64, error) {
	if err := r.exists(); err != nil {
		return 0, err
	}
	e, err := r.env()
	if err != nil {
		return 0, err
	}
	return e.bytes(r.set.fn.ir.ResultTypes[r.i])
}

// CopyTo copies the result, without padded rows, to host memory of exactly its
// size, and waits for it. It checks whether the result is stale when it enqueues the
// copy. With a [device.IndexError] the data is copied, too.
func (r Result) CopyTo(dst []byte) error {
	if err := r.StartCopy(dst); err != nil {
		return err
	}
	return r.set.fn.b.settle()
}

// StartCopy is CopyTo without the wait: dst is filled once the work that is on the
// pool's stream when StartCopy returns has completed; record an event on the stream to
// wait for it. The copy is asynchronous only if dst is memory of [device.Device.AllocHost].
func (r Result) StartCopy(dst []byte) error {
	src, err := r.memory()
	if err != nil {
		return err
	}
	if int64(len(dst)) != src.Size {
		return fmt.Errorf("%w: result %d of @%s has %d bytes, the destination %d", ErrSize, r.i, r.set.fn.ir.Name, src.Size, len(dst))
	}
	if len(dst) == 0 {
		return nil
	}
	return r.set.fn.b.note(r.set.fn.b.pool.stream.CopyToHost(dst, src))
}
