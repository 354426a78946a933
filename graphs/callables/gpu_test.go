package callables_test

import (
	"testing"

	"pwc/compile/cuda"
	"pwc/graphs/callables"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/internal/testkit"
	"pwc/pieces"
)

// TestOnGPU runs tests of the host on the machine's GPU, or an emulated one.
func TestOnGPU(t *testing.T) {
	dev := cudatest.Open(t, fake.Options{})
	backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
	testkit.Check(t, err)
	g := rig{dev: dev.Device, compiler: pieces.Pipeline{Backend: backend}, store: pieces.NewMemoryStore(), stays: true}
	t.Run("training", func(t *testing.T) { training(t, g, callables.Options{}) })
	t.Run("any order", func(t *testing.T) { training(t, g, callables.Options{AnyOrder: true}) })
	t.Run("branch", func(t *testing.T) { branched(t, func() rig { return g }) })
	t.Run("concurrent", func(t *testing.T) { concurrent(t, g) })
	t.Run("random order", func(t *testing.T) {
		seeds := uint64(10)
		if dev.Emulated {
			seeds = 2
		}
		for seed := range seeds {
			randomOrder(t, g, seed, 400)
		}
	})
}
