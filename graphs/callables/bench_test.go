package callables_test

import (
	"math/rand/v2"
	"testing"

	"pwc/graphs/callables"
)

// BenchmarkCall measures a forward and a backward of small callables, where the host's part of a
// call dominates.
func BenchmarkCall(b *testing.B) {
	e := open(b, hostRig(), network)
	defer e.close()
	t := newTrainer(e, callables.Options{})
	x, y := e.batch(rand.New(rand.NewPCG(8, 8)))
	b.ReportAllocs()
	for b.Loop() {
		t.backward(t.forward(x, y))
	}
}
