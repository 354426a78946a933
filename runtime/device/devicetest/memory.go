package devicetest

import (
	"bytes"
	"errors"
	"testing"

	"pwc/runtime/device"
)

var memoryTests = map[string]func(*env){
	"AllocAndFree": func(e *env) {
		for _, n := range []int64{0, 1, 511, 1 << 20} {
			m, err := e.dev.Alloc(n)
			e.must(err)
			if m.Size() != n {
				e.Errorf("Size() = %d, want %d", m.Size(), n)
			}
			e.must(m.Free())
			e.refused("a second Free", m.Free(), device.ErrFreed)
		}
		_, err := e.dev.Alloc(-1)
		e.refused("Alloc(-1)", err, nil)
	},
	"OutOfMemory": func(e *env) {
		_, err := e.dev.Alloc(1 << 60)
		e.refused("Alloc of an exbibyte", err, device.ErrOutOfMemory)
		var m *device.MemoryError
		if !errors.As(err, &m) || m.Asked != 1<<60 {
			e.Errorf("%v does not say how many bytes were asked for", err)
		}
	},
	"HostMemory": func(e *env) {
		h, err := e.dev.AllocHost(1000)
		e.must(err)
		copy(h.Bytes(), sequence(1000))
		b := e.alloc(1000)
		e.must(e.stream.CopyToDevice(b, h.Bytes()))
		e.must(e.stream.Synchronize())
		e.expect("a copy from host memory", b, sequence(1000))
		e.must(h.Free())
		e.refused("a second Free", h.Free(), device.ErrFreed)
		_, err = e.dev.AllocHost(-1)
		e.refused("AllocHost(-1)", err, nil)
	},
	"Copies": func(e *env) {
		src := sequence(4099)
		a := e.filled(src)
		e.expect("a round trip", a, src)
		e.expect("a part", a.Slice(17, 33), src[17:50])

		b := e.alloc(a.Size)
		e.must(e.stream.Fill(b, 0xa5))
		e.must(e.stream.Copy(b.Slice(3, 100), a.Slice(1000, 100)))
		got := e.read(b)
		for i, v := range got {
			want := byte(0xa5)
			if i >= 3 && i < 103 {
				want = src[1000+i-3]
			}
			if v != want {
				e.Fatalf("byte %d is %#x, want %#x", i, v, want)
			}
		}
		// Neighbours do not overlap.
		e.must(e.stream.Copy(a.Slice(0, 64), a.Slice(64, 64)))
		e.expect("a copy to the neighbour", a.Slice(0, 64), src[64:128])
	},
	"Import": func(e *env) {
		d, ok := e.dev.(device.HostImporter)
		if !ok {
			e.Skip("the device does not import memory of the host")
		}
		gone := errors.New("gone")
		src := sequence(4099)
		kept := bytes.Clone(src)
		m, err := d.ImportHost(src, gone)
		e.must(err)
		all := device.Buffer{Memory: m, Size: m.Size()}
		e.expect("the imported bytes", all, kept)
		b := e.alloc(33)
		g := e.capture(func() { e.must(e.stream.Copy(b, all.Slice(17, 33))) })
		e.must(e.stream.LaunchGraph(g))
		e.must(e.stream.Synchronize())
		e.expect("a copy of a part", b, kept[17:50])

		s, part := e.stream, all.Slice(0, 33)
		e.refused("CopyToDevice", s.CopyToDevice(part, make([]byte, 33)), device.ErrReadOnly)
		e.refused("Copy", s.Copy(part, b), device.ErrReadOnly)
		e.refused("Fill", s.Fill(part, 0), device.ErrReadOnly)
		e.expect("the imported bytes after refused writes", all, kept)
		_, err = d.ImportHost(nil, gone)
		e.refused("an import of nothing", err, nil)
		_, err = d.ImportHost(src, nil)
		e.refused("an import without an error", err, nil)
		e.must(m.Free())
		e.refused("a second Free", m.Free(), device.ErrFreed)
		e.refused("a graph that reads it", s.LaunchGraph(g), device.ErrFreed)
	},
	"Nothing": func(e *env) {
		none := device.Buffer{}
		e.must(e.stream.CopyToDevice(none, nil))
		e.must(e.stream.CopyToHost(nil, none))
		e.must(e.stream.Copy(none, none))
		e.must(e.stream.Fill(none, 1))
		a := e.alloc(8)
		e.must(e.stream.Copy(a.Slice(4, 0), a.Slice(4, 0)))
	},
	"Misuse": func(e *env) {
		a, b := e.alloc(64), e.alloc(64)
		s := e.stream
		e.refused("overlapping copy", s.Copy(a.Slice(0, 32), a.Slice(31, 32)), device.ErrOverlap)
		e.refused("overlapping copy downwards", s.Copy(a.Slice(31, 32), a.Slice(0, 32)), device.ErrOverlap)
		e.refused("copy onto itself", s.Copy(a, a), device.ErrOverlap)
		e.refused("copy of other size", s.Copy(a, b.Slice(0, 63)), nil)
		e.refused("copy from fewer bytes", s.CopyToDevice(a, make([]byte, 63)), nil)
		e.refused("copy to more bytes", s.CopyToHost(make([]byte, 65), a), nil)
		for _, out := range []device.Buffer{{Memory: a.Memory, Offset: 60, Size: 8}, {Memory: a.Memory, Offset: -8, Size: 8}, {Memory: a.Memory, Offset: 8, Size: -8}, {Memory: a.Memory, Offset: 1<<63 - 1, Size: 8}} {
			e.refused("fill beyond the segment", s.Fill(out, 0), nil)
		}
		e.refused("no memory", s.Fill(device.Buffer{Size: 8}, 0), device.ErrForeignBuffer)

		other := &env{T: e.T, suite: e.suite, dev: e.suite.Open(e.T)}
		foreign := other.alloc(64)
		e.refused("foreign destination", s.Copy(foreign, a), device.ErrForeignBuffer)
		e.refused("foreign source", s.Copy(a, foreign), device.ErrForeignBuffer)
		e.refused("foreign copy to device", s.CopyToDevice(foreign, make([]byte, 64)), device.ErrForeignBuffer)
		e.refused("foreign copy to host", s.CopyToHost(make([]byte, 64), foreign), device.ErrForeignBuffer)

		e.must(b.Memory.Free())
		e.refused("fill after free", s.Fill(b, 0), device.ErrFreed)
		e.refused("copy after free", s.Copy(a, b), device.ErrFreed)
		e.refused("copy to host after free", s.CopyToHost(make([]byte, 64), b), device.ErrFreed)
		e.refused("copy to device after free", s.CopyToDevice(b, make([]byte, 64)), device.ErrFreed)
	},
	"Close": func(e *env) {
		var dev device.Device
		e.Run("open", func(t *testing.T) { dev = e.suite.Open(t) }) // the cleanup closes it
		if dev == nil {
			e.Fatal("Open failed")
		}
		_, err := dev.Alloc(8)
		e.refused("Alloc", err, device.ErrClosed)
		_, err = dev.NewStream()
		e.refused("NewStream", err, device.ErrClosed)
		_, err = dev.NewEvent()
		e.refused("NewEvent", err, device.ErrClosed)
		_, err = dev.Load(e.suite.Program(e.T, Add2), nil)
		e.refused("Load", err, device.ErrClosed)
		e.must(dev.Close())
	},
}
