package driver

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"pwc/runtime/cuda/dl"
)

// stub compiles testdata/stub.c and returns the library's path: a libcuda of the CUDA version without
// the function called missing. It skips the test without a C compiler or a 64-bit Linux.
func stub(t *testing.T, version int, missing string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" || unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("no C compiler, or not on 64-bit Linux")
	}
	so := filepath.Join(t.TempDir(), "libcuda.so.1")
	out, err := exec.Command(cc, "-shared", "-fPIC", fmt.Sprintf("-DVERSION=%d", version), fmt.Sprintf("-DMISSING=%q", missing), "-o", so, filepath.Join("testdata", "stub.c")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return so
}

func TestOpen(t *testing.T) {
	d, err := Open(stub(t, 12040, ""))
	if err != nil {
		t.Fatal(err)
	}
	if v, err := d.DriverGetVersion(); err != nil || v != 12040 {
		t.Errorf("version %d, %v; want 12040", v, err)
	}
	if d.(*library).funcParamInfo == 0 {
		t.Error("cuFuncGetParamInfo was not resolved for CUDA 12.4")
	}
	d, err = Open(stub(t, 12030, ""))
	if err != nil {
		t.Fatal(err)
	}
	if _, known, err := d.FuncParamSizes(0); known || err != nil {
		t.Errorf("CUDA 12.3: sizes of parameters are known: %v, %v; want false and no error", known, err)
	}
}

func TestOpenErrors(t *testing.T) {
	_, err := Open(stub(t, 11080, ""))
	if err == nil || !strings.Contains(err.Error(), "supports CUDA 11.8") || !strings.Contains(err.Error(), "12.0 or later") || !strings.Contains(err.Error(), "libcuda.so.1") {
		t.Errorf("Open of a driver for CUDA 11.8: %v, want an error with both versions and the library", err)
	}
	_, err = Open(stub(t, 13000, "cuMemMap"))
	var symbol *dl.SymbolError
	if !errors.As(err, &symbol) || symbol.Symbol != "cuMemMap" {
		t.Errorf("Open of a driver without cuMemMap: %v, want a SymbolError", err)
	}
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	_, err = Open(path)
	var missing *dl.NotFoundError
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "NVIDIA driver") {
		t.Errorf("Open without a driver: %v, want a NotFoundError with the path", err)
	}
}

// TestLayouts holds the structures to the sizes and offsets of cuda.h.
func TestLayouts(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("CUDA is on 64-bit machines alone")
	}
	var c LaunchConfig
	var a LaunchAttr
	var k kernelNodeParams
	var m memcpyParams
	var s memsetParams
	for name, got := range map[string][2]uintptr{
		"CUlaunchConfig":           {unsafe.Sizeof(c), 56},
		"CUlaunchConfig.blockDimX": {unsafe.Offsetof(c.Block), 12},
		"CUlaunchConfig.shared":    {unsafe.Offsetof(c.Shared), 24},
		"CUlaunchConfig.hStream":   {unsafe.Offsetof(c.Stream), 32},
		"CUlaunchConfig.attrs":     {unsafe.Offsetof(c.Attrs), 40},
		"CUlaunchConfig.numAttrs":  {unsafe.Offsetof(c.NumAttrs), 48},
		"CUlaunchAttribute":        {unsafe.Sizeof(a), 72},
		"CUlaunchAttribute.value":  {unsafe.Offsetof(a.Value), 8},

		"CUDA_KERNEL_NODE_PARAMS_v2":                {unsafe.Sizeof(k), 72},
		"CUDA_KERNEL_NODE_PARAMS_v2.sharedMemBytes": {unsafe.Offsetof(k.shared), 32},
		"CUDA_KERNEL_NODE_PARAMS_v2.kernelParams":   {unsafe.Offsetof(k.params), 40},
		"CUDA_KERNEL_NODE_PARAMS_v2.ctx":            {unsafe.Offsetof(k.ctx), 64},
		"CUDA_MEMCPY3D":                             {unsafe.Sizeof(m), 200},
		"CUDA_MEMCPY3D.srcMemoryType":               {unsafe.Offsetof(m.srcType), 32},
		"CUDA_MEMCPY3D.srcDevice":                   {unsafe.Offsetof(m.srcDevice), 48},
		"CUDA_MEMCPY3D.dstXInBytes":                 {unsafe.Offsetof(m.dstX), 88},
		"CUDA_MEMCPY3D.dstDevice":                   {unsafe.Offsetof(m.dstDevice), 136},
		"CUDA_MEMCPY3D.WidthInBytes":                {unsafe.Offsetof(m.width), 176},
		"CUDA_MEMSET_NODE_PARAMS":                   {unsafe.Sizeof(s), 40},
		"CUDA_MEMSET_NODE_PARAMS.elementSize":       {unsafe.Offsetof(s.element), 20},

		"CUmemAllocationProp":          {unsafe.Sizeof(allocationProp{}), 32},
		"CUmemAllocationProp.win32":    {unsafe.Offsetof(allocationProp{}.win32), 16},
		"CUmemAllocationProp.location": {unsafe.Offsetof(allocationProp{}.locationType), 8},
	} {
		if got[0] != got[1] {
			t.Errorf("%s is %d, want %d", name, got[0], got[1])
		}
	}
}

// TestNames: MemsetName returns the driver's function for each width, and a stream that does not capture gives
// another error than an invalidated capture.
func TestNames(t *testing.T) {
	for _, width := range []int{1, 2, 4} {
		if name := MemsetName(width); !strings.Contains(name, fmt.Sprintf("D%dA", 8*width)) {
			t.Errorf("%s sets elements of %d bytes", name, width)
		}
	}
	for status, want := range map[int32]Result{0: InvalidValue, 1: Success, 2: CaptureInvalidated} {
		var failed *Error
		if err := captures(status); errors.As(err, &failed) != (want != Success) || failed != nil && failed.Result != want {
			t.Errorf("status %d: %v, want %v", status, err, want)
		}
	}
}

// TestFatal holds which of these results lose the device, and names of results and nodes.
func TestFatal(t *testing.T) {
	for r, want := range map[Result][2]bool{
		Success: {}, InvalidValue: {}, OutOfMemory: {}, NotReady: {}, CaptureInvalidated: {}, NotFound: {},
		IllegalAddress: {true, true}, LaunchFailed: {true, true}, ECCUncorrectable: {true, true}, Unknown: {true, true},
		ContextDestroyed: {true, false}, Deinitialized: {true, false},
	} {
		if fatal, restart := r.Fatal(); fatal != want[0] || restart != want[1] {
			t.Errorf("%s: fatal %v, restart %v; want %v", r, fatal, restart, want)
		}
	}
	if LossyQuery.String() != "LOSSY_QUERY" || Success.String() != "SUCCESS" {
		t.Errorf("names of results: %s, %s; want LOSSY_QUERY and SUCCESS", LossyQuery, Success)
	}
	if s := (&Error{"cuInit", 4242}).Error(); s != "cuInit: CUDA_ERROR_4242" {
		t.Error(s)
	}
	if NodeGraph.String() != "graph" || NodeType(99).String() != "unknown" {
		t.Errorf("names of node types: %s, %s; want graph and unknown", NodeGraph, NodeType(99))
	}
}
