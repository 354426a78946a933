package devicetest

import "pwc/runtime/device"

var streamTests = map[string]func(*env){
	"Order": func(e *env) {
		a, b := e.alloc(256), e.alloc(256)
		for i := range byte(10) {
			e.must(e.stream.Fill(a, i))
			e.must(e.stream.Copy(b, a))
		}
		e.must(e.stream.Synchronize())
		for _, v := range e.read(b) {
			if v != 9 {
				e.Fatalf("%d, want the last fill", v)
			}
		}
		if e.stream.Device() != e.dev || e.stream.Capturing() {
			e.Errorf("the stream is on the opened device: %v, want true; it captures: %v, want false", e.stream.Device() == e.dev, e.stream.Capturing())
		}
	},
	"Events": func(e *env) {
		v := e.newEvent()
		if done, err := v.Query(); err != nil || !done {
			e.Errorf("an event that recorded nothing: %v, %v, want done", done, err)
		}
		second := e.newStream()
		a, b := e.alloc(1<<16), e.alloc(1<<16)
		for i := range byte(5) {
			e.must(e.stream.Fill(a, i))
			e.must(e.stream.Record(v))
			e.must(second.Wait(v))
			e.must(second.Copy(b, a))
			e.must(second.Record(v))
			e.must(e.stream.Wait(v))
		}
		e.must(v.Synchronize())
		if done, err := v.Query(); err != nil || !done {
			e.Errorf("after Synchronize: %v, %v, want done", done, err)
		}
		e.must(second.Synchronize())
		if got := e.read(b); got[0] != 4 || got[len(got)-1] != 4 {
			e.Errorf("%d and %d, want the last fill", got[0], got[len(got)-1])
		}
		e.must(v.Close())
		e.refused("record of a closed event", e.stream.Record(v), device.ErrClosed)
		e.refused("wait for a closed event", e.stream.Wait(v), device.ErrClosed)
		_, err := v.Query()
		e.refused("query of a closed event", err, device.ErrClosed)
		e.refused("synchronize of a closed event", v.Synchronize(), device.ErrClosed)
		e.refused("a second Close", v.Close(), device.ErrClosed)
	},
	"Marks": func(e *env) {
		v, a := e.newEvent(), e.alloc(1<<16)
		fill := func() device.Mark {
			e.must(e.stream.Fill(a, 1))
			return e.stream.Mark()
		}
		for range 3 {
			before := fill()
			e.must(e.stream.Record(v))
			after := fill()
			if recorded, _ := e.stream.Behind(before); !recorded {
				e.Error("Behind does not report an event that was recorded after the mark")
			}
			e.must(v.Synchronize())
			if _, passed := e.stream.Behind(before); !passed {
				e.Error("a mark before an event that is done is not passed")
			}
			e.must(e.stream.Synchronize())
			if _, passed := e.stream.Behind(after); !passed {
				e.Error("a mark before a synchronisation is not passed")
			}
		}
	},
	"Foreign": func(e *env) {
		other := &env{T: e.T, suite: e.suite, dev: e.suite.Open(e.T)}
		other.stream = other.newStream()
		v := other.newEvent()
		e.refused("record of a foreign event", e.stream.Record(v), device.ErrForeignStream)
		e.refused("wait for a foreign event", e.stream.Wait(v), device.ErrForeignStream)
		g := other.capture(func() {})
		e.refused("launch of a foreign graph", e.stream.LaunchGraph(g), device.ErrForeignStream)
		_, err := e.dev.TakeFaults(other.stream)
		e.refused("faults of a foreign stream", err, device.ErrForeignStream)
	},
	"Closed": func(e *env) {
		s := e.newStream()
		v := e.newEvent()
		a := e.alloc(8)
		g := e.capture(func() {})
		e.must(s.Close())
		_, endErr := s.EndCapture()
		for what, err := range map[string]error{
			"fill":           s.Fill(a, 0),
			"copy":           s.Copy(a.Slice(0, 4), a.Slice(4, 4)),
			"copy to host":   s.CopyToHost(make([]byte, 8), a),
			"copy to device": s.CopyToDevice(a, make([]byte, 8)),
			"record":         s.Record(v),
			"wait":           s.Wait(v),
			"synchronize":    s.Synchronize(),
			"begin capture":  s.BeginCapture(device.CaptureThreadLocal),
			"end capture":    endErr,
			"graph launch":   s.LaunchGraph(g),
			"close":          s.Close(),
		} {
			e.refused(what, err, device.ErrClosed)
		}
	},
}
