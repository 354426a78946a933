package piecewise_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pwc/piecewise"
	"pwc/runtime/device"
)

// ranges records the ranges that an observer gets: their names, each after a space for each range
// that is open.
type ranges struct {
	names []string
	depth int
}

func (*ranges) Captured(string, int64, int, time.Duration)  {}
func (*ranges) Ran(string, int64, int64, piecewise.RunMode) {}
func (r *ranges) Leave()                                    { r.depth-- }

func (r *ranges) Enter(name string) {
	r.names, r.depth = append(r.names, strings.Repeat(" ", r.depth)+name), r.depth+1
}

// In modes none and piecewise a run is a range, in which each piece and each call is a range; in
// mode full it is one range. After a run, also one whose call fails, no range is open.
func TestRanges(t *testing.T) {
	pieces := []string{"@forward", " @forward 0", " @forward 1 first", " @forward 2", " @forward 3 second", " @forward 4"}
	for mode, want := range map[piecewise.Mode][]string{piecewise.None: pieces, piecewise.Piecewise: pieces, piecewise.Full: {"@forward"}} {
		var r ranges
		op := &sum3{capture: true}
		b := start(t, nineteen, piecewise.Options{Capture: piecewise.CaptureOptions{Mode: mode, Sizes: []int64{4}}, Observe: piecewise.ObserveOptions{Observer: &r}, Ops: []device.Op{op}})
		run := func() error {
			in, err := b.Func("forward").Inputs(3)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := in.Float32s("x"); err != nil {
				t.Fatal(err)
			}
			_, err = b.Func("forward").Run(context.Background(), in, nil)
			return err
		}
		if err := run(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(r.names, want) || r.depth != 0 {
			t.Errorf("%s: ranges %q at depth %d, want %q", mode, r.names, r.depth, want)
		}
		failed := errors.New("no")
		op.fail = failed
		if err := run(); !errors.Is(err, failed) || r.depth != 0 {
			t.Errorf("%s: %v, and ranges are left at depth %d", mode, err, r.depth)
		}
	}
}
