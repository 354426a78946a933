package graphs

import (
	"errors"
	"fmt"
	"slices"

	"pwc/graphs/internal/store"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/device"
)

// Recorder enqueues work on a stream, or records it into a capture. It allocates from one pool. A
// function over a Recorder serves both cases.
type Recorder struct {
	s      *Session
	stream *Stream
	pool   *Pool
	run    *run
	joined bool // a joined fork
	last   bool // allocate from the end of free memory
}

// run is shared by a recorder and its forks: one eager run, or one capture.
type run struct {
	graph  *Graph // nil: eager
	made   []*store.Storage
	scoped bool                    // made is also kept in eager runs
	temps  []Tensor                // released after the launch that reads them
	drawn  []take                  // by draws for the next launch
	seen   map[*store.Storage]bool // of made
	undo   *undo                   // nil: Undo is not available

	// Of a capture.
	writes    []written
	reads     []Tensor // storages that it reads or writes and did not make
	draws     []draw
	libraries []int32 // streams whose workspace library routines use
}

// Eager returns a recorder that enqueues work on st, with memory of the default pool.
func (s *Session) Eager(st *Stream) *Recorder {
	return &Recorder{s: s, stream: st, pool: s.shared, run: &run{}}
}

// EagerIn is Eager with memory of p.
func (s *Session) EagerIn(p *Pool, st *Stream) *Recorder {
	return &Recorder{s: s, stream: st, pool: p, run: &run{}}
}

// Scoped returns the recorder with a list of the storages that it makes, for a caller that
// releases them afterwards. A capture always keeps the list.
func (r *Recorder) Scoped() *Recorder {
	r.run.scoped = true
	return r
}

// Made reports whether the recorder, or another one of its run, made the storage. An eager recorder knows
// only the storages that it made after Scoped or Undoable.
func (r *Recorder) Made(s *Storage) bool { return r.run.seen[s] }

// ReleaseMade removes one owner from each storage for which Made is true and that has owners,
// except those in keep.
func (r *Recorder) ReleaseMade(keep []*Storage) error {
	var errs []error
	for _, s := range r.run.made {
		if s.Live() && !slices.Contains(keep, s) {
			errs = append(errs, s.Tensor(dtype.U8, []int64{0}).Release())
		}
	}
	return errors.Join(errs...)
}

// Capturing reports whether work is recorded.
func (r *Recorder) Capturing() bool { return r.run.graph != nil }

// Session returns the recorder's session.
func (r *Recorder) Session() *Session { return r.s }

// Stream returns the stream of the work.
func (r *Recorder) Stream() *Stream { return r.stream }

// Alloc returns an uninitialised tensor of the recorder's pool with one owner.
func (r *Recorder) Alloc(name string, dt dtype.DType, shape ...int64) (Tensor, error) {
	return r.alloc(&Maker{Name: name, Output: -1}, dt, shape)
}

// AllocLast is Alloc by [mem.Pool.AllocLast], which takes the end of a free block.
func (r *Recorder) AllocLast(name string, dt dtype.DType, shape ...int64) (Tensor, error) {
	r.last = true
	defer func() { r.last = false }()
	return r.Alloc(name, dt, shape...)
}

func (r *Recorder) alloc(m *Maker, dt dtype.DType, shape []int64) (Tensor, error) {
	if err := r.usable(); err != nil {
		return Tensor{}, err
	}
	n, err := store.Bytes(dt, shape)
	if err != nil {
		return Tensor{}, fmt.Errorf("%s: %w", m, err)
	}
	sto, err := r.take(m, n)
	if err != nil {
		return Tensor{}, err
	}
	return sto.Tensor(dt, slices.Clone(shape)), nil
}

// take allocates a storage.
func (r *Recorder) take(m *Maker, bytes int64) (*store.Storage, error) {
	alloc := r.pool.mem.Alloc
	if r.last {
		alloc = r.pool.mem.AllocLast
	}
	b, err := alloc(r.stream.dev, bytes)
	if err != nil {
		return nil, fmt.Errorf("graphs: %s: %w", m, err)
	}
	buf, err := b.Buffer()
	if err != nil {
		return nil, err
	}
	sto := r.s.book.New(r.pool.mem, b, buf, m)
	if r.run.graph != nil || r.run.scoped {
		r.run.made = append(r.run.made, sto)
		if r.run.seen == nil {
			r.run.seen = map[*store.Storage]bool{}
		}
		r.run.seen[sto] = true
	}
	if r.run.graph == nil && !r.pool.deflt && !r.pool.managed {
		r.pool.adopt(sto)
	}
	return sto, nil
}

func (r *Recorder) usable() error {
	if r.joined {
		return fmt.Errorf("graphs: stream %q has joined: its recorder cannot be used any more", r.stream.name)
	}
	return nil
}

// reads records that the next operation reads t, and writes that it writes t.
func (r *Recorder) reads(t Tensor) error  { return r.access(t, false) }
func (r *Recorder) writes(t Tensor) error { return r.access(t, true) }

func (r *Recorder) access(t Tensor, write bool) error {
	if err := r.usable(); err != nil {
		return err
	}
	if err := r.s.own(t); err != nil {
		return err
	}
	if r.run.graph == nil {
		check := t.Err
		if write { // written memory need not be readable
			check = t.Alive
		}
		if err := check(); err != nil {
			return err
		}
		if write {
			if err := r.run.undo.writes(r, t.Storage()); err != nil {
				return err
			}
		}
		if err := r.stream.use(t, write); err != nil {
			return err
		}
		return r.s.used(t.Storage(), r.stream)
	}
	if err := t.Alive(); err != nil {
		return err
	}
	sto := t.Storage()
	if write {
		r.run.writes = append(r.run.writes, written{sto, t.Range()})
	}
	if !r.run.seen[sto] {
		if !slices.ContainsFunc(r.run.reads, func(u Tensor) bool { return u.Storage() == sto }) {
			r.run.reads = append(r.run.reads, t)
		}
		return nil
	}
	if err := r.stream.use(t, write); err != nil {
		return err
	}
	return r.s.used(sto, r.stream)
}

// used delays the reuse of a released storage's memory until st has done its enqueued work. For a
// fork of a capture, the delay ends at the join.
func (s *Session) used(sto *store.Storage, st *Stream) error {
	if b, ok := sto.Block(); ok {
		return s.alloc.RecordStream(b, st.dev)
	}
	return nil
}

// Copy copies src to dst. They have the same size in bytes and do not overlap.
func (r *Recorder) Copy(dst, src Tensor) error {
	if dst.Size() != src.Size() {
		return fmt.Errorf("%w: copy of %s to %s", ErrArguments, src, dst)
	}
	if err := errors.Join(r.reads(src), r.writes(dst)); err != nil {
		return err
	}
	return r.stream.enqueued(r.stream.dev.Copy(dst.Range(), src.Range()))
}

// Fill sets every byte of dst.
func (r *Recorder) Fill(dst Tensor, value byte) error {
	if err := r.writes(dst); err != nil {
		return err
	}
	return r.stream.enqueued(r.stream.dev.Fill(dst.Range(), value))
}

// Upload copies host memory to dst. data must not change until the copy is done (Stream.Synchronize). A
// capture refuses Upload, because a replay would read the memory again with other contents: CopyFromHost
// takes memory that outlives the graph.
func (r *Recorder) Upload(dst Tensor, data []byte) error {
	if r.Capturing() {
		return fmt.Errorf("%w: copy from pageable host memory to %s: use Recorder.CopyFromHost with memory of Device.AllocHost, which every replay reads", ErrHostWork, dst)
	}
	if err := r.writes(dst); err != nil {
		return err
	}
	return r.stream.enqueued(r.stream.dev.CopyToDevice(dst.Range(), data))
}

// CopyFromHost copies memory of Device.AllocHost to dst. src must not change until the copy is done. Each
// replay reads it again, so src must stay allocated until the graph is reset.
func (r *Recorder) CopyFromHost(dst Tensor, src device.HostMemory) error {
	if err := r.writes(dst); err != nil {
		return err
	}
	return r.stream.enqueued(r.stream.dev.CopyToDevice(dst.Range(), src.Bytes()))
}

// Run launches a compiled function and returns its results, each with one owner. A result that is a
// parameter or an earlier result shares its storage and adds an owner.
func (r *Recorder) Run(p *Program, args ...Arg) ([]Tensor, error) {
	return r.RunSymbols(p, nil, args...)
}

// RunSymbols is Run with values of symbols that no operand's shape determines.
func (r *Recorder) RunSymbols(p *Program, symbols map[string]int64, args ...Arg) (results []Tensor, err error) {
	enqueued := false
	defer func() {
		r.run.settle(enqueued)
		for _, t := range r.run.temps {
			err = errors.Join(err, t.Release())
		}
		r.run.temps = r.run.temps[:0]
		if err != nil {
			for _, t := range results {
				err = errors.Join(err, t.Release())
			}
			results = nil
		}
	}()
	ts, err := r.operands(p, args)
	if err != nil {
		return nil, err
	}
	shapes := make([][]int64, len(ts))
	for i, t := range ts {
		if shapes[i] = t.Shape(); t.Storage() == nil {
			shapes[i] = []int64{2} // the state of a generator
		}
	}
	e, err := p.bindSymbols(shapes, symbols)
	if err != nil {
		return nil, err
	}
	if err := r.cold(p, e); err != nil {
		return nil, err
	}
	for i, a := range args { // a refused run draws nothing
		if gen, ok := a.(*Generator); ok {
			if ts[i], err = r.draw(gen, p, i); err != nil {
				return nil, err
			}
		}
	}
	given := ts
	if ts, err = r.aligned(p, given); err != nil {
		return results, err
	}
	if results, err = r.results(p, e, given); err != nil {
		return results, err
	}
	scratch, err := r.scratch(p, e)
	if err != nil {
		return results, err
	}
	if scratch.Storage() != nil {
		defer func() { err = errors.Join(err, scratch.Release()) }()
	}
	launch, err := r.bind(p, e, ts, results, scratch)
	if err != nil {
		return results, err
	}
	if p.routines && !r.Capturing() {
		if err := r.warm(p, e, launch); err != nil {
			return results, err
		}
	}
	if err := r.stream.enqueued(r.stream.dev.Launch(launch)); err != nil {
		return results, fmt.Errorf("graphs: @%s: %w", p.name, err)
	}
	enqueued = true
	for i, t := range given {
		if p.prog.Params[i].Mut && !t.SameAddress(ts[i].Storage(), ts[i].Offset()) {
			if err := r.Copy(t, ts[i]); err != nil {
				return results, fmt.Errorf("graphs: operand %d of @%s: %w", i, p.name, err)
			}
		}
	}
	if p.routines && !slices.Contains(r.run.libraries, r.stream.index) {
		r.run.libraries = append(r.run.libraries, r.stream.index)
	}
	return results, nil
}

// results returns the tensors of all results. After an error it returns those that were made.
func (r *Recorder) results(p *Program, e *env, params []Tensor) ([]Tensor, error) {
	var results []Tensor
	for i := range p.prog.Results {
		t, err := r.result(p, i, e, params, results)
		if err != nil {
			return results, err
		}
		results = append(results, t)
	}
	return results, nil
}

// scratch allocates the kernels' scratch memory. It returns the zero Tensor if they need no scratch.
func (r *Recorder) scratch(p *Program, e *env) (Tensor, error) {
	need, err := p.exec.ScratchBytes(e.values)
	if err != nil {
		return Tensor{}, fmt.Errorf("graphs: @%s: %w", p.name, err)
	}
	if need == 0 {
		return Tensor{}, nil
	}
	return r.alloc(&Maker{Name: "scratch memory of @" + p.name, Output: -1}, dtype.U8, []int64{need})
}

// bind records the launch's reads and writes, and binds it to memory.
func (r *Recorder) bind(p *Program, e *env, params, results []Tensor, scratch Tensor) (device.BoundLaunch, error) {
	bound := device.Args{Params: make([]device.Buffer, len(params)), Results: make([]device.Buffer, len(results))}
	if scratch.Storage() != nil {
		if err := r.writes(scratch); err != nil {
			return nil, err
		}
		bound.Scratch = scratch.Range()
	}
	for i, t := range params {
		if err := r.access(t, p.prog.Params[i].Mut); err != nil {
			return nil, fmt.Errorf("graphs: operand %d of @%s: %w", i, p.name, err)
		}
		bound.Params[i] = t.Range()
	}
	for i, t := range results {
		if p.prog.Results[i].Alias < 0 && p.prog.Results[i].Same < 0 {
			if err := r.writes(t); err != nil {
				return nil, err
			}
		}
		bound.Results[i] = t.Range()
	}
	launch, err := p.exec.Bind(e.values, bound)
	if err != nil {
		return nil, fmt.Errorf("graphs: @%s: %w", p.name, err)
	}
	return launch, nil
}

// aligned returns operands with the alignment that kernels require. It copies a view with another
// alignment; RunSymbols copies it back if the launch writes it.
func (r *Recorder) aligned(p *Program, ts []Tensor) ([]Tensor, error) {
	out := ts
	for i, t := range ts {
		if a := p.aligns[i]; a <= 1 || t.Range().Offset%a == 0 {
			continue
		}
		if &out[0] == &ts[0] {
			out = slices.Clone(ts)
		}
		c, err := r.Clone(fmt.Sprintf("aligned copy of operand %d of @%s", i, p.name), t)
		if err != nil {
			return nil, err
		}
		r.run.temps = append(r.run.temps, c)
		out[i] = c
	}
	return out, nil
}

// warm prepares the stream for library routines. It runs routines that never ran for their shape,
// so that the library has loaded its code before a capture.
func (r *Recorder) warm(p *Program, e *env, launch device.BoundLaunch) error {
	if err := r.stream.library(); err != nil {
		return err
	}
	p.warmMu.Lock()
	defer p.warmMu.Unlock()
	key := fmt.Sprint(e.values)
	if _, ok := p.warm[key]; ok {
		return nil
	}
	if s, ok := r.stream.dev.(device.LibraryStream); ok {
		if err := s.WarmLibraries(launch); err != nil {
			return fmt.Errorf("graphs: @%s: library routines run for the first time: %w", p.name, err)
		}
	}
	p.warm[key] = struct{}{}
	return nil
}

// cold refuses a library routine that would initialise itself during the recording.
func (r *Recorder) cold(p *Program, e *env) error {
	if !p.routines || !r.Capturing() {
		return nil
	}
	p.warmMu.Lock()
	defer p.warmMu.Unlock()
	if _, ok := p.warm[fmt.Sprint(e.values)]; ok {
		return nil
	}
	return fmt.Errorf("%w: @%s calls library routines and did not run with %v = %v: run it once outside of the capture", ErrCold, p.name, e.names, e.values)
}

// operands returns the tensors among the arguments, with the dtypes of the parameters. A
// generator becomes the zero Tensor.
func (r *Recorder) operands(p *Program, args []Arg) ([]Tensor, error) {
	if len(args) != len(p.prog.Params) {
		return nil, fmt.Errorf("%w: @%s has %d parameters, %d operands were given", ErrArguments, p.name, len(p.prog.Params), len(args))
	}
	ts := make([]Tensor, len(args))
	for i, a := range args {
		if gen, ok := a.(*Generator); ok && gen != nil {
			continue
		}
		if t, ok := a.(TensorArg); ok {
			ts[i] = Tensor(t)
		}
		if ts[i].Storage() == nil {
			return nil, fmt.Errorf("operand %d of @%s: %w", i, p.name, ErrNoStorage)
		}
		if want := p.prog.Params[i].DType; ts[i].DType() != want {
			return nil, fmt.Errorf("%w: operand %d of @%s is %s, the parameter is %s", ErrArguments, i, p.name, ts[i].DType(), want)
		}
	}
	return ts, nil
}

// result returns the tensor of a result.
func (r *Recorder) result(p *Program, i int, e *env, params, before []Tensor) (Tensor, error) {
	res := &p.prog.Results[i]
	shape, err := shapeOf(res.Shape, e)
	if err != nil {
		return Tensor{}, err
	}
	var same Tensor
	switch {
	case res.Alias >= 0:
		same = params[res.Alias]
	case res.Same >= 0:
		same = before[res.Same]
	default:
		return r.alloc(p.makers[i], res.DType, shape)
	}
	t, err := same.View(0, res.DType, shape...)
	if err != nil {
		return t, err
	}
	return t, t.Retain()
}

// Call launches an extern op on tensors: its operands, then its results. The op gets meta
// unchanged. In a capture, an op that cannot be captured is an [*OpError].
func (r *Recorder) Call(op device.Op, meta any, attrs []program.Attr, loc string, ts ...Tensor) error {
	sig := op.Signature()
	if r.Capturing() && !sig.Capture {
		return &OpError{Op: sig.Name, Loc: loc}
	}
	call := &device.OpCall{Attrs: attrs, Meta: meta, Origin: -1, Loc: loc}
	for i, t := range ts {
		mut := i >= len(sig.Mut) || sig.Mut[i]
		if err := r.access(t, mut); err != nil {
			return fmt.Errorf("graphs: operand %d of %s: %w", i, sig.Name, err)
		}
		call.Args = append(call.Args, device.Tensor{Buffer: t.Range(), DType: t.DType(), Shape: t.Shape()})
		if i == 0 && len(t.Shape()) > 0 {
			call.Size, call.Rows = t.Shape()[0], t.Shape()[0]
		}
	}
	need, err := op.ScratchBytes(call.Args, attrs)
	if err != nil {
		return fmt.Errorf("graphs: %s: %w", sig.Name, err)
	}
	if need > 0 {
		scratch, err := r.Alloc("scratch memory of "+sig.Name, dtype.U8, need)
		if err != nil {
			return err
		}
		call.Scratch = scratch.Range()
		return errors.Join(r.writes(scratch), r.stream.enqueued(r.stream.dev.LaunchOp(op, call)), scratch.Release())
	}
	return r.stream.enqueued(r.stream.dev.LaunchOp(op, call))
}

// Clone copies t into memory of the recorder's pool.
func (r *Recorder) Clone(name string, t Tensor) (Tensor, error) {
	c, err := r.Alloc(name, t.DType(), t.Shape()...)
	if err != nil {
		return c, err
	}
	if err := r.Copy(c, t); err != nil {
		return Tensor{}, errors.Join(err, c.Release())
	}
	return c, nil
}

// Fork returns a recorder on st, another stream of the session. Its work starts after the work that r
// has issued so far, and may run concurrently with r's later work. Join must follow, in a capture before
// the capture's end.
func (r *Recorder) Fork(st *Stream) (*Recorder, error) {
	if err := r.usable(); err != nil {
		return nil, err
	}
	if st == nil || st.s != r.s || st == r.stream {
		return nil, fmt.Errorf("%w: fork from stream %q needs another stream of the session", ErrArguments, r.stream.name)
	}
	if r.s.routines.Load() {
		if err := st.library(); err != nil {
			return nil, err
		}
	}
	r.s.joins.Lock()
	err := r.stream.dev.Fork(st.dev)
	r.s.joins.Unlock()
	if err != nil {
		return nil, fmt.Errorf("graphs: fork from stream %q to %q: %w", r.stream.name, st.name, err)
	}
	if g := r.run.graph; g != nil {
		if err := g.on.use.Order(r.stream.dev, st.dev); err != nil {
			return nil, err
		}
	}
	st.merge(r.stream)
	return &Recorder{s: r.s, stream: st, pool: r.pool, run: r.run}, nil
}

// Join orders later work of r after the work of a fork, and ends the fork.
func (r *Recorder) Join(fork *Recorder) error {
	if err := r.usable(); err != nil {
		return err
	}
	if fork == nil || fork.run != r.run || fork == r {
		return fmt.Errorf("%w: join of a recorder that was not forked from this one", ErrArguments)
	}
	if err := fork.usable(); err != nil {
		return err
	}
	if err := r.stream.dev.Join(fork.stream.dev); err != nil {
		return fmt.Errorf("graphs: stream %q joins %q: %w", r.stream.name, fork.stream.name, err)
	}
	if g := r.run.graph; g != nil {
		if err := g.on.use.Order(fork.stream.dev, r.stream.dev); err != nil {
			return err
		}
	}
	r.stream.merge(fork.stream)
	fork.joined = true
	return nil
}
