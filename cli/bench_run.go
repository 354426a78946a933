package cli

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"pwc/attention"
	"pwc/ir"
	"pwc/piecewise"
	"pwc/runtime/device"
)

// benchRun is the common part of bench's benchmarks: a target, and a temporary cache.
type benchRun struct {
	app    *app
	target *target
	build  *buildFlags
	cache  string // the directory of the artifacts
	status *statusLine
	world  *world // nil before join
}

// benchRun opens the target of the flags and makes a temporary cache. The caller calls close.
func (a *app) benchRun(bf *buildFlags) (benchRun, error) {
	dir, err := os.MkdirTemp("", "pwc-bench-*")
	if err != nil {
		return benchRun{}, err
	}
	t, err := openTarget(bf, true)
	if err != nil {
		return benchRun{}, errors.Join(err, os.RemoveAll(dir))
	}
	r := benchRun{app: a, target: t, build: bf, cache: dir, status: &statusLine{w: a.screen}}
	if bf.process.follows() { // only rank 0 prints
		r.status = &statusLine{}
	}
	return r, nil
}

// join joins the target, and the other devices that the module needs, to the module's groups. The caller passes the
// benchmark's error, or nil, to closeWorld: an error ends the groups.
func (r *benchRun) join(ctx context.Context, m *ir.Module) (closeWorld func(error) error, err error) {
	w, err := r.target.joinWorld(ctx, m, r.build)
	if err != nil {
		return nil, err
	}
	r.world = w
	return func(err error) error {
		if err != nil {
			w.fail(0, err)
		}
		return errors.Join(err, w.close())
	}, nil
}

func (r *benchRun) close() error {
	r.status.clear()
	return errors.Join(r.target.close(), os.RemoveAll(r.cache))
}

// bench is one run of the command.
type bench struct {
	benchRun
	flags *benchFlags
	mode  piecewise.Mode

	peers []*bench // of the other devices, with only the fields that a step needs

	backend  *piecewise.Backend
	ops      []*tracedOp
	captures *captureTimes
	stream   device.Stream
	meter    meter

	context, block, blocks int64 // tokens of a request, of a block; blocks of a request
	module                 *ir.Module
	batch                  *attention.Batch
	shape                  stepShape // of batch
}

// stepShape is a step of requests that have query new tokens each, at the end of their contexts.
type stepShape struct{ requests, query, context int64 }

func (s stepShape) rows() int64 { return s.requests * s.query }

// decode is a step of n requests with one row each.
func (b *bench) decode(n int64) stepShape { return stepShape{n, 1, b.context} }

// prefill is a step of one prompt of n tokens.
func prefill(n int64) stepShape { return stepShape{1, n, n} }

// run loads, captures and measures.
func (b *bench) run(ctx context.Context, m *model, f *modelFlags, r *benchReport) (err error) {
	defer func() { err = errors.Join(err, b.closeBackends()) }()
	b.module = m.module
	if err := b.world.agree(ctx, b.flags.settings(m.module)+", "+b.build.settings()); err != nil {
		return err
	}
	weights, closeWeights, err := m.source(f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeWeights()) }()
	b.status.say("loading %s of weights", byteCount(r.Plan.WeightBytes))
	start := time.Now()
	if err := b.load(ctx, weights); err != nil {
		return err
	}
	b.target.trace.memory(b.backend.Plan())
	r.Load = time.Since(start).Seconds()
	b.stream = b.backend.Stream()
	if b.meter, err = b.target.meter(b.stream); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.meter.close()) }()
	if !b.build.process.follows() {
		b.status.say("measuring the memory's bandwidth")
		if r.Bandwidth, err = b.meter.bandwidth(); err != nil {
			return err
		}
	}
	if err := b.world.meet(ctx, "weights are loaded"); err != nil {
		return err
	}
	// The first run allocates the states: their memory must not count as memory of graphs.
	if err := b.wait(b.step(ctx, b.decode(slices.Min(b.flags.batches)), false)); err != nil {
		return err
	}
	if b.flags.profile {
		for _, n := range b.flags.batches {
			b.status.say("profiling steps of %s", plural(n, "row"))
			p, err := profile(b.target, b.stream, b.meter, b.ops, func() error {
				_, err := b.step(ctx, b.decode(n), false)
				return err
			})
			if err != nil {
				return err
			}
			p.Batch = n
			r.Profiles = append(r.Profiles, p)
		}
	}
	b.status.say("capturing %s", plural(r.Plan.Graphs, "graph"))
	if r.Captures, err = b.capture(ctx); err != nil {
		return err
	}
	s := b.backend.Stats()
	r.Library = benchLibrary{s.LibraryCalls, s.LibraryUntuned, s.LibraryMissing}
	if err := b.measureAll(ctx, r); err != nil {
		return err
	}
	return errors.Join(b.stream.Synchronize(), b.backend.Faults())
}

// measureAll measures decode steps of every size in every mode, then prompts.
func (b *bench) measureAll(ctx context.Context, r *benchReport) error {
	for _, n := range b.flags.batches {
		for _, mode := range b.flags.modes {
			b.status.say("measuring steps of %s, %s", plural(n, "row"), mode)
			s, err := b.measure(ctx, b.decode(n), mode == "full")
			if err != nil {
				return err
			}
			s.Batch, s.ReadBytes = n, readBytes(b.module, n, b.context)
			s.Share = float64(s.ReadBytes) / s.MS * 1e3 / r.Bandwidth
			r.Steps = append(r.Steps, s)
		}
	}
	for _, n := range b.flags.prompts {
		b.status.say("measuring a prompt of %s", plural(n, "token"))
		s, err := b.measure(ctx, prefill(n), false)
		if err != nil {
			return err
		}
		r.Prefill = append(r.Prefill, benchPrefill{n, s.Size, s.Mode, 1e3 * float64(n) / s.InARow, s.benchTimes})
	}
	return nil
}

// wait waits for the results of a step.
func (b *bench) wait(r piecewise.Results, err error) error {
	if err != nil {
		return err
	}
	return r.Wait()
}

// stepOnOne issues a step on a device. The last row of each request gives logits.
func (b *bench) stepOnOne(ctx context.Context, shape stepShape, whole bool) (piecewise.Results, error) {
	if err := b.describe(shape); err != nil {
		return piecewise.Results{}, err
	}
	f, l := b.module.Func("forward"), b.module.Func("logits")
	in, err := b.inputs(f.Name, shape.rows(), whole)
	if err != nil {
		return piecewise.Results{}, err
	}
	ids, err := in.Int32s(paramNames(f)[0])
	if err != nil {
		return piecewise.Results{}, err
	}
	positions, err := in.Int32s(paramNames(f)[1])
	if err != nil {
		return piecewise.Results{}, err
	}
	vocabulary := vocabulary(b.module)
	for i := range ids {
		ids[i], positions[i] = int32(int64(i)%vocabulary), int32(shape.context-shape.query+int64(i)%shape.query)
	}
	hidden, err := b.backend.Func(f.Name).Run(ctx, in, b.batch)
	if err != nil {
		return piecewise.Results{}, err
	}
	if in, err = b.inputs(l.Name, shape.requests, whole); err != nil {
		return piecewise.Results{}, err
	}
	if err := in.SetResult(paramNames(l)[0], hidden.At(0)); err != nil {
		return piecewise.Results{}, err
	}
	rows, err := in.Int32s(paramNames(l)[1])
	if err != nil {
		return piecewise.Results{}, err
	}
	for i := range rows {
		rows[i] = int32(int64(i+1)*shape.query - 1)
	}
	return b.backend.Func(l.Name).Run(ctx, in, nil)
}

// inputs waits for a free staging slot.
func (b *bench) inputs(fn string, n int64, whole bool) (piecewise.Inputs, error) {
	in, err := whenFree(func() (piecewise.Inputs, error) { return b.backend.Func(fn).Inputs(n) })
	if err == nil {
		in.SetUniform(whole)
	}
	return in, err
}

// describe makes the metadata of a step's shape, unless b.batch has it already. Request r has
// blocks r·n to (r+1)·n−1, for n blocks of a context.
func (b *bench) describe(s stepShape) error {
	if b.batch != nil && b.shape == s {
		return nil
	}
	blocks := (s.context + b.block - 1) / b.block
	b.batch, b.shape = attention.NewBatch(int(s.requests), int(s.rows()), int(blocks)), s
	table := make([]int32, blocks)
	for r := range s.requests {
		for i := range table {
			table[i] = int32(r*blocks) + int32(i)
		}
		if err := b.batch.Add(int(s.context-s.query), int(s.query), table, int(b.block)); err != nil {
			return err
		}
	}
	return nil
}

// capture captures the sizes of --capture-sizes, and returns the costs by mode.
func (b *bench) capture(ctx context.Context) ([]benchCapture, error) {
	warmup := func(p *bench) error { return p.backend.Warmup(ctx) }
	if err := b.together(func() error { return warmup(b) }, warmup); err != nil {
		return nil, err
	}
	if err := b.captures.begin(b.meter); err != nil {
		return nil, err
	}
	capture := func(p *bench) error { return p.backend.Capture(ctx) }
	if err := b.together(func() error { return capture(b) }, capture); err != nil {
		return nil, err
	}
	errs := []error{b.captures.err, b.backend.Seal()}
	for _, p := range b.peers {
		errs = append(errs, p.backend.Seal())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var out []benchCapture
	pieces := b.mode == piecewise.Piecewise || b.mode == piecewise.FullAndPiecewise
	for i, c := range b.captures.kinds {
		c.Sizes = len(b.backend.Func("forward").Sizes())
		c.Mode = "full"
		if i == 0 && pieces {
			c.Mode = "piecewise"
		}
		out = append(out, *c)
	}
	return out, nil
}

// measure times steps of a shape, alone and in a row.
func (b *bench) measure(ctx context.Context, shape stepShape, whole bool) (s benchStep, err error) {
	choice := b.backend.Func("forward").Choose(shape.rows(), whole)
	s = benchStep{Size: choice.Size, Mode: choice.Mode.String()}
	s.benchTimes, err = b.flags.repeats.times(b.meter, func() error {
		_, err := b.step(ctx, shape, whole)
		return err
	}, nil)
	return s, err
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// readBytes returns the bytes that a step of n rows must read: weights, n rows of each table that
// is only read by embedding or gather, and the keys and values of all contexts.
func readBytes(m *ir.Module, n, context int64) int64 {
	total := int64(0)
	for _, w := range m.Weights {
		count, ok := w.Type.Elements().Const()
		if !ok {
			continue
		}
		bytes := w.Type.DType.Bytes(count)
		switch whole, picked := readsOf(m, w); {
		case whole:
			total += bytes
		case picked: // a table has rows; other weights may be scalars
			if rows, _ := w.Type.Shape[0].Const(); rows > 0 {
				total += min(n, rows) * (bytes / rows)
			}
		}
	}
	for _, s := range m.States {
		if s.Type.Rank() != 5 {
			continue
		}
		block, err := s.Type.Elements().Eval(func(string) (int64, bool) { return 1, true })
		if tokens, ok := s.Type.Shape[2].Const(); ok && err == nil {
			total += s.Type.DType.Bytes(block) / tokens * context * n
		}
	}
	return total
}

// readsOf reports whether a module reads a weight as a whole, and whether it reads single rows.
func readsOf(m *ir.Module, w *ir.Weight) (whole, picked bool) {
	for _, f := range m.Funcs {
		for _, node := range f.Nodes {
			for i, v := range node.Args {
				if info := f.Values[v]; info.Kind != ir.WeightValue || m.Weights[info.Index] != w {
					continue
				}
				table := i == 0 && (node.Op.ID == ir.OpEmbedding || node.Op.ID == ir.OpGather)
				whole, picked = whole || !table, picked || table
			}
		}
	}
	return whole, picked
}

// tracedOp calls trace, if it is not nil, before and after each launch of an extern op outside a capture, and after
// each preparation.
type tracedOp struct {
	wrapped
	trace func(traced)
}

// Launch implements device.Op.
func (o *tracedOp) Launch(c *device.OpCall) error {
	trace := o.trace != nil && !c.Capturing
	if trace {
		o.trace(traced{})
	}
	err := o.Op.Launch(c)
	if trace {
		o.trace(traced{name: o.Signature().Name})
	}
	return err
}

// Prepare implements device.Preparer. It does nothing if the op has no Prepare.
func (o *tracedOp) Prepare(s device.Stream, meta any, size, rows int64) error {
	p, ok := o.Op.(device.Preparer)
	if !ok {
		return nil
	}
	err := p.Prepare(s, meta, size, rows)
	if o.trace != nil {
		o.trace(traced{name: "inputs and metadata of the step"})
	}
	return err
}

// captureTimes is an observer that sums the costs of captures by kind. For each function and size
// the backend captures pieces before the whole function, if it captures both.
type captureTimes struct {
	kinds []*benchCapture
	seen  map[capturedSize]int
	meter meter
	free  int64
	known bool
	err   error
}

type capturedSize struct {
	fn   string
	size int64
}

func newCaptureTimes() *captureTimes { return &captureTimes{seen: map[capturedSize]int{}} }

// begin records the free memory before the first capture.
func (c *captureTimes) begin(m meter) (err error) {
	c.meter = m
	c.free, c.known, err = m.free()
	return err
}

// Captured adds graphs of one function and size.
func (c *captureTimes) Captured(fn string, size int64, graphs int, took time.Duration) {
	at := capturedSize{fn, size}
	kind := c.seen[at]
	c.seen[at]++
	if kind == len(c.kinds) {
		c.kinds = append(c.kinds, &benchCapture{})
	}
	k := c.kinds[kind]
	k.Graphs += graphs
	k.Seconds += took.Seconds()
	if !c.known {
		return
	}
	free, _, err := c.meter.free()
	c.err = errors.Join(c.err, err)
	if k.Bytes == nil {
		k.Bytes = new(int64)
	}
	*k.Bytes += c.free - free
	c.free = free
}

// Ran does nothing.
func (c *captureTimes) Ran(string, int64, int64, piecewise.RunMode) {}
