package compile_test

import (
	"context"
	"fmt"
	"testing"

	"pwc/compile"
	hostbackend "pwc/compile/host"
	"pwc/ir"
	"pwc/ir/dim"
	"pwc/ir/dtype"
)

// decoder has layers without attention, one after the other, with about n nodes together.
func decoder(n int) *ir.Module {
	b := ir.NewBuilder("decoder")
	rows := b.Symbol("N", 1, 64, ir.Batch)
	t := func(extents ...int64) ir.Type {
		s := make([]dim.Dim, len(extents))
		for i, e := range extents {
			s[i] = dim.Const(e)
		}
		return ir.TypeOf(dtype.BF16, s...)
	}
	b.Weight("norm", t(64), nil)
	b.Weight("up", t(128, 64), nil)
	b.Weight("down", t(64, 64), nil)
	fb := b.Func("piece")
	x := fb.Param("x", ir.TypeOf(dtype.BF16, rows, dim.Const(64)))
	for len(fb.Func().Nodes) < n {
		h := fb.Op1("rms_norm", []ir.Value{x, fb.Weight("norm")}, ir.FloatAttr("eps", 1e-5))
		p := fb.Op("split", []ir.Value{fb.Op1("linear", []ir.Value{h, fb.Weight("up")})}, ir.IntAttr("axis", 1), ir.IntsAttr("sizes", 64, 64))
		g := fb.Op1("mul", []ir.Value{fb.Op1("silu", p[:1]), p[1]})
		x = fb.Op1("add", []ir.Value{x, fb.Op1("linear", []ir.Value{g, fb.Weight("down")})})
	}
	fb.Return(x)
	m, err := b.Build()
	if err != nil {
		panic(err)
	}
	return m
}

// pointwise has n pointwise nodes, each of which reads the node before it.
func pointwise(n int) *ir.Module {
	b := ir.NewBuilder("chain")
	rows := b.Symbol("N", 1, 64, ir.Batch)
	fb := b.Func("piece")
	x := fb.Param("x", ir.TypeOf(dtype.F32, rows, dim.Const(64)))
	for range n / 2 {
		x = fb.Op1("mul", []ir.Value{fb.Op1("add", []ir.Value{x, fb.Float(1)}), x})
	}
	fb.Return(x)
	m, err := b.Build()
	if err != nil {
		panic(err)
	}
	return m
}

// BenchmarkCompile reports the time for a node, which should not grow with the
// number of nodes.
func BenchmarkCompile(b *testing.B) {
	for _, c := range []struct {
		name string
		make func(int) *ir.Module
	}{{"decoder", decoder}, {"pointwise", pointwise}} {
		for _, n := range []int{100, 1000, 10000} {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				m := c.make(n)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := compile.Compile(context.Background(), m, compile.Shape{}, hostbackend.New(), compile.Options{}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(m.Funcs[0].Nodes)), "ns/node")
			})
		}
	}
}
