package cuda

import (
	"golang.org/x/sync/errgroup"

	"pwc/compile"
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/loopgen"
	"pwc/compile/cuda/internal/nest"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/program"
)

var _ compile.AllReduceFuser = (*Backend)(nil)

// FusesAllReduce reports whether a kernel may compute its all_reduce itself, for some number of rows (see
// loopgen.AllReduceRows).
func (b *Backend) FusesAllReduce(k *loop.Kernel) bool { return loopgen.AllReduceRows(k, b.gpu) > 0 }

// lowerAllReduce compiles a kernel that FusesAllReduce accepts. The fused kernel is for few rows, on
// devices that can access the memory of all ranks. Otherwise the all_reduce is a step of its own before
// the kernel. Both compute rows with the same instructions, so results have the same bits.
func (b *Backend) lowerAllReduce(k *loop.Kernel) (compile.Code, error) {
	r := k.AllReduce
	fused, err := loopgen.Source(k, b.gpu)
	if err != nil {
		return compile.Code{}, err
	}
	fused.Guard = program.Guard{Expr: nest.Product(k.Rows), Hi: loopgen.AllReduceRows(k, b.gpu)}
	fused.Device = program.Guard{Expr: dim.Sym(program.PeersProperty(r.Group)), Lo: r.Ranks, Hi: r.Ranks}
	var out, rest compile.Code
	var g errgroup.Group
	g.Go(func() (err error) {
		out, err = b.lowerSources([]cgen.Source{fused})
		return err
	})
	g.Go(func() (err error) {
		rest, err = b.lower(k.WithoutAllReduce())
		return err
	})
	if err := g.Wait(); err != nil {
		return compile.Code{}, err
	}
	for _, v := range rest.Variants {
		moveArgs(v.Steps, r.Source, 0, int32(len(k.Args)))
		v.Steps = append([]compile.Step{compile.AllReduceStep(*r)}, v.Steps...)
		out.Variants = append(out.Variants, v)
	}
	return out, nil
}
