package pieces_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"pwc/cache"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/pieces"
	"pwc/program"
	"pwc/split"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake compiles to programs without steps, whose guards tell the ranges. Its
// calls take random times, so that jobs end in any order.
type fake struct {
	target, fingerprint string
	refuse              string // pieces with this op do not compile
	block               bool   // until ctx ends

	mu    sync.Mutex
	rng   *rand.Rand
	calls map[string]int // by text of the piece and ranges
}

func newFake(seed uint64) *fake {
	return &fake{target: "fake", fingerprint: "passes 1", rng: rand.New(rand.NewPCG(seed, 0)), calls: map[string]int{}}
}

func (c *fake) Target() string      { return c.target }
func (c *fake) Fingerprint() string { return c.fingerprint }
func (c *fake) Version() string     { return "fake 1.0" }

func (c *fake) Compile(ctx context.Context, piece *ir.Module, ranges map[string]dim.Interval) (*program.Program, error) {
	p := &program.Program{Target: c.target}
	for _, s := range piece.Symbols {
		p.Symbols = append(p.Symbols, s.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(ranges)) {
		p.Guards = append(p.Guards, program.Guard{Expr: dim.Sym(name), Lo: ranges[name].Lo, Hi: ranges[name].Hi})
	}
	c.mu.Lock()
	c.calls[ir.Print(piece)+fmt.Sprint(ranges)]++
	pause := time.Duration(c.rng.IntN(300)) * time.Microsecond
	c.mu.Unlock()
	time.Sleep(pause)
	if c.block {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for i, n := range piece.Funcs[0].Nodes {
		if n.Name() == c.refuse {
			return nil, fmt.Errorf("the compiler: %w", piece.ErrorAt(piece.Funcs[0], i, "cannot compile %s", n.Name()))
		}
	}
	return p, nil
}

func (c *fake) total() int {
	n := 0
	for _, k := range c.calls {
		n += k
	}
	return n
}

func plan(t testing.TB, text string, ops ...string) *split.Plan {
	t.Helper()
	m, err := ir.Parse("m.ir", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := split.Split(m, m.Funcs[0], ops)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const chain = `pwc 1
module "chain" {
  sym N in [1, 8192] batch
  op "silly::attention"(tensor, tensor, tensor, mut tensor) split
  func @f(%x: f32[N, 4]) -> (f32[N, 4]) {
    %a = add(%x, 1)
    %b = add(%a, 2)
    %o = empty_like(%b)
    call "silly::attention"(%b, %b, %b, %o)
    %c = sub(%o, 2)
    %d = sub(%c, 1)
    %p = empty_like(%d)
    call "silly::attention"(%d, %d, %d, %p)
    %e = add(%p, 1)
    return %e
  }
}
`

// layers is a function of n identical layers between a first and a last piece. Each layer also
// has a piece that does not depend on N.
func layers(n int) string {
	var b strings.Builder
	b.WriteString("pwc 1\nmodule \"layers\" {\n  sym N in [1, 8192] batch\n  op \"s::s\"(tensor) -> (tensor) split\n")
	for i := range n {
		fmt.Fprintf(&b, "  weight @w%d : f32[4]\n", i)
	}
	b.WriteString("  func @forward(%x: f32[N, 4]) -> (f32[N, 4]) {\n    %y0 = exp(%x) loc(\"embed\")\n")
	for i := range n {
		fmt.Fprintf(&b, "    %%a%d = call \"s::s\"(%%y%d) : f32[N, 4]\n    %%n%d = neg(@w%d) loc(\"layers.%d.neg\")\n    %%b%d = call \"s::s\"(%%n%d) : f32[4]\n    %%y%d = add(%%a%d, %%b%d) loc(\"layers.%d\")\n", i, i, i, i, i, i, i, i+1, i, i, i)
	}
	fmt.Fprintf(&b, "    %%c = call \"s::s\"(%%y%d) : f32[N, 4]\n    %%r = log(%%c)\n    return %%r\n  }\n}\n", n)
	return b.String()
}

func mustBuild(t testing.TB, o pieces.Options, plans ...*split.Plan) *pieces.Result {
	t.Helper()
	r, err := pieces.Build(context.Background(), plans, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// counters returns the counters of r with Bytes set to 0.
func counters(r *pieces.Result) pieces.Counters {
	c := r.Counters
	c.Bytes = 0
	return c
}

func TestDemonstration(t *testing.T) {
	c := newFake(1)
	r := mustBuild(t, pieces.Options{Compiler: c}, plan(t, chain, "silly::attention"))
	want := pieces.Counters{GraphsSeen: 1, PiecewiseGraphsSeen: 5, PiecewiseCapturableGraphsSeen: 3, BackendCompilations: 3, Compiled: 3}
	if d := cmp.Diff(want, counters(r)); d != "" {
		t.Error(d)
	}
	if len(r.Artifacts) != 3 || r.Counters.Bytes <= 0 || c.total() != 3 {
		t.Errorf("%d artifacts, %d bytes, %d compilations", len(r.Artifacts), r.Counters.Bytes, c.total())
	}
}

func TestIdenticalLayersCompileOnce(t *testing.T) {
	p := plan(t, layers(10), "s::s")
	// Distinct: exp, neg of a weight (any size), add, log. Three of them depend on N.
	o := pieces.Options{Compiler: newFake(2), Shapes: map[string]pieces.Shapes{"N": {Endpoints: []int64{64, 512}, Max: 2048, Sizes: []int64{8, 1, 8}}}}
	r := mustBuild(t, o, p)
	const shapes = 5
	want := pieces.Counters{GraphsSeen: 1, PiecewiseGraphsSeen: 1 + 10*4 + 2, PiecewiseCapturableGraphsSeen: 1 + 10*2 + 1,
		BackendCompilations: (1+10+1)*shapes + 10, Compiled: 3*shapes + 1, Deduplicated: 9*shapes + 9}
	if d := cmp.Diff(want, counters(r)); d != "" {
		t.Error(d)
	}
	var rows []string
	for _, s := range r.ByShape {
		rows = append(rows, fmt.Sprintf("%s: %d", s.Shape, s.Compiled))
	}
	if d := cmp.Diff([]string{"any size: 1", "1: 3", "[1, 64]: 3", "8: 3", "[65, 512]: 3", "[513, 2048]: 3"}, rows); d != "" {
		t.Error(d)
	}
	if got := r.Artifacts[len(r.Artifacts)-1].Uses; len(got) != 1 {
		t.Errorf("the last piece has uses %v", got)
	}
	if got := r.Artifacts[shapes].Uses; len(got) != 10 || got[0] != (pieces.Use{Plan: 0, Unit: 2}) || got[1] != (pieces.Use{Plan: 0, Unit: 6}) {
		t.Errorf("the weights' piece has uses %v", got)
	}
}

func TestLookUp(t *testing.T) {
	p := plan(t, layers(1), "s::s")
	r := mustBuild(t, pieces.Options{Compiler: newFake(3), Shapes: map[string]pieces.Shapes{"N": {Endpoints: []int64{64}, Max: 128, Sizes: []int64{64, 65}}}}, p)
	sized, static := p.Units[0].Piece, p.Units[2].Piece
	for size, want := range map[int64]string{1: "[1, 64]", 63: "[1, 64]", 64: "64", 65: "65", 66: "[65, 128]", 128: "[65, 128]"} {
		a, err := r.Artifact(sized, size)
		if err != nil || a.Range.String() != want || a.Key.Shape != "s0="+want {
			t.Errorf("size %d is served by %+v, %v; want %s", size, a, err, want)
			continue
		}
		got, err := r.Program(sized, size)
		if err != nil || got.Guards[0].Lo != a.Range.Lo || got.Guards[0].Hi != a.Range.Hi {
			t.Errorf("size %d: %v, %v", size, got, err)
		}
	}
	for _, size := range []int64{0, 129} {
		var uncovered *pieces.UncoveredError
		if _, err := r.Program(sized, size); !errors.As(err, &uncovered) || uncovered.Size != size || len(uncovered.Ranges) != 4 {
			t.Errorf("size %d: %v", size, err)
		}
		if got, err := r.Program(static, size); err != nil || len(got.Guards) != 0 {
			t.Errorf("a piece without the symbol at size %d: %v", size, err)
		}
	}
	if _, err := r.Program(&split.Piece{}, 1); err == nil {
		t.Error("a piece of another plan is found")
	}
}

func TestPiecesOfSplittingItemsAreNotCounted(t *testing.T) {
	p := plan(t, layers(1), "s::s", "exp")
	r := mustBuild(t, pieces.Options{Compiler: newFake(4)}, p)
	want := pieces.Counters{GraphsSeen: 1, PiecewiseGraphsSeen: 6, PiecewiseCapturableGraphsSeen: 3, BackendCompilations: 3, Compiled: 4}
	if d := cmp.Diff(want, counters(r)); d != "" {
		t.Error(d)
	}
}

func TestStore(t *testing.T) {
	p := plan(t, layers(3), "s::s")
	store := pieces.NewMemoryStore()
	first := mustBuild(t, pieces.Options{Compiler: newFake(5), Store: store}, p)
	if first.Counters.Compiled != 4 || first.Counters.Loaded != 0 || store.Len() != 4 {
		t.Errorf("cold: %+v, %d stored", first.Counters, store.Len())
	}
	c := newFake(6)
	warm := mustBuild(t, pieces.Options{Compiler: c, Store: store, Frozen: true}, p)
	if warm.Counters.Compiled != 0 || warm.Counters.Loaded != 4 || c.total() != 0 || warm.Counters.Bytes != first.Counters.Bytes {
		t.Errorf("warm: %+v, %d compilations", warm.Counters, c.total())
	}
	for i, a := range warm.Artifacts {
		if d := cmp.Diff(first.Artifacts[i].Program.String(), a.Program.String()); d != "" || a.Source != pieces.Loaded {
			t.Errorf("artifact %d is %s: %s", i, a.Source, d)
		}
	}
	// Another pipeline gives other keys, which differ only in that factor.
	c.fingerprint = "passes 2"
	_, err := pieces.Build(context.Background(), []*split.Plan{p}, pieces.Options{Compiler: c, Store: store, Frozen: true})
	var miss *pieces.MissError
	if !errors.As(err, &miss) || miss.Origin != "@forward item 0 (embed)" || strings.Count(err.Error(), "\n") != 3 {
		t.Fatalf("frozen: %v", err)
	}
	if got := miss.Key.Changes(first.Artifacts[0].Key); !slices.Equal(got, []cache.Change{{Factor: "pipeline", Old: "passes 1", New: "passes 2"}}) {
		t.Errorf("factors that differ: %v", got)
	}
}

// TestExtras: extras are looked up, compiled, counted, stored and missed as pieces are, started
// before them, and passed to Use.
func TestExtras(t *testing.T) {
	p := plan(t, layers(1), "s::s")
	store := pieces.NewMemoryStore()
	compiled, used := 0, 0
	extra := pieces.Extra{
		Key:    cache.Key{Piece: [32]byte{1}, Target: "fake", Pipeline: "kernel 1", Externs: "s::s", Format: program.FormatVersion},
		Origin: "kernel k of s::s",
		Compile: func(context.Context) (*program.Program, error) {
			compiled++
			return &program.Program{Target: "fake", Kernels: []program.Kernel{{Name: "k", Format: program.KernelCUDA, Code: []byte("code")}}}, nil
		},
		Use: func(p *program.Program) {
			used++
			if len(p.Kernels) != 1 || string(p.Kernels[0].Code) != "code" {
				t.Errorf("was given %v", p)
			}
		},
	}
	without := mustBuild(t, pieces.Options{Compiler: newFake(1)}, p)
	o := pieces.Options{Compiler: newFake(1), Store: store, Extras: []pieces.Extra{extra}}
	var begun []*pieces.Artifact
	o.Jobs, o.Observer = 1, func(e pieces.Event) {
		if e.Kind == pieces.Started {
			begun = append(begun, e.Artifact)
		}
	}
	cold := mustBuild(t, o, p)
	if len(begun) != 1+len(cold.Artifacts) || begun[0] != cold.Extras[0] {
		t.Errorf("%d artifacts were begun, the extra not first", len(begun))
	}
	if want := without.Counters.Compiled + 1; cold.Counters.Compiled != want || compiled != 1 || used != 1 || store.Len() != want {
		t.Errorf("cold: %+v, compiled %d, used %d, %d stored", cold.Counters, compiled, used, store.Len())
	}
	if len(cold.Artifacts) != len(without.Artifacts) || len(cold.Extras) != 1 || cold.Extras[0].Program == nil {
		t.Errorf("%d artifacts and %d extras", len(cold.Artifacts), len(cold.Extras))
	}
	if s := cold.ByShape[len(cold.ByShape)-1]; s.Shape != "extern ops" || s.Compiled != 1 {
		t.Errorf("the last shape is %+v", s)
	}
	o.Frozen = true
	if warm := mustBuild(t, o, p); warm.Counters.Compiled != 0 || compiled != 1 || used != 2 {
		t.Errorf("warm: %+v, compiled %d, used %d", warm.Counters, compiled, used)
	}
	o.Store = pieces.NewMemoryStore()
	var miss *pieces.MissError
	if _, err := pieces.Build(t.Context(), []*split.Plan{p}, o); !errors.As(err, &miss) || !strings.Contains(err.Error(), "kernel k of s::s: no artifact") {
		t.Errorf("frozen without it: %v", err)
	}
}

// TestPartOf: artifacts and extras of the build in PartOf are reused with their source, bytes and
// duration, without a compilation or a look-up.
func TestPartOf(t *testing.T) {
	c := newFake(1)
	compiled, used := 0, 0
	extras := []pieces.Extra{{
		Key:    cache.Key{Piece: [32]byte{1}, Target: "fake", Pipeline: "kernel 1", Format: program.FormatVersion},
		Origin: "kernel k of s::s",
		Compile: func(context.Context) (*program.Program, error) {
			compiled++
			return &program.Program{Target: "fake"}, nil
		},
		Use: func(*program.Program) { used++ },
	}}
	whole := mustBuild(t, pieces.Options{Compiler: c, Extras: extras}, plan(t, layers(2), "s::s"), plan(t, chain, "silly::attention"))
	before := c.total()
	store := &broken{MemoryStore: pieces.NewMemoryStore(), get: errors.New("looked up")}
	part := mustBuild(t, pieces.Options{Compiler: c, Store: store, Extras: extras, Frozen: true, PartOf: whole}, plan(t, chain, "silly::attention"))
	if c.total() != before || compiled != 1 || used != 2 || len(part.Warnings) > 0 {
		t.Errorf("%d compilations more, the extra compiled %d times and used %d, %v", c.total()-before, compiled, used, part.Warnings)
	}
	all := map[cache.Key]*pieces.Artifact{}
	for _, a := range slices.Concat(whole.Artifacts, whole.Extras) {
		all[a.Key] = a
	}
	for _, a := range slices.Concat(part.Artifacts, part.Extras) {
		from := all[a.Key]
		if from == nil || a.Program != from.Program || a.Source != pieces.Compiled || a.Bytes != from.Bytes || a.Duration != from.Duration {
			t.Errorf("%+v of %+v", a, from)
		}
	}
	if n := part.Counters.Compiled; n < 2 || n != len(part.Artifacts)+1 {
		t.Errorf("%d of %d artifacts and an extra were compiled", n, len(part.Artifacts))
	}
	// Artifacts that the build in PartOf lacks are compiled.
	other := mustBuild(t, pieces.Options{Compiler: c, PartOf: part}, plan(t, layers(2), "s::s"))
	if c.total() == before || other.Counters.Compiled == 0 {
		t.Errorf("%d compilations more, %+v", c.total()-before, other.Counters)
	}
}

// broken is a store whose Get or Put fails, or whose Get returns damaged artifacts.
type broken struct {
	*pieces.MemoryStore
	get, put error
	damage   func([]byte) []byte
}

func (s *broken) Get(ctx context.Context, k cache.Key) ([]byte, bool, error) {
	if s.get != nil {
		return nil, false, s.get
	}
	blob, ok, err := s.MemoryStore.Get(ctx, k)
	if ok && s.damage != nil {
		blob = s.damage(slices.Clone(blob))
	}
	return blob, ok, err
}

func (s *broken) Put(ctx context.Context, k cache.Key, blob []byte, p cache.Provenance) error {
	if s.put != nil {
		return s.put
	}
	return s.MemoryStore.Put(ctx, k, blob, p)
}

func TestBrokenStoresAreWarnings(t *testing.T) {
	p := plan(t, chain, "silly::attention")
	for name, s := range map[string]*broken{
		"get":    {get: errors.New("cannot read")},
		"put":    {put: errors.New("cannot write")},
		"damage": {damage: func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
		"target": {damage: func([]byte) []byte {
			b, err := (&program.Program{Target: "other"}).Encode()
			if err != nil {
				t.Fatal(err)
			}
			return b
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s.MemoryStore = pieces.NewMemoryStore()
			o := pieces.Options{Compiler: newFake(7), Store: s}
			mustBuild(t, o, p)
			var events int
			o.Observer = func(e pieces.Event) {
				if e.Kind == pieces.Warning {
					events++
				}
			}
			r := mustBuild(t, o, p)
			if r.Counters.Compiled != 3 || len(r.Warnings) != events || events < 3 || !strings.HasPrefix(r.Warnings[0].Error(), "@f item 0: key ") {
				t.Errorf("compiled %d, %d warnings %v", r.Counters.Compiled, events, r.Warnings)
			}
			s.get, s.put, s.damage = nil, nil, nil
			mustBuild(t, o, p)
			if r = mustBuild(t, o, p); r.Counters.Loaded != 3 || len(r.Warnings) > 0 {
				t.Errorf("repaired: %+v %v", r.Counters, r.Warnings)
			}
		})
	}
}

// TestOutcomeDoesNotDependOnTiming compares counters, artifacts without their durations, and
// errors, for 1 to 8 jobs whose compilations take random times.
func TestOutcomeDoesNotDependOnTiming(t *testing.T) {
	p := plan(t, layers(6), "s::s")
	summary := func(refuse string, jobs int, seed uint64) string {
		c := newFake(seed)
		c.refuse = refuse
		r, err := pieces.Build(context.Background(), []*split.Plan{p}, pieces.Options{Compiler: c, Jobs: jobs, Store: pieces.NewMemoryStore(),
			Shapes: map[string]pieces.Shapes{"N": {Sizes: []int64{1, 2, 4}}}})
		if err != nil {
			return err.Error()
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%+v\n", r.Counters)
		for _, a := range r.Artifacts {
			fmt.Fprintf(&b, "%s %v %v %d %v\n", a.Key, a.Range, a.Source, a.Bytes, a.Uses)
		}
		return b.String()
	}
	for _, refuse := range []string{"", "exp", "add"} {
		want := summary(refuse, 1, 0)
		if refuse == "add" && (!strings.HasPrefix(want, `@forward item 4 (layers.0), shape "s0=1": m.ir:16:11: cannot compile add`) || strings.Count(want, "cannot compile") != 4) {
			t.Errorf("errors: %s", want)
		}
		for seed := range uint64(8) {
			if got := summary(refuse, 1+int(seed), seed); got != want {
				t.Errorf("refuse %q, %d jobs:\n%s", refuse, 1+seed, cmp.Diff(want, got))
			}
		}
	}
}

// TestBuildsShareWork holds that builds that run at once on one store compile
// each artifact once among them.
func TestBuildsShareWork(t *testing.T) {
	p := plan(t, layers(4), "s::s")
	c, store := newFake(8), pieces.NewMemoryStore()
	var wg sync.WaitGroup
	results := make([]*pieces.Result, 4)
	for i := range results {
		wg.Go(func() {
			results[i], _ = pieces.Build(context.Background(), []*split.Plan{p}, pieces.Options{Compiler: c, Store: store, Jobs: 4})
		})
	}
	wg.Wait()
	compiled := 0
	for _, r := range results {
		if r == nil {
			t.Fatal("a build failed")
		}
		compiled += r.Counters.Compiled
		if r.Counters.Compiled+r.Counters.Loaded != 4 {
			t.Errorf("%+v", r.Counters)
		}
	}
	if compiled != 4 || c.total() != 4 {
		t.Errorf("%d compiled, %d calls", compiled, c.total())
	}
}

func TestCancel(t *testing.T) {
	why := errors.New("the user left")
	for _, store := range []pieces.Store{nil, pieces.NewMemoryStore()} {
		ctx, cancel := context.WithCancelCause(context.Background())
		c := newFake(9)
		c.block = true
		o := pieces.Options{Compiler: c, Store: store, Jobs: 2}
		o.Observer = func(e pieces.Event) {
			if e.Kind == pieces.Started {
				cancel(why)
			}
		}
		r, err := pieces.Build(ctx, []*split.Plan{plan(t, layers(2), "s::s")}, o)
		if r != nil || !errors.Is(err, why) {
			t.Errorf("got %v, %v", r, err)
		}
	}
}

// TestLockWaits holds that a lock of a key has one holder, that waiting for it ends with the
// context, and that another key has another lock.
func TestLockWaits(t *testing.T) {
	s := pieces.NewMemoryStore()
	key := cache.Key{Target: "fake"}
	unlock, err := s.Lock(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	if _, err := s.Lock(ctx, key); !errors.Is(err, why) {
		t.Errorf("a second lock: %v", err)
	}
	other, err := s.Lock(ctx, cache.Key{Target: "other"})
	if err != nil {
		t.Fatal(err)
	}
	other()
	got := make(chan struct{})
	go func() {
		defer close(got)
		again, err := s.Lock(context.Background(), key)
		if err != nil {
			t.Errorf("the lock after its release: %v", err)
			return
		}
		again()
	}()
	unlock()
	<-got
}

func TestObserver(t *testing.T) {
	var open, finished, last int
	o := pieces.Options{Compiler: newFake(10), Jobs: 4}
	o.Observer = func(e pieces.Event) { // calls are serialised, or the race detector says so
		switch e.Kind {
		case pieces.Started:
			open++
		case pieces.Finished:
			open--
			finished++
			if e.Done != finished || e.Artifact.Program == nil {
				t.Errorf("event %+v", e)
			}
		}
		if e.Done < last || e.Done != finished || e.Total != 4 {
			t.Errorf("%s: done %d of %d after %d", e.Kind, e.Done, e.Total, last)
		}
		last = e.Done
	}
	mustBuild(t, o, plan(t, layers(5), "s::s"))
	if open != 0 || finished != 4 {
		t.Errorf("%d open, %d finished", open, finished)
	}
	// Artifacts that fail are not counted in Done.
	open, finished, last = 0, 0, 0
	o.Frozen, o.Store = true, pieces.NewMemoryStore()
	if _, err := pieces.Build(t.Context(), []*split.Plan{plan(t, layers(5), "s::s")}, o); err == nil || open != 4 || finished != 0 {
		t.Errorf("frozen: %d open, %d finished, %v", open, finished, err)
	}
}

// TestNoPlans: a build without plans succeeds, and makes and records nothing.
func TestNoPlans(t *testing.T) {
	s := cache.New(cache.Options{Dir: t.TempDir()})
	r, err := pieces.Build(t.Context(), nil, pieces.Options{Compiler: newFake(12), Store: s})
	if err != nil || len(r.Artifacts) > 0 || len(r.Warnings) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if list, err := s.Modules(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("recorded %+v, %v", list, err)
	}
}

func TestPlansShareArtifacts(t *testing.T) {
	a, b := plan(t, layers(2), "s::s"), plan(t, layers(3), "s::s")
	r := mustBuild(t, pieces.Options{Compiler: newFake(11)}, a, b)
	if r.Counters.GraphsSeen != 2 || r.Counters.Compiled != 4 || r.Counters.Deduplicated != 2+8 {
		t.Errorf("%+v", r.Counters)
	}
	p, err := r.Program(a.Units[0].Piece, 5)
	if q, err2 := r.Program(b.Units[0].Piece, 5); err != nil || err2 != nil || p != q {
		t.Error("equal pieces of two plans have two programs")
	}
}

func TestBadOptions(t *testing.T) {
	p := plan(t, chain, "silly::attention")
	for want, o := range map[string]pieces.Options{
		"no compiler is given: set Options.Compiler":              {},
		"sizes are given for K, M, which no function is sized by": {Compiler: newFake(0), Shapes: map[string]pieces.Shapes{"M": {}, "K": {}, "N": {}}},
		"@f, sizes of N: compile size 0 is outside [1, 8192]":     {Compiler: newFake(0), Shapes: map[string]pieces.Shapes{"N": {Sizes: []int64{0}}}},
	} {
		if _, err := pieces.Build(context.Background(), []*split.Plan{p}, o); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
