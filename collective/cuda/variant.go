package cuda

import (
	"context"
	"fmt"
	"strings"

	"pwc/collective"
	"pwc/collective/cuda/peer"
	"pwc/ir/dtype"
	"pwc/program"
	"pwc/runtime/cuda/nvrtc"
)

// Algorithm is how a routine is computed over peer memory.
type Algorithm uint8

const (
	OneShot       Algorithm = iota // each rank sends its source to every rank, and adds all sources
	TwoShot                        // each rank adds one part, and sends the sums to every rank
	Gather                         // all_gather
	ReduceScatter                  // reduce_scatter
	Broadcast                      // broadcast
)

// String returns the algorithm's name in kernels: "one_shot".
func (a Algorithm) String() string {
	return [...]string{"one_shot", "two_shot", "all_gather", "reduce_scatter", "broadcast"}[a]
}

// Protocol is the layout of data and flags in packets. The names are NCCL's.
type Protocol uint8

const (
	LL    Protocol = iota // 4 bytes of data and a flag: the least latency
	LL128                 // 120 bytes of data and a flag: nearly all of the bandwidth
)

// String returns "LL" or "LL128".
func (p Protocol) String() string { return [...]string{"LL", "LL128"}[p] }

// lineBytes returns the bytes of data that 8 threads send with one instruction.
func (p Protocol) lineBytes() int64 { return [...]int64{8 * 8, 15 * 8}[p] }

// Variant has all that the code of a kernel depends on.
type Variant struct {
	Algorithm Algorithm
	Protocol  Protocol
	DType     dtype.DType // of sums: F32, F16 or BF16; F32 for copies
	Ranks     int         // 2 to MaxRanks
}

// MaxRanks is the most ranks that kernels reach over peer memory: GPUs of one host.
const MaxRanks = peer.MaxRanks

// Variants returns all kernels for a number of ranks, for callers that compile ahead of time.
func Variants(ranks int) []Variant {
	var out []Variant
	for _, p := range []Protocol{LL, LL128} {
		for _, a := range []Algorithm{OneShot, TwoShot, ReduceScatter} {
			for _, dt := range []dtype.DType{dtype.F32, dtype.F16, dtype.BF16} {
				out = append(out, Variant{a, p, dt, ranks})
			}
		}
		for _, a := range []Algorithm{Gather, Broadcast} {
			out = append(out, Variant{a, p, dtype.F32, ranks})
		}
	}
	return out
}

// String names the variant: "one_shot_LL128_bf16_2".
func (v Variant) String() string {
	return fmt.Sprintf("%s_%s_%s_%d", v.Algorithm, v.Protocol, v.DType, v.Ranks)
}

// entry is the name of the kernel.
const entry = "peer"

// Entry returns the name of the kernel in its source.
func (v Variant) Entry() string { return entry }

// Source returns the CUDA C of the kernel. It is C++17 without headers; its entry is "peer".
func (v Variant) Source() string {
	return fmt.Sprintf("// %s\n%s", v, peer.Routine(entry, v.Ranks, strings.ToUpper(v.Algorithm.String()), v.Protocol.String(), strings.ToUpper(v.DType.String())))
}

// Compiler compiles CUDA C. A compile/cuda.Compiler implements it.
type Compiler = nvrtc.Maker

// Compile returns a program with only the kernel of a variant, for a target such as "cuda:sm_90". No
// GPU is needed.
func Compile(ctx context.Context, c Compiler, target string, v Variant) (*program.Program, error) {
	arch, ok := strings.CutPrefix(target, "cuda:")
	if !ok {
		return nil, fmt.Errorf("collective: kernels for target %q; want one such as cuda:sm_90", target)
	}
	cubin, ptx, err := nvrtc.CompileSpecific(ctx, c, v.Source(), v.String()+".cu", arch, "")
	var kernel program.Kernel
	if err == nil {
		kernel, err = program.CUDAKernel(entry, cubin, ptx)
	}
	if err != nil {
		return nil, fmt.Errorf("collective: %s for %s: %w", v, target, err)
	}
	return program.Alone(target, kernel), nil
}

// Code returns a program with only the kernel of a variant.
type Code func(ctx context.Context, v Variant) (*program.Program, error)

// Compiled returns a Code that compiles for a target when it is called.
func Compiled(c Compiler, target string) Code {
	return func(ctx context.Context, v Variant) (*program.Program, error) { return Compile(ctx, c, target, v) }
}

// recvBufferBytes is the size of the receive buffer of a rank.
func recvBufferBytes(ranks int) int64 {
	return peer.HeaderBytes + peer.Blocks*peer.Parities*peer.Protocols*int64(ranks)*peer.Packets*peer.PacketBytes
}

// Bounds that were measured, like those of package peer.
const (
	// programmaticBytes is the largest part for which programmatic dependent launch gains. For larger
	// parts, blocks that wait occupy SMs that the kernel before needs.
	programmaticBytes = 512 << 10

	// fewBlocks is how many blocks move data as fast as more do.
	fewBlocks = 72
)

// launch is how a call is launched.
type launch struct {
	variant      Variant
	bytes, total int64 // of a rank's part; of the parts of all ranks
	threads      int   // of a block
	depth        int   // packets of a thread in a round
	blocks       int
	programmatic bool
}

// plan returns the launch of a call, the same on all ranks: a function of the call and of the links.
func plan(c collective.Call, nvlinked bool) launch {
	l := launch{variant: Variant{DType: c.DType, Ranks: c.Size}, bytes: c.Bytes, total: c.Bytes}
	switch c.Kind {
	case collective.AllReduce:
		if n, r := c.Bytes, int64(c.Size); n > peer.OneShotBytes(c.Size) {
			l.variant.Algorithm = TwoShot
			const unit = 240 // bytes: a part is whole lines of LL128 (120 bytes), and begins at a multiple of 16 bytes
			l.bytes = (n + r*unit - 1) / (r * unit) * unit
		}
	case collective.AllGather:
		l.variant.Algorithm = Gather
	case collective.ReduceScatter:
		l.variant.Algorithm = ReduceScatter
	case collective.Broadcast:
		l.variant.Algorithm = Broadcast
	}
	if l.variant.Algorithm != TwoShot {
		l.total = l.bytes * int64(c.Size)
	}
	if !c.Kind.Sums() {
		l.variant.DType = dtype.F32
	}
	if l.bytes > peer.LatencyBytes && nvlinked {
		l.variant.Protocol = LL128
	}
	line := l.variant.Protocol.lineBytes()
	n := (8*((l.bytes+line-1)/line) + 31) / 32 * 32 // packets, in whole warps
	for _, s := range [...]struct{ threads, depth int }{{128, 1}, {256, 1}, {512, 1}, {512, 2}} {
		l.threads, l.depth = s.threads, s.depth
		share := int64(s.threads * s.depth)
		if l.blocks = int(min((n+share-1)/share, peer.Blocks)); l.blocks <= fewBlocks && int64(l.blocks)*share >= n {
			break
		}
	}
	l.programmatic = l.bytes <= programmaticBytes && !c.Async // an async call follows a kernel of another stream
	return l
}
