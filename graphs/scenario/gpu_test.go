package scenario_test

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"pwc/compile/cuda"
	"pwc/graphs"
	"pwc/graphs/scenario"
	"pwc/graphs/whole"
	"pwc/internal/cuda/cudatest"
	"pwc/internal/cuda/fake"
	"pwc/pieces"
	"pwc/runtime/device"
)

// TestScenariosOnGPU runs every file of testdata on the machine's GPU, or an emulated one, with the same
// expectations as on the host. Scenarios share compiled programs.
func TestScenariosOnGPU(t *testing.T) {
	store := pieces.NewMemoryStore()
	for _, file := range files(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			dev := cudatest.Open(t, fake.Options{})
			backend, err := cuda.New(dev.Info().Target, dev.Compiler(t))
			if err != nil {
				t.Fatal(err)
			}
			hold(t, file, func(log *bytes.Buffer) scenario.Config {
				return scenario.Config{
					Open: func(string) (device.Device, error) { return dev.Device, nil },
					Compile: func(ctx context.Context, s *graphs.Session, f *scenario.File, name string) (scenario.Compiled, error) {
						return whole.Compile(ctx, s, f.Module, name, whole.Options{Compiler: pieces.Pipeline{Backend: backend}, Store: store})
					},
					Log: log,
				}
			})
		})
	}
}
