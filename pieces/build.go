package pieces

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"pwc/cache"
	"pwc/compile"
	"pwc/ir"
	"pwc/program"
	"pwc/split"
)

// Build makes the programs of all pieces of the plans. It looks up each distinct artifact, and
// compiles it if the store lacks it. It tries every artifact and returns all errors, joined in
// the order of Artifacts and then Extras, so the outcome does not depend on timing. Counters and
// Artifacts, apart from durations, are the same for every number of jobs. If ctx ends before all
// artifacts are made, Build returns its cause.
func Build(ctx context.Context, plans []*split.Plan, o Options) (*Result, error) {
	if o.Compiler == nil {
		return nil, errors.New("no compiler is given: set Options.Compiler")
	}
	for i, p := range plans {
		if p == nil || p.Module == nil || p.Func == nil {
			return nil, fmt.Errorf("plan %d: %w", i, ir.ErrNoModule)
		}
	}
	shapes, err := shapesOf(plans, o.Shapes)
	if err != nil {
		return nil, err
	}
	b := &builder{o: o, plans: plans, result: &Result{pieces: map[*split.Piece]*choice{}}, known: map[cache.Key]*Artifact{}}
	if o.PartOf != nil {
		for _, a := range slices.Concat(o.PartOf.Artifacts, o.PartOf.Extras) {
			b.known[a.Key] = a
		}
	}
	b.enumerate(shapes)
	if err := b.makeAll(ctx); err != nil {
		return nil, err
	}
	b.result.total()
	b.record(ctx)
	return b.result, nil
}

// builder is the state of one Build.
type builder struct {
	o      Options
	plans  []*split.Plan
	result *Result

	jobs  []job                   // one for each of result.Artifacts, then of result.Extras
	known map[cache.Key]*Artifact // of Options.PartOf

	mu   sync.Mutex // of the observer and of done
	done int
}

// job is one artifact to make: of a piece of a plan, or an extra.
type job struct {
	artifact *Artifact
	plan     *split.Plan
	piece    *split.Piece
	symbol   string // the piece's size symbol
	extra    *Extra
	warnings []error // written only by the job
}

// compile compiles the program of the job.
func (j *job) compile(ctx context.Context, c Compiler) (*program.Program, error) {
	if j.extra != nil {
		return j.extra.Compile(ctx)
	}
	if known, ok := c.(ArtifactCompiler); ok {
		c = known.For(j.artifact)
	}
	p, err := c.Compile(ctx, j.piece.Module, shape(j.symbol, j.artifact.Range))
	return p, j.place(err)
}

// what names the job in messages.
func (j *job) what() string {
	if j.extra != nil {
		return j.artifact.Origin
	}
	return fmt.Sprintf("%s, shape %q", j.artifact.Origin, j.artifact.Key.Shape)
}

// enumerate fills Artifacts, Extras, the jobs, the look-up table and the counters that do not depend on
// the store.
func (b *builder) enumerate(shapes []planShapes) {
	r := b.result
	at := map[cache.Key]int{}
	fingerprint, target := b.o.Compiler.Fingerprint(), b.o.Compiler.Target()
	for pi, p := range b.plans {
		n := p.Counts()
		r.Counters.GraphsSeen += n.Graphs
		r.Counters.PiecewiseGraphsSeen += n.Piecewise
		r.Counters.PiecewiseCapturableGraphsSeen += n.Capturable
		for _, u := range p.Units {
			if u.Piece == nil {
				continue
			}
			symbol := pieceSymbol(u.Piece, shapes[pi].symbol)
			ranges := shapes[pi].ranges
			if symbol == "" {
				ranges = []Range{{}}
			}
			if !p.Items[u.Item].Splitting {
				r.Counters.BackendCompilations += len(ranges)
			}
			c := &choice{sized: symbol != ""}
			for _, rg := range ranges {
				key := cache.Key{Piece: u.Piece.Hash, Shape: shapeText(symbol, rg), Target: target, Pipeline: fingerprint,
					Externs: externText(u.Piece.Module), Format: program.FormatVersion}
				i, seen := at[key]
				if seen {
					r.Counters.Deduplicated++
				} else {
					i = len(r.Artifacts)
					at[key] = i
					r.Artifacts = append(r.Artifacts, &Artifact{Key: key, Origin: origin(p, u), Func: p.Func.Name, Item: p.Items[u.Item].ID, Range: rg})
					b.jobs = append(b.jobs, job{artifact: r.Artifacts[i], plan: p, piece: u.Piece, symbol: symbol})
				}
				a := r.Artifacts[i]
				a.Uses = append(a.Uses, Use{Plan: pi, Unit: u.Seq})
				c.artifacts = append(c.artifacts, a)
			}
			r.pieces[u.Piece] = c
		}
	}
	for i := range b.o.Extras {
		x := &b.o.Extras[i]
		a := &Artifact{Key: x.Key, Origin: x.Origin}
		r.Extras = append(r.Extras, a)
		b.jobs = append(b.jobs, job{artifact: a, extra: x})
	}
}

// origin names a piece by its item and the first loc in it.
func origin(p *split.Plan, u *split.Unit) string {
	text := fmt.Sprintf("@%s item %d", p.Func.Name, p.Items[u.Item].ID)
	for _, i := range u.Piece.Origins {
		if loc := p.Func.Nodes[i].Loc; loc != "" {
			return text + " (" + loc + ")"
		}
	}
	return text
}

// makeAll makes the artifacts in parallel.
func (b *builder) makeAll(ctx context.Context) error {
	limit := b.o.Jobs
	if limit <= 0 {
		limit = runtime.GOMAXPROCS(0)
	}
	errs := make([]error, len(b.jobs))
	var g errgroup.Group
	g.SetLimit(limit)
	for k := range b.jobs {
		if ctx.Err() != nil {
			break
		}
		// Extras first: an op's kernels take longest, and would otherwise finish last.
		i := (k + len(b.result.Artifacts)) % len(b.jobs)
		g.Go(func() error {
			j := &b.jobs[i]
			b.tell(Event{Kind: Started, Artifact: j.artifact})
			errs[i] = b.make(ctx, j)
			var miss *MissError
			switch {
			case errs[i] == nil:
				b.tell(Event{Kind: Finished, Artifact: j.artifact})
			case !errors.As(errs[i], &miss): // misses are reported when their reasons are known
				b.tell(Event{Kind: Failed, Artifact: j.artifact, Err: errs[i]})
			}
			return nil
		})
	}
	_ = g.Wait() // errors are in errs, in order
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b.explain(ctx, errs)
	for i := range b.jobs {
		j := &b.jobs[i]
		b.result.Warnings = append(b.result.Warnings, j.warnings...)
		if errs[i] == nil && j.extra != nil && j.extra.Use != nil {
			j.extra.Use(j.artifact.Program)
		}
	}
	return errors.Join(errs...)
}

// explain adds reasons to the misses of a frozen build and reports them. It explains all misses
// in one call, so the store reads its entries once.
func (b *builder) explain(ctx context.Context, errs []error) {
	var misses []*MissError
	var keys []cache.Key
	for _, err := range errs {
		var miss *MissError
		if errors.As(err, &miss) {
			misses, keys = append(misses, miss), append(keys, miss.Key)
		}
	}
	if x, ok := b.o.Store.(explainer); ok && len(keys) > 0 {
		// If the store cannot explain, misses are reported without reasons.
		if why, err := x.Explain(ctx, keys...); err == nil {
			for i, m := range misses {
				m.Why = &why[i]
			}
		}
	}
	for i, err := range errs {
		var miss *MissError
		if errors.As(err, &miss) {
			b.tell(Event{Kind: Failed, Artifact: b.jobs[i].artifact, Err: err})
		}
	}
}

func (b *builder) tell(e Event) {
	if b.o.Observer == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Kind == Finished {
		b.done++
	}
	e.Done, e.Total = b.done, len(b.jobs)
	b.o.Observer(e)
}

func (b *builder) warn(j *job, err error) {
	err = fmt.Errorf("%s: key %s: %w", j.artifact.Origin, j.artifact.Key, err)
	j.warnings = append(j.warnings, err)
	b.tell(Event{Kind: Warning, Artifact: j.artifact, Err: err})
}

// make fills the artifact from the build that contains this one, from the store, or by compiling.
func (b *builder) make(ctx context.Context, j *job) error {
	start, a := time.Now(), j.artifact
	if made := b.known[a.Key]; made != nil {
		a.Program, a.Source, a.Bytes, a.Duration = made.Program, made.Source, made.Bytes, made.Duration
		return nil
	}
	defer func() { a.Duration = time.Since(start) }()
	ok, why := b.load(ctx, j)
	if ok {
		return nil
	}
	if b.o.Frozen {
		return &MissError{Key: a.Key, Origin: a.Origin, Err: why}
	}
	if b.o.Store != nil {
		unlock, err := b.o.Store.Lock(ctx, a.Key)
		if err != nil {
			return fmt.Errorf("%s: %w", a.Origin, err)
		}
		defer unlock()
		if ok, _ := b.load(ctx, j); ok { // another process or build made it during the wait
			return nil
		}
	}
	return b.compile(ctx, j)
}

// place turns an error at a node of the piece, which has canonical names, into an error at the
// original node of the function. An error in a pass keeps the pass's name.
func (j *job) place(err error) error {
	var pass *compile.PassError
	if errors.As(err, &pass) {
		return pass.Each(j.placed)
	}
	var at *ir.Error
	if !errors.As(err, &at) {
		return err
	}
	return j.placed(at)
}

// placed is place for one error.
func (j *job) placed(at *ir.Error) *ir.Error {
	if at.Func != j.piece.Func.Name {
		return at
	}
	node := -1
	if at.Node >= 0 && at.Node < len(j.piece.Origins) {
		node = j.piece.Origins[at.Node]
	}
	if node >= 0 || !at.Pos.IsValid() {
		return j.plan.Module.ErrorAt(j.plan.Func, node, "%s", at.Msg)
	}
	return at
}

// onlyUntrusted reports whether err is only about untrusted machine code.
func onlyUntrusted(err error) bool {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(list.Unwrap(), func(err error) bool { return !onlyUntrusted(err) })
	}
	var untrusted *cache.UntrustedError
	return errors.As(err, &untrusted)
}

// load reports whether the store has the artifact. A damaged or untrusted artifact is a miss;
// load also returns the warning or the reason.
func (b *builder) load(ctx context.Context, j *job) (ok bool, why error) {
	if b.o.Store == nil {
		return false, nil
	}
	a := j.artifact
	blob, ok, err := b.o.Store.Get(ctx, a.Key)
	if onlyUntrusted(err) {
		return false, err // a plain miss; [cache.Store] logs the reason
	}
	if err != nil {
		err = fmt.Errorf("reading the store: %w", err)
		b.warn(j, err)
		return false, err
	}
	if !ok {
		return false, nil
	}
	p, err := program.Decode(blob)
	if err == nil && p.Target != a.Key.Target {
		err = fmt.Errorf("it is for target %s, not %s", p.Target, a.Key.Target)
	}
	if err != nil {
		err = fmt.Errorf("the stored artifact: %w", err)
		b.warn(j, err)
		return false, err
	}
	a.Program, a.Source, a.Bytes = p, Loaded, len(blob)
	return true, nil
}

func (b *builder) compile(ctx context.Context, j *job) error {
	start, a := time.Now(), j.artifact
	p, err := j.compile(ctx, b.o.Compiler)
	if err != nil {
		return fmt.Errorf("%s: %w", j.what(), err)
	}
	blob, err := p.Encode()
	if err != nil {
		return fmt.Errorf("%s: the compiler made a program that is not valid: %w", j.what(), err)
	}
	a.Program, a.Source, a.Bytes = p, Compiled, len(blob)
	if b.o.Store != nil {
		pv := cache.Provenance{Compiler: b.o.Compiler.Version(), Origin: a.Origin, Duration: time.Since(start)}
		if err := b.o.Store.Put(ctx, a.Key, blob, pv); err != nil {
			b.warn(j, fmt.Errorf("writing the store: %w", err))
		}
	}
	return nil
}
