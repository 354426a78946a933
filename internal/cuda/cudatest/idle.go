package cudatest

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"sync"

	"pwc/internal/cuda/fake"
)

// Idle is a Compiler of kernels that do nothing, for tests of the host's part. Sources are
// those of compile/cuda.
type Idle struct {
	mu      sync.Mutex
	kernels []fake.Kernel
}

// idleEntry finds the kernels of a source.
var idleEntry = regexp.MustCompile(`__global__ void __launch_bounds__\([^)]*\)\n(\w+)\(`)

// Compile returns an image of the fake driver as cubin, which names the source's kernels.
func (c *Idle) Compile(_ context.Context, source, name, _ string) (cubin, ptx []byte, err error) {
	entries := idleEntry.FindAllStringSubmatch(source, -1)
	if entries == nil {
		return nil, nil, fmt.Errorf("%s has no kernel", name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, e := range entries {
		names = append(names, e[1])
		c.kernels = append(c.kernels, fake.Kernel{Name: e[1], Run: func(*fake.Call) {}})
	}
	return fake.Image(names...), nil, nil
}

// Supports returns true, since Compile ignores the architecture.
func (c *Idle) Supports(string) bool { return true }

// Version names the compiler.
func (c *Idle) Version() string { return "names" }

// Kernels returns the kernels of all sources that were compiled, for fake.Options.
func (c *Idle) Kernels() []fake.Kernel {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.kernels)
}
