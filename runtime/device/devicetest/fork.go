package devicetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"pwc/runtime/device"
)

// deps returns the direct dependencies of each node as text.
func deps(nodes []device.Node) string {
	var out []string
	for _, n := range nodes {
		out = append(out, fmt.Sprint(n.Deps))
	}
	return strings.Join(out, " ")
}

var forkTests = map[string]func(*env){
	// Outside a capture Fork and Join order streams.
	"Eager": func(e *env) {
		second := e.newStream()
		a, b := e.zeroed(1<<16), e.zeroed(1<<16)
		for i := range byte(5) {
			e.must(e.stream.Fill(a, i))
			e.must(e.stream.Fork(second))
			e.must(second.Copy(b, a))
			e.must(e.stream.Join(second))
		}
		if got := e.read(b); got[0] != 4 || got[len(got)-1] != 4 {
			e.Errorf("%d and %d, want the last fill", got[0], got[len(got)-1])
		}
	},
	// Two branches have no edge between them until they are joined; a node after the join depends
	// on both.
	"Branches": func(e *env) {
		left, right := e.newStream(), e.newStream()
		e.stream.SetName("main")
		left.SetName("left")
		right.SetName("right")
		a, b, c, d := e.zeroed(64), e.zeroed(64), e.zeroed(64), e.zeroed(64)
		g := e.capture(func() {
			e.must(e.stream.Fill(a, 1)) // 0
			e.must(e.stream.Fork(left))
			e.must(left.Fork(right))
			if !left.Capturing() || !right.Capturing() {
				e.Error("a forked stream does not capture")
			}
			e.must(left.Copy(b, a))                 // 1
			e.must(right.Copy(c, a))                // 2
			e.must(right.Fill(d.Slice(0, 32), 7))   // 3
			e.must(e.stream.Fill(a.Slice(0, 1), 9)) // 4: races with the copies, but the graph is not launched
			e.must(left.Join(right))
			e.must(left.Copy(d.Slice(32, 32), c.Slice(0, 32))) // 5
			e.must(e.stream.Join(left))
			e.must(e.stream.Copy(c, b)) // 6
		})
		if left.Capturing() || right.Capturing() {
			e.Error("a forked stream captures after the end")
		}
		nodes := g.Describe()
		if got, want := deps(nodes), "[] [0] [0] [2] [0] [1 3] [4 5]"; got != want {
			e.Errorf("dependencies %s, want %s", got, want)
		}
		var streams, kinds []string
		for _, n := range nodes {
			streams = append(streams, n.Stream)
			kinds = append(kinds, n.Kind.String())
		}
		if want := []string{"main", "left", "right", "right", "main", "left", "main"}; !slices.Equal(streams, want) {
			e.Errorf("streams %v, want %v", streams, want)
		}
		if want := []string{"fill", "copy", "copy", "fill", "fill", "copy", "copy"}; !slices.Equal(kinds, want) {
			e.Errorf("kinds %v, want %v", kinds, want)
		}
		if n := nodes[1]; !n.Known || len(n.Reads) != 1 || n.Reads[0] != a || len(n.Writes) != 1 || n.Writes[0] != b {
			e.Errorf("a copy of %v to %v is described as %+v", a, b, n)
		}
		if n := nodes[3]; !n.Known || len(n.Reads) != 0 || len(n.Writes) != 1 || n.Writes[0] != d.Slice(0, 32) || n.Op != "" || n.Origin != -1 {
			e.Errorf("a fill is described as %+v", n)
		}
		var dot bytes.Buffer
		e.must(device.WriteDOT(&dot, nodes))
		edges := strings.Count(dot.String(), "->")
		if edges != 8 || !strings.Contains(dot.String(), "n1 -> n5") || strings.Contains(dot.String(), "n1 -> n2") || !strings.Contains(dot.String(), "right") {
			e.Errorf("%d edges, want 8:\n%s", edges, dot.String())
		}
	},
	"Runs": func(e *env) {
		left, right := e.newStream(), e.newStream()
		p := e.load(Add2, nil)
		x, y, s, t, out := e.zeroed(12), e.zeroed(12), e.zeroed(12), e.zeroed(12), e.zeroed(12)
		sum := e.bind(p, 3, []device.Buffer{x, y}, s)
		other := e.bind(p, 3, []device.Buffer{y, x}, t)
		all := e.bind(p, 3, []device.Buffer{s, t}, out)
		g := e.capture(func() {
			e.must(e.stream.Fork(left))
			e.must(left.Fork(right))
			e.must(left.Launch(sum))
			e.must(right.Launch(other))
			e.must(e.stream.Join(left))
			e.must(e.stream.Join(right))
			e.must(e.stream.Launch(all))
		})
		for i := range 4 {
			v := float32(i)
			e.write(x, floats(v, v, v))
			e.write(y, floats(1, 2, 3))
			e.must(e.stream.LaunchGraph(g))
			// s = x+2y, t = y+2x, out = s+2t = 5x+4y
			e.expect("a replay of two branches", out, floats(5*v+4, 5*v+8, 5*v+12))
		}
		nodes := g.Describe()
		if len(nodes) != g.Nodes() {
			e.Errorf("%d nodes are described, want %d", len(nodes), g.Nodes())
		}
		for i, n := range nodes {
			if n.Kind == device.NodeKernel && n.Name == "" {
				e.Errorf("node %d, a kernel, has no name", i)
			}
		}
	},
	// A stream is forked and gets no work, and another one is forked and joined twice.
	"IdleAndTwice": func(e *env) {
		second, idle := e.newStream(), e.newStream()
		a, b := e.zeroed(8), e.zeroed(8)
		g := e.capture(func() {
			e.must(e.stream.Fork(idle))
			e.must(e.stream.Fill(a, 1))
			for range 2 {
				e.must(e.stream.Fork(second))
				e.must(second.Copy(b, a))
				e.must(e.stream.Join(second))
				e.must(e.stream.Copy(a, b))
			}
			e.must(e.stream.Fork(second))
		})
		if got, want := deps(g.Describe()), "[] [0] [1] [2] [3]"; got != want {
			e.Errorf("dependencies %s, want %s", got, want)
		}
		e.must(second.Fill(b, 0))
		e.must(idle.Synchronize())
		e.must(second.Synchronize())
		e.must(e.stream.LaunchGraph(g))
		if got := e.read(b); got[0] != 1 {
			e.Errorf("%d, want 1", got[0])
		}
	},
	// After a capture that ends with an error, its streams and the device work as before.
	"Unjoined": func(e *env) {
		e.stream.SetName("main")
		second, third, fourth := e.newStream(), e.newStream(), e.newStream()
		second.SetName("left")
		third.SetName("right")
		fourth.SetName("far")
		a, b, c := e.zeroed(8), e.zeroed(8), e.zeroed(8)
		for range 2 {
			e.must(e.stream.BeginCapture(device.CaptureGlobal))
			e.must(e.stream.Fill(a, 1))
			e.must(e.stream.Fork(second))
			e.must(e.stream.Fork(third))
			e.must(e.stream.Fork(fourth))
			e.must(second.Fill(b, 2))
			e.must(third.Fill(c, 2))
			e.must(fourth.Fill(c, 2))
			e.must(e.stream.Join(fourth))
			_, err := second.EndCapture()
			e.refused("the end on a forked stream", err, device.ErrWrongStream)
			var x *device.CaptureError
			if !errors.As(err, &x) || x.Stream != "left" || x.Capturing != "main" {
				e.Errorf("%v does not name both streams", err)
			}
			if !e.stream.Capturing() {
				e.Error("the capture ended on a forked stream")
			}
			_, err = e.stream.EndCapture()
			e.refused("the end with work that is not joined", err, device.ErrUnjoined)
			if s := fmt.Sprint(err); !strings.Contains(s, `"left"`) || !strings.Contains(s, `"right"`) || strings.Contains(s, `"far"`) {
				e.Errorf("%v names other streams than left and right", err)
			}
			for _, s := range []device.Stream{e.stream, second, third, fourth} {
				if s.Capturing() {
					e.Errorf("stream %q captures after the end", s.Name())
				}
				e.must(s.Fill(a, 5))
				e.must(s.Synchronize())
			}
			g := e.capture(func() { e.must(e.stream.Fill(b, 3)) })
			e.must(e.stream.LaunchGraph(g))
			if got := e.read(b); got[0] != 3 {
				e.Errorf("the graph after a capture that failed filled with %d", got[0])
			}
		}
	},
	// An op that fails spoils its capture, but not later ones.
	"Spoiled": func(e *env) {
		sentinel := errors.New("sentinel")
		op := &copyOp{t: e.T, capture: true, fail: sentinel}
		p := e.load(Extern, device.OpSet{ExternOp: op})
		x, out := e.filled(floats(1)), e.filled(floats(0))
		l := e.bind(p, 1, []device.Buffer{x}, out)
		second := e.newStream()
		e.must(e.stream.BeginCapture(device.CaptureThreadLocal))
		e.must(e.stream.Fork(second))
		e.refused("an op that fails on a forked stream", second.Launch(l), sentinel)
		e.must(e.stream.Join(second))
		_, err := e.stream.EndCapture()
		e.refused("the end of a spoiled capture", err, sentinel)
		op.fail = nil
		g := e.capture(func() {
			e.must(e.stream.Fork(second))
			e.must(second.Launch(l))
			e.must(e.stream.Join(second))
		})
		e.must(e.stream.LaunchGraph(g))
		e.expect("a graph after a capture that failed", out, floats(1))
	},
	// An op must record its work: a replay does not repeat work that the op did in its launch.
	"RecordsNothing": func(e *env) {
		op := &copyOp{t: e.T, capture: true, idle: true}
		p := e.load(Extern, device.OpSet{ExternOp: op})
		l := e.bind(p, 1, []device.Buffer{e.filled(floats(1))}, e.filled(floats(0)))
		e.must(e.stream.Launch(l))
		e.must(e.stream.BeginCapture(device.CaptureThreadLocal))
		e.refused("an op that records nothing", e.stream.Launch(l), device.ErrNotCapturable)
		if g, err := e.stream.EndCapture(); err == nil {
			e.Errorf("a graph of %d operations without the op's", g.Nodes())
		}
	},
	"Misuse": func(e *env) {
		second, third := e.newStream(), e.newStream()
		second.SetName("side")
		a := e.zeroed(8)
		e.refused("fork to itself", e.stream.Fork(e.stream), nil)
		e.refused("join of itself", e.stream.Join(e.stream), nil)
		other := &env{T: e.T, suite: e.suite, dev: e.suite.Open(e.T)}
		foreign := other.newStream()
		e.refused("fork to a foreign stream", e.stream.Fork(foreign), device.ErrForeignStream)
		e.refused("join of a foreign stream", e.stream.Join(foreign), device.ErrForeignStream)
		closed := e.newStream()
		e.must(closed.Close())
		e.refused("fork to a closed stream", e.stream.Fork(closed), device.ErrClosed)
		e.refused("join of a closed stream", e.stream.Join(closed), device.ErrClosed)
		e.refused("fork of a closed stream", closed.Fork(e.stream), device.ErrClosed)
		g := e.capture(func() {
			err := e.stream.Join(second)
			e.refused("join of a stream that was never forked", err, device.ErrNotForked)
			if !strings.Contains(fmt.Sprint(err), `"side"`) {
				e.Errorf("%v does not name the stream", err)
			}
			e.refused("fork into the capture", second.Fork(e.stream), device.ErrNotForked)
			e.refused("join of the capture", second.Join(e.stream), device.ErrNotForked)
			e.must(e.stream.Fork(second))
			e.refused("synchronize of a forked stream", second.Synchronize(), device.ErrCapturing)
			e.refused("a capture within", second.BeginCapture(device.CaptureThreadLocal), device.ErrCapturing)
			e.must(third.BeginCapture(device.CaptureThreadLocal))
			e.refused("fork to another capture", e.stream.Fork(third), device.ErrNotForked)
			e.refused("join of another capture", e.stream.Join(third), device.ErrNotForked)
			g, err := third.EndCapture()
			e.must(err)
			e.must(g.Close())
			e.must(second.Fill(a, 8))
			e.must(e.stream.Join(second))
		})
		e.must(e.stream.LaunchGraph(g))
		if got := e.read(a); got[0] != 8 {
			e.Errorf("the graph filled with %d", got[0])
		}
	},
	// A graph with two branches is launched while another graph is captured.
	"Child": func(e *env) {
		second := e.newStream()
		a, b, c := e.filled(sequence(8)), e.zeroed(8), e.zeroed(8)
		inner := e.capture(func() {
			e.must(e.stream.Fork(second))
			e.must(e.stream.Copy(b, a))
			e.must(second.Copy(c, a))
			e.must(e.stream.Join(second))
		})
		outer := e.capture(func() {
			e.must(e.stream.Fill(a, 1))                         // 0
			e.must(e.stream.LaunchGraph(inner))                 // 1, 2
			e.must(e.stream.Copy(a.Slice(0, 4), b.Slice(4, 4))) // 3
		})
		nodes := outer.Describe()
		if got, want := deps(nodes), "[] [0] [0] [1 2]"; got != want || outer.Nodes() != 4 || !nodes[2].Child || nodes[3].Child {
			e.Errorf("%d nodes with dependencies %s, want %s", outer.Nodes(), got, want)
		}
		e.must(e.stream.LaunchGraph(outer))
		e.expect("the left branch", b, bytes.Repeat([]byte{1}, 8))
		e.expect("the right branch", c, bytes.Repeat([]byte{1}, 8))
	},
}

var templateTests = map[string]func(*env){
	"Instantiate": func(e *env) {
		a, b := e.zeroed(8), e.zeroed(8)
		e.must(e.stream.BeginCapture(device.CaptureThreadLocal))
		e.must(e.stream.Copy(b, a))
		t, err := e.stream.EndTemplate()
		e.must(err)
		if t.Nodes() != 1 || len(t.Describe()) != 1 {
			e.Errorf("%d nodes, want 1", t.Nodes())
		}
		var graphs []device.Graph
		for range 3 {
			g, err := t.Instantiate()
			e.must(err)
			graphs = append(graphs, g)
		}
		e.must(graphs[0].Close())
		e.must(t.Close())
		e.refused("a second Close", t.Close(), device.ErrClosed)
		_, err = t.Instantiate()
		e.refused("a graph of a closed template", err, device.ErrClosed)
		for i, g := range graphs[1:] {
			e.must(e.stream.Fill(a, byte(i+1)))
			e.must(e.stream.LaunchGraph(g))
			if got := e.read(b); got[0] != byte(i+1) {
				e.Errorf("graph %d copied %d", i+1, got[0])
			}
			e.must(g.Close())
		}
	},
	"Empty": func(e *env) {
		e.must(e.stream.BeginCapture(device.CaptureThreadLocal))
		t, err := e.stream.EndTemplate()
		e.must(err)
		g, err := t.Instantiate()
		e.must(err)
		if t.Nodes() != 0 || g.Nodes() != 0 || len(g.Describe()) != 0 {
			e.Errorf("%d nodes in an empty template", t.Nodes())
		}
		e.must(e.stream.LaunchGraph(g))
		e.must(e.stream.Synchronize())
		e.must(g.Close())
		e.must(t.Close())
		_, err = e.stream.EndTemplate()
		e.refused("EndTemplate without a begin", err, device.ErrNotCapturing)
	},
}
