package cuda

import (
	"slices"
	"testing"
	"testing/synctest"

	"pwc/runtime/cuda/internal/thread"
)

// Captures go first: one that waits for calls under way is not kept waiting by calls
// that come after it, and what is freed meanwhile is freed when it has ended.
func TestCapturesGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		g.init()
		var order []string
		g.enter() // a load
		go func() {
			g.begin()
			order = append(order, "capture")
			g.end(thread.ID())
		}()
		synctest.Wait()
		if g.enterOr(func() { order = append(order, "free") }) {
			t.Error("a free is not put off while a capture waits")
		}
		go func() {
			g.enter()
			order = append(order, "load")
			g.leave()
		}()
		synctest.Wait()
		if len(order) > 0 {
			t.Errorf("%q while a load is under way and a capture waits", order)
		}
		g.leave()
		synctest.Wait()
		if want := []string{"capture", "free", "load"}; !slices.Equal(order, want) {
			t.Errorf("%q, want %q", order, want)
		}
	})
}
