package piecewise

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"pwc/graphs"
	"pwc/ir/dim"
	"pwc/runtime/device"
)

// captured is one function captured for one size: a flat list that a run issues
// without look-ups.
type captured struct {
	size   int64
	layout *settled
	steps  []replayStep     // the pieces' graphs and the calls between them
	full   device.Graph     // the whole function; nil: no full graph serves this size
	inside []*device.OpCall // in pieces, and in the full graph
	inputs []fixedMemory    // parameters whose addresses the graphs contain (C7)
	fixed  []fixedMemory    // weights and states whose addresses the graphs contain
	agreed uint64           // residents.assigned when the addresses of fixed were last compared and equal
	graphs []*graphs.Recording
}

// replayStep is a graph, or a call or launch between graphs.
type replayStep struct {
	graph  device.Graph
	op     device.Op
	call   *device.OpCall
	count  *opCounter
	launch device.BoundLaunch // ops of the table in a splitting piece
}

// Capture records the functions at their capture sizes: of each function the pieces before the
// full graphs, both from the largest size on (vLLM's order). Recording executes nothing; Capture
// calls Warmup first if that was not done. If one size fails, all graphs of its function are dropped
// and the error is returned; the other functions of the module keep the graphs that they have.
func (b *Backend) Capture(ctx context.Context) error {
	if err := b.enter(loaded, capturedAll); err != nil {
		return err
	}
	defer b.pool.release()
	start := time.Now()
	if b.at() < warm {
		if err := b.warmup(ctx); err != nil {
			return b.note(err)
		}
		b.plan.opts.Observe.Logger.Info("warmed up", "seconds", time.Since(start).Seconds())
		start = time.Now()
	}
	free, known, err := b.freeBytes()
	if err != nil {
		return b.note(err)
	}
	for _, fn := range b.funcs {
		if err := fn.dropGraphs(); err != nil {
			return b.note(err)
		}
		if err := fn.captureSizes(ctx); err != nil {
			return b.note(err)
		}
	}
	took := time.Since(start)
	graphs := []any{"graphs", b.Stats().GraphsCaptured, "seconds", took.Seconds()}
	left, _, err := b.freeBytes()
	if err != nil {
		return b.note(err)
	}
	if known {
		graphs = append(graphs, "bytes", free-left)
	}
	b.plan.opts.Observe.Logger.Info("captured", graphs...)
	if err := b.residents.mapStates(); err != nil {
		return b.note(err)
	}
	b.advance(capturedAll)
	return nil
}

// freeBytes returns the free memory of the device in bytes, if the device knows it.
func (b *Backend) freeBytes() (n int64, known bool, err error) {
	d, ok := b.plan.opts.Device.(device.Budgeted)
	if !ok {
		return 0, false, nil
	}
	n, err = d.FreeBytes()
	return n, n != math.MaxInt64, err
}

// captureSizes captures, as far as the mode asks for them, pieces at every size, and then the full
// graph at the smallest fn.full sizes. If one fails, all are dropped: the largest sizes come first, and
// to pad small runs to them would cost more than runs without graphs.
func (fn *instance) captureSizes(ctx context.Context) error {
	type pass struct {
		capture func(*captured, *settled) error
		sizes   int // from the smallest
	}
	var passes []pass
	if fn.plan.opts.Capture.Mode.pieces() {
		passes = append(passes, pass{fn.capturePieces, len(fn.sizes)})
	}
	if fn.full > 0 && !(fn.plan.opts.Capture.Mode.pieces() && fn.alone()) {
		passes = append(passes, pass{fn.captureFull, fn.full})
	}
	if len(fn.sizes) == 0 {
		return nil
	}
	all := make([]*captured, len(fn.sizes))
	for i, n := range fn.sizes {
		all[i] = &captured{size: n}
	}
	fn.graphs = all
	for _, p := range passes {
		for i := p.sizes - 1; i >= 0; i-- {
			if err := fn.captureSize(ctx, all[i], p.capture); err != nil {
				return errors.Join(err, fn.dropGraphs())
			}
		}
	}
	if fn.plan.opts.Capture.Mode.pieces() && fn.alone() {
		for _, c := range all[:fn.full] {
			c.full = c.steps[0].graph // a capture of the full graph would record the same launch
		}
	}
	return nil
}

// captureSize adds graphs to those of a size.
func (fn *instance) captureSize(ctx context.Context, c *captured, capture func(*captured, *settled) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	start, before := time.Now(), len(c.graphs)
	if c.layout == nil {
		placed, err := fn.place(c.size)
		if err != nil {
			return err
		}
		l := &settled{layout: placed}
		if err := fn.settle(l); err != nil {
			return err
		}
		c.layout = l
	}
	l := c.layout
	if err := capture(c, l); err != nil {
		return fmt.Errorf("capture of @%s at size %d: %w", fn.ir.Name, c.size, err)
	}
	c.inputs, c.fixed, c.agreed = c.inputs[:0], c.fixed[:0], 0
	e := fn.envFor(c.size)
	for i, s := range fn.storages {
		if s.kind == inWork || s.kind == inResult {
			continue
		}
		buf, err := fn.buffer(int32(i), &e, l)
		if err != nil {
			return err
		}
		if s.kind == inParam {
			c.inputs = append(c.inputs, fixedMemory{int32(i), buf})
		} else {
			c.fixed = append(c.fixed, fixedMemory{int32(i), buf})
		}
	}
	recorded := len(c.graphs) - before
	fn.b.stats.captured.Add(int64(recorded))
	if o := fn.plan.opts.Observe.Observer; o != nil {
		o.Captured(fn.ir.Name, c.size, recorded, time.Since(start))
	}
	return nil
}

// record captures the operations of enqueue into one graph.
func (c *captured) record(b *Backend, enqueue func(s device.Stream) error) (device.Graph, error) {
	r, err := graphs.Record(b.pool.mem, b.pool.stream, device.CaptureThreadLocal, enqueue)
	if err != nil {
		return nil, err
	}
	c.graphs = append(c.graphs, r)
	return r.Graph(), nil
}

func (fn *instance) capturePieces(c *captured, l *settled) error {
	e := fn.envFor(l.size)
	for i := range fn.units {
		u := &fn.units[i]
		if u.piece == nil {
			call, err := fn.call(i, &e, l)
			if err != nil {
				return err
			}
			c.steps = append(c.steps, replayStep{op: u.op, call: call, count: fn.b.stats.ops[u.op.Signature().Name]})
			continue
		}
		launch, err := fn.bind(i, l.size, &e, l)
		if err != nil {
			return err
		}
		c.inside = append(c.inside, launch.Calls()...)
		if u.splitting {
			c.steps = append(c.steps, replayStep{launch: launch})
			continue
		}
		g, err := c.record(fn.b, func(s device.Stream) error { return s.Launch(launch) })
		if err != nil {
			return err
		}
		c.steps = append(c.steps, replayStep{graph: g})
	}
	return nil
}

func (fn *instance) captureFull(c *captured, l *settled) error {
	e := fn.envFor(l.size)
	var err error
	c.full, err = c.record(fn.b, func(s device.Stream) error {
		for i := range fn.units {
			u := &fn.units[i]
			if u.piece == nil {
				call, err := fn.call(i, &e, l)
				if err != nil {
					return err
				}
				call.Capturing = true
				c.inside = append(c.inside, call)
				if err := u.op.Launch(call); err != nil {
					return err
				}
				continue
			}
			launch, err := fn.bind(i, l.size, &e, l)
			if err != nil {
				return err
			}
			c.inside = append(c.inside, launch.Calls()...)
			if err := s.Launch(launch); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// bind resolves a piece's addresses for the symbols of a run of size n.
func (fn *instance) bind(i int, n int64, e *env, l *settled) (device.BoundLaunch, error) {
	u := &fn.units[i]
	p, err := fn.plan.program(u.piece, n)
	if err != nil {
		return nil, err
	}
	values, err := e.symbols(u.piece.Symbols)
	if err != nil {
		return nil, err
	}
	args := device.Args{Params: make([]device.Buffer, len(u.args)), Results: make([]device.Buffer, len(u.results))}
	for j, a := range u.args {
		if args.Params[j], err = fn.bound(a, e, l); err != nil {
			return nil, err
		}
	}
	for j, r := range u.results {
		if args.Results[j], err = fn.bound(r, e, l); err != nil {
			return nil, err
		}
	}
	x := fn.b.residents.executables[p]
	need, err := x.ScratchBytes(values)
	if err != nil {
		return nil, err
	}
	if args.Scratch, err = fn.scratch(i, need, l); err != nil {
		return nil, err
	}
	launch, err := x.Bind(values, args)
	if err != nil {
		return nil, err
	}
	size, _ := e.lookup(fn.size)
	for _, call := range launch.Calls() {
		call.Size, call.Rows, call.Loc = size, size, fn.loc(u, call.Origin)
		if o := call.Origin; o >= 0 && int(o) < len(u.piece.Origins) {
			call.RowExtents = fn.rowExtents(u.piece.Origins[o])
		}
	}
	return launch, nil
}

// bound is buffer, and updates the high-water mark of the arena, which tests compare with
// the plan (C5).
func (fn *instance) bound(i int32, e *env, l *settled) (device.Buffer, error) {
	b, err := fn.buffer(i, e, l)
	if err == nil && fn.storages[i].kind == inWork {
		fn.b.stats.tookArena(l.offset[i] + b.Size)
	}
	return b, err
}

func (fn *instance) scratch(i int, need int64, l *settled) (device.Buffer, error) {
	if need > l.need[i] {
		return device.Buffer{}, fmt.Errorf("%w: scratch of %d bytes, the plan for size %d has %d", ErrSize, need, l.size, l.need[i])
	}
	if need == 0 {
		return device.Buffer{}, nil
	}
	fn.b.stats.tookArena(l.scratch[i] + need)
	return l.room[i].Slice(0, need), nil
}

// call prepares a call of an extern op.
func (fn *instance) call(i int, e *env, l *settled) (*device.OpCall, error) {
	u := &fn.units[i]
	args, err := fn.tensors(u, e, l)
	if err != nil {
		return nil, err
	}
	for _, a := range u.args {
		if _, err := fn.bound(a, e, l); err != nil {
			return nil, err
		}
	}
	need, err := u.op.ScratchBytes(args, u.attrs)
	if err != nil {
		return nil, err
	}
	scratch, err := fn.scratch(i, need, l)
	if err != nil {
		return nil, err
	}
	size, _ := e.lookup(fn.size)
	return &device.OpCall{Stream: fn.b.pool.stream, Args: args, Attrs: u.attrs, Scratch: scratch, Size: size, Rows: size, RowExtents: fn.rowExtents(u.node), Loc: fn.loc(u, 0)}, nil
}

// rowExtents returns for each operand and result of a call how many elements of its first
// axis belong to one row of the size symbol; 0: it has no axis, or the first extent is no multiple
// of that symbol.
// It reads the types, because an extent of the call may equal the number of rows by chance.
func (fn *function) rowExtents(node int) []int64 {
	n := fn.ir.Nodes[node]
	e := fn.envFor(1)
	var out []int64
	for _, v := range slices.Concat(n.Args, n.Results) {
		extent := int64(0)
		if t := fn.ir.Type(v); fn.size != "" && t.Rank() > 0 {
			if per, ok := t.Shape[0].Div(dim.Sym(fn.size)); ok {
				extent, _ = per.Eval(e.lookup) // 0 if a symbol in it has no value
			}
		}
		out = append(out, extent)
	}
	return out
}

func (c *captured) drop() error {
	var errs []error
	for _, g := range c.graphs {
		errs = append(errs, g.Close())
	}
	c.graphs, c.steps = nil, nil
	return errors.Join(errs...)
}

func (fn *instance) dropGraphs() error {
	var errs []error
	for _, c := range fn.graphs {
		errs = append(errs, c.drop())
	}
	fn.graphs = nil
	return errors.Join(errs...)
}

// buildPick makes the table from a number of rows to the capture size that serves it.
func (fn *function) buildPick() {
	if len(fn.sizes) == 0 {
		return
	}
	fn.pick = make([]int16, fn.sizes[len(fn.sizes)-1]+1)
	k := 0
	for n := range fn.pick {
		for fn.sizes[k] < int64(n) {
			k++
		}
		fn.pick[n] = int16(k)
		if fn.noPad != nil && fn.sizes[k] != int64(n) {
			fn.pick[n] = -1
		}
	}
}
