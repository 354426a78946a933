package host

import (
	"bytes"
	"errors"
	"testing"

	"pwc/ir/dtype"
	"pwc/program/vec"
	"pwc/runtime/device"
)

func do(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestCopyWithin copies between parts of one segment, upwards and downwards. Parts that overlap are an
// error.
func TestCopyWithin(t *testing.T) {
	d := openDevice(t, 1)
	s, err := d.NewStream()
	do(t, err)
	m, err := d.Alloc(8)
	do(t, err)
	all := device.Buffer{Memory: m, Size: 8}
	for _, c := range []struct {
		dst, src, n int64
		want        string // "" for a refusal
	}{
		{4, 0, 4, "abcdabcd"}, {0, 4, 4, "efghefgh"}, {1, 0, 4, ""}, {0, 1, 4, ""}, {2, 2, 4, ""}, {2, 2, 0, "abcdefgh"},
	} {
		do(t, s.CopyToDevice(all, []byte("abcdefgh")))
		err := s.Copy(all.Slice(c.dst, c.n), all.Slice(c.src, c.n))
		if c.want == "" {
			if !errors.Is(err, device.ErrOverlap) {
				t.Errorf("%d bytes from %d to %d: %v, want ErrOverlap", c.n, c.src, c.dst, err)
			}
			continue
		}
		got := make([]byte, 8)
		do(t, err, s.CopyToHost(got, all))
		if string(got) != c.want {
			t.Errorf("%d bytes from %d to %d: %q, want %q", c.n, c.src, c.dst, got, c.want)
		}
	}
}

// TestGraphInGraph captures the launch of a graph: nothing runs during the capture, and the new graph has
// the operations itself, so it replays them after the old graph was closed.
func TestGraphInGraph(t *testing.T) {
	d := openDevice(t, 1)
	s, err := d.NewStream()
	do(t, err)
	m, err := d.Alloc(4)
	do(t, err)
	b := device.Buffer{Memory: m, Size: 4}
	do(t, s.Fill(b, 1), s.BeginCapture(device.CaptureThreadLocal), s.Fill(b, 7))
	inner, err := s.EndCapture()
	do(t, err, s.BeginCapture(device.CaptureThreadLocal), s.LaunchGraph(inner), s.Fill(b.Slice(0, 1), 9))
	outer, err := s.EndCapture()
	do(t, err, inner.Close())
	got := make([]byte, 4)
	if do(t, s.CopyToHost(got, b)); !bytes.Equal(got, []byte{1, 1, 1, 1}) {
		t.Errorf("the buffer has %v after a capture, want ones", got)
	}
	if n := outer.Nodes(); n != 2 {
		t.Errorf("%d operations, want 2", n)
	}
	do(t, s.LaunchGraph(outer), s.CopyToHost(got, b))
	if !bytes.Equal(got, []byte{9, 7, 7, 7}) {
		t.Errorf("the buffer has %v after a replay, want 9 and sevens", got)
	}
}

// TestGraphOfWhatIsGone: a graph is not replayed after the source or the destination of a copy was freed, or
// its program was closed.
func TestGraphOfWhatIsGone(t *testing.T) {
	d := openDevice(t, 1)
	s, err := d.NewStream()
	do(t, err)
	for _, gone := range []int{0, 1} {
		var mem [2]device.Buffer
		for i := range mem {
			m, err := d.Alloc(4)
			do(t, err)
			mem[i] = device.Buffer{Memory: m, Size: 4}
		}
		do(t, s.BeginCapture(device.CaptureThreadLocal), s.Copy(mem[0], mem[1]))
		g, err := s.EndCapture()
		do(t, err, s.LaunchGraph(g), mem[gone].Memory.Free())
		if err := s.LaunchGraph(g); !errors.Is(err, device.ErrFreed) {
			t.Errorf("a replay after buffer %d was freed: %v, want ErrFreed", gone, err)
		}
	}
	l := load(t, d, pointwiseF(4, vec.OpNeg, 1), zeros(dtype.F32, 4), zeros(dtype.F32, 4))
	do(t, l.stream.BeginCapture(device.CaptureThreadLocal), l.stream.Launch(l.launch))
	g, err := l.stream.EndCapture()
	do(t, err, l.stream.LaunchGraph(g), l.exec.Close())
	if err := l.stream.LaunchGraph(g); !errors.Is(err, device.ErrClosed) {
		t.Errorf("a replay after the program was closed: %v, want ErrClosed", err)
	}
}

// TestRebindRefusesUnknownCode: a graph with Go code that no op recorded is not rebound, because the
// device does not know which memory the code uses.
func TestRebindRefusesUnknownCode(t *testing.T) {
	d := openDevice(t, 1)
	s, err := d.NewStream()
	do(t, err)
	m, err := d.Alloc(16)
	do(t, err)
	b := device.Buffer{Memory: m, Size: 16}
	ran := 0
	do(t, s.BeginCapture(device.CaptureThreadLocal), s.Fill(b.Slice(0, 8), 1), s.(*Stream).Call(func() error { ran++; return nil }))
	g, err := s.EndCapture()
	do(t, err)
	err = g.Rebind([]device.Move{{From: b.Slice(0, 8), To: b.Slice(8, 8)}})
	var r *device.RebindError
	if !errors.As(err, &r) || r.Node != 1 || r.What != "host call" {
		t.Errorf("%v, want a refusal of node 1, the host call", err)
	}
	do(t, g.Rebind(nil), s.LaunchGraph(g))
	if ran != 1 {
		t.Errorf("the code ran %d times, want once", ran)
	}
}
