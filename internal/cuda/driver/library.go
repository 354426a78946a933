package driver

import (
	"fmt"
	"runtime"
	"unsafe"

	"pwc/runtime/cuda/dl"
)

// MinVersion is the version of CUDA that the driver must support at least, 12.0, in the form of
// cuDriverGetVersion. Functions are looked up with the signatures of this version, except
// cuFuncGetParamInfo, which is newer.
const MinVersion = 12000

// paths are the paths of the driver's library: by the loader's rules first, then the directories of
// distributions, containers and WSL.
func paths() []string {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	const so = "libcuda.so.1"
	return []string{so, "/usr/lib/" + arch + "-linux-gnu/" + so, "/usr/lib64/" + so, "/usr/local/nvidia/lib64/" + so, "/usr/lib/wsl/lib/" + so}
}

// Open opens libcuda and initialises it. path, if not "", is the only path that it tries.
func Open(path string) (Driver, error) {
	at := paths()
	if path != "" {
		at = []string{path}
	}
	lib, err := dl.Open("the CUDA driver (libcuda.so.1)", "it comes with the NVIDIA driver; containers get it from the NVIDIA container toolkit", at)
	if err != nil {
		return nil, err
	}
	old := func(found string, err error) error {
		return fmt.Errorf("%s: %s, CUDA 12.0 or later is needed: update the NVIDIA driver to 525 or later: %w", lib.Path, found, err)
	}
	version, err := lib.Symbol("cuDriverGetVersion")
	if err != nil {
		return nil, err
	}
	var v int32
	if r := dl.Call(version, uintptr(unsafe.Pointer(&v))); r != 0 {
		return nil, fail("cuDriverGetVersion", r)
	}
	if v < MinVersion {
		return nil, old(fmt.Sprintf("the driver supports CUDA %d.%d", v/1000, v%1000/10), &Error{"cuDriverGetVersion", NotFound})
	}
	resolve, err := lib.Symbol("cuGetProcAddress_v2")
	if err != nil {
		return nil, old("the driver has no cuGetProcAddress_v2", err)
	}
	d := &library{path: lib.Path}
	if err := d.resolve(resolve); err != nil {
		return nil, err
	}
	if r := dl.Call(d.init, 0); r != 0 {
		return nil, fail("cuInit", r)
	}
	return d, nil
}

// library is libcuda: its path and the addresses of its functions.
type library struct {
	path string
	hot  dl.Caller // for the calls of a run

	init, driverGetVersion, deviceGetCount, deviceGetName, deviceGetAttribute, deviceTotalMem,
	primaryCtxRetain, primaryCtxRelease, ctxSetCurrent, canAccessPeer, p2pAttribute, enablePeerAccess, ipcGetMemHandle, ipcOpenMemHandle, ipcCloseMemHandle,
	memGetInfo, memAlloc, memFree, memHostAlloc, memFreeHost, memHostGetDevicePointer,
	memGranularity, memAddressReserve, memAddressFree, memCreate, memRelease, memMap, memUnmap, memSetAccess,
	memcpyHtoD, memcpyDtoH, memcpyDtoD, memset8, memset16, memset32,
	streamCreate, streamDestroy, streamSynchronize, streamWaitEvent, beginCapture, endCapture, captureInfo, updateCapture, exchangeMode,
	eventCreate, eventDestroy, eventRecord, eventRecordFlags, eventQuery, eventSynchronize, eventElapsed,
	moduleLoad, moduleUnload, moduleGetFunction, funcGetAttribute, funcSetAttribute, launchKernel,
	graphGetNodes, graphNodeGetType, graphAddChild, graphInstantiate, graphUpload, graphLaunch, graphExecDestroy, graphDestroy,
	graphExecSetKernel, graphGetMemcpy, graphExecSetMemcpy, graphGetMemset, graphExecSetMemset uintptr

	funcParamInfo uintptr // 0 before 12.4
}

// resolve looks up the functions. A newer driver still has the signatures of MinVersion.
func (d *library) resolve(getProcAddress uintptr) error {
	get := func(name string, version uintptr) (p uintptr, status Result) {
		text := append([]byte(name), 0)
		r := dl.Call(getProcAddress, uintptr(unsafe.Pointer(&text[0])), uintptr(unsafe.Pointer(&p)), version, 0, 0)
		return p, Result(r)
	}
	for _, f := range []struct {
		to   *uintptr
		name string
	}{
		{&d.init, "cuInit"}, {&d.driverGetVersion, "cuDriverGetVersion"},
		{&d.deviceGetCount, "cuDeviceGetCount"}, {&d.deviceGetName, "cuDeviceGetName"}, {&d.deviceGetAttribute, "cuDeviceGetAttribute"},
		{&d.deviceTotalMem, "cuDeviceTotalMem"}, {&d.primaryCtxRetain, "cuDevicePrimaryCtxRetain"},
		{&d.primaryCtxRelease, "cuDevicePrimaryCtxRelease"}, {&d.ctxSetCurrent, "cuCtxSetCurrent"},
		{&d.canAccessPeer, "cuDeviceCanAccessPeer"}, {&d.p2pAttribute, "cuDeviceGetP2PAttribute"}, {&d.enablePeerAccess, "cuCtxEnablePeerAccess"},
		{&d.ipcGetMemHandle, "cuIpcGetMemHandle"}, {&d.ipcOpenMemHandle, "cuIpcOpenMemHandle"}, {&d.ipcCloseMemHandle, "cuIpcCloseMemHandle"},
		{&d.memGetInfo, "cuMemGetInfo"}, {&d.memAlloc, "cuMemAlloc"}, {&d.memFree, "cuMemFree"}, {&d.memHostAlloc, "cuMemHostAlloc"},
		{&d.memFreeHost, "cuMemFreeHost"}, {&d.memHostGetDevicePointer, "cuMemHostGetDevicePointer"},
		{&d.memGranularity, "cuMemGetAllocationGranularity"}, {&d.memAddressReserve, "cuMemAddressReserve"},
		{&d.memAddressFree, "cuMemAddressFree"}, {&d.memCreate, "cuMemCreate"}, {&d.memRelease, "cuMemRelease"},
		{&d.memMap, "cuMemMap"}, {&d.memUnmap, "cuMemUnmap"}, {&d.memSetAccess, "cuMemSetAccess"},
		{&d.memcpyHtoD, "cuMemcpyHtoDAsync"}, {&d.memcpyDtoH, "cuMemcpyDtoHAsync"}, {&d.memcpyDtoD, "cuMemcpyDtoDAsync"},
		{&d.memset8, "cuMemsetD8Async"}, {&d.memset16, "cuMemsetD16Async"}, {&d.memset32, "cuMemsetD32Async"},
		{&d.streamCreate, "cuStreamCreate"}, {&d.streamDestroy, "cuStreamDestroy"}, {&d.streamSynchronize, "cuStreamSynchronize"},
		{&d.streamWaitEvent, "cuStreamWaitEvent"}, {&d.beginCapture, "cuStreamBeginCapture"}, {&d.endCapture, "cuStreamEndCapture"},
		{&d.captureInfo, "cuStreamGetCaptureInfo"}, {&d.updateCapture, "cuStreamUpdateCaptureDependencies"},
		{&d.exchangeMode, "cuThreadExchangeStreamCaptureMode"},
		{&d.eventCreate, "cuEventCreate"}, {&d.eventDestroy, "cuEventDestroy"}, {&d.eventRecord, "cuEventRecord"}, {&d.eventRecordFlags, "cuEventRecordWithFlags"},
		{&d.eventQuery, "cuEventQuery"}, {&d.eventSynchronize, "cuEventSynchronize"}, {&d.eventElapsed, "cuEventElapsedTime"},
		{&d.moduleLoad, "cuModuleLoadDataEx"}, {&d.moduleUnload, "cuModuleUnload"}, {&d.moduleGetFunction, "cuModuleGetFunction"},
		{&d.funcGetAttribute, "cuFuncGetAttribute"}, {&d.funcSetAttribute, "cuFuncSetAttribute"}, {&d.launchKernel, "cuLaunchKernelEx"},
		{&d.graphGetNodes, "cuGraphGetNodes"}, {&d.graphNodeGetType, "cuGraphNodeGetType"}, {&d.graphAddChild, "cuGraphAddChildGraphNode"},
		{&d.graphInstantiate, "cuGraphInstantiateWithFlags"}, {&d.graphUpload, "cuGraphUpload"}, {&d.graphLaunch, "cuGraphLaunch"},
		{&d.graphExecDestroy, "cuGraphExecDestroy"}, {&d.graphDestroy, "cuGraphDestroy"},
		{&d.graphExecSetKernel, "cuGraphExecKernelNodeSetParams"},
		{&d.graphGetMemcpy, "cuGraphMemcpyNodeGetParams"}, {&d.graphExecSetMemcpy, "cuGraphExecMemcpyNodeSetParams"},
		{&d.graphGetMemset, "cuGraphMemsetNodeGetParams"}, {&d.graphExecSetMemset, "cuGraphExecMemsetNodeSetParams"},
	} {
		p, r := get(f.name, MinVersion)
		if r != Success || p == 0 {
			return &dl.SymbolError{Library: d.path, Symbol: f.name, Reason: fmt.Sprintf("cuGetProcAddress for CUDA 12.0: %s", r)}
		}
		*f.to = p
	}
	if p, r := get("cuFuncGetParamInfo", 12040); r == Success {
		d.funcParamInfo = p
	}
	return nil
}

// fail returns the error of a status, or nil for success.
func fail(call string, status uintptr) error {
	if status == 0 {
		return nil
	}
	return &Error{call, Result(int32(status))}
}
