package cgen

import (
	"strconv"

	"pwc/internal/cuda/gpuarch"
	"pwc/ir/dim"
	"pwc/program"
)

// GPU is what kernels are made for.
type GPU struct {
	Arch         int    // 90 for compute capability 9.0
	Suffix       string // "a": arch-specific; "f": for those of its major version; "": for later ones, too
	WithSpecific bool   // some kernels have an arch-specific variant, too
}

// String returns the architecture as compilers name it: "sm_90a".
func (g GPU) String() string { return "sm_" + strconv.Itoa(g.Arch) + g.Suffix }

// Specific is the GPU of arch-specific variants.
func (g GPU) Specific() GPU { return GPU{Arch: g.Arch, Suffix: "a"} }

// Guard is the guard of variants that only devices of the architecture run.
func (g GPU) Guard() program.Guard {
	name := program.PropertyPrefix
	version := dim.Sym(name + "major").Mul(dim.Const(10)).Add(dim.Sym(name + "minor"))
	return program.Guard{Expr: version, Lo: int64(g.Arch), Hi: int64(g.Arch)}
}

// SharedBytes is the most shared memory of a block.
func (g GPU) SharedBytes() int { return gpuarch.SharedBytes(g.Arch) }

// PDL reports whether kernels use programmatic dependent launch.
func (g GPU) PDL() bool { return g.Arch >= 90 }
