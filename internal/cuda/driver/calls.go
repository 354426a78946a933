package driver

import (
	"unsafe"

	"pwc/runtime/cuda/dl"
)

// The calls of a steady-state run use d.hot, which does not allocate and passes up to four arguments.
// All others use dl.Call, which may allocate.

// Library implements [Driver].
func (d *library) Library() string { return d.path }

// DriverGetVersion returns 1000·major + 10·minor of the newest CUDA that the driver
// supports (cuDriverGetVersion).
func (d *library) DriverGetVersion() (int, error) {
	var v int32
	r := dl.Call(d.driverGetVersion, uintptr(unsafe.Pointer(&v)))
	return int(v), fail("cuDriverGetVersion", r)
}

// DeviceGetCount returns how many GPUs the process may use (cuDeviceGetCount).
func (d *library) DeviceGetCount() (int, error) {
	var n int32
	r := dl.Call(d.deviceGetCount, uintptr(unsafe.Pointer(&n)))
	return int(n), fail("cuDeviceGetCount", r)
}

// DeviceGetName returns a GPU's name (cuDeviceGetName).
func (d *library) DeviceGetName(dev Device) (string, error) {
	name := make([]byte, 256)
	r := dl.Call(d.deviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(dev))
	return text(name), fail("cuDeviceGetName", r)
}

// text returns the C string in a buffer.
func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// DeviceGetAttribute returns a property of a GPU, in the attribute's unit
// (cuDeviceGetAttribute).
func (d *library) DeviceGetAttribute(a Attribute, dev Device) (int, error) {
	var v int32
	r := dl.Call(d.deviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev))
	return int(v), fail("cuDeviceGetAttribute", r)
}

// DeviceTotalMem returns the bytes of a GPU's memory (cuDeviceTotalMem).
func (d *library) DeviceTotalMem(dev Device) (int64, error) {
	var n uint64
	r := dl.Call(d.deviceTotalMem, uintptr(unsafe.Pointer(&n)), uintptr(dev))
	return int64(n), fail("cuDeviceTotalMem", r)
}

// DevicePrimaryCtxRetain makes the context that all libraries of the process share, or
// counts one more user of it (cuDevicePrimaryCtxRetain).
func (d *library) DevicePrimaryCtxRetain(dev Device) (Context, error) {
	var c Context
	r := dl.Call(d.primaryCtxRetain, uintptr(unsafe.Pointer(&c)), uintptr(dev))
	return c, fail("cuDevicePrimaryCtxRetain", r)
}

// DevicePrimaryCtxRelease ends a use of that context (cuDevicePrimaryCtxRelease).
func (d *library) DevicePrimaryCtxRelease(dev Device) error {
	r := dl.Call(d.primaryCtxRelease, uintptr(dev))
	return fail("cuDevicePrimaryCtxRelease", r)
}

// CtxSetCurrent makes a context current on the calling thread (cuCtxSetCurrent).
func (d *library) CtxSetCurrent(c Context) error {
	r := d.hot.Call(d.ctxSetCurrent, uintptr(c), 0, 0, 0)
	return fail("cuCtxSetCurrent", r)
}

// MemGetInfo returns the free and the total bytes of the current context's GPU (cuMemGetInfo).
func (d *library) MemGetInfo() (free, total int64, err error) {
	var f, t uint64
	r := dl.Call(d.memGetInfo, uintptr(unsafe.Pointer(&f)), uintptr(unsafe.Pointer(&t)))
	return int64(f), int64(t), fail("cuMemGetInfo", r)
}

// MemAlloc allocates device memory (cuMemAlloc).
func (d *library) MemAlloc(bytes int64) (Ptr, error) {
	var p Ptr
	r := dl.Call(d.memAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes))
	return p, fail("cuMemAlloc", r)
}

// MemFree frees memory of MemAlloc (cuMemFree). It may wait for enqueued work, but the driver does not
// promise it (CUDA Runtime API, cudaFree).
func (d *library) MemFree(p Ptr) error {
	r := dl.Call(d.memFree, uintptr(p))
	return fail("cuMemFree", r)
}

// MemHostAlloc allocates pinned memory, portable and mapped (cuMemHostAlloc).
func (d *library) MemHostAlloc(bytes int64) (unsafe.Pointer, error) {
	const portable, deviceMap = 1, 2
	var p unsafe.Pointer
	r := dl.Call(d.memHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes), portable|deviceMap)
	return p, fail("cuMemHostAlloc", r)
}

// MemFreeHost frees pinned memory (cuMemFreeHost).
func (d *library) MemFreeHost(p unsafe.Pointer) error {
	r := dl.Call(d.memFreeHost, uintptr(p))
	return fail("cuMemFreeHost", r)
}

// MemHostGetDevicePointer returns the device address of pinned memory
// (cuMemHostGetDevicePointer).
func (d *library) MemHostGetDevicePointer(h unsafe.Pointer) (Ptr, error) {
	var p Ptr
	r := dl.Call(d.memHostGetDevicePointer, uintptr(unsafe.Pointer(&p)), uintptr(h), 0)
	return p, fail("cuMemHostGetDevicePointer", r)
}

// allocationProp is CUmemAllocationProp.
type allocationProp struct {
	kind, handles          int32
	locationType, location int32
	win32                  uintptr
	flags                  [8]byte
}

// onDevice describes physical memory of a device (CU_MEM_ALLOCATION_TYPE_PINNED).
func onDevice(dev Device) *allocationProp {
	const pinned, device = 1, 1
	return &allocationProp{kind: pinned, locationType: device, location: int32(dev)}
}

// MemGranularity returns the recommended granularity of physical memory and its mappings, in bytes
// (cuMemGetAllocationGranularity).
func (d *library) MemGranularity(dev Device) (int64, error) {
	const recommended = 1
	var n uint64
	r := dl.Call(d.memGranularity, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(onDevice(dev))), recommended)
	return int64(n), fail("cuMemGetAllocationGranularity", r)
}

// MemAddressReserve reserves address space (cuMemAddressReserve).
func (d *library) MemAddressReserve(bytes int64) (Ptr, error) {
	var p Ptr
	r := dl.Call(d.memAddressReserve, uintptr(unsafe.Pointer(&p)), uintptr(bytes), 0, 0, 0)
	return p, fail("cuMemAddressReserve", r)
}

// MemAddressFree frees reserved address space (cuMemAddressFree).
func (d *library) MemAddressFree(p Ptr, bytes int64) error {
	r := dl.Call(d.memAddressFree, uintptr(p), uintptr(bytes))
	return fail("cuMemAddressFree", r)
}

// MemCreate allocates physical memory, which is not mapped (cuMemCreate).
func (d *library) MemCreate(bytes int64, dev Device) (Allocation, error) {
	var a Allocation
	r := dl.Call(d.memCreate, uintptr(unsafe.Pointer(&a)), uintptr(bytes), uintptr(unsafe.Pointer(onDevice(dev))), 0)
	return a, fail("cuMemCreate", r)
}

// MemRelease releases physical memory (cuMemRelease). If the memory is still mapped, the driver frees
// it after the last MemUnmap.
func (d *library) MemRelease(a Allocation) error {
	r := dl.Call(d.memRelease, uintptr(a))
	return fail("cuMemRelease", r)
}

// MemMap maps physical memory into reserved address space (cuMemMap).
func (d *library) MemMap(p Ptr, bytes int64, a Allocation) error {
	r := dl.Call(d.memMap, uintptr(p), uintptr(bytes), 0, uintptr(a), 0)
	return fail("cuMemMap", r)
}

// MemUnmap ends a mapping of physical memory (cuMemUnmap).
func (d *library) MemUnmap(p Ptr, bytes int64) error {
	r := dl.Call(d.memUnmap, uintptr(p), uintptr(bytes))
	return fail("cuMemUnmap", r)
}

// MemSetAccess lets a GPU read and write mapped memory (cuMemSetAccess).
func (d *library) MemSetAccess(p Ptr, bytes int64, dev Device) error {
	const device, readWrite = 1, 3
	desc := &struct{ locationType, location, flags int32 }{device, int32(dev), readWrite} // CUmemAccessDesc
	r := dl.Call(d.memSetAccess, uintptr(p), uintptr(bytes), uintptr(unsafe.Pointer(desc)), 1)
	return fail("cuMemSetAccess", r)
}

// MemcpyHtoDAsync copies bytes to the device, in the stream's order
// (cuMemcpyHtoDAsync).
func (d *library) MemcpyHtoDAsync(dst Ptr, src unsafe.Pointer, bytes int64, s Stream) error {
	r := d.hot.Call(d.memcpyHtoD, uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s))
	return fail("cuMemcpyHtoDAsync", r)
}

// MemcpyDtoHAsync copies bytes to the host, in the stream's order
// (cuMemcpyDtoHAsync).
func (d *library) MemcpyDtoHAsync(dst unsafe.Pointer, src Ptr, bytes int64, s Stream) error {
	r := d.hot.Call(d.memcpyDtoH, uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s))
	return fail("cuMemcpyDtoHAsync", r)
}

// MemcpyDtoDAsync copies bytes within the device, in the stream's order
// (cuMemcpyDtoDAsync).
func (d *library) MemcpyDtoDAsync(dst, src Ptr, bytes int64, s Stream) error {
	r := d.hot.Call(d.memcpyDtoD, uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s))
	return fail("cuMemcpyDtoDAsync", r)
}

// MemsetAsync sets n elements of width 1, 2 or 4 bytes (cuMemsetD8Async, D16, D32).
func (d *library) MemsetAsync(dst Ptr, element uint32, width int, n int64, s Stream) error {
	fn := d.memset32
	switch width {
	case 1:
		fn = d.memset8
	case 2:
		fn = d.memset16
	}
	r := d.hot.Call(fn, uintptr(dst), uintptr(element), uintptr(n), uintptr(s))
	return fail(MemsetName(width), r)
}

// MemsetName returns the function of the driver that sets elements of width 1, 2 or 4 bytes.
func MemsetName(width int) string {
	switch width {
	case 1:
		return "cuMemsetD8Async"
	case 2:
		return "cuMemsetD16Async"
	}
	return "cuMemsetD32Async"
}

// StreamCreate makes a stream that does not wait for the legacy one (cuStreamCreate).
func (d *library) StreamCreate() (Stream, error) {
	const nonBlocking = 1
	var s Stream
	r := dl.Call(d.streamCreate, uintptr(unsafe.Pointer(&s)), nonBlocking)
	return s, fail("cuStreamCreate", r)
}

// StreamDestroy destroys a stream (cuStreamDestroy). It does not wait: the driver releases the stream
// after the enqueued work.
func (d *library) StreamDestroy(s Stream) error {
	r := dl.Call(d.streamDestroy, uintptr(s))
	return fail("cuStreamDestroy", r)
}

// StreamSynchronize waits until a stream's work is done (cuStreamSynchronize).
func (d *library) StreamSynchronize(s Stream) error {
	r := d.hot.Call(d.streamSynchronize, uintptr(s), 0, 0, 0)
	return fail("cuStreamSynchronize", r)
}

// StreamWaitEvent makes later work of a stream wait for an event (cuStreamWaitEvent).
func (d *library) StreamWaitEvent(s Stream, e Event) error {
	r := d.hot.Call(d.streamWaitEvent, uintptr(s), uintptr(e), 0, 0)
	return fail("cuStreamWaitEvent", r)
}

// StreamBeginCapture records later work of a stream, instead of running it
// (cuStreamBeginCapture).
func (d *library) StreamBeginCapture(s Stream, m CaptureMode) error {
	r := dl.Call(d.beginCapture, uintptr(s), uintptr(m))
	return fail("cuStreamBeginCapture", r)
}

// StreamEndCapture ends a capture and returns its graph (cuStreamEndCapture).
func (d *library) StreamEndCapture(s Stream) (Graph, error) {
	var g Graph
	r := dl.Call(d.endCapture, uintptr(s), uintptr(unsafe.Pointer(&g)))
	return g, fail("cuStreamEndCapture", r)
}

// StreamAddGraph adds a graph as a node to the stream's capture (cuStreamGetCaptureInfo,
// cuGraphAddChildGraphNode, cuStreamUpdateCaptureDependencies).
func (d *library) StreamAddGraph(s Stream, g Graph) error {
	const setDependencies = 1
	var (
		status int32
		id     uint64
		into   Graph
		deps   uintptr // owned by the driver, valid until the stream's next call
		count  uint64
		node   uintptr
	)
	r := dl.Call(d.captureInfo, uintptr(s), uintptr(unsafe.Pointer(&status)), uintptr(unsafe.Pointer(&id)),
		uintptr(unsafe.Pointer(&into)), uintptr(unsafe.Pointer(&deps)), uintptr(unsafe.Pointer(&count)))
	if r != 0 {
		return fail("cuStreamGetCaptureInfo", r)
	}
	if err := captures(status); err != nil {
		return err
	}
	r = dl.Call(d.graphAddChild, uintptr(unsafe.Pointer(&node)), uintptr(into), deps, uintptr(count), uintptr(g))
	if r != 0 {
		return fail("cuGraphAddChildGraphNode", r)
	}
	r = dl.Call(d.updateCapture, uintptr(s), uintptr(unsafe.Pointer(&node)), 1, setDependencies)
	return fail("cuStreamUpdateCaptureDependencies", r)
}

// captures returns an error unless a capture with this status (CUstreamCaptureStatus) is active.
func captures(status int32) error {
	const none, active = 0, 1
	switch status {
	case active:
		return nil
	case none:
		return fail("cuStreamGetCaptureInfo", uintptr(InvalidValue))
	}
	return fail("cuStreamGetCaptureInfo", uintptr(CaptureInvalidated))
}

// StreamCaptureNode returns the node that the stream recorded last, on which its next node
// depends (cuStreamGetCaptureInfo). It returns 0 if there is not exactly one such node, or if
// the dependency has edge data, such as that of a programmatic launch (CUDA_ERROR_LOSSY_QUERY).
func (d *library) StreamCaptureNode(s Stream) (GraphNode, error) {
	var (
		status int32
		id     uint64
		graph  Graph
		deps   *[1]GraphNode // owned by the driver, valid until the stream's next call
		count  uint64
	)
	r := dl.Call(d.captureInfo, uintptr(s), uintptr(unsafe.Pointer(&status)), uintptr(unsafe.Pointer(&id)),
		uintptr(unsafe.Pointer(&graph)), uintptr(unsafe.Pointer(&deps)), uintptr(unsafe.Pointer(&count)))
	if Result(int32(r)) == LossyQuery {
		return 0, nil
	}
	if r != 0 {
		return 0, fail("cuStreamGetCaptureInfo", r)
	}
	if err := captures(status); err != nil || count != 1 {
		return 0, err
	}
	return deps[0], nil
}

// ThreadExchangeStreamCaptureMode sets the calling thread's mode and returns the one
// before (cuThreadExchangeStreamCaptureMode).
func (d *library) ThreadExchangeStreamCaptureMode(m CaptureMode) (CaptureMode, error) {
	mode := m
	r := dl.Call(d.exchangeMode, uintptr(unsafe.Pointer(&mode)))
	return mode, fail("cuThreadExchangeStreamCaptureMode", r)
}

// EventCreate makes an event (cuEventCreate).
func (d *library) EventCreate(f EventFlags) (Event, error) {
	var e Event
	r := dl.Call(d.eventCreate, uintptr(unsafe.Pointer(&e)), uintptr(f))
	return e, fail("cuEventCreate", r)
}

// EventDestroy destroys an event (cuEventDestroy).
func (d *library) EventDestroy(e Event) error {
	r := dl.Call(d.eventDestroy, uintptr(e))
	return fail("cuEventDestroy", r)
}

// EventRecord records an event after the enqueued work of a stream (cuEventRecord).
func (d *library) EventRecord(e Event, s Stream) error {
	r := d.hot.Call(d.eventRecord, uintptr(e), uintptr(s), 0, 0)
	return fail("cuEventRecord", r)
}

// EventRecordExternal adds a node that records an event to the stream's capture (cuEventRecordWithFlags).
func (d *library) EventRecordExternal(e Event, s Stream) error {
	const external = 1
	r := dl.Call(d.eventRecordFlags, uintptr(e), uintptr(s), external)
	return fail("cuEventRecordWithFlags", r)
}

// EventQuery reports whether the work before an event is done (cuEventQuery).
func (d *library) EventQuery(e Event) (bool, error) {
	r := d.hot.Call(d.eventQuery, uintptr(e), 0, 0, 0)
	if Result(int32(r)) == NotReady {
		return false, nil
	}
	return r == 0, fail("cuEventQuery", r)
}

// EventSynchronize waits until the work before an event is done (cuEventSynchronize).
func (d *library) EventSynchronize(e Event) error {
	r := d.hot.Call(d.eventSynchronize, uintptr(e), 0, 0, 0)
	return fail("cuEventSynchronize", r)
}

// EventElapsedTime returns the milliseconds between two events that are done
// (cuEventElapsedTime).
func (d *library) EventElapsedTime(start, end Event) (float32, error) {
	var ms float32
	r := dl.Call(d.eventElapsed, uintptr(unsafe.Pointer(&ms)), uintptr(start), uintptr(end))
	return ms, fail("cuEventElapsedTime", r)
}

// jitLogBytes is the size of the buffer for error messages of the PTX compiler.
const jitLogBytes = 16 << 10

// ModuleLoadData loads a cubin, or PTX, which it compiles. The string is the compiler's log of
// errors (cuModuleLoadDataEx).
func (d *library) ModuleLoadData(image []byte, ptx bool) (Module, string, error) {
	const errorLog, errorLogBytes = 5, 6 // CUjit_option
	var m Module
	if !ptx {
		r := dl.Call(d.moduleLoad, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&image[0])), 0, 0, 0)
		return m, "", fail("cuModuleLoadDataEx", r)
	}
	source := append(image[:len(image):len(image)], 0)
	log := make([]byte, jitLogBytes)
	options := &[2]int32{errorLog, errorLogBytes}
	// The driver reads this as an array of two pointers. A Go pointer within
	// keeps the log on the heap, where it does not move.
	values := &struct {
		log   unsafe.Pointer
		bytes uintptr
	}{unsafe.Pointer(&log[0]), jitLogBytes}
	r := dl.Call(d.moduleLoad, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&source[0])), uintptr(len(options)),
		uintptr(unsafe.Pointer(options)), uintptr(unsafe.Pointer(values)))
	return m, text(log), fail("cuModuleLoadDataEx", r)
}

// ModuleUnload unloads a module (cuModuleUnload).
func (d *library) ModuleUnload(m Module) error {
	r := dl.Call(d.moduleUnload, uintptr(m))
	return fail("cuModuleUnload", r)
}

// ModuleGetFunction finds a kernel by its name (cuModuleGetFunction).
func (d *library) ModuleGetFunction(m Module, name string) (Function, error) {
	var f Function
	text := append([]byte(name), 0)
	r := dl.Call(d.moduleGetFunction, uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(&text[0])))
	return f, fail("cuModuleGetFunction", r)
}

// FuncGetAttribute returns a property of a kernel, in the attribute's unit
// (cuFuncGetAttribute).
func (d *library) FuncGetAttribute(a FuncAttribute, f Function) (int, error) {
	var v int32
	r := dl.Call(d.funcGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(f))
	return int(v), fail("cuFuncGetAttribute", r)
}

// FuncSetAttribute sets a property of a kernel (cuFuncSetAttribute).
func (d *library) FuncSetAttribute(f Function, a FuncAttribute, v int) error {
	r := dl.Call(d.funcSetAttribute, uintptr(f), uintptr(a), uintptr(v))
	return fail("cuFuncSetAttribute", r)
}

// FuncParamSizes returns the bytes of each parameter of a kernel, or false before CUDA
// 12.4 (cuFuncGetParamInfo).
func (d *library) FuncParamSizes(f Function) ([]int64, bool, error) {
	if d.funcParamInfo == 0 {
		return nil, false, nil
	}
	var sizes []int64
	for i := uintptr(0); ; i++ {
		var offset, size uint64
		r := dl.Call(d.funcParamInfo, uintptr(f), i, uintptr(unsafe.Pointer(&offset)), uintptr(unsafe.Pointer(&size)))
		switch Result(int32(r)) {
		case Success:
			sizes = append(sizes, int64(size))
		case InvalidValue: // no parameter i
			return sizes, true, nil
		default:
			return nil, false, fail("cuFuncGetParamInfo", r)
		}
	}
}

// LaunchKernel launches a kernel, with one address for each parameter
// (cuLaunchKernelEx).
func (d *library) LaunchKernel(f Function, c *LaunchConfig, params *unsafe.Pointer) error {
	r := d.hot.Call(d.launchKernel, uintptr(unsafe.Pointer(c)), uintptr(f), uintptr(unsafe.Pointer(params)), 0)
	return fail("cuLaunchKernelEx", r)
}

// GraphNodeTypes returns the kind of each node of a graph (cuGraphGetNodes,
// cuGraphNodeGetType).
func (d *library) GraphNodeTypes(g Graph) ([]NodeType, error) {
	var n uint64
	if r := dl.Call(d.graphGetNodes, uintptr(g), 0, uintptr(unsafe.Pointer(&n))); r != 0 {
		return nil, fail("cuGraphGetNodes", r)
	}
	if n == 0 {
		return nil, nil
	}
	nodes := make([]uintptr, n)
	if r := dl.Call(d.graphGetNodes, uintptr(g), uintptr(unsafe.Pointer(&nodes[0])), uintptr(unsafe.Pointer(&n))); r != 0 {
		return nil, fail("cuGraphGetNodes", r)
	}
	types := make([]NodeType, min(n, uint64(len(nodes))))
	for i := range types {
		if r := dl.Call(d.graphNodeGetType, nodes[i], uintptr(unsafe.Pointer(&types[i]))); r != 0 {
			return nil, fail("cuGraphNodeGetType", r)
		}
	}
	return types, nil
}

// GraphInstantiate makes a graph executable (cuGraphInstantiateWithFlags).
func (d *library) GraphInstantiate(g Graph) (GraphExec, error) {
	var x GraphExec
	r := dl.Call(d.graphInstantiate, uintptr(unsafe.Pointer(&x)), uintptr(g), 0)
	return x, fail("cuGraphInstantiateWithFlags", r)
}

// GraphUpload uploads an executable graph to the device, so that its first launch need not do it
// (cuGraphUpload).
func (d *library) GraphUpload(x GraphExec, s Stream) error {
	r := dl.Call(d.graphUpload, uintptr(x), uintptr(s))
	return fail("cuGraphUpload", r)
}

// GraphLaunch launches an executable graph (cuGraphLaunch).
func (d *library) GraphLaunch(x GraphExec, s Stream) error {
	r := d.hot.Call(d.graphLaunch, uintptr(x), uintptr(s), 0, 0)
	return fail("cuGraphLaunch", r)
}

// GraphExecDestroy destroys an executable graph (cuGraphExecDestroy).
func (d *library) GraphExecDestroy(x GraphExec) error {
	r := dl.Call(d.graphExecDestroy, uintptr(x))
	return fail("cuGraphExecDestroy", r)
}

// kernelNodeParams is CUDA_KERNEL_NODE_PARAMS_v2.
type kernelNodeParams struct {
	function    Function
	grid, block [3]uint32
	shared      uint32
	params      *unsafe.Pointer
	extra       uintptr
	kernel, ctx uintptr
}

// memcpyParams is CUDA_MEMCPY3D.
type memcpyParams struct {
	srcX, srcY, srcZ, srcLOD                 uintptr
	srcType                                  int32
	_                                        int32
	srcHost                                  uintptr
	srcDevice                                Ptr
	srcArray, reserved0, srcPitch, srcHeight uintptr
	dstX, dstY, dstZ, dstLOD                 uintptr
	dstType                                  int32
	_                                        int32
	dstHost                                  uintptr
	dstDevice                                Ptr
	dstArray, reserved1, dstPitch, dstHeight uintptr
	width, height, depth                     uintptr
}

// memsetParams is CUDA_MEMSET_NODE_PARAMS.
type memsetParams struct {
	dst           Ptr
	pitch         uintptr
	value         uint32
	element       uint32
	width, height uintptr
}

// GraphExecKernelNodeSetParams sets the function, grid, block, shared memory and arguments of a kernel node
// (cuGraphExecKernelNodeSetParams).
func (d *library) GraphExecKernelNodeSetParams(x GraphExec, n GraphNode, f Function, c *LaunchConfig, params *unsafe.Pointer) error {
	p := &kernelNodeParams{function: f, grid: c.Grid, block: c.Block, shared: c.Shared, params: params}
	r := dl.Call(d.graphExecSetKernel, uintptr(x), uintptr(n), uintptr(unsafe.Pointer(p)))
	return fail("cuGraphExecKernelNodeSetParams", r)
}

// GraphExecMemcpyNodeSetAddresses changes the device addresses of a copy
// (cuGraphMemcpyNodeGetParams, cuGraphExecMemcpyNodeSetParams). If dst or src is 0, that side gets its
// address in the graph from which x was made, even if another address was set since.
func (d *library) GraphExecMemcpyNodeSetAddresses(x GraphExec, n GraphNode, ctx Context, dst, src Ptr) error {
	var p memcpyParams
	if r := dl.Call(d.graphGetMemcpy, uintptr(n), uintptr(unsafe.Pointer(&p))); r != 0 {
		return fail("cuGraphMemcpyNodeGetParams", r)
	}
	if dst != 0 {
		p.dstDevice = dst
	}
	if src != 0 {
		p.srcDevice = src
	}
	r := dl.Call(d.graphExecSetMemcpy, uintptr(x), uintptr(n), uintptr(unsafe.Pointer(&p)), uintptr(ctx))
	return fail("cuGraphExecMemcpyNodeSetParams", r)
}

// GraphExecMemsetNodeSetAddress changes the address of a fill
// (cuGraphMemsetNodeGetParams, cuGraphExecMemsetNodeSetParams).
func (d *library) GraphExecMemsetNodeSetAddress(x GraphExec, n GraphNode, ctx Context, dst Ptr) error {
	var p memsetParams
	if r := dl.Call(d.graphGetMemset, uintptr(n), uintptr(unsafe.Pointer(&p))); r != 0 {
		return fail("cuGraphMemsetNodeGetParams", r)
	}
	p.dst = dst
	r := dl.Call(d.graphExecSetMemset, uintptr(x), uintptr(n), uintptr(unsafe.Pointer(&p)), uintptr(ctx))
	return fail("cuGraphExecMemsetNodeSetParams", r)
}

// GraphDestroy destroys a graph (cuGraphDestroy).
func (d *library) GraphDestroy(g Graph) error {
	r := dl.Call(d.graphDestroy, uintptr(g))
	return fail("cuGraphDestroy", r)
}
