// Package host makes kernels for the host device: SIMD kernels of package vec from fused
// loops of package loop.
package host

import (
	"fmt"

	"pwc/compile"
	"pwc/compile/loop"
	"pwc/program"
	"pwc/program/vec"
)

// Target is the name of the host device as a target.
const Target = "host"

type backend struct{}

// New returns the backend of the host device.
func New() compile.Backend { return backend{} }

// Target returns "host".
func (backend) Target() string { return Target }

// ReadsUnalignedWeights implements [compile.WeightReader]: weights stay in a mapped checkpoint.
func (backend) ReadsUnalignedWeights() bool { return true }

// Lower makes a SIMD kernel of a fused loop.
func (backend) Lower(k *loop.Kernel) (compile.Code, error) {
	v, err := Kernel(k)
	if err != nil {
		return compile.Code{}, err
	}
	code, err := v.Encode()
	if err != nil {
		return compile.Code{}, err
	}
	return compile.One(program.Kernel{Name: k.Name, Format: program.KernelVec, Code: code}, program.Launch{}), nil
}

// Kernel returns the SIMD kernel of a fused loop. It fails if an op has no instruction for its
// dtype, or if the kernel needs more than [vec.MaxRegs] registers of one file.
func Kernel(k *loop.Kernel) (*vec.Kernel, error) {
	l := &lowerer{k: k, out: &vec.Kernel{Args: int32(len(k.Args))}, alias: make([]loop.Value, len(k.Values))}
	l.out.Loop = vec.Loop{Outer: k.Rows, Inner: k.Cols, Serial: k.Serial}
	switch {
	case k.TopK != nil:
		l.selection()
		return l.out, nil
	case k.Attention != nil:
		l.attention()
		return l.out, nil
	}
	if err := l.phases(); err != nil {
		return nil, err
	}
	l.gemm()
	l.allocate()
	for _, n := range []uint16{l.out.Loop.Regs.F, l.out.Loop.Regs.I, l.out.Loop.Regs.SF, l.out.Loop.Regs.SI} {
		if n > vec.MaxRegs {
			return nil, fmt.Errorf("the kernel needs %d registers of one file, want at most %d", n, vec.MaxRegs)
		}
	}
	return l.out, nil
}
