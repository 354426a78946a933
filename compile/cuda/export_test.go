package cuda

import (
	"fmt"
	"math"

	"pwc/compile"
	"pwc/compile/loop"
)

// Shape is one way to compute a product, for tests that compare several.
type Shape struct{ p productShape }

// Few is a shape for up to rows rows on CUDA cores.
func Few(rows int, depth int64, r, u, split, warps int) Shape {
	p := fewShape(rows, depth, r, u, split, warps)
	p.name = fmt.Sprintf("few%d_r%d_u%d_s%d_w%d", rows, r, u, split, warps)
	return Shape{p}
}

// Stream is a shape for up to rows rows on tensor cores, whose weights stream through
// shared memory.
func Stream(rows, cols, mt, warps, stages int, depth int64) Shape {
	p := stream(rows, cols, mt, warps, stages, depth)
	p.name = fmt.Sprintf("stream%d_n%d_m%d_w%d_s%d", rows, cols, mt, warps, p.stages)
	return Shape{p}
}

// Strip is a shape for up to rows rows on tensor cores, a block of which reads x once.
func Strip(rows, cols, wm, wn, wk, bk, stages, cluster, blocks int) Shape {
	p := strip(rows, cols, wm, wn, wk, bk, stages, cluster, blocks)
	p.name = fmt.Sprintf("strip%d_n%d_w%dx%dx%d_k%d_s%d_c%d_b%d", rows, cols, wm, wn, wk, bk, stages, cluster, blocks)
	return Shape{p}
}

// Warpgroups is a shape for 32, 64 or 96 rows, on the tensor cores of sm_90a.
func Warpgroups(rows, cols, groups, turns, fill, bk, stages, cluster, blocks int) Shape {
	p := warpgroups(rows, cols, groups, turns, fill, bk, stages, cluster, blocks)
	p.name = fmt.Sprintf("warpgroups%d_n%d_g%d_t%d_f%d_k%d_s%d_c%d_b%d", rows, cols, groups, turns, fill, bk, stages, cluster, blocks)
	return Shape{p}
}

// Bytes is the shared memory of a stream's block.
func (s Shape) Bytes() int { return s.p.sumBytes() + s.p.stages*s.p.stageBytes() }

// Tile is a shape for any number of rows.
func Tile(bm, bn, bk, stages, cluster, blocks int) Shape {
	p := tile(bm, bn, bk, stages, cluster, blocks, math.MaxInt64)
	p.name = fmt.Sprintf("tile%dx%dx%d_s%d_c%d_b%d", bm, bn, bk, stages, cluster, blocks)
	return Shape{p}
}

// String names the shape.
func (s Shape) String() string { return s.p.name }

// Columns is what a block makes.
func (s Shape) Columns() int64 { return int64(s.p.cols) }

// Only is a backend that computes every product in one shape.
type Only struct {
	*Backend
	Shape Shape
}

// Chains accepts what can be one launch.
func (o Only) Chains(c *compile.Chain) bool { return fuse(c) != nil }

// LowerChain compiles a chain as one launch, or two if the shape cannot have what
// makes its rows.
func (o Only) LowerChain(c *compile.Chain) (compile.Code, error) {
	f := fuse(c)
	var steps []compile.Step
	if f.lead != nil && !o.Shape.p.leads() {
		f = withoutLead(c)
		lead, err := o.lower(c.Kernels[0])
		if err != nil {
			return lead, err
		}
		steps = onChain(c, 0, 1, lead).Variants[0].Steps
	}
	s, err := fusedKernel(f, o.gpu, o.Shape.p)
	if err != nil {
		return compile.Code{}, err
	}
	code, err := o.compile(unit{s})
	steps = append(steps, compile.Step{Kernel: code, Launch: s.Launch, Args: f.from})
	return compile.Code{Variants: []compile.Variant{{Steps: steps}}}, err
}

// Lower compiles a kernel.
func (o Only) Lower(k *loop.Kernel) (compile.Code, error) {
	if k.MatMul == nil {
		return o.Backend.Lower(k)
	}
	s, err := productKernel(k, o.gpu, o.Shape.p)
	if err != nil {
		return compile.Code{}, err
	}
	code, err := o.compile(unit{s})
	return compile.One(code, s.Launch), err
}

// Group is one way to compute a product whose rows choose, for tests that compare
// several.
type Group struct{ p groupShape }

// NewGroup is a shape for any number of rows.
func NewGroup(rows, cols, wm, wn, bk, stages, blocks int) Group {
	return Group{groupShape{math.MaxInt64, rows, cols, wm, wn, bk, stages, blocks}}
}

// OnlyGroup is a backend that computes every such product in one shape.
type OnlyGroup struct {
	*Backend
	Group Group
}

// Lower compiles a kernel.
func (o OnlyGroup) Lower(k *loop.Kernel) (compile.Code, error) {
	s, err := groupKernel(k, o.gpu, o.Group.p)
	if err != nil {
		return compile.Code{}, err
	}
	code, err := o.compile(unit{s})
	return compile.One(code, s.Launch), err
}
