package lt

// The numbers and layouts below are those of cublasLt.h, library_types.h and cublas_api.h, which
// are the same since CUDA 11.

// Algorithm is cublasLtMatmulAlgo_t: opaque, but plain data that is valid for the
// same version of the library.
type Algorithm [8]uint64

// HeuristicResult is cublasLtMatmulHeuristicResult_t.
type HeuristicResult struct {
	Algo      Algorithm
	Workspace uint64 // bytes
	State     int32  // cublasStatus_t
	Waves     float32
	_         [4]int32
}

// cudaDataType_t.
const (
	TypeF32  = 0
	TypeF16  = 2
	TypeBF16 = 14
)

// cublasComputeType_t.
const (
	Compute32F         = 68
	Compute32FFastTF32 = 77 // operands of f32 are rounded to TF32
)

// cublasOperation_t.
const (
	OpN = 0
	OpT = 1
)

// cublasLtMatmulDescAttributes_t.
const descTransA = 3 // B follows

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
	ReductionNone        = 0
	ReductionComputeType = 2 // in f32, in a separate step
)

// cublasLtMatmulAlgoConfigAttributes_t.
const ConfigReduction = 3

// cublasStatus_t.
const (
	StatusSuccess      = 0
	StatusAllocFailed  = 3
	StatusNotSupported = 15
)

var statusNames = map[int]string{
	1: "CUBLAS_STATUS_NOT_INITIALIZED", 3: "CUBLAS_STATUS_ALLOC_FAILED", 7: "CUBLAS_STATUS_INVALID_VALUE", 8: "CUBLAS_STATUS_ARCH_MISMATCH",
	11: "CUBLAS_STATUS_MAPPING_ERROR", 13: "CUBLAS_STATUS_EXECUTION_FAILED", 14: "CUBLAS_STATUS_INTERNAL_ERROR", 15: "CUBLAS_STATUS_NOT_SUPPORTED",
	16: "CUBLAS_STATUS_LICENSE_ERROR",
}
