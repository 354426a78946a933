package cuda_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pwc/internal/cuda/fake"
	"pwc/runtime/device"
	"pwc/runtime/device/devicetest"
)

// elsewhere runs f on another goroutine and waits for it.
func elsewhere(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// TestCaptureBelongsToAGoroutine: calls of another goroutine on a stream that captures are refused,
// and do not change the capture.
func TestCaptureBelongsToAGoroutine(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		buf := b.alloc(make([]byte, 4))
		g := b.capture(func() {
			must(t, b.s.Fill(buf, 1))
			elsewhere(func() {
				_, err := b.s.EndCapture()
				for what, err := range map[string]error{"end": err, "close": b.s.Close(), "fill": b.s.Fill(buf, 2)} {
					if !errors.Is(err, device.ErrCapturing) {
						t.Errorf("%s by another goroutine: %v", what, err)
					}
				}
			})
		})
		must(t, b.s.LaunchGraph(g))
		b.expect("what was captured", buf, []byte{1, 1, 1, 1})
	})
}

// TestCallsDuringACapture: while a goroutine captures, others can allocate, copy and wait. Their loads
// wait for the end of the capture, and memory that they free goes back to the driver after it.
func TestCallsDuringACapture(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		old := b.alloc(make([]byte, 1<<20))
		program := b.rig.program(t, devicetest.Add2)
		oldProgram := b.load(devicetest.Gather)
		before, err := b.dev.FreeBytes()
		must(t, err)
		loaded := make(chan device.Executable)
		var ended atomic.Bool
		g := b.capture(func() {
			elsewhere(func() {
				other := newBench(t, b.dev, b.rig)
				x := other.alloc([]byte{1, 2, 3, 4})
				other.expect("a copy during a capture", x, []byte{1, 2, 3, 4})
				must(t, old.Memory.Free())
				must(t, oldProgram.Close())
				if err := other.s.Fill(old, 1); !errors.Is(err, device.ErrFreed) {
					t.Errorf("a fill of freed memory: %v", err)
				}
				must(t, other.s.Close())
				if b.fake != nil {
					if free, err := b.dev.FreeBytes(); err != nil || free > before {
						t.Errorf("%d bytes free, %v: more than before, during the capture", free, err)
					}
				}
			})
			go func() {
				x, err := b.dev.Load(program, nil)
				if err != nil {
					t.Error(err)
				}
				if !ended.Load() {
					t.Error("a load ended before the capture")
				}
				loaded <- x
			}()
			time.Sleep(10 * time.Millisecond) // a load that does not wait would end now
			ended.Store(true)
		})
		if x := <-loaded; x != nil {
			must(t, x.Close())
		}
		if b.fake != nil {
			if free, err := b.dev.FreeBytes(); err != nil || free < before+1<<20-4 {
				t.Errorf("%d bytes free after the capture, %d before, %v", free, before, err)
			}
		}
		must(t, g.Close())
	})
}

// TestManyGoroutines has three goroutines that allocate, load, run and free all the time,
// while two others capture and replay.
func TestManyGoroutines(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		if b.fake != nil && testing.Short() {
			t.Skip("short")
		}
		var stop atomic.Bool
		var noise, work sync.WaitGroup
		for range 3 {
			noise.Go(func() {
				o := newBench(t, b.dev, b.rig)
				for !stop.Load() {
					x, err := b.dev.Load(b.rig.program(t, devicetest.Add2), nil)
					if err != nil {
						t.Error(err)
						return
					}
					p, out := o.alloc(floats(1, 2)), o.alloc(floats(0, 0))
					scratch := o.alloc(make([]byte, 256))
					l, err := x.Bind([]int64{2}, device.Args{Params: []device.Buffer{p, p}, Results: []device.Buffer{out}, Scratch: scratch})
					if err == nil {
						err = o.s.Launch(l)
					}
					if err != nil {
						t.Error(err)
					}
					if got := o.read(out); string(got) != string(floats(3, 6)) {
						t.Errorf("%v, want 3 and 6", got)
					}
					if err := errors.Join(x.Close(), p.Memory.Free(), out.Memory.Free(), scratch.Memory.Free()); err != nil {
						t.Error(err)
					}
				}
				if err := o.s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		x := b.load(devicetest.Add2)
		for range 2 {
			o := newBench(t, b.dev, b.rig)
			p, out := o.alloc(floats(5)), o.alloc(floats(0))
			l := o.bind(x, 1, out, p, p)
			work.Go(func() {
				for range 30 {
					if err := o.s.BeginCapture(device.CaptureThreadLocal); err != nil {
						t.Error(err)
						return
					}
					err := o.s.Launch(l)
					g, endErr := o.s.EndCapture()
					if err := errors.Join(err, endErr); err != nil {
						t.Error(err)
						return
					}
					if err := errors.Join(o.s.Fill(out, 0), o.s.LaunchGraph(g), g.Close()); err != nil {
						t.Error(err)
					}
					if got := o.read(out); string(got) != string(floats(15)) {
						t.Errorf("%v, want 15", got)
					}
				}
			})
		}
		work.Wait()
		stop.Store(true)
		noise.Wait()
	})
}

// TestWaitsWhileCapturing: the capturing goroutine may wait for work of another stream.
func TestWaitsWhileCapturing(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		other := newBench(t, b.dev, b.rig)
		e, x, buf := b.event(), other.alloc(make([]byte, 4)), b.alloc(make([]byte, 4))
		g := b.capture(func() {
			must(t, other.s.Fill(x, 3))
			must(t, other.s.Record(e))
			must(t, e.Synchronize())
			if done, err := e.Query(); err != nil || !done {
				t.Errorf("%v, %v", done, err)
			}
			other.expect("the other stream", x, []byte{3, 3, 3, 3})
			must(t, b.s.Fill(buf, 4))
		})
		must(t, b.s.LaunchGraph(g))
		b.expect("the capture", buf, []byte{4, 4, 4, 4})
	})
}

// TestCapturesAreIndependent captures on one stream while another stream captures.
func TestCapturesAreIndependent(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		other := newBench(t, b.dev, b.rig)
		x, y := b.alloc(make([]byte, 1)), b.alloc(make([]byte, 1))
		must(t, b.s.BeginCapture(device.CaptureThreadLocal))
		must(t, b.s.Fill(x, 1))
		h := other.capture(func() { must(t, other.s.Fill(y, 2)) })
		if _, err := b.dev.AllocHost(1); !errors.Is(err, device.ErrCapturing) {
			t.Errorf("alloc of host memory while one of two captures goes on: %v", err)
		}
		if err := b.dev.Close(); !errors.Is(err, device.ErrCapturing) {
			t.Errorf("close while capturing: %v", err)
		}
		g, err := b.s.EndCapture()
		must(t, err)
		must(t, b.s.LaunchGraph(g))
		must(t, b.s.LaunchGraph(h))
		b.expect("the first", x, []byte{1})
		b.expect("the second", y, []byte{2})
	})
}

// TestSpoiledCapture: if a call of a capture fails, EndCapture returns an error and no graph, the
// recorded work does not execute, and the next capture works.
func TestSpoiledCapture(t *testing.T) {
	f := newFake(t, fake.Options{})
	b := newBench(t, open(t, f), fakeRig())
	x, y := b.alloc([]byte{1, 2}), b.alloc(make([]byte, 2))
	must(t, b.s.BeginCapture(device.CaptureThreadLocal))
	must(t, b.s.Copy(y, x))
	f.Fail(2, 1) // the call after CtxSetCurrent
	if err := b.s.Copy(x, y); err == nil {
		t.Fatal("the failed copy succeeded")
	}
	g, err := b.s.EndCapture()
	if err == nil || g != nil || b.s.Capturing() {
		t.Errorf("a spoiled capture gave %v, %v", g, err)
	}
	b.expect("after it", y, make([]byte, 2))
	g = b.capture(func() { must(t, b.s.Copy(y, x)) })
	must(t, b.s.LaunchGraph(g))
	b.expect("the next capture", y, []byte{1, 2})
}
