// Package cublaslt computes GEMMs with cuBLASLt, a library of NVIDIA's toolkit: it
// is the routine "cublaslt.matmul" of programs for GPUs. The library is opened
// at run time, without cgo.
//
// # The routine
//
// y[b, m, n] = Σ_k x[b, m, k] · w[b, n, k], summed in f32 and rounded once to the
// dtype of y. The step's operands are x, w and y; attributes give offsets and strides
// of the matrices in them (see [AttrX]). x and w are bf16 or f16, with y of the
// same dtype or f32; or all three are f32, and then attribute "tf32" allows rounding the
// operands to TF32. The order of the sums may depend on the number of rows, so compilers
// use the routine for f32 only where that is allowed.
//
// # Algorithms
//
// The library has many algorithms for a GEMM. A call whose algorithm was not warmed up
// ([Matmul.Warm]) cannot be captured ([ErrCold]). The algorithm is chosen when a call is
// planned ([Matmul.ScratchBytes]), unless [Library.Choose] chose it:
//
//   - by the record of [Options.Records] for the GPU, the library's version and the GEMM
//     ([Key]): the record has an algorithm, or says that the program's own kernels are
//     faster, and then the call is declined;
//   - without a record, or if its algorithm cannot be used, the first algorithm of the
//     library's heuristic that can be used, which is counted as untuned. Without a record, a
//     call with fewer rows than attribute "from" is declined.
//
// Only algorithms whose sums do not depend on scheduling are used: those that do
// not split k, and those that add the parts of k in f32 in a separate step. They use
// at most [Options.Workspace] bytes of the stream's workspace ([cuda.Stream.UseWorkspace]).
//
// Plans live as long as the library is open.
package cublaslt
