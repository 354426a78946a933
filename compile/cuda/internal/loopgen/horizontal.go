package loopgen

import (
	"fmt"
	"strings"

	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
)

// maxHorizontal is the largest number of kernels that run as one launch.
const maxHorizontal = 3

// FusesHorizontally reports whether kernels may run as one launch: at most maxHorizontal pointwise
// nests with at most 64 arguments together.
func FusesHorizontally(ks []*loop.Kernel) bool {
	args := 0
	for _, k := range ks {
		if k.MatMul != nil || k.TopK != nil || k.Attention != nil || k.Serial || nest.Rowwise(k) {
			return false
		}
		args += len(k.Args)
	}
	return len(ks) <= maxHorizontal && args <= 64
}

// Horizontal returns the source of pointwise nests that run as one launch. The first blocks are the
// first nest's, and so on. The launch has the arguments of the first nest, then those of the second, and so on.
func Horizontal(ks []*loop.Kernel, on cgen.GPU) (cgen.Source, error) {
	all := &loop.Kernel{Ranges: ks[0].Ranges}
	parts := make([]*loop.Kernel, len(ks))
	var names, texts []string
	for i, k := range ks {
		parts[i] = shifted(k, int32(len(all.Args)))
		all.Args = append(all.Args, k.Args...)
		names, texts = append(names, k.Name), append(texts, nest.Describe(k))
	}
	all.Name = strings.Join(names, "_")
	e := newWriter(all, on)
	for _, k := range parts {
		e.Wide = e.Wide || !nest.IndicesFit(k)
	}
	e.Threads = elementThreads
	e.Wait()
	e.Line("int block = blockIdx.x;")
	var blocks dim.Dim
	for i, k := range parts {
		p := e.nest(k)
		f := p.spread()
		own := f.total.CeilDiv(elementThreads)
		last := i == len(parts)-1
		e.Line("// %s", nest.Describe(k))
		if !last {
			e.Open("if (block < %s)", e.Dim(own))
		}
		p.visitElements(f, "block")
		if !last {
			e.Line("return;")
			e.Close()
			e.Line("block -= %s;", e.Dim(own))
		}
		blocks = blocks.Add(own)
	}
	e.Grid[0] = blocks
	return e.Finish(fmt.Sprintf("side by side: %s", strings.Join(texts, "; "))), e.Err
}

// shifted returns the kernel with its arguments numbered from first on.
func shifted(k *loop.Kernel, first int32) *loop.Kernel {
	args := make([]loop.Arg, int(first)+len(k.Args))
	copy(args[first:], k.Args)
	return nest.WithArgs(k, args, func(a int32) int32 { return a + first })
}
