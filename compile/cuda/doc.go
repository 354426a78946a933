// Package cuda makes kernels for NVIDIA GPUs: CUDA C without includes out of the
// fused form of package loop, compiled by whatever [Compiler] it is given.
//
// The C is meant to be read. Each kernel is its own source: the snippets of package src that it
// uses, then one function. Extents that are known are numbers in it;
// others are parameters. Every float operation is one of the _rn intrinsics, so
// that no compiler flag contracts two roundings into one, and rounding to bf16
// and f16 stands exactly where the graph rounds.
//
// # Parameters of a kernel
//
// In order, eight bytes each: a pointer for every argument of the step, an
// integer for every dim of launch attribute "dims", and, if the launch has
// attribute "faults", a pointer to one 32-bit flag for each node in it: an
// index out of range sets the flag of its node (C12).
//
// # Where things are
//
// This package is the [Backend]: which variants a kernel or a chain has and in which order
// (lowerfused.go, lowergemmchain.go, lowerlibrary.go, variants.go), and what is compiled together
// (translationunit.go). The rest is in internal packages:
//
//   - internal/nest answers questions about kernels; internal/cgen writes CUDA C: expressions, loads and
//     stores, the register cache of rows.
//   - internal/loopgen has loop nests: elementwise ones, a thread for each 16 bytes of a row; rows,
//     of which a thread, a warp, a block or the blocks of a cluster have one, with reductions whose
//     order depends on the number of columns alone; and the selection of the largest elements.
//   - internal/gemm has GEMMs, a file for each kind of kernel: GEMV, SIMT, tiled, pipelines for few
//     rows, wgmma as an arch-specific variant, and grouped GEMMs. Its heuristics say which kinds
//     serve which numbers of rows. f32 is computed in f32.
//   - internal/fusion plans which kernels of a chain run in one launch; internal/library plans GEMMs
//     of many rows by a routine of the device.
//   - internal/attention has attention for training and its gradient.
//
// Kernels for compute capability 9.0 and later allow programmatic dependent launch (attribute
// "pdl"). They trigger the dependent launch, prefetch weights, and wait for the kernel before; waits
// are transitive, so several kernels may have started, and none runs ahead of what it reads.
package cuda
