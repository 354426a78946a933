package nvrtc_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"pwc/runtime/cuda/nvrtc"
)

// recorder is a compiler that records the architectures of its compilations.
type recorder struct {
	knows string // the architecture that Supports reports
	fails string // the architecture for which Compile fails

	mu    sync.Mutex
	asked []string
}

var errRefused = errors.New("refused")

func (r *recorder) Supports(arch string) bool { return arch == r.knows }

func (r *recorder) Compile(_ context.Context, source, name, arch string) (cubin, ptx []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, arch)
	if source != "source" || name != "name" || arch == r.fails {
		return nil, nil, errRefused
	}
	if strings.HasPrefix(arch, "compute_") {
		return nil, []byte("ptx of " + arch), nil
	}
	return []byte("cubin of " + arch), []byte("ptx of " + arch), nil
}

// TestCompileSpecific: if the source has arch-specific code for the requested architecture and the
// compiler supports it, the cubin is arch-specific, and the PTX is compiled for the requested
// architecture. Otherwise one compilation makes both. An error of either compilation is returned.
func TestCompileSpecific(t *testing.T) {
	for _, c := range []struct {
		arch, own, knows, fails string
		asked                   []string
		cubin, ptx              string
	}{
		{"sm_90", "sm_90a", "sm_90a", "", []string{"compute_90", "sm_90a"}, "cubin of sm_90a", "ptx of compute_90"},
		{"sm_90", "sm_90a", "", "", []string{"sm_90"}, "cubin of sm_90", "ptx of sm_90"}, // an older compiler
		{"sm_90", "", "sm_90a", "", []string{"sm_90"}, "cubin of sm_90", "ptx of sm_90"},
		{"sm_100", "sm_90a", "sm_90a", "", []string{"sm_100"}, "cubin of sm_100", "ptx of sm_100"},
		{"sm_90a", "sm_90a", "sm_90a", "", []string{"sm_90a"}, "cubin of sm_90a", "ptx of sm_90a"},
		{"sm_90", "sm_90a", "sm_90a", "sm_90a", nil, "", ""},
		{"sm_90", "sm_90a", "sm_90a", "compute_90", nil, "", ""},
	} {
		r := &recorder{knows: c.knows, fails: c.fails}
		cubin, ptx, err := nvrtc.CompileSpecific(t.Context(), r, "source", "name", c.arch, c.own)
		if string(cubin) != c.cubin || string(ptx) != c.ptx || (c.fails != "") != errors.Is(err, errRefused) {
			t.Errorf("%+v: %q, %q, %v", c, cubin, ptx, err)
		}
		if slices.Sort(r.asked); c.asked != nil && !slices.Equal(r.asked, c.asked) {
			t.Errorf("%+v: asked for %q", c, r.asked)
		}
	}
}
