package cuda

import (
	"context"
	"crypto/sha256"
	"fmt"
	"regexp"
	"strconv"
	"sync"

	"pwc/compile"
	"pwc/compile/cuda/internal/attention"
	"pwc/compile/cuda/internal/cgen"
	"pwc/compile/cuda/internal/gemm"
	"pwc/compile/cuda/internal/loopgen"
	"pwc/compile/loop"
)

// Compiler compiles CUDA C. Its methods may be called concurrently.
type Compiler interface {
	// Compile returns the machine code (cubin) of a source for an architecture such as "sm_90", and
	// the PTX that it was assembled from. The source is C++17 and needs no headers and no other flags;
	// name is for messages.
	Compile(ctx context.Context, source, name, arch string) (cubin, ptx []byte, err error)

	// Supports reports whether the compiler can compile for an architecture such as "sm_90a".
	Supports(arch string) bool

	// Version names the compiler, for provenance.
	Version() string
}

// Backend compiles kernels for one target. It may be used concurrently.
type Backend struct {
	target   string
	gpu      cgen.GPU
	compiler Compiler

	mu   sync.Mutex
	made map[[sha256.Size]byte]*made // by architecture and source
}

var _ compile.HorizontalFuser = (*Backend)(nil)

// MinArch is the oldest supported architecture, 80 for sm_80: the first with bf16 tensor cores and
// asynchronous copies (cp.async).
const MinArch = 80

var targetPattern = regexp.MustCompile(`^cuda:sm_([1-9][0-9]{1,2})([af]?)$`)

// New returns the backend for a target such as "cuda:sm_90". Its kernels have machine code for this
// architecture and the PTX of the same compilation. If the target has no suffix "a" or "f", the driver
// of a later GPU compiles that PTX when it loads them. Arch-specific variants for target cuda:sm_90 have
// machine code for sm_90a, and no PTX. New fails if the target is not of this form or is older than
// [MinArch].
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
	return &Backend{target: target, gpu: cgen.GPU{Arch: arch, Suffix: m[2]}, compiler: c, made: make(map[[sha256.Size]byte]*made)}, nil
}

// on returns the GPU that kernels are compiled for. For compute capability 9.0 it asks the compiler at
// each call whether it supports sm_90a, so that New does not have to load a compiler.
func (b *Backend) on() cgen.GPU {
	on := b.gpu
	on.WithSpecific = on.Arch == gemm.SpecificArch && b.compiler.Supports(on.Specific().String())
	return on
}

// Target returns the target that New was given.
func (b *Backend) Target() string { return b.target }

// Version names the compiler behind the backend, for provenance.
func (b *Backend) Version() string { return b.compiler.Version() }

// FusesHorizontally reports whether the kernels may run as one launch (horizontal fusion): they are
// a few pointwise nests. Each launch costs about a microsecond on the device, and such nests are
// small compared with the GEMMs around them.
func (b *Backend) FusesHorizontally(ks []*loop.Kernel) bool { return loopgen.FusesHorizontally(ks) }

// sources returns the sources of a kernel: arch-specific ones first, which are the fastest for the
// sizes in their guards; then those for some sizes, in the order in which their guards are tried; then
// the one for all other sizes. For several kernels, which [Backend.FusesHorizontally] accepts, it
// returns the source of the fused kernel. The text depends on the kernels and the target only, and
// not on the machine, except that arch-specific sources need a compiler that supports them.
func (b *Backend) sources(k *loop.Kernel, others ...*loop.Kernel) ([]cgen.Source, error) {
	switch {
	case len(others) > 0:
		s, err := loopgen.Horizontal(append([]*loop.Kernel{k}, others...), b.gpu)
		if err != nil {
			return nil, err
		}
		return []cgen.Source{s}, nil
	case k.TopK != nil:
		return []cgen.Source{loopgen.TopK(k, b.gpu)}, nil
	case k.Attention != nil:
		s, err := attention.Source(k, b.gpu)
		if err != nil {
			return nil, err
		}
		return []cgen.Source{s}, nil
	case k.MatMul != nil:
		return gemm.Sources(k, b.on())
	}
	s, err := loopgen.Source(k, b.gpu)
	if err != nil {
		return nil, err
	}
	return []cgen.Source{s}, nil
}

// Lower compiles a kernel. Its translation units are compiled in parallel; a Backend compiles equal ones
// once.
func (b *Backend) Lower(k *loop.Kernel) (compile.Code, error) {
	if k.AllReduce != nil {
		return b.lowerAllReduce(k)
	}
	return b.lower(k)
}

// LowerHorizontal compiles kernels that FusesHorizontally accepts into one launch. The launch has the
// arguments of all kernels, in order.
func (b *Backend) LowerHorizontal(ks []*loop.Kernel) (compile.Code, error) {
	return b.lower(ks[0], ks[1:]...)
}

// lower compiles a kernel, or several into one launch.
func (b *Backend) lower(k *loop.Kernel, others ...*loop.Kernel) (compile.Code, error) {
	sources, err := b.sources(k, others...)
	if err != nil {
		return compile.Code{}, err
	}
	out, err := b.lowerSources(sources)
	if err == nil && k.MatMul != nil && len(others) == 0 {
		err = b.lowerLibrary(k, &out)
	}
	return out, err
}
