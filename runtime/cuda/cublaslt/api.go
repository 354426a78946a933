package cublaslt

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"pwc/runtime/cuda/internal/dl"
)

// Handles of the library.
type (
	handle     uintptr // cublasLtHandle_t
	matmulDesc uintptr // cublasLtMatmulDesc_t
	layout     uintptr // cublasLtMatrixLayout_t
	preference uintptr // cublasLtMatmulPreference_t
)

// matmulArgs are the arguments of cublasLtMatmul, in their order.
type matmulArgs struct {
	handle         handle
	desc           matmulDesc
	alpha          *float32
	a              uintptr
	aLayout        layout
	b              uintptr
	bLayout        layout
	beta           *float32
	c              uintptr
	cLayout        layout
	d              uintptr
	dLayout        layout
	algo           *algorithm
	workspace      uintptr
	workspaceBytes uintptr
	stream         uintptr
}

// operands are the matrices of a product as the library wants them: column-major,
// D = A·B.
type operands struct{ a, b, d layout }

// api is the part of the library that is used. The context is current. Errors
// are *StatusError.
type api interface {
	Version() int // as cublasLtGetVersion tells it, 130100 for 13.1
	Create() (handle, error)
	Destroy(handle) error

	NewDesc(computeType, transA int32) (matmulDesc, error)
	NewLayout(dataType int32, rows, cols, pitch, batch, stride int64) (layout, error)
	NewPreference(workspace int64, alignA, alignB, alignD int) (preference, error)
	DestroyDesc(matmulDesc) error
	DestroyLayout(layout) error
	DestroyPreference(preference) error

	// Heuristic returns up to most algorithms, the one that should be fastest first.
	Heuristic(h handle, d matmulDesc, o operands, p preference, most int) ([]heuristicResult, error)
	// Check returns the workspace that an algorithm takes for a product.
	Check(h handle, d matmulDesc, o operands, a *algorithm) (workspace int64, err error)
	// Config returns an attribute of an algorithm.
	Config(a *algorithm, attribute int32) (int32, error)

	// Matmul enqueues a product. It allocates nothing.
	Matmul(m *matmulArgs) error
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
	if s := int(int32(status)); s != statusSuccess {
		return &StatusError{call, s}
	}
	return nil
}

// library is the api of an open library.
type library struct {
	*dl.Library
	getVersion, create, destroy, descCreate, descSet, descDestroy, layoutCreate, layoutSet, layoutDestroy,
	prefCreate, prefSet, prefDestroy, heuristic, check, config, matmul uintptr
}

var _ api = (*library)(nil)

func open(l *dl.Library) (*library, error) {
	out := &library{Library: l}
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
func (l *library) Version() int { return int(dl.Call(l.getVersion)) }

// Create calls cublasLtCreate.
func (l *library) Create() (handle, error) {
	var h handle
	err := failed("Create", dl.Call(l.create, uintptr(unsafe.Pointer(&h))))
	return h, err
}

// Destroy calls cublasLtDestroy.
func (l *library) Destroy(h handle) error { return failed("Destroy", dl.Call(l.destroy, uintptr(h))) }

// set sets an attribute of a descriptor.
func set[V int32 | int64 | uint32 | uint64](call string, fn, object uintptr, attribute uintptr, v V) error {
	return failed(call, dl.Call(fn, object, attribute, uintptr(unsafe.Pointer(&v)), unsafe.Sizeof(v)))
}

// NewDesc makes a cublasLtMatmulDesc_t whose factors are f32.
func (l *library) NewDesc(computeType, transA int32) (matmulDesc, error) {
	var d matmulDesc
	err := failed("MatmulDescCreate", dl.Call(l.descCreate, uintptr(unsafe.Pointer(&d)), uintptr(computeType), typeF32))
	if err != nil {
		return 0, err
	}
	if err := set("MatmulDescSetAttribute", l.descSet, uintptr(d), descTransA, transA); err != nil {
		return 0, errors.Join(err, l.DestroyDesc(d))
	}
	return d, nil
}

// NewLayout makes a cublasLtMatrixLayout_t: pitch and stride are in elements.
func (l *library) NewLayout(dataType int32, rows, cols, pitch, batch, stride int64) (layout, error) {
	var y layout
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

// NewPreference makes a cublasLtMatmulPreference_t: workspace and alignments are
// bytes. C has the alignment of D, which it is.
func (l *library) NewPreference(workspace int64, alignA, alignB, alignD int) (preference, error) {
	var p preference
	if err := failed("MatmulPreferenceCreate", dl.Call(l.prefCreate, uintptr(unsafe.Pointer(&p)))); err != nil {
		return 0, err
	}
	const call = "MatmulPreferenceSetAttribute"
	err := set(call, l.prefSet, uintptr(p), prefMaxWorkspace, uint64(workspace))
	if err == nil {
		err = set(call, l.prefSet, uintptr(p), prefReductionScheme, uint32(reductionComputeType))
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
func (l *library) DestroyDesc(d matmulDesc) error {
	return failed("MatmulDescDestroy", dl.Call(l.descDestroy, uintptr(d)))
}

// DestroyLayout calls cublasLtMatrixLayoutDestroy.
func (l *library) DestroyLayout(y layout) error {
	return failed("MatrixLayoutDestroy", dl.Call(l.layoutDestroy, uintptr(y)))
}

// DestroyPreference calls cublasLtMatmulPreferenceDestroy.
func (l *library) DestroyPreference(p preference) error {
	return failed("MatmulPreferenceDestroy", dl.Call(l.prefDestroy, uintptr(p)))
}

// Heuristic calls cublasLtMatmulAlgoGetHeuristic.
func (l *library) Heuristic(h handle, d matmulDesc, o operands, p preference, most int) ([]heuristicResult, error) {
	results := make([]heuristicResult, most)
	var n int32
	err := failed("MatmulAlgoGetHeuristic", dl.Call(l.heuristic, uintptr(h), uintptr(d), uintptr(o.a), uintptr(o.b), uintptr(o.d), uintptr(o.d),
		uintptr(p), uintptr(most), uintptr(unsafe.Pointer(&results[0])), uintptr(unsafe.Pointer(&n))))
	if err != nil {
		return nil, err
	}
	return results[:n], nil
}

// Check calls cublasLtMatmulAlgoCheck.
func (l *library) Check(h handle, d matmulDesc, o operands, a *algorithm) (int64, error) {
	r := new(heuristicResult)
	err := failed("MatmulAlgoCheck", dl.Call(l.check, uintptr(h), uintptr(d), uintptr(o.a), uintptr(o.b), uintptr(o.d), uintptr(o.d),
		uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(r))))
	return int64(r.workspace), err
}

// Config calls cublasLtMatmulAlgoConfigGetAttribute for an attribute of 4 bytes.
func (l *library) Config(a *algorithm, attribute int32) (int32, error) {
	var v int32
	var written uint64
	err := failed("MatmulAlgoConfigGetAttribute", dl.Call(l.config, uintptr(unsafe.Pointer(a)), uintptr(attribute), uintptr(unsafe.Pointer(&v)), unsafe.Sizeof(v),
		uintptr(unsafe.Pointer(&written))))
	return v, err
}

// Matmul passes the arguments as they lie in memory. What they point to is on the
// heap, where it stays.
func (l *library) Matmul(m *matmulArgs) error {
	args := (*[unsafe.Sizeof(*m) / unsafe.Sizeof(uintptr(0))]uintptr)(unsafe.Pointer(m))
	status := dl.CallWith(l.matmul, args[:])
	runtime.KeepAlive(m)
	return failed("Matmul", status)
}
