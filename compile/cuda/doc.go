// Package cuda generates kernels for NVIDIA GPUs: it writes kernels of package loop as CUDA C without
// includes, and compiles them with the [Compiler] that [New] is given.
//
// The C is meant to be read. A source has the snippets of package src that its kernels use, then the
// kernels: one, or two of the same GEMM. Known dimension sizes are literals, except in kernels that
// GEMMs of other sizes share; other sizes are parameters. Elementwise float arithmetic uses the _rn
// intrinsics, so that no compiler flag contracts two operations into one rounding. Outside of attention,
// values are rounded to bf16 and f16 exactly where the graph rounds them.
//
// # Parameters of a kernel
//
// In order: a pointer for every argument of the step; a 64-bit integer for every dim of launch
// attribute "dims"; if the launch has attribute "faults", a pointer to one 32-bit flag for each node
// in it (an index out of range sets the flag of its node, C12); and if it has attribute "peers", the
// parameters of package peer.
//
// # Where things are
//
// This package is the [Backend]. It decides which variants a kernel or a chain has and their order
// (lowerfused.go, lowergemmchain.go, lowerlibrary.go, variants.go), and which sources are compiled
// together (translationunit.go). The rest is in internal packages:
//
//   - internal/nest answers questions about kernels; internal/cgen writes CUDA C: expressions, loads and
//     stores, the register cache of rows.
//   - internal/loopgen has loop nests: elementwise ones, with a thread for up to 8 columns of a row;
//     rowwise ones, in which a thread, some lanes, a warp, some or all threads of a block, or a cluster
//     computes a row, and the order of reductions does not depend on the number of rows; serial ones;
//     and top-k.
//   - internal/gemm has GEMMs, a file for each kind of kernel: GEMV, SIMT, tiled, pipelines for few
//     rows, wgmma as an arch-specific variant, and grouped GEMMs. Its heuristics choose the kind by
//     the number of rows. It computes f32 in f32, without TF32.
//   - internal/fusion plans which kernels of a chain run in one launch; internal/library plans the
//     GEMMs that a library routine (cuBLASLt) computes.
//   - internal/attention has attention for training and its gradient.
//
// Kernels for compute capability 9.0 and later use programmatic dependent launch (attribute "pdl").
// A kernel may prefetch weights, then waits for the kernel before it. It triggers the dependent launch
// before or after the wait. It waits before it reads anything that another kernel writes, and
// before it writes. Waits are transitive, so several kernels may have started.
package cuda
