package driver

import "fmt"

// Result is a status of the driver (CUresult).
type Result int32

// Results that have a name in pwc.
const (
	Success             Result = 0
	InvalidValue        Result = 1
	OutOfMemory         Result = 2
	NotInitialized      Result = 3
	Deinitialized       Result = 4
	NoDevice            Result = 100
	InvalidImage        Result = 200
	InvalidContext      Result = 201
	NoBinaryForGPU      Result = 209
	ECCUncorrectable    Result = 214
	NVLinkUncorrectable Result = 220
	Contained           Result = 226
	PeerUnsupported     Result = 217
	InvalidPTX          Result = 218
	UnsupportedPTX      Result = 222
	InvalidHandle       Result = 400
	LossyQuery          Result = 402
	NotFound            Result = 500
	NotReady            Result = 600
	IllegalAddress      Result = 700
	LaunchTimeout       Result = 702
	PeerAlreadyEnabled  Result = 704
	ContextDestroyed    Result = 709
	Assert              Result = 710
	HardwareStackError  Result = 714
	IllegalInstruction  Result = 715
	MisalignedAddress   Result = 716
	InvalidAddressSpace Result = 717
	InvalidPC           Result = 718
	LaunchFailed        Result = 719
	TensorMemoryLeak    Result = 721
	SystemNotReady      Result = 802
	CaptureUnsupported  Result = 900
	CaptureInvalidated  Result = 901
	CaptureMerge        Result = 902
	CaptureUnmatched    Result = 903
	CaptureUnjoined     Result = 904
	CaptureIsolation    Result = 905
	CapturedEvent       Result = 907
	CaptureWrongThread  Result = 908
	Unknown             Result = 999
)

// String returns the driver's name of the result without CUDA_ERROR_, or the number of a result
// that is not in the list above.
func (r Result) String() string {
	switch r {
	case Success:
		return "SUCCESS"
	case InvalidValue:
		return "INVALID_VALUE"
	case OutOfMemory:
		return "OUT_OF_MEMORY"
	case NotInitialized:
		return "NOT_INITIALIZED"
	case Deinitialized:
		return "DEINITIALIZED"
	case NoDevice:
		return "NO_DEVICE"
	case InvalidImage:
		return "INVALID_IMAGE"
	case InvalidContext:
		return "INVALID_CONTEXT"
	case NoBinaryForGPU:
		return "NO_BINARY_FOR_GPU"
	case ECCUncorrectable:
		return "ECC_UNCORRECTABLE"
	case NVLinkUncorrectable:
		return "NVLINK_UNCORRECTABLE"
	case Contained:
		return "CONTAINED"
	case PeerUnsupported:
		return "PEER_ACCESS_UNSUPPORTED"
	case PeerAlreadyEnabled:
		return "PEER_ACCESS_ALREADY_ENABLED"
	case InvalidPTX:
		return "INVALID_PTX"
	case UnsupportedPTX:
		return "UNSUPPORTED_PTX_VERSION"
	case InvalidHandle:
		return "INVALID_HANDLE"
	case LossyQuery:
		return "LOSSY_QUERY"
	case NotFound:
		return "NOT_FOUND"
	case NotReady:
		return "NOT_READY"
	case IllegalAddress:
		return "ILLEGAL_ADDRESS"
	case LaunchTimeout:
		return "LAUNCH_TIMEOUT"
	case ContextDestroyed:
		return "CONTEXT_IS_DESTROYED"
	case Assert:
		return "ASSERT"
	case HardwareStackError:
		return "HARDWARE_STACK_ERROR"
	case IllegalInstruction:
		return "ILLEGAL_INSTRUCTION"
	case MisalignedAddress:
		return "MISALIGNED_ADDRESS"
	case InvalidAddressSpace:
		return "INVALID_ADDRESS_SPACE"
	case InvalidPC:
		return "INVALID_PC"
	case LaunchFailed:
		return "LAUNCH_FAILED"
	case TensorMemoryLeak:
		return "TENSOR_MEMORY_LEAK"
	case SystemNotReady:
		return "SYSTEM_NOT_READY"
	case CaptureUnsupported:
		return "STREAM_CAPTURE_UNSUPPORTED"
	case CaptureInvalidated:
		return "STREAM_CAPTURE_INVALIDATED"
	case CaptureMerge:
		return "STREAM_CAPTURE_MERGE"
	case CaptureUnjoined:
		return "STREAM_CAPTURE_UNJOINED"
	case CaptureIsolation:
		return "STREAM_CAPTURE_ISOLATION"
	case CapturedEvent:
		return "CAPTURED_EVENT"
	case CaptureUnmatched:
		return "STREAM_CAPTURE_UNMATCHED"
	case CaptureWrongThread:
		return "STREAM_CAPTURE_WRONG_THREAD"
	case Unknown:
		return "UNKNOWN"
	}
	return fmt.Sprintf("%d", int32(r))
}

// Fatal reports whether the context cannot be used any more. restart reports whether the process
// must restart before it can use the device again. Both follow the descriptions of CUresult in the
// documentation of the CUDA driver API, except for ECC and NVLink errors and Unknown: the
// descriptions do not say that they are fatal, but here they are, with a restart.
func (r Result) Fatal() (fatal, restart bool) {
	switch r {
	case IllegalAddress, LaunchTimeout, Assert, HardwareStackError, IllegalInstruction, MisalignedAddress,
		InvalidAddressSpace, InvalidPC, LaunchFailed, TensorMemoryLeak, Contained, ECCUncorrectable, NVLinkUncorrectable, Unknown:
		return true, true
	case ContextDestroyed, Deinitialized:
		return true, false
	}
	return false, false
}

// Error is a call that failed.
type Error struct {
	Call   string // "cuMemAlloc"
	Result Result
}

// Error names the call and the result.
func (e *Error) Error() string { return fmt.Sprintf("%s: CUDA_ERROR_%s", e.Call, e.Result) }
