package devicetest

import (
	"bytes"

	"pwc/runtime/device"
)

// reserve reserves a state, or skips the test if the device is not a [device.Reserver].
func (e *env) reserve(n int64) (device.State, device.Buffer) {
	e.Helper()
	r, ok := e.dev.(device.Reserver)
	if !ok {
		e.Skip("the device has no reserved address space")
	}
	s, err := r.ReserveState(n)
	e.must(err)
	return s, device.Buffer{Memory: s, Size: n}
}

var stateTests = map[string]func(*env){
	"MapsInMultiples": func(e *env) {
		s, all := e.reserve(1 << 26)
		g, err := e.dev.(device.Reserver).MapGranularity()
		e.must(err)
		if g < 1 || g&(g-1) != 0 {
			e.Fatalf("granularity %d is not a power of two", g)
		}
		if s.Size() != 1<<26 || s.Mapped() != 0 {
			e.Errorf("%d bytes, %d mapped, want %d and 0", s.Size(), s.Mapped(), 1<<26)
		}
		for _, n := range []int64{1, g, g + 1, g + 1, 1, 1 << 26} {
			before := s.Mapped()
			e.must(s.Map(n))
			if want := min(max(before, (n+g-1)/g*g), s.Size()); s.Mapped() != want {
				e.Errorf("%d bytes mapped after Map(%d), want %d", s.Mapped(), n, want)
			}
		}
		e.refused("Map beyond the state", s.Map(1<<26+1), nil)
		e.refused("Map(-1)", s.Map(-1), nil)
		e.must(e.stream.Fill(all, 1))
		e.must(e.stream.Synchronize())
		e.must(s.Free())
		e.refused("a second Free", s.Free(), device.ErrFreed)
		e.refused("Map after Free", s.Map(1), device.ErrFreed)
		_, err = e.dev.(device.Reserver).ReserveState(0)
		e.refused("ReserveState(0)", err, nil)
	},
	"GraphsOutliveMapping": func(e *env) {
		s, all := e.reserve(1 << 25)
		defer s.Free()
		e.must(s.Map(1))
		head := all.Slice(0, 64)
		e.must(e.stream.Fill(head, 7))
		x := e.alloc(64)
		g := e.capture(func() {
			e.must(e.stream.Copy(x, head))
			e.must(e.stream.Fill(head, 9))
		})
		tail := all.Slice(all.Size-64, 64)
		e.refused("a fill of bytes that are not mapped", e.stream.Fill(tail, 1), nil)
		e.must(s.Map(all.Size))
		e.must(e.stream.Fill(tail, 3))
		e.must(e.stream.LaunchGraph(g))
		e.expect("the copy of bytes that were written before Map", x, bytes.Repeat([]byte{7}, 64))
		e.expect("a graph's fill", head, bytes.Repeat([]byte{9}, 64))
		e.expect("the end", tail, bytes.Repeat([]byte{3}, 64))
	},
	"WhileCapturing": func(e *env) {
		s, _ := e.reserve(1 << 25)
		defer s.Free()
		e.capture(func() {
			_, err := e.dev.(device.Reserver).ReserveState(1)
			e.refused("reserve", err, device.ErrCapturing)
			e.refused("map", s.Map(1), device.ErrCapturing)
			e.refused("free", s.Free(), device.ErrCapturing)
		})
		e.must(s.Map(1))
	},
}
