package cli

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// missingCompiler is a compiler that fails with err.
type missingCompiler struct{ err error }

func (c missingCompiler) compileKernel(context.Context, Kernel, string) (cubin, ptx []byte, err error) {
	return nil, nil, c.err
}

func (c missingCompiler) Err() error { return c.err }

// If the compiler itself is missing, every kernel fails for the same reason: the reason is printed once, and the
// errors of the kernels are not.
func TestExplain(t *testing.T) {
	missing := errors.New("no compiler")
	many := errors.Join(fmt.Errorf("piece 0: %w", missing), fmt.Errorf("piece 2: %w", missing))
	gpu := &target{name: "cuda:sm_90", cuda: missingCompiler{missing}}
	if err := gpu.explain(many); !errors.Is(err, missing) || err.Error() != "compiling for cuda:sm_90: no compiler" {
		t.Errorf("%v", err)
	}
	if err := gpu.explain(nil); err != nil {
		t.Errorf("nothing is wrong: %v", err)
	}
	for _, other := range []*target{{name: "host"}, {name: "cuda:sm_90", cuda: missingCompiler{}}} {
		if err := other.explain(many); err != many {
			t.Errorf("%s: %v", other.name, err)
		}
	}
}
