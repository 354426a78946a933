package devicetest

import (
	"errors"
	"strings"
	"testing"

	"pwc/program"
	"pwc/runtime/device"
)

// load loads a program of the suite.
func (e *env) load(name string, ops device.OpSet) device.Executable {
	e.Helper()
	x, err := e.dev.Load(e.suite.Program(e.T, name), ops)
	e.must(err)
	e.Cleanup(func() {
		if err := x.Close(); err != nil && !errors.Is(err, device.ErrClosed) {
			e.Error(err)
		}
	})
	return x
}

// args returns arguments for a program, with as much scratch memory as it needs.
func (e *env) args(x device.Executable, n int64, params []device.Buffer, result device.Buffer) device.Args {
	e.Helper()
	need, err := x.ScratchBytes([]int64{n})
	e.must(err)
	return device.Args{Params: params, Results: []device.Buffer{result}, Scratch: e.alloc(need)}
}

func (e *env) bind(x device.Executable, n int64, params []device.Buffer, result device.Buffer) device.BoundLaunch {
	e.Helper()
	l, err := x.Bind([]int64{n}, e.args(x, n, params, result))
	e.must(err)
	if l.Executable() != x {
		e.Error("a bound launch does not know its program")
	}
	return l
}

var programTests = map[string]func(*env){
	"Run": func(e *env) {
		p := e.load(Add2, nil)
		for _, n := range []int64{1, 3, 64, 1000, MaxN} {
			var x, y, want []float32
			for i := range n {
				x, y = append(x, float32(i)), append(y, 0.5)
				want = append(want, float32(i)+1)
			}
			out := e.alloc(4 * n)
			l := e.bind(p, n, []device.Buffer{e.filled(floats(x...)), e.filled(floats(y...))}, out)
			e.must(e.stream.Launch(l))
			e.expect("x + y + y", out, floats(want...))
		}
	},
	"Replay": func(e *env) {
		p := e.load(Add2, nil)
		x, y, out := e.alloc(12), e.alloc(12), e.filled(floats(9, 9, 9))
		l := e.bind(p, 3, []device.Buffer{x, y}, out)
		g := e.capture(func() { e.must(e.stream.Launch(l)) })
		e.expect("a captured launch", out, floats(9, 9, 9))
		for i := range 3 {
			v := float32(i)
			e.write(x, floats(v, v, v))
			e.write(y, floats(1, 2, 3))
			e.must(e.stream.LaunchGraph(g))
			e.expect("a replay", out, floats(v+2, v+4, v+6))
		}
		second := e.newStream()
		e.write(x, floats(5, 5, 5))
		e.must(second.Launch(l))
		e.must(second.Synchronize())
		e.expect("a launch on another stream", out, floats(7, 9, 11))
	},
	"Trace": func(e *env) {
		s, ok := e.stream.(device.Tracer)
		if !ok {
			e.Skip("the device's streams do not report steps")
		}
		p := e.load(Add2, nil)
		x, y, out := e.filled(floats(1, 2)), e.filled(floats(3, 4)), e.alloc(8)
		l := e.bind(p, 2, []device.Buffer{x, y}, out)
		var steps []*program.Step
		s.Trace(func(q *program.Program, st *program.Step) {
			if q != p.Program() {
				e.Error("a step of another program")
			}
			steps = append(steps, st)
		})
		g := e.capture(func() { e.must(s.Launch(l)) })
		e.must(s.LaunchGraph(g))
		if len(steps) > 0 {
			e.Errorf("a capture and a replay reported %d steps, want 0", len(steps))
		}
		e.must(s.Launch(l))
		if len(steps) != 3 || steps[0] != nil || steps[1] != &p.Program().Steps[0] || steps[2] != &p.Program().Steps[1] {
			e.Errorf("a launch reported %d steps, want nil and the two steps of the program, in order", len(steps))
		}
		s.Trace(nil)
		e.must(s.Launch(l))
		if len(steps) != 3 {
			e.Errorf("%d steps were reported after Trace(nil), want 0", len(steps)-3)
		}
		e.expect("x + y + y", out, floats(7, 10))
	},
	"Guards": func(e *env) {
		p := e.load(Add2, nil)
		x := e.alloc(4)
		for _, n := range []int64{0, -1, MaxN + 1} {
			_, err := p.Bind([]int64{n}, device.Args{Params: []device.Buffer{x, x}, Results: []device.Buffer{x}})
			e.refused("bind beyond the guard", err, device.ErrGuard)
			var g *device.GuardError
			if !errors.As(err, &g) || g.Value != n || g.Lo != 1 || g.Hi != MaxN {
				e.Errorf("%v does not say which guard", err)
			}
		}
		_, err := p.Bind(nil, device.Args{})
		e.refused("bind without symbols", err, nil)
		_, err = p.ScratchBytes(nil)
		e.refused("scratch without symbols", err, nil)
	},
	"Misuse": func(e *env) {
		p := e.load(Add2, nil)
		x, y, out := e.alloc(8), e.alloc(8), e.alloc(8)
		good := e.args(p, 2, []device.Buffer{x, y}, out)
		change := func(f func(a *device.Args)) error {
			a := good
			a.Params = []device.Buffer{x, y}
			a.Results = []device.Buffer{out}
			f(&a)
			_, err := p.Bind([]int64{2}, a)
			return err
		}
		e.must(change(func(*device.Args) {}))
		e.refused("short parameter", change(func(a *device.Args) { a.Params[0] = x.Slice(0, 4) }), nil)
		e.refused("missing parameter", change(func(a *device.Args) { a.Params = a.Params[:1] }), nil)
		e.refused("missing result", change(func(a *device.Args) { a.Results = nil }), nil)
		e.refused("no memory", change(func(a *device.Args) { a.Results[0] = device.Buffer{} }), nil)
		e.refused("scratch", change(func(a *device.Args) { a.Scratch = device.Buffer{} }), nil)
		wide := e.alloc(64)
		e.refused("alignment", change(func(a *device.Args) { a.Params[1] = wide.Slice(1, 32) }), nil)
		other := &env{T: e.T, suite: e.suite, dev: e.suite.Open(e.T)}
		other.stream = other.newStream()
		foreign := other.alloc(8)
		e.refused("foreign memory", change(func(a *device.Args) { a.Params[0] = foreign }), device.ErrForeignBuffer)

		l, err := p.Bind([]int64{2}, good)
		e.must(err)
		e.refused("launch on a foreign stream", other.stream.Launch(l), device.ErrForeignStream)
		g := e.capture(func() { e.must(e.stream.Launch(l)) })
		e.must(y.Memory.Free())
		e.refused("launch with freed memory", e.stream.Launch(l), device.ErrFreed)
		e.refused("replay with freed memory", e.stream.LaunchGraph(g), device.ErrFreed)
		e.refused("bind of freed memory", change(func(*device.Args) {}), device.ErrFreed)
		e.must(p.Close())
		e.refused("a second Close", p.Close(), device.ErrClosed)
		e.refused("launch of a closed program", e.stream.Launch(l), device.ErrClosed)

		wrong := *e.suite.Program(e.T, Add2)
		wrong.Target = "abacus"
		_, err = e.dev.Load(&wrong, nil)
		e.refused("a program for another target", err, nil)
		broken := *e.suite.Program(e.T, Add2)
		broken.Steps = append(broken.Steps[:len(broken.Steps):len(broken.Steps)], broken.Steps[0])
		broken.Steps[len(broken.Steps)-1].Args = []int32{99}
		_, err = e.dev.Load(&broken, nil)
		e.refused("a program with a buffer out of range", err, nil)
		unknown := *e.suite.Program(e.T, Add2)
		unknown.Steps = append(unknown.Steps[:len(unknown.Steps):len(unknown.Steps)], unknown.Steps[0])
		unknown.Steps[len(unknown.Steps)-1].Kind = 200
		_, err = e.dev.Load(&unknown, nil)
		e.refused("a program with a step of unknown kind", err, nil)
	},
	"Faults": func(e *env) {
		p := e.load(Gather, nil)
		table := e.filled(floats(10, 11, 12, 13, 14, 15, 16, 17))
		index, out := e.filled(ints(7, 0, 3)), e.alloc(12)
		l := e.bind(p, 3, []device.Buffer{table, index}, out)
		e.must(e.stream.Launch(l))
		e.expect("indices in range", out, floats(17, 10, 13))
		faults, err := e.dev.TakeFaults(e.stream)
		e.must(err)
		if len(faults) != 0 {
			e.Errorf("faults %v for indices in range", faults)
		}
		g := e.capture(func() { e.must(e.stream.Launch(l)) })
		for _, replay := range []bool{false, true} {
			e.write(index, ints(TableLen, -1, 2))
			if replay {
				e.must(e.stream.LaunchGraph(g))
			} else {
				e.must(e.stream.Launch(l))
			}
			e.expect("indices out of range", out, floats(0, 0, 12))
			faults, err = e.dev.TakeFaults(e.stream)
			e.must(err)
			if len(faults) != 1 || faults[0].Origin != GatherNode || faults[0].Executable != p {
				e.Errorf("faults %v, want node %d of the program once", faults, GatherNode)
			}
			faults, err = e.dev.TakeFaults(e.stream)
			e.must(err)
			if len(faults) != 0 {
				e.Errorf("faults %v after they were taken", faults)
			}
		}
		// TakeFaults of some programs leaves the faults of others.
		other := e.load(Gather, nil)
		e.must(e.stream.Launch(l))
		for _, c := range []struct {
			of   []device.Executable
			want int
		}{{[]device.Executable{other}, 0}, {[]device.Executable{other, p}, 1}, {[]device.Executable{p}, 0}, {nil, 0}} {
			faults, err = e.dev.TakeFaults(e.stream, c.of...)
			e.must(err)
			if len(faults) != c.want || c.want > 0 && faults[0].Executable != p {
				e.Errorf("faults %v of %d programs, want %d of the one that ran", faults, len(c.of), c.want)
			}
		}
	},
	"FaultWatch": func(e *env) {
		// Two programs of the watch, and one that is not in it.
		first, other, second := e.load(Gather, nil), e.load(Gather, nil), e.load(Gather, nil)
		table := e.filled(floats(10, 11, 12, 13, 14, 15, 16, 17))
		bad, good, out := e.filled(ints(TableLen, 0, 3)), e.filled(ints(7, 0, 3)), e.alloc(12)
		bound := map[string]device.BoundLaunch{}
		for name, p := range map[string]device.Executable{"first": first, "second": second, "other": other} {
			bound[name+" bad"] = e.bind(p, 3, []device.Buffer{table, bad}, out)
			bound[name+" good"] = e.bind(p, 3, []device.Buffer{table, good}, out)
		}
		w, err := e.dev.WatchFaults(first, second)
		e.must(err)
		s, err := w.NewSnapshot()
		e.must(err)
		names := func(list []device.IndexError) (out string) {
			for _, f := range list {
				switch {
				case f.Origin != GatherNode:
					e.Errorf("fault of node %d, want %d", f.Origin, GatherNode)
				case f.Executable == first:
					out += "first "
				case f.Executable == second:
					out += "second "
				default:
					out += "other "
				}
			}
			return out
		}
		// A snapshot separates the faults of work before it and after it, without a wait in
		// between. Flags of other programs stay.
		for _, c := range []struct {
			before, after         string // launches
			wantBefore, wantAfter string
		}{
			{"", "", "", ""},
			{"first good,second good", "first good", "", ""},
			{"first bad", "first good", "first ", ""},
			{"first good", "first bad", "", "first "},
			{"first bad", "first bad", "first ", "first "},
			{"second bad,first bad,other bad", "second bad", "first second ", "second "},
			{"other bad", "other bad", "", ""},
		} {
			launch := func(list string) {
				for name := range strings.SplitSeq(list, ",") {
					if name != "" {
						e.must(e.stream.Launch(bound[name]))
					}
				}
			}
			launch(c.before)
			e.must(s.Take(e.stream))
			launch(c.after)
			e.must(e.stream.Synchronize())
			if got := names(s.Faults()); got != c.wantBefore {
				e.Errorf("%+v: the snapshot has %q", c, got)
			}
			if got := names(w.Faults()); got != c.wantAfter || w.Raised() != (c.wantAfter != "") {
				e.Errorf("%+v: the flags are %q, raised %v", c, got, w.Raised())
			}
			faults, err := e.dev.TakeFaults(e.stream, first, second)
			e.must(err)
			if got := names(faults); got != c.wantAfter || w.Raised() || len(w.Faults()) > 0 {
				e.Errorf("%+v: TakeFaults returned %q; a flag is raised after it: %v", c, got, w.Raised())
			}
			faults, err = e.dev.TakeFaults(e.stream)
			e.must(err)
			if got, want := names(faults), strings.Contains(c.before+c.after, "other bad"); (got == "other ") != want || !want && got != "" {
				e.Errorf("%+v: TakeFaults of all programs returned %q", c, got)
			}
		}
		// Without faults nothing is allocated.
		programs := []device.Executable{first, second}
		if n := testing.AllocsPerRun(10, func() {
			found, err := e.dev.TakeFaults(e.stream, programs...)
			if w.Raised() || s.Take(e.stream) != nil || len(found) > 0 || err != nil {
				e.Error("there is a fault, or no snapshot")
			}
		}); n != 0 {
			e.Errorf("%v allocations for a snapshot without faults", n)
		}
		foreign := &env{T: e.T, suite: e.suite, dev: e.suite.Open(e.T)}
		foreign.stream = foreign.newStream()
		e.refused("a snapshot on a foreign stream", s.Take(foreign.stream), device.ErrForeignStream)
		_, err = e.dev.WatchFaults(foreign.load(Gather, nil))
		e.refused("a watch of a foreign program", err, device.ErrForeignStream)
		e.capture(func() {
			e.refused("a snapshot", s.Take(e.stream), device.ErrCapturing)
			_, err := w.NewSnapshot()
			e.refused("a new snapshot", err, device.ErrCapturing)
			e.must(e.stream.Fill(out, 0))
		})
		none, err := e.dev.WatchFaults()
		e.must(err)
		empty, err := none.NewSnapshot()
		e.must(err)
		e.must(empty.Take(e.stream))
		if none.Raised() || len(none.Faults())+len(empty.Faults()) > 0 {
			e.Error("a watch of no program found faults")
		}
		e.must(empty.Close())
		e.must(s.Close())
		e.refused("a snapshot after Close", s.Take(e.stream), nil)
		e.refused("a second Close", s.Close(), nil)
		if len(s.Faults()) > 0 {
			e.Error("a snapshot has faults after Close")
		}
		for _, p := range []device.Executable{first, second, other} {
			e.must(p.Close())
		}
		if w.Raised() || len(w.Faults()) > 0 {
			e.Error("there are faults of programs that are closed")
		}
	},
}
