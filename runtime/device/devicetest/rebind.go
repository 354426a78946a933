package devicetest

import (
	"errors"

	"pwc/runtime/device"
)

var rebindTests = map[string]func(*env){
	// Kernels, copies and fills go to the new memory, and the template does not change.
	"Moves": func(e *env) {
		p := e.load(Add2, nil)
		x, y, out, c := e.filled(floats(1, 2, 3)), e.filled(floats(10, 20, 30)), e.zeroed(12), e.zeroed(24)
		l := e.bind(p, 3, []device.Buffer{x, y}, out)
		e.must(e.stream.BeginCapture(device.CaptureThreadLocal))
		e.must(e.stream.Launch(l))
		e.must(e.stream.Copy(c.Slice(0, 12), out))
		e.must(e.stream.Copy(c.Slice(12, 12), x))
		e.must(e.stream.Fill(x.Slice(4, 4), 0))
		t, err := e.stream.EndTemplate()
		e.must(err)
		g, err := t.Instantiate()
		e.must(err)

		x2 := e.filled(append(make([]byte, 512), floats(5, 6, 7)...)).Slice(512, 12)
		out2 := e.zeroed(12)
		e.must(g.Rebind([]device.Move{{From: x, To: x2}, {From: out, To: out2}}))
		e.must(e.stream.Fill(out, 0))
		e.must(e.stream.LaunchGraph(g))
		e.expect("the result", out2, floats(25, 46, 67))
		e.expect("a copy of both", c, floats(25, 46, 67, 5, 6, 7))
		e.expect("a fill of the new memory", x2, floats(5, 0, 7))
		e.expect("the old memory", x, floats(1, 2, 3))
		e.expect("the old result", out, floats(0, 0, 0))
		nodes := g.Describe()
		if n := nodes[len(nodes)-3]; n.Writes[0] != c.Slice(0, 12) || n.Reads[0] != out2 {
			e.Errorf("the copy is described as %+v", n)
		}

		// Rebind to the old memory: From is the memory after the last Rebind.
		e.must(g.Rebind([]device.Move{{From: x2, To: x}}))
		e.must(x2.Memory.Free())
		e.must(e.stream.LaunchGraph(g))
		e.expect("the result from the old memory", out2, floats(21, 42, 63))
		e.refused("a launch of the rebound graph while capturing", e.capturing(func() error { return e.stream.LaunchGraph(g) }), device.ErrNotCapturable)
		e.must(g.Close())
		e.refused("rebind of a closed graph", g.Rebind(nil), device.ErrClosed)

		g, err = t.Instantiate()
		e.must(err)
		e.must(e.stream.LaunchGraph(g))
		e.expect("a new graph of the template", out, floats(21, 40, 63))
		e.must(g.Close())
		e.must(t.Close())
	},
	// The old memory of an input was freed.
	"Freed": func(e *env) {
		a, b := e.zeroed(64), e.zeroed(64)
		g := e.capture(func() { e.must(e.stream.Copy(b, a)) })
		e.must(a.Memory.Free())
		e.refused("replay of freed memory", e.stream.LaunchGraph(g), device.ErrFreed)
		c := e.filled(sequence(64))
		e.must(g.Rebind([]device.Move{{From: a, To: c}}))
		e.must(e.stream.LaunchGraph(g))
		e.expect("a copy from the new memory", b, sequence(64))
	},
	// A launch before Rebind uses the old memory.
	"UnderWay": func(e *env) {
		a, b, out := e.filled(sequence(1<<16)), e.zeroed(1<<16), e.zeroed(1<<16)
		g := e.capture(func() { e.must(e.stream.Copy(out, a)) })
		e.must(e.stream.LaunchGraph(g))
		e.must(g.Rebind([]device.Move{{From: out, To: b}}))
		e.must(e.stream.Fill(a, 1))
		e.must(e.stream.LaunchGraph(g))
		e.expect("the copy before", out, sequence(1<<16))
		if got := e.read(b); got[0] != 1 || got[1<<16-1] != 1 {
			e.Errorf("the copy after: %d", got[0])
		}
	},
	// If Rebind refuses one node, no node changes.
	"Refused": func(e *env) {
		op := &copyOp{t: e.T, capture: true}
		p := e.load(Extern, device.OpSet{ExternOp: op})
		x, y, out := e.filled(floats(1, 2)), e.filled(floats(3, 4)), e.zeroed(8)
		l := e.bind(p, 2, []device.Buffer{x}, out)
		l.Calls()[0].Loc = "model.ir:7:3"
		inner := e.capture(func() { e.must(e.stream.Copy(y, x)) })
		for what, c := range map[string]struct {
			record func()
			node   int
			says   string
		}{
			"op":    {func() { e.must(e.stream.Launch(l)) }, 1, "model.ir:7:3"},
			"child": {func() { e.must(e.stream.LaunchGraph(inner)) }, 1, "graph"},
			"part":  {func() { e.must(e.stream.Copy(out, x)) }, -1, ""},
		} {
			g := e.capture(func() {
				e.must(e.stream.Copy(y, x))
				c.record()
			})
			to := e.filled(floats(8, 9))
			moves := []device.Move{{From: x, To: to}}
			if c.node < 0 {
				moves = []device.Move{{From: x.Slice(4, 4), To: to.Slice(4, 4)}}
			}
			err := g.Rebind(moves)
			e.refused(what, err, device.ErrNotRebindable)
			var r *device.RebindError
			if !errors.As(err, &r) || c.node > 0 && r.Node != c.node || r.What == "" {
				e.Errorf("%s: %v does not name the node", what, err)
			}
			e.must(e.stream.LaunchGraph(g))
			e.expect("after a refusal, "+what, y, floats(1, 2))
		}
	},
	"Misuse": func(e *env) {
		a, b := e.zeroed(64), e.zeroed(128)
		g := e.capture(func() { e.must(e.stream.Fill(a, 1)) })
		other := &env{T: e.T, suite: e.suite, dev: e.suite.Open(e.T)}
		foreign := other.alloc(64)
		gone := e.zeroed(64)
		e.must(gone.Memory.Free())
		for what, c := range map[string]struct {
			moves []device.Move
			want  error
		}{
			"sizes":         {[]device.Move{{From: a, To: b}}, nil},
			"nothing":       {[]device.Move{{}}, nil},
			"twice":         {[]device.Move{{From: a, To: b.Slice(0, 64)}, {From: a.Slice(8, 8), To: b.Slice(64, 8)}}, device.ErrOverlap},
			"foreign":       {[]device.Move{{From: a, To: foreign}}, device.ErrForeignBuffer},
			"freed":         {[]device.Move{{From: a, To: gone}}, device.ErrFreed},
			"foreign start": {[]device.Move{{From: foreign, To: a}}, device.ErrForeignBuffer},
		} {
			e.refused(what, g.Rebind(c.moves), c.want)
		}
		// Memory that the graph does not use may move.
		e.must(g.Rebind([]device.Move{{From: b.Slice(0, 8), To: b.Slice(64, 8)}}))
		e.must(g.Rebind(nil))
		p := e.load(Add2, nil)
		x := e.zeroed(8)
		l := e.bind(p, 2, []device.Buffer{x, e.zeroed(8)}, e.zeroed(8))
		g = e.capture(func() { e.must(e.stream.Launch(l)) })
		e.refused("alignment", g.Rebind([]device.Move{{From: x, To: b.Slice(1, 8)}}), device.ErrNotRebindable)
		c := e.capture(func() { e.must(e.stream.Copy(b.Slice(0, 64), a)) })
		e.refused("overlap", c.Rebind([]device.Move{{From: a, To: b.Slice(32, 64)}}), device.ErrNotRebindable)
		e.must(c.Rebind([]device.Move{{From: a, To: b.Slice(64, 64)}}))
	},
	"Branches": func(e *env) {
		second := e.newStream()
		a, b, c := e.zeroed(8), e.zeroed(8), e.zeroed(8)
		g := e.capture(func() {
			e.must(e.stream.Fork(second))
			e.must(second.Fill(a, 1))
			e.must(e.stream.Fill(b, 2))
			e.must(e.stream.Join(second))
			e.must(e.stream.Copy(b.Slice(0, 4), a.Slice(0, 4)))
		})
		e.must(g.Rebind([]device.Move{{From: a, To: c}}))
		e.must(e.stream.Fill(a, 0))
		e.must(e.stream.LaunchGraph(g))
		e.expect("both branches", b, []byte{1, 1, 1, 1, 2, 2, 2, 2})
		e.expect("the old memory", a, make([]byte, 8))
	},
}
