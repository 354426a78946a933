package cgen

import (
	"strconv"

	"pwc/internal/cuda/gpuarch"
	"pwc/ir/dim"
	"pwc/program"
)

// GPU is the architecture that kernels are compiled for.
type GPU struct {
	Arch         int    // 90 for compute capability 9.0
	Suffix       string // "a": arch-specific; "f": family-specific (its major version); "": later architectures run it, too
	WithSpecific bool   // some kernels get an arch-specific variant, too
}

// String returns the architecture as compilers name it: "sm_90a".
func (g GPU) String() string { return "sm_" + strconv.Itoa(g.Arch) + g.Suffix }

// Specific is the GPU of arch-specific variants.
func (g GPU) Specific() GPU { return GPU{Arch: g.Arch, Suffix: "a"} }

// Guard returns the guard of variants that run only on devices of the architecture.
func (g GPU) Guard() program.Guard {
	name := program.PropertyPrefix
	version := dim.Sym(name + "major").Mul(dim.Const(10)).Add(dim.Sym(name + "minor"))
	return program.Guard{Expr: version, Lo: int64(g.Arch), Hi: int64(g.Arch)}
}

// SharedBytes returns the largest shared memory of a block, in bytes.
func (g GPU) SharedBytes() int { return gpuarch.SharedBytes(g.Arch) }

// PDL reports whether kernels use programmatic dependent launch.
func (g GPU) PDL() bool { return g.Arch >= 90 }
