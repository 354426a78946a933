package mem

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pwc/runtime/device"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// fakeDevice is a Backing with limited memory and switches for failures. It
// fails if a segment is given back that it did not hand out.
type fakeDevice struct {
	capacity  int64 // 0: no limit
	failAlloc error
	failFree  error

	used   int64
	next   int
	last   Segment
	events []string // "alloc 2 MiB", "free #0", "sync s"
	live   map[*fakeMemory]bool
}

type fakeMemory struct {
	id    int
	bytes int64
	data  []byte // made only by devices that keep it
}

func (m *fakeMemory) Size() int64 { return m.bytes }
func (m *fakeMemory) Free() error { return errors.New("freed past its Backing") }

func (d *fakeDevice) AllocSegment(bytes int64) (Segment, error) {
	switch {
	case d.failAlloc != nil:
		return nil, d.failAlloc
	case d.capacity > 0 && d.used+bytes > d.capacity:
		return nil, &device.MemoryError{Asked: bytes, Reserved: d.used, Limit: d.capacity}
	}
	m := &fakeMemory{id: d.next, bytes: bytes}
	d.next++
	d.last = m
	d.used += bytes
	if d.live == nil {
		d.live = map[*fakeMemory]bool{}
	}
	d.live[m] = true
	d.events = append(d.events, fmt.Sprintf("alloc %d MiB", bytes/mib))
	return m, nil
}

func (d *fakeDevice) FreeSegment(s Segment) error {
	if d.failFree != nil {
		return d.failFree
	}
	m := s.(*fakeMemory)
	if !d.live[m] {
		return fmt.Errorf("segment #%d is not live", m.id)
	}
	delete(d.live, m)
	d.used -= m.bytes
	d.events = append(d.events, fmt.Sprintf("free #%d", m.id))
	return nil
}

// fakeStream is a stream without work. It logs its calls to dev, its calls fail with err,
// and its events have passed if done is set.
type fakeStream struct {
	device.Stream
	name      string
	dev       *fakeDevice
	err       error
	done      bool
	capturing bool
	events    int // that exist
}

func (s *fakeStream) Capturing() bool       { return s.capturing }
func (s *fakeStream) Device() device.Device { return fakeEvents{stream: s} }

func (s *fakeStream) Record(e device.Event) error {
	if s.err != nil {
		return s.err
	}
	s.log("record")
	e.(*fakeEvent).of = s
	return nil
}

func (s *fakeStream) log(what string) {
	if s.dev != nil {
		s.dev.events = append(s.dev.events, what+" "+s.name)
	}
}

type fakeEvents struct {
	device.Device
	stream *fakeStream
}

func (d fakeEvents) NewEvent() (device.Event, error) {
	if d.stream.err != nil {
		return nil, d.stream.err
	}
	d.stream.events++
	return &fakeEvent{made: d.stream}, nil
}

type fakeEvent struct{ made, of *fakeStream }

func (e *fakeEvent) Query() (bool, error) {
	e.of.log("query")
	return e.of.done && e.of.err == nil, e.of.err
}

func (e *fakeEvent) Synchronize() error {
	e.of.log("wait")
	e.of.done = e.of.err == nil
	return e.of.err
}

func (e *fakeEvent) Close() error { e.made.events--; return nil }

func (s *fakeStream) Synchronize() error {
	s.log("sync")
	return s.err
}

func newPool(t testing.TB, o Options) (*fakeDevice, *Allocator, *Pool) {
	t.Helper()
	d := &fakeDevice{}
	a := New(d, o)
	return d, a, a.NewPool("test")
}

func defaultPool(t testing.TB, o Options) (*fakeDevice, *Allocator, *Pool) {
	t.Helper()
	d := &fakeDevice{}
	a := New(d, o)
	return d, a, a.Default()
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// layout prints a pool as "#0: 500/512 free 1024; #1: …": a live block as requested bytes/bytes,
// any other as "free" and its bytes.
func layout(p *Pool) string {
	var b strings.Builder
	for i, seg := range p.Snapshot() {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "#%d:", seg.Memory.(*fakeMemory).id)
		for _, bl := range seg.Blocks {
			if bl.Live {
				fmt.Fprintf(&b, " %d/%d", bl.Requested, bl.Bytes)
			} else {
				fmt.Fprintf(&b, " free %d", bl.Bytes)
			}
		}
	}
	return b.String()
}

func expect(t testing.TB, p *Pool, want string) {
	t.Helper()
	if got := layout(p); got != want {
		t.Fatalf("layout\n got %s\nwant %s", got, want)
	}
}

// TestSizes checks the sizes of blocks and segments against c10's round_size and
// get_allocation_size.
func TestSizes(t *testing.T) {
	for _, c := range []struct{ ask, block, segment int64 }{
		{0, 512, 2 * mib}, {1, 512, 2 * mib}, {512, 512, 2 * mib}, {513, 1024, 2 * mib},
		{mib, mib, 2 * mib}, {mib + 1, mib + 512, 20 * mib}, {mib - 511, mib, 2 * mib},
		{10*mib - 512, 10*mib - 512, 20 * mib}, {10*mib - 511, 10 * mib, 10 * mib},
		{10 * mib, 10 * mib, 10 * mib}, {10*mib + 1, 10*mib + 512, 12 * mib}, {31 * mib, 31 * mib, 32 * mib},
	} {
		if got := BlockBytes(c.ask); got != c.block {
			t.Errorf("BlockBytes(%d) = %d, want %d", c.ask, got, c.block)
		}
		if got := SegmentBytes(c.ask); got != c.segment {
			t.Errorf("SegmentBytes(%d) = %d, want %d", c.ask, got, c.segment)
		}
		d, _, p := newPool(t, Options{})
		b := must[Block](t)(p.Alloc(nil, c.ask))
		buf := must[device.Buffer](t)(b.Buffer())
		if d.used != c.segment || buf.Size != c.ask || buf.Offset != 0 {
			t.Errorf("Alloc(%d): %d bytes taken, buffer %+v", c.ask, d.used, buf)
		}
	}
}

func TestSplitMergeAndBestFit(t *testing.T) {
	_, _, p := newPool(t, Options{})
	alloc := func(n int64) Block { return must[Block](t)(p.Alloc(nil, n)) }
	a, b, c := alloc(1000), alloc(100*kib), alloc(1)
	_ = alloc(512*kib - 1)
	expect(t, p, "#0: 1000/1024 102400/102400 1/512 524287/524288 free 1468928")
	check(t, p.Free(b))
	expect(t, p, "#0: 1000/1024 free 102400 1/512 524287/524288 free 1468928")
	// Both holes are large enough. The smaller one is taken.
	b = alloc(4096)
	expect(t, p, "#0: 1000/1024 4096/4096 free 98304 1/512 524287/524288 free 1468928")
	check(t, p.Free(a))
	expect(t, p, "#0: free 1024 4096/4096 free 98304 1/512 524287/524288 free 1468928")
	check(t, p.Free(b)) // between two free blocks: all three become one
	expect(t, p, "#0: free 103424 1/512 524287/524288 free 1468928")
	check(t, p.Free(c)) // only the left neighbour is free
	expect(t, p, "#0: free 103936 524287/524288 free 1468928")
	// An exact fit is not split.
	alloc(103936)
	expect(t, p, "#0: 103936/103936 524287/524288 free 1468928")
	// Of equal holes the one at the lower address is taken.
	x, _, y := alloc(2048), alloc(512), alloc(2048)
	_ = alloc(512)
	check(t, p.Free(y))
	check(t, p.Free(x))
	if got := must[device.Buffer](t)(alloc(2048).Buffer()); got.Offset != 103936+524288 {
		t.Errorf("taken at %d", got.Offset)
	}
}

// TestAllocLast checks that AllocLast takes the end of a free block, so that the next block
// begins where it would without it.
func TestAllocLast(t *testing.T) {
	_, _, p := newPool(t, Options{})
	last := must[Block](t)(p.AllocLast(nil, 1000))
	expect(t, p, "#0: free 2096128 1000/1024")
	a := must[Block](t)(p.Alloc(nil, 512))
	expect(t, p, "#0: 512/512 free 2095616 1000/1024")
	check(t, p.Free(last))
	expect(t, p, "#0: 512/512 free 2096640")
	// A large block that keeps its remainder is taken whole.
	b := must[Block](t)(p.AllocLast(nil, 20*mib-512))
	expect(t, p, "#0: 512/512 free 2096640; #1: 20971008/20971520")
	check(t, p.Free(a))
	check(t, p.Free(b))
}

// TestSmallBlocksSplitToTheLast checks that a small block is split even if only 512 bytes
// are left.
func TestSmallBlocksSplitToTheLast(t *testing.T) {
	_, _, p := newPool(t, Options{})
	alloc := func(n int64) Block { return must[Block](t)(p.Alloc(nil, n)) }
	a := alloc(1024)
	_ = alloc(1)
	check(t, p.Free(a))
	alloc(512)
	expect(t, p, "#0: 512/512 free 512 1/512 free 2095616")
}

// TestEqualHolesGoByAddress has equal holes in two segments, the one in the
// later segment at the lower offset and freed first.
func TestEqualHolesGoByAddress(t *testing.T) {
	_, _, p := newPool(t, Options{})
	alloc := func(n int64) Block { return must[Block](t)(p.Alloc(nil, n)) }
	_, _ = alloc(mib), alloc(512)
	first, _ := alloc(1000*kib), alloc(512)
	second, _ := alloc(1000*kib), alloc(mib) // does not fit the first segment
	check(t, p.Free(second))
	check(t, p.Free(first))
	before := layout(p)
	alloc(1000 * kib)
	if want := strings.Replace(before, "free 1024000", "1024000/1024000", 1); layout(p) != want {
		t.Errorf("got %s\nwant %s", layout(p), want)
	}
}

func TestLargeBlocksKeepSmallRemainders(t *testing.T) {
	_, _, p := newPool(t, Options{})
	alloc := func(n int64) Block { return must[Block](t)(p.Alloc(nil, n)) }
	a := alloc(9 * mib)
	expect(t, p, "#0: 9437184/9437184 free 11534336")
	// 11 MiB are left. Serving 10 MiB leaves exactly 1 MiB, which stays with the
	// block; 512 bytes less leave more, which is split off.
	b := alloc(10 * mib)
	expect(t, p, "#0: 9437184/9437184 10485760/11534336")
	check(t, p.Free(b))
	b = alloc(10*mib - 512)
	expect(t, p, "#0: 9437184/9437184 10485248/10485248 free 1049088")
	if got := p.Stats().ActiveBytes.Now; got != 9437184+10485248 {
		t.Errorf("active %d", got)
	}
	check(t, p.Free(a))
	check(t, p.Free(b))
	expect(t, p, "#0: free 20971520")
	// A small request does not come from a large segment.
	alloc(1)
	expect(t, p, "#0: free 20971520; #1: 1/512 free 2096640")
}

func TestStreamsDoNotShareBlocks(t *testing.T) {
	_, _, p := newPool(t, Options{})
	s1, s2 := &fakeStream{name: "1"}, &fakeStream{name: "2"}
	b := must[Block](t)(p.Alloc(s1, 100))
	check(t, p.Free(b))
	_ = must[Block](t)(p.Alloc(s2, 100))
	expect(t, p, "#0: free 2097152; #1: 100/512 free 2096640")
	_ = must[Block](t)(p.Alloc(s1, 200))
	expect(t, p, "#0: 200/512 free 2096640; #1: 100/512 free 2096640")
}

func TestWrongUse(t *testing.T) {
	_, a, p := newPool(t, Options{})
	q := a.NewPool("other")
	_, _, r := newPool(t, Options{})
	b := must[Block](t)(p.Alloc(nil, 100))
	for _, x := range []*Pool{q, r} {
		if err := x.Free(b); !errors.Is(err, ErrForeignBlock) {
			t.Errorf("free to another pool: %v", err)
		}
	}
	if err := p.Free(Block{}); !errors.Is(err, ErrForeignBlock) {
		t.Errorf("free of the zero block: %v", err)
	}
	if _, err := (Block{}).Buffer(); !errors.Is(err, ErrForeignBlock) {
		t.Errorf("buffer of the zero block: %v", err)
	}
	if _, err := p.Alloc(nil, -1); err == nil {
		t.Error("a negative allocation succeeds")
	}
	expect(t, p, "#0: 100/512 free 2096640")
	check(t, p.Free(b))
	stale := func(when string) {
		t.Helper()
		if err := p.Free(b); !errors.Is(err, ErrDoubleFree) {
			t.Errorf("%s: free: %v", when, err)
		}
		if _, err := b.Buffer(); !errors.Is(err, ErrUseAfterFree) {
			t.Errorf("%s: buffer: %v", when, err)
		}
	}
	stale("freed")
	c := must[Block](t)(p.Alloc(nil, 100)) // the same memory
	stale("memory reused")
	check(t, p.Free(c))
	must[int64](t)(p.Trim())
	stale("segment gone")
	d := must[Block](t)(q.Alloc(nil, 100)) // the same node, in another pool
	stale("handle reused elsewhere")
	check(t, q.Free(d))
	if st := a.Stats(); st.ActiveBlocks.Now != 0 || st.Frees != 3 || st.Allocs != 3 {
		t.Errorf("stats %+v", st)
	}
}

func TestCapture(t *testing.T) {
	dev, a, p := newPool(t, Options{})
	q := a.NewPool("other")
	s1, s2 := &fakeStream{name: "1", dev: dev}, &fakeStream{name: "2", dev: dev}
	before := must[Block](t)(p.Alloc(s2, 100))
	c1 := must[*Scope](t)(p.BeginCapture(s1))
	if _, err := p.BeginCapture(s1); !errors.Is(err, device.ErrCapturing) {
		t.Errorf("second capture: %v", err)
	}
	b := must[Block](t)(p.Alloc(s1, 3*mib))
	var se *StreamError
	for _, s := range []device.Stream{s2, nil} {
		if _, err := p.Alloc(s, 100); !errors.As(err, &se) || !errors.Is(err, device.ErrCapturing) ||
			se.Pool != "test" || se.Stream != s || se.Capturing != s1 {
			t.Errorf("allocation by another stream: %v", err)
		}
	}
	_ = must[Block](t)(q.Alloc(s2, 100)) // other pools still allocate
	check(t, p.Free(before))             // blocks of other streams may be freed
	check(t, p.Free(b))
	if _, err := a.Empty(); !errors.Is(err, device.ErrCapturing) {
		t.Errorf("Empty while capturing: %v", err)
	}
	check(t, c1.End())
	if err := c1.End(); !errors.Is(err, device.ErrNotCapturing) {
		t.Errorf("second End: %v", err)
	}
	must[Block](t)(p.Alloc(s2, 100))
	c2 := must[*Scope](t)(p.BeginCapture(s2))
	if (p.Uses() - 1) != 2 {
		t.Errorf("%d captures", (p.Uses() - 1))
	}
	check(t, c2.Release()) // without End: ends the capture, too
	// c1 was not released, so its graph may use all memory of the pool.
	for _, release := range []func() (int64, error){p.Trim, a.Empty} {
		if n := must[int64](t)(release()); n != 0 {
			t.Errorf("%d bytes under a graph given back", n)
		}
	}
	var iu *InUseError
	if err := p.Close(); !errors.As(err, &iu) || iu.Captures != 1 || iu.Blocks != 1 {
		t.Errorf("Close: %v", err)
	}
	dev.events = nil
	check(t, c1.Release())
	if len(dev.events) != 0 {
		t.Errorf("the last Release did %v", dev.events)
	}
	for _, c := range []*Scope{c1, c2} {
		if err := c.Release(); !errors.Is(err, device.ErrClosed) {
			t.Errorf("second Release: %v", err)
		}
	}
	if p.Freeable() {
		t.Error("freeable with a live block")
	}
	if n := must[int64](t)(p.Trim()); n != 0 {
		t.Errorf("%d bytes of a pool in use trimmed", n)
	}
	check(t, p.Release())
	// The segment of s1 (20 MiB) goes back after s1 is waited for, that of s2
	// holds a live block.
	if n := must[int64](t)(p.Trim()); n != 20*mib {
		t.Errorf("%d bytes trimmed", n)
	}
	if want := []string{"sync 1", "free #1"}; !slices.Equal(dev.events, want) {
		t.Errorf("trim did %v, want %v", dev.events, want)
	}
}

func TestFreeableAndClose(t *testing.T) {
	dev, a, p := newPool(t, Options{})
	s := &fakeStream{name: "s", dev: dev}
	b := must[Block](t)(p.Alloc(s, 100))
	c := must[*Scope](t)(p.BeginCapture(s))
	check(t, c.End())
	check(t, p.Free(b))
	if p.Freeable() {
		t.Error("freeable under a capture")
	}
	check(t, c.Release())
	if !p.Freeable() || dev.used != 2*mib {
		t.Errorf("freeable %v, %d bytes kept", p.Freeable(), dev.used)
	}
	check(t, p.Close())
	check(t, p.Close())
	if dev.used != 0 || p.Stats().ReservedBytes.Now != 0 || a.Stats().ReservedBytes.Now != 0 {
		t.Errorf("%d bytes left", dev.used)
	}
	if _, err := p.Alloc(s, 1); !errors.Is(err, device.ErrClosed) {
		t.Errorf("Alloc: %v", err)
	}
	if _, err := p.Trim(); !errors.Is(err, device.ErrClosed) {
		t.Errorf("Trim: %v", err)
	}
	if _, err := p.BeginCapture(s); !errors.Is(err, device.ErrClosed) {
		t.Errorf("BeginCapture: %v", err)
	}
	if err := p.Free(b); !errors.Is(err, ErrDoubleFree) {
		t.Errorf("Free: %v", err)
	}
}

func TestAllocatorClose(t *testing.T) {
	dev, a, p := newPool(t, Options{})
	q := a.NewPool("second")
	check(t, p.Free(must[Block](t)(p.Alloc(nil, 1))))
	b := must[Block](t)(q.Alloc(nil, 1))
	var iu *InUseError
	if err := a.Close(); !errors.As(err, &iu) || iu.Pool != "second" || dev.used != 4*mib {
		t.Errorf("Close: %v, %d bytes", err, dev.used)
	}
	check(t, q.Free(b))
	check(t, a.Close())
	if dev.used != 0 {
		t.Errorf("%d bytes left", dev.used)
	}
}

func TestOutOfMemory(t *testing.T) {
	for _, limited := range []string{"limit", "device"} {
		t.Run(limited, func(t *testing.T) {
			dev, a, p := newPool(t, Options{})
			if limited == "limit" {
				a.limit = 30 * mib
			} else {
				dev.capacity = 30 * mib
			}
			q := a.NewPool("idle")
			s := &fakeStream{name: "s", dev: dev}
			b := must[Block](t)(p.Alloc(s, 8*mib)) // 20 MiB
			var me *device.MemoryError
			if _, err := p.Alloc(s, 14*mib); !errors.As(err, &me) || !errors.Is(err, device.ErrOutOfMemory) {
				t.Fatalf("error %v", err)
			}
			if me.Asked != 14*mib || me.Reserved != 20*mib || me.Active != 8*mib || limited == "limit" && me.Limit != 30*mib {
				t.Errorf("error %+v", me)
			}
			// Cached memory of another pool makes room, but not while any pool
			// captures, nor if a graph uses that pool.
			check(t, q.Free(must[Block](t)(q.Alloc(s, 10*mib))))
			third := a.NewPool("third")
			c := must[*Scope](t)(third.BeginCapture(s))
			if _, err := p.Alloc(s, 10*mib+512); err != nil {
				t.Errorf("within the segment: %v", err)
			}
			if _, err := p.Alloc(s, 10*mib); !errors.Is(err, device.ErrOutOfMemory) {
				t.Errorf("while capturing: %v", err)
			}
			check(t, c.Release())
			c = must[*Scope](t)(q.BeginCapture(s))
			check(t, c.End())
			check(t, q.Release())
			if _, err := p.Alloc(s, 10*mib); !errors.Is(err, device.ErrOutOfMemory) ||
				!strings.Contains(err.Error(), fmt.Sprintf("with %d bytes allocated in private pools", 18*mib+512)) {
				t.Errorf("under a graph: %v", err)
			}
			check(t, c.Release())
			dev.events = nil
			must[Block](t)(p.Alloc(s, 10*mib))
			if want := []string{"sync s", "free #1", "alloc 10 MiB"}; !slices.Equal(dev.events, want) {
				t.Errorf("made room by %v, want %v", dev.events, want)
			}
			check(t, p.Free(b))
			st := p.Stats()
			if st.Retries != 1 || st.OutOfMemory != 3 || a.Stats().Retries != 1 || a.Stats().OutOfMemory != 3 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// TestRoomFromItself makes room by giving back the only segment of the pool and
// stream that asks.
func TestRoomFromItself(t *testing.T) {
	dev, _, p := defaultPool(t, Options{Limit: 20 * mib})
	s := &fakeStream{name: "s", dev: dev}
	check(t, p.Free(must[Block](t)(p.Alloc(s, 100))))
	b := must[Block](t)(p.Alloc(s, 20*mib))
	check(t, p.Free(b))
	must[Block](t)(p.Alloc(s, 15*mib))
	expect(t, p, "#1: 15728640/15728640 free 5242880")
}

func TestHugeRequests(t *testing.T) {
	_, _, p := newPool(t, Options{Limit: 1 << 40})
	for _, n := range []int64{1<<63 - 1, maxRequest + 1, maxRequest, 1 << 62} {
		if _, err := p.Alloc(nil, n); !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("Alloc(%d): %v", n, err)
		}
	}
	if st := p.Stats(); st.OutOfMemory != 4 || st.ReservedBytes.Now != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestDeviceFailures(t *testing.T) {
	dev, a, p := defaultPool(t, Options{})
	s := &fakeStream{name: "s", dev: dev}
	lost := &device.LostError{Op: "alloc", Cause: errors.New("fault")}
	dev.failAlloc = lost
	if _, err := p.Alloc(s, 1); !errors.Is(err, device.ErrDeviceLost) || errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("Alloc: %v", err)
	}
	if p.Stats().OutOfMemory != 0 {
		t.Error("counted as out of memory")
	}
	dev.failAlloc = nil
	check(t, p.Free(must[Block](t)(p.Alloc(s, 1))))
	s.err = lost
	if n, err := p.Trim(); n != 0 || !errors.Is(err, device.ErrDeviceLost) || dev.used != 2*mib {
		t.Errorf("Trim without a stream: %d, %v", n, err)
	}
	s.err = fmt.Errorf("stream: %w", device.ErrClosed) // nothing can be queued on it
	dev.failFree = lost
	if n, err := p.Trim(); n != 0 || !errors.Is(err, device.ErrDeviceLost) || p.Stats().ReservedBytes.Now != 2*mib {
		t.Errorf("Trim without a device: %d, %v", n, err)
	}
	dev.failFree = nil
	if n := must[int64](t)(p.Trim()); n != 2*mib {
		t.Errorf("Trim: %d", n)
	}
	if len(p.shelves) != 0 {
		t.Error("a stream without segments is held on to")
	}
	check(t, p.Free(must[Block](t)(p.Alloc(nil, 1))))
	dev.failFree = lost
	if err := a.Close(); !errors.Is(err, device.ErrDeviceLost) {
		t.Errorf("Close: %v", err)
	}
	if _, err := p.Alloc(nil, 1); !errors.Is(err, device.ErrClosed) {
		t.Errorf("not closed: %v", err)
	}
	if st := a.Stats(); st.ReservedBytes.Now != 0 || st.Segments.Now != 0 {
		t.Errorf("stats %+v", st)
	}
	check(t, a.Close())
}

// TestTrimForgetsSegments checks that Trim waits for a stream once, and that later
// allocations do not come from segments that it gave back, while the stream's other
// segments stay.
func TestTrimForgetsSegments(t *testing.T) {
	dev, _, p := defaultPool(t, Options{})
	s := &fakeStream{name: "s", dev: dev}
	kept := must[Block](t)(p.Alloc(s, 1536*kib))
	full := must[Block](t)(p.Alloc(s, 18*mib))
	gone := []Block{must[Block](t)(p.Alloc(s, 12*mib)), must[Block](t)(p.Alloc(s, 14*mib))}
	for _, b := range gone {
		check(t, p.Free(b))
	}
	dev.events = nil
	if n := must[int64](t)(p.Trim()); n != 26*mib {
		t.Errorf("Trim: %d", n)
	}
	if want := []string{"sync s", "free #1", "free #2"}; !slices.Equal(dev.events, want) {
		t.Errorf("trimmed by %v, want %v", dev.events, want)
	}
	expect(t, p, "#0: 1572864/1572864 18874368/19398656")
	if free := p.shelves[0].large; len(free) != 0 {
		t.Errorf("the free list has %d blocks, want 0", len(free))
	}
	again := must[Block](t)(p.Alloc(s, 12*mib))
	expect(t, p, "#0: 1572864/1572864 18874368/19398656; #3: 12582912/12582912")
	for _, b := range []Block{kept, full, again} {
		check(t, p.Free(b))
	}
	for _, seg := range p.Snapshot() {
		for _, b := range seg.Blocks {
			if b.Live || b.Requested != 0 {
				t.Errorf("free block %+v", b)
			}
		}
	}
}

// failOnce is a device whose next FreeSegment fails with err, if err is set.
type failOnce struct {
	fakeDevice
	err error
}

func (d *failOnce) FreeSegment(s Segment) error {
	if err := d.err; err != nil {
		d.err = nil
		return err
	}
	return d.fakeDevice.FreeSegment(s)
}

// TestFailureInOnePool checks that Empty, Alloc and Close return the error of a device that
// refuses a segment, and that Close tries that segment once more.
func TestFailureInOnePool(t *testing.T) {
	lost := &device.LostError{Op: "free", Cause: errors.New("fault")}
	dev := &failOnce{}
	a := New(dev, Options{Limit: 4 * mib})
	p, q := a.NewPool("first"), a.NewPool("second")
	for _, p := range []*Pool{p, q} {
		check(t, p.Free(must[Block](t)(p.Alloc(nil, 1))))
		check(t, p.Release())
	}
	dev.err = lost
	if n, err := a.Empty(); n != 0 || !errors.Is(err, device.ErrDeviceLost) || dev.used != 4*mib {
		t.Errorf("Empty: %d, %v, %d bytes left", n, err, dev.used)
	}
	// An Alloc that fails to make room does not ask the device again.
	dev.err, dev.events = lost, nil
	if _, err := a.Alloc(nil, 3*mib); !errors.Is(err, device.ErrDeviceLost) || !errors.Is(err, device.ErrOutOfMemory) || len(dev.events) > 0 {
		t.Errorf("Alloc: %v after %v", err, dev.events)
	}
	dev.err = lost
	if err := p.Close(); !errors.Is(err, device.ErrDeviceLost) {
		t.Errorf("Close: %v", err)
	}
	if dev.used != 2*mib || len(p.Snapshot()) != 0 || p.Stats().ReservedBytes.Now != 0 {
		t.Errorf("%d bytes left, segments %v", dev.used, p.Snapshot())
	}
	check(t, a.Close())
	if dev.used != 0 {
		t.Errorf("%d bytes left", dev.used)
	}
}

// TestOtherFailuresKeepTheCache checks that an error of the device other than a lack of
// memory does not make the allocator give back cached segments.
func TestOtherFailuresKeepTheCache(t *testing.T) {
	dev, a, p := newPool(t, Options{})
	check(t, p.Free(must[Block](t)(p.Alloc(nil, 1))))
	dev.failAlloc = errors.New("driver: unknown error")
	if _, err := p.Alloc(nil, 3*mib); !errors.Is(err, dev.failAlloc) {
		t.Errorf("Alloc: %v", err)
	}
	if st := a.Stats(); st.Retries != 0 || st.SegmentFrees != 0 || dev.used != 2*mib {
		t.Errorf("stats %+v", st)
	}
}

// TestBlockOfOtherAllocator checks that Free refuses a block of another allocator with
// ErrForeignBlock, both while the block is live and after it was freed.
func TestBlockOfOtherAllocator(t *testing.T) {
	_, _, p := newPool(t, Options{})
	_, _, q := newPool(t, Options{})
	b := must[Block](t)(q.Alloc(nil, 1))
	for range 2 {
		if err := p.Free(b); !errors.Is(err, ErrForeignBlock) {
			t.Errorf("Free: %v", err)
		}
		if _, err := b.Buffer(); err == nil {
			check(t, q.Free(b))
		}
	}
}

// spent is a gauge that went up to peak and down to 0.
func spent(peak int64) Gauge { return Gauge{0, peak, peak, peak} }

func TestStats(t *testing.T) {
	_, a, p := defaultPool(t, Options{})
	q := a.NewPool("other")
	b1 := must[Block](t)(p.Alloc(nil, 100))
	b2 := must[Block](t)(p.Alloc(nil, 3*mib))
	check(t, p.Free(b1))
	c := must[Block](t)(q.Alloc(nil, 600))
	check(t, p.Free(b2))
	must[int64](t)(p.Trim())
	small := func(bytes, requested, segment, split func(int64) Gauge) Counts {
		return Counts{
			AllocatedBytes: bytes(512), AllocatedBlocks: bytes(1), ActiveBytes: bytes(512), ActiveBlocks: bytes(1),
			RequestedBytes: requested(100), ReservedBytes: segment(2 * mib), Segments: segment(1), SplitBytes: split(2*mib - 512), SplitBlocks: split(1),
		}
	}
	large := Counts{
		AllocatedBytes: spent(3 * mib), AllocatedBlocks: spent(1), ActiveBytes: spent(3 * mib), ActiveBlocks: spent(1),
		RequestedBytes: spent(3 * mib), ReservedBytes: spent(20 * mib), Segments: spent(1), SplitBytes: spent(17 * mib), SplitBlocks: spent(1),
	}
	want := Stats{
		Counts: Counts{
			AllocatedBytes: spent(512 + 3*mib), AllocatedBlocks: spent(2), ActiveBytes: spent(512 + 3*mib), ActiveBlocks: spent(2),
			RequestedBytes: spent(100 + 3*mib), ReservedBytes: spent(22 * mib), Segments: spent(2), SplitBytes: spent(19*mib - 512), SplitBlocks: spent(2),
		},
		Small: small(spent, spent, spent, spent), Large: large,
		Allocs: 2, Frees: 2, SegmentAllocs: 2, SegmentFrees: 2,
	}
	if got := p.Stats(); got != want {
		t.Errorf("pool\n got %+v\nwant %+v", got, want)
	}
	// In total: the block of q is allocated after b1 was freed, and stays live.
	all := Counts{
		AllocatedBytes:  Gauge{1024, 1024 + 3*mib, 1536 + 3*mib, 512 + 3*mib},
		AllocatedBlocks: Gauge{1, 2, 3, 2},
		RequestedBytes:  Gauge{600, 600 + 3*mib, 700 + 3*mib, 100 + 3*mib},
		ReservedBytes:   Gauge{2 * mib, 24 * mib, 24 * mib, 22 * mib},
		Segments:        Gauge{1, 3, 3, 2},
		SplitBytes:      Gauge{2*mib - 1024, 19*mib - 512, 21*mib - 1536, 19*mib - 512},
		SplitBlocks:     Gauge{1, 2, 3, 2},
	}
	all.ActiveBytes, all.ActiveBlocks = all.AllocatedBytes, all.AllocatedBlocks
	want = Stats{Counts: all, Large: large, Allocs: 3, Frees: 2, SegmentAllocs: 3, SegmentFrees: 2}
	want.Small = Counts{
		AllocatedBytes:  Gauge{1024, 1024, 1536, 512},
		AllocatedBlocks: Gauge{1, 1, 2, 1},
		RequestedBytes:  Gauge{600, 600, 700, 100},
		ReservedBytes:   Gauge{2 * mib, 4 * mib, 4 * mib, 2 * mib},
		Segments:        Gauge{1, 2, 2, 1},
		SplitBytes:      Gauge{2*mib - 1024, 2*mib - 512, 4*mib - 1536, 2*mib - 512},
		SplitBlocks:     Gauge{1, 1, 2, 1},
	}
	want.Small.ActiveBytes, want.Small.ActiveBlocks = want.Small.AllocatedBytes, want.Small.AllocatedBlocks
	got := a.Stats()
	if got != want {
		t.Errorf("total\n got %+v\nwant %+v", got, want)
	}
	flat := got.Map()
	for name, n := range map[string]int64{
		"allocated_bytes.all.current": 1024, "allocated_bytes.all.peak": 1024 + 3*mib, "allocated_bytes.all.allocated": 1536 + 3*mib,
		"allocated_bytes.all.freed": 512 + 3*mib, "allocation.large_pool.freed": 1, "active.small_pool.peak": 1, "active_bytes.small_pool.allocated": 1536,
		"reserved_bytes.large_pool.peak": 20 * mib, "segment.all.current": 1, "requested_bytes.small_pool.current": 600,
		"inactive_split.all.peak": 2, "inactive_split_bytes.large_pool.freed": 17 * mib,
		"num_alloc_retries": 0, "num_ooms": 0, "num_device_alloc": 3, "num_device_free": 2, "num_sync_all_streams": 0,
	} {
		if v, ok := flat[name]; !ok || v != n {
			t.Errorf("%s is %d, want %d", name, v, n)
		}
	}
	if len(flat) != 9*3*4+5 {
		t.Errorf("%d names", len(flat))
	}
	a.ResetPeaks()
	if got := a.Stats().ActiveBytes; got.Now != 1024 || got.Peak != 1024 {
		t.Errorf("peak after reset %+v", got)
	}
	if got := p.Stats().ReservedBytes; got.Now != 0 || got.Peak != 0 {
		t.Errorf("pool's peak after reset %+v", got)
	}
	check(t, q.Free(c))
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	_, _, p := newPool(t, Options{})
	s := &fakeStream{}
	var blocks [16]Block
	step := func() {
		for i := range blocks {
			b, err := p.Alloc(s, int64(i)*700*kib/8)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Buffer(); err != nil {
				t.Fatal(err)
			}
			blocks[i] = b
		}
		for i := range blocks {
			if err := p.Free(blocks[i*7%16]); err != nil {
				t.Fatal(err)
			}
		}
	}
	step()
	if n := testing.AllocsPerRun(50, step); n != 0 {
		t.Errorf("%v Go allocations a step", n)
	}
}

// TestSecondStream checks RecordStream against CUDACachingAllocator's recordStream: a free
// records an event on the second stream, and the block is reused once the event has passed.
func TestSecondStream(t *testing.T) {
	dev, a, p := newPool(t, Options{})
	s, side := &fakeStream{name: "s", dev: dev}, &fakeStream{name: "side", dev: dev}
	full := func(when string, want string) Block {
		t.Helper()
		b := must[Block](t)(p.Alloc(s, 2*mib))
		if got := blocks(p); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
		return b
	}
	use := func(b Block) {
		t.Helper()
		for range 2 { // the second call changes nothing
			check(t, a.RecordStream(b, side))
			check(t, a.RecordStream(b, s))   // the block's own stream: ignored
			check(t, a.RecordStream(b, nil)) // ignored
		}
	}
	b := must[Block](t)(p.Alloc(s, 20*mib))
	use(b)
	dev.events = nil
	check(t, p.Free(b))
	if want := []string{"record side"}; !slices.Equal(dev.events, want) {
		t.Errorf("the free did %v, want %v", dev.events, want)
	}
	if st := p.Stats(); st.AllocatedBytes.Now != 0 || st.ActiveBytes.Now != 20*mib || st.ActiveBlocks.Now != 1 {
		t.Errorf("pending: %+v", st.Counts)
	}
	c := full("not passed", "20971520 p; 2097152 L, 18874368 f")
	side.done = true
	d := full("passed", "20971520 f; 2097152 L, 2097152 L, 16777216 f")
	if _, err := p.Checkpoint(); err != nil {
		t.Error(err)
	}

	// During a capture no event is recorded or queried. A block that was used before the
	// capture gets its event after it; a block with captured uses gets no event.
	use(c)
	side.done = false
	g := must[*Scope](t)(p.BeginCapture(s))
	check(t, g.Order(s, side))
	use(d)
	dev.events = nil
	check(t, p.Free(c))
	check(t, p.Free(d))
	e := full("deferred", "20971520 f; 2097152 p, 2097152 p, 2097152 L, 14680064 f")
	check(t, g.End())
	if len(dev.events) > 0 {
		t.Errorf("the capture did %v", dev.events)
	}
	if got, want := blocks(p), "20971520 f; 2097152 p, 2097152 f, 2097152 L, 14680064 f"; got != want {
		t.Errorf("captured: %s, want %s", got, want)
	}
	// A checkpoint waits, but not while another pool captures.
	h := must[*Scope](t)(a.BeginCapture(PoolID{}, s))
	if want := []string{"record side", "query side"}; !slices.Equal(dev.events, want) {
		t.Errorf("before the next capture: %v, want %v", dev.events, want)
	}
	dev.events = nil
	if _, err := p.Checkpoint(); !errors.Is(err, ErrPending) || len(dev.events) > 0 {
		t.Errorf("a checkpoint of pending blocks: %v after %v", err, dev.events)
	}
	check(t, h.Release())
	must[*State](t)(p.Checkpoint())
	if want := []string{"query side", "wait side"}; !slices.Equal(dev.events, want) {
		t.Errorf("a checkpoint: %v, want %v", dev.events, want)
	}
	check(t, a.RecordStream(e, side))
	check(t, p.Free(e))
	check(t, g.Release())

	// Emptying waits.
	dev.events = nil
	check(t, p.Release())
	if n := must[int64](t)(a.Empty()); n != 40*mib {
		t.Errorf("%d bytes emptied", n)
	}
	if want := []string{"wait side", "sync s", "free #0", "free #1"}; !slices.Equal(dev.events, want) {
		t.Errorf("emptied by %v, want %v", dev.events, want)
	}
	if a.Stats().Waits != 2 {
		t.Errorf("%d waits", a.Stats().Waits)
	}
	check(t, a.Close())
	if side.events+s.events != 0 {
		t.Errorf("%d events are left", side.events+s.events)
	}
}

// TestEventsOfAStreamPassInOrder checks that after a query of a stream's event that has not
// passed, the stream's later events are not queried.
func TestEventsOfAStreamPassInOrder(t *testing.T) {
	dev, a, p := newPool(t, Options{})
	s, side, third := &fakeStream{name: "s", dev: dev}, &fakeStream{name: "side", dev: dev}, &fakeStream{name: "third", dev: dev, done: true}
	for range 3 {
		b := must[Block](t)(p.Alloc(s, 100))
		check(t, a.RecordStream(b, side))
		check(t, a.RecordStream(b, third))
		dev.events = nil
		check(t, p.Free(b))
	}
	dev.events = nil
	must[Block](t)(p.Alloc(s, 100))
	// The first two events of third passed in the allocations of the loop.
	if want := []string{"query side", "query third"}; !slices.Equal(dev.events, want) {
		t.Errorf("%v, want %v", dev.events, want)
	}
}

// TestSecondStreamErrors checks what errors of second streams do to frees and allocations.
func TestSecondStreamErrors(t *testing.T) {
	fault := errors.New("fault")
	_, a, p := newPool(t, Options{})
	s, side, third := &fakeStream{}, &fakeStream{}, &fakeStream{}
	b := must[Block](t)(p.Alloc(s, 100))
	capturing := &fakeStream{capturing: true}
	if err := a.RecordStream(b, capturing); !errors.Is(err, device.ErrCapturing) {
		t.Errorf("use by a capture that has no scope: %v", err)
	}
	_, other, _ := newPool(t, Options{})
	for _, err := range []error{other.RecordStream(b, side), a.RecordStream(Block{}, side), other.Free(b), a.Free(Block{})} {
		if !errors.Is(err, ErrForeignBlock) {
			t.Errorf("a block of another allocator: %v", err)
		}
	}
	// A free takes the block even if it cannot record. The block stays pending, and calls that may
	// make it free return the error.
	for _, s := range []device.Stream{side, third} {
		check(t, a.RecordStream(b, s))
	}
	third.err = fault
	check(t, p.Free(b))
	for _, err := range []error{p.Free(b), a.Free(b)} {
		if !errors.Is(err, ErrDoubleFree) {
			t.Errorf("a second free: %v", err)
		}
	}
	if _, err := b.Buffer(); !errors.Is(err, ErrUseAfterFree) || p.Stats().Frees != 1 || p.Stats().ActiveBlocks.Now != 1 {
		t.Errorf("after a free without an event: %v, %+v", err, p.Stats())
	}
	if _, err := p.Alloc(s, 100); !errors.Is(err, fault) || !strings.Contains(err.Error(), "event") {
		t.Errorf("allocation: %v", err)
	}
	for range 2 {
		if err := p.Close(); !errors.Is(err, fault) {
			t.Errorf("close: %v", err)
		}
	}
	third.err = nil
	check(t, p.Free(must[Block](t)(p.Alloc(s, 100))))
	if got := blocks(p); got != "512 p, 2096640 f" {
		t.Errorf("blocks %s", got)
	}
	// An allocation fails if it cannot query an event.
	side.err = fault
	if _, err := p.Alloc(s, 100); !errors.Is(err, fault) {
		t.Errorf("allocation: %v", err)
	}
	// Streams that are closed, or on a device that is lost, have no work.
	side.err, third.err = &device.LostError{Op: "query", Cause: fault}, fmt.Errorf("query: %w", device.ErrClosed)
	b = must[Block](t)(p.Alloc(s, 100))
	if got := blocks(p); got != "512 L, 2096640 f" {
		t.Errorf("blocks %s", got)
	}
	check(t, a.RecordStream(b, side))
	check(t, a.RecordStream(b, third))
	check(t, p.Free(b))
	if !p.Freeable() {
		t.Error("a block waits for streams without work")
	}
	// If a free was deferred by a capture, each later allocation returns the error, and the
	// block stays pending.
	side.err, third.err = nil, nil
	b = must[Block](t)(p.Alloc(s, 100))
	check(t, a.RecordStream(b, side))
	g := must[*Scope](t)(p.BeginCapture(s))
	check(t, p.Free(b))
	check(t, g.End())
	side.err = fault
	for range 2 {
		if _, err := p.Alloc(s, 100); !errors.Is(err, fault) {
			t.Errorf("allocation after a capture: %v", err)
		}
	}
	// If the stream captures for another allocator, its event is recorded later.
	side.err = device.ErrCapturing
	c := must[Block](t)(p.Alloc(s, 100))
	if got := blocks(p); got != "512 p, 512 L, 2096128 f" {
		t.Errorf("blocks %s", got)
	}
	side.err, side.done = nil, true
	d := must[Block](t)(p.Alloc(s, 100))
	if got := blocks(p); got != "512 L, 512 L, 2096128 f" {
		t.Errorf("blocks %s", got)
	}
	check(t, p.Free(c))
	check(t, p.Free(d))
	check(t, g.Release())
	check(t, a.Close())
}

// TestSecondStreamAllocatesNothing holds that recycled blocks and events cost no Go
// memory.
func TestSecondStreamAllocatesNothing(t *testing.T) {
	_, a, p := newPool(t, Options{})
	s, side := &fakeStream{}, &fakeStream{done: true}
	step := func() {
		b, err := p.Alloc(s, 4096)
		if err == nil {
			err = errors.Join(a.RecordStream(b, side), a.Free(b))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	step()
	if n := testing.AllocsPerRun(50, step); n != 0 {
		t.Errorf("%v Go allocations a step", n)
	}
}

// TestConcurrentUse has four goroutines fill their blocks with their number and check it
// before the free. It is meant to be run with -race.
func TestConcurrentUse(t *testing.T) {
	dev := &bytesDevice{}
	a := New(dev, Options{Limit: 64 * mib})
	shared := a.Default()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			p := shared
			if g == 3 {
				p = a.NewPool("own")
			}
			s := &fakeStream{}
			var live []Block
			for i := range 400 {
				if len(live) < 8 && i%3 != 2 {
					b, err := p.Alloc(s, int64(100+i*g))
					if err != nil {
						t.Error(err)
						return
					}
					buf, err := b.Buffer()
					if err != nil {
						t.Error(err)
						return
					}
					data := buf.Memory.(*fakeMemory).data[buf.Offset : buf.Offset+buf.Size]
					for j := range data {
						data[j] = byte(g)
					}
					live = append(live, b)
					continue
				}
				b := live[0]
				live = live[1:]
				buf, err := b.Buffer()
				if err != nil {
					t.Error(err)
					return
				}
				for _, v := range buf.Memory.(*fakeMemory).data[buf.Offset : buf.Offset+buf.Size] {
					if v != byte(g) {
						t.Errorf("goroutine %d reads %d in its block", g, v)
						return
					}
				}
				if err := p.Free(b); err != nil {
					t.Error(err)
					return
				}
				if i%50 == 0 {
					if _, err := p.Trim(); err != nil {
						t.Error(err)
						return
					}
					_ = a.Stats()
				}
			}
			for _, b := range live {
				if err := p.Free(b); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	check(t, a.Close())
	if dev.live != 0 {
		t.Errorf("%d segments left", dev.live)
	}
}

// bytesDevice is a Backing whose segments have bytes.
type bytesDevice struct{ live int }

func (d *bytesDevice) AllocSegment(bytes int64) (Segment, error) {
	d.live++
	return &fakeMemory{bytes: bytes, data: make([]byte, bytes)}, nil
}

func (d *bytesDevice) FreeSegment(Segment) error { d.live--; return nil }

// TestOverDevice checks that the adapter calls Alloc and Free and returns Free's error. If the device
// has taken a segment although its Free failed, the segment is given back by the next try.
func TestOverDevice(t *testing.T) {
	d := &allocOnly{}
	b := OverDevice(d)
	m := must[Segment](t)(b.AllocSegment(2 * mib))
	if m.Size() != 2*mib {
		t.Errorf("%d bytes", m.Size())
	}
	if err := b.FreeSegment(m); !errors.Is(err, errFree) {
		t.Errorf("FreeSegment: %v", err)
	}
	check(t, b.FreeSegment(m))

	a := New(b, Options{})
	check(t, a.Free(must[Block](t)(a.Alloc(nil, 100))))
	if _, err := a.Empty(); !errors.Is(err, errFree) || a.Stats().ReservedBytes.Now != 2*mib {
		t.Errorf("the first try: %v, %d bytes reserved", err, a.Stats().ReservedBytes.Now)
	}
	if n := must[int64](t)(a.Empty()); n != 2*mib || a.Stats().ReservedBytes.Now != 0 {
		t.Errorf("the second try: %d bytes, %d bytes reserved", n, a.Stats().ReservedBytes.Now)
	}
	check(t, a.Close())
}

var errFree = errors.New("free failed")

type allocOnly struct{ device.Device }

func (allocOnly) Alloc(bytes int64) (device.Memory, error) { return &failingMemory{bytes: bytes}, nil }

// failingMemory is memory whose Free fails, and has freed it nevertheless, as that of package cuda.
type failingMemory struct {
	bytes int64
	freed bool
}

func (m *failingMemory) Size() int64 { return m.bytes }

func (m *failingMemory) Free() error {
	if m.freed {
		return device.ErrFreed
	}
	m.freed = true
	return errFree
}

func BenchmarkAllocFree(b *testing.B) {
	_, _, p := newPool(b, Options{})
	s := &fakeStream{}
	b.ReportAllocs()
	for b.Loop() {
		blk, err := p.Alloc(s, 4096)
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Free(blk); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAllocFreeFragmented has a thousand holes to choose from.
func BenchmarkAllocFreeFragmented(b *testing.B) {
	_, _, p := newPool(b, Options{})
	s := &fakeStream{}
	var blocks []Block
	for i := range 2000 {
		blk, err := p.Alloc(s, int64(512*(1+i%50)))
		if err != nil {
			b.Fatal(err)
		}
		blocks = append(blocks, blk)
	}
	for i := 0; i < len(blocks); i += 2 {
		if err := p.Free(blocks[i]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		blk, err := p.Alloc(s, 12000)
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Free(blk); err != nil {
			b.Fatal(err)
		}
	}
}
