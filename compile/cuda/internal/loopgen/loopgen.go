// Package loopgen generates the kernels of loop nests: elementwise nests, rowwise nests, serial nests
// (scatter), horizontally fused nests, and top-k.
package loopgen

import (
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
)

// writer writes a loop nest.
type writer struct{ *cgen.Emitter }

// newWriter returns a writer of a nest, with an entry of its own.
func newWriter(k *loop.Kernel, on cgen.GPU) *writer { return &writer{cgen.NewEmitter(k, on)} }

// nest returns a writer of another nest that writes to the same entry.
func (e *writer) nest(k *loop.Kernel) *writer { return &writer{e.Nest(k)} }

// Source returns the source of a loop nest.
func Source(k *loop.Kernel, on cgen.GPU) (cgen.Source, error) {
	e := newWriter(k, on)
	switch {
	case k.Serial:
		e.serial()
	case nest.Rowwise(k):
		e.rowwise()
	default:
		e.elementwise()
	}
	return e.Finish(nest.Describe(k)), e.Err
}
