package devicetest

import "pwc/runtime/device"

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
			e.refused("nested capture", e.stream.BeginCapture(), device.ErrCapturing)
			e.refused("synchronize", e.stream.Synchronize(), device.ErrCapturing)
			e.refused("record", e.stream.Record(v), device.ErrCapturing)
			e.refused("wait", e.stream.Wait(v), device.ErrCapturing)
			_, err := e.dev.Alloc(8)
			e.refused("alloc", err, device.ErrCapturing)
			_, err = e.dev.AllocHost(8)
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
		e.expect("a copy beside a capture", b, sequence(32))
	},
	"CloseEndsIt": func(e *env) {
		s := e.newStream()
		e.must(s.BeginCapture())
		_, err := e.dev.Alloc(8)
		e.refused("alloc", err, device.ErrCapturing)
		e.must(s.Close())
		e.alloc(8)
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
