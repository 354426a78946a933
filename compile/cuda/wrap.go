package cuda

import (
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/loop"
)

// emitter writes the kernels of this package.
type emitter struct{ *cgen.Emitter }

func newEmitter(k *loop.Kernel, on cgen.GPU, suffix string) *emitter {
	return &emitter{cgen.NewEmitter(k, on, suffix)}
}

// emitter returns an emitter of another kernel that writes to the same entry.
func (e *emitter) emitter(k *loop.Kernel) *emitter { return &emitter{e.Nest(k)} }
