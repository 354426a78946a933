// Package lt has the part of cuBLASLt that pwc uses, as an interface, and its
// implementation by the library.
package lt

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"pwc/runtime/cuda/dl"
)

// Handles of the library.
type (
	Handle     uintptr // cublasLtHandle_t
	Desc       uintptr // cublasLtMatmulDesc_t
	Layout     uintptr // cublasLtMatrixLayout_t
	Preference uintptr // cublasLtMatmulPreference_t
)

// MatmulArgs are the arguments of cublasLtMatmul, in their order.
type MatmulArgs struct {
	Handle         Handle
	Desc           Desc
	Alpha          *float32
	A              uintptr
	ALayout        Layout
	B              uintptr
	BLayout        Layout
	Beta           *float32
	C              uintptr
	CLayout        Layout
	D              uintptr
	DLayout        Layout
	Algo           *Algorithm
	Workspace      uintptr
	WorkspaceBytes uintptr
	Stream         uintptr
}

// Operands are the matrices of a GEMM in the library's order: column-major, D = A·B.
type Operands struct{ A, B, D Layout }

// API is the part of the library that pwc uses. The context of the device must be current on the
// calling thread. Errors are or wrap a *StatusError.
type API interface {
	Version() int // of cublasLtGetVersion, 130100 for 13.1
	Create() (Handle, error)
	Destroy(Handle) error

	NewDesc(computeType, transA, transB int32) (Desc, error)
	NewLayout(dataType int32, rows, cols, pitch, batch, stride int64) (Layout, error)
	NewPreference(workspace int64, alignA, alignB, alignD int) (Preference, error)
	DestroyDesc(Desc) error
	DestroyLayout(Layout) error
	DestroyPreference(Preference) error

	// Heuristic returns up to most algorithms, by expected speed, the fastest first.
	Heuristic(h Handle, d Desc, o Operands, p Preference, most int) ([]HeuristicResult, error)
	// Check returns the workspace of an algorithm for a GEMM, in bytes.
	Check(h Handle, d Desc, o Operands, a *Algorithm) (workspace int64, err error)
	// Config returns an attribute of an algorithm.
	Config(a *Algorithm, attribute int32) (int32, error)

	// Matmul enqueues a GEMM. It allocates nothing.
	Matmul(m *MatmulArgs) error
}

// StatusError is a call of the library that failed.
type StatusError struct {
	Call   string
	Status int // cublasStatus_t
}

// Error names the call and its status.
func (e *StatusError) Error() string {
	if name, ok := statusNames[e.Status]; ok {
		return fmt.Sprintf("cublasLt%s: %s", e.Call, name)
	}
	return fmt.Sprintf("cublasLt%s: status %d", e.Call, e.Status)
}

func failed(call string, status uintptr) error {
	if s := int(int32(status)); s != StatusSuccess {
		return &StatusError{call, s}
	}
	return nil
}

// Library is the API of an open library.
type Library struct {
	*dl.Library
	getVersion, create, destroy, descCreate, descSet, descDestroy, layoutCreate, layoutSet, layoutDestroy,
	prefCreate, prefSet, prefDestroy, heuristic, check, config, matmul uintptr
}

var _ API = (*Library)(nil)

// Open finds the functions of a library.
func Open(l *dl.Library) (*Library, error) {
	out := &Library{Library: l}
	for _, f := range []struct {
		to   *uintptr
		name string
	}{
		{&out.getVersion, "GetVersion"}, {&out.create, "Create"}, {&out.destroy, "Destroy"},
		{&out.descCreate, "MatmulDescCreate"}, {&out.descSet, "MatmulDescSetAttribute"}, {&out.descDestroy, "MatmulDescDestroy"},
		{&out.layoutCreate, "MatrixLayoutCreate"}, {&out.layoutSet, "MatrixLayoutSetAttribute"}, {&out.layoutDestroy, "MatrixLayoutDestroy"},
		{&out.prefCreate, "MatmulPreferenceCreate"}, {&out.prefSet, "MatmulPreferenceSetAttribute"}, {&out.prefDestroy, "MatmulPreferenceDestroy"},
		{&out.heuristic, "MatmulAlgoGetHeuristic"}, {&out.check, "MatmulAlgoCheck"}, {&out.config, "MatmulAlgoConfigGetAttribute"}, {&out.matmul, "Matmul"},
	} {
		var err error
		if *f.to, err = l.Symbol("cublasLt" + f.name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Version calls cublasLtGetVersion.
func (l *Library) Version() int { return int(dl.Call(l.getVersion)) }

// Create calls cublasLtCreate.
func (l *Library) Create() (Handle, error) {
	var h Handle
	err := failed("Create", dl.Call(l.create, uintptr(unsafe.Pointer(&h))))
	return h, err
}

// Destroy calls cublasLtDestroy.
func (l *Library) Destroy(h Handle) error { return failed("Destroy", dl.Call(l.destroy, uintptr(h))) }

// set sets an attribute of a descriptor.
func set[V int32 | int64 | uint32 | uint64](call string, fn, object uintptr, attribute uintptr, v V) error {
	return failed(call, dl.Call(fn, object, attribute, uintptr(unsafe.Pointer(&v)), unsafe.Sizeof(v)))
}

// NewDesc makes a cublasLtMatmulDesc_t whose factors are f32.
func (l *Library) NewDesc(computeType, transA, transB int32) (Desc, error) {
	var d Desc
	err := failed("MatmulDescCreate", dl.Call(l.descCreate, uintptr(unsafe.Pointer(&d)), uintptr(computeType), TypeF32))
	if err != nil {
		return 0, err
	}
	for i, trans := range []int32{transA, transB} {
		if err := set("MatmulDescSetAttribute", l.descSet, uintptr(d), descTransA+uintptr(i), trans); err != nil {
			return 0, errors.Join(err, l.DestroyDesc(d))
		}
	}
	return d, nil
}

// NewLayout makes a cublasLtMatrixLayout_t: pitch and stride are in elements.
func (l *Library) NewLayout(dataType int32, rows, cols, pitch, batch, stride int64) (Layout, error) {
	var y Layout
	err := failed("MatrixLayoutCreate", dl.Call(l.layoutCreate, uintptr(unsafe.Pointer(&y)), uintptr(dataType), uintptr(rows), uintptr(cols), uintptr(pitch)))
	if err != nil || batch == 1 {
		return y, err
	}
	const call = "MatrixLayoutSetAttribute"
	err = set(call, l.layoutSet, uintptr(y), layoutBatchCount, int32(batch))
	if err == nil {
		err = set(call, l.layoutSet, uintptr(y), layoutBatchStride, stride)
	}
	if err != nil {
		return 0, errors.Join(err, l.DestroyLayout(y))
	}
	return y, nil
}

// NewPreference makes a cublasLtMatmulPreference_t. Workspace and alignments are in bytes.
// C is D, so it has the same alignment. Parts of a sum over k may be added only in the compute type.
func (l *Library) NewPreference(workspace int64, alignA, alignB, alignD int) (Preference, error) {
	var p Preference
	if err := failed("MatmulPreferenceCreate", dl.Call(l.prefCreate, uintptr(unsafe.Pointer(&p)))); err != nil {
		return 0, err
	}
	const call = "MatmulPreferenceSetAttribute"
	err := set(call, l.prefSet, uintptr(p), prefMaxWorkspace, uint64(workspace))
	if err == nil {
		err = set(call, l.prefSet, uintptr(p), prefReductionScheme, uint32(ReductionComputeType))
	}
	for i, n := range []int{alignA, alignB, alignD, alignD} { // C is D
		if err == nil {
			err = set(call, l.prefSet, uintptr(p), prefMinAlignA+uintptr(i), uint32(n))
		}
	}
	if err != nil {
		return 0, errors.Join(err, l.DestroyPreference(p))
	}
	return p, nil
}

// DestroyDesc calls cublasLtMatmulDescDestroy.
func (l *Library) DestroyDesc(d Desc) error {
	return failed("MatmulDescDestroy", dl.Call(l.descDestroy, uintptr(d)))
}

// DestroyLayout calls cublasLtMatrixLayoutDestroy.
func (l *Library) DestroyLayout(y Layout) error {
	return failed("MatrixLayoutDestroy", dl.Call(l.layoutDestroy, uintptr(y)))
}

// DestroyPreference calls cublasLtMatmulPreferenceDestroy.
func (l *Library) DestroyPreference(p Preference) error {
	return failed("MatmulPreferenceDestroy", dl.Call(l.prefDestroy, uintptr(p)))
}

// Heuristic calls cublasLtMatmulAlgoGetHeuristic.
func (l *Library) Heuristic(h Handle, d Desc, o Operands, p Preference, most int) ([]HeuristicResult, error) {
	results := make([]HeuristicResult, most)
	var n int32
	err := failed("MatmulAlgoGetHeuristic", dl.Call(l.heuristic, uintptr(h), uintptr(d), uintptr(o.A), uintptr(o.B), uintptr(o.D), uintptr(o.D),
		uintptr(p), uintptr(most), uintptr(unsafe.Pointer(&results[0])), uintptr(unsafe.Pointer(&n))))
	if err != nil {
		return nil, err
	}
	return results[:n], nil
}

// Check calls cublasLtMatmulAlgoCheck.
func (l *Library) Check(h Handle, d Desc, o Operands, a *Algorithm) (int64, error) {
	r := new(HeuristicResult)
	err := failed("MatmulAlgoCheck", dl.Call(l.check, uintptr(h), uintptr(d), uintptr(o.A), uintptr(o.B), uintptr(o.D), uintptr(o.D),
		uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(r))))
	return int64(r.Workspace), err
}

// Config calls cublasLtMatmulAlgoConfigGetAttribute for an attribute of 4 bytes.
func (l *Library) Config(a *Algorithm, attribute int32) (int32, error) {
	var v int32
	var written uint64
	err := failed("MatmulAlgoConfigGetAttribute", dl.Call(l.config, uintptr(unsafe.Pointer(a)), uintptr(attribute), uintptr(unsafe.Pointer(&v)), unsafe.Sizeof(v),
		uintptr(unsafe.Pointer(&written))))
	return v, err
}

// Matmul calls cublasLtMatmul with the words of m as arguments. The objects to which m points are
// global or on the heap, so they do not move.
func (l *Library) Matmul(m *MatmulArgs) error {
	args := (*[unsafe.Sizeof(*m) / unsafe.Sizeof(uintptr(0))]uintptr)(unsafe.Pointer(m))
	status := dl.CallWith(l.matmul, args[:])
	runtime.KeepAlive(m)
	return failed("Matmul", status)
}
