package cuda_test

import (
	"bytes"
	"errors"
	"testing"

	"pwc/internal/cuda/fake"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
	"pwc/runtime/device/devicetest"
)

// TestGraphReachesWorkspace: the captured call of a library uses the stream's workspace of that
// time. Once that workspace is freed, launches of the graph are refused.
func TestGraphReachesWorkspace(t *testing.T) {
	b := newBench(t, open(t, newFake(t, fake.Options{})), fakeRig())
	work, buf := b.alloc(make([]byte, 64)), b.alloc(make([]byte, 64))
	must(t, b.s.UseWorkspace(work))
	g := b.capture(func() {
		must(t, b.s.CallLibrary(cuda.LibraryNodes{}, func(uintptr) error { return nil }))
		must(t, b.s.Fill(buf, 0))
	})
	must(t, b.s.LaunchGraph(g))
	must(t, b.s.Synchronize())
	must(t, work.Memory.Free())
	if err := b.s.LaunchGraph(g); !errors.Is(err, device.ErrFreed) {
		t.Errorf("replay after its workspace was freed: %v, want ErrFreed", err)
	}
}

// TestEventsThatRoam: an event that was recorded on two streams does not show that the first
// stream has passed its marks, since work of that stream may still be under way.
func TestEventsThatRoam(t *testing.T) {
	b := newBench(t, open(t, newFake(t, fake.Options{Schedule: fake.Lazy})), fakeRig())
	other, err := b.dev.NewStream()
	must(t, err)
	buf, e := b.alloc(make([]byte, 64)), b.event()
	must(t, b.s.Synchronize())
	must(t, b.s.Fill(buf, 1))
	mark := b.s.Mark()
	must(t, b.s.Record(e))
	for range 2 * int(mark) { // the other stream has more marks than this one
		other.Mark()
	}
	must(t, other.Record(e))
	must(t, e.Synchronize()) // the other stream has no work, so this does not wait for b.s
	if _, passed := b.s.Behind(mark); passed {
		t.Error("a mark counts as passed by an event that another stream recorded")
	}
}

// TestCloseOfAModuleWhileCapturing: Close of a module is refused on the goroutine that captures,
// and the module stays open.
func TestCloseOfAModuleWhileCapturing(t *testing.T) {
	b := newBench(t, open(t, newFake(t, fake.Options{})), fakeRig())
	m, err := b.dev.LoadModule(b.rig.module(t))
	must(t, err)
	g := b.capture(func() {
		if err := m.Close(); !errors.Is(err, device.ErrCapturing) {
			t.Errorf("close while capturing: %v, want ErrCapturing", err)
		}
	})
	must(t, g.Close())
	must(t, m.Close())
}

// TestCloseWaitsForConstants: Close of a program with constants waits for the streams, also if another
// program still uses its module.
func TestCloseWaitsForConstants(t *testing.T) {
	f := newFake(t, fake.Options{})
	b := newBench(t, open(t, f), fakeRig())
	p := b.rig.program(t, devicetest.Add2)
	p.Consts = append(p.Consts, []byte("constants"))
	var loads [2]device.Executable
	for i := range loads {
		var err error
		loads[i], err = b.dev.Load(p, nil)
		must(t, err)
	}
	before := f.Made("cuStreamSynchronize")
	must(t, loads[0].Close())
	if f.Made("cuStreamSynchronize") == before {
		t.Error("Close of a program frees its constants without a wait for the streams")
	}
	must(t, loads[1].Close())
}

// TestFreesWait: memory is given back, and a stream ends, only after the work that was enqueued before. The fake
// driver's cuMemFree and cuStreamDestroy do not wait.
func TestFreesWait(t *testing.T) {
	b := newBench(t, open(t, newFake(t, fake.Options{Schedule: fake.Lazy})), fakeRig())
	buf, kept := b.alloc(make([]byte, 64)), b.alloc(make([]byte, 64))
	other, err := b.dev.NewStream()
	must(t, err)
	must(t, b.s.Fill(buf, 1))
	must(t, other.Copy(kept.Slice(0, 32), buf.Slice(0, 32)))
	must(t, buf.Memory.Free())
	must(t, b.s.Synchronize())
	must(t, other.Fill(kept, 2))
	must(t, other.Close())
	b.expect("after the close of the stream that filled it", kept, bytes.Repeat([]byte{2}, 64))
}
