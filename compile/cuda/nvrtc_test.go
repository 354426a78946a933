package cuda_test

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"testing"

	"pwc/internal/cuda/cudatest"
)

// library is NVRTC as a compiler of this backend. It compiles equal sources once, for all backends
// that use it.
type library struct {
	cudatest.Compiler
	mu   sync.Mutex
	made map[string]*made
}

// atomics matches atomic operations, which no kernel may have: they would make the order of a sum,
// and so its bits, depend on scheduling.
var atomics = regexp.MustCompile(`atomic\w+\(|\b(red|atom)\.\w`)

type made struct {
	once       sync.Once
	cubin, ptx []byte
	err        error
}

func (l *library) Compile(ctx context.Context, source, name, arch string) (cubin, ptx []byte, err error) {
	l.mu.Lock()
	m := l.made[arch+source]
	if m == nil {
		m = &made{}
		l.made[arch+source] = m
	}
	l.mu.Unlock()
	m.once.Do(func() {
		if op := atomics.FindString(source); op != "" {
			m.err = fmt.Errorf("a kernel has an atomic operation, %s, so the order of a sum may depend on scheduling\n%s", op, source)
			return
		}
		m.cubin, m.ptx, m.err = l.Compiler.Compile(ctx, source, name, arch)
		if m.err != nil {
			m.err = fmt.Errorf("%w\n%s", m.err, source)
		}
	})
	return m.cubin, m.ptx, m.err
}

// open opens NVRTC. If there is none, it skips or fails the test (see cudatest.NVRTC).
func open(t testing.TB) *library {
	t.Helper()
	return newLibrary(cudatest.NVRTC(t).Compiler("--std=c++17"))
}

func newLibrary(c cudatest.Compiler) *library {
	return &library{Compiler: c, made: make(map[string]*made)}
}
