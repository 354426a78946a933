package piecewise_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"pwc/compile/host"
	"pwc/internal/testkit"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/pieces"
	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
)

// withRoutine makes programs in which a library routine is a variant of the kernels.
type withRoutine struct{ pieces.Pipeline }

func (withRoutine) Fingerprint() string { return "with a routine" }

func (c withRoutine) Compile(ctx context.Context, piece *ir.Module, ranges map[string]dim.Interval) (*program.Program, error) {
	p, err := c.Pipeline.Compile(ctx, piece, ranges)
	if err != nil {
		return nil, err
	}
	for i, s := range p.Steps {
		if s.Kind != program.StepKernel {
			continue
		}
		call := program.Step{Kind: program.StepLibrary, Extern: "lib::routine", Args: s.Args}
		p.Steps[i] = program.Step{Kind: program.StepChoice, Origin: s.Origin, Variants: []program.Variant{
			{Guard: program.Guard{Expr: dim.Sym(p.Symbols[0]), Lo: 2, Hi: 64}, Steps: []program.Step{call, call}},
			{Guard: program.Guard{Expr: dim.Sym(p.Symbols[0]), Lo: 2, Hi: 64}, Steps: []program.Step{call}},
			{Steps: []program.Step{s}}}}
	}
	return p, p.Validate()
}

// libraryDevice is a device that has the routine, so that plans select it. The host device
// that it wraps runs the kernels.
type libraryDevice struct {
	device.Device
	routine device.Op
}

func (l libraryDevice) Libraries() device.OpSet { return device.OpSet{"lib::routine": l.routine} }
func (libraryDevice) WorkspaceBytes() int64     { return 4096 }

// routine declines tensors of fewer than minRows rows. Calls with at least tunedRows rows count as
// measured.
type routine struct{ minRows, tunedRows int64 }

func (routine) Signature() device.Signature { return device.Signature{Capture: true} }
func (routine) Launch(*device.OpCall) error { return nil }

func (r routine) ScratchBytes(args []device.Tensor, _ []program.Attr) (int64, error) {
	if args[0].Shape[0] < r.minRows {
		return 0, device.ErrDeclined
	}
	return 0, nil
}

func (r routine) Tuned(args []device.Tensor, _ []program.Attr) bool {
	return args[0].Shape[0] >= r.tunedRows
}

// TestLibraryCalls pins the counters of library routines: calls, calls without a measurement, and
// steps without the routine, each program and size once.
func TestLibraryCalls(t *testing.T) {
	target := withRoutine{pieces.Pipeline{Backend: host.New()}}
	ops := []device.Op{&silent{sum3{}}}
	store := pieces.NewMemoryStore()
	o := piecewise.Options{Compile: piecewise.CompileOptions{Compiler: target, Store: store}, Ops: ops, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 4, 16, 64}}}
	b := start(t, layers(3), o)
	s := b.Stats()
	programs := s.Compiled // the last piece and the others, which are identical
	if programs != 2 || s.LibraryMissing != 3*programs || s.LibraryCalls+s.LibraryUntuned != 0 || b.Plan().WorkspaceBytes != 0 {
		t.Errorf("without the library: %d programs, %+v", programs, s)
	}
	o.Device = libraryDevice{openHost(t), routine{minRows: 4, tunedRows: 64}}
	b = create(t, layers(3), o)
	s = b.Stats()
	if s.LibraryMissing != 0 || s.LibraryCalls != 2*3*programs || s.LibraryUntuned != 2*2*programs || b.Plan().WorkspaceBytes != 4096 {
		t.Errorf("with the library: %+v, a workspace of %d bytes", s, b.Plan().WorkspaceBytes)
	}
	o.Frozen, o.Compile.Store = true, store
	var frozen *piecewise.FrozenError
	if _, err := piecewise.New(context.Background(), testkit.Parse(t, layers(3)), o); !errors.As(err, &frozen) || !strings.Contains(err.Error(), fmt.Sprintf("%d of %d calls", s.LibraryUntuned, s.LibraryCalls)) {
		t.Errorf("frozen, with unmeasured algorithms: %v", err)
	}
	o.Device = libraryDevice{o.Device, routine{minRows: 4, tunedRows: 4}}
	create(t, layers(3), o)
	all, err := b.Programs()
	if err != nil || len(all) != int(4*programs) || all[0].Size != 64 || all[len(all)-1].Size != 1 || all[0].Func != "forward" || len(all[0].Symbols) != 1 || all[0].Symbols[0] != 64 {
		t.Errorf("%d programs, %v", len(all), err)
	}
}

// asked is a routine that counts calls of ScratchBytes.
type asked struct {
	routine
	times *int
}

func (a asked) ScratchBytes(args []device.Tensor, attrs []program.Attr) (int64, error) {
	*a.times++
	return a.routine.ScratchBytes(args, attrs)
}

// TestAskedOnce: a plan asks for the scratch of programs as often for 20 layers as for 2.
func TestAskedOnce(t *testing.T) {
	times := func(n int) (out int) {
		create(t, layers(n), piecewise.Options{Compile: piecewise.CompileOptions{Compiler: withRoutine{pieces.Pipeline{Backend: host.New()}}}, Ops: []device.Op{&silent{sum3{}}},
			Capture: piecewise.CaptureOptions{Sizes: []int64{1, 4, 16}}, Device: libraryDevice{openHost(t), asked{routine{minRows: 4}, &out}}})
		return out
	}
	if few, many := times(2), times(20); few == 0 || few != many {
		t.Errorf("2 layers ask %d times, 20 layers %d", few, many)
	}
}

// sleepy is a routine whose Initialize returns once the first piece begins to compile.
type sleepy struct {
	routine
	compiling chan struct{}
	woken     *int
}

func (s sleepy) Initialize() {
	<-s.compiling
	*s.woken++
}

// awaited signals a sleepy routine that a piece compiles.
type awaited struct {
	pieces.Compiler
	begun sync.Once
	to    sleepy
	err   error
}

func (c *awaited) Compile(ctx context.Context, piece *ir.Module, ranges map[string]dim.Interval) (*program.Program, error) {
	c.begun.Do(func() { close(c.to.compiling) })
	if c.err != nil {
		return nil, c.err
	}
	return c.Compiler.Compile(ctx, piece, ranges)
}

// TestInitializesRoutines: a routine is initialized once, while pieces compile, and before New
// returns, also if New fails. If nothing is compiled, it is not initialized.
func TestInitializesRoutines(t *testing.T) {
	store, woken := pieces.NewMemoryStore(), 0
	refused := errors.New("refused")
	for _, c := range []struct {
		err  error
		want int
	}{{refused, 1}, {nil, 2}, {nil, 2}} {
		s := sleepy{routine{minRows: 4}, make(chan struct{}), &woken}
		o := piecewise.Options{Compile: piecewise.CompileOptions{Compiler: &awaited{Compiler: withRoutine{pieces.Pipeline{Backend: host.New()}}, to: s, err: c.err}, Store: store},
			Ops: []device.Op{&silent{sum3{}}}, Device: libraryDevice{openHost(t), s}}
		b, err := piecewise.New(context.Background(), testkit.Parse(t, layers(3)), o)
		if !errors.Is(err, c.err) {
			t.Fatal(err)
		}
		if woken != c.want {
			t.Errorf("compilation gives %v: woken %d times, want %d", c.err, woken, c.want)
		}
		if b != nil {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// workspaceDevice is a libraryDevice whose streams take no workspace while refuse is set.
type workspaceDevice struct {
	libraryDevice
	refuse error
	given  int // workspaces that streams took
}

type workspaceStream struct {
	device.Stream
	owner *workspaceDevice
}

func (d *workspaceDevice) NewStream() (device.Stream, error) {
	s, err := d.libraryDevice.NewStream()
	return &workspaceStream{s, d}, err
}

func (s *workspaceStream) UseWorkspace(device.Buffer) error {
	if s.owner.refuse == nil {
		s.owner.given++
	}
	return s.owner.refuse
}

func (s *workspaceStream) WarmLibraries(device.BoundLaunch) error { return nil }

// If the stream refuses a workspace, the pool does not keep it: the next Load allocates one
// again.
func TestWorkspaceIsTriedAgain(t *testing.T) {
	dev := &workspaceDevice{libraryDevice: libraryDevice{openHost(t), routine{minRows: 4, tunedRows: 64}}, refuse: errors.New("refused")}
	pool, err := piecewise.NewPool(dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := create(t, plain, piecewise.Options{Pool: pool, Compile: piecewise.CompileOptions{Compiler: withRoutine{pieces.Pipeline{Backend: host.New()}}}, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{4}}})
	if err := b.Load(t.Context(), nil, nil); !errors.Is(err, dev.refuse) {
		t.Fatalf("load: %v, want %v", err, dev.refuse)
	}
	dev.refuse = nil
	if err := b.Load(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if dev.given != 1 {
		t.Errorf("the stream was given %d workspaces, want 1", dev.given)
	}
	if err := errors.Join(b.Close(), pool.Close()); err != nil {
		t.Error(err)
	}
}
