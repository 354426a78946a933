package devicetest

import (
	"errors"
	"sync"

	"pwc/runtime/device"
)

var modes = []device.CaptureMode{device.CaptureGlobal, device.CaptureThreadLocal, device.CaptureRelaxed}

var captureTests = map[string]func(*env){
	"RecordsWithoutExecuting": func(e *env) {
		a := e.filled(sequence(64))
		g := e.capture(func() {
			if !e.stream.Capturing() {
				e.Error("Capturing() is false between BeginCapture and EndCapture")
			}
			e.must(e.stream.Fill(a, 7))
		})
		if e.stream.Capturing() {
			e.Error("Capturing() is true after EndCapture")
		}
		e.expect("after a capture", a, sequence(64))
		e.must(e.stream.LaunchGraph(g))
		if got := e.read(a); got[0] != 7 || got[63] != 7 {
			e.Errorf("after a replay: %v", got)
		}
	},
	"Misuse": func(e *env) {
		_, err := e.stream.EndCapture()
		e.refused("EndCapture without a begin", err, device.ErrNotCapturing)
		v := e.newEvent()
		a := e.alloc(8)
		mem, err := e.dev.Alloc(8)
		e.must(err)
		add2 := e.suite.Program(e.T, Add2)
		g := e.capture(func() {
			e.refused("nested capture", e.stream.BeginCapture(device.CaptureThreadLocal), device.ErrCapturing)
			e.refused("synchronize", e.stream.Synchronize(), device.ErrCapturing)
			e.refused("record", e.stream.Record(v), device.ErrCapturing)
			e.refused("wait", e.stream.Wait(v), device.ErrCapturing)
			_, err := e.dev.AllocHost(8)
			e.refused("alloc of host memory", err, device.ErrCapturing)
			e.refused("free", mem.Free(), device.ErrCapturing)
			_, err = e.dev.Load(add2, nil)
			e.refused("load", err, device.ErrCapturing)
			_, err = e.dev.TakeFaults(e.stream)
			e.refused("faults", err, device.ErrCapturing)
			e.must(e.stream.Fill(a, 3))
		})
		if g.Nodes() != 1 {
			e.Errorf("%d operations were recorded, want the one that was allowed", g.Nodes())
		}
		_, err = e.stream.EndCapture()
		e.refused("a second EndCapture", err, device.ErrNotCapturing)
		e.must(mem.Free())
		e.must(e.stream.LaunchGraph(g))
		if got := e.read(a); got[0] != 3 {
			e.Errorf("the graph filled with %d", got[0])
		}
	},
	"OtherStreamRuns": func(e *env) {
		second := e.newStream()
		a, b := e.filled(sequence(32)), e.alloc(32)
		e.capture(func() {
			e.must(e.stream.Fill(a, 1))
			e.must(second.Copy(b, a))
			e.must(second.Synchronize())
		})
		e.expect("a copy on another stream during a capture", b, sequence(32))
	},
	"CloseEndsIt": func(e *env) {
		s, forked := e.newStream(), e.newStream()
		e.must(s.BeginCapture(device.CaptureGlobal))
		e.must(s.Fork(forked))
		e.refused("close of a forked stream", forked.Close(), device.ErrCapturing)
		_, err := e.dev.AllocHost(8)
		e.refused("alloc of host memory", err, device.ErrCapturing)
		e.must(s.Close())
		h, err := e.dev.AllocHost(8)
		e.must(err)
		e.must(h.Free())
		a := e.alloc(8)
		e.must(forked.Fill(a, 2))
		e.must(forked.Synchronize())
		if got := e.read(a); got[7] != 2 {
			e.Errorf("a stream that had been forked filled with %d", got[7])
		}
	},
	// The capturing goroutine may call Alloc in every mode, as the allocator of a private pool does
	// when the pool grows. A replay after the memory is freed is refused.
	"Alloc": func(e *env) {
		for _, mode := range modes {
			var m device.Memory
			g := e.captureIn(mode, func() {
				var err error
				m, err = e.dev.Alloc(64)
				e.must(err)
				e.must(e.stream.Fill(device.Buffer{Memory: m, Size: 64}, 9))
			})
			e.must(e.stream.LaunchGraph(g))
			if got := e.read(device.Buffer{Memory: m, Size: 64}); got[0] != 9 || got[63] != 9 {
				e.Errorf("mode %s: the graph filled with %v", mode, got)
			}
			e.must(m.Free())
			e.refused("replay into freed memory", e.stream.LaunchGraph(g), device.ErrFreed)
		}
	},
	// Without room an allocation in a capture fails (PyTorch's test_graph_capture_oom), and the capture
	// continues.
	"OutOfMemory": func(e *env) {
		a := e.alloc(8)
		for _, mode := range modes {
			g := e.captureIn(mode, func() {
				_, err := e.dev.Alloc(4 << 40)
				e.refused("an alloc of four tebibytes", err, device.ErrOutOfMemory)
				e.must(e.stream.Fill(a, 4))
			})
			e.must(e.stream.LaunchGraph(g))
			if got := e.read(a); got[7] != 4 {
				e.Errorf("mode %s: the graph filled with %d", mode, got[7])
			}
		}
	},
	// Another goroutine allocates and frees 1 KiB during a capture (PyTorch's
	// test_cuda_graph_error_options, where mode global is not run).
	"AllocElsewhere": func(e *env) {
		a := e.alloc(8)
		for _, mode := range modes {
			g := e.captureIn(mode, func() {
				e.elsewhere(func() {
					m, err := e.dev.Alloc(1 << 10)
					if mode == device.CaptureGlobal {
						e.refused("an alloc elsewhere in mode global", err, device.ErrCapturing)
						return
					}
					e.must(err)
					e.must(m.Free())
				})
				e.must(e.stream.Fill(a, 6))
			})
			e.must(e.stream.LaunchGraph(g))
			if got := e.read(a); got[0] != 6 {
				e.Errorf("mode %s: the graph filled with %d", mode, got[0])
			}
		}
	},
	"ModeGlobal": func(e *env) {
		other := e.newStream()
		e.stream.SetName("main")
		other.SetName("side")
		x, err := e.dev.NewEvent()
		e.must(err)
		a, b := e.alloc(8), e.alloc(8)
		mem, err := e.dev.Alloc(8)
		e.must(err)
		inner := e.capture(func() { e.must(e.stream.Fill(a, 1)) })
		p := e.load(Add2, nil)
		l := e.bind(p, 1, []device.Buffer{a.Slice(0, 4), a.Slice(4, 4)}, b.Slice(0, 4))
		add2 := e.suite.Program(e.T, Add2)
		check := func(what string, err error, stream string) {
			e.Helper()
			e.refused(what, err, device.ErrCapturing)
			var c *device.CaptureError
			if !errors.As(err, &c) || c.Capturing != "main" || c.Stream != stream || c.Mode != device.CaptureGlobal || c.Call == "" {
				e.Errorf("%s: %v does not say that \"main\" captures, or which call on which stream was refused", what, err)
			}
		}
		refusals := func() {
			check("fill", other.Fill(a, 0), "side")
			check("copy", other.Copy(b, a), "side")
			check("copy to host", other.CopyToHost(make([]byte, 8), a), "side")
			check("copy to device", other.CopyToDevice(a, make([]byte, 8)), "side")
			check("launch", other.Launch(l), "side")
			check("graph launch", other.LaunchGraph(inner), "side")
			check("record", other.Record(x), "side")
			check("wait", other.Wait(x), "side")
			check("synchronize", other.Synchronize(), "side")
			check("begin capture", other.BeginCapture(device.CaptureThreadLocal), "side")
			_, err := e.dev.TakeFaults(other)
			check("faults", err, "side")
			_, err = x.Query()
			check("query", err, "")
			check("synchronize of an event", x.Synchronize(), "")
			_, err = e.dev.AllocHost(8)
			check("alloc of host memory", err, "")
			_, err = e.dev.Load(add2, nil)
			check("load", err, "")
			check("free", mem.Free(), "")
		}
		g := e.captureIn(device.CaptureGlobal, func() {
			refusals()
			e.elsewhere(func() {
				refusals()
				_, err := e.dev.Alloc(8)
				check("alloc", err, "")
			})
			e.must(e.stream.Fork(other))
			e.must(other.Fill(b, 4))
			e.must(e.stream.Join(other))
		})
		if g.Nodes() != 1 {
			e.Errorf("%d operations were recorded, want the one that was allowed", g.Nodes())
		}
		e.must(other.Fill(b, 0))
		e.must(other.Synchronize())
		e.must(other.LaunchGraph(g))
		e.must(other.Synchronize())
		if got := e.read(b); got[0] != 4 {
			e.Errorf("the graph filled with %d", got[0])
		}
		e.must(mem.Free())
		e.must(x.Close())
		// A capture of another mode is under way: a global one is refused.
		e.must(other.BeginCapture(device.CaptureThreadLocal))
		e.refused("a global capture during another", e.stream.BeginCapture(device.CaptureGlobal), device.ErrCapturing)
		g2, err := other.EndCapture()
		e.must(err)
		e.must(g2.Close())
	},
	// Other goroutines allocate, load, copy and free on other streams.
	"ModeThreadLocal": func(e *env) {
		other := e.newStream()
		a := e.alloc(64)
		add2 := e.suite.Program(e.T, Add2)
		var loading sync.WaitGroup
		g := e.captureIn(device.CaptureThreadLocal, func() {
			loading.Go(func() { // a device may block Load until the end of the capture
				x, err := e.dev.Load(add2, nil)
				if err == nil {
					err = x.Close()
				}
				if err != nil {
					e.Error(err)
				}
			})
			e.elsewhere(func() {
				m, err := e.dev.Alloc(64)
				e.must(err)
				b := device.Buffer{Memory: m, Size: 64}
				e.must(other.Fill(b, 5))
				got := make([]byte, 64)
				e.must(other.CopyToHost(got, b))
				e.must(other.Synchronize())
				if got[63] != 5 {
					e.Errorf("%v, want 5s", got)
				}
				e.must(m.Free())
				h, err := e.dev.AllocHost(8)
				e.must(err)
				e.must(h.Free())
				e.refused("an operation on the stream of another goroutine's capture", e.stream.Fill(a, 1), device.ErrCapturing)
				_, err = e.stream.EndCapture()
				e.refused("the end of another goroutine's capture", err, device.ErrCapturing)
			})
			e.must(e.stream.Fill(a, 6))
		})
		loading.Wait()
		e.must(e.stream.LaunchGraph(g))
		if got := e.read(a); got[0] != 6 || g.Nodes() != 1 {
			e.Errorf("%d operations, which filled with %d", g.Nodes(), got[0])
		}
	},
	// A relaxed capture belongs to no goroutine.
	"ModeRelaxed": func(e *env) {
		a := e.alloc(8)
		e.must(e.stream.BeginCapture(device.CaptureRelaxed))
		h, err := e.dev.AllocHost(8)
		e.must(err)
		e.must(h.Free())
		x, err := e.dev.Load(e.suite.Program(e.T, Add2), nil)
		e.must(err)
		e.must(x.Close())
		var g device.Graph
		e.elsewhere(func() {
			e.must(e.stream.Fill(a, 3))
			e.refused("synchronize", e.stream.Synchronize(), device.ErrCapturing)
			g, err = e.stream.EndCapture()
			e.must(err)
		})
		e.must(e.stream.LaunchGraph(g))
		if got := e.read(a); got[7] != 3 {
			e.Errorf("the graph filled with %d", got[7])
		}
		e.must(g.Close())
		e.refused("BeginCapture with an invalid mode", e.stream.BeginCapture(device.CaptureRelaxed+1), nil)
		if e.stream.Capturing() {
			e.Error("the stream captures after BeginCapture with an invalid mode")
		}
	},
	"Empty": func(e *env) {
		g := e.capture(func() {})
		if g.Nodes() != 0 {
			e.Errorf("%d operations in an empty graph", g.Nodes())
		}
		e.must(e.stream.LaunchGraph(g))
		e.must(e.stream.Synchronize())
	},
}
