// Package cuda makes kernels for NVIDIA GPUs: CUDA C without includes out of the
// fused form of package loop, compiled by whatever [Compiler] it is given.
//
// The C is meant to be read. Each kernel is its own source: the few helpers it
// uses, then one function. Extents that are known stand in it as numbers;
// others are parameters. Every float operation is one of the _rn intrinsics, so
// that no compiler flag contracts two roundings into one, and rounding to bf16
// and f16 stands exactly where the graph rounds.
//
// # Parameters of a kernel
//
// In order, eight bytes each: a pointer for every argument of the step, an
// integer for every dim of launch attribute "dims", and, if the launch has
// attribute "faults", a pointer to one 32-bit flag for each node in it: a
// position out of range sets the flag of its node (C12).
//
// # Kinds of kernels
//
//   - Pointwise nests run flat, a thread for each 16 bytes of a row (see flat.go).
//   - Nests that reduce, scan or visit their columns several times give a row to
//     a thread, a warp, a block or, if it is long, the blocks of a cluster
//     (rows.go); reductions add in an order that depends on the number of columns
//     alone. Threads that have nothing to add are told so (threshold.go), and phases that
//     do the same again and again are a loop (repeat.go).
//   - Products whose rows choose among matrices gather the rows of each matrix
//     (experts.go).
//   - Matrix products have a kernel for each number of rows (product.go): one, if it
//     is long, on CUDA cores, up to 64 with the weights as the tensor core's M operand, in
//     streams of each warp's own (stream.go) or strips (strip.go), more in tiles;
//     choose.go says which. f32 is computed in f32.
//   - With 17 to 96 rows and long sums there are also kernels for sm_90a alone, where the
//     compiler makes them: their tensor cores read shared memory themselves
//     (warpgroup.go). They come before all others, and after a routine of the device that
//     was measured to be faster.
//   - For few rows a product is one launch with the nest that makes its rows, as a
//     norm does, and the nests that need a few of its columns at a time (chain.go
//     finds them, lead.go and tail.go write them).
//   - For many rows a product is a routine of the device, if it has it (library.go).
//     What happens to its sums is a nest of its own, or begins the norm that reads
//     them (headed.go, merge.go).
//   - topk.go selects the largest elements.
//
// Kernels for compute capability 9.0 and later allow programmatic dependent
// launch (attribute "pdl"). They let the kernel after start, read weights, and wait
// for the kernel before, which has waited itself, before they touch anything else:
// several kernels may have started, and none runs ahead of what it reads.
package cuda
