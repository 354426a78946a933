package mem

import (
	"errors"
	"fmt"
	"testing"

	"pwc/runtime/device"

	"pgregory.net/rapid"
)

// model is the allocator's rules again, as plainly as possible: segments are
// slices of blocks, every decision is a scan.
type model struct {
	capacity int64
	pools    []*modelPool
	nextID   int
}

type modelPool struct {
	segs      []*modelSegment
	uses      int
	capturing int // index of the stream, or -1
}

type modelSegment struct {
	id     int
	bytes  int64
	small  bool
	stream int
	blocks []modelBlock
}

type modelBlock struct {
	bytes, requested int64
	tag              int // of the live allocation, 0 if free
}

func (m *model) reserved() (n int64) {
	for _, p := range m.pools {
		n += p.reserved()
	}
	return n
}

func (p *modelPool) reserved() (n int64) {
	for _, s := range p.segs {
		n += s.bytes
	}
	return n
}

func (p *modelPool) active() (bytes, requested, blocks int64) {
	for _, s := range p.segs {
		for _, b := range s.blocks {
			if b.tag != 0 {
				bytes += b.bytes
				requested += b.requested
				blocks++
			}
		}
	}
	return bytes, requested, blocks
}

// alloc returns false for want of memory.
func (m *model) alloc(p *modelPool, stream int, ask int64, tag int) bool {
	size := max((ask+511)/512*512, 512)
	small := size <= 1048576
	find := func() (*modelSegment, int) {
		var best *modelSegment
		at := -1
		for _, s := range p.segs { // in order of creation, so ties go to the first
			if s.small != small || s.stream != stream {
				continue
			}
			for i, b := range s.blocks {
				if b.tag == 0 && b.bytes >= size && (best == nil || b.bytes < best.blocks[at].bytes) {
					best, at = s, i
				}
			}
		}
		return best, at
	}
	s, i := find()
	if s == nil {
		bytes := int64(2097152)
		if size > 1048576 {
			bytes = 20971520
		}
		if size >= 10485760 {
			bytes = (size + 2097151) / 2097152 * 2097152
		}
		if m.reserved()+bytes > m.capacity {
			for _, q := range m.pools {
				if q.capturing >= 0 {
					return false
				}
			}
			for _, q := range m.pools {
				q.trim()
			}
			if m.reserved()+bytes > m.capacity {
				return false
			}
		}
		s = &modelSegment{m.nextID, bytes, small, stream, []modelBlock{{bytes: bytes}}}
		m.nextID++
		p.segs = append(p.segs, s)
		i = 0
	}
	rest := s.blocks[i].bytes - size
	taken := modelBlock{s.blocks[i].bytes, ask, tag}
	var after []modelBlock
	if small && rest >= 512 || !small && rest > 1048576 {
		taken.bytes = size
		after = []modelBlock{{bytes: rest}}
	}
	after = append(after, s.blocks[i+1:]...)
	s.blocks = append(append(append([]modelBlock{}, s.blocks[:i]...), taken), after...)
	return true
}

func (p *modelPool) free(tag int) {
	for _, s := range p.segs {
		var out []modelBlock
		for _, b := range s.blocks {
			if b.tag == tag {
				b = modelBlock{bytes: b.bytes}
			}
			if k := len(out) - 1; k >= 0 && out[k].tag == 0 && b.tag == 0 {
				out[k].bytes += b.bytes
			} else {
				out = append(out, b)
			}
		}
		s.blocks = out
	}
}

func (p *modelPool) trim() (n int64) {
	if p.uses > 0 {
		return 0
	}
	var kept []*modelSegment
	for _, s := range p.segs {
		if len(s.blocks) == 1 && s.blocks[0].tag == 0 {
			n += s.bytes
		} else {
			kept = append(kept, s)
		}
	}
	p.segs = kept
	return n
}

// machine drives the allocator and the model side by side.
type machine struct {
	model model
	dev   *fakeDevice
	alloc *Allocator
	pools []*Pool
	strs  []device.Stream

	tag      int
	live     []allocation
	dead     []Block
	captures []modelCapture
	peak     Stats
}

type allocation struct {
	pool, tag int
	block     Block
}

type modelCapture struct {
	pool  int
	ended bool
	c     *Scope
}

func (m *machine) Alloc(t *rapid.T) {
	p := rapid.IntRange(0, len(m.pools)-1).Draw(t, "pool")
	s := rapid.IntRange(0, len(m.strs)-1).Draw(t, "stream")
	ask := rapid.OneOf(
		rapid.Int64Range(0, 4096), rapid.Int64Range(0, 2*mib), rapid.Int64Range(mib, 12*mib),
		rapid.Int64Range(10*mib, 30*mib),
		rapid.SampledFrom([]int64{512, mib, mib + 1, 10 * mib, 10*mib - 512, 20 * mib}),
	).Draw(t, "bytes")
	b, err := m.pools[p].Alloc(m.strs[s], ask)
	mp := m.model.pools[p]
	if mp.capturing >= 0 && mp.capturing != s {
		var se *StreamError
		if !errors.As(err, &se) {
			t.Fatalf("allocation by another stream: %v", err)
		}
		return
	}
	m.tag++
	if ok := m.model.alloc(mp, s, ask, m.tag); !ok {
		if !errors.Is(err, device.ErrOutOfMemory) {
			t.Fatalf("%d bytes, no room: %v", ask, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	m.live = append(m.live, allocation{p, m.tag, b})
}

func (m *machine) Free(t *rapid.T) {
	if len(m.live) == 0 {
		t.Skip("nothing to free")
	}
	i := rapid.IntRange(0, len(m.live)-1).Draw(t, "allocation")
	x := m.live[i]
	if other := m.pools[(x.pool+1)%len(m.pools)]; !errors.Is(other.Free(x.block), ErrForeignBlock) {
		t.Fatal("freed by another pool")
	}
	if err := m.pools[x.pool].Free(x.block); err != nil {
		t.Fatal(err)
	}
	m.model.pools[x.pool].free(x.tag)
	m.live = append(m.live[:i], m.live[i+1:]...)
	m.dead = append(m.dead, x.block)
}

func (m *machine) FreeAgain(t *rapid.T) {
	if len(m.dead) == 0 {
		t.Skip("nothing was freed")
	}
	b := rapid.SampledFrom(m.dead).Draw(t, "block")
	p := rapid.SampledFrom(m.pools).Draw(t, "pool")
	if err := p.Free(b); !errors.Is(err, ErrDoubleFree) {
		t.Fatalf("second free: %v", err)
	}
	if _, err := b.Buffer(); !errors.Is(err, ErrUseAfterFree) {
		t.Fatalf("use after free: %v", err)
	}
}

func (m *machine) Trim(t *rapid.T) {
	p := rapid.IntRange(0, len(m.pools)-1).Draw(t, "pool")
	n, err := m.pools[p].Trim()
	if m.model.pools[p].uses == 0 && m.model.pools[1].capturing >= 0 {
		if !errors.Is(err, device.ErrCapturing) {
			t.Fatalf("trimmed while capturing: %v", err)
		}
		return
	}
	if want := m.model.pools[p].trim(); err != nil || n != want {
		t.Fatalf("trimmed %d, %v, want %d", n, err, want)
	}
}

func (m *machine) Empty(t *rapid.T) {
	n, err := m.alloc.Empty()
	var want int64
	for _, p := range m.model.pools {
		if p.capturing >= 0 {
			if !errors.Is(err, device.ErrCapturing) {
				t.Fatalf("emptied while capturing: %v", err)
			}
			return
		}
	}
	for _, p := range m.model.pools {
		want += p.trim()
	}
	if err != nil || n != want {
		t.Fatalf("emptied %d, %v, want %d", n, err, want)
	}
}

func (m *machine) BeginCapture(t *rapid.T) {
	p := rapid.IntRange(0, len(m.pools)-1).Draw(t, "pool")
	s := rapid.IntRange(0, len(m.strs)-1).Draw(t, "stream")
	c, err := m.pools[p].BeginCapture(m.strs[s])
	mp := m.model.pools[p]
	if p == 0 {
		if !errors.Is(err, ErrDefaultPool) {
			t.Fatalf("capture into the default pool: %v", err)
		}
		return
	}
	if mp.capturing >= 0 {
		if !errors.Is(err, device.ErrCapturing) {
			t.Fatalf("second capture: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	mp.capturing = s
	mp.uses++
	m.captures = append(m.captures, modelCapture{p, false, c})
}

func (m *machine) EndOrRelease(t *rapid.T) {
	if len(m.captures) == 0 {
		t.Skip("no captures")
	}
	i := rapid.IntRange(0, len(m.captures)-1).Draw(t, "capture")
	x := &m.captures[i]
	mp := m.model.pools[x.pool]
	if !x.ended {
		mp.capturing = -1
	}
	if !x.ended && rapid.Bool().Draw(t, "end") {
		if err := x.c.End(); err != nil {
			t.Fatal(err)
		}
		x.ended = true
		return
	}
	if err := x.c.Release(); err != nil {
		t.Fatal(err)
	}
	mp.uses--
	m.captures = append(m.captures[:i], m.captures[i+1:]...)
}

// Check compares everything that can be seen.
func (m *machine) Check(t *rapid.T) {
	var total Stats
	for i, p := range m.pools {
		mp := m.model.pools[i]
		if got, want := layout(p), mp.layout(); got != want {
			t.Fatalf("pool %d\n got %s\nwant %s", i, got, want)
		}
		st := p.Stats()
		bytes, requested, blocks := mp.active()
		if st.ActiveBytes.Now != bytes || st.RequestedBytes.Now != requested || st.ActiveBlocks.Now != blocks ||
			st.ReservedBytes.Now != mp.reserved() || st.Segments.Now != int64(len(mp.segs)) ||
			st.Allocs-st.Frees != blocks || st.SegmentAllocs-st.SegmentFrees != int64(len(mp.segs)) {
			t.Fatalf("pool %d: %+v", i, st)
		}
		if p.Freeable() != (mp.uses-i == 0 && blocks == 0) || p.Uses() != mp.uses+1-i {
			t.Fatalf("pool %d: freeable %v, %d uses", i, p.Freeable(), p.Uses())
		}
		total.ActiveBytes.Now += bytes
		total.RequestedBytes.Now += requested
		total.ActiveBlocks.Now += blocks
		total.ReservedBytes.Now += mp.reserved()
		total.Segments.Now += int64(len(mp.segs))
	}
	m.peak.ActiveBytes.Peak = max(m.peak.ActiveBytes.Peak, total.ActiveBytes.Now)
	st := m.alloc.Stats()
	if st.ActiveBytes.Now != total.ActiveBytes.Now || st.RequestedBytes.Now != total.RequestedBytes.Now ||
		st.ActiveBlocks.Now != total.ActiveBlocks.Now || st.ReservedBytes.Now != total.ReservedBytes.Now ||
		st.Segments.Now != total.Segments.Now || st.ActiveBytes.Peak != m.peak.ActiveBytes.Peak {
		t.Fatalf("total: %+v, want %+v", st, total)
	}
	if m.dev.used != total.ReservedBytes.Now {
		t.Fatalf("the device gave %d bytes, %d are accounted for", m.dev.used, total.ReservedBytes.Now)
	}
	// No two live buffers share a byte, and each is where its segment is.
	type span struct{ lo, hi int64 }
	spans := map[device.Memory][]span{}
	for _, x := range m.live {
		b, err := x.block.Buffer()
		if err != nil {
			t.Fatal(err)
		}
		if b.Offset%512 != 0 || b.Offset < 0 || b.Offset+b.Size > b.Memory.Size() {
			t.Fatalf("buffer %+v", b)
		}
		for _, o := range spans[b.Memory] {
			if b.Offset < o.hi && o.lo < b.Offset+b.Size {
				t.Fatalf("buffers overlap: %+v and %+v", b, o)
			}
		}
		spans[b.Memory] = append(spans[b.Memory], span{b.Offset, b.Offset + b.Size})
	}
}

func (p *modelPool) layout() string {
	out := ""
	for i, s := range p.segs {
		if i > 0 {
			out += "; "
		}
		out += fmt.Sprintf("#%d:", s.id)
		for _, b := range s.blocks {
			if b.tag != 0 {
				out += fmt.Sprintf(" %d/%d", b.requested, b.bytes)
			} else {
				out += fmt.Sprintf(" free %d", b.bytes)
			}
		}
	}
	return out
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{dev: &fakeDevice{}}
		m.model.capacity = rapid.SampledFrom([]int64{24 * mib, 64 * mib, 1 << 40}).Draw(t, "capacity")
		o := Options{}
		if rapid.Bool().Draw(t, "limit is ours") {
			o.Limit = m.model.capacity
		} else {
			m.dev.capacity = m.model.capacity
		}
		m.alloc = New(m.dev, o)
		for i := range 2 {
			m.pools = append(m.pools, m.alloc.Default())
			if i == 1 {
				m.pools[1] = m.alloc.NewPool("1")
			}
			m.model.pools = append(m.model.pools, &modelPool{capturing: -1, uses: i})
			m.strs = append(m.strs, &fakeStream{name: fmt.Sprint(i)})
		}
		t.Repeat(rapid.StateMachineActions(m))
	})
}
