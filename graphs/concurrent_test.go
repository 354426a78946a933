package graphs_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"pwc/graphs"
	"pwc/internal/testkit"
	"pwc/ir/dtype"
	"pwc/runtime/device"
)

// TestConcurrentCaptures captures on several goroutines, each with streams of its own that fork and join.
// Each capture waits for the streams of the others that do not capture.
func TestConcurrentCaptures(t *testing.T) {
	e := open(t, 8)
	defer e.close()
	var all sync.WaitGroup
	for i := range 3 {
		st := testkit.Must[*graphs.Stream](t)(e.s.NewStream(fmt.Sprintf("stream %d", i)))
		side := testkit.Must[*graphs.Stream](t)(e.s.NewStream(fmt.Sprintf("side %d", i)))
		all.Go(func() {
			for range 300 {
				g, err := graphs.Capture(ctx, e.s, graphs.Options{Name: "g", Stream: st, Errors: device.CaptureThreadLocal}, func(r *graphs.Recorder) error {
					f, err := r.Fork(side)
					if err != nil {
						return err
					}
					x, err := f.Alloc("x", dtype.F32, 8)
					if err != nil {
						return err
					}
					return errors.Join(f.Fill(x, 1), r.Join(f), x.Release())
				})
				if err != nil {
					t.Errorf("stream %d: %v", i, err)
					return
				}
				if err := g.Reset(); err != nil {
					t.Errorf("stream %d: %v", i, err)
					return
				}
			}
		})
	}
	all.Wait()
}
