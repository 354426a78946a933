package cuda

import (
	"context"
	"crypto/sha256"
	"fmt"
	"regexp"
	"strconv"
	"sync"

	"pwc/compile"
	"pwc/compile/loop"
	"pwc/ir/dim"
	"pwc/program"
)

// Compiler compiles CUDA C. Both methods may be called concurrently.
type Compiler interface {
	// Compile returns the machine code (cubin) of a source for an architecture
	// such as "sm_90", and the PTX that it was made of, for later ones. The source is
	// C++17 and needs no headers and no other flags; name is for messages.
	Compile(ctx context.Context, source, name, arch string) (cubin, ptx []byte, err error)

	// Supports reports whether it compiles for an architecture such as "sm_90a".
	Supports(arch string) bool

	// Version names the compiler, for provenance.
	Version() string
}

// Backend makes kernels for one target. It may be used concurrently.
type Backend struct {
	target   string
	gpu      gpu
	compiler Compiler

	mu   sync.Mutex
	made map[[sha256.Size]byte]*made // by source
}

var _ compile.Together = (*Backend)(nil)

// gpu is what kernels are made for.
type gpu struct {
	arch int    // 90 for compute capability 9.0
	only string // "a": for this architecture alone; "f": for those of its major version; "": for later ones, too
	own  bool   // some kernels are made twice, for this architecture alone, too
}

// String returns the architecture as compilers name it: "sm_90a".
func (g gpu) String() string { return "sm_" + strconv.Itoa(g.arch) + g.only }

// alone is the architecture alone.
func (g gpu) alone() gpu { return gpu{arch: g.arch, only: "a"} }

// device is the guard of what only devices of the architecture run.
func (g gpu) device() program.Guard {
	name := program.PropertyPrefix
	version := dim.Sym(name + "major").Mul(dim.Const(10)).Add(dim.Sym(name + "minor"))
	return program.Guard{Expr: version, Lo: int64(g.arch), Hi: int64(g.arch)}
}

// MinArch is the least architecture that kernels are made for: the first with
// bf16 tensor cores and asynchronous copies.
const MinArch = 80

var targetPattern = regexp.MustCompile(`^cuda:sm_([1-9][0-9]{1,2})([af]?)$`)

// New returns the backend for a target such as "cuda:sm_90". Its kernels are
// machine code for this architecture, with the PTX of the same compilation beside
// it, which a later GPU's driver compiles when it loads them. It is an error if the
// target is not of that form or older than [MinArch].
func New(target string, c Compiler) (*Backend, error) {
	m := targetPattern.FindStringSubmatch(target)
	if m == nil {
		return nil, fmt.Errorf("compile/cuda: target %q is not of the form cuda:sm_90", target)
	}
	arch, err := strconv.Atoi(m[1])
	if err != nil {
		return nil, fmt.Errorf("compile/cuda: target %q: %w", target, err)
	}
	if arch < MinArch {
		return nil, fmt.Errorf("compile/cuda: target %s is older than sm_%d, the oldest that kernels are made for", target, MinArch)
	}
	return &Backend{target: target, gpu: gpu{arch: arch, only: m[2]}, compiler: c, made: make(map[[sha256.Size]byte]*made)}, nil
}

// on is what kernels are made for now that something is compiled.
func (b *Backend) on() gpu {
	on := b.gpu
	on.own = on.arch == warpgroupArch && b.compiler.Supports(on.alone().String())
	return on
}

// Target returns the target that New was given.
func (b *Backend) Target() string { return b.target }

// Version names the compiler behind the backend, for provenance.
func (b *Backend) Version() string { return b.compiler.Version() }

// Source is one kernel in CUDA C and how it is launched.
type Source struct {
	Name   string        // the entry
	Guard  program.Guard // for which sizes it is; zero: for all that no other is for
	Device program.Guard // for which devices it is; zero: for all
	Arch   string        // which it is compiled for: "sm_90"
	Launch program.Launch

	part  part
	joins bool // it is compiled together with a neighbour: see unit
}

// Sources returns the sources of a kernel: those for one architecture alone, which where
// they serve are faster than all else, libraries too; those for some sizes in the order in
// which their guards are tried; then the one for all others. With more kernels,
// which [Backend.Beside] accepts, it returns the source of the one that they
// become. The same kernels give the same text everywhere, but for those for one
// architecture alone, which are there if the compiler makes them.
func (b *Backend) Sources(k *loop.Kernel, beside ...*loop.Kernel) ([]Source, error) {
	switch {
	case len(beside) > 0:
		s, err := besideKernel(append([]*loop.Kernel{k}, beside...), b.gpu)
		if err != nil {
			return nil, err
		}
		return []Source{s}, nil
	case k.TopK != nil:
		return []Source{selectKernel(k, b.gpu)}, nil
	case k.MatMul != nil && k.MatMul.Select != nil:
		return expertKernels(k, b.gpu)
	case k.MatMul != nil:
		return productKernels(k, b.on())
	}
	s, err := loopKernel(k, b.gpu)
	if err != nil {
		return nil, err
	}
	return []Source{s}, nil
}

// Lower compiles a kernel. Its sources are compiled side by side; equal ones
// once in the backend's life.
func (b *Backend) Lower(k *loop.Kernel) (compile.Code, error) { return b.lower(k) }

// LowerBeside compiles kernels that Beside accepts into one: the first blocks are
// the first kernel's, and so on. Arguments follow one another.
func (b *Backend) LowerBeside(ks []*loop.Kernel) (compile.Code, error) {
	return b.lower(ks[0], ks[1:]...)
}

func (b *Backend) lower(k *loop.Kernel, beside ...*loop.Kernel) (compile.Code, error) {
	sources, err := b.Sources(k, beside...)
	if err != nil {
		return compile.Code{}, err
	}
	out, err := b.lowerSources(sources)
	if err == nil && k.MatMul != nil && len(beside) == 0 {
		err = b.lowerLibrary(k, &out)
	}
	return out, err
}
