package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"pwc/runtime/cuda/nvrtc"
)

// library is NVRTC as a compiler of this backend. Equal sources are compiled
// once in the tests' life, whichever backend asks.
type library struct {
	*nvrtc.Library
	mu   sync.Mutex
	made map[string]*made
}

type made struct {
	once sync.Once
	code []byte
	err  error
}

func (l *library) Compile(_ context.Context, source, name, arch string, ptx bool) ([]byte, error) {
	l.mu.Lock()
	m := l.made[arch+source]
	if m == nil {
		m = &made{}
		l.made[arch+source] = m
	}
	l.mu.Unlock()
	m.once.Do(func() {
		code, err := l.Library.Compile(nvrtc.Source{Name: name, Text: source}, nvrtc.CompileOptions{Arch: arch, Flags: []string{"--std=c++17"}})
		m.code, m.err = code.Data, err
		if err != nil {
			m.err = fmt.Errorf("%w\n%s", err, source)
		}
	})
	return m.code, m.err
}

func (l *library) Version() string {
	major, minor := l.Library.Version()
	return fmt.Sprintf("NVRTC %d.%d", major, minor)
}

// open opens NVRTC. Without it the test is skipped, or fails where
// PWC_REQUIRE_NVRTC=1 says that it must be there.
func open(t testing.TB) *library {
	t.Helper()
	l, err := nvrtc.Open(nvrtc.Options{})
	var missing *nvrtc.NotFoundError
	if errors.As(err, &missing) && os.Getenv("PWC_REQUIRE_NVRTC") != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &library{Library: l, made: make(map[string]*made)}
}
