package cuda_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pwc/internal/cuda/fake"
	"pwc/runtime/cuda"
	"pwc/runtime/device"
)

// action is one call of a random program: a fill or copy of stream a, a fork or join of
// streams a and b, a point of stream a, or the join of stream a and the last point of stream b.
type action struct {
	kind     string
	a, b     int
	dst, src int
	value    byte
}

const (
	orderStreams = 3
	orderBuffers = 4
)

// drawActions draws a program without races: each write of a buffer is ordered after all earlier
// uses of the buffer, and each read after the last write. At the end stream 0 joins all streams that were
// forked. want is the contents of the buffers at the end.
func drawActions(t *rapid.T) (list []action, want [orderBuffers]byte) {
	var after [orderStreams]map[int]bool // by stream, the operations that its next one comes after; nil: not forked
	var wrote [orderBuffers]int          // the operation; 0: none
	var read [orderBuffers][]int
	var points [orderStreams]map[int]bool // by stream, the operations before its last point; nil: it has no point
	after[0] = map[int]bool{0: true}
	op := 0
	merge := func(into int, from map[int]bool) {
		if after[into] == nil {
			after[into] = map[int]bool{}
		}
		maps.Copy(after[into], from)
	}
	comes := func(s int, ops ...int) bool {
		return !slices.ContainsFunc(ops, func(n int) bool { return !after[s][n] })
	}
	for range rapid.IntRange(1, 30).Draw(t, "actions") {
		x := action{
			kind: rapid.SampledFrom([]string{"fill", "copy", "copy", "fork", "join", "point", "join point"}).Draw(t, "kind"),
			a:    rapid.IntRange(0, orderStreams-1).Draw(t, "a"), b: rapid.IntRange(0, orderStreams-1).Draw(t, "b"),
			dst: rapid.IntRange(0, orderBuffers-1).Draw(t, "dst"), src: rapid.IntRange(0, orderBuffers-1).Draw(t, "src"),
			value: rapid.Byte().Draw(t, "value"),
		}
		writable := after[x.a] != nil && comes(x.a, append(read[x.dst], wrote[x.dst])...)
		switch {
		case x.kind == "fill" && writable:
			want[x.dst] = x.value
		case x.kind == "copy" && writable && x.src != x.dst && comes(x.a, wrote[x.src]):
			want[x.dst] = want[x.src]
		case x.kind == "fork" && x.a != x.b && after[x.a] != nil:
			merge(x.b, after[x.a])
		case x.kind == "join" && x.a != x.b && after[x.a] != nil && after[x.b] != nil:
			merge(x.a, after[x.b])
		case x.kind == "point" && after[x.a] != nil:
			points[x.a] = maps.Clone(after[x.a])
		case x.kind == "join point" && x.a != x.b && after[x.a] != nil && points[x.b] != nil:
			merge(x.a, points[x.b])
		default:
			continue
		}
		if x.kind == "fill" || x.kind == "copy" {
			op++
			after[x.a][op] = true
			wrote[x.dst], read[x.dst] = op, nil
			if x.kind == "copy" {
				read[x.src] = append(read[x.src], op)
			}
		}
		list = append(list, x)
	}
	for s := 1; s < orderStreams; s++ {
		if after[s] != nil {
			list = append(list, action{kind: "join", a: 0, b: s})
		}
	}
	return list, want
}

// TestOrderOfBranches runs random programs of drawActions on several streams of the fake, which
// executes work in any order that streams, events and edges of graphs allow. Run eagerly, replayed,
// and as a graph within a graph, each leaves the contents that drawActions computed.
func TestOrderOfBranches(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		list, want := drawActions(rt)
		var schedule fake.Schedule = fake.Lazy // finds waits that are missing between streams
		if rapid.Bool().Draw(rt, "random") {   // finds edges that are missing in graphs
			schedule = fake.Random(rapid.Uint64().Draw(rt, "seed"))
		}
		f := fake.New(fake.Options{Schedule: schedule})
		d, err := cuda.Open(cuda.Options{Driver: f})
		must(t, err)
		var streams [orderStreams]device.Stream
		for i := range streams {
			streams[i], err = d.NewStream()
			must(t, err)
		}
		m, err := d.Alloc(8 * orderBuffers)
		must(t, err)
		all := device.Buffer{Memory: m, Size: 8 * orderBuffers}
		issue := func() {
			var points [orderStreams]*cuda.Point
			for _, x := range list {
				dst, src := all.Slice(int64(8*x.dst), 8), all.Slice(int64(8*x.src), 8)
				switch x.kind {
				case "fill":
					err = streams[x.a].Fill(dst, x.value)
				case "copy":
					err = streams[x.a].Copy(dst, src)
				case "fork":
					err = streams[x.a].Fork(streams[x.b])
				case "join":
					err = streams[x.a].Join(streams[x.b])
				case "point":
					if points[x.a] != nil {
						points[x.a].Release()
					}
					points[x.a], err = streams[x.a].(*cuda.Stream).Point()
				case "join point":
					err = streams[x.a].(*cuda.Stream).JoinPoint(points[x.b])
				}
				must(t, err)
			}
			for _, p := range points {
				if p != nil {
					p.Release()
				}
			}
		}
		check := func(what string) {
			got := make([]byte, all.Size)
			must(t, streams[0].CopyToHost(got, all))
			must(t, streams[0].Synchronize())
			for i, v := range want {
				for _, b := range got[8*i:][:8] {
					if b != v {
						rt.Fatalf("%s: buffers %v, want %v each eight times", what, got, want)
					}
				}
			}
			must(t, streams[0].Fill(all, 0))
			must(t, streams[0].Synchronize())
		}
		capture := func(f func()) device.Graph {
			must(t, streams[0].BeginCapture(device.CaptureThreadLocal))
			f()
			g, err := streams[0].EndCapture()
			must(t, err)
			return g
		}
		must(t, streams[0].Fill(all, 0))
		must(t, streams[0].Synchronize())
		issue()
		check("eager")
		g := capture(issue)
		must(t, streams[0].LaunchGraph(g))
		check("replayed")
		h := capture(func() {
			must(t, streams[0].Fill(all, 0))
			must(t, streams[0].LaunchGraph(g))
		})
		must(t, streams[0].LaunchGraph(h))
		check("within a graph")
		must(t, d.Close())
		if l := append(f.Leaks(), f.Misuse()...); len(l) > 0 {
			rt.Fatalf("%q", l)
		}
	})
}
