package cuda

import (
	"fmt"
	"math"

	"pwc/compile"
	"pwc/compile/loop"
	"pwc/program"
)

// Shape is one way to compute a product, for tests that compare several.
type Shape struct{ p productShape }

// Few is a shape for up to rows rows on CUDA cores.
func Few(rows, r, u, split, warps int) Shape {
	cols := warps / split * r
	return Shape{productShape{name: fmt.Sprintf("few%d_r%d_u%d_s%d_w%d", rows, r, u, split, warps), most: math.MaxInt64, rows: rows, cols: cols, split: split,
		threads: warps * 32, pitch: cols, write: (*emitter).few, m: rows, r: r, u: u, warps: warps}}
}

// Skinny is a shape for up to rows rows on tensor cores.
func Skinny(rows, mt, u, split, warps int) Shape {
	cols := 16 * mt * (warps / split)
	return Shape{productShape{name: fmt.Sprintf("skinny%d_m%d_u%d_s%d_w%d", rows, mt, u, split, warps), most: math.MaxInt64, rows: rows, cols: cols, split: split,
		threads: warps * 32, pitch: cols + 4, write: (*emitter).skinny, mt: mt, nt: rows / 8, u: u, warps: warps}}
}

// Tile is a shape for any number of rows.
func Tile(bm, bn int) Shape { return Shape{tileShape(bm, bn, math.MaxInt64)} }

// String names the shape.
func (s Shape) String() string { return s.p.name }

// Only is a backend that computes every product in one shape.
type Only struct {
	*Backend
	Shape Shape
}

// Lower compiles a kernel.
func (o Only) Lower(k *loop.Kernel) (compile.Code, error) {
	if k.MatMul == nil {
		return o.Backend.Lower(k)
	}
	s, err := productKernel(k, o.arch, o.Shape.p)
	if err != nil {
		return compile.Code{}, err
	}
	code, err := o.compile(s)
	return compile.Code{Kernel: program.Kernel{Name: s.Name, Format: o.format(), Code: code}, Launch: s.Launch}, err
}
