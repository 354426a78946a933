package compile_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pwc/compile"
	"pwc/compile/loop"
	"pwc/internal/testkit"
	"pwc/program"
)

// meeting is a backend whose Lower waits for a second call at the same time.
type meeting struct {
	mu      sync.Mutex
	waiting int
	met     chan struct{}
	refuse  string
}

func (*meeting) Target() string { return "meeting" }

func (b *meeting) Lower(k *loop.Kernel) (compile.Code, error) {
	b.mu.Lock()
	if b.waiting++; b.waiting == 2 {
		close(b.met)
	}
	b.mu.Unlock()
	select {
	case <-b.met:
	case <-time.After(10 * time.Second):
		return compile.Code{}, errors.New("alone")
	}
	if b.refuse != "" && strings.Contains(k.Name, b.refuse) {
		return compile.Code{}, errors.New("refused")
	}
	return compile.One(program.Kernel{Name: k.Name, Format: program.KernelCUDA, Code: []byte(k.Name)}, program.Launch{}), nil
}

// TestKernelsAreMadeSideBySide: kernels of a piece are lowered concurrently, and are in the
// program in the order of the piece. Of several errors, that of the first kernel is returned.
func TestKernelsAreMadeSideBySide(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("one processor")
	}
	m := testkit.Parse(t, `pwc 1
module "m" {
  sym N in [1, 8] batch
  func @f(%x: f32[N, 8]) -> (f32[N], f32[N], f32[N]) {
    %a = sum(%x, axes=[1]) : f32[N]
    %b = max(%x, axes=[1]) : f32[N]
    %c = prod(%x, axes=[1]) : f32[N]
    return %a, %b, %c
  }
}
`)
	p, err := compile.Compile(t.Context(), m, compile.Shape{}, &meeting{met: make(chan struct{})}, compile.Options{Disable: []string{"fuse"}})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range p.Steps {
		names = append(names, p.Kernels[s.Kernel].Name)
	}
	if got := strings.Join(names, " "); got != "sum max prod" {
		t.Errorf("kernels %s", got)
	}
	_, err = compile.Compile(t.Context(), m, compile.Shape{}, &meeting{met: make(chan struct{}), refuse: "m"}, compile.Options{Disable: []string{"fuse"}})
	if err == nil || !strings.Contains(err.Error(), "kernel sum: refused") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := compile.Compile(ctx, m, compile.Shape{}, &meeting{met: make(chan struct{})}, compile.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
