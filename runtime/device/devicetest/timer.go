package devicetest

import (
	"pwc/runtime/device"
)

var timerTests = map[string]func(*env){
	"Graph": func(e *env) {
		d, ok := e.dev.(device.Timer)
		if !ok {
			e.Skip("the device measures no time")
		}
		start, end := e.timed(d), e.timed(d)
		a, b := e.zeroed(1<<16), e.zeroed(1<<16)
		g := e.capture(func() {
			e.must(e.stream.Record(start))
			for range 4 {
				e.must(e.stream.Fill(a, 1))
				e.must(e.stream.Copy(b, a))
			}
			e.must(e.stream.Record(end))
		})
		_, err := d.Elapsed(start, end)
		e.refused("the time between events that were not recorded", err, nil)
		second := e.newStream()
		for _, s := range []device.Stream{e.stream, second, e.stream} {
			e.must(s.LaunchGraph(g))
			e.must(s.Synchronize())
			if done, err := start.Query(); err != nil || !done {
				e.Errorf("an event before one that is done: %v, %v, want done", done, err)
			}
			if t, err := d.Elapsed(start, end); err != nil || t <= 0 {
				e.Errorf("%v, %v between the start and the end of a graph", t, err)
			}
		}
		nodes := g.Describe()
		if n := nodes[len(nodes)-1]; g.Nodes() != 10 || n.Kind != device.NodeEvent || len(n.Writes) != 0 || len(n.Deps) != 1 {
			e.Errorf("the last of %d nodes is described as %+v", g.Nodes(), n)
		}
		// The stream records both events again, outside a graph.
		e.must(e.stream.Record(start))
		e.must(e.stream.Fill(a, 2))
		e.must(e.stream.Record(end))
		e.must(e.stream.Synchronize())
		if t, err := d.Elapsed(start, end); err != nil || t <= 0 {
			e.Errorf("%v, %v between two events of a stream", t, err)
		}
		e.must(e.stream.LaunchGraph(g))
		e.must(e.stream.Synchronize())
		e.must(start.Close())
		e.refused("replay of a closed event", e.stream.LaunchGraph(g), device.ErrClosed)
	},
	"Misuse": func(e *env) {
		d, ok := e.dev.(device.Timer)
		if !ok {
			e.Skip("the device measures no time")
		}
		start, end, plain := e.timed(d), e.timed(d), e.newEvent()
		e.must(e.stream.Record(start))
		e.must(e.stream.Record(end))
		e.must(e.stream.Record(plain))
		e.must(e.stream.Synchronize())
		_, err := d.Elapsed(start, plain)
		e.refused("elapsed to an event that measures no time", err, nil)
		other := e.suite.Open(e.T)
		_, err = other.(device.Timer).Elapsed(start, end)
		e.refused("elapsed of another device's events", err, device.ErrForeignStream)
		g := e.capture(func() {
			e.refused("wait for a timed event while capturing", e.stream.Wait(start), device.ErrCapturing)
			e.refused("record of a plain event while capturing", e.stream.Record(plain), device.ErrCapturing)
		})
		if g.Nodes() != 0 {
			e.Errorf("%d nodes of refused calls", g.Nodes())
		}
		e.must(end.Close())
		_, err = d.Elapsed(start, end)
		e.refused("elapsed of a closed event", err, device.ErrClosed)
	},
}

func (e *env) timed(d device.Timer) device.Event {
	e.Helper()
	v, err := d.NewTimedEvent()
	e.must(err)
	e.Cleanup(func() { v.Close() })
	return v
}
