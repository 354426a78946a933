package piecewise_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pwc/piecewise"
	"pwc/program"
	"pwc/runtime/device"
	hostdev "pwc/runtime/host"
)

// reserving is the host device as a device.Reserver: states get their address first, and their
// memory later. log has the reservations, maps, fills of states and ends of captures, in order.
type reserving struct {
	*hostdev.Device
	log  []string
	full bool  // there is no memory beyond the first granule
	fill error // of the next fill of a state
}

const granule = 4096

func (r *reserving) MapGranularity() (int64, error) { return granule, nil }

func (r *reserving) ReserveState(bytes int64) (device.State, error) {
	r.log = append(r.log, fmt.Sprint("reserve ", bytes))
	m, err := r.Alloc(bytes)
	return &reservedState{Memory: m, owner: r}, err
}

// reservedState wraps the memory of the host. reservingStream.Fill unwraps it.
type reservedState struct {
	device.Memory
	owner  *reserving
	mapped int64
}

func (s *reservedState) Mapped() int64 { return s.mapped }

func (s *reservedState) Map(bytes int64) error {
	s.owner.log = append(s.owner.log, fmt.Sprint("map ", bytes))
	if s.owner.full && bytes > granule {
		return &device.MemoryError{Asked: bytes}
	}
	s.mapped = max(s.mapped, (bytes+granule-1)/granule*granule)
	return nil
}

func (r *reserving) NewStream() (device.Stream, error) {
	s, err := r.Device.NewStream()
	return &reservingStream{s, r}, err
}

func (r *reserving) TakeFaults(s device.Stream, of ...device.Executable) ([]device.IndexError, error) {
	return r.Device.TakeFaults(s.(*reservingStream).Stream, of...)
}

type reservingStream struct {
	device.Stream
	owner *reserving
}

func (s *reservingStream) Fill(b device.Buffer, v byte) error {
	if st, ok := b.Memory.(*reservedState); ok {
		if b.Offset+b.Size > st.mapped {
			return fmt.Errorf("fill of %d bytes, %d are mapped", b.Offset+b.Size, st.mapped)
		}
		if err := s.owner.fill; err != nil {
			s.owner.fill = nil
			return err
		}
		s.owner.log = append(s.owner.log, "fill")
		b.Memory = st.Memory
	}
	return s.Stream.Fill(b, v)
}

func (s *reservingStream) EndCapture() (device.Graph, error) {
	s.owner.log = append(s.owner.log, "captured")
	return s.Stream.EndCapture()
}

// count is "test::count"(x, mut state, mut out). It computes nothing: calls has the buffer of the
// state of each launch.
type count struct{ calls []device.Buffer }

func (*count) Signature() device.Signature {
	return device.Signature{Name: "test::count", Mut: []bool{false, true, true}}
}
func (*count) ScratchBytes([]device.Tensor, []program.Attr) (int64, error) { return 0, nil }
func (o *count) Launch(c *device.OpCall) error {
	o.calls = append(o.calls, c.Args[1].Buffer)
	return nil
}

const counting = `pwc 1
module "counting" {
  sym N in [1, 64] batch
  sym B in [1, 4096] load
  op "test::count"(tensor, mut tensor, mut tensor) split
  state @a : f32[B, 2]
  state @b : f32[B, 3]
  func @forward(%x: f32[N]) -> (f32[N]) {
    %u = add(%x, 1.0) : f32[N]
    %o = empty_like(%u) : f32[N]
    call "test::count"(%u, @a, %o)
    %p = empty_like(%u) : f32[N]
    call "test::count"(%o, @b, %p)
    %y = add(%p, 1.0) : f32[N]
    return %y
  }
}
`

// States that only extern ops access have an address when graphs are captured. They get their
// memory after the capture: as many bytes as planned (C5), at the same address (C7).
func TestStatesGetMemoryAfterCapture(t *testing.T) {
	const blocks, bytes = 1000, 5 * granule // 8000 and 12000 bytes, each rounded to 256, make 20224
	prepare := func(t *testing.T) (*reserving, *count, *piecewise.Backend) {
		dev, op := &reserving{Device: openHost(t)}, &count{}
		b := create(t, counting, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}, Ops: []device.Op{op}, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": blocks}}})
		if got := b.Plan().StateBytes; got != bytes {
			t.Errorf("%d bytes of states planned, want %d", got, bytes)
		}
		if err := b.Load(context.Background(), nil, nil); err != nil {
			t.Fatal(err)
		}
		return dev, op, b
	}
	reserved := []string{fmt.Sprint("reserve ", bytes), "map 1"}
	rest := []string{fmt.Sprint("map ", bytes), "fill"}
	t.Run("capture", func(t *testing.T) {
		dev, op, b := prepare(t)
		before, err := b.State("b")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Capture(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, err := issue(t, b.Func("forward"), []float32{1, 2}, nil); err != nil {
			t.Fatal(err)
		}
		captures := slices.Repeat([]string{"captured"}, int(b.Plan().Graphs))
		if want := slices.Concat(reserved, captures, rest); !slices.Equal(dev.log, want) {
			t.Errorf("%q, want %q", dev.log, want)
		}
		if s := b.Stats(); s.Replays != 1 || len(op.calls) != 2 || op.calls[1] != before || before.Offset != 32*256 || before.Size != 12*blocks {
			t.Errorf("%d replays with states at %+v; @b was at %+v before the capture", s.Replays, op.calls, before)
		}
	})
	t.Run("run first", func(t *testing.T) {
		dev, _, b := prepare(t)
		for range 2 {
			if _, err := issue(t, b.Func("forward"), []float32{1, 2}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if want := slices.Concat(reserved, rest); !slices.Equal(dev.log, want) {
			t.Errorf("%q, want %q", dev.log, want)
		}
	})
	t.Run("not zeroed", func(t *testing.T) {
		for _, capture := range []bool{true, false} {
			dev, _, b := prepare(t)
			dev.fill = errors.New("broken")
			broken, err := dev.fill, error(nil)
			if capture {
				err = b.Capture(context.Background())
			} else {
				_, err = issue(t, b.Func("forward"), []float32{1, 2}, nil)
			}
			if !errors.Is(err, broken) {
				t.Fatalf("capture %v: %v, want the error of the fill", capture, err)
			}
			// The next run fills the states before an op reads them.
			if _, err := issue(t, b.Func("forward"), []float32{1, 2}, nil); err != nil {
				t.Fatal(err)
			}
			if last := dev.log[len(dev.log)-1]; last != "fill" {
				t.Errorf("capture %v: %q, want a fill at the end", capture, dev.log)
			}
		}
	})
	t.Run("no room", func(t *testing.T) {
		dev, _, b := prepare(t)
		dev.full = true
		if err := b.Capture(context.Background()); !errors.Is(err, device.ErrOutOfMemory) || !strings.Contains(err.Error(), fmt.Sprint(bytes, " bytes for states")) {
			t.Errorf("capture: %v, want an error with the bytes of the states", err)
		}
	})
	t.Run("given", func(t *testing.T) {
		dev := &reserving{Device: openHost(t)}
		m, err := dev.Alloc(12 * blocks)
		if err != nil {
			t.Fatal(err)
		}
		b := create(t, counting, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{2}}, Ops: []device.Op{&count{}}, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": blocks}}})
		if err := b.Load(context.Background(), nil, map[string]device.Buffer{"b": {Memory: m, Size: 12 * blocks}}); err != nil {
			t.Fatal(err)
		}
		if want := []string{fmt.Sprint("reserve ", 2*granule), "map 1"}; !slices.Equal(dev.log, want) {
			t.Errorf("%q, want %q", dev.log, want)
		}
	})
	t.Run("pieces", func(t *testing.T) {
		dev := &reserving{Device: openHost(t)}
		text := strings.Replace(stateful, "%x: f32[N]", "%x: f32[N], %i: i32[N]", 1)
		b := create(t, text, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.None}, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": 4}}})
		// A warm-up runs the piece, so its state has memory from Load on. The test makes no
		// run: it would fail, because the host does not know the wrapper.
		if err := b.Load(context.Background(), nil, nil); err != nil {
			t.Fatal(err)
		}
		if want := []string{fmt.Sprint("reserve ", granule), "map 1", fmt.Sprint("map ", granule), "fill"}; !slices.Equal(dev.log, want) {
			t.Errorf("%q, want %q", dev.log, want)
		}
	})
}

// A warm-up runs pieces on padding. If a piece writes a state, here the rows at %ids, the state has
// the same bytes after the warm-up as before.
func TestWarmupLeavesStates(t *testing.T) {
	dev := openHost(t)
	b := create(t, `pwc 1
module "table" {
  sym N in [1, 8] batch
  state @s : f32[4, 2]
  func @forward(%x: f32[N, 2], %ids: i32[N]) -> (f32[N, 2]) {
    %old = embedding(@s, %ids) : f32[N, 2]
    %sum = add(%old, %x) : f32[N, 2]
    %new = add(%sum, 1.0) : f32[N, 2]
    scatter(@s, %ids, %new)
    return %new
  }
}
`, piecewise.Options{Device: dev, Capture: piecewise.CaptureOptions{Mode: piecewise.Piecewise, Sizes: []int64{1, 2}}})
	mem, err := dev.Alloc(32)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Free()
	state := device.Buffer{Memory: mem, Size: 32}
	data, err := dev.Bytes(state)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(8) {
		putf32(data, i, float32(i)+10)
	}
	before := slices.Clone(data)
	if err := b.Load(context.Background(), nil, map[string]device.Buffer{"s": state}); err != nil {
		t.Fatal(err)
	}
	if err := b.Capture(context.Background()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(data, before) {
		t.Errorf("the state holds %v, held %v", data, before)
	}
	in, err := b.Func("forward").Inputs(1)
	if err != nil {
		t.Fatal(err)
	}
	x, err := in.Float32s("x")
	if err != nil {
		t.Fatal(err)
	}
	ids, err := in.Int32s("ids")
	if err != nil {
		t.Fatal(err)
	}
	x[0], x[1], ids[0] = 1, 2, 3
	r, err := b.Func("forward").Run(context.Background(), in, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantF32(t, read(t, r.At(0)), []float32{18, 20})
	if b.Stats().Replays != 1 {
		t.Error("the run was not a replay")
	}
}

// SetState with memory of a wrong size fails in another goroutine during a Load, before it
// (ErrOrder) and after it (ErrNotLoaded); after Close it is ErrClosed.
func TestSetStateDuringLoad(t *testing.T) {
	b := create(t, counting, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: piecewise.None}, Ops: []device.Op{&count{}}, Memory: piecewise.MemoryOptions{Symbols: map[string]int64{"B": 4}}})
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 100 {
			if err := b.SetState("a", device.Buffer{}); !errors.Is(err, piecewise.ErrBusy) && !errors.Is(err, piecewise.ErrOrder) && !errors.Is(err, piecewise.ErrNotLoaded) {
				t.Errorf("during a load: %v", err)
			}
		}
	})
	for {
		if err := b.Load(context.Background(), nil, nil); err == nil {
			break
		} else if !errors.Is(err, piecewise.ErrBusy) {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.SetState("a", device.Buffer{}); !errors.Is(err, piecewise.ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
}
