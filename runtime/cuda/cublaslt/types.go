package cublaslt

// What follows is the library's interface: cublasLt.h, library_types.h and
// cublas_api.h, the same since CUDA 11.

// algorithm is cublasLtMatmulAlgo_t: opaque, but plain data that is valid for the
// same version of the library.
type algorithm [8]uint64

// heuristicResult is cublasLtMatmulHeuristicResult_t.
type heuristicResult struct {
	algo      algorithm
	workspace uint64 // bytes
	state     int32  // cublasStatus_t
	waves     float32
	_         [4]int32
}

// cudaDataType_t.
const (
	typeF32  = 0
	typeF16  = 2
	typeBF16 = 14
)

// cublasComputeType_t.
const compute32F = 68

// cublasOperation_t.
const (
	opN = 0
	opT = 1
)

// cublasLtMatmulDescAttributes_t.
const descTransA = 3

// cublasLtMatrixLayoutAttribute_t.
const (
	layoutBatchCount  = 5 // i32
	layoutBatchStride = 6 // i64, elements
)

// cublasLtMatmulPreferenceAttributes_t.
const (
	prefMaxWorkspace    = 1 // u64
	prefReductionScheme = 3 // u32
	prefMinAlignA       = 5 // u32, bytes; B, C and D follow
)

// cublasLtReductionScheme_t: how parts of a sum over k are added.
const (
	reductionNone        = 0
	reductionComputeType = 2 // in f32, in a step of its own
)

// cublasLtMatmulAlgoConfigAttributes_t.
const configReduction = 3

// cublasStatus_t.
const (
	statusSuccess      = 0
	statusNotSupported = 15
)

var statusNames = map[int]string{
	1: "CUBLAS_STATUS_NOT_INITIALIZED", 3: "CUBLAS_STATUS_ALLOC_FAILED", 7: "CUBLAS_STATUS_INVALID_VALUE", 8: "CUBLAS_STATUS_ARCH_MISMATCH",
	11: "CUBLAS_STATUS_MAPPING_ERROR", 13: "CUBLAS_STATUS_EXECUTION_FAILED", 14: "CUBLAS_STATUS_INTERNAL_ERROR", 15: "CUBLAS_STATUS_NOT_SUPPORTED",
	16: "CUBLAS_STATUS_LICENSE_ERROR",
}
