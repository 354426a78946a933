// Package cublaslt multiplies matrices with cuBLASLt, the library of NVIDIA's
// toolkit: routine "cublaslt.matmul" of programs for GPUs. The library is opened
// at run time, without cgo.
//
// # The routine
//
// y[b, m, n] = Σ_k x[b, m, k] · w[b, n, k], summed in f32 and rounded once to the
// dtype of y. Operands are memory x, w, y of the step; where the matrices lie in
// it is told by attributes (see [Matmul]). x and w are bf16 or f16, with y of the
// same dtype or f32, or all three are f32; then attribute "tf32" lets the operands be
// rounded to TF32. The order of the sums depends on the number of rows, so compilers
// ask for products of f32 only where that is allowed.
//
// # Algorithms
//
// The library has many algorithms for a product. Which one runs is decided when a
// call is planned ([Matmul.ScratchBytes]), never while a capture is under way:
//
//   - what [Options.Records] has for the GPU, the library's version and the product
//     ([Key]): an algorithm, or that the program's own kernels are faster, so that
//     the call is declined;
//   - else what the library's heuristic names first, which is counted as untuned.
//
// Below the rows that attribute "from" names, the library serves only where a
// record says so.
//
// Only algorithms whose sums do not depend on scheduling are taken: those that do
// not split k, and those that add the parts in f32 in a step of its own. They
// work in the stream's workspace ([cuda.Stream.UseWorkspace]), whose size never
// changes.
//
// Descriptors live as long as the library is open. A call that is launched again
// allocates nothing.
package cublaslt
