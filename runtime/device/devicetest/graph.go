package devicetest

import (
	"testing"

	"pwc/runtime/device"
)

var graphTests = map[string]func(*env){
	"ReplayReadsAnew": func(e *env) {
		a, b, c := e.alloc(64), e.alloc(64), e.alloc(64)
		g := e.capture(func() {
			e.must(e.stream.Copy(b, a))
			e.must(e.stream.Copy(c, b))
		})
		if g.Nodes() != 2 {
			e.Errorf("%d operations, want 2", g.Nodes())
		}
		for i := range byte(4) {
			e.must(e.stream.Fill(a, i))
			e.must(e.stream.LaunchGraph(g))
			if got := e.read(c); got[0] != i || got[63] != i {
				e.Fatalf("replay %d: %v", i, got)
			}
		}
	},
	"OnAnotherStream": func(e *env) {
		a, b := e.filled(sequence(64)), e.alloc(64)
		g := e.capture(func() { e.must(e.stream.Copy(b, a)) })
		second := e.newStream()
		e.must(second.LaunchGraph(g))
		e.must(second.Synchronize())
		e.expect("a replay on another stream", b, sequence(64))
	},
	"WithinAnother": func(e *env) {
		a, b, c := e.filled(sequence(64)), e.alloc(64), e.alloc(64)
		inner := e.capture(func() { e.must(e.stream.Copy(b, a)) })
		outer := e.capture(func() {
			e.must(e.stream.LaunchGraph(inner))
			e.must(e.stream.Copy(c, b))
		})
		e.must(e.stream.Fill(c, 0))
		e.must(e.stream.LaunchGraph(outer))
		e.expect("a graph within a graph", c, sequence(64))
	},
	"Misuse": func(e *env) {
		a := e.alloc(8)
		b, err := e.dev.Alloc(8)
		e.must(err)
		g := e.capture(func() { e.must(e.stream.Copy(a, device.Buffer{Memory: b, Size: 8})) })
		e.must(b.Free())
		e.refused("replay into freed memory", e.stream.LaunchGraph(g), device.ErrFreed)
		e.must(g.Close())
		e.refused("replay of a closed graph", e.stream.LaunchGraph(g), device.ErrClosed)
		e.refused("a second Close", g.Close(), device.ErrClosed)
	},
	"NoAllocations": func(e *env) {
		p := e.load(Add2, nil)
		x, y := e.filled(floats(1, 2)), e.filled(floats(3, 4))
		out := e.zeroed(8)
		l := e.bind(p, 2, []device.Buffer{x, y}, out)
		g := e.capture(func() {
			for range 8 {
				e.must(e.stream.Launch(l))
				e.must(e.stream.Copy(x, out))
			}
		})
		// A device may allocate during the first launch.
		e.must(e.stream.LaunchGraph(g))
		e.must(e.stream.Synchronize())
		if n := testing.AllocsPerRun(20, func() {
			if err := e.stream.LaunchGraph(g); err != nil {
				e.Fatal(err)
			}
		}); n != 0 {
			e.Errorf("a replay allocates %v times", n)
		}
		e.must(e.stream.Synchronize())
	},
}
