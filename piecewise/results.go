package piecewise

import (
	"fmt"

	"pwc/ir/dtype"
	"pwc/runtime/device"
)

// Results are the results of one run. They are weak: valid until the same
// function's next run, or a warm-up, which overwrite them, or until something else is
// written where one lies; a read after it is a [StaleError]. Results is a small value;
// copies are the same results.
type Results struct {
	fn   *instance
	run  uint64
	rows int64
	size int64 // with padding
}

// Result is one of them.
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

// At returns result i. Where there is none, its methods return an error.
func (r Results) At(i int) Result { return Result{r, i} }

// Release says that the results will not be read again. Reading one then is
// [ErrReleased].
func (r Results) Release() {
	if r.fn != nil && r.fn.run == r.run {
		r.fn.released = r.run
	}
}

// Wait returns once the run is done. Indices that kernels found out of range
// since the last Wait or CopyTo are [device.IndexError]s (C12). It reads no result, and
// does not ask whether something else lies there by now.
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

// latest returns an error that is about result i if the function ran or was warmed up
// since, or the results are no more.
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

// settle waits for the stream and reports what kernels flagged.
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

// takeFaults takes what the backend's own programs met: another backend of the device
// is told of its own.
func (r *residents) takeFaults() ([]device.IndexError, error) {
	if len(r.programs) == 0 {
		return nil, nil
	}
	return r.plan.opts.Device.TakeFaults(r.pool.stream, r.programs...)
}

// env returns the values of symbols at the run. Those of symbols that do not count the
// function's rows are known of its latest run alone.
func (r Results) env() (env, error) {
	fn := r.fn
	if fn.size == "" && len(fn.symbols) == 0 || fn.size != "" && len(fn.symbols) == 1 {
		return fn.envFor(r.rows), nil
	}
	if fn.run != r.run {
		return env{}, &StaleError{Func: fn.ir.Name, Run: r.run, Latest: fn.run}
	}
	return fn.envOf(fn.ran), nil
}

// Shape returns the result's extents, without padded rows.
func (r Result) Shape() ([]int64, error) {
	if err := r.exists(); err != nil {
		return nil, err
	}
	e, err := r.set.env()
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

// Tensor returns the result where it lies on the device, without padded rows.
// Whoever reads it must be ordered before the function's next run.
func (r Result) Tensor() (device.Tensor, error) {
	if err := r.check(); err != nil {
		return device.Tensor{}, err
	}
	fn := r.set.fn
	e, err := r.set.env()
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

// memory returns where the result lies, without padded rows.
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
	e, err := r.set.env()
	if err != nil {
		return 0, err
	}
	return e.bytes(r.set.fn.ir.ResultTypes[r.i])
}

// CopyTo copies the result, without padded rows, to host memory of exactly its
// size, and waits for it. Whether the result is stale is checked when the copy
// is enqueued. [device.IndexError]s come with the data copied.
func (r Result) CopyTo(dst []byte) error {
	if err := r.StartCopy(dst); err != nil {
		return err
	}
	return r.set.fn.b.settle()
}

// StartCopy is CopyTo without the wait: dst is filled once what was enqueued on
// the pool's stream up to now is done, which an event recorded on it tells.
// Memory of [device.Device.AllocHost] is what a device copies to without waiting.
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
