//go:build unix

package host

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"pwc/ir/dtype"
	"pwc/program/vec"
	"pwc/runtime/device"
)

// mapFile returns n mapped bytes of a file that holds ones as float32, and a function that truncates the
// file to its first page.
func mapFile(t *testing.T, n int) (data []byte, cut func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weights")
	ones := make([]float64, n/4)
	for i := range ones {
		ones[i] = 1
	}
	if err := os.WriteFile(path, floats(dtype.F32, ones...).data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if data, err = unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(data); err != nil {
			t.Error(err)
		}
	})
	return data, func() {
		if err := os.Truncate(path, 4096); err != nil {
			t.Fatal(err)
		}
	}
}

// TestImportedMemoryIsGone: programs read imported memory, which does not count for the limit. Once pages of
// it are gone, operations that read them return the error that ImportHost was given, with one worker and
// with three, and other operations still work.
func TestImportedMemoryIsGone(t *testing.T) {
	const n = 1 << 20
	for _, workers := range []int{1, 3} {
		data, cut := mapFile(t, 4*n)
		d := openDevice(t, workers)
		l := load(t, d, pointwiseF(n, vec.OpAdd, 2), zeros(dtype.F32, n), zeros(dtype.F32, n), zeros(dtype.F32, n))
		before, _ := d.FreeBytes()
		gone := errors.New("the file was truncated")
		m, err := d.ImportHost(data, gone)
		if err != nil {
			t.Fatal(err)
		}
		if after, _ := d.FreeBytes(); after != before {
			t.Errorf("%d bytes are free with imported memory, %d without", after, before)
		}
		weights := device.Buffer{Memory: m, Size: m.Size()}
		launch, err := l.exec.Bind(nil, device.Args{Params: []device.Buffer{weights, weights, l.mem[2]}})
		if err != nil {
			t.Fatal(err)
		}
		s := l.stream.(*Stream)
		var sum atomic.Int64 // parts read at the same time
		read := func() error {
			b, err := d.Bytes(weights)
			if err == nil {
				sum.Add(int64(b[len(b)-1]))
			}
			return err
		}
		part := func(int) {
			if err := read(); err != nil {
				t.Error(err)
			}
		}
		if err := s.BeginCapture(device.CaptureRelaxed); err != nil {
			t.Fatal(err)
		}
		if err := s.Launch(launch); err != nil {
			t.Fatal(err)
		}
		g, err := s.EndCapture()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]func() error{
			"a launch": func() error { return s.Launch(launch) },
			"a graph":  func() error { return s.LaunchGraph(g) },
			"a copy":   func() error { return s.CopyToHost(make([]byte, 4*n), weights) },
			"a short copy": func() error {
				return s.CopyToHost(make([]byte, 8), weights.Slice(4*n-8, 8))
			},
			"a call":   func() error { return s.Call(read) },
			"parts":    func() error { return s.Call(func() error { s.Parallel(8, part); return nil }) },
			"one part": func() error { return s.Call(func() error { s.Parallel(1, part); return nil }) },
		}
		for name, work := range all {
			if err := work(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := l.read(t, 2).values(); got[0] != 2 || got[n-1] != 2 {
			t.Errorf("1 + 1 = %g and %g, want 2", got[0], got[n-1])
		}
		cut()
		for name, work := range all {
			if err := work(); !errors.Is(err, gone) {
				t.Errorf("%s of pages that are gone: %v, want the error of ImportHost", name, err)
			}
			if err := s.Launch(l.launch); err != nil {
				t.Errorf("other work after %s: %v", name, err)
			}
		}
		if err := errors.Join(g.Close(), m.Free()); err != nil {
			t.Error(err)
		}
	}
}

// TestOtherFaultsPanic: a panic of Go code, or a fault at an address that was not imported, is not taken for
// a missing page of imported memory.
func TestOtherFaultsPanic(t *testing.T) {
	d := openDevice(t, 1)
	m, err := d.ImportHost(make([]byte, 64), errors.New("gone"))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(page)
	for name, f := range map[string]func() error{
		"a panic": func() error { panic("mine") },
		"a fault": func() error { return errors.New(string(page[:1])) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			err := s.(*Stream).Call(f)
			t.Errorf("%s: Call returned %v", name, err)
		}()
	}
}
