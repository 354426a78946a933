package device_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pwc/runtime/device"
)

// TestBranchesAgreeWithSets holds dependencies to a model that keeps, for each stream, the
// set of all nodes that its next node comes after: streams fork, join and record at random.
func TestBranchesAgreeWithSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var captures device.Captures
		const streams = 4
		names := [streams]string{"a", "b", "c", "d"}
		var branch [streams]*device.Branch
		var after [streams]map[int]bool // nil: not part of the capture
		var err error
		if branch[0], err = captures.Begin(device.CaptureRelaxed, names[0]); err != nil {
			t.Fatal(err)
		}
		rec := branch[0].Rec
		defer rec.End()
		after[0] = map[int]bool{}
		var comes []map[int]bool // by node, the nodes that it comes after
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			i, j := rapid.IntRange(0, streams-1).Draw(t, "from"), rapid.IntRange(0, streams-1).Draw(t, "to")
			switch kind := rapid.IntRange(0, 3).Draw(t, "kind"); {
			case kind <= 1:
				if branch[i] == nil {
					continue
				}
				n := branch[i].Add()
				if n != len(comes) {
					t.Fatalf("node %d, want %d", n, len(comes))
				}
				comes = append(comes, clone(after[i]))
				after[i][n] = true
			case i != j:
				join := kind == 2
				b, err := device.Connect(join, branch[i], branch[j], names[i], names[j])
				refused := (after[i] == nil) != (after[j] == nil) && (after[i] == nil || join)
				if refused != errors.Is(err, device.ErrNotForked) || !refused && err != nil {
					t.Fatalf("join %v of %s and %s: %v, want a refusal: %v", join, names[i], names[j], err, refused)
				}
				if refused || after[i] == nil {
					continue
				}
				branch[j] = b
				if after[j] == nil {
					after[j] = map[int]bool{}
				}
				for n := range after[i] {
					after[j][n] = true
				}
			}
		}
		for n, want := range comes {
			got := map[int]bool{}
			reach(rec, rec.Nodes[n].Deps, got)
			if !equal(got, want) {
				t.Fatalf("node %d comes after %v, want %v", n, got, want)
			}
			for _, d := range rec.Nodes[n].Deps { // no dependency follows from the others
				others := map[int]bool{}
				for _, o := range rec.Nodes[n].Deps {
					if o != d {
						reach(rec, rec.Nodes[o].Deps, others)
					}
				}
				if others[int(d)] {
					t.Fatalf("node %d waits for %d twice", n, d)
				}
			}
		}
		err = branch[0].Joined("end capture")
		for i := 1; i < streams; i++ {
			lost := false
			for n := range after[i] {
				lost = lost || !after[0][n]
			}
			if named := err != nil && strings.Contains(err.Error(), fmt.Sprintf("%q", names[i])); named != lost {
				t.Fatalf("%v: stream %s is named: %v, want %v", err, names[i], named, lost)
			}
		}
		if err != nil && !errors.Is(err, device.ErrUnjoined) {
			t.Fatal(err)
		}
	})
}

func clone(s map[int]bool) map[int]bool {
	out := map[int]bool{}
	for n := range s {
		out[n] = true
	}
	return out
}

func equal(a, b map[int]bool) bool {
	if len(a) != len(b) {
		return false
	}
	for n := range a {
		if !b[n] {
			return false
		}
	}
	return true
}

func reach(r *device.Recording, ends []int32, into map[int]bool) {
	for _, d := range ends {
		if !into[int(d)] {
			into[int(d)] = true
			reach(r, r.Nodes[d].Deps, into)
		}
	}
}

// TestCapturesOfThreads checks that a thread-local capture forbids a free only on its own thread, that it
// forbids a global capture, and that the end of the first of two captures leaves the second under way.
func TestCapturesOfThreads(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("threads are told apart on Linux alone")
	}
	var c device.Captures
	a, err := c.Begin(device.CaptureThreadLocal, "a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Begin(device.CaptureThreadLocal, "b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Begin(device.CaptureGlobal, "c"); !errors.Is(err, device.ErrCapturing) {
		t.Errorf("a global capture during others: %v", err)
	}
	done := make(chan error)
	go func() { done <- errors.Join(c.Idle("free"), c.Alloc("alloc"), c.Elsewhere("fill", "d")) }()
	if err := <-done; err != nil {
		t.Errorf("on another thread: %v", err)
	}
	if err := c.Idle("free"); !errors.Is(err, device.ErrCapturing) {
		t.Errorf("on the thread that captures: %v", err)
	}
	a.Rec.End()
	if a.Active() != nil || b.Active() == nil || !c.Any() {
		t.Error("the end of one capture ended the other")
	}
	if err := c.Idle("free"); !errors.Is(err, device.ErrCapturing) {
		t.Errorf("while the second capture goes on: %v", err)
	}
	b.Rec.End()
	if err := c.Idle("free"); err != nil || c.Any() {
		t.Errorf("after the captures: %v", err)
	}
}

func TestRelocate(t *testing.T) {
	a, b := segment(1), segment(2)
	moves := []device.Move{
		{From: device.Buffer{Memory: a, Offset: 16, Size: 16}, To: device.Buffer{Memory: b, Offset: 100, Size: 16}},
		{From: device.Buffer{Memory: a, Offset: 64, Size: 8}, To: device.Buffer{Memory: a, Offset: 0, Size: 8}},
	}
	if err := device.CheckMoves(moves); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in, out device.Buffer
		moved   bool
		fails   bool
	}{
		{in: device.Buffer{Memory: a, Offset: 16, Size: 16}, out: device.Buffer{Memory: b, Offset: 100, Size: 16}, moved: true},
		{in: device.Buffer{Memory: a, Offset: 20, Size: 4}, out: device.Buffer{Memory: b, Offset: 104, Size: 4}, moved: true},
		{in: device.Buffer{Memory: a, Offset: 66, Size: 2}, out: device.Buffer{Memory: a, Offset: 2, Size: 2}, moved: true},
		{in: device.Buffer{Memory: a, Offset: 0, Size: 16}},
		{in: device.Buffer{Memory: a, Offset: 32, Size: 8}},
		{in: device.Buffer{Memory: b, Offset: 16, Size: 16}},
		{in: device.Buffer{Memory: a, Offset: 20, Size: 0}},
		{in: device.Buffer{}},
		{in: device.Buffer{Memory: a, Offset: 12, Size: 8}, fails: true},
		{in: device.Buffer{Memory: a, Offset: 28, Size: 8}, fails: true},
	} {
		out, moved, err := device.Relocate(c.in, moves)
		if !c.moved {
			c.out = c.in
		}
		if (err != nil) != c.fails || moved != c.moved || out != c.out {
			t.Errorf("%+v goes to %+v, %v, %v, want %+v, %v, an error: %v", c.in, out, moved, err, c.out, c.moved, c.fails)
		}
	}
}

// segment is memory of no device.
type segment int

func (segment) Size() int64 { return 1 << 10 }
func (segment) Free() error { return nil }

func TestWriteDOT(t *testing.T) {
	nodes := []device.Node{
		{Recorded: device.Recorded{Stream: `s "1"`}, Kind: device.NodeKernel, Name: "add"},
		{Recorded: device.Recorded{Scope: device.Scope{Op: "ns::op", Loc: "m.ir:3:1"}, Stream: "s2", Deps: []int32{0}}, Kind: device.NodeCall},
	}
	var out strings.Builder
	if err := device.WriteDOT(&out, nodes); err != nil {
		t.Fatal(err)
	}
	want := `digraph capture {
  node [shape=box];
  n0 [label="0: kernel add\ns \"1\""];
  n1 [label="1: host call of ns::op at m.ir:3:1\ns2"];
  n0 -> n1;
}
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
	failed := errors.New("full")
	if err := device.WriteDOT(full{failed}, nodes); !errors.Is(err, failed) {
		t.Errorf("%v, want the error of the writer", err)
	}
	if k := []string{device.NodeCopy.String(), device.NodeFill.String(), device.NodeLibrary.String(), device.NodeKind(9).String()}; !slices.Equal(k, []string{"copy", "fill", "library call", "NodeKind(9)"}) {
		t.Errorf("kinds %q", k)
	}
}

type full struct{ err error }

func (f full) Write([]byte) (int, error) { return 0, f.err }
