package piecewise

import (
	"context"
	"fmt"
)

// Func is one function of a backend. [Backend.Func] returns a nil Func for a name that the module
// does not have; its methods return [ErrNoFunc] or a zero value.
type Func struct{ fn *instance }

// Name returns the function's name, without "@".
func (f *Func) Name() string {
	if f == nil {
		return ""
	}
	return f.fn.ir.Name
}

// Padding returns nil if runs of the function may be padded to a captured size, otherwise the
// reason, with the source location of the op, parameter or result that forbids it (C11).
func (f *Func) Padding() error {
	if f == nil {
		return ErrNoFunc
	}
	return f.fn.noPad
}

// Run issues one run and returns when everything is enqueued. The extern ops of
// the function get meta unchanged. If ctx has ended when Run is called, Run
// returns its error. Later only a run on a [device.Interruptible] stream, such as
// the host's, ends with the context: Run returns the cause, and the contents of
// results and of states that the run writes are undefined. Inputs are spent once
// their copies are enqueued; after an error before that they may be run again.
//
// Run fails with [ErrOrder] before Load, [ErrBusy] while another call uses the pool, and [ErrSlotUsed]
// if the inputs are spent. If a result that was set as an input was overwritten, the error is a
// [StaleError]; if memory moved since the capture, an [AddressError]; and if a frozen backend refuses
// the batch, a [FrozenError].
//
// In a mode that captures, the run is padded to the smallest captured size that is
// at least the number of rows. The run is eager before Capture, if there is no such size, if it
// would need padding that is not allowed, or if the mode has no graph for the function or the batch;
// [Func.Choose] returns the reason.
func (f *Func) Run(ctx context.Context, in Inputs, meta any) (Results, error) {
	if f == nil {
		return Results{}, ErrNoFunc
	}
	fn := f.fn
	b := fn.b
	if err := b.enter(loaded, sealed); err != nil {
		return Results{}, err
	}
	defer b.pool.release()
	if err := in.check(); err != nil {
		return Results{}, err
	}
	if in.slot.fn != fn {
		return Results{}, fmt.Errorf("piecewise: inputs of @%s were given to @%s: pass those of its own Func.Inputs", in.slot.fn.ir.Name, fn.ir.Name)
	}
	if err := ctx.Err(); err != nil {
		return Results{}, err
	}
	b.pool.obey(ctx)
	defer b.pool.settle(nil)
	if err := b.pool.Enter(); err != nil {
		return Results{}, b.note(err)
	}
	defer b.pool.Leave()
	if err := b.residents.mapStates(); err != nil { // runs may come before Capture
		return Results{}, b.note(err)
	}
	rows := in.slot.rows
	if err := in.slot.complete(); err != nil {
		return Results{}, err
	}
	at, how, skip := fn.choose(rows, in.slot.uniform)
	if how != RunEager && fn.graphs == nil {
		how, skip = RunEager, skipBefore
	}
	size := rows
	var c *captured
	var l *settled
	if how == RunEager {
		if err := fn.frozen(rows, skip); err != nil {
			return Results{}, err
		}
		var err error
		if l, err = fn.eagerLayout(rows); err != nil {
			return Results{}, b.note(err)
		}
	} else {
		c = fn.graphs[at]
		size, l = c.size, c.layout
		if err := fn.checkAddresses(c); err != nil {
			return Results{}, err
		}
		if err := in.slot.maskIndices(); err != nil {
			return Results{}, err
		}
	}
	if err := in.slot.send(size); err != nil {
		return Results{}, b.note(err)
	}
	in.slot.taken = false
	fn.ran = append(fn.ran[:0], in.slot.values...)
	if b.profile != nil {
		b.profile.Enter(fn.name)
		defer b.profile.Leave()
	}
	fn.begin() // from here on the old results are gone, whether the run succeeds or not
	if b.plan.opts.Debug.Poison {
		if err := fn.poison(l); err != nil {
			return Results{}, b.note(err)
		}
	}
	err := fn.prepare(meta, size, rows)
	switch {
	case err != nil:
	case how == RunEager:
		err = fn.runEager(rows, in.slot, meta, l)
		b.stats.eager.Add(1)
		b.stats.skipped[skip].Add(1)
	case how == RunPiecewise:
		err = fn.replay(c, rows, meta)
		b.stats.replays.Add(1)
	case how == RunFull:
		err = fn.replayFull(c, rows, meta)
		b.stats.full.Add(1)
	}
	if err = b.pool.settle(err); err != nil {
		return Results{}, b.note(err)
	}
	b.stats.rows.Add(rows)
	b.stats.padded.Add(size - rows)
	if o := b.plan.opts.Observe.Observer; o != nil {
		o.Ran(fn.ir.Name, rows, size, how)
	}
	return Results{fn: fn, run: fn.run, rows: rows, size: size}, nil
}

// Choice is how Run issues a batch, and why.
type Choice struct {
	Mode RunMode
	Size int64  // rows, padding included
	Why  string // one clause, for people
	Err  error  // not nil: Inputs (a number of rows that cannot be run) or Run refuses the batch with it
}

// Choose returns how Run issues a batch of so many rows; Run makes the same decision. Before Load,
// this is the decision after Capture; from Load on, the decision of a run now. uniform is the
// argument of [Inputs.SetUniform]. If Run does not refuse the batch, Choose allocates nothing.
func (f *Func) Choose(rows int64, uniform bool) Choice {
	if f == nil {
		return Choice{Why: ErrNoFunc.Error(), Err: ErrNoFunc}
	}
	fn := f.fn
	if rows < fn.lo || rows > fn.hi {
		err := fn.outside(rows)
		return Choice{Mode: RunEager, Size: rows, Why: err.Error(), Err: err}
	}
	at, how, skip := fn.choose(rows, uniform)
	planned := fn.b.at() == compiled
	if how != RunEager && fn.graphs == nil && !planned {
		how, skip = RunEager, skipBefore
	}
	switch how {
	case RunEager:
		return Choice{Mode: RunEager, Size: rows, Why: skipNames[skip], Err: fn.frozen(rows, skip)}
	case RunFull:
		why := "mode full serves every batch"
		switch {
		case fn.size == "":
			why = "the function has no batch symbol, and is captured as a full graph"
		case fn.plan.opts.Capture.Mode != Full:
			why = "the batch is uniform, which full graphs are captured for"
		}
		return Choice{Mode: how, Size: fn.sizes[at], Why: why}
	}
	return Choice{Mode: how, Size: fn.sizes[at], Why: fn.whyPieces(at, uniform)}
}

// whyPieces returns why the pieces' graphs serve a batch.
func (fn *function) whyPieces(at int16, uniform bool) string {
	if uniform && fn.plan.opts.Capture.Mode == FullAndPiecewise && int(at) >= fn.full {
		return "the pieces are captured, and the full graph only for decode steps, which have fewer rows"
	}
	return "the pieces are captured and the batch need not be uniform"
}

// outside is the error of a size that cannot be run.
func (fn *function) outside(rows int64) error {
	return fmt.Errorf("%w: @%s runs %d to %d rows, not %d", ErrSize, fn.ir.Name, fn.lo, fn.hi, rows)
}

// frozen returns the error of a frozen backend if rows above the largest captured size, or rows
// that must not be padded, would run without a graph.
func (fn *function) frozen(rows int64, skip skipReason) error {
	if !fn.plan.opts.Frozen {
		return nil
	}
	var why string
	switch skip {
	case skipPadding:
		why = fn.noPad.Error()
	case skipAbove:
		why = fmt.Sprintf("the largest captured size is %d", len(fn.pick)-1)
	default:
		// The mode runs them eagerly, the function has no capture size, or Capture was not called. New
		// refuses functions that no graph can serve.
		return nil
	}
	return &FrozenError{Reason: fmt.Sprintf("%d rows of @%s would run uncaptured: %s", rows, fn.ir.Name, why)}
}

// choose returns the index in fn.sizes of the size that serves so many rows after Capture, and
// the run mode; for RunEager, skip is the reason.
func (fn *function) choose(rows int64, uniform bool) (at int16, how RunMode, skip skipReason) {
	mode := fn.plan.opts.Capture.Mode
	uniform = uniform || fn.size == ""
	switch {
	case mode == None:
		return 0, RunEager, skipMode
	case fn.noGraph != nil:
		return 0, RunEager, fn.skip
	case len(fn.sizes) == 0:
		return 0, RunEager, skipNotCaptured
	case mode == FullDecodeOnly && !uniform:
		return 0, RunEager, skipNotUniform
	case rows >= int64(len(fn.pick)):
		return 0, RunEager, skipAbove
	case fn.pick[rows] < 0:
		return 0, RunEager, skipPadding
	}
	at = fn.pick[rows]
	if int(at) < fn.full && (mode == Full || uniform) {
		return at, RunFull, 0
	}
	return at, RunPiecewise, 0
}

// prepare calls Prepare of the ops that have it, before the units of a run are launched.
func (fn *instance) prepare(meta any, size, rows int64) error {
	for _, op := range fn.preparers {
		if err := op.Prepare(fn.b.pool.stream, meta, size, rows); err != nil {
			return fmt.Errorf("@%s at size %d: %s: %w", fn.ir.Name, size, op.Signature().Name, err)
		}
	}
	return nil
}

// replay issues the pieces' graphs and the calls between them, without allocations
// or look-ups.
func (fn *instance) replay(c *captured, rows int64, meta any) error {
	c.tell(rows, meta)
	ranges := fn.b.profile
	for i := range c.steps {
		if ranges != nil {
			ranges.Enter(fn.units[i].name)
		}
		err := fn.issue(&c.steps[i], rows, meta)
		if ranges != nil {
			ranges.Leave()
		}
		if err != nil {
			return fn.failed(c.size, i, err)
		}
	}
	return nil
}

func (fn *instance) issue(s *replayStep, rows int64, meta any) error {
	stream := fn.b.pool.stream
	switch {
	case s.graph != nil:
		return stream.LaunchGraph(s.graph)
	case s.call != nil:
		s.call.Meta, s.call.Rows = meta, rows
		s.count.calls.Add(1)
		return s.op.Launch(s.call)
	}
	return stream.Launch(s.launch)
}

// tell sets the metadata and rows of the calls in pieces and full graphs. A replayed op reads
// them through its OpCall, whose address is the one that was recorded.
func (c *captured) tell(rows int64, meta any) {
	for _, call := range c.inside {
		call.Meta, call.Rows = meta, rows
	}
}

// replayFull issues the full graph of the function.
func (fn *instance) replayFull(c *captured, rows int64, meta any) error {
	c.tell(rows, meta)
	if err := fn.b.pool.stream.LaunchGraph(c.full); err != nil {
		return fmt.Errorf("@%s at size %d, the full graph: %w", fn.ir.Name, c.size, err)
	}
	return nil
}

// runEager binds and launches every unit without padded rows.
func (fn *instance) runEager(rows int64, slot *slotMemory, meta any, l *settled) error {
	e := fn.envOf(slot.values)
	ranges := fn.b.profile
	for i := range fn.units {
		if ranges != nil {
			ranges.Enter(fn.units[i].name)
		}
		err := fn.runUnit(i, rows, &e, l, meta)
		if ranges != nil {
			ranges.Leave()
		}
		if err != nil {
			return fn.failed(rows, i, err)
		}
	}
	return nil
}

// runUnit binds and launches one unit.
func (fn *instance) runUnit(i int, rows int64, e *env, l *settled, meta any) error {
	u := &fn.units[i]
	if u.piece == nil {
		call, err := fn.call(i, e, l)
		if err != nil {
			return err
		}
		call.Meta, call.Rows = meta, rows
		fn.b.stats.ops[u.op.Signature().Name].calls.Add(1)
		return u.op.Launch(call)
	}
	launch, err := fn.bind(i, rows, e, l)
	if err != nil {
		return err
	}
	for _, call := range launch.Calls() {
		call.Meta, call.Rows = meta, rows
	}
	return fn.b.pool.stream.Launch(launch)
}

// failed says which unit of a run failed.
func (fn *function) failed(size int64, unit int, err error) error {
	u := &fn.units[unit]
	return fmt.Errorf("@%s at size %d, piece %d (%s): %w", fn.ir.Name, size, fn.split.Items[u.item].ID, fn.loc(u, 0), err)
}
