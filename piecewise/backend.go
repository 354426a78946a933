// Package piecewise runs a module in pieces on a device: it splits the module's
// functions at their splitting ops, has the pieces compiled, places all memory
// of a step, captures every piece into one graph per size, and replays.
//
// The order is [New] → [Backend.Load] → [Backend.Warmup] → [Backend.Capture] →
// [Backend.Seal] → [Func.Run]. Runs are possible from Load on; what is not
// captured yet runs from the compiled artifacts. Once sealed nothing compiles
// or captures.
//
// One goroutine at a time may use a [Pool]: a second Run, Load or Capture gets
// [ErrBusy]. [Backend.Stats], [Backend.Plan] and [Pool.Stats] may be called from
// any goroutine at any time.
package piecewise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pwc/checkpoint"
	"pwc/ir"
	"pwc/pieces"
	"pwc/program"
	"pwc/runtime/device"
	"pwc/runtime/mem"
	"pwc/safetensors"
	"pwc/split"
)

// stage is how far a backend has come.
type stage uint8

const (
	compiled stage = iota
	loaded
	warm
	capturedAll
	sealed
	closed
)

// Backend is a module made ready to run on one device.
type Backend struct {
	module *ir.Module
	opts   Options
	pool   *Pool
	owned  bool // the pool is the backend's own
	ops    map[string]device.Op
	funcs  []*function
	built  *pieces.Result
	plan   Plan

	mu    sync.Mutex // guards stage and lost
	stage stage
	lost  error // the device fault that ended the backend (C13)

	execs          map[*program.Program]device.Executable
	loadedPrograms []device.Executable // of execs
	watch          device.FaultWatch   // of their flags
	blocks         []mem.Block
	weights        []device.Buffer
	states         stateMemory

	statePlaces []*place // by the module's states

	assigned uint64 // addresses that were, by assign
	arena    device.Buffer
	canaries []canaryBuffer
	faults   map[device.Executable]faultSource

	stats   counters
	profile ProfileRanges // Options.Observe.Observer, if it is one
}

// faultSource is where an executable's nodes come from: the first unit that
// uses it. Identical pieces share an executable, and so a message.
type faultSource struct {
	fn   *function
	unit *unit
}

// New splits and compiles a module. Artifacts come from the store where it has
// them. It keeps nothing on the device; [Backend.Plan] tells what Load and
// Capture will take.
func New(ctx context.Context, m *ir.Module, o Options) (*Backend, error) {
	b, err := analyze(m, o)
	if err != nil {
		return nil, err
	}
	if b.opts.Compile.Compiler == nil {
		return nil, fmt.Errorf("piecewise: Options.Compile.Compiler is nil")
	}
	plans := make([]*split.Plan, len(b.funcs))
	for i, fn := range b.funcs {
		plans[i] = fn.plan
	}
	if err := b.compile(ctx, plans); err != nil {
		return nil, err
	}
	if err := b.tune(ctx); err != nil {
		return nil, err
	}
	for _, fn := range b.funcs {
		var err error
		if fn.atMax, err = fn.place(fn.hi); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	if err := b.makePlan(ctx); err != nil {
		return nil, err
	}
	b.opts.Observe.Logger.Info("planned", "graphs", b.plan.Graphs, "bytes", b.plan.Total(), "arena_bytes", b.plan.PeakArenaBytes, "seconds", time.Since(start).Seconds())
	b.pool = o.Pool
	if o.Pool == nil && o.Device != nil {
		var err error
		if b.pool, err = NewPool(o.Device, 0); err != nil {
			return nil, err
		}
		b.owned = true
	}
	return b, nil
}

// analyze makes all decisions that need no compiled code: how functions are cut, which
// symbols runs bind, what is padded and captured. [Check] reports them, and New goes on
// with them, so that they cannot differ.
func analyze(m *ir.Module, o Options) (*Backend, error) {
	if m == nil {
		return nil, fmt.Errorf("piecewise: %w", ir.ErrNoModule)
	}
	if err := o.defaults(); err != nil {
		return nil, err
	}
	b := &Backend{module: m, opts: o, execs: map[*program.Program]device.Executable{}, faults: map[device.Executable]faultSource{}}
	b.stats.ops, b.stats.atLoad = map[string]*opCounter{}, map[string]int64{}
	b.profile, _ = o.Observe.Observer.(ProfileRanges)
	if err := b.checkSymbols(); err != nil {
		return nil, err
	}
	if err := errors.Join(b.bindOps(), b.checkSlots()); err != nil {
		return nil, err
	}
	for _, f := range m.Funcs {
		fn, err := newFunction(b, f)
		if err != nil {
			return nil, err
		}
		b.funcs = append(b.funcs, fn)
	}
	if err := b.placeAliases(); err != nil {
		return nil, err
	}
	for range m.States {
		b.statePlaces = append(b.statePlaces, &place{})
	}
	b.findWrites()
	if err := errors.Join(b.checkCapture(), b.checkSizes()); err != nil {
		return nil, err
	}
	if err := b.refuseSkips(); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *Backend) checkSymbols() error {
	var errs []error
	for name := range b.opts.Memory.Symbols {
		if s := b.module.Symbol(name); s == nil || s.Kind != ir.Load {
			errs = append(errs, fmt.Errorf("piecewise: Options.Memory.Symbols names %s, which is no load symbol of the module", name))
		}
	}
	for name := range b.opts.Memory.Max {
		if s := b.module.Symbol(name); s == nil || s.Kind == ir.Load {
			errs = append(errs, fmt.Errorf("piecewise: Options.Memory.Max names %s, which is no batch or plain symbol of the module", name))
		}
	}
	for _, s := range b.module.Symbols {
		if s.Kind != ir.Load {
			continue
		}
		v, ok := b.opts.Memory.Symbols[s.Name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("piecewise: load symbol %s in [%d, %d] needs a value in Options.Memory.Symbols", s.Name, s.Lo, s.Hi))
		case v < s.Lo || v > s.Hi:
			errs = append(errs, fmt.Errorf("%w: Options.Memory.Symbols[%q] = %d is outside [%d, %d]", ErrSize, s.Name, v, s.Lo, s.Hi))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return slices.Compare([]byte(a.Error()), []byte(b.Error())) })
	return errors.Join(errs...)
}

// checkSlots refuses entries of Options.Capture.PaddedSlots that name no parameter, or one that
// cannot hold -1 in padded rows.
func (b *Backend) checkSlots() error {
	var errs []error
	for _, s := range b.opts.Capture.PaddedSlots {
		found := false
		for _, f := range b.module.Funcs {
			for _, p := range f.Params {
				info := &f.Values[p]
				if s != info.Name && s != f.Name+"."+info.Name {
					continue
				}
				found = true
				if !maskable(info.Type.DType) {
					errs = append(errs, fmt.Errorf("piecewise: Options.Capture.PaddedSlots names %%%s of @%s, which is %s: only signed integers can hold -1", info.Name, f.Name, info.Type))
				}
			}
		}
		if !found {
			errs = append(errs, fmt.Errorf("piecewise: Options.Capture.PaddedSlots names %s, and no function has such a parameter", s))
		}
	}
	return errors.Join(errs...)
}

// bindOps holds the implementation of every op that is called against its
// declaration.
func (b *Backend) bindOps() error {
	b.ops = map[string]device.Op{}
	var errs []error
	for i, op := range b.opts.Ops {
		if op == nil {
			errs = append(errs, fmt.Errorf("%w: Options.Ops[%d] is nil", ErrOp, i))
			continue
		}
		b.ops[op.Signature().Name] = op
	}
	for _, e := range b.module.Called() {
		b.stats.ops[e.Name] = new(opCounter)
		op, ok := b.ops[e.Name]
		if !ok && b.opts.Device == nil {
			b.plan.Unplanned = append(b.plan.Unplanned, e.Name)
			continue
		}
		if !ok {
			errs = append(errs, fmt.Errorf("%w: no implementation of %q in Options.Ops", ErrOp, e.Name))
			continue
		}
		s := op.Signature()
		switch {
		case !slices.Equal(s.Mut, e.Mut) || s.Results != e.Results:
			errs = append(errs, fmt.Errorf("%w: %q is declared with operands %v (true: mut) and %d results, its implementation has %v and %d", ErrOp, e.Name, e.Mut, e.Results, s.Mut, s.Results))
		case e.Version != "" && s.Version != e.Version:
			errs = append(errs, fmt.Errorf("%w: %q is declared with version %q, its implementation has %q", ErrOp, e.Name, e.Version, s.Version))
		}
		if e.Rowwise && !e.Random && b.opts.Debug.Canary == CanaryBytes {
			b.ops[e.Name] = rowTest{op}
		}
	}
	return errors.Join(errs...)
}

// checkCapture refuses a mode that the ops do not allow, before anything is
// compiled for it: a graph would hold a call that is not declared capturable, or whose
// implementation is not.
func (b *Backend) checkCapture() error {
	var errs []error
	for _, fn := range b.funcs {
		if len(fn.sizes) == 0 {
			continue
		}
		for i := range fn.units {
			u := &fn.units[i]
			item := fn.plan.Items[u.item]
			switch {
			case u.piece == nil && fn.full > 0:
				errs = append(errs, b.refuseCapture(fn, u.node, "", "mode piecewise runs it between graphs"))
			case u.piece != nil && (!u.splitting && b.opts.Capture.Mode.pieces() || fn.full > 0):
				for _, node := range u.piece.Origins {
					why := ""
					if at := item.Uncapturable; at != nil && at.Node == node {
						why = "which may not be captured: it is " + split.WhyUncapturable(fn.ir.Nodes[node].Extern)
					}
					errs = append(errs, b.refuseCapture(fn, node, why, "split at it (Options.Compile.SplitOn), or take mode none"))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// refuseCapture returns an error if a node of a function cannot be part of a graph; why is
// what its declaration says against it, instead what can be done.
func (b *Backend) refuseCapture(fn *function, node int, why, instead string) error {
	e := fn.ir.Nodes[node].Extern
	if e == nil {
		return nil
	}
	op := b.ops[e.Name] // nil: planned without one
	switch {
	case why != "":
	case e.Host:
		why = "which is declared host, and a replay does not repeat an effect on host state"
	case op != nil && !op.Signature().Capture:
		why = "whose implementation cannot be captured"
	default:
		return nil
	}
	return fmt.Errorf("%w: %w", ErrOp, b.module.ErrorAt(fn.ir, node, "mode %s captures %s, %s; %s", b.opts.Capture.Mode, e.Name, why, instead))
}

// countsRowsOf reports whether a symbol is in the first extent of a type, and no other
// but load symbols is in any.
func (b *Backend) countsRowsOf(t ir.Type, symbol string) bool {
	if symbol == "" || t.Rank() == 0 || !slices.Contains(t.Shape[0].Symbols(), symbol) {
		return false
	}
	for _, d := range t.Shape {
		for _, name := range d.Symbols() {
			if s := b.module.Symbol(name); name != symbol && (s == nil || s.Kind != ir.Load) {
				return false
			}
		}
	}
	return true
}

// Load takes the device memory of the plan (the arena too), computes the
// weights from the checkpoint and puts them there, and loads the programs. A plan
// that exceeds the pool's limit, or what a [device.Budgeted] device can still give
// out, is refused with a [device.MemoryError] before anything is taken.
// States that the map lacks are the backend's own and hold zeros: on a
// [device.Reserver] they have their address from now on, and their memory from
// the end of Capture or the first run on, unless pieces touch them. One that the
// map has stays the runner's. Cancelling the context stops between weights.
func (b *Backend) Load(ctx context.Context, weights safetensors.Source, states map[string]device.Buffer) (err error) {
	if err := b.enter(compiled, compiled); err != nil {
		return err
	}
	defer b.pool.release()
	start := time.Now()
	b.pool.obey(ctx)
	defer func() {
		if err = b.pool.settle(err); err != nil {
			err = b.note(errors.Join(err, b.freeAll()))
		}
	}()
	if err := b.checkRoom(states); err != nil {
		return err
	}
	if err := b.loadWeights(ctx, weights); err != nil {
		return err
	}
	if err := b.loadStates(states); err != nil {
		return err
	}
	if err := b.takeStep(); err != nil {
		return err
	}
	for _, fn := range b.funcs {
		if err := fn.newRing(); err != nil {
			return err
		}
	}
	if err := b.loadPrograms(ctx); err != nil {
		return err
	}
	if err := b.pool.settle(b.pool.stream.Synchronize()); err != nil {
		return err
	}
	b.opts.Observe.Logger.Info("loaded", "weight_bytes", b.plan.WeightBytes, "state_bytes", b.plan.StateBytes, "arena_bytes", b.plan.PeakArenaBytes, "seconds", time.Since(start).Seconds())
	b.advance(loaded)
	return nil
}

// takeStep takes the memory of inputs and results, the arena, and the workspace.
func (b *Backend) takeStep() error {
	input, err := b.region(b.plan.InputBytes, "inputs")
	if err != nil {
		return err
	}
	result, err := b.region(b.plan.ResultBytes, "results")
	if err != nil {
		return err
	}
	for _, fn := range b.funcs {
		for i := range fn.inputs {
			in := &fn.inputs[i]
			if in.from != nil {
				continue
			}
			buf, err := input(fn.atMax.bytes[fn.storage(in.value)], fmt.Sprintf("input %%%s of @%s", in.name, fn.ir.Name))
			if err != nil {
				return err
			}
			b.assign(&in.place.buffer, buf)
		}
		for i := range fn.slots {
			if fn.slots[i].aliased {
				continue
			}
			buf, err := result(fn.atMax.bytes[fn.slots[i].storage], fmt.Sprintf("result %d of @%s", i, fn.ir.Name))
			if err != nil {
				return err
			}
			b.assign(&fn.slots[i].place.buffer, buf)
		}
	}
	if b.opts.Debug.Canary == CanaryOff {
		if b.arena, err = b.pool.reserve(b.plan.PeakArenaBytes); err != nil {
			return err
		}
	}
	for _, fn := range b.funcs {
		if err := fn.settle(fn.atMax); err != nil {
			return err
		}
	}
	return b.pool.workspace(b.plan.WorkspaceBytes)
}

func (b *Backend) take(bytes int64, what string) (device.Buffer, error) {
	block, buf, err := b.pool.take(bytes, what)
	if err == nil && bytes > 0 {
		b.blocks = append(b.blocks, block)
	}
	return buf, err
}

func (b *Backend) loadWeights(ctx context.Context, src safetensors.Source) error {
	b.weights = make([]device.Buffer, len(b.module.Weights))
	if len(b.module.Weights) == 0 {
		return nil
	}
	if src == nil {
		return fmt.Errorf("%w: the module has %d weights and Load got no checkpoint", ErrNotLoaded, len(b.module.Weights))
	}
	if err := checkpoint.Check(b.module, src); err != nil {
		return fmt.Errorf("%w: %w", ErrNotLoaded, err)
	}
	next, err := b.region(b.plan.WeightBytes, "weights")
	if err != nil {
		return err
	}
	computing, stop := context.WithCancel(ctx)
	computed := b.computeWeights(computing, src)
	defer func() {
		stop()
		for range computed {
		}
	}()
	var errs []error
	for i, w := range b.module.Weights {
		t, ok := <-computed
		switch {
		case !ok:
			return ctx.Err()
		case t.err != nil:
			errs = append(errs, t.err)
			continue
		}
		bytes := int64(0)
		for _, p := range t.Parts {
			bytes += int64(len(p))
		}
		buf, err := next(bytes, "weight @"+w.Name)
		if err != nil {
			return err
		}
		b.assign(&b.weights[i], buf)
		at := int64(0)
		for _, p := range t.Parts {
			if err := b.pool.stream.CopyToDevice(b.weights[i].Slice(at, int64(len(p))), p); err != nil {
				return err
			}
			at += int64(len(p))
		}
		// The host bytes may go once the copy is done.
		if err := b.pool.stream.Synchronize(); err != nil {
			return err
		}
	}
	const shown = 8 // of a checkpoint that is another model's all weights are wrong
	if n := len(errs) - shown; n > 0 {
		errs = append(errs[:shown:shown], fmt.Errorf("%w: and %d more weights", ErrNotLoaded, n))
	}
	return errors.Join(errs...)
}

// loadPrograms loads every distinct program once.
func (b *Backend) loadPrograms(ctx context.Context) error {
	for _, a := range b.built.Artifacts {
		if err := ctx.Err(); err != nil {
			return err
		}
		first := a.Uses[0]
		fn := b.funcs[first.Plan]
		u := &fn.units[first.Unit]
		x, err := b.opts.Device.Load(a.Program, device.OpSet(b.ops))
		if err != nil {
			return fmt.Errorf("@%s piece %d: %w", fn.ir.Name, fn.plan.Items[u.item].ID, err)
		}
		b.execs[a.Program] = x
		b.loadedPrograms = append(b.loadedPrograms, x)
		b.faults[x] = faultSource{fn, u}
	}
	var err error
	b.watch, err = b.opts.Device.WatchFaults(b.loadedPrograms...)
	return err
}

// Func returns the function of that name (without "@"), or nil.
func (b *Backend) Func(name string) *Func {
	for _, fn := range b.funcs {
		if fn.ir.Name == name {
			return &Func{fn}
		}
	}
	return nil
}

// Stream returns the stream that everything of the backend runs on; nil for a
// backend without a device.
func (b *Backend) Stream() device.Stream {
	if b.pool == nil {
		return nil
	}
	return b.pool.stream
}

// Seal ends the time in which anything is compiled or captured.
func (b *Backend) Seal() error {
	if err := b.enter(loaded, capturedAll); err != nil {
		return err
	}
	defer b.pool.release()
	b.advance(sealed)
	return nil
}

// Close frees everything that Load and Capture took; with [CanaryBytes] it looks at
// them before. A run that another
// goroutine is issuing makes it fail with [ErrBusy]; closing twice is no error.
func (b *Backend) Close() error {
	if b.pool == nil {
		return nil
	}
	if err := b.pool.acquire(); err != nil {
		return err
	}
	defer b.pool.release()
	b.mu.Lock()
	done := b.stage == closed
	b.stage = closed
	b.mu.Unlock()
	if done {
		return nil
	}
	for _, fn := range b.funcs {
		fn.closed = true
	}
	var guards error
	if b.lost == nil {
		guards = b.checkCanaries()
	}
	err := errors.Join(guards, b.freeAll())
	if b.owned {
		err = errors.Join(err, b.pool.Close())
	}
	return err
}

func (b *Backend) freeAll() error {
	var errs []error
	for _, fn := range b.funcs {
		errs = append(errs, fn.dropGraphs(), fn.ring.close())
	}
	for _, x := range b.execs {
		errs = append(errs, x.Close())
	}
	clear(b.execs)
	b.loadedPrograms, b.watch = nil, nil
	clear(b.faults)
	errs = append(errs, b.states.free(), b.freeCanaries())
	for _, blk := range b.blocks {
		errs = append(errs, b.pool.alloc.Free(blk))
	}
	b.blocks, b.weights = nil, nil
	b.arena = device.Buffer{}
	return errors.Join(errs...)
}

// enter takes the pool for a call that is legal from stage lo to stage hi.
func (b *Backend) enter(lo, hi stage) error {
	if b.pool == nil {
		return ErrNoDevice
	}
	if err := b.pool.acquire(); err != nil {
		return err
	}
	b.mu.Lock()
	s, lost := b.stage, b.lost
	b.mu.Unlock()
	if lost != nil || s == closed || s < lo || s > hi {
		b.pool.release()
		if s == closed {
			return ErrClosed
		}
		if lost != nil {
			return lost
		}
		return fmt.Errorf("%w: the order is New, Load, Warmup, Capture, Seal, and runs after Load; the backend is %s", ErrOrder, stageNames[s])
	}
	return nil
}

// fault returns the error that ended the device, or nil.
func (b *Backend) fault() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

// note remembers an error that ends the device: from then on every call fails
// fast with it, and Close still returns.
func (b *Backend) note(err error) error {
	if errors.Is(err, device.ErrDeviceLost) {
		b.mu.Lock()
		if b.lost == nil {
			b.lost = err
		}
		b.mu.Unlock()
	}
	return err
}

var stageNames = [...]string{"not loaded", "loaded", "warm", "captured", "sealed", "closed"}

func (b *Backend) advance(s stage) {
	b.mu.Lock()
	b.stage = max(b.stage, s)
	b.mu.Unlock()
}

func roundUp(n int64) int64 { return (n + alignment - 1) / alignment * alignment }
